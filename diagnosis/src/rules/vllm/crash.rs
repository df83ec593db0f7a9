//! An allocation failed: vLLM's stages and flags for the shared judgement.

use plimsoll_core::units::GIB;
use plimsoll_ingest::log::{Amount, Server, Vllm};

use super::figures::Figures;
use super::machine::{self, Machine};
use super::remedy;
use super::settings::Settings;
use super::stage::{Stage, stage};
use crate::oom::{self, Artefact, Judgement, Part, Verdict, size};
use crate::{Case, Cause, Confidence, Direction, Finding, Phase};

/// Weights above this share of the device leave no room for a profile run of any size.
const WEIGHTS_FILL: f64 = 0.9;
/// From this length on, buffers that grow with the context outweigh those of a chunk.
const LONG_CONTEXT: u64 = 65_536;

/// The failed allocation of a log that is vLLM's.
pub(super) fn allocation(case: &Case) -> Vec<Finding> {
    if case.server() != Some(Server::Vllm) {
        return Vec::new();
    }
    let Some(judged) = oom::first(case) else { return Vec::new() };
    // The line that follows says more than the allocation itself.
    if case.vllm().any(|(_, line)| matches!(line, Vllm::SamplerWarmup { .. })) {
        return Vec::new();
    }
    let scene = Scene {
        stage: stage(case, judged.event, &judged.oom.frames),
        settings: Settings::of(case),
        figures: Figures::of(case),
        machine: machine::of(case),
        encoder_runs: encoder_runs(case, &judged),
        judged: &judged,
    };
    let verdict = scene.verdict();
    let mut finding =
        Finding::new(verdict.code, verdict.cause, verdict.phase, scene.headline(&verdict))
            .also(&verdict.also)
            .sure(verdict.confidence, verdict.weight)
            .fraction(verdict.fraction)
            .because(scene.because(&verdict));
    finding.arithmetic = scene.arithmetic();
    for (_, event) in
        [scene.figures.weights, scene.figures.kv, scene.figures.graphs].into_iter().flatten()
    {
        finding = finding.seen(event);
    }
    finding = finding.seen(judged.event);
    if let Some(missing) = judged.accounts.missing {
        finding = finding.int("missing_bytes", missing.bytes);
    }
    vec![remedy::levers(finding, &scene, &verdict)]
}

/// Tokens that the second model runner takes at a time for log-probabilities of prompt tokens.
/// Source: vLLM 0.11 and later `PromptLogprobsWorker`.
const LOGPROBS_CHUNK: u64 = 1024;

/// Whether no frame tells, and the last of vLLM's lines before the failure announces the encoder's dry run.
fn encoder_runs(case: &Case, judged: &Judgement<'_>) -> bool {
    let at = (judged.event.file, judged.event.line);
    let last = case.vllm().rfind(|(event, _)| (event.file, event.line) < at);
    judged.oom.frames.is_empty()
        && last.is_some_and(|(_, line)| matches!(line, Vllm::EncoderBudget { .. }))
}

/// What the failure is judged with.
pub(super) struct Scene<'a> {
    pub(super) stage: Stage,
    pub(super) settings: Settings,
    pub(super) figures: Figures<'a>,
    pub(super) machine: Machine,
    /// The last line before the failure says that the encoder is being profiled.
    encoder_runs: bool,
    pub(super) judged: &'a Judgement<'a>,
}

