//! The host killed it: the kernel, a control group, a container runtime, or Python itself.

use plimsoll_core::units::GIB;
use plimsoll_ingest::log::{Amount, Event, Kind, Sglang, System};

use crate::oom::{Reached, reached, size};
use crate::{Case, Cause, Confidence, Finding, Lever, Move, Phase};

/// A server that ran so long before the host was full did not start too large: something grew.
const LONG: u64 = 2 * 3600;

/// Names of machines whose device and host share one memory.
const UNIFIED: &[&str] =
    &["gb10", "thor", "orin", "jetson", "mi300a", "apple", "strix", "radeon 8060"];

/// Whether the log names a machine of unified memory.
pub(super) fn unified(case: &Case) -> bool {
    case.log.devices.iter().any(|name| {
        let name = name.to_ascii_lowercase();
        UNIFIED.iter().any(|word| name.contains(word))
    })
}

/// How a process of a server ended for the host's memory, most telling first.
fn killed(case: &Case) -> Option<(&Event, Kill)> {
    let all: Vec<(&Event, Kill)> =
        case.events().filter_map(|event| Some((event, kill(&event.kind)?))).collect();
    all.iter().max_by_key(|(_, kill)| kill.rank()).copied()
}

/// What says that the host ran out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kill {
    /// The kernel's own line.
    Kernel,
    /// `OOMKilled`, `MemoryError`, `Cannot allocate memory`, Ray's monitor.
    Said,
    /// Signal 9 without a word: exit −9 or 137.
    Silent,
}

impl Kill {
    const fn rank(self) -> u8 {
        match self {
            Self::Kernel => 2,
            Self::Said => 1,
            Self::Silent => 0,
        }
    }
}

fn kill(kind: &Kind) -> Option<Kill> {
    match kind {
        Kind::System(System::KernelKill { .. }) => Some(Kill::Kernel),
        Kind::System(System::HostOom { .. } | System::RayMemoryKill) => Some(Kill::Said),
        Kind::System(System::Exit { code: -9 | 137 }) => Some(Kill::Silent),
        Kind::System(System::Signal { name }) if matches!(&**name, "SIGKILL" | "Killed") => {
            Some(Kill::Silent)
        }
        _ => None,
    }
}

/// The process was killed for host memory.
pub(super) fn host_killed(case: &Case) -> Vec<Finding> {
    let Some((event, kill)) = killed(case) else { return Vec::new() };
    // A process that failed for the device is often ended by its parent with signal 9.
    if kill == Kill::Silent && failed_before(case, event) {
        return Vec::new();
    }
    let far = reached(case, event);
    let long = event.seconds.is_some_and(|seconds| seconds > LONG) && far == Reached::Serving;
    let finding = match (far, long) {
        (_, true) => grew(event),
        (Reached::Loading | Reached::DraftLoading, _) => while_loading(case),
        _ => too_small(event, far),
    };
    let sure = match kill {
        Kill::Kernel => (Confidence::Certain, 80),
        Kill::Said => (Confidence::Certain, 75),
        Kill::Silent => (Confidence::Possible, 45),
    };
    vec![details(case, finding.sure(sure.0, sure.1).seen(event), event, kill)]
}

fn failed_before(case: &Case, event: &Event) -> bool {
    case.events().any(|other| {
        let before = (other.file, other.line) < (event.file, event.line);
        let failure = matches!(
            &other.kind,
            Kind::TorchOom(_)
                | Kind::System(
                    System::DriverOom { .. } | System::Exception(_) | System::DeviceError { .. }
                )
                | Kind::Sglang(
                    Sglang::WeightsLeaveNothing { .. }
                        | Sglang::NotEnoughMemory { .. }
                        | Sglang::SchedulerException
                        | Sglang::CaptureFailed { .. }
                )
        );
        before && failure
    })
}

fn while_loading(case: &Case) -> Finding {
    let shared = unified(case);
    let (code, cause, other) = if shared {
        ("load-time-peak", Cause::LoadTimePeak, Cause::HostMemory)
    } else {
        ("host-memory", Cause::HostMemory, Cause::LoadTimePeak)
    };
    let headline = "the host killed it while the weights were loaded: loading needs more than the loaded weights";
    Finding::new(code, cause, Phase::Load, headline)
        .also(&[other, Cause::SharedOrUnifiedMemory])
        .because(
            "Readers hold tensors of the checkpoint, and their converted form, in host memory beside the page cache.",
        )
        .set(Lever::new("swap", Move::Raise).gives("room for a peak of minutes"))
        .set(Lever::new("--model-loader-extra-config", Move::Set).gives("fewer threads load at once"))
}

