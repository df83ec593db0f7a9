//! From a judged failure to its cause: the same for every engine, before the engine's own rules.

use super::{Basis, Judgement, Part, Reached, factor};
use crate::{Cause, Confidence, Direction, Phase};

/// What a failed allocation means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Code of the finding.
    pub code: &'static str,
    /// Cause.
    pub cause: Cause,
    /// Other causes that the same lines allow.
    pub also: Vec<Cause>,
    /// When.
    pub phase: Phase,
    /// What to do with the fraction.
    pub fraction: Direction,
    /// How sure.
    pub confidence: Confidence,
    /// How specific the lines are.
    pub weight: u8,
}

impl Verdict {
    fn new(code: &'static str, cause: Cause, also: &[Cause], fraction: Direction) -> Self {
        Self {
            code,
            cause,
            also: also.to_vec(),
            phase: Phase::Unknown,
            fraction,
            confidence: Confidence::Likely,
            weight: 80,
        }
    }

    /// The judgement's meaning.
    #[must_use]
    pub fn of(judged: &Judgement<'_>) -> Self {
        let verdict =
            by_holder(judged).or_else(|| fragmented(judged)).unwrap_or_else(|| by_phase(judged));
        let (confidence, weight) = match (judged.basis, judged.part) {
            (Basis::Frames, Some(_)) => (Confidence::Certain, 90),
            (Basis::Lines, _) | (Basis::Frames, None) => (Confidence::Likely, 85),
            (Basis::Figures, _) => (Confidence::Likely, 75),
            (Basis::Nothing, _) => (Confidence::Possible, 70),
        };
        let phase = match (judged.phase, verdict.cause) {
            (Phase::Unknown, Cause::PromptLogprobs) => Phase::Prefill,
            (Phase::Unknown, Cause::Encoder) => Phase::Encoder,
            (phase, _) => phase,
        };
        let mut verdict = Self { phase, confidence, weight, ..verdict };
        if judged.in_draft && verdict.cause != Cause::DraftNotBudgeted {
            verdict.also.push(Cause::DraftNotBudgeted);
        }
        if judged.accounts.unified() && verdict.cause != Cause::SharedOrUnifiedMemory {
            verdict.also.push(Cause::SharedOrUnifiedMemory);
        }
        verdict
    }
}

/// Others, or the machine itself, decide before any phase does.
fn by_holder(judged: &Judgement<'_>) -> Option<Verdict> {
    let accounts = &judged.accounts;
    let shared = |also: &[Cause], fraction: Direction| {
        Some(Verdict::new("shared-memory-machine", Cause::SharedOrUnifiedMemory, also, fraction))
    };
    if judged.part == Some(Part::Colocated) {
        return shared(
            &[Cause::ActivationsOutsidePool, Cause::NeighbourDuringSizing],
            Direction::Lower,
        );
    }
    if accounts.refused_with_room() && judged.phase != Phase::Host {
        let also = [Cause::WrongOrUnknownCapacity, Cause::HostMemory, Cause::Fragmentation];
        return shared(&also, Direction::Lower);
    }
    let loading = judged.phase == Phase::Load && judged.reached != Reached::DraftLoading;
    if loading && !accounts.unified() && accounts.others_decide_loading() {
        return shared(&[Cause::ModelTooBig, Cause::NeighbourDuringSizing], Direction::NoEffect);
    }
    if !loading && accounts.others_decide_serving() {
        let also = [Cause::ActivationsOutsidePool, Cause::GraphsOrWorkspace, Cause::ModelTooBig];
        // A server of which no line says that it measured anything may just have begun to load.
        let fraction =
            if judged.basis == Basis::Nothing { Direction::NoEffect } else { Direction::Lower };
        return shared(&also, fraction);
    }
    None
}

/// Idle blocks would have covered the request. Not while graphs are captured: they allocate in private pools,
/// which the idle blocks of the common pool cannot serve. Not while weights load: nothing is in pieces yet.
fn fragmented(judged: &Judgement<'_>) -> Option<Verdict> {
    let served =
        matches!(judged.phase, Phase::Unknown | Phase::Prefill | Phase::Decode | Phase::Encoder);
    let telling = matches!(judged.part, Some(Part::PromptLogprobs | Part::Indexer | Part::Encoder));
    (served && !telling && judged.accounts.idle_covers_request()).then(|| {
        let also = [Cause::ActivationsOutsidePool, Cause::GraphsOrWorkspace];
        Verdict::new("fragmentation", Cause::Fragmentation, &also, Direction::Lower)
    })
}

