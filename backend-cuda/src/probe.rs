//! What the driver says: devices with their memory, or why there are none and what to do about it.

use crate::ffi::{
    CAPABILITY_MAJOR, CAPABILITY_MINOR, Code, Driver, INTEGRATED, LoadError, MULTIPROCESSORS,
};
use plimsoll_core::device::{
    CUDA_GRANULARITY, ComputeCapability, DenseTflops, DeviceProfile, Evidence, Link, MemoryKind,
    Platform, Sourced,
};
use plimsoll_core::figure::Estimate;
use plimsoll_core::units::Bytes;

/// Whole device or slice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Partition {
    /// The whole device, as far as this process sees.
    Whole,
    /// A MIG slice, by its profile (`1g.18gb`).
    Mig {
        /// Profile name.
        profile: String,
    },
}

/// One visible device, as read now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaDevice {
    /// CUDA ordinal in this process (after `CUDA_VISIBLE_DEVICES`).
    pub ordinal: u32,
    /// Name of the device.
    pub name: String,
    /// Total: the second value of `cudaMemGetInfo` when it could be read, else the device's
    /// property.
    pub total: Bytes,
    /// Free now, read inside a context of our own: its cost (the profile's `context`) comes on top
    /// of what was free without it. An error says why it could not be read (device full, exclusive
    /// mode).
    pub free: Result<Bytes, DriverFailure>,
    /// Compute capability.
    pub compute_capability: ComputeCapability,
    /// Multiprocessors.
    pub sms: u64,
    /// Memory is shared with the CPU.
    pub memory: MemoryKind,
    /// MIG.
    pub partition: Partition,
    /// CUDA release of the driver, `(13, 0)`.
    pub driver: (u32, u32),
}

/// A driver call that failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{call} returned CUDA error {code} ({meaning})")]
pub struct DriverFailure {
    /// Which call.
    pub call: &'static str,
    /// `CUresult`.
    pub code: i32,
    /// What it means.
    pub meaning: &'static str,
}

/// Why no device can be used, with what to do about it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProbeError {
    /// No driver library.
    #[error(
        "no NVIDIA driver: libcuda.so.1 is not found. Install the driver, or in a container start it with \
         `--gpus all` (the library comes from the host)"
    )]
    NoDriver,
    /// The driver runs and shows no device.
    #[error(
        "the NVIDIA driver shows no device. Check `nvidia-smi`, CUDA_VISIBLE_DEVICES (empty or -1 hides all) \
         and that /dev/nvidia* are passed into the container"
    )]
    NoDevice,
    /// The driver lacks what is needed, or is older than the library beside it.
    #[error("the NVIDIA driver is too old ({detail}); install one for CUDA 11.0 or later")]
    DriverTooOld {
        /// Missing symbol or the release found.
        detail: String,
    },
    /// The library is a stub or does not fit the kernel module.
    #[error("the CUDA library does not fit the running driver: {failure}. {fix}")]
    Mismatch {
        /// The call.
        failure: DriverFailure,
        /// What to do.
        fix: &'static str,
    },
    /// Any other failure.
    #[error("the NVIDIA driver failed: {0}. See `dmesg | grep -i nvrm` and `nvidia-smi`")]
    Other(DriverFailure),
}

/// Oldest release accepted: 11.0.
const OLDEST: i32 = 11_000;

/// Reads every visible device. Creates each device's primary context for the free reading and lets
/// it go; nothing stays. Takes tens to hundreds of milliseconds a device.
///
/// # Errors
/// `NoDriver`, `NoDevice`, `DriverTooOld`, `Mismatch` or `Other`; each text says what to do.
pub fn probe() -> Result<Vec<CudaDevice>, ProbeError> {
    let driver = Driver::load()?;
    let count = start(&driver)?;
    let version = driver.version().map_err(|code| classify("cuDriverGetVersion", code))?;
    let ordinals = (0..count).filter_map(|ordinal| i32::try_from(ordinal).ok());
    ordinals.map(|ordinal| read(&driver, ordinal, version)).collect()
}

impl From<LoadError> for ProbeError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::NoLibrary => Self::NoDriver,
            LoadError::MissingSymbol { name, release } => {
                let release = release.map_or_else(
                    || "says no release".to_owned(),
                    |release| format!("is for CUDA {}.{}", release / 1000, release % 1000 / 10),
                );
                Self::DriverTooOld { detail: format!("it has no {name}, and {release}") }
            }
        }
    }
}

/// Initialises the driver when it is new enough; the number of visible devices, at least one.
pub(crate) fn start(driver: &Driver) -> Result<u32, ProbeError> {
    let version = driver.version().map_err(|code| classify("cuDriverGetVersion", code))?;
    if version < OLDEST {
        let detail = format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
        return Err(ProbeError::DriverTooOld { detail });
    }
    driver.init().map_err(|code| classify("cuInit", code))?;
    let count = driver.count().map_err(|code| classify("cuDeviceGetCount", code))?;
    match u32::try_from(count) {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(ProbeError::NoDevice),
    }
}

