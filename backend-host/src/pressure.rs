//! How much memory is left to take, for the plan and while the engine lives.

use crate::{
    linux::{self, Roots},
    macos,
    memory::HostError,
};
use plimsoll_core::{
    policy::plimsoll::{HostReadings, Room},
    units::Bytes,
};

/// The readings for a memory plan, on whatever system this is.
///
/// # Errors
/// When the machine's memory or the process's own cannot be read.
pub fn plan_readings() -> Result<HostReadings, HostError> {
    if !cfg!(target_os = "macos") {
        return linux::plan_readings(&Roots::default());
    }
    let (host, resident) = (macos::read()?, macos::resident()?);
    Ok(HostReadings {
        total: host.total,
        available: None,
        group: None,
        resident,
        anonymous: resident,
        maps_max: None,
        system_page: Bytes(page_size::get() as u64),
    })
}

/// Reads the room that is left, again and again; what is to be done about it is
/// [`Lending`](plimsoll_core::policy::plimsoll::Lending)'s to say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pressure {
    roots: Roots,
    limit: Option<Bytes>,
}

impl Pressure {
    /// With the engine's own `--memory-limit`, where it has one.
    #[must_use]
    pub fn new(limit: Option<Bytes>) -> Self {
        Self::under(Roots::default(), limit)
    }

    /// The same with files of another place.
    #[must_use]
    pub const fn under(roots: Roots, limit: Option<Bytes>) -> Self {
        Self { roots, limit }
    }

    /// Some small files, some tens of microseconds. What the system does not say is left out; on macOS that
    /// is all but the flag.
    ///
    /// # Errors
    /// When a file that is there has another form.
    pub fn room(&self) -> Result<Room, HostError> {
        let mut room = Room::default();
        if cfg!(target_os = "macos") {
            if let Some(limit) = self.limit {
                room.limit = Some(limit.saturating_sub(macos::resident()?));
            }
            return Ok(room);
        }
        room.available = linux::available(&self.roots)?;
        room.group = linux::group_room(&self.roots).map(|group| group.room);
        if let Some(limit) = self.limit {
            room.limit = Some(limit.saturating_sub(linux::own_memory(&self.roots)?.resident));
        }
        Ok(room)
    }
}
