//! What the ballast found out about the cards; nothing of it decides anything.

use super::CudaBackend;
use plimsoll_core::units::Bytes;

/// Counters of a run.
#[derive(Clone, Copy, Default)]
pub(super) struct Counters {
    pub(super) graphs: u64,
    pub(super) graph_cost: Bytes,
    pub(super) refusals_confirmed: u64,
    pub(super) refusals_disputed: u64,
    pub(super) filler_given: Bytes,
    pub(super) moved: Bytes,
    pub(super) copied: Bytes,
}

/// One card as it was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CardReport {
    /// CUDA ordinal.
    pub device: u32,
    /// Total that programs read.
    pub total: Bytes,
    /// Total that `nvidia-smi` prints; `None` without NVML.
    pub tool_total: Option<Bytes>,
    /// What this process's context took, two staging buffers included. Without NVML it includes
    /// what other programs held at that moment.
    pub context: Bytes,
    /// What other programs held when the card was opened; `None` without NVML.
    pub foreign: Option<Bytes>,
    /// Smallest piece of physical memory.
    pub page: Bytes,
    /// Piece of physical memory that the driver recommends.
    pub page_recommended: Bytes,
    /// What is held now so that the card has no more than its ranks' shares.
    pub filler: Bytes,
}

/// What a run under ballast measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BallastReport {
    /// The cards, in order of their first rank.
    pub cards: Vec<CardReport>,
    /// Graphs captured.
    pub graphs: u64,
    /// What the driver took for them, before they were topped up to the plan.
    pub graph_cost: Bytes,
    /// Requests that the declaration refused, and the driver too when it was asked.
    pub refusals_confirmed: u64,
    /// Requests that the declaration refused and the driver would have granted: the card agrees
    /// with the declaration to whole pages only.
    pub refusals_disputed: u64,
    /// What the filler gave back because the driver took more than was declared.
    pub filler_given: Bytes,
    /// Host pools that have no memory behind them now, for the pinned limit.
    pub host_accounted_only: Bytes,
    /// KV that was to be moved between device and host.
    pub moved: Bytes,
    /// The part of it that was really copied.
    pub copied: Bytes,
}

impl CudaBackend {
    /// What was measured until now.
    #[must_use]
    pub fn report(&self) -> BallastReport {
        let card = |state: &crate::open::CardState| {
            let facts = state.card.facts();
            CardReport {
                device: state.device,
                total: facts.total,
                tool_total: facts.tool_total,
                context: facts.context,
                foreign: facts.foreign,
                page: facts.page,
                page_recommended: facts.page_recommended,
                filler: state.filler.size(),
            }
        };
        let Counters {
            graphs,
            graph_cost,
            refusals_confirmed,
            refusals_disputed,
            filler_given,
            moved,
            copied,
        } = self.counters;
        BallastReport {
            cards: self.cards.iter().map(card).collect(),
            graphs,
            graph_cost,
            refusals_confirmed,
            refusals_disputed,
            filler_given,
            host_accounted_only: self.host.accounted_only(),
            moved,
            copied,
        }
    }
}
