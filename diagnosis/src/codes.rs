//! The stable codes of findings. A code never changes its meaning; `explain CODE` tells more.

use crate::cause::Cause;

/// A code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code {
    /// The code: what users put into filters.
    pub code: &'static str,
    /// The cause it belongs to.
    pub cause: Cause,
    /// One line: what it means.
    pub title: &'static str,
}

const fn code(code: &'static str, cause: Cause, title: &'static str) -> Code {
    Code { code, cause, title }
}

/// Every code, by family.
pub const CODES: &[Code] = &[
    // Sizing the pools.
    code(
        "weights-above-fraction",
        Cause::WeightsAboveFraction,
        "the fraction leaves nothing for the pool after the weights",
    ),
    code("model-too-big", Cause::ModelTooBig, "the weights do not fit at any fraction"),
    code(
        "empty-window",
        Cause::EmptyFeasibleWindow,
        "no fraction fits both the weights and what must stay outside",
    ),
    code("pool-too-small", Cause::PoolTooSmall, "the pool holds less than one request needs"),
    code(
        "profile-run-peak",
        Cause::ProfileRunPeak,
        "the profile run's peak takes the pool, or dies itself",
    ),
    code(
        "draft-not-budgeted",
        Cause::DraftNotBudgeted,
        "the draft model or its pool was not in the budget",
    ),
    code("mamba-state", Cause::MambaState, "states of Mamba layers dominate the budget"),
    code(
        "request-table",
        Cause::RequestTable,
        "the request-to-token table grows with requests times context",
    ),
    code("lora-buffers", Cause::LoraBuffers, "LoRA buffers were not in the budget"),
    code(
        "wrong-capacity",
        Cause::WrongOrUnknownCapacity,
        "capacity or free memory was read wrong or is unknown",
    ),
    code(
        "neighbour-while-sizing",
        Cause::NeighbourDuringSizing,
        "another program took or gave back memory during the measurement",
    ),
    code(
        "load-time-garbage",
        Cause::LoadTimeGarbage,
        "temporaries of loading were counted as used when the pool was sized",
    ),
    code("accounting-bug", Cause::AccountingBug, "this release counts its own memory wrong"),
    code("pool-oversized", Cause::PoolOversized, "the pool is larger than the load will ever use"),
    // Loading.
    code("load-time-peak", Cause::LoadTimePeak, "loading needs more than the loaded weights"),
    // Capture and warm-up.
    code(
        "outside-pool-too-small",
        Cause::GraphsOrWorkspace,
        "graphs or workspaces did not fit outside the pool",
    ),
    code(
        "attention-workspace",
        Cause::AttentionWorkspace,
        "the attention backend's workspace did not fit",
    ),
    code("moe-workspace", Cause::MoeWorkspace, "a mixture-of-experts workspace did not fit"),
    code(
        "sampler-buffers",
        Cause::SamplerBuffers,
        "sampling buffers of all rows at once did not fit",
    ),
    code("encoder", Cause::Encoder, "the vision or audio encoder's worst case did not fit"),
    // Serving.
    code(
        "activations-outside-pool",
        Cause::ActivationsOutsidePool,
        "a pass needed more than was left outside the pool",
    ),
    code(
        "grows-with-context",
        Cause::GrowsWithContext,
        "a buffer that grows with the context did not fit",
    ),
    code("prompt-logprobs", Cause::PromptLogprobs, "logits of every prompt token did not fit"),
    code("fragmentation", Cause::Fragmentation, "memory was there in pieces only"),
    code("preemption-storm", Cause::PreemptionStorm, "requests are thrown out and computed again"),
    code(
        "scheduler-bug",
        Cause::SchedulerBug,
        "the scheduler admitted what the allocator could not give",
    ),
    code("leak", Cause::Leak, "memory grows without end"),
    // Host and shared machines.
    code("host-memory", Cause::HostMemory, "host memory is too small for what was asked"),
    code(
        "shared-memory-machine",
        Cause::SharedOrUnifiedMemory,
        "others hold the memory, or host and device share it",
    ),
    // Texts.
    code(
        "misleading-message",
        Cause::MisleadingMessage,
        "the text of the error points the wrong way",
    ),
    code("not-memory", Cause::NotMemory, "this is not a memory failure"),
    // Alive.
    code(
        "margin-too-small",
        Cause::ActivationsOutsidePool,
        "started with less left than the largest prefill needs",
    ),
    code("never-proven", Cause::Healthy, "only health checks or tiny requests have passed"),
    code("healthy", Cause::Healthy, "starts or runs with margin"),
];

/// The entry of a code.
#[must_use]
pub fn find(name: &str) -> Option<&'static Code> {
    CODES.iter().find(|entry| entry.code == name)
}
