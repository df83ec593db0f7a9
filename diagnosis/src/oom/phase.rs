//! How far the server was when something failed: from the frames, from the lines before it, from the figures.

use plimsoll_ingest::log::{Event, Frame, Kind, Sglang, Vllm};

use super::part::frame_text;
use crate::{Case, Phase};

/// How far the lines say that the start was, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reached {
    /// No line of a start.
    Nothing,
    /// Weights are being loaded.
    Loading,
    /// Weights are there; pools are being sized (vLLM: its profile run).
    Sizing,
    /// Pools are there; workspaces, graphs, tuning.
    Capture,
    /// A draft model is being loaded after the target was ready.
    DraftLoading,
    /// A draft model's pools and graphs.
    DraftSizing,
    /// It served.
    Serving,
}

/// What a phase rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// The traceback.
    Frames,
    /// Lines before it.
    Lines,
    /// The figures of the failure itself.
    Figures,
    /// Nothing: the phase is unknown.
    Nothing,
}

/// Whether the server served before `at`, whichever process said so: readiness and the scheduler's lines come from
/// one process for all ranks.
#[must_use]
pub fn served_before(case: &Case, at: &Event) -> bool {
    let ready = case.events().any(|event| {
        (event.file, event.line) < (at.file, at.line)
            && matches!(&event.kind, Kind::Sglang(Sglang::Ready) | Kind::Vllm(Vllm::Ready))
    });
    // Counted lines do not say their file.
    let one_file = case.log.events.iter().all(|event| event.file == at.file);
    let mut counted = case.log.activity.iter().filter(|((start, _), _)| *start == at.start);
    ready
        || one_file
            && counted.any(|(_, activity)| activity.lines.is_some_and(|(first, _)| first < at.line))
}

/// How far the start was when `at` was written: by the lines of its own rank; where that rank wrote none, by
/// those of any (ranks go through a start in lockstep). Once it served, it serves.
#[must_use]
pub fn reached(case: &Case, at: &Event) -> Reached {
    if served_before(case, at) {
        return Reached::Serving;
    }
    let before = |e: &&Event| (e.file, e.line) < (at.file, at.line);
    let own = case.events().filter(before).filter(|e| e.rank == at.rank);
    match walk(own) {
        Reached::Nothing => {
            let far = walk(case.events().filter(before));
            if far == Reached::Nothing && served(case) { Reached::Serving } else { far }
        }
        far => far,
    }
}

fn walk<'a>(events: impl Iterator<Item = &'a Event>) -> Reached {
    events.fold(Reached::Nothing, |far, event| next(far, &event.kind))
}

fn next(far: Reached, kind: &Kind) -> Reached {
    match kind {
        Kind::Sglang(line) => next_sglang(far, line),
        Kind::Vllm(line) => next_vllm(far, line),
        _ => far,
    }
}

fn next_sglang(far: Reached, line: &Sglang) -> Reached {
    let draft = far >= Reached::Capture;
    match line {
        Sglang::LoadBegin { .. } if draft => Reached::DraftLoading,
        Sglang::ContextTaken { .. } | Sglang::LoadBegin { .. } => far.max(Reached::Loading),
        Sglang::LoadEnd { .. } if draft => Reached::DraftSizing,
        Sglang::LoadEnd { .. } | Sglang::Lora { .. } => far.max(Reached::Sizing),
        Sglang::KvAllocated { .. } | Sglang::MambaAllocated { .. } => far.max(Reached::Sizing),
        Sglang::PoolEnd { .. }
        | Sglang::CaptureBegin { .. }
        | Sglang::Capturing { .. }
        | Sglang::CaptureEnd { .. } => far.max(Reached::Capture),
        // The scheduler prints it when everything of the start is there but a warm-up request.
        Sglang::Summary { .. } | Sglang::Ready | Sglang::Retract { .. } => Reached::Serving,
        _ => far,
    }
}

