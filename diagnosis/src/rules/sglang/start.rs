//! The figures of a start, rank by rank: figures of different ranks are never paired.

use plimsoll_ingest::log::{Amount, Event, Rank, Sglang};

use crate::Case;

/// A figure with its line.
pub(super) type Read<'a> = (&'a Event, Amount);

/// What one rank printed while it started.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Start<'a> {
    /// Which rank.
    pub(super) rank: Rank,
    /// Free before the target's weights.
    pub(super) before: Option<Read<'a>>,
    /// Free after them.
    pub(super) after: Option<Read<'a>>,
    /// What they took, as printed.
    pub(super) usage: Option<Read<'a>>,
    /// What a draft model took, as printed.
    pub(super) draft_usage: Option<Read<'a>>,
    /// Key-value pools in order: tokens and bytes.
    pub(super) pools: Vec<(&'a Event, Option<u64>, Option<Amount>)>,
    /// State of Mamba layers: slots, all states together, intermediate states of speculation.
    pub(super) mamba: Option<Mamba<'a>>,
    /// Free after the pools (the last such line).
    pub(super) pool_end: Option<Read<'a>>,
    /// Free where a capture began.
    pub(super) capture_begin: Option<(&'a Event, Option<Amount>)>,
    /// Free after the last capture.
    pub(super) capture_end: Option<Read<'a>>,
    /// What captures took; below zero where memory came back meanwhile.
    pub(super) graphs: Vec<Read<'a>>,
    /// The scheduler's summary: tokens of the pool, free memory.
    pub(super) summary: Option<(&'a Event, u64, Option<Amount>)>,
}

/// `Mamba Cache is allocated.`
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Mamba<'a> {
    /// The line.
    pub(super) event: &'a Event,
    /// Slots.
    pub(super) slots: Option<u64>,
    /// Convolution and SSM states.
    pub(super) states: Amount,
    /// Copies for the draft tokens of a verify pass.
    pub(super) intermediate: Amount,
}

impl<'a> Start<'a> {
    /// Every rank of the last start, in order of appearance.
    pub(super) fn all(case: &'a Case) -> Vec<Self> {
        let mut starts: Vec<Self> = Vec::new();
        for (event, line) in case.sglang() {
            let at = starts.iter().position(|start| start.rank == event.rank);
            let at = at.unwrap_or_else(|| {
                starts.push(Self { rank: event.rank, ..Self::default() });
                starts.len() - 1
            });
            if let Some(start) = starts.get_mut(at) {
                start.take(event, line);
            }
        }
        starts
    }

    /// The rank that decides: the one with least free after the last reading that it printed.
    pub(super) fn tightest(case: &'a Case) -> Option<Self> {
        let starts = Self::all(case).into_iter();
        starts
            .filter(|s| s.last_free().is_some() || s.summary.is_some())
            .min_by_key(|start| start.last_free().map_or(i64::MAX, |(_, amount)| amount.bytes))
    }

    /// The start of this rank; where it printed nothing and only one rank did, that one.
    pub(super) fn of_rank(case: &'a Case, rank: Rank) -> Option<Self> {
        let starts = Self::all(case);
        let own = starts.iter().find(|start| start.rank == rank && start.last_free().is_some());
        match (own, starts.as_slice()) {
            (Some(own), _) => Some(own.clone()),
            (None, [only]) if rank.is_none() || only.rank.is_none() => Some(only.clone()),
            _ => None,
        }
    }

    /// The last reading of free memory.
    pub(super) fn last_free(&self) -> Option<Read<'a>> {
        let summary = self.summary.and_then(|(event, _, free)| Some((event, free?)));
        let begin = self.capture_begin.and_then(|(event, free)| Some((event, free?)));
        let all = [self.before, self.after, self.pool_end, begin, self.capture_end, summary];
        all.into_iter().flatten().max_by_key(|(event, _)| (event.file, event.line))
    }

    /// Bytes of every pool line of the target: the first line, and the ones of other kinds after it.
    pub(super) fn pool_bytes(&self) -> Option<Amount> {
        let sizes = self.pools.iter().filter_map(|(.., bytes)| *bytes);
        sizes.reduce(|a, b| a + b)
    }

    /// Free before the weights, or after them with what they took.
    pub(super) fn base(&self) -> Option<Amount> {
        let before = self.before.map(|(_, amount)| amount);
        before.or_else(|| Some(self.after?.1 + self.usage?.1)).filter(|base| base.bytes > 0)
    }

    fn take(&mut self, event: &'a Event, line: &Sglang) {
        match line {
            // After the pools it is a draft that loads.
            Sglang::LoadBegin { .. } if self.pool_end.is_some() || !self.pools.is_empty() => {}
            Sglang::LoadBegin { avail } => {
                self.before = self.before.or(Some((event, *avail)));
            }
            Sglang::LoadEnd { avail, usage, draft, .. } => {
                let second = self.after.is_some() || self.usage.is_some();
                if second || *draft == Some(true) {
                    self.draft_usage = usage.map(|usage| (event, usage)).or(self.draft_usage);
                } else {
                    self.after = avail.map(|avail| (event, avail));
                    self.usage = usage.map(|usage| (event, usage));
                }
            }
            Sglang::KvAllocated { tokens, k, v, .. } => {
                let bytes = match (k, v) {
                    (Some(k), Some(v)) => Some(*k + *v),
                    (one, other) => one.or(*other),
                };
                self.pools.push((event, *tokens, bytes));
            }
            Sglang::MambaAllocated { slots, conv, ssm, intermediate_ssm, intermediate_conv } => {
                let sum = |a: &Option<Amount>, b: &Option<Amount>| {
                    a.unwrap_or_default() + b.unwrap_or_default()
                };
                self.mamba = Some(Mamba {
                    event,
                    slots: *slots,
                    states: sum(conv, ssm),
                    intermediate: sum(intermediate_ssm, intermediate_conv),
                });
            }
            Sglang::PoolEnd { avail } => self.pool_end = Some((event, *avail)),
            Sglang::CaptureBegin { avail, .. } => self.capture_begin = Some((event, *avail)),
            Sglang::CaptureEnd { usage, avail, .. } => {
                self.capture_end = avail.map(|avail| (event, avail)).or(self.capture_end);
                self.graphs.extend(usage.map(|usage| (event, usage)));
            }
            Sglang::Summary { max_total_num_tokens, available_gpu_mem, .. } => {
                self.summary = Some((event, *max_total_num_tokens, *available_gpu_mem));
            }
            _ => {}
        }
    }
}