/// The driver's handle of a device.
pub(crate) fn handle(driver: &Driver, ordinal: i32) -> Result<i32, ProbeError> {
    driver.device(ordinal).map_err(|code| classify("cuDeviceGet", code))
}

fn read(driver: &Driver, ordinal: i32, version: i32) -> Result<CudaDevice, ProbeError> {
    let device = handle(driver, ordinal)?;
    let name = driver.name(device).map_err(|code| classify("cuDeviceGetName", code))?;
    let attribute = |number| {
        let value = driver.attribute(device, number);
        value.map_err(|code| classify("cuDeviceGetAttribute", code))
    };
    let unsigned = |value: i32| u32::try_from(value).unwrap_or(0);
    let property = driver.total(device).map_err(|code| classify("cuDeviceTotalMem", code))?;
    let reading = driver.memory(device).map_err(|code| failure("cuMemGetInfo", code));
    let total = reading.as_ref().map_or(property, |(_, total)| *total);
    Ok(CudaDevice {
        ordinal: unsigned(ordinal),
        partition: partition(&name),
        name,
        total: Bytes(total),
        free: reading.map(|(free, _)| Bytes(free)),
        compute_capability: ComputeCapability {
            major: unsigned(attribute(CAPABILITY_MAJOR)?),
            minor: unsigned(attribute(CAPABILITY_MINOR)?),
        },
        sms: u64::from(unsigned(attribute(MULTIPROCESSORS)?)),
        memory: if attribute(INTEGRATED)? == 0 {
            MemoryKind::Discrete
        } else {
            MemoryKind::Integrated
        },
        driver: (unsigned(version / 1000), unsigned(version % 1000 / 10)),
    })
}

/// A slice names its profile: `NVIDIA H200 MIG 1g.18gb`.
fn partition(name: &str) -> Partition {
    match name.split_once(" MIG ") {
        Some((_, profile)) => Partition::Mig { profile: profile.trim().to_owned() },
        None => Partition::Whole,
    }
}

fn failure(call: &'static str, Code(code): Code) -> DriverFailure {
    let meaning = match code {
        1 => "invalid value",
        2 => "out of memory",
        3 => "not initialised",
        4 => "the driver is shutting down",
        34 => "a stub library",
        36 => "the call needs a newer driver",
        46 => "the device is busy or in exclusive mode",
        100 => "no device",
        101 => "invalid device",
        201 => "invalid context",
        216 => "a context is already in use by another process",
        214 => "uncorrectable ECC error",
        801 => "not supported",
        802 => "the system is not ready (fabric manager)",
        803 => "library and kernel module are of different releases",
        804 => "forward compatibility is not supported on this hardware",
        999 => "unknown error",
        _ => "see the CUDA driver API",
    };
    DriverFailure { call, code, meaning }
}

fn classify(call: &'static str, code: Code) -> ProbeError {
    let fix = match code.0 {
        100 => return ProbeError::NoDevice,
        34 => "LD_LIBRARY_PATH leads to the toolkit's stub libcuda: remove that folder from it",
        803 => {
            "Reboot, or reload the kernel module after a driver update; in a container update the image's library"
        }
        804 => "Remove the cuda-compat package or its folder from LD_LIBRARY_PATH",
        802 => "Start the fabric manager (nvidia-fabricmanager) of the driver's release",
        _ => return ProbeError::Other(failure(call, code)),
    };
    ProbeError::Mismatch { failure: failure(call, code), fix }
}

impl CudaDevice {
    /// The reading as a profile: totals and compute are measured; what the driver does not tell
    /// (the smi total, bandwidth, compute rates, links) is left open or taken from `known`, the
    /// catalog's entry.
    #[must_use]
    pub fn profile(&self, known: Option<&DeviceProfile>) -> DeviceProfile {
        let mut profile = known.cloned().unwrap_or_else(|| DeviceProfile {
            key: String::new(),
            name: String::new(),
            aliases: Vec::new(),
            platform: Platform::Cuda,
            memory: self.memory,
            link: Link::Pcie,
            arch: String::new(),
            sms: None,
            smi_total_mib: None,
            runtime_total: Sourced::new(Estimate::exact(self.total), Evidence::Measured),
            bandwidth_gb_s: None,
            tflops: DenseTflops::default(),
            context: None,
            granularity: CUDA_GRANULARITY,
            metal: None,
            mig: None,
        });
        profile.key = format!("cuda:{}", self.ordinal);
        profile.name.clone_from(&self.name);
        profile.memory = self.memory;
        profile.arch = self.compute_capability.to_string();
        profile.sms = Some(Sourced::new(self.sms, Evidence::Measured));
        profile.runtime_total = Sourced::new(Estimate::exact(self.total), Evidence::Measured);
        profile
    }
}
