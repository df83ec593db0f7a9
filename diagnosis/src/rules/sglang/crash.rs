//! An allocation failed: SGLang's flags for the shared judgement.

use plimsoll_ingest::log::{Amount, Server};

use super::levers::{Scale, fraction_text, gib};
use super::settings::Settings;
use super::start::Start;
use crate::oom::{self, Artefact, Judgement, Part, Verdict, factor, size};
use crate::{Case, Cause, Direction, Finding, Phase};

/// Requests that SGLang lets run at most on its own. Source: SGLang sizing of the request table, every release.
const MOST_REQUESTS: i64 = 4096;

/// Tokens of a prefill batch unless a flag says otherwise. Source: SGLang `ServerArgs.max_prefill_tokens`.
const MOST_PREFILL_TOKENS: u64 = 16_384;

/// A row of float logits of the smallest vocabulary of a current large model (100,000 entries), less a third.
const LEAST_LOGIT_ROW: i64 = 270_000;

/// The failed allocation of a log that is SGLang's, or of nobody known.
pub(super) fn allocation(case: &Case) -> Vec<Finding> {
    if !matches!(case.server(), None | Some(Server::Sglang)) {
        return Vec::new();
    }
    let Some(judged) = oom::first(case) else { return Vec::new() };
    let settings = Settings::of(case);
    let start = Start::of_rank(case, judged.event.rank);
    let scene = Scene { case, settings: &settings, start: start.as_ref(), judged: &judged };
    let verdict = scene.verdict();
    let mut finding =
        Finding::new(verdict.code, verdict.cause, verdict.phase, scene.headline(&verdict))
            .also(&verdict.also)
            .sure(verdict.confidence, verdict.weight)
            .fraction(verdict.fraction)
            .because(scene.because(&verdict))
            .seen(judged.event);
    finding.arithmetic = scene.arithmetic();
    finding = scene.lines(finding);
    finding = scene.levers(finding, &verdict);
    vec![scene.no_help(finding, &verdict)]
}

/// What the failure is judged with.
pub(super) struct Scene<'a> {
    pub(super) case: &'a Case,
    pub(super) settings: &'a Settings,
    pub(super) start: Option<&'a Start<'a>>,
    pub(super) judged: &'a Judgement<'a>,
}

