//! The device that this machine reports, for a plan without `--device`. Only reads.

use crate::exit::{self, Failure};
use plimsoll_backend_cuda::probe;
use plimsoll_backend_host::{
    nvidia_smi::{self, SmiError, SmiGpu},
    read_host,
};
use plimsoll_catalog::devices;
use plimsoll_core::{device::DeviceProfile, units::GIB};
use std::time::Duration;

/// How long `nvidia-smi` may take.
const LIMIT: Duration = Duration::from_secs(10);

/// The device of this machine, and what is said about the choice.
pub struct Here {
    /// Its profile.
    pub device: DeviceProfile,
    /// One sentence.
    pub note: String,
}

/// What to write when there is no device to ask.
const NO_DEVICE: &str = "no --device, and this machine shows no GPU; say which device the server \
    will have:\n\n  \
    plimsoll plan --device \"H100 80GB\" …\n  \
    plimsoll plan --device \"RTX PRO 6000 Blackwell\" …\n  \
    plimsoll plan --device list      (all that are known)";

/// Asks `nvidia-smi`, and the CUDA driver for a device that the catalog does not know; on macOS the
/// size of the memory names the device.
pub fn device() -> Result<Here, Failure> {
    if cfg!(target_os = "macos") {
        return apple();
    }
    match nvidia_smi::run(LIMIT) {
        Ok(gpus) => of_gpus(&gpus),
        Err(SmiError::NotFound | SmiError::NoDevices) => Err(Failure::input(NO_DEVICE)),
        Err(error) => Err(Failure {
            code: exit::NO_DEVICE,
            message: format!(
                "no --device, and the device of this machine does not answer: {error}"
            ),
        }),
    }
}

fn of_gpus(gpus: &[SmiGpu]) -> Result<Here, Failure> {
    let Some(first) = gpus.first() else { return Err(Failure::input(NO_DEVICE)) };
    let mut names: Vec<&str> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() > 1 {
        let message = format!(
            "no --device, and this machine has several kinds: {}; say which one",
            names.join(", ")
        );
        return Err(Failure::input(message));
    }
    let device = match devices::find(&first.name) {
        Ok(device) => device,
        Err(error) => driver_profile(&first.name, &error)?,
    };
    Ok(Here { note: note(first, gpus.len()), device })
}

/// What the tool says, with what other programs hold: it is not counted unless asked for.
fn note(gpu: &SmiGpu, count: usize) -> String {
    let used = gpu.used_mib.filter(|mib| *mib > 0);
    let used = used.map_or_else(String::new, |mib| {
        format!("; {mib} MiB are in use now and not counted (--others \"{mib} MiB\" counts them)")
    });
    format!("the device is the one of this machine: {count} x {}{used}", gpu.name)
}

/// A device that the catalog does not know, as its driver describes it.
fn driver_profile(name: &str, unknown: &devices::DeviceError) -> Result<DeviceProfile, Failure> {
    let lost = |message: String| Failure { code: exit::NO_DEVICE, message };
    let found = probe().map_err(|error| lost(format!("{unknown}; {error}")))?;
    let device = found.iter().find(|device| device.name == name).or(found.first());
    let Some(device) = device else { return Err(lost(unknown.to_string())) };
    Ok(device.profile(None))
}

fn apple() -> Result<Here, Failure> {
    let host = read_host().map_err(|error| Failure {
        code: exit::NO_DEVICE,
        message: format!("no --device, and the size of the memory cannot be read: {error}"),
    })?;
    let name = format!("Apple {} GB", host.total.0.div_ceil(GIB));
    let device = devices::find(&name).map_err(|error| {
        Failure::input(format!("no --device, and this machine is not in the catalog: {error}"))
    })?;
    let note = format!("the device is the one of this machine: {}", device.name);
    Ok(Here { device, note })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(index: u32, name: &str, used_mib: u64) -> SmiGpu {
        SmiGpu {
            index,
            name: name.to_owned(),
            total_mib: Some(97_887),
            free_mib: Some(97_887 - used_mib),
            used_mib: Some(used_mib),
        }
    }

    #[test]
    fn equal_devices_are_one_kind_and_what_they_hold_is_said() {
        let name = "NVIDIA RTX PRO 6000 Blackwell Server Edition";
        let Ok(here) = of_gpus(&[gpu(0, name, 1234), gpu(1, name, 0)]) else {
            panic!("a known device");
        };
        assert_eq!(here.device.name, name);
        assert!(here.note.contains("2 x NVIDIA RTX PRO 6000"), "{}", here.note);
        assert!(here.note.contains("--others \"1234 MiB\""), "{}", here.note);
    }

    #[test]
    fn several_kinds_and_none_are_errors_that_say_what_to_write() {
        let mixed = of_gpus(&[gpu(0, "NVIDIA L4", 0), gpu(1, "NVIDIA A10", 0)]);
        let message = mixed.err().map(|failure| failure.message).unwrap_or_default();
        assert!(message.contains("NVIDIA A10, NVIDIA L4; say which one"), "{message}");
        let none = of_gpus(&[]).err().map(|failure| failure.code);
        assert_eq!(none, Some(exit::BAD_INPUT));
    }
}
