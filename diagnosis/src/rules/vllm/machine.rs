//! Machines whose device and host share one memory: their rules differ in what is free and what a refusal means.

use plimsoll_core::units::GIB;
use plimsoll_ingest::log::{Kind, System, TorchOom};

use crate::Case;

/// What kind of machine it is, as far as the log tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Machine {
    /// Device and host share one memory.
    pub(super) unified: bool,
}

/// Names of devices that are part of such a machine.
const NAMES: &[&str] = &["gb10", "thor", "orin", "jetson", "mi300a", "strix", "8060s", "gfx1151"];

/// Capacities that only unified machines of today show: 128 GB less what the firmware keeps.
const CAPACITY: std::ops::RangeInclusive<i64> = 119..=127;

/// Of a case: by the device's name, by a line that only such a driver writes, by the capacity.
pub(super) fn of(case: &Case) -> Machine {
    let named = case.log.devices.iter().any(|name| {
        let name = name.to_ascii_lowercase();
        NAMES.iter().any(|word| name.contains(word))
    });
    let pages = case.system().any(|(_, line)| matches!(line, System::NvNoMemory));
    Machine { unified: named || pages || by_capacity(case) }
}

fn by_capacity(case: &Case) -> bool {
    let within = |oom: &TorchOom| {
        oom.capacity.is_some_and(|capacity| CAPACITY.contains(&(capacity.bytes / GIB as i64)))
    };
    case.events().any(|event| matches!(&event.kind, Kind::TorchOom(oom) if within(oom)))
}
