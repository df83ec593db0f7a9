//! How far vLLM was when an allocation failed. Its start has one stage more than the shared judgement knows:
//! the profile run, where no fraction is in force yet.

use plimsoll_ingest::log::{Event, Frame, Reached, Vllm};

use crate::{Case, oom::served_before};

/// A stage of vLLM's start, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Stage {
    /// No line and no frame tells.
    Unknown,
    /// Weights.
    Load,
    /// The dry run that measures; the fraction is applied after it.
    Profile,
    /// The pool is being made.
    Pool,
    /// Graphs, tuning, sampling warm-up.
    Capture,
    /// Requests.
    Serving,
}

/// Functions that tell the stage, whichever else stands around them, most telling first.
/// Source: vLLM 0.6 to 0.33 `worker`, `gpu_worker`, `model_runner`, `gpu_model_runner`.
const FUNCTIONS: &[(Stage, &[&str])] = &[
    (
        Stage::Profile,
        &["determine_available_memory", "determine_num_available_blocks", "profile_run"],
    ),
    (
        Stage::Capture,
        &[
            "compile_or_warm_up_model",
            "capture_model",
            "_dummy_sampler_run",
            "_dummy_pooler_run",
            "kernel_warmup",
            "autotune",
            "capture",
        ],
    ),
    (Stage::Profile, &["_dummy_run"]),
    (
        Stage::Pool,
        &["initialize_kv_cache", "allocate_kv_cache", "initialize_from_config", "initialize_cache"],
    ),
    (Stage::Load, &["load_model", "load_weights", "process_weights_after_loading"]),
    (Stage::Serving, &["execute_model", "execute_dummy_batch", "step_async", "_run_engine"]),
];

/// The stage, and whether frames tell it.
pub(super) fn stage(case: &Case, at: &Event, frames: &[Frame]) -> Stage {
    by_frames(frames).unwrap_or_else(|| by_lines(case, at))
}

fn by_frames(frames: &[Frame]) -> Option<Stage> {
    let functions: Vec<String> = frames
        .iter()
        .map(|f| {
            format!("{} {}", f.function.as_deref().unwrap_or(""), f.code.as_deref().unwrap_or(""))
        })
        .collect();
    let any = |words: &[&str]| functions.iter().any(|f| words.iter().any(|word| f.contains(word)));
    FUNCTIONS.iter().find(|(_, words)| any(words)).map(|(stage, _)| *stage)
}

/// By the lines before it: of its own rank, else of any (ranks start in lockstep). Once it served, it serves.
fn by_lines(case: &Case, at: &Event) -> Stage {
    if served_before(case, at) {
        return Stage::Serving;
    }
    let before = |event: &Event| (event.file, event.line) < (at.file, at.line);
    let walk = |own: bool| {
        case.vllm()
            .filter(|(event, _)| before(event) && (!own || event.rank == at.rank))
            .map(|(_, line)| of_line(line))
            .fold(Stage::Unknown, Ord::max)
    };
    let own = walk(true);
    let far = if own == Stage::Unknown { walk(false) } else { own };
    let served = case.log.activity.values().any(|activity| activity.lines.is_some());
    if far == Stage::Unknown && served { Stage::Serving } else { far }
}

fn of_line(line: &Vllm) -> Stage {
    match line {
        Vllm::FreeAtStart { .. } | Vllm::Phase(Reached::Load) => Stage::Load,
        Vllm::LoadEnd { .. }
        | Vllm::EncoderBudget { .. }
        | Vllm::Phase(Reached::Weights | Reached::Compile | Reached::GraphProfile) => {
            Stage::Profile
        }
        Vllm::AvailableKv { .. }
        | Vllm::Budget { .. }
        | Vllm::Profile { .. }
        | Vllm::KvGiven { .. }
        | Vllm::Phase(Reached::Profiled)
        | Vllm::KvTokens { .. }
        | Vllm::Blocks { .. }
        | Vllm::Concurrency { .. } => Stage::Pool,
        Vllm::Capturing { .. }
        | Vllm::CaptureEnd { .. }
        | Vllm::GraphPool { .. }
        | Vllm::GraphAddresses { .. }
        | Vllm::SamplerWarmup { .. }
        | Vllm::EncoderGraphs => Stage::Capture,
        Vllm::Usage { .. }
        | Vllm::Phase(Reached::Initialized)
        | Vllm::Ready
        | Vllm::Preempted { .. }
        | Vllm::PromptTooLong { .. } => Stage::Serving,
        _ => Stage::Unknown,
    }
}
