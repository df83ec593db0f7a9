//! What to set after a failed allocation, and what will not help.

use super::crash::Scene;
use super::levers::{FRACTION, Scale};
use crate::oom::{Part, Verdict, factor, size};
use crate::{Cause, Direction, Finding, Lever, Move, Phase};
use plimsoll_ingest::log::Amount;

/// The flag of the chunk.
const CHUNK: &str = "--chunked-prefill-size";

impl Scene<'_> {
    /// Flags that change it, best first.
    pub(super) fn levers(&self, mut finding: Finding, verdict: &Verdict) -> Finding {
        let accounts = &self.judged.accounts;
        let scale = Scale::of(self.case, self.settings, self.start, accounts.capacity);
        let fraction = scale.lower(accounts.missing);
        let mut levers = self.by_cause(verdict, &fraction);
        // The plan's fraction holds for the heaviest pass, a chunk only for the buffer that failed.
        if scale.planned.is_some() && verdict.cause == Cause::ActivationsOutsidePool {
            levers.sort_by_key(|lever| lever.flag != FRACTION);
        }
        for lever in levers {
            finding = finding.set(lever);
        }
        let serving = matches!(verdict.phase, Phase::Prefill | Phase::Decode | Phase::Unknown);
        if serving && verdict.cause != Cause::SamplerBuffers && self.logit_rows().is_some() {
            finding = finding.set(
                Lever::new("--max-running-requests", Move::Lower)
                    .gives("if these are logits: a row for every running request"),
            );
        }
        if serving && verdict.cause != Cause::Fragmentation && accounts.enough_in_pieces() {
            finding = finding.set(
                Lever::new("PYTORCH_CUDA_ALLOC_CONF", Move::Set)
                    .to("expandable_segments:True")
                    .gives("idle and free together cover it; not on unified memory"),
            );
        }
        finding
    }

    /// What makes the thing that failed smaller, best first.
    fn by_cause(&self, verdict: &Verdict, fraction: &Lever) -> Vec<Lever> {
        let lower = |flag: &str, gives: &str| Lever::new(flag, Move::Lower).gives(gives);
        let fraction = fraction.clone();
        match verdict.cause {
            Cause::GraphsOrWorkspace | Cause::AttentionWorkspace | Cause::MoeWorkspace => {
                self.outside_levers(fraction)
            }
            Cause::SamplerBuffers => vec![
                lower(
                    "--max-running-requests",
                    "a row of vocabulary × 4 B less for each, several times over",
                ),
                fraction,
            ],
            Cause::GrowsWithContext => vec![
                self.chunk_lever().unwrap_or_else(|| Lever::new(CHUNK, Move::Lower)),
                lower("--context-length", "bounds the scores of the longest prompt"),
                fraction,
            ],
            Cause::PromptLogprobs => vec![
                lower(CHUNK, "fewer rows of logits at once, in releases that chunk them").to(4096),
                lower("--max-prefill-tokens", "fewer prompts in a batch").to(4096),
            ],
            Cause::Fragmentation => vec![
                Lever::new("PYTORCH_CUDA_ALLOC_CONF", Move::Set)
                    .to("expandable_segments:True")
                    .gives("idle pieces can be joined (not on unified memory)"),
                fraction,
            ],
            Cause::MambaState => vec![
                lower("--max-mamba-cache-size", "states and copies shrink with the slots"),
                lower("--speculative-num-draft-tokens", "copies shrink with draft tokens"),
                fraction,
            ],
            Cause::Encoder => vec![
                lower("--limit-mm-data-per-request", "fewer images at once"),
                lower("--max-running-requests", "fewer encoders at once"),
                fraction,
            ],
            Cause::RequestTable => vec![
                lower("--max-running-requests", "the table shrinks with requests"),
                lower("--context-length", "and with the context"),
                fraction,
            ],
            Cause::LoraBuffers => vec![
                lower("--max-loras-per-batch", "fewer slots"),
                lower("--max-lora-rank", "the rank that the adapters have"),
                fraction,
            ],
            Cause::ModelTooBig | Cause::LoadTimePeak => vec![
                Lever::new("--tp", Move::Raise)
                    .gives("the weights of a rank shrink with the ranks"),
                Lever::new("--quantization", Move::Set).gives("or a quantised checkpoint"),
            ],
            Cause::SharedOrUnifiedMemory if verdict.fraction == Direction::NoEffect => {
                vec![Lever::new("--tp", Move::Raise).gives("or free the device first")]
            }
            Cause::HostMemory => vec![
                lower("--hicache-size", "GB for every rank"),
                lower("--hicache-ratio", "times the pool of the device, for every rank"),
            ],
            Cause::SharedOrUnifiedMemory => {
                [fraction].into_iter().chain(self.chunk_lever()).collect()
            }
            _ => self.chunk_lever().into_iter().chain([fraction]).collect(),
        }
    }

    /// The largest chunk whose request fits; half of the chunk where figures are missing.
    fn chunk_lever(&self) -> Option<Lever> {
        let serving = matches!(self.judged.phase, Phase::Prefill | Phase::Unknown | Phase::Encoder);
        if !serving {
            return None;
        }
        let lever = Lever::new(CHUNK, Move::Lower);
        let Some(chunk) = self.settings.chunk else {
            return Some(lever.gives("activations shrink with the tokens of a pass"));
        };
        let accounts = &self.judged.accounts;
        let fits = accounts
            .requested
            .zip(accounts.free)
            .and_then(|(asked, free)| factor::chunk_that_fits(asked, free, chunk));
        let value = fits.unwrap_or(chunk / 2).max(512);
        let asked = accounts.requested.and_then(|a| factor::bytes_per_token(a, chunk)).map(|per| {
            let bytes = per.saturating_mul(i64::try_from(value).unwrap_or(i64::MAX));
            format!("the same buffer takes {}", size(Amount::exact(bytes)))
        });
        Some(lever.to(value).gives(asked.unwrap_or("activations shrink with the chunk".to_owned())))
    }

    /// Graphs, workspaces, communication: what makes each smaller.
    fn outside_levers(&self, fraction: Lever) -> Vec<Lever> {
        let mut levers = vec![fraction];
        let deepep = self.settings.all_to_all.as_deref() == Some("deepep");
        match self.judged.part {
            Some(Part::Communication) if !deepep => levers.push(
                Lever::new("SGLANG_SYMM_MEM_PREALLOC_GB_SIZE", Move::Lower)
                    .to(1)
                    .gives("the pool of symmetric memory is 4 GiB unless set"),
            ),
            Some(Part::AttentionWorkspace) => levers.push(
                Lever::new("--cuda-graph-max-bs", Move::Lower)
                    .gives("workspaces of graphs shrink with the largest batch"),
            ),
            _ => {}
        }
        if deepep {
            levers.push(
                Lever::new("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", Move::Lower).gives(
                    "DeepEP's buffers shrink with it; they stand outside PyTorch and the pool",
                ),
            );
        }
        if self.judged.phase == Phase::Capture && self.judged.part != Some(Part::AttentionWorkspace)
        {
            levers.push(
                Lever::new("--cuda-graph-max-bs", Move::Lower).gives("smaller and fewer graphs"),
            );
        }
        if self.judged.part == Some(Part::Indexer) {
            levers.push(
                Lever::new("--context-length", Move::Lower)
                    .gives("the indexer's buffer grows with it"),
            );
        }
        levers
    }

    /// Flags that will not.
    pub(super) fn no_help(&self, mut finding: Finding, verdict: &Verdict) -> Finding {
        let accounts = &self.judged.accounts;
        match verdict.fraction {
            Direction::Lower => {
                finding = finding.useless(
                    FRACTION,
                    Some(Move::Raise),
                    "it gives more to the pool and less to what failed",
                );
            }
            Direction::NoEffect => {
                finding = finding.useless(FRACTION, None, "the pool is not what was in the way");
            }
            _ => {}
        }
        let idle = accounts.idle.zip(accounts.requested);
        if let Some((idle, asked)) = idle
            && idle.bytes < asked.bytes
            && !accounts.enough_in_pieces()
        {
            finding = finding.useless(
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                None,
                format!("only {} are idle in pieces, {} were asked", size(idle), size(asked)),
            );
        }
        finding
    }
}