fn by_phase(judged: &Judgement<'_>) -> Verdict {
    match judged.phase {
        Phase::Load => loading(judged),
        Phase::Sizing => sizing(judged),
        Phase::Capture => capture(judged),
        Phase::Host => host(),
        _ => serving(judged),
    }
}

fn host() -> Verdict {
    Verdict::new("host-memory", Cause::HostMemory, &[], Direction::NoEffect)
}

fn loading(judged: &Judgement<'_>) -> Verdict {
    let none = Direction::NoEffect;
    if judged.reached == Reached::DraftLoading || judged.in_draft {
        let also = [Cause::EmptyFeasibleWindow, Cause::GraphsOrWorkspace];
        return Verdict::new(
            "draft-not-budgeted",
            Cause::DraftNotBudgeted,
            &also,
            Direction::Lower,
        );
    }
    match judged.part {
        Some(Part::WeightConversion) => {
            let also = [Cause::ModelTooBig, Cause::WeightsAboveFraction];
            Verdict::new("load-time-peak", Cause::LoadTimePeak, &also, none)
        }
        Some(Part::Communication) => {
            let also = [Cause::SharedOrUnifiedMemory];
            Verdict::new("outside-pool-too-small", Cause::GraphsOrWorkspace, &also, none)
        }
        // No pool stands yet that could give way.
        Some(Part::Lora) => Verdict { fraction: none, ..lora() },
        _ => {
            let also = [
                Cause::LoadTimePeak,
                Cause::WeightsAboveFraction,
                Cause::ProfileRunPeak,
                Cause::SharedOrUnifiedMemory,
            ];
            Verdict::new("model-too-big", Cause::ModelTooBig, &also, none)
        }
    }
}

fn lora() -> Verdict {
    let also = [Cause::ActivationsOutsidePool, Cause::GraphsOrWorkspace];
    Verdict::new("lora-buffers", Cause::LoraBuffers, &also, Direction::Lower)
}

fn sizing(judged: &Judgement<'_>) -> Verdict {
    let lower = Direction::Lower;
    if judged.reached == Reached::DraftSizing || judged.in_draft {
        let also = [Cause::EmptyFeasibleWindow, Cause::GraphsOrWorkspace];
        return Verdict::new("draft-not-budgeted", Cause::DraftNotBudgeted, &also, lower);
    }
    match judged.part {
        Some(Part::RequestTable) => {
            let also = [Cause::GrowsWithContext, Cause::GraphsOrWorkspace];
            Verdict::new("request-table", Cause::RequestTable, &also, lower)
        }
        Some(Part::HostPool) => host(),
        Some(Part::Lora) => lora(),
        Some(Part::Mamba) => {
            Verdict::new("mamba-state", Cause::MambaState, &[Cause::DraftNotBudgeted], lower)
        }
        Some(Part::AttentionWorkspace) => attention_workspace(),
        Some(Part::WeightConversion | Part::Weights) => loading(judged),
        _ => {
            // The pool is sized from what was free a moment before: refused, it was no longer there, or the
            // count was wrong.
            let also = [
                Cause::WrongOrUnknownCapacity,
                Cause::AccountingBug,
                Cause::DraftNotBudgeted,
                Cause::GraphsOrWorkspace,
                Cause::SharedOrUnifiedMemory,
            ];
            let cause = Cause::NeighbourDuringSizing;
            Verdict::new("neighbour-while-sizing", cause, &also, lower)
        }
    }
}

fn attention_workspace() -> Verdict {
    let also = [Cause::GraphsOrWorkspace];
    Verdict::new("attention-workspace", Cause::AttentionWorkspace, &also, Direction::Lower)
}

fn moe_workspace() -> Verdict {
    let also = [Cause::GraphsOrWorkspace, Cause::ActivationsOutsidePool];
    Verdict::new("moe-workspace", Cause::MoeWorkspace, &also, Direction::Lower)
}

