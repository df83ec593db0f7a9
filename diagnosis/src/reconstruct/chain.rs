//! SGLang's start as a chain: readings of free memory, and between them what was taken.
//!
//! Source of the order: SGLang 0.4.6 to 0.5.23, `ModelRunner.initialize`, `Scheduler.__init__`. A draft
//! model comes after the target's graphs up to 0.5.13 and before the pools from 0.5.14; the lines
//! themselves say which.

use plimsoll_core::memory::ledger::Account;
use plimsoll_ingest::log::{Amount, Event, Sglang};

use super::{
    interval::least,
    ledger::{Place, Stage},
};

/// One line of a start that says memory.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Step {
    /// Where.
    pub(crate) place: Place,
    /// How far the start was.
    pub(crate) stage: Stage,
    /// Who took memory; `None` for a reading alone.
    pub(crate) account: Option<Account>,
    /// What of the account.
    pub(crate) detail: Option<&'static str>,
    /// How much it took, as printed.
    pub(crate) printed: Option<Amount>,
    /// Free after it, as printed.
    pub(crate) free: Option<Amount>,
}

/// A pool of KV slots.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PoolLine {
    /// Slots, where printed.
    pub(crate) tokens: Option<u64>,
    /// The target's or the draft's.
    pub(crate) account: Account,
}

/// What one rank says of its start. Where several ranks without a tag write into one log, the smallest reading is
/// kept.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Chain {
    /// Lines in order.
    pub(crate) steps: Vec<Step>,
    /// Pools in order.
    pub(crate) pools: Vec<PoolLine>,
    /// Context and communicators.
    pub(crate) context: Option<(Amount, Place)>,
    /// What the scheduler prints at the end of the start.
    pub(crate) summary: Option<Summary>,
}

/// `max_total_num_tokens=…`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Summary {
    pub(crate) tokens: u64,
    pub(crate) chunk: Option<i64>,
    pub(crate) running: Option<u64>,
    pub(crate) context_len: Option<u64>,
}

