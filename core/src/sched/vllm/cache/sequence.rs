//! A request as the cache sees it.

use crate::kv::{
    Run,
    blocks::{BlockTable, Chain, Prefixes},
};

/// Tokens of a request and the blocks that hold them.
#[derive(Clone, Debug)]
pub(in super::super) struct Sequence {
    /// Tokens of the prompt.
    pub(in super::super) prompt: u64,
    /// Prompt and known outputs.
    pub(in super::super) known: u64,
    /// Tokens that were scheduled, or found (`num_computed_tokens`).
    pub(in super::super) computed: u64,
    /// Those of them whose result is outstanding.
    pub(in super::super) in_flight: u64,
    /// Tokens that another group had further on when the cache was last asked; 0 for none.
    pub(in super::super) boundary: u64,
    pub(super) chain: Option<Chain>,
    /// One a group.
    pub(in super::super) tables: Vec<BlockTable>,
}

impl Sequence {
    /// Adds an output.
    pub(in super::super) fn push(&mut self, names: &mut Prefixes, token: u64) {
        self.known += 1;
        if let Some(chain) = &mut self.chain {
            chain.push(names, Run { first: token, len: 1 });
        }
    }

    /// Tokens of whole units, which have names.
    pub(super) fn named(&self) -> u64 {
        self.chain.as_ref().map_or(0, Chain::tokens)
    }

    /// Tokens to be computed before it decodes; what it made before a preemption counts.
    pub(in super::super) const fn prefill_end(&self) -> u64 {
        let all = self.known.saturating_sub(1);
        if all > self.prompt { all } else { self.prompt }
    }
}
