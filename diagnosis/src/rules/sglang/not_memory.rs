//! Failures that look like memory and are not: captures that fail for a kernel, a silent detokenizer.

use plimsoll_ingest::log::{Event, Kind, Sglang, System};

use super::levers::{FRACTION, gib};
use super::start::Start;
use crate::oom::{size, went_on};
use crate::{Case, Cause, Confidence, Finding, Level, Lever, Move, Phase};

/// `Capture cuda graph failed: …` with a text that is no shortage.
pub(super) fn capture(case: &Case) -> Vec<Finding> {
    let found = case.sglang().find_map(|(event, line)| match line {
        Sglang::CaptureFailed { text } => Some((event, text)),
        _ => None,
    });
    let Some((event, text)) = found else { return Vec::new() };
    if case.torch_ooms().next().is_some() || short_of_memory(case, text) {
        return Vec::new();
    }
    let headline = format!("graph capture failed, and not for memory: {}", cut(text));
    let finding = Finding::new("not-memory", Cause::NotMemory, Phase::Capture, headline)
        .also(&[Cause::MisleadingMessage])
        .because("The list of advice that follows (a smaller fraction, smaller graphs) is printed for every exception in a capture.")
        .sure(Confidence::Likely, 90)
        .seen(event)
        .set(Lever::new("--disable-cuda-graph", Move::Set).gives("starts, and shows whether the kernel itself fails"))
        .set(Lever::new("--attention-backend", Move::Set).to("triton").gives("other kernels"))
        .useless(FRACTION, None, "no allocation failed");
    vec![with_free(case, finding)]
}

/// The words of a shortage, in the text itself or as an event of a driver.
fn short_of_memory(case: &Case, text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    // A cut text decides nothing.
    lower.is_empty()
        || lower.contains("out of memory")
        || lower.contains("outofmemory")
        || case.system().any(|(_, line)| matches!(line, System::DriverOom { .. }))
}

fn cut(text: &str) -> String {
    text.chars().take(120).collect()
}

fn with_free(case: &Case, finding: Finding) -> Finding {
    match Start::tightest(case).and_then(|start| start.last_free()) {
        Some((event, free)) => finding
            .sum(format!("{} were free at the last reading", size(free)))
            .seen(event)
            .int("free_at_last_reading_bytes", free.bytes),
        None => finding,
    }
}

/// It stopped in a capture with much memory free, and the exception is missing or no shortage.
pub(super) fn stopped_in_capture(case: &Case) -> Vec<Finding> {
    let Some(start) = Start::tightest(case) else { return Vec::new() };
    let Some((begin, _)) = start.capture_begin else { return Vec::new() };
    let Some((_, free)) = start.last_free().filter(|(_, free)| free.bytes > gib(4)) else {
        return Vec::new();
    };
    let after = |event: &&Event| (event.file, event.line) > (begin.file, begin.line);
    let spoken = case.events().filter(after).any(|event| {
        matches!(
            &event.kind,
            Kind::TorchOom(_)
                | Kind::System(System::DriverOom { .. } | System::DeviceError { .. })
                | Kind::Sglang(
                    Sglang::CaptureFailed { .. }
                        | Sglang::CaptureEnd { .. }
                        | Sglang::Summary { .. }
                        | Sglang::Ready
                )
        )
    });
    if spoken {
        return Vec::new();
    }
    // A traceback, whole or begun, or the word of the scheduler: else the log just ends here.
    let broken = case.events().filter(after).find(|event| {
        matches!(
            &event.kind,
            Kind::System(System::Exception(_)) | Kind::Sglang(Sglang::SchedulerException)
        )
    });
    let open = case.log.oddities.iter().any(|oddity| oddity.contains("traceback"));
    if broken.is_none() && !open {
        return Vec::new();
    }
    let headline = format!(
        "it stopped in graph capture with {} free: memory is not what is short",
        size(free)
    );
    let mut finding = Finding::new("not-memory", Cause::NotMemory, Phase::Capture, headline)
        .also(&[Cause::MisleadingMessage])
        .sure(Confidence::Likely, 66)
        .seen(begin)
        .set(
            Lever::new("--disable-cuda-graph", Move::Set)
                .gives("shows whether the capture is at fault"),
        )
        .set(Lever::new("--attention-backend", Move::Set).to("triton").gives("other kernels"))
        .useless(FRACTION, None, "no allocation failed");
    if let Some(event) = broken {
        finding = finding.seen(event);
    }
    vec![with_free(case, finding)]
}

/// The detokenizer does not answer, or a watchdog barks: compiling, a dead process, a hang.
pub(super) fn silent(case: &Case) -> Vec<Finding> {
    let found = case.sglang().find_map(|(event, line)| match line {
        Sglang::DetokenizerSilent { seconds } => Some((event, *seconds)),
        Sglang::Watchdog => Some((event, None)),
        _ => None,
    });
    let Some((event, seconds)) = found else { return Vec::new() };
    let memory = case.events().any(|event| {
        matches!(
            &event.kind,
            Kind::TorchOom(_)
                | Kind::System(
                    System::DriverOom { .. } | System::KernelKill { .. } | System::HostOom { .. }
                )
        )
    });
    if memory {
        return Vec::new();
    }
    let level = if went_on(case, event) { Level::Warning } else { Level::Error };
    let headline = match seconds {
        Some(seconds) => {
            format!("no answer for {seconds} s: the server hangs, compiles, or a process is gone")
        }
        None => "the watchdog found a pass that does not end".to_owned(),
    };
    vec![
        Finding::new("not-memory", Cause::NotMemory, Phase::Prefill, headline)
            .because("The first passes compile kernels, which takes minutes; no line says that memory was short.")
            .level(level)
            .sure(Confidence::Likely, 58)
            .seen(event)
            .set(Lever::new("--watchdog-timeout", Move::Raise).gives("time for the first compilation"))
            .useless(FRACTION, None, "nothing asked for memory in vain"),
    ]
}
