//! One trace on its way: rows at their times, and rows that wait for others.

use super::{
    connections::{Connections, free},
    draw::{Drawer, Due},
    group_sender::own_tokens,
    import::Loaded,
    stream::Stream,
};
use crate::scenario::{MaxTokens, TraceSource};
use plimsoll_core::{
    engine::serving::Sampling,
    kv::{Run, Runs},
    sched::{NewRequest, OutputIds, RequestId},
    units::Nanos,
};
use plimsoll_ingest::workload::{Row, Trigger};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Token ids of a trace's blocks have this bit: between answers and shared prefixes.
const BLOCK_IDS: u64 = 1 << 62;
/// Distance between the ids of two traces: 2^40 blocks of 2^16 tokens.
const SCOPE_BITS: u32 = 56;
/// Distance between the cache namespaces of two traces.
const NAMESPACE_BITS: u32 = 32;

/// The trace and how far it is.
#[derive(Clone, Debug)]
pub(super) struct TraceSender {
    source: TraceSource,
    loaded: Arc<Loaded>,
    /// Number of this trace among those of the workload.
    scope: u64,
    /// Rows of `loaded.order` that were passed.
    passed: usize,
    sent: u64,
    due: Option<Due>,
    connections: Option<Connections>,
    limits: Option<Drawer>,
    waiting: Waiting,
    histories: Histories,
    /// Rows under way whose end matters.
    under_way: BTreeMap<u64, u32>,
}

impl TraceSender {
    pub(super) fn new(source: &TraceSource, loaded: Arc<Loaded>, scope: u64, seed: u64) -> Self {
        let stream = |purpose| Stream::named(seed, &source.name, purpose);
        let limits = match &source.max_tokens {
            Some(MaxTokens::Lengths(lengths)) => {
                Some(Drawer::new(lengths.clone(), stream("max_tokens")))
            }
            _ => None,
        };
        let rows = loaded.order.len() as u64;
        let mut sender = Self {
            scope,
            passed: 0,
            sent: 0,
            due: source.schedule.map(|schedule| Due::new(schedule, stream("arrivals"), rows)),
            connections: source.concurrency.or(loaded.trace.concurrency).map(Connections::new),
            limits,
            waiting: Waiting::new(&loaded),
            histories: Histories::new(&loaded),
            under_way: BTreeMap::new(),
            source: source.clone(),
            loaded,
        };
        sender.pass_waiting();
        sender
    }

    pub(super) fn total(&self) -> u64 {
        self.loaded.order.len() as u64
    }

    pub(super) const fn sampling(&self) -> Sampling {
        self.source.sampling
    }

    pub(super) fn is_done(&self) -> bool {
        self.sent >= self.total()
    }

    /// Whether it wants to know how its requests end.
    pub(super) fn follows_ends(&self) -> bool {
        self.connections.is_some() || !self.loaded.trace.links.is_empty()
    }

    /// Rows that wait for others do not come in their turn.
    fn pass_waiting(&mut self) {
        let waits = |row: &u32| self.waiting.waits(*row);
        while self.loaded.order.get(self.passed).is_some_and(waits) {
            self.passed += 1;
        }
    }

    fn at(&self, row: u32) -> Nanos {
        self.loaded.times.get(row as usize).copied().unwrap_or_default()
    }

    /// The next row and when it is due, whoever waits for it to be free.
    fn next_due(&self) -> Option<(Nanos, u32)> {
        let in_turn = self.loaded.order.get(self.passed).map(|row| {
            let due = self.due.as_ref().map_or_else(|| self.at(*row), Due::next);
            (due, *row)
        });
        let freed = self.waiting.ready.first().copied();
        in_turn.into_iter().chain(freed).min()
    }

    pub(super) fn next_at(&self) -> Option<Nanos> {
        let (due, _) = self.next_due()?;
        free(self.connections.as_ref()).map(|free| due.max(free))
    }

    /// The next request, under its number, at its time.
    pub(super) fn send(&mut self, number: u64, at: Nanos) -> NewRequest {
        let row = self.next_due().map_or(0, |(_, row)| row);
        if !self.waiting.take(row) {
            self.passed += 1;
            self.pass_waiting();
            if let Some(due) = &mut self.due {
                due.advance();
            }
        }
        self.sent += 1;
        if let Some(connections) = &mut self.connections {
            connections.take();
        }
        if self.follows_ends() {
            self.under_way.insert(number, row);
        }
        let loaded = Arc::clone(&self.loaded);
        self.waiting.happened(row, Trigger::Dispatch, at, &loaded);
        self.request(number, row)
    }

    fn request(&mut self, number: u64, index: u32) -> NewRequest {
        let loaded = Arc::clone(&self.loaded);
        let Some(row) = loaded.trace.rows.get(index as usize) else {
            return NewRequest::plain(RequestId(number), Runs::of(1, 1), 1);
        };
        let prompt = self.prompt(number, index, row);
        self.histories.sent(index, &prompt);
        let output_len = u64::from(row.output);
        let max_new_tokens = match &self.source.max_tokens {
            Some(MaxTokens::Engine) => None,
            Some(MaxTokens::Lengths(_)) => self.limits.as_mut().map(Drawer::next),
            Some(MaxTokens::Output) => Some(output_len),
            None => Some(row.max_tokens.map_or(output_len, |most| u64::from(most.get()))),
        };
        let scoped = |own: u32| ((self.scope + 1) << NAMESPACE_BITS) | u64::from(own);
        NewRequest {
            max_new_tokens,
            eos: self.source.eos,
            logprob_start: self.source.logprob_start,
            priority: loaded.trace.priorities.get(&index).copied().or(self.source.priority),
            namespace: if row.namespace == 0 { 0 } else { scoped(row.namespace) },
            ..NewRequest::plain(RequestId(number), prompt, output_len)
        }
    }

