//! What a scheduler is to the engine: requests go in, batches come out, results come back.
//!
//! A scheduler knows tokens and slots, and nothing of bytes, backends or clocks. [`crate::engine`] joins
//! it with memory and time.

mod output_ids;
pub mod sglang;
pub mod vllm;

pub use output_ids::OutputIds;

use crate::kv::Runs;

/// A request, numbered by the client in the order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// Whether the end-of-sequence token ends a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EosRule {
    /// It does.
    #[default]
    Ends,
    /// It does not (`ignore_eos`): the request runs to its limit.
    Ignored,
}

/// Results that a request with `outputs` tokens takes before one ends it, by its limit of new tokens or by the
/// model's end of its answer.
fn results_before_end(outputs: u64, limit: u64, output_len: u64, eos: EosRule) -> u64 {
    // An end that was passed over does not come again.
    let ends = eos == EosRule::Ends && output_len > outputs;
    let last = if ends { limit.min(output_len) } else { limit };
    last.saturating_sub(outputs + 1)
}

/// A request as it reaches the scheduler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewRequest {
    /// Who.
    pub id: RequestId,
    /// Ids of the prompt's tokens.
    pub prompt: Runs,
    /// Limit that the client asks for (`max_new_tokens`); `None`: as much as the engine allows.
    pub max_new_tokens: Option<u64>,
    /// Tokens after which the model ends its answer by itself. Only results depend on it: no decision may
    /// read it before that token is made.
    pub output_len: u64,
    /// Whether that end counts.
    pub eos: EosRule,
    /// First prompt token whose logprob is asked for; `None`: none is.
    pub logprob_start: Option<u64>,
    /// Priority, where the engine schedules by it.
    pub priority: Option<i64>,
    /// Namespace of the prefix cache (LoRA, cache salt); 0 for the common one.
    pub namespace: u64,
}

impl NewRequest {
    /// A plain request.
    #[must_use]
    pub const fn plain(id: RequestId, prompt: Runs, output_len: u64) -> Self {
        Self {
            id,
            prompt,
            max_new_tokens: Some(output_len),
            output_len,
            eos: EosRule::Ends,
            logprob_start: None,
            priority: None,
            namespace: 0,
        }
    }
}

/// What kind of forward pass.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Mode {
    /// Prompt tokens only.
    Prefill,
    /// One token a request.
    Decode,
    /// Prompt tokens, and one token for each running request.
    Mixed,
}

impl Mode {
    /// Name in the decision log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Mixed => "mixed",
        }
    }
}

/// One request's part of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// Who.
    pub request: RequestId,
    /// New tokens that are computed.
    pub extend: u64,
    /// Tokens before them whose KV exists.
    pub prefix: u64,
    /// Whether more of the prompt follows in a later batch, so that no token is sampled.
    pub more_follows: bool,
}

/// One forward pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// Kind.
    pub mode: Mode,
    /// In batch order.
    pub rows: Vec<Row>,
}

impl Batch {
    /// New tokens of all rows.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.rows.iter().map(|row| row.extend).sum()
    }

    /// Tokens of all rows whose KV exists before the pass.
    #[must_use]
    pub fn prefix_tokens(&self) -> u64 {
        self.rows.iter().map(|row| row.prefix).sum()
    }
}

/// What one turn of the loop decided.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Turn {
    /// A pass to execute.
    Run(Batch),
    /// Nothing to launch. Results of the batch before may be outstanding: [`Scheduler::complete`] processes
    /// them. With none outstanding and requests waiting, this is a hang unless another one arrives.
    Idle,
}

/// Why a request is not taken now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Deferral {
    /// Too few token slots, counting what the running requests may still take.
    NoToken,
    /// The budget of this prefill batch is spent.
    Budget,
    /// As many requests run as may run.
    RunningFull,
}

impl Deferral {
    /// Name in the decision log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoToken => "no_token",
            Self::Budget => "budget",
            Self::RunningFull => "running_full",
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Finish {
    /// The model ended it.
    Stop,
    /// Its limit of new tokens.
    Length,
    /// The engine or the client gave it up.
    Abort,
}

impl Finish {
    /// Name in the decision log; the engines' own `finish_reason`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
        }
    }
}

