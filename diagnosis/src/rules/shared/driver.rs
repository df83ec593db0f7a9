//! A driver refused, or a kernel failed: texts without the allocator's figures.

use plimsoll_ingest::log::{Amount, Event, Kind, Server, Sglang, System};

use super::host_memory::unified;
use crate::oom::{Reached, phase_of_frames, reached, size};
use crate::reconstruct::what_if;
use crate::{Case, Cause, Confidence, Direction, Finding, Lever, Move, Phase};

/// Less than this is left for a pass that may need any amount: 1.5 GiB.
const TIGHT: i64 = 3 << 29;

/// The fraction advised where the machine's one memory serves everybody and nothing says what the others need.
const HALF: f64 = 0.5;

/// The flag of the fraction, by server; both where the log does not tell whose it is.
pub(super) fn fraction_flag(case: &Case) -> &'static str {
    match case.server() {
        Some(Server::Sglang) => "--mem-fraction-static",
        Some(Server::Vllm) => "--gpu-memory-utilization",
        _ => "--mem-fraction-static, --gpu-memory-utilization",
    }
}

/// Whether these rules speak for the log: the other servers have their own.
fn ours(case: &Case) -> bool {
    matches!(case.server(), None | Some(Server::Sglang | Server::Vllm))
}

/// `CUDA error: out of memory` and the like: the driver, not PyTorch's allocator.
pub(super) fn driver_refused(case: &Case) -> Vec<Finding> {
    if !ours(case) || case.torch_ooms().next().is_some() {
        return Vec::new();
    }
    let found = case.system().find_map(|(event, line)| match line {
        System::DriverOom { call, requested, frames } => {
            Some((event, call.as_deref(), *requested, frames))
        }
        _ => None,
    });
    let Some((event, call, requested, frames)) = found else { return Vec::new() };
    let in_frames = phase_of_frames(frames);
    let graph = call.is_some_and(|call| call.to_ascii_lowercase().contains("graph"))
        || in_frames == Some(Phase::Capture);
    let far = reached(case, event);
    let capture_failed =
        case.sglang().any(|(_, line)| matches!(line, Sglang::CaptureFailed { .. }));
    let finding = if event.text.contains("memory_saver") {
        beside_trainer(case)
    } else if graph || far == Reached::Capture || capture_failed {
        outside_pool(case, Phase::Capture)
    } else if communication(call, event) && far > Reached::Loading {
        outside_pool(case, Phase::Unknown)
    } else if host_call(call, event) || in_frames == Some(Phase::Host) {
        pinned(case)
    } else if matches!(far, Reached::Loading | Reached::DraftLoading | Reached::Sizing) {
        held_by_others(case)
    } else if let Some((line, free)) = tight(case) {
        outside_pool(case, Phase::Unknown)
            .seen(line)
            .sum(format!("{} were free when the server had started", size(free)))
    } else {
        without_figures(case)
    };
    let finding = match requested {
        Some(amount) => finding
            .sum(format!("{} were asked of the driver", size(amount)))
            .int("requested_bytes", amount.bytes),
        None => finding,
    };
    vec![finding.seen(event)]
}

/// Whether it was for buffers of NCCL, which takes them from the driver.
fn communication(call: Option<&str>, event: &Event) -> bool {
    call.is_some_and(|call| call.starts_with("nccl"))
        || ["NCCL", "Failed to CUDA "].iter().any(|word| event.text.contains(word))
}

/// Whether the call takes host memory.
fn host_call(call: Option<&str>, event: &Event) -> bool {
    let text = event.text.to_ascii_lowercase();
    let call = call.unwrap_or_default().to_ascii_lowercase();
    ["hostalloc", "hostregister", "mallochost", "pin_memory", "pinned"]
        .iter()
        .any(|word| call.contains(word) || text.contains(word))
}

/// The last reading of free memory of the start, where it is so small that any pass may fail.
fn tight(case: &Case) -> Option<(&Event, Amount)> {
    let mut readings = case.sglang().filter_map(|(event, line)| match line {
        Sglang::CaptureEnd { avail, .. } => Some((event, (*avail)?)),
        Sglang::Summary { available_gpu_mem, .. } => Some((event, (*available_gpu_mem)?)),
        Sglang::PoolEnd { avail } => Some((event, *avail)),
        _ => None,
    });
    readings.next_back().filter(|(_, free)| free.bytes < TIGHT)
}