    /// History, then the tokens of its blocks, then those that no block has.
    fn prompt(&mut self, number: u64, index: u32, row: &Row) -> Runs {
        let mut prompt = row.history().map_or_else(Runs::new, |before| self.histories.take(before));
        let blocks = self.loaded.trace.blocks(index as usize);
        let size = self.source.tokens_per_block.unwrap_or(self.loaded.trace.block_size);
        let count: u64 = blocks.iter().map(|run| u64::from(run.len)).sum();
        let whole = self.source.tokens_per_block.filter(|_| count > 0).map(|size| size * count);
        let mut left = whole.unwrap_or_else(|| u64::from(row.input));
        for run in blocks {
            let first = BLOCK_IDS | (self.scope << SCOPE_BITS) | (run.first * size);
            let len = (u64::from(run.len) * size).min(left);
            prompt.push(Run { first, len });
            left -= len;
        }
        prompt.push(own_tokens(number, left));
        prompt
    }

    /// A request is over: its connection is free, what waits for it may go, and its answer is known.
    pub(super) fn ended(&mut self, number: u64, outputs: u64, now: Nanos) {
        if let Some(connections) = &mut self.connections {
            connections.give_back(now);
        }
        let Some(row) = self.under_way.remove(&number) else { return };
        let loaded = Arc::clone(&self.loaded);
        let output_len = loaded.trace.rows.get(row as usize).map_or(0, |row| u64::from(row.output));
        self.histories
            .answered(row, &OutputIds::default().made(RequestId(number), outputs, output_len));
        self.waiting.happened(row, Trigger::Finish, now, &loaded);
    }
}

/// Rows that wait for others.
#[derive(Clone, Debug, Default)]
struct Waiting {
    /// Of each row that waits: for how many, and the latest time that one of them allowed.
    rows: BTreeMap<u32, (u32, Nanos)>,
    /// Places in the list of links, by the row that is waited for.
    by_cause: BTreeMap<u32, Vec<u32>>,
    /// Rows that no longer wait, and when they are due.
    ready: BTreeSet<(Nanos, u32)>,
    /// Rows that waited at the beginning.
    all: BTreeSet<u32>,
}

impl Waiting {
    fn new(loaded: &Loaded) -> Self {
        let mut waiting = Self::default();
        for (place, link) in loaded.trace.links.iter().enumerate() {
            waiting.rows.entry(link.row).or_insert((0, Nanos(0))).0 += 1;
            let place = u32::try_from(place).unwrap_or(u32::MAX);
            waiting.by_cause.entry(link.on).or_default().push(place);
            waiting.all.insert(link.row);
        }
        waiting
    }

    fn waits(&self, row: u32) -> bool {
        self.all.contains(&row)
    }

    /// Takes the first row that is ready, if it is this one.
    fn take(&mut self, row: u32) -> bool {
        match self.ready.first() {
            Some((_, first)) if *first == row => self.ready.pop_first().is_some(),
            _ => false,
        }
    }

    /// Something happened to a row: who waited for it waits for less.
    fn happened(&mut self, cause: u32, trigger: Trigger, at: Nanos, loaded: &Loaded) {
        for place in self.by_cause.get(&cause).into_iter().flatten() {
            let Some(link) = loaded.trace.links.get(*place as usize) else { continue };
            if link.trigger != trigger {
                continue;
            }
            let Some((left, allowed)) = self.rows.get_mut(&link.row) else { continue };
            *left -= 1;
            *allowed = (*allowed).max(Nanos(at.0.saturating_add(loaded.scaled(link.delay).0)));
            if *left == 0 {
                let own = loaded.times.get(link.row as usize).copied().unwrap_or_default();
                self.ready.insert((own.max(*allowed), link.row));
                self.rows.remove(&link.row);
            }
        }
    }
}

/// Prompts and answers that later rows begin with; each is kept until the last of them is sent.
#[derive(Clone, Debug, Default)]
struct Histories {
    /// Rows that are still to come, by the row that they go on from.
    to_come: BTreeMap<u32, u32>,
    kept: BTreeMap<u32, Runs>,
}

impl Histories {
    fn new(loaded: &Loaded) -> Self {
        let mut histories = Self::default();
        for before in loaded.trace.rows.iter().filter_map(Row::history) {
            *histories.to_come.entry(u32::try_from(before).unwrap_or(u32::MAX)).or_default() += 1;
        }
        histories
    }

    fn sent(&mut self, row: u32, prompt: &Runs) {
        if self.to_come.contains_key(&row) {
            self.kept.insert(row, prompt.clone());
        }
    }

    fn answered(&mut self, row: u32, answer: &Runs) {
        if let Some(history) = self.kept.get_mut(&row) {
            history.extend(answer);
        }
    }

    fn take(&mut self, row: usize) -> Runs {
        let row = u32::try_from(row).unwrap_or(u32::MAX);
        let left = self.to_come.get_mut(&row).map_or(0, |left| {
            *left -= 1;
            *left
        });
        match left {
            0 => {
                self.to_come.remove(&row);
                self.kept.remove(&row).unwrap_or_default()
            }
            _ => self.kept.get(&row).cloned().unwrap_or_default(),
        }
    }
}