/// One decision of the scheduler, in the order of deciding.
#[derive(Clone, PartialEq, Debug)]
pub enum Decision {
    /// A request joins a prefill batch.
    Admitted {
        /// Who.
        request: RequestId,
        /// Tokens found in the prefix cache.
        prefix: u64,
        /// Tokens to compute in this batch.
        extend: u64,
        /// Whether its prompt is cut and goes on in the next batch.
        chunked: bool,
    },
    /// The first request that could not join.
    Deferred {
        /// Who.
        request: RequestId,
        /// Why.
        reason: Deferral,
        /// Slots it needs, its reserve for output included.
        needed: u64,
        /// Slots that the budget still has; negative when promises exceed the pool.
        available: i64,
    },
    /// Slots taken back from the prefix cache.
    Evicted {
        /// Slots asked for.
        asked: u64,
        /// Slots freed; nodes are freed whole.
        freed: u64,
        /// The same of the window pool of a hybrid model.
        window: Option<WindowEvicted>,
    },
    /// A node of the prefix cache is copied to the host tier.
    BackedUp {
        /// Tokens of the node.
        tokens: u64,
        /// Host slots that its copy takes: as many, or 0 where the host tier had no room for it.
        stored: u64,
    },
    /// The part of a prefix that only the host tier holds gets slots again, for a request that is about to
    /// be admitted.
    LoadedBack {
        /// For whom.
        request: RequestId,
        /// Tokens of that part.
        found: u64,
        /// Tokens that are loaded: as many, or 0 where they are computed again.
        loaded: u64,
    },
    /// Copies given up in the host tier.
    EvictedHost {
        /// Host slots asked for.
        asked: u64,
        /// Host slots freed; nodes are freed whole.
        freed: u64,
    },
    /// A running request gives its slots back and waits again.
    Retracted {
        /// Who.
        request: RequestId,
        /// Output tokens it keeps.
        outputs: u64,
        /// Slots it gives back: computed work that is lost.
        slots: u64,
    },
    /// A running request gives way to one of better priority, and waits again.
    Preempted {
        /// Who.
        request: RequestId,
        /// For whom.
        by: RequestId,
        /// Output tokens it keeps.
        outputs: u64,
        /// Slots it gives back.
        slots: u64,
    },
    /// The new-token ratio after a retraction.
    Ratio {
        /// As the engine computes it.
        new_token_ratio: f64,
    },
    /// A request is over.
    Finished {
        /// Who.
        request: RequestId,
        /// Output tokens.
        outputs: u64,
        /// How.
        finish: Finish,
    },
    /// A request is turned away before it waits.
    Refused {
        /// Who.
        request: RequestId,
        /// Stable code.
        code: &'static str,
    },
    /// Free pages of the pool are given back to the machine, because others need its memory.
    Lent {
        /// Their numbers.
        pages: Runs,
        /// Pages that are lent now.
        lent: u64,
        /// Pages that were asked for in all; more than are lent where running requests hold the rest.
        asked: u64,
    },
    /// Lent pages are free pages of the pool again.
    TakenBack {
        /// Their numbers.
        pages: Runs,
        /// Pages that are still lent.
        lent: u64,
    },
    /// Slots given to a request, whole pages where a page holds more than one; with
    /// [`LogDetail::Slots`] alone.
    SlotsTaken {
        /// Who.
        request: RequestId,
        /// The slots.
        slots: Runs,
    },
    /// Slots that went back to the free list, whoever had them; with [`LogDetail::Slots`] alone.
    SlotsFreed {
        /// The slots.
        slots: Runs,
    },
}

impl Decision {
    /// Whether it only tells which slots changed hands, and decides nothing itself.
    #[must_use]
    pub const fn is_of_slots(&self) -> bool {
        matches!(self, Self::SlotsTaken { .. } | Self::SlotsFreed { .. })
    }
}

/// A token that a real model made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Made {
    /// For whom.
    pub request: RequestId,
    /// Its id.
    pub token: u32,
    /// Whether the answer is over with it: an end of sequence, or a stop.
    pub ends: bool,
}

/// How much is told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum LogDetail {
    /// Decisions.
    #[default]
    Decisions,
    /// Every token slot that changes hands, too.
    Slots,
}

