//! Warm-up, serving and the end. Templates: vLLM 0.2 to 0.33, `gpu_model_runner`, `scheduler`, `core`,
//! `workspace`.

use crate::log::Vllm;
use crate::log::read::fields::{after, uint, uint_after};
use crate::log::read::scan::{amount_after, between, gib2, gib2_after};

/// `CUDA out of memory occurred when warming up sampler with 1024 dummy requests.`; `pooler` too.
pub(super) fn sampler(line: &str) -> Option<Vllm> {
    Some(Vllm::SamplerWarmup { requests: uint_after(line, " with ") })
}

/// `Workspace is locked but allocation from '…' requires 3584.00 MB, current size is 512.00 MB.`
pub(super) fn workspace_locked(line: &str) -> Option<Vllm> {
    Some(Vllm::WorkspaceLocked {
        required: amount_after(line, "requires "),
        current: amount_after(line, "current size is "),
    })
}

/// `Sleep mode freed 5.20 GiB memory, 1.30 GiB memory is still in use.`
pub(super) fn sleep(line: &str) -> Option<Vllm> {
    let rest = after(line, "Sleep mode freed ")?;
    Some(Vllm::Sleep { freed: gib2(rest), in_use: gib2_after(rest, "memory, ") })
}

/// V0: `Sequence group 221 is preempted by PreemptionMode.RECOMPUTE mode … total_num_cumulative_preemption=101`.
pub(super) fn preempted(line: &str) -> Option<Vllm> {
    Some(Vllm::Preempted {
        mode: between(line, "PreemptionMode.", " ").map(Into::into),
        total: uint_after(line, "cumulative_preemption=")
            .or_else(|| uint_after(line, "cumulative_preemption_cnt=")),
    })
}

/// `This model's maximum context length is 8192 tokens. However, you requested 9000 tokens (…)` or
/// `… However, your request has 9000 input tokens`.
pub(super) fn prompt_too_long(line: &str) -> Option<Vllm> {
    let rest = after(line, "maximum context length is ")?;
    let asked = after(rest, "However").and_then(|rest| rest.split_whitespace().find_map(uint));
    Some(Vllm::PromptTooLong { limit: uint(rest)?, asked })
}

/// `WorkerProc initialization failed`, `WorkerProc failed to start`, `WorkerProc hit an exception`.
pub(super) fn worker_failed(line: &str) -> Option<Vllm> {
    let rest = after(line, "WorkerProc ")?;
    (rest.contains("failed") || rest.contains("hit an exception")).then_some(Vllm::EngineFailed)
}

/// `… a(n) image item with length 4230, which exceeds the pre-allocated encoder cache size 4225`; newer ones say
/// `with 4230 embedding tokens`.
pub(super) fn encoder_item(line: &str) -> Option<Vllm> {
    Some(Vllm::EncoderItemTooLarge {
        tokens: uint_after(line, " with length ").or_else(|| uint_after(line, "item with ")),
        limit: uint_after(line, "encoder cache size "),
    })
}

/// The counter of a pasted metrics page: `vllm:num_preemptions_total{…} 57.0`.
pub(super) fn preemption_metric(line: &str) -> Option<Vllm> {
    let count: f64 = line.split_whitespace().next_back()?.parse().ok()?;
    let counter = line.contains("num_preemptions_total") || line.contains("num_preemptions{");
    (counter && count >= 0.0).then_some(Vllm::Preempted { mode: None, total: Some(count as u64) })
}
