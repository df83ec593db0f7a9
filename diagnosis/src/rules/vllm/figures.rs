//! The figures of one start, of the rank that decides: the one with the smallest pool.

use plimsoll_ingest::log::{Amount, Event, Rank, Vllm};

use super::settings::Settings;
use crate::Case;

/// A figure and its line.
pub(super) type Seen<'a> = (Amount, &'a Event);

/// What the lines say of one rank.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Figures<'a> {
    /// Free before loading.
    pub(super) free_at_start: Option<Seen<'a>>,
    /// Weights, and what loading left behind.
    pub(super) weights: Option<Seen<'a>>,
    /// Weights with what grew outside torch, where only both together are printed.
    pub(super) consumed: Option<Seen<'a>>,
    /// Grown outside torch.
    pub(super) non_torch: Option<Seen<'a>>,
    /// Peak of the profile run, without weights.
    pub(super) peak: Option<Seen<'a>>,
    /// Graphs, estimated before sizing.
    pub(super) graphs_estimated: Option<Seen<'a>>,
    /// Graphs as measured.
    pub(super) graphs: Option<Seen<'a>>,
    /// The pool; below zero when nothing is left for it.
    pub(super) kv: Option<Seen<'a>>,
    /// Tokens of the pool.
    pub(super) tokens: Option<(u64, &'a Event)>,
    /// The oldest form: what was in use before the profile run beyond its peak, which is not this server's.
    pub(super) foreign: Option<Amount>,
    /// Requests of `max_model_len` that fit.
    pub(super) times: Option<f64>,
}

impl<'a> Figures<'a> {
    /// Of the rank with the smallest pool; ranks are never mixed, but a line without a tag counts for all.
    pub(super) fn of(case: &'a Case) -> Self {
        let deciding = smallest(case);
        let mut figures = Self::default();
        for (event, line) in case.vllm() {
            if event.rank == deciding || event.rank.is_none() || deciding.is_none() {
                figures.take(event, line);
            }
        }
        figures
    }

    fn take(&mut self, event: &'a Event, line: &Vllm) {
        let seen = |amount: Option<Amount>| amount.map(|amount| (amount, event));
        match line {
            Vllm::FreeAtStart { free, .. } => self.free_at_start = Some((*free, event)),
            Vllm::LoadEnd { weights } => self.weights = Some((*weights, event)),
            Vllm::AvailableKv { amount } => self.kv = least(self.kv, (*amount, event)),
            Vllm::Profile {
                weights, non_torch, activation_peak, kv, peak_torch, initial, ..
            } => {
                self.weights = seen(*weights).or(self.weights);
                self.non_torch = seen(*non_torch).or(self.non_torch);
                // The oldest form prints weights and peak together; what was in use before is the weights.
                let over = peak_torch.zip(*initial).map(|(peak, before)| peak - before);
                self.foreign = over.filter(|o| o.most() < 0).map(|o| Amount::default() - o);
                let over = over.filter(|over| over.bytes > 0);
                self.peak = seen(activation_peak.or(over)).or(self.peak);
                self.kv = seen(*kv).or(self.kv);
            }
            Vllm::Usage { consumed, activation_peak, non_torch, graphs, in_use, free, .. } => {
                match non_torch {
                    Some(_) => self.weights = seen(*consumed).or(self.weights),
                    None => self.consumed = seen(*consumed),
                }
                self.non_torch = seen(*non_torch).or(self.non_torch);
                self.peak = seen(*activation_peak);
                self.graphs = seen(*graphs).or(self.graphs);
                self.kv = seen(*in_use).or(self.kv);
                self.free_at_start = seen(*free).or(self.free_at_start);
            }
            Vllm::GraphEstimate { amount } => self.graphs_estimated = Some((*amount, event)),
            // Below zero in some releases: unknown then.
            Vllm::CaptureEnd { took: Some(took) } if took.bytes >= 0 => {
                self.graphs = Some((*took, event));
            }
            Vllm::GraphPool { actual, .. } => self.graphs = Some((*actual, event)),
            Vllm::KvTokens { tokens, per_request } => {
                self.tokens = fewest(self.tokens, (*tokens, event));
                self.times = per_request.map(|(_, times)| times).or(self.times);
            }
            Vllm::Blocks { gpu, .. } => {
                self.tokens = fewest(self.tokens, (gpu.saturating_mul(BLOCK), event));
            }
            Vllm::Concurrency { times, .. } => self.times = Some(*times),
            Vllm::OneRequestTooLong { available: Some(available), .. } => {
                self.kv = Some((*available, event));
            }
            _ => {}
        }
    }

    /// Bytes of the device that weights and growth outside torch hold, as far as printed.
    pub(super) fn held(&self) -> Option<Amount> {
        let weights = self.weights.map(|(weights, _)| weights);
        self.consumed.map(|(both, _)| both).or_else(|| {
            Some(weights? + self.non_torch.map_or(Amount::default(), |(outside, _)| outside))
        })
    }

    /// What the profile run took beside the weights: printed, or the budget less weights and pool.
    pub(super) fn profiled(&self, settings: &Settings) -> Option<Amount> {
        self.peak.map(|(peak, _)| peak).or_else(|| {
            Some(budget(settings)? - self.held()? - self.kv?.0).filter(|rest| rest.bytes > 0)
        })
    }

    /// Bytes of a token, where pool and tokens are printed.
    pub(super) fn cell(&self) -> Option<f64> {
        let ((kv, _), (tokens, _)) = (self.kv?, self.tokens?);
        (tokens > 0 && kv.bytes > 0).then(|| kv.bytes as f64 / tokens as f64)
    }
}

/// Tokens of a block of the first engine, unless the command says otherwise.
const BLOCK: u64 = 16;

/// What the fraction asks for.
pub(super) fn budget(settings: &Settings) -> Option<Amount> {
    let (total, utilization) = (settings.total?, settings.utilization?);
    let part = |bytes: i64| (bytes as f64 * utilization) as i64;
    Some(Amount { bytes: part(total.bytes), half: part(total.half).max(1) })
}

/// The rank of the smallest pool that is printed; no tag where no rank prints one.
fn smallest(case: &Case) -> Rank {
    let pools = case.vllm().filter_map(|(event, line)| match line {
        Vllm::AvailableKv { amount } => Some((amount.bytes, event.rank)),
        _ => None,
    });
    pools.min_by_key(|(bytes, _)| *bytes).map_or(Rank::NONE, |(_, rank)| rank)
}

fn least<'a>(old: Option<Seen<'a>>, new: Seen<'a>) -> Option<Seen<'a>> {
    Some(old.filter(|(old, _)| old.bytes <= new.0.bytes).unwrap_or(new))
}

fn fewest<'a>(old: Option<(u64, &'a Event)>, new: (u64, &'a Event)) -> Option<(u64, &'a Event)> {
    Some(old.filter(|(old, _)| *old <= new.0).unwrap_or(new))
}