impl Scene<'_> {
    fn verdict(&self) -> Verdict {
        let shared = Verdict::of(self.judged);
        let part = self.judged.part;
        let certain = if part.is_some() && self.stage != Stage::Unknown {
            Confidence::Certain
        } else {
            Confidence::Likely
        };
        let new = |code, cause, also: &[Cause], phase, fraction| Verdict {
            code,
            cause,
            also: also.to_vec(),
            phase,
            fraction,
            confidence: certain,
            weight: if self.stage == Stage::Unknown { 75 } else { 88 },
        };
        match self.stage {
            Stage::Load => self.loading(new, shared),
            Stage::Profile if self.encoder_runs => new(
                "encoder",
                Cause::Encoder,
                &[Cause::ProfileRunPeak],
                Phase::Encoder,
                Direction::NoEffect,
            ),
            Stage::Profile => self.profile_run(new),
            _ if self.siblings().is_some()
                && self.settings.draft.is_some()
                && self.first_engine() =>
            {
                self.draft(new)
            }
            Stage::Pool => self.pool(new),
            Stage::Capture => self.capture(new, shared),
            Stage::Serving => self.serving(new, shared),
            Stage::Unknown => self.unknown(new, shared),
        }
    }

    fn loading(&self, new: impl New, shared: Verdict) -> Verdict {
        let none = Direction::NoEffect;
        if self.judged.accounts.others_decide() {
            let also = [Cause::ModelTooBig, Cause::NeighbourDuringSizing];
            return new(
                "shared-memory-machine",
                Cause::SharedOrUnifiedMemory,
                &also,
                Phase::Load,
                none,
            );
        }
        if self.judged.part == Some(Part::Lora) {
            let also = [Cause::ModelTooBig, Cause::GraphsOrWorkspace];
            return new("lora-buffers", Cause::LoraBuffers, &also, Phase::Load, none);
        }
        if self.judged.part == Some(Part::WeightConversion) {
            let also = [Cause::ModelTooBig];
            return new("load-time-peak", Cause::LoadTimePeak, &also, Phase::Load, none);
        }
        let mut also =
            vec![Cause::LoadTimePeak, Cause::ProfileRunPeak, Cause::WeightsAboveFraction];
        also.extend(shared.also);
        new("model-too-big", Cause::ModelTooBig, &also, Phase::Load, none)
    }

    /// Applied after it, the fraction has no part in the profile run.
    fn profile_run(&self, new: impl New) -> Verdict {
        let none = Direction::NoEffect;
        let phase = Phase::Sizing;
        match self.judged.part {
            Some(Part::Encoder) => {
                return new(
                    "encoder",
                    Cause::Encoder,
                    &[Cause::ProfileRunPeak],
                    Phase::Encoder,
                    none,
                );
            }
            Some(Part::MoeWorkspace) => {
                return new(
                    "moe-workspace",
                    Cause::MoeWorkspace,
                    &[Cause::ProfileRunPeak],
                    phase,
                    none,
                );
            }
            _ => {}
        }
        if self.judged.accounts.idle_covers_request() {
            let also = [Cause::ProfileRunPeak];
            return new("fragmentation", Cause::Fragmentation, &also, phase, none);
        }
        if self.judged.accounts.others_decide() {
            let also = [Cause::ProfileRunPeak, Cause::ModelTooBig];
            return new("shared-memory-machine", Cause::SharedOrUnifiedMemory, &also, phase, none);
        }
        let fills =
            self.figures.weights.zip(self.settings.total).is_some_and(|((weights, _), total)| {
                weights.bytes as f64 > WEIGHTS_FILL * total.bytes as f64
            });
        if fills {
            let also = [Cause::ProfileRunPeak, Cause::WeightsAboveFraction];
            return new("model-too-big", Cause::ModelTooBig, &also, phase, none);
        }
        let also = [Cause::Encoder, Cause::MoeWorkspace, Cause::SamplerBuffers, Cause::ModelTooBig];
        new("profile-run-peak", Cause::ProfileRunPeak, &also, phase, none)
    }

    /// The pool is a fraction of the whole device, sized a moment before: what is missing is not this server's,
    /// or was counted wrong.
    fn pool(&self, new: impl New) -> Verdict {
        let (lower, phase) = (Direction::Lower, Phase::Sizing);
        if self.settings.sleep {
            let also = [Cause::AccountingBug, Cause::NeighbourDuringSizing];
            return new("wrong-capacity", Cause::WrongOrUnknownCapacity, &also, phase, lower);
        }
        let unified = self.machine.unified || self.judged.accounts.refused_with_room();
        if unified || self.judged.accounts.others_decide() {
            let also =
                [Cause::NeighbourDuringSizing, Cause::WrongOrUnknownCapacity, Cause::HostMemory];
            return new("shared-memory-machine", Cause::SharedOrUnifiedMemory, &also, phase, lower);
        }
        let also = [Cause::NeighbourDuringSizing, Cause::AccountingBug, Cause::DraftNotBudgeted];
        new("outside-pool-too-small", Cause::GraphsOrWorkspace, &also, Phase::Capture, lower)
    }

    fn capture(&self, new: impl New, shared: Verdict) -> Verdict {
        let (lower, phase) = (Direction::Lower, Phase::Capture);
        match self.judged.part {
            Some(Part::Sampler | Part::Logits) => {
                let also = [Cause::GraphsOrWorkspace, Cause::LoraBuffers];
                return new("sampler-buffers", Cause::SamplerBuffers, &also, phase, lower);
            }
            Some(Part::MoeWorkspace) => {
                let also = [Cause::GraphsOrWorkspace];
                return new("moe-workspace", Cause::MoeWorkspace, &also, phase, lower);
            }
            Some(Part::Encoder) => {
                let also = [Cause::GraphsOrWorkspace];
                return new("encoder", Cause::Encoder, &also, phase, lower);
            }
            Some(Part::AttentionWorkspace) => {
                let also = [Cause::GraphsOrWorkspace];
                return new("attention-workspace", Cause::AttentionWorkspace, &also, phase, lower);
            }
            _ => {}
        }
        if self.machine.unified && self.judged.accounts.refused_with_room() {
            let also = [Cause::GraphsOrWorkspace, Cause::HostMemory];
            return new("shared-memory-machine", Cause::SharedOrUnifiedMemory, &also, phase, lower);
        }
        let mut also = vec![Cause::ActivationsOutsidePool, Cause::SamplerBuffers];
        if self.settings.lora {
            also.insert(0, Cause::LoraBuffers);
        }
        also.extend(shared.also);
        new("outside-pool-too-small", Cause::GraphsOrWorkspace, &also, phase, lower)
    }

    fn serving(&self, new: impl New, shared: Verdict) -> Verdict {
        let lower = Direction::Lower;
        let phase = if matches!(shared.phase, Phase::Decode | Phase::Encoder) {
            shared.phase
        } else {
            Phase::Prefill
        };
        let accounts = &self.judged.accounts;
        if let Some(Part::Encoder | Part::PromptLogprobs | Part::MoeWorkspace | Part::Indexer) =
            self.judged.part
        {
            return Verdict { weight: 90, ..shared };
        }
        if self.logits_of_every_token().is_some() {
            let (cause, none) = (Cause::PromptLogprobs, Direction::NoEffect);
            return new("prompt-logprobs", cause, &[Cause::ActivationsOutsidePool], phase, none);
        }
        if accounts.idle_covers_request() {
            let also = [Cause::ActivationsOutsidePool, Cause::GrowsWithContext];
            return new("fragmentation", Cause::Fragmentation, &also, phase, lower);
        }
        let long = self.settings.max_model_len.is_some_and(|length| length >= LONG_CONTEXT);
        if long && self.grown().is_some_and(|grown| grown.least() > GIB as i64) {
            let also = [Cause::ActivationsOutsidePool, Cause::Leak];
            return new("grows-with-context", Cause::GrowsWithContext, &also, phase, lower);
        }
        let mut also = vec![Cause::GrowsWithContext, Cause::GraphsOrWorkspace, Cause::MoeWorkspace];
        also.extend(shared.also.iter().chain([&shared.cause]));
        new("activations-outside-pool", Cause::ActivationsOutsidePool, &also, phase, lower)
    }

    fn unknown(&self, new: impl New, shared: Verdict) -> Verdict {
        if self.settings.draft.is_some() && self.first_engine() {
            return self.draft(new);
        }
        if self.logits_of_every_token().is_some() {
            let (cause, none) = (Cause::PromptLogprobs, Direction::NoEffect);
            let also = [Cause::ActivationsOutsidePool];
            return new("prompt-logprobs", cause, &also, Phase::Prefill, none);
        }
        if self.machine.unified && shared.cause != Cause::Fragmentation {
            let also = [shared.cause, Cause::HostMemory, Cause::WrongOrUnknownCapacity];
            return Verdict {
                confidence: Confidence::Possible,
                ..new(
                    "shared-memory-machine",
                    Cause::SharedOrUnifiedMemory,
                    &also,
                    shared.phase,
                    Direction::Lower,
                )
            };
        }
        shared
    }

    /// The first engine profiles the target only; the draft's weights and cache come on top.
    fn draft(&self, new: impl New) -> Verdict {
        let also =
            [Cause::SharedOrUnifiedMemory, Cause::ActivationsOutsidePool, Cause::GraphsOrWorkspace];
        new("draft-not-budgeted", Cause::DraftNotBudgeted, &also, Phase::Prefill, Direction::Lower)
    }

    /// The first engine by its lines or release, or by a flag that only it has as such.
    fn first_engine(&self) -> bool {
        self.settings.is_v0()
            || (self.settings.generation.is_none() && self.settings.draft.is_some())
    }

    /// Memory of sibling workers on this device: several processes of one size, as ranks leave them on rank 0's.
    pub(super) fn siblings(&self) -> Option<Amount> {
        let listed = &self.judged.oom.processes;
        let (first, rest) = listed.split_first()?;
        let alike = !rest.is_empty() && rest.iter().all(|other| other.bytes == first.bytes);
        alike.then(|| rest.iter().fold(*first, |sum, other| sum + *other))
    }

    /// The request as tokens of a whole batch × vocabulary × 2 or 4 bytes: only log-probabilities of prompt tokens
    /// need a row for every token. Rows and bytes of an entry, where a vocabulary is known and they fit.
    fn logits_of_every_token(&self) -> Option<(u64, u64)> {
        if !matches!(self.judged.part, None | Some(Part::Logits | Part::PromptLogprobs)) {
            return None;
        }
        let asked = u64::try_from(self.judged.accounts.requested?.bytes).ok()?;
        let model = plimsoll_catalog::models::find(self.settings.model.as_deref()?).ok()?;
        let vocabulary = model.model.geometry.vocab_size;
        let batch = self.settings.max_num_batched_tokens.filter(|tokens| *tokens > 512);
        let chunk = self.settings.max_num_seqs.is_none_or(|requests| requests < LOGPROBS_CHUNK);
        let rows = [batch, chunk.then_some(LOGPROBS_CHUNK)].into_iter().flatten();
        rows.flat_map(|rows| [(rows, 2), (rows, 4)]).find(|(rows, bytes)| {
            let whole = rows.saturating_mul(vocabulary).saturating_mul(*bytes);
            whole > 0 && asked.abs_diff(whole) <= whole / 100 + (2 << 20)
        })
    }

    /// What PyTorch holds beyond weights, pool, profiled peak and graphs.
    pub(super) fn grown(&self) -> Option<Amount> {
        let allocated = self.judged.accounts.allocated?;
        Some(allocated - self.foreseen()?)
    }

    fn foreseen(&self) -> Option<Amount> {
        let ((weights, _), (kv, _)) = (self.figures.weights?, self.figures.kv?);
        let rest = |seen: Option<(Amount, _)>| seen.map_or(Amount::default(), |(amount, _)| amount);
        Some(weights + kv + rest(self.figures.peak) + rest(self.figures.graphs))
    }

    fn headline(&self, verdict: &Verdict) -> String {
        let what = match self.stage {
            Stage::Load => "loading the weights failed",
            Stage::Profile => "the profile run failed",
            Stage::Pool => "making the KV cache failed",
            Stage::Capture => "graph capture or warm-up failed",
            Stage::Serving => "a pass failed while serving",
            Stage::Unknown if verdict.phase == Phase::Load => "loading the weights failed",
            Stage::Unknown => "an allocation failed",
        };
        let part = self.judged.part.map_or(String::new(), |part| format!(" in {}", part.words()));
        self.judged.accounts.shortage(&format!("{what}{part}"))
    }

    fn because(&self, verdict: &Verdict) -> String {
        let wrapped = match self.judged.accounts.artefact {
            Some(Artefact::Wrapped) => {
                " `17179869184.00 GiB in use` is 2^64 bytes: under WSL2 the driver does not tell a process's memory."
            }
            _ => "",
        };
        let text = match (verdict.cause, self.stage) {
            (Cause::SharedOrUnifiedMemory, _) if self.judged.accounts.others_decide() => {
                "Other programs hold memory of this device. The fraction is one of the whole device and does not see them."
            }
            (Cause::SharedOrUnifiedMemory, _) => {
                "The device counts more free than was asked and still refused, or shares its memory with the host: the \
                 system's limits decide, not what is free."
            }
            (Cause::WrongOrUnknownCapacity, _) => {
                "Sleep mode's allocator keeps memory that the measurement takes for free, so the pool is too large."
            }
            (Cause::DraftNotBudgeted, _) => {
                "The first engine measures the target model alone: weights and cache of the draft, and what sibling ranks \
                 hold on the first device, are not in the budget."
            }
            (Cause::Fragmentation, _) => {
                "PyTorch holds enough idle memory for the request, but not in one piece, on a device with no margin."
            }
            (Cause::GrowsWithContext, _) => {
                "The profile run has no context behind it, so buffers that grow with the context are not in the budget."
            }
            (Cause::ModelTooBig, _) => "Next to nothing but weights was there: they do not fit.",
            (Cause::PromptLogprobs, _) => {
                "The request is a row of logits for every token of the batch, which only log-probabilities of the prompt \
                 need; the profile run makes none."
            }
            (Cause::LoadTimePeak, _) => {
                "Rewriting weights after they were read needs both forms at once: a peak, not the steady state."
            }
            (_, Stage::Profile) => {
                "The profile run comes before the fraction is applied: it may use the whole device, and did not fit."
            }
            (_, Stage::Capture | Stage::Pool) => {
                "The pool takes the budget to its end; graphs, workspaces and warm-up live in what the fraction leaves."
            }
            _ => {
                "The pool takes the budget to its end; what the profile run did not show has only what the fraction leaves."
            }
        };
        format!("{text}{wrapped}")
    }

    fn arithmetic(&self) -> Vec<String> {
        let mut lines = self.judged.accounts.lines();
        if let (Some(total), Some(utilization)) = (self.settings.total, self.settings.utilization)
            && self.stage >= Stage::Pool
        {
            let outside = Amount::exact((total.bytes as f64 * (1.0 - utilization)) as i64);
            lines.push(format!("(1 − {utilization}) × {total} = {outside} outside the budget"));
        }
        if let (Stage::Serving, Some(foreseen), Some(grown)) =
            (self.stage, self.foreseen(), self.grown())
            && grown.bytes > 0
        {
            lines.push(format!(
                "{foreseen} of weights, pool, profiled peak and graphs; {grown} more are allocated"
            ));
        }
        if let (Some((tokens, bytes)), Some(asked)) =
            (self.logits_of_every_token(), self.judged.accounts.requested)
        {
            lines.push(format!("{} = {tokens} tokens × the vocabulary × {bytes} B", size(asked)));
        }
        if let Some(siblings) = self.siblings() {
            let count = self.judged.oom.processes.len();
            lines.push(format!("{count} sibling processes hold {siblings} on this device"));
        }
        lines
    }
}

/// Makes a verdict: code, cause, others, phase, direction.
trait New: Fn(&'static str, Cause, &[Cause], Phase, Direction) -> Verdict {}

impl<F: Fn(&'static str, Cause, &[Cause], Phase, Direction) -> Verdict> New for F {}