/// The scheduler's own end: an error that stops its process.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fatal {
    /// Stable code, for example `decode_out_of_slots`.
    pub code: &'static str,
    /// The engine's own words, or ours where it has none.
    pub message: String,
}

/// Slots of the window pool that an eviction was for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowEvicted {
    /// Slots asked for.
    pub asked: u64,
    /// Slots freed.
    pub freed: u64,
}

/// Use of a second pool at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolUse {
    /// Token slots of the pool.
    pub pool: u64,
    /// Free slots.
    pub available: u64,
    /// Slots of the prefix cache that nobody uses.
    pub evictable: u64,
    /// Slots of the prefix cache that running requests use.
    pub protected: u64,
}

impl PoolUse {
    /// Slots in use.
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.pool.saturating_sub(self.available).saturating_sub(self.evictable)
    }

    /// The same without slots that the cache counts and the pool does not have.
    #[must_use]
    pub fn within_pool(self) -> Self {
        let evictable = self.evictable.min(self.pool.saturating_sub(self.available));
        Self { evictable, ..self }
    }
}

/// Use of the pool and of the queues at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Token slots of the pool.
    pub pool: u64,
    /// Free slots.
    pub available: u64,
    /// Slots of the prefix cache that nobody uses.
    pub evictable: u64,
    /// The window pool of a hybrid model; the figures above are the full pool's.
    pub window: Option<PoolUse>,
    /// Requests that decode.
    pub running: u64,
    /// Requests that wait.
    pub waiting: u64,
}

impl Usage {
    /// Slots in use, as the engine's log counts them (`#token`).
    #[must_use]
    pub const fn used(&self) -> u64 {
        self.pool.saturating_sub(self.available).saturating_sub(self.evictable)
    }
}

/// A scheduler, driven one turn at a time.
///
/// One turn is: [`Self::submit`] what has arrived, [`Self::turn`], execute its batch, [`Self::complete`].
/// Decisions are appended to `log` in their order.
pub trait Scheduler {
    /// Takes a request in; it may be refused or shortened here.
    fn submit(&mut self, request: NewRequest, log: &mut Vec<Decision>);

    /// Gives a request up (the client left).
    fn abort(&mut self, request: RequestId, log: &mut Vec<Decision>);

    /// Decides the next batch and takes its slots.
    ///
    /// # Errors
    ///
    /// [`Fatal`] where the engine's scheduler dies.
    fn turn(&mut self, log: &mut Vec<Decision>) -> Result<Turn, Fatal>;

    /// Passes whose results the next [`Self::complete`] waits for: the oldest that were not processed yet.
    fn results_due(&self) -> usize;

    /// Processes results after the batch of this turn was launched: those of this batch in the normal
    /// loop, those of the batch before in the overlap loop. Called once a turn, also after
    /// [`Turn::Idle`].
    ///
    /// # Errors
    ///
    /// [`Fatal`] where the engine's scheduler dies.
    fn complete(&mut self, log: &mut Vec<Decision>) -> Result<(), Fatal>;

    /// How many turns from here on would launch the decode batch of the turn before once more, bring each
    /// of its requests one token, and decide nothing, as long as nothing arrives or leaves. It may say
    /// fewer than there are; 0: the next turn has to be taken.
    fn quiet_turns(&self) -> u64 {
        0
    }

    /// Takes `turns` quiet turns with their results in one go: as many calls of [`Self::turn`] and
    /// [`Self::complete`], at most as many as [`Self::quiet_turns`] says.
    fn skip(&mut self, turns: u64) {
        debug_assert_eq!(turns, 0, "nothing is quiet here");
    }

    /// Requests that run and stand aside in this turn, for its prefill batch; 0 for a batch that decodes.
    fn beside(&self, batch: &Batch) -> u64;

    /// Whether no request waits, runs or has a result outstanding.
    fn is_done(&self) -> bool;

    /// Use of the pool.
    fn usage(&self) -> Usage;

    /// Says how much is told from here on. Called before the first request; a scheduler that is asked for
    /// decisions alone need not know slots by number.
    fn set_detail(&mut self, detail: LogDetail);

    /// Slots that the prefix cache owns, ascending. It costs by run of the cache.
    fn cached_slots(&self) -> Runs;
}
