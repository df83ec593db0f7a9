//! llama.cpp: buffers that were refused (and recovered from), the prompt cache on the host, checkpoints, slots.

use plimsoll_ingest::log::{Amount, Event, Kind, LlamaCpp, System};

use super::not_modelled;
use crate::oom::size;
use crate::{Case, Cause, Confidence, Direction, Finding, Level, Lever, Move, Phase};

const SERVER: &str = "llama.cpp";

fn lines(case: &Case) -> impl DoubleEndedIterator<Item = (&Event, &LlamaCpp)> {
    case.events().filter_map(|event| match &event.kind {
        Kind::LlamaCpp(line) => Some((event, line)),
        _ => None,
    })
}

/// A kill for host memory, or the words of one.
fn host_kill(case: &Case) -> Option<&Event> {
    let killed = |line: &System| match line {
        System::KernelKill { .. } | System::HostOom { .. } => true,
        System::Exit { code } => matches!(code, 137 | -9),
        System::Signal { name } => name.contains("KILL") || &**name == "Killed",
        _ => false,
    };
    case.system().find(|(_, line)| killed(line)).map(|(event, _)| event)
}

/// The prompt cache keeps whole states in host memory. Its limit is what is kept, not the peak: a state is
/// saved first and old ones are dropped after.
/// Source: llama.cpp `server_prompt_cache::alloc`, builds of early 2026.
pub(super) fn prompt_cache(case: &Case) -> Vec<Finding> {
    let caches = lines(case).filter_map(|(event, line)| match line {
        LlamaCpp::PromptCache { held: Some(held), limit: Some(limit) } => {
            Some((event, *held, *limit))
        }
        _ => None,
    });
    let cache = caches.max_by_key(|(_, held, limit)| held.bytes - limit.bytes);
    let saves = lines(case).filter_map(|(event, line)| match line {
        LlamaCpp::PromptSave { tokens, bytes: Some(bytes) } => Some((event, *tokens, *bytes)),
        _ => None,
    });
    let save = saves.max_by_key(|(_, _, bytes)| bytes.bytes);
    let killed = host_kill(case);
    let over = cache.is_some_and(|(_, held, limit)| held.bytes > limit.bytes);
    if cache.is_none() && save.is_none() || killed.is_none() && !over {
        return Vec::new();
    }
    let mut finding = Finding::new("host-memory", Cause::HostMemory, Phase::Host, headline(cache, save))
        .level(if killed.is_some() { Level::Error } else { Level::Warning })
        .also(&[Cause::Leak])
        .sure(if killed.is_some() { Confidence::Likely } else { Confidence::Possible }, 92)
        .because(
            "The prompt cache holds whole states in host memory, up to its limit and one state more; each server \
             process has its own. It grows to a plateau and is no leak.",
        )
        .set(
            Lever::new("--cache-ram (LLAMA_ARG_CACHE_RAM)", Move::Lower)
                .gives("MiB of host memory for kept states; 0 switches it off"),
        )
        .set(Lever::new("--ctx-checkpoints", Move::Lower).to(0).gives("smaller states"))
        .useless("-ngl", None, "device memory has no part in it");
    for event in [cache.map(|(e, ..)| e), save.map(|(e, ..)| e), killed].into_iter().flatten() {
        finding = finding.seen(event);
    }
    if let (Some((_, _, limit)), Some((_, _, state))) = (cache, save) {
        let peak = limit + state;
        finding =
            finding.sum(format!("{limit} limit + {state} of the largest state = {peak} at most"));
    }
    if let Some((_, Some(tokens), state)) = save {
        let each = state.bytes / i64::try_from(tokens).unwrap_or(i64::MAX).max(1);
        finding = finding.sum(format!("{state} ÷ {tokens} tokens = {each} B a token"));
    }
    vec![not_modelled(finding, SERVER)]
}

fn headline(
    cache: Option<(&Event, Amount, Amount)>,
    save: Option<(&Event, Option<u64>, Amount)>,
) -> String {
    match (cache, save) {
        (Some((_, held, limit)), _) => {
            format!("the prompt cache held {held} of host memory, its limit is {limit}")
        }
        (None, Some((_, _, state))) => format!("a state of {state} was being saved to host memory"),
        (None, None) => "the prompt cache filled host memory".to_owned(),
    }
}

