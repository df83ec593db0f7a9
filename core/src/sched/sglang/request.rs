//! Requests inside the scheduler.

use super::{config::signed, swa::WindowState};
use crate::{
    kv::{HostHit, NodeId, Run, Runs},
    sched::{EosRule, Finish, Made, OutputIds, RequestId},
};

/// Estimates count at most this many new tokens. Source: SGLang `CLIP_MAX_NEW_TOKENS`.
pub(super) const CLIP: i64 = 4096;

/// A request's place in the [`Slab`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Idx(usize);

/// Whether the prompt is the client's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Input {
    /// It is.
    Given,
    /// It was too long: one token stands for it.
    Replaced,
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) id: RequestId,
    pub(super) input: Input,
    /// Prompt, and outputs as far as they are written (see [`Self::write_outputs`]).
    pub(super) ids: Runs,
    pub(super) prompt_len: u64,
    /// Outputs that the scheduler knows of.
    pub(super) outputs: u64,
    /// Limit of new tokens (`max_new_tokens`, capped); negative for prompts that are too long in 0.5.8.
    pub(super) limit: i64,
    pub(super) output_len: u64,
    pub(super) eos: EosRule,
    pub(super) logprob_start: Option<u64>,
    pub(super) priority: Option<i64>,
    pub(super) namespace: u64,
    pub(super) finished: Option<Finish>,
    /// To be finished as aborted with its next result.
    pub(super) aborting: bool,
    /// Slots of its tokens, in order; those of the cached prefix too.
    pub(super) slots: Runs,
    /// Tokens of `ids` that its last prefill covers (`fill_ids`).
    pub(super) fill: u64,
    /// Tokens to compute in this prefill.
    pub(super) extend: u64,
    /// Tokens before them.
    pub(super) prefix: u64,
    /// Node of the prefix cache that it holds, or found.
    pub(super) node: NodeId,
    /// What of its prefix follows in the host tier; looked up before each admission.
    pub(super) host: HostHit,
    /// Leading tokens that it has inserted into the prefix cache (`cache_inserted_len`).
    pub(super) inserted: u64,
    /// Leading tokens that the prefix cache owns (`cache_protected_len`).
    pub(super) protected: u64,
    /// What it remembers of its window slots, in a hybrid.
    pub(super) window: WindowState,
    /// Chunks in flight whose sampled token counts for nothing (`is_chunked`).
    pub(super) chunks: u32,
    /// Retracted and not yet back (`is_retracted`).
    pub(super) retracted: bool,
    pub(super) row: Option<u64>,
    /// When it was queued, counted in queued requests.
    pub(super) entry: u64,
    /// Passes whose result is outstanding.
    pub(super) in_flight: u32,
    /// What a real model made for it in the pass whose results are due.
    pub(super) made: Option<Made>,
}

impl Request {
    /// Tokens that it has, prompt and known outputs.
    pub(super) const fn len(&self) -> u64 {
        self.prompt_len + self.outputs
    }

    /// `limit` clipped for estimates.
    pub(super) fn reserve(&self) -> i64 {
        self.limit.min(CLIP)
    }

    /// New tokens that it may still make.
    pub(super) fn left(&self) -> i64 {
        self.limit - signed(self.outputs)
    }

    /// Output `k`.
    fn output(&self, k: u64, ids: OutputIds) -> u64 {
        match self.input {
            Input::Given => ids.token(self.id, k, self.output_len),
            // The same one-token prompt leads to the same token.
            Input::Replaced => ids.eos.wrapping_add(1),
        }
    }

    /// Writes the outputs that `ids` lacks. Nobody reads them while a request decodes: it is done when the
    /// prefix cache is to keep them, or they are to be computed again.
    pub(super) fn write_outputs(&mut self, ids: OutputIds) {
        let mut k = self.ids.len().saturating_sub(self.prompt_len);
        // The end of sequence is a token of its own, and may be ignored.
        let eos = self.output_len.saturating_sub(1);
        while k < self.outputs {
            let len = match self.input {
                Input::Given if k < eos => eos.min(self.outputs) - k,
                Input::Given if k > eos => self.outputs - k,
                Input::Given | Input::Replaced => 1,
            };
            self.ids.push(Run { first: self.output(k, ids), len });
            k += len;
        }
    }

    /// Puts it back to before its first prefill; outputs are kept.
    ///
    /// Source: SGLang `Req.reset_for_retract`.
    pub(super) fn reset(&mut self) {
        self.slots = Runs::new();
        self.prefix = 0;
        self.extend = 0;
        self.node = NodeId::ROOT;
        self.inserted = 0;
        self.protected = 0;
        self.window.mark = None;
        self.retracted = true;
        self.chunks = 0;
        self.row = None;
    }
}

/// All requests that something still points to.
#[derive(Clone, Default, Debug)]
pub(super) struct Slab {
    entries: Vec<Request>,
    unused: Vec<usize>,
    finished: Vec<Idx>,
}

impl std::ops::Index<Idx> for Slab {
    type Output = Request;

    fn index(&self, at: Idx) -> &Request {
        &self.entries[at.0]
    }
}

impl std::ops::IndexMut<Idx> for Slab {
    fn index_mut(&mut self, at: Idx) -> &mut Request {
        &mut self.entries[at.0]
    }
}

impl Slab {
    pub(super) fn add(&mut self, request: Request) -> Idx {
        match self.unused.pop() {
            Some(at) => {
                self.entries[at] = request;
                Idx(at)
            }
            None => {
                self.entries.push(request);
                Idx(self.entries.len() - 1)
            }
        }
    }

    /// Notes that a request is over; it stays readable until [`Self::sweep`] finds that no list has it.
    pub(super) fn bury(&mut self, at: Idx) {
        let request = &mut self[at];
        request.slots = Runs::new();
        request.ids = Runs::new();
        self.finished.push(at);
    }

    /// Whether enough are over for a sweep to pay.
    pub(super) const fn wants_sweep(&self) -> bool {
        self.finished.len() >= 256
    }

    /// Makes room of the finished requests that are not in `kept`, which must be sorted.
    pub(super) fn sweep(&mut self, kept: &[Idx]) {
        for at in std::mem::take(&mut self.finished) {
            if kept.binary_search(&at).is_ok() {
                self.finished.push(at);
            } else {
                self.unused.push(at.0);
            }
        }
    }
}
