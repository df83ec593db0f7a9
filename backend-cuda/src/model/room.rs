//! What is free on the model's devices, read from any thread: for who watches the pressure of other programs.

use crate::{device::Card, ffi::Driver};
use plimsoll_core::units::Bytes;

/// Reads free memory of some devices.
#[derive(Clone)]
pub struct DeviceRoom {
    driver: Option<Driver>,
    devices: Vec<i32>,
}

impl DeviceRoom {
    pub(super) fn new<'a>(cards: impl Iterator<Item = &'a Card>) -> Self {
        let mut room = Self { driver: None, devices: Vec::new() };
        for card in cards {
            room.driver = Some(card.driver());
            room.devices.push(card.device());
        }
        room
    }

    /// Free on the fullest device; `None` when a device does not answer.
    #[must_use]
    pub fn least(&self) -> Option<Bytes> {
        let driver = self.driver.as_ref()?;
        let read = |device: &i32| driver.memory(*device).ok().map(|(free, _)| Bytes(free));
        let readings: Option<Vec<Bytes>> = self.devices.iter().map(read).collect();
        readings?.into_iter().min()
    }
}