fn next_vllm(far: Reached, line: &Vllm) -> Reached {
    match line {
        Vllm::FreeAtStart { .. } => far.max(Reached::Loading),
        Vllm::LoadEnd { .. }
        | Vllm::Profile { .. }
        | Vllm::Budget { .. }
        | Vllm::AvailableKv { .. } => far.max(Reached::Sizing),
        Vllm::KvTokens { .. } | Vllm::Blocks { .. } | Vllm::Concurrency { .. } => {
            far.max(Reached::Capture)
        }
        Vllm::Capturing { .. } | Vllm::CaptureEnd { .. } | Vllm::GraphPool { .. } => {
            far.max(Reached::Capture)
        }
        Vllm::Ready | Vllm::Preempted { .. } => Reached::Serving,
        _ => far,
    }
}

/// Whether scheduler lines of this start were counted.
fn served(case: &Case) -> bool {
    let last = case.events().next().map_or(0, |event| event.start);
    case.log
        .activity
        .iter()
        .any(|((start, _), activity)| *start >= last && activity.lines.is_some())
}

/// Whether a server went on after a line: it started, captured or served later.
#[must_use]
pub fn went_on(case: &Case, at: &Event) -> bool {
    let later = case.events().any(|event| {
        (event.file, event.line) > (at.file, at.line)
            && matches!(
                &event.kind,
                Kind::Sglang(
                    Sglang::Ready
                        | Sglang::Summary { .. }
                        | Sglang::PoolEnd { .. }
                        | Sglang::CaptureEnd { .. }
                ) | Kind::Vllm(Vllm::Ready | Vllm::KvTokens { .. } | Vllm::CaptureEnd { .. })
            )
    });
    let last = case.events().next_back().map_or(0, |event| event.start);
    let served = case.log.activity.iter().any(|((start, _), activity)| {
        *start == last && activity.lines.is_some_and(|(_, last)| last > at.line)
    });
    later || served
}

/// Words of frames by phase; the first row that any frame matches decides, so a capture that runs a forward
/// pass is a capture.
const WORDS: &[(Phase, &[&str])] = &[
    (
        Phase::Capture,
        &[
            "cuda_graph_runner",
            "graph_runner",
            "init_cuda_graph",
            "init_device_graphs",
            "capture",
            "init_attention_backend",
            "kernel_warmup",
            "autotune",
            "prealloc_symmetric",
            "warmup_compile",
            "compile_or_warm_up",
            "cudagraph",
        ],
    ),
    (
        Phase::Sizing,
        &[
            "init_memory_pool",
            "determine_num_available_blocks",
            "determine_available_memory",
            "profile_run",
            "initialize_kv_cache",
            "profile_max_num_token",
            "init_pools",
            "_dummy_run",
        ],
    ),
    (
        Phase::Load,
        &[
            "load_model",
            "initialize_model",
            "create_weights",
            "process_weights_after_loading",
            "load_weights",
            "weight_loader",
            "init_torch_distributed",
        ],
    ),
    (Phase::Host, &["memory_pool_host", "hiradix", "pin_memory"]),
    (
        Phase::Encoder,
        &[
            "image_feature",
            "video_feature",
            "audio_feature",
            "embed_mm",
            "get_multimodal_embeddings",
            "execute_mm_encoder",
            "vision_tower",
            "image_encoder",
        ],
    ),
    (
        Phase::Prefill,
        &[
            "forward_extend",
            "input_logprob",
            "prompt_logprob",
            "forward_prefill",
            "get_new_batch_prefill",
        ],
    ),
    (
        Phase::Decode,
        &["forward_decode", "decode_step", "process_batch_result_decode", "draft_decode"],
    ),
    (Phase::Unknown, &["forward_batch_generation", "run_batch", "event_loop", "execute_model"]),
];

/// The phase that the frames tell; [`Phase::Unknown`] stands for a pass of the serving server, prefill or decode.
#[must_use]
pub fn of_frames(frames: &[Frame]) -> Option<Phase> {
    let texts: Vec<String> = frames.iter().map(frame_text).collect();
    let any =
        |words: &[&str]| texts.iter().any(|text| words.iter().any(|word| text.contains(word)));
    WORDS.iter().find(|(_, words)| any(words)).map(|(phase, _)| *phase)
}