impl Chain {
    /// Reads the lines of one rank in order.
    pub(crate) fn read<'a>(events: impl Iterator<Item = (&'a Event, &'a Sglang)>) -> Self {
        let mut chain = Self::default();
        for (event, line) in events {
            let place = Place { file: event.file, line: event.line };
            chain.take(place, line);
        }
        chain
    }

    /// Whether a line of the start was there.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.pools.is_empty() && self.summary.is_none()
    }

    fn take(&mut self, place: Place, line: &Sglang) {
        match line {
            Sglang::ContextTaken { usage } => self.context = Some((*usage, place)),
            Sglang::LoadBegin { avail } => self.reading(place, Stage::BeforeLoad, *avail),
            Sglang::LoadEnd { avail, usage, draft, .. } => {
                self.loaded(place, *avail, *usage, *draft);
            }
            Sglang::KvAllocated { tokens, k, v, label, .. } => {
                let bytes = match (k, v) {
                    (Some(k), Some(v)) => Some(*k + *v),
                    (one, other) => one.or(*other),
                };
                self.pool(place, *tokens, bytes, label.as_deref());
            }
            Sglang::MambaAllocated { conv, ssm, intermediate_ssm, intermediate_conv, .. } => {
                let parts = [conv, ssm, intermediate_ssm, intermediate_conv];
                let bytes = parts.into_iter().flatten().fold(Amount::default(), |a, b| a + *b);
                self.step(place, Stage::AfterPools, Account::StatePool, Some(bytes), None);
            }
            Sglang::Lora { bytes: Some(bytes) } => {
                self.step(place, Stage::AfterLoad, Account::Workspaces, Some(*bytes), None);
                self.detail("LoRA");
            }
            Sglang::PoolEnd { avail } => self.pools_done(place, *avail),
            Sglang::CaptureBegin { avail: Some(avail), .. } => {
                self.reading(place, Stage::AfterPools, *avail);
            }
            Sglang::CaptureEnd { what, usage, avail } => {
                let draft = what.contains("draft");
                let account = if draft { Account::DraftGraphs } else { Account::Graphs };
                self.step(place, Stage::AfterGraphs, account, *usage, *avail);
            }
            Sglang::Summary { .. } => self.summed_up(place, line),
            _ => {}
        }
    }

    fn step(
        &mut self,
        place: Place,
        stage: Stage,
        account: Account,
        printed: Option<Amount>,
        free: Option<Amount>,
    ) {
        let stage = self.steps.last().map_or(stage, |last| stage.max(last.stage));
        let (account, detail) = (Some(account), None);
        self.steps.push(Step { place, stage, account, detail, printed, free });
    }

    fn detail(&mut self, detail: &'static str) {
        if let Some(last) = self.steps.last_mut() {
            last.detail = Some(detail);
        }
    }

    /// A reading of free memory. A second one before anything was taken is another rank's.
    fn reading(&mut self, place: Place, stage: Stage, free: Amount) {
        let stage = self.steps.last().map_or(stage, |last| stage.max(last.stage));
        if let Some(last) = self.steps.last_mut()
            && last.account.is_none()
            && last.stage == Stage::BeforeLoad
            && let Some(old) = last.free
        {
            last.free = Some(least(old, free));
            return;
        }
        let (account, detail, printed) = (None, None, None);
        self.steps.push(Step { place, stage, account, detail, printed, free: Some(free) });
    }

    fn has(&self, account: Account) -> bool {
        self.steps.iter().any(|step| step.account == Some(account))
    }

    fn loaded(
        &mut self,
        place: Place,
        avail: Option<Amount>,
        usage: Option<Amount>,
        draft: Option<bool>,
    ) {
        let again = self.has(Account::Weights);
        // A second model without a name: the draft's where pools or graphs stand between.
        let drafts = draft.unwrap_or(again && self.has(Account::KvPool));
        if again && !drafts {
            let old = self.steps.iter_mut().find(|step| step.account == Some(Account::Weights));
            if let Some(old) = old
                && let (Some(a), Some(b)) = (old.free, avail)
            {
                old.free = Some(least(a, b));
            }
            return;
        }
        let account = if drafts { Account::DraftWeights } else { Account::Weights };
        self.step(place, Stage::AfterLoad, account, usage, avail);
    }

    fn pool(
        &mut self,
        place: Place,
        tokens: Option<u64>,
        bytes: Option<Amount>,
        label: Option<&str>,
    ) {
        let ended = self.steps.iter().any(|step| step.account == Some(Account::RequestTable));
        let draft = ended && self.has(Account::DraftWeights);
        if ended && !draft {
            // The pools are closed and there is no draft: another rank's line.
            return;
        }
        let account = if draft { Account::DraftPool } else { Account::KvPool };
        let same = |step: &Step| step.account == Some(account) && step.printed == bytes;
        if self.pools.contains(&PoolLine { tokens, account }) && self.steps.iter().any(same) {
            // The same pool once more: another rank's line without a tag.
            return;
        }
        self.step(place, Stage::AfterPools, account, bytes, None);
        if label.is_some_and(|label| label.eq_ignore_ascii_case("swa")) {
            self.detail("sliding window");
        }
        self.pools.push(PoolLine { tokens, account });
    }

    /// The request table and what else the pools need stand between the pools and this reading.
    fn pools_done(&mut self, place: Place, avail: Amount) {
        let last = self.steps.last();
        let again = last.is_some_and(|step| step.account == Some(Account::RequestTable));
        if again && let Some(step) = self.steps.last_mut() {
            step.free = Some(step.free.map_or(avail, |old| least(old, avail)));
            return;
        }
        if !self.has(Account::KvPool) {
            // No pool line: the pool is what is missing.
            self.step(place, Stage::AfterPools, Account::KvPool, None, None);
            self.detail("with the request table");
        }
        self.step(place, Stage::AfterPools, Account::RequestTable, None, Some(avail));
    }

    fn summed_up(&mut self, place: Place, line: &Sglang) {
        let Sglang::Summary {
            max_total_num_tokens,
            chunked_prefill_size,
            max_running_requests,
            context_len,
            available_gpu_mem,
            ..
        } = line
        else {
            return;
        };
        if let Some(avail) = available_gpu_mem {
            self.step(place, Stage::Ready, Account::Unaccounted, None, Some(*avail));
            self.detail("kept by the allocator, or given back since");
        }
        let summary = Summary {
            tokens: *max_total_num_tokens,
            chunk: *chunked_prefill_size,
            running: *max_running_requests,
            context_len: *context_len,
        };
        // Of several ranks the smallest pool is everyone's.
        if self.summary.is_none_or(|old| summary.tokens <= old.tokens) {
            self.summary = Some(summary);
        }
    }
}