/// A server rests on one device with the program that trains its model.
fn beside_trainer(case: &Case) -> Finding {
    let headline = "the server's memory did not come back: what trains beside it holds the device";
    Finding::new("shared-memory-machine", Cause::SharedOrUnifiedMemory, Phase::Unknown, headline)
        .also(&[Cause::ActivationsOutsidePool, Cause::NeighbourDuringSizing])
        .because("Weights and pools are given up for a training step and taken again; the trainer must have let go first.")
        .sure(Confidence::Likely, 78)
        .fraction(Direction::Lower)
        .set(Lever::new(fraction_flag(case), Move::Lower).gives("less to take back beside the trainer"))
}

fn outside_pool(case: &Case, phase: Phase) -> Finding {
    let headline = "the driver had no memory left for graphs or workspaces beside the pool";
    Finding::new("outside-pool-too-small", Cause::GraphsOrWorkspace, phase, headline)
        .also(&[Cause::ActivationsOutsidePool, Cause::MisleadingMessage])
        .because("Graphs and communication buffers come from the driver, outside PyTorch's allocator, so no figures are printed.")
        .sure(Confidence::Likely, 78)
        .fraction(Direction::Lower)
        .set(Lever::new(fraction_flag(case), Move::Lower).gives("more stays outside the pool"))
        .set(Lever::new("--cuda-graph-max-bs", Move::Lower).gives("fewer and smaller graphs (SGLang)"))
}

fn pinned(case: &Case) -> Finding {
    let headline =
        "the driver could not pin host memory: the host has too little, or a limit forbids it";
    Finding::new("host-memory", Cause::HostMemory, Phase::Host, headline)
        .also(&[Cause::MisleadingMessage])
        .because("Pinned memory is host memory, though the text speaks of the device.")
        .sure(Confidence::Likely, 78)
        .set(Lever::new("--hicache-size", Move::Lower).gives("GB for every rank"))
        .set(Lever::new("ulimit -l", Move::Raise).gives("locked memory, where it is limited"))
        .useless(fraction_flag(case), None, "it divides the device's memory")
}

fn held_by_others(case: &Case) -> Finding {
    let headline =
        "the driver refused memory while the server loaded: look who else holds the device";
    Finding::new("shared-memory-machine", Cause::SharedOrUnifiedMemory, Phase::Load, headline)
        .also(&[Cause::ModelTooBig, Cause::MisleadingMessage, Cause::NotMemory])
        .because(
            "The text is the driver's, without figures: contexts and modules are made there too.",
        )
        .sure(Confidence::Possible, 60)
        .useless(fraction_flag(case), None, "the failure comes before it is used")
}

fn without_figures(case: &Case) -> Finding {
    let headline = "the driver says \"out of memory\" without figures: not the allocator, so the pool need not be at fault";
    Finding::new("misleading-message", Cause::MisleadingMessage, Phase::Unknown, headline)
        .also(&[Cause::NotMemory, Cause::SharedOrUnifiedMemory])
        .because(
            "A context, a stream or a module could not be made, or another program holds the device; such errors are \
             reported late, at some other call.",
        )
        .sure(Confidence::Possible, 58)
        .fraction(Direction::Unknown)
        .set(Lever::new("CUDA_LAUNCH_BLOCKING", Move::Set).to(1).gives("the error at the call that failed"))
        .set(
            Lever::new("--disable-overlap-schedule", Move::Set)
                .gives("one stream less, and a traceback at the right pass (SGLang)"),
        )
        .useless(fraction_flag(case), None, "first find which call failed")
}