fn encoder() -> Verdict {
    let also = [Cause::ActivationsOutsidePool];
    Verdict::new("encoder", Cause::Encoder, &also, Direction::Lower)
}

fn outside(also: &[Cause]) -> Verdict {
    Verdict::new("outside-pool-too-small", Cause::GraphsOrWorkspace, also, Direction::Lower)
}

fn activations(also: &[Cause]) -> Verdict {
    let cause = Cause::ActivationsOutsidePool;
    Verdict::new("activations-outside-pool", cause, also, Direction::Lower)
}

fn sampler() -> Verdict {
    let also = [Cause::ActivationsOutsidePool, Cause::GraphsOrWorkspace];
    Verdict::new("sampler-buffers", Cause::SamplerBuffers, &also, Direction::Lower)
}

fn capture(judged: &Judgement<'_>) -> Verdict {
    match judged.part {
        Some(Part::AttentionWorkspace) => attention_workspace(),
        Some(Part::MoeWorkspace) => moe_workspace(),
        Some(Part::Encoder) => encoder(),
        Some(Part::Sampler) => sampler(),
        Some(Part::RequestTable | Part::HostPool) => sizing(judged),
        Some(Part::Mamba) => {
            let also = [Cause::GraphsOrWorkspace, Cause::DraftNotBudgeted];
            Verdict::new("mamba-state", Cause::MambaState, &also, Direction::Lower)
        }
        Some(Part::Indexer) => outside(&[Cause::GrowsWithContext, Cause::AttentionWorkspace]),
        Some(Part::Lora) => outside(&[Cause::LoraBuffers]),
        Some(Part::Attention) => outside(&[Cause::AttentionWorkspace]),
        _ => outside(&[
            Cause::MoeWorkspace,
            Cause::ActivationsOutsidePool,
            Cause::AttentionWorkspace,
        ]),
    }
}

fn serving(judged: &Judgement<'_>) -> Verdict {
    let decode = judged.phase == Phase::Decode;
    match judged.part {
        Some(Part::Encoder) => encoder(),
        Some(Part::PromptLogprobs) => prompt_logprobs(),
        Some(Part::Logits) if more_rows_than_requests(judged) => prompt_logprobs(),
        Some(Part::Logits) if decode => sampler(),
        Some(Part::Logits) => {
            activations(&[Cause::SamplerBuffers, Cause::PromptLogprobs, Cause::GraphsOrWorkspace])
        }
        Some(Part::Sampler) => sampler(),
        Some(Part::Indexer) => {
            let also = [Cause::ActivationsOutsidePool, Cause::AttentionWorkspace];
            Verdict::new("grows-with-context", Cause::GrowsWithContext, &also, Direction::Lower)
        }
        Some(Part::MoeWorkspace) => moe_workspace(),
        Some(Part::Moe) => activations(&[Cause::MoeWorkspace]),
        Some(Part::AttentionWorkspace) => attention_workspace(),
        Some(Part::Attention) => activations(&[Cause::AttentionWorkspace, Cause::GrowsWithContext]),
        Some(Part::Communication) => outside(&[Cause::ActivationsOutsidePool]),
        Some(Part::HostPool) => host(),
        Some(Part::Lora) => lora(),
        None if judged.accounts.much_outside_torch() => {
            outside(&[Cause::ActivationsOutsidePool, Cause::MoeWorkspace])
        }
        _ if decode => activations(&[Cause::SamplerBuffers, Cause::GraphsOrWorkspace]),
        _ => activations(&[
            Cause::GraphsOrWorkspace,
            Cause::GrowsWithContext,
            Cause::MoeWorkspace,
            Cause::SamplerBuffers,
        ]),
    }
}

fn prompt_logprobs() -> Verdict {
    let also = [Cause::ActivationsOutsidePool];
    Verdict::new("prompt-logprobs", Cause::PromptLogprobs, &also, Direction::NoEffect)
}

/// No server runs as many requests as a batch of logits of this size has rows: they are prompt tokens.
/// Source: SGLang sizes its request table at most to 4,096 on its own.
fn more_rows_than_requests(judged: &Judgement<'_>) -> bool {
    judged.accounts.requested.is_some_and(|asked| factor::fewest_logit_rows(asked) > 4096)
}