/// A device buffer was refused. What comes after decides: another try, a smaller fit, or the end.
pub(super) fn buffer_refused(case: &Case) -> Vec<Finding> {
    let refusals: Vec<_> = lines(case)
        .filter_map(|(event, line)| match line {
            LlamaCpp::BufferRefused { requested, device, .. } => Some((event, *requested, *device)),
            _ => None,
        })
        .collect();
    let largest = refusals.iter().max_by_key(|(_, asked, _)| asked.map(|asked| asked.bytes));
    let (Some(&(event, asked, device)), Some(&(last, ..))) = (largest, refusals.last()) else {
        return Vec::new();
    };
    let after =
        |(other, _): &(&Event, &LlamaCpp)| (other.file, other.line) > (last.file, last.line);
    let mut went_on = lines(case).filter(after).filter_map(|(event, line)| match line {
        LlamaCpp::RetryWithoutPipeline | LlamaCpp::Slots { .. } | LlamaCpp::Ready => {
            Some((event, line))
        }
        _ => None,
    });
    let ended =
        lines(case).filter(after).any(|(_, line)| matches!(line, LlamaCpp::LoadFailed { .. }));
    let recovered = if ended { None } else { went_on.next() };
    let device_name = device.map_or("the device".to_owned(), |device| format!("device {device}"));
    let asked_text = asked.map_or("a buffer".to_owned(), size);
    let finding = match recovered {
        Some((line, _)) => recovered_finding(&asked_text, &device_name).seen(event).seen(line),
        None => fatal_finding(case, &asked_text, &device_name).seen(event),
    };
    vec![not_modelled(buffers(case, finding), SERVER)]
}

fn recovered_finding(asked: &str, device: &str) -> Finding {
    Finding::new(
        "healthy",
        Cause::Healthy,
        Phase::None,
        format!("{asked} were refused on {device}, and the server went on without"),
    )
    .level(Level::Warning)
    .also(&[Cause::GraphsOrWorkspace, Cause::MisleadingMessage])
    .sure(Confidence::Likely, 60)
    .because("The compute buffer was asked for again without pipeline parallelism; the lines of the refusal are no failure.")
    .set(Lever::new("-ub", Move::Lower).to(512).gives("a smaller compute buffer, which keeps pipeline parallelism"))
}

/// Whether it was weights that were refused: the lines say so, and no buffer of a later step was made.
fn weights_refused(case: &Case) -> bool {
    let named = lines(case).any(|(_, line)| match line {
        LlamaCpp::BufferRefused { what, .. } => what.as_deref() == Some("model"),
        LlamaCpp::LoadFailed { what } => what.as_deref() == Some("model"),
        _ => false,
    });
    let later = lines(case).any(|(_, line)| match line {
        LlamaCpp::KvSize { .. } => true,
        LlamaCpp::Buffer { what, .. } => matches!(&**what, "KV" | "compute"),
        LlamaCpp::BufferRefused { what, .. } => matches!(what.as_deref(), Some("KV" | "compute")),
        _ => false,
    });
    named && !later
}

fn fatal_finding(case: &Case, asked: &str, device: &str) -> Finding {
    if weights_refused(case) {
        return Finding::new(
            "model-too-big",
            Cause::ModelTooBig,
            Phase::Load,
            format!("{asked} of weights were refused on {device}"),
        )
        .also(&[
            Cause::GraphsOrWorkspace,
            Cause::SharedOrUnifiedMemory,
            Cause::WeightsAboveFraction,
        ])
        .sure(Confidence::Likely, 84)
        .because("The layers put on this device do not fit it.")
        .set(
            Lever::new("-ngl", Move::Lower)
                .gives("fewer layers on the devices, the rest in host memory"),
        )
        .set(
            Lever::new("--n-cpu-moe", Move::Raise)
                .gives("experts of that many layers in host memory"),
        )
        .set(Lever::new("--tensor-split", Move::Set).gives("less on the smallest device"))
        .useless("-c", Some(Move::Lower), "the cache comes after the weights");
    }
    let copies = lines(case).find(|(_, line)| matches!(line, LlamaCpp::PipelineCopies { .. }));
    let mut finding = Finding::new(
        "outside-pool-too-small",
        Cause::GraphsOrWorkspace,
        Phase::Load,
        format!("{asked} were refused on {device}"),
    )
    .also(&[Cause::ModelTooBig, Cause::SharedOrUnifiedMemory, Cause::PoolTooSmall])
    .sure(Confidence::Likely, 80)
    .because("Weights, cache and compute buffers of this device do not fit beside each other; the smallest device fails first.")
    .set(Lever::new("-ngl", Move::Lower).gives("fewer layers on the devices"))
    .set(Lever::new("-ub", Move::Lower).to(512).gives("a smaller compute buffer"))
    .set(Lever::new("--tensor-split", Move::Set).gives("less on the smallest device; or leave it out with CUDA_VISIBLE_DEVICES"))
    .useless("-c", Some(Move::Lower), "only the cache shrinks with it, not the compute buffer");
    if let Some((event, LlamaCpp::PipelineCopies { copies })) = copies {
        let copies = copies.map_or(String::new(), |copies| format!(" ×{copies}"));
        finding = finding.seen(event).sum(format!("pipeline parallelism: compute buffers{copies}"));
    }
    finding
}