impl Scene<'_> {
    /// The shared verdict, with what only this start says.
    fn verdict(&self) -> Verdict {
        let mut verdict = Verdict::of(self.judged);
        let starting = matches!(verdict.phase, Phase::Capture | Phase::Sizing);
        if starting && self.mamba_copies_dominate() {
            verdict.code = "mamba-state";
            verdict.also.insert(0, verdict.cause);
            verdict.cause = Cause::MambaState;
        }
        let early = starting || matches!(verdict.phase, Phase::Unknown | Phase::Load);
        if early && self.settings.speculative.is_some() && self.settings.since(5, 14) != Some(true)
        {
            verdict.also.push(Cause::DraftNotBudgeted);
        }
        if starting && self.table().is_some_and(|table| table > gib(2)) {
            verdict.also.push(Cause::RequestTable);
        }
        if starting && self.settings.lora.yes() {
            verdict.also.push(Cause::LoraBuffers);
        }
        if starting && self.settings.context.is_some_and(|context| context >= 500_000) {
            verdict.also.push(Cause::GrowsWithContext);
        }
        // No activation takes so much for a token: a row of logits does.
        let per_token = self.judged.accounts.requested.and_then(|asked| {
            factor::bytes_per_token(asked, self.settings.chunk.unwrap_or(MOST_PREFILL_TOKENS))
        });
        if verdict.cause == Cause::ActivationsOutsidePool
            && per_token.is_some_and(|bytes| bytes >= LEAST_LOGIT_ROW)
        {
            verdict.also.insert(0, Cause::PromptLogprobs);
        }
        if self.settings.hicache.yes() {
            verdict.also.push(Cause::HostMemory);
        }
        verdict
    }

    /// Whether the copies of Mamba states for draft tokens outweigh the states themselves.
    fn mamba_copies_dominate(&self) -> bool {
        self.start.and_then(|start| start.mamba).is_some_and(|mamba| {
            mamba.intermediate.bytes / 2 > mamba.states.bytes && mamba.intermediate.bytes > gib(4)
        })
    }

    /// Bytes of the request-to-token table, where requests and context are known.
    ///
    /// Source: SGLang `ReqToTokenPool`: (requests + 1) × (context + 4) × 4 B.
    fn table(&self) -> Option<i64> {
        let requests = i64::try_from(self.settings.max_running?).ok()?;
        let context = i64::try_from(self.settings.context?).ok()?;
        requests.checked_add(1)?.checked_mul(context.checked_add(4)?)?.checked_mul(4)
    }

    fn headline(&self, verdict: &Verdict) -> String {
        let what = match verdict.phase {
            Phase::Load => "loading the weights failed",
            Phase::Sizing => "making the pools failed",
            Phase::Capture => "graph capture or a workspace before it failed",
            Phase::Prefill => "a prefill pass failed",
            Phase::Decode => "a decode pass failed",
            Phase::Encoder => "the encoder of images or audio failed",
            Phase::Host => "a host buffer failed",
            _ => "an allocation failed",
        };
        let told = self.judged.part.filter(|part| *part != Part::Weights);
        let part = told.map_or(String::new(), |part| format!(" in {}", part.words()));
        let ranks = match self.judged.other_ranks {
            0 => String::new(),
            n => format!(" (and {n} more ranks)"),
        };
        self.judged.accounts.shortage(&format!("{what}{part}")) + &ranks
    }

    fn because(&self, verdict: &Verdict) -> String {
        let accounts = &self.judged.accounts;
        let text = match verdict.cause {
            Cause::SharedOrUnifiedMemory if !accounts.refused_with_room() => {
                let others = accounts.others.unwrap_or_default();
                let zero = match accounts.artefact {
                    Some(Artefact::ZeroInContainer) => {
                        " `0 bytes in use` is what a container sees of its own process: not a figure."
                    }
                    _ => "",
                };
                return format!(
                    "{} on this device belong to other programs, or to a server that is still going away.{zero}",
                    size(others)
                );
            }
            Cause::SharedOrUnifiedMemory => {
                "The device counts more free than was asked and still refused: host and device share one \
                 memory, or the system sets a limit of its own."
            }
            Cause::Fragmentation => {
                "PyTorch holds enough idle memory for the request, but not in one piece."
            }
            Cause::ModelTooBig => "It died before anything but weights was there: they do not fit.",
            Cause::LoadTimePeak => {
                "Rewriting weights after they were read needs both forms at once: a peak, not the steady state."
            }
            Cause::DraftNotBudgeted => {
                "In this release the draft model comes after the target's pool and has no part in the fraction."
            }
            Cause::MambaState => {
                "Speculation keeps a copy of the state for every draft token of every slot, beside the states."
            }
            Cause::PromptLogprobs => {
                "Log-probabilities of prompt tokens need a row of logits for every token of the chunk, in float: \
                 more with every token, whatever the fraction."
            }
            Cause::GrowsWithContext => {
                "The scores are chunk × context so far: they grow while a long prompt is read."
            }
            Cause::NeighbourDuringSizing => {
                "The pool is sized from what was free a moment before: that memory was gone, or never there."
            }
            _ if accounts.much_outside_torch() => {
                "Much of this process is not PyTorch's: communication buffers that come after the pool was sized."
            }
            _ => "What is outside the pool, 1 − fraction of the memory, was too little for this.",
        };
        text.to_owned()
    }

    fn arithmetic(&self) -> Vec<String> {
        let accounts = &self.judged.accounts;
        let mut lines = accounts.lines();
        let Some(asked) = accounts.requested else { return lines };
        if let (Some(context), Some(Part::Indexer)) = (self.settings.context, self.judged.part)
            && let Some(rows) = factor::rows(asked, context, 4)
        {
            lines.push(rows.words(asked));
        }
        if let Some(rows) = self.logit_rows() {
            lines.push(rows.words(asked));
        }
        if let Some(chunk) = self.chunk_tells()
            && let Some(per_token) = factor::bytes_per_token(asked, chunk)
        {
            lines.push(format!("{} = {chunk} tokens of a chunk × {per_token} B", size(asked)));
        }
        lines
    }

    /// The request as rows of float logits, where it can be: in frames of logits or sampling; without frames
    /// only if a server may run so many requests.
    pub(super) fn logit_rows(&self) -> Option<factor::Rows> {
        let part = self.judged.part;
        let logits = matches!(part, Some(Part::Logits | Part::PromptLogprobs | Part::Sampler));
        let serving = !matches!(self.judged.phase, Phase::Load | Phase::Sizing | Phase::Capture);
        let open = part.is_none() && serving && self.judged.oom.frames.is_empty();
        if !logits && !open {
            return None;
        }
        let name = self.settings.model.as_deref()?;
        let requests =
            self.settings.max_running.and_then(|n| i64::try_from(n).ok()).unwrap_or(MOST_REQUESTS);
        let vocabulary = plimsoll_catalog::models::find(name).ok()?.model.geometry.vocab_size;
        let rows = factor::rows(self.judged.accounts.requested?, vocabulary, 4)?;
        (logits || rows.least <= requests).then_some(rows)
    }

    /// The chunk, where the failure can be a prefill pass.
    fn chunk_tells(&self) -> Option<u64> {
        let serving = matches!(self.judged.phase, Phase::Prefill | Phase::Unknown);
        let rows = matches!(self.judged.part, Some(Part::Sampler | Part::Logits | Part::Encoder));
        let large = self.judged.accounts.requested.is_some_and(|a| a.bytes >= gib(1) / 4);
        (serving && !rows && large).then_some(self.settings.chunk?)
    }

    /// Lines and numbers that the arithmetic rests on.
    fn lines(&self, mut finding: Finding) -> Finding {
        let accounts = &self.judged.accounts;
        if let Some(frame) = oom::telling_frame(&self.judged.oom.frames) {
            finding = finding.sum(format!("the frame that tells: {frame}"));
        }
        let numbers: [(&'static str, Option<Amount>); 6] = [
            ("requested_bytes", accounts.requested),
            ("free_bytes", accounts.free),
            ("missing_bytes", accounts.missing),
            ("capacity_bytes", accounts.capacity),
            ("outside_torch_bytes", accounts.outside_torch),
            ("others_bytes", accounts.others),
        ];
        for (name, value) in numbers {
            if let Some(value) = value {
                finding = finding.int(name, value.bytes);
            }
        }
        if let Some((event, free)) = self.start.and_then(Start::last_free) {
            finding = finding.seen(event).int("free_at_last_reading_bytes", free.bytes);
        }
        if let Some(mamba) = self.start.and_then(|s| s.mamba)
            && self.mamba_copies_dominate()
        {
            finding = finding.seen(mamba.event).sum(format!(
                "{} of copies for draft tokens beside {} of states",
                size(mamba.intermediate),
                size(mamba.states)
            ));
        }
        if let Some(table) = self.table().filter(|table| *table > gib(1)) {
            let (requests, context) = (self.settings.max_running, self.settings.context);
            finding = finding.sum(format!(
                "({} + 1) requests × ({} + 4) tokens × 4 B = {} of request table, outside the fraction",
                requests.unwrap_or_default(),
                context.unwrap_or_default(),
                size(Amount::exact(table))
            ));
        }
        if let Some(fraction) = self.settings.fraction {
            finding = finding.float("mem_fraction_static", fraction);
            let base = Scale::of(self.case, self.settings, self.start, accounts.capacity).base;
            if let Some(base) = base
                && finding.fraction == Direction::Lower
            {
                let outside = Amount::exact(((1.0 - fraction) * base.bytes as f64) as i64);
                finding = finding.sum(format!(
                    "{} × (1 − {}) = {} outside weights and pool",
                    size(base),
                    fraction_text(fraction),
                    size(outside)
                ));
            }
        }
        finding
    }
}
