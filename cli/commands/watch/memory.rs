//! Free memory beside the server: of the devices, or of a host whose memory is the device's.

use super::{client::Place, options::MemoryFrom};
use plimsoll_backend_host::{
    amdgpu,
    linux::{self, Roots},
    nvidia_smi::{self, SmiError, SmiGpu},
};
use plimsoll_core::units::Bytes;
use plimsoll_ingest::watch::{Device, DeviceFree, MemoryPlace};
use std::{path::Path, time::Duration};

/// How long `nvidia-smi` may take.
const SMI_LIMIT: Duration = Duration::from_secs(5);

/// A source of readings.
pub struct Memory {
    /// Where it reads.
    pub place: MemoryPlace,
    /// Why not, when nowhere.
    pub missing: Option<String>,
    /// The devices.
    pub devices: Vec<Device>,
}

impl Memory {
    /// Finds what can be read of the machine at `place`.
    pub fn find(place: &Place, from: MemoryFrom, gpus: &[u32]) -> Self {
        match from {
            MemoryFrom::None => Self::nowhere("it was not asked for"),
            MemoryFrom::Auto if !place.is_local() => Self::nowhere(
                "the server runs on another machine: watch it there, or pass --memory here",
            ),
            MemoryFrom::Auto | MemoryFrom::Here => Self::of_this_machine(gpus),
        }
    }

    fn nowhere(why: &str) -> Self {
        Self { place: MemoryPlace::None, missing: Some(why.to_owned()), devices: Vec::new() }
    }

    fn of_this_machine(gpus: &[u32]) -> Self {
        let found = match nvidia_smi::run(SMI_LIMIT) {
            Ok(found) if found.iter().any(|gpu| gpu.free_mib.is_some()) => {
                let devices = found.iter().map(|gpu| Device {
                    index: gpu.index,
                    name: gpu.name.clone(),
                    total: gpu.total_mib.map(mib),
                });
                Self { place: MemoryPlace::NvidiaSmi, missing: None, devices: devices.collect() }
            }
            // A device that has no memory of its own.
            Ok(_) => Self::host(),
            Err(SmiError::NotFound | SmiError::NoDevices) => Self::without_nvidia(),
            Err(error) => Self::nowhere(&error.to_string()),
        };
        found.only(gpus)
    }

    fn without_nvidia() -> Self {
        let cards = amdgpu::read(&Roots::default());
        if !cards.is_empty() {
            let devices = cards.iter().map(|card| Device {
                index: card.index,
                name: "AMD GPU".to_owned(),
                total: Some(card.total),
            });
            return Self { place: MemoryPlace::Amdgpu, missing: None, devices: devices.collect() };
        }
        let driver = ["/dev/nvidiactl", "/proc/driver/nvidia", "/dev/kfd"];
        match driver.iter().find(|path| Path::new(path).exists()) {
            Some(path) => Self::nowhere(&format!(
                "there is a device ({path}), but neither nvidia-smi nor the driver's files show its memory"
            )),
            None => Self::host(),
        }
    }

    fn host() -> Self {
        match host_free() {
            Some(_) => {
                let host = Device { index: 0, name: "host".to_owned(), total: host_total() };
                Self { place: MemoryPlace::Host, missing: None, devices: vec![host] }
            }
            None => Self::nowhere("the system does not say how much memory is available"),
        }
    }

    fn only(mut self, gpus: &[u32]) -> Self {
        let all = gpus.is_empty() || matches!(self.place, MemoryPlace::Host | MemoryPlace::None);
        if !all {
            self.devices.retain(|device| gpus.contains(&device.index));
        }
        if !all && self.devices.is_empty() {
            return Self::nowhere("no device has one of the indices of --gpus");
        }
        self
    }

    /// Free memory now; a device that does not answer is left out.
    pub fn read(&self) -> Vec<DeviceFree> {
        let free: Vec<DeviceFree> = match self.place {
            MemoryPlace::NvidiaSmi => {
                let found = nvidia_smi::run(SMI_LIMIT).unwrap_or_default();
                let free =
                    |gpu: &SmiGpu| Some(DeviceFree { index: gpu.index, free: mib(gpu.free_mib?) });
                found.iter().filter_map(free).collect()
            }
            MemoryPlace::Amdgpu => amdgpu::read(&Roots::default())
                .iter()
                .map(|card| DeviceFree {
                    index: card.index,
                    free: card.total.saturating_sub(card.used),
                })
                .collect(),
            MemoryPlace::Host => {
                host_free().into_iter().map(|free| DeviceFree { index: 0, free }).collect()
            }
            MemoryPlace::None => Vec::new(),
        };
        let listed = |index: u32| self.devices.iter().any(|device| device.index == index);
        free.into_iter().filter(|free| listed(free.index)).collect()
    }
}

const fn mib(n: u64) -> Bytes {
    Bytes(n.saturating_mul(1 << 20))
}

/// What the host can still give: `MemAvailable`, or less where a control group leaves less.
fn host_free() -> Option<Bytes> {
    linux::headroom(&Roots::default()).ok().flatten()
}

fn host_total() -> Option<Bytes> {
    linux::read(&Roots::default()).ok().map(|host| host.total)
}