/// Metal ran out: on SGLang the capacity of such machines is not known, and the fraction falls back to a value
/// that leaves too little.
pub(super) fn metal(case: &Case) -> Vec<Finding> {
    let found =
        case.system().find_map(|(event, line)| matches!(line, System::MetalOom).then_some(event));
    let Some(event) = found.filter(|_| ours(case)) else { return Vec::new() };
    let headline =
        "Metal ran out of memory in a pass: the machine's one memory was promised to the pool";
    let mut gives = "half of what was free stays for passes and the system".to_owned();
    if let Some(there) = what_if(case) {
        gives = format!("{gives}: {}", there.at_fraction(HALF).words());
    }
    let chunk = case.sglang().find_map(|(_, line)| match line {
        Sglang::Summary { chunked_prefill_size, .. } => *chunked_prefill_size,
        _ => None,
    });
    let smaller = chunk.map_or(2048, |chunk| 2048.min(chunk / 2));
    let mut found =
        Finding::new("wrong-capacity", Cause::WrongOrUnknownCapacity, Phase::Prefill, headline)
            .also(&[Cause::ActivationsOutsidePool, Cause::SharedOrUnifiedMemory])
            .because(
                "Where the capacity is unknown the automatic fraction is a constant (SGLang: 0.95 from 0.5.20, 0.88 \
                 before), whatever the system and other programs need.",
            )
            .sure(Confidence::Likely, 77)
            .seen(event)
            .fraction(Direction::Lower)
            .set(Lever::new(fraction_flag(case), Move::Lower).to(HALF).gives(gives));
    if smaller > 0 {
        found = found.set(
            Lever::new("--chunked-prefill-size", Move::Lower).to(smaller).gives("smaller passes"),
        );
    }
    vec![found.useless(
        fraction_flag(case),
        Some(Move::Raise),
        "the rest of the machine lives in the same memory",
    )]
}

/// The driver of a unified machine found no pages.
pub(super) fn no_pages(case: &Case) -> Vec<Finding> {
    let found =
        case.system().find_map(|(event, line)| matches!(line, System::NvNoMemory).then_some(event));
    let Some(event) = found else { return Vec::new() };
    let headline = "the driver found no pages: device and host share one memory here, and the page cache counts as used";
    vec![
        Finding::new("shared-memory-machine", Cause::SharedOrUnifiedMemory, Phase::Capture, headline)
            .also(&[Cause::HostMemory])
            .because("Free memory as the system counts it can be reclaimed only slowly; large requests fail first.")
            .sure(Confidence::Likely, 83)
            .seen(event)
            .set(
                Lever::new("PYTORCH_CUDA_ALLOC_CONF", Move::Set)
                    .to("expandable_segments:False")
                    .gives("expandable segments map many small pages, which fails first on these machines"),
            )
            .set(Lever::new(fraction_flag(case), Move::Lower).gives("more for the system; not the lever alone"))
            .useless(
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                None,
                "the text recommends it everywhere; here it does harm",
            ),
    ]
}

/// A device error that is not about memory: an illegal access, a missing kernel.
pub(super) fn device_error(case: &Case) -> Vec<Finding> {
    let found = case.system().find_map(|(event, line)| match line {
        System::DeviceError { text, .. } => Some((event, text)),
        _ => None,
    });
    let Some((event, text)) = found.filter(|_| ours(case)) else { return Vec::new() };
    let first = case
        .events()
        .find(|e| matches!(&e.kind, Kind::TorchOom(_) | Kind::System(System::DriverOom { .. })));
    if first.is_some_and(|oom| (oom.file, oom.line) < (event.file, event.line)) {
        return Vec::new();
    }
    let text: String = text.chars().take(120).collect();
    let headline = format!("a kernel failed, and not for memory: {text}");
    let phase =
        if reached(case, event) == Reached::Capture { Phase::Capture } else { Phase::Unknown };
    vec![
        Finding::new("not-memory", Cause::NotMemory, phase, headline)
            .also(&[Cause::MisleadingMessage])
            .because("No allocation failed; advice about the fraction that stands near it is printed for every exception.")
            .sure(if unified(case) { Confidence::Possible } else { Confidence::Likely }, 74)
            .seen(event)
            .set(Lever::new("--attention-backend", Move::Set).gives("other kernels"))
            .set(Lever::new("--disable-cuda-graph", Move::Set).gives("shows whether the capture is at fault (SGLang)"))
            .useless(fraction_flag(case), None, "no allocation failed"),
    ]
}