fn grew(event: &Event) -> Finding {
    let hours = event.seconds.unwrap_or(0) / 3600;
    let headline = format!(
        "the host killed it after {hours} hours of serving: host memory grew until it was full"
    );
    Finding::new("leak", Cause::Leak, Phase::Leak, headline)
        .also(&[Cause::HostMemory])
        .because("It started and served with this memory for hours; what changed is what was kept since.")
        .set(Lever::new("restart", Move::Set).gives("watch the resident size against requests; a newer release may have the fix"))
}

fn too_small(event: &Event, far: Reached) -> Finding {
    let phase = if far >= Reached::Sizing { Phase::Host } else { Phase::Load };
    let mut also = vec![Cause::Leak, Cause::LoadTimePeak, Cause::SharedOrUnifiedMemory];
    if far == Reached::Sizing || far == Reached::Capture {
        also.push(Cause::WrongOrUnknownCapacity);
    }
    let headline = match &event.kind {
        Kind::System(System::KernelKill { cgroup: Some(true), .. }) => {
            "the memory limit of its control group killed it, not the device"
        }
        _ => "the host's memory killed it, not the device's",
    };
    Finding::new("host-memory", Cause::HostMemory, phase, headline).also(&also)
}

fn details(case: &Case, mut finding: Finding, event: &Event, kill: Kill) -> Finding {
    let figures = match &event.kind {
        Kind::System(System::KernelKill { resident, .. }) => *resident,
        Kind::System(System::HostOom { peak, .. }) => *peak,
        _ => None,
    };
    if let Some(resident) = figures {
        finding = finding
            .sum(format!("{} resident when it was killed", size(resident)))
            .int("resident_bytes", resident.bytes);
    }
    if kill == Kill::Silent {
        finding = finding.sum(
            "signal 9 without a traceback: `dmesg` or the container's state says whether it was memory",
        );
    }
    let pools = case.sglang().filter_map(|(event, line)| match line {
        Sglang::HostPool { size, .. } => Some((event, *size)),
        _ => None,
    });
    let mut sum = Amount::default();
    for (event, pool) in pools.take(16) {
        finding = finding.seen(event);
        sum = sum + pool;
    }
    if sum.bytes > GIB as i64 {
        finding = finding
            .sum(format!("{} of it were asked for by the hierarchical cache", size(sum)))
            .set(Lever::new("--hicache-size", Move::Lower).gives("GB for every rank"));
    }
    finding
        .set(Lever::new("memory limit of the container", Move::Raise).gives("or a larger host"))
        .useless(
            "--mem-fraction-static, --gpu-memory-utilization",
            None,
            "they divide the device's memory; the host's was short",
        )
}

/// No room in shared memory or on disk.
pub(super) fn no_space(case: &Case) -> Vec<Finding> {
    let found = case.system().find_map(|(event, line)| match line {
        System::NoSpace { text } => Some((event, text)),
        _ => None,
    });
    let Some((event, text)) = found else { return Vec::new() };
    let disk = text.contains("No space left") && !event.text.contains("shm");
    if disk {
        let headline = "a file could not be written: the disk, or a memory-backed folder, is full";
        return vec![
            Finding::new("host-memory", Cause::HostMemory, Phase::Host, headline)
                .also(&[Cause::NotMemory])
                .sure(Confidence::Possible, 60)
                .seen(event)
                .set(Lever::new("--shm-size", Move::Raise).gives("where the folder is /dev/shm"))
                .useless("--mem-fraction-static", None, "it is not the device's memory"),
        ];
    }
    let headline =
        "shared memory (/dev/shm) is too small: containers have 64 MB of it unless told otherwise";
    vec![
        Finding::new("host-memory", Cause::HostMemory, Phase::Host, headline)
            .sure(Confidence::Likely, 82)
            .seen(event)
            .set(
                Lever::new("--shm-size", Move::Raise)
                    .to("32g")
                    .gives("of `docker run`; or --ipc=host"),
            )
            .useless("--mem-fraction-static", None, "it is not the device's memory"),
    ]
}