/// The buffers that the log names, as its arithmetic.
fn buffers(case: &Case, mut finding: Finding) -> Finding {
    for (event, line) in lines(case).take(64) {
        let (what, bytes) = match line {
            LlamaCpp::KvSize { bytes } => ("KV cache", bytes),
            LlamaCpp::Buffer { what, bytes } => (&**what, bytes),
            _ => continue,
        };
        if finding.arithmetic.len() < 8 {
            finding = finding.sum(format!("{what}: {}", size(*bytes))).seen(event);
        }
    }
    finding
}

/// The driver refused memory for a graph while context checkpoints piled up.
pub(super) fn checkpoints(case: &Case) -> Vec<Finding> {
    let checkpoint = lines(case).find(|(_, line)| matches!(line, LlamaCpp::Checkpoint));
    let refused = case.system().find(|(_, line)| matches!(line, System::DriverOom { .. }));
    let (Some((event, _)), Some((refusal, _))) = (checkpoint, refused) else { return Vec::new() };
    let finding = Finding::new(
        "outside-pool-too-small",
        Cause::GraphsOrWorkspace,
        Phase::Decode,
        "the driver had no memory left for a graph while context checkpoints were made",
    )
    .also(&[Cause::Leak])
    .sure(Confidence::Likely, 94)
    .because("Checkpoints add up for every slot; --cache-ram is about states of idle slots and does not bound them.")
    .seen(event)
    .seen(refusal)
    .fraction(Direction::Unknown)
    .set(Lever::new("--ctx-checkpoints", Move::Lower).to(0).gives("no checkpoints"))
    .set(Lever::new("--fit-target", Move::Raise).to(1024).gives("MiB of a device left free"))
    .useless("--cache-ram", None, "it bounds another cache");
    vec![not_modelled(finding, SERVER)]
}

/// Slots share one pool of cells: a full one ends every generation, and no memory is short.
pub(super) fn context_exceeded(case: &Case) -> Vec<Finding> {
    let Some((event, _)) = lines(case).find(|(_, line)| matches!(line, LlamaCpp::ContextExceeded))
    else {
        return Vec::new();
    };
    let slots = lines(case).filter_map(|(event, line)| match line {
        LlamaCpp::Slots { slots, n_ctx_slot } => Some((event, *slots, *n_ctx_slot)),
        _ => None,
    });
    let slot = slots.max_by_key(|(_, slots, _)| *slots);
    let mut finding = Finding::new(
        "pool-too-small",
        Cause::PoolTooSmall,
        Phase::Refused,
        "the cells of the context are used up",
    )
    .also(&[Cause::MisleadingMessage, Cause::NotMemory])
    .sure(Confidence::Certain, 90)
    .because("-c is the number of cells of all slots together where the cache is unified; no device memory is short.")
    .seen(event);
    if let Some((line, Some(slots), Some(context))) = slot {
        let whole = u64::from(slots).saturating_mul(context);
        finding = finding
            .seen(line)
            .sum(format!(
                "{slots} slots × {context} tokens = {whole} cells, if each is to have its own"
            ))
            .set(
                Lever::new("-c", Move::Raise)
                    .to(whole)
                    .gives(format!("{context} tokens for each slot")),
            );
    } else {
        finding = finding.set(Lever::new("-c", Move::Raise).gives("more cells"));
    }
    finding =
        finding.set(Lever::new("-np", Move::Lower).to(1).gives("one slot has all cells")).set(
            Lever::new("--kv-unified-per-slot", Move::Set)
                .gives("tokens that each slot is sure of"),
        );
    vec![not_modelled(finding, SERVER)]
}
