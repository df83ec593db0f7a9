//! The clients: which request is sent next, and what is in it.

use super::{
    draw::{Drawer, Due},
    stream::Stream,
};
use crate::scenario::{Group, MaxTokens};
use plimsoll_core::{
    engine::serving::{Arrival, Clients},
    kv::{Run, Runs},
    sched::{Finish, NewRequest, RequestId},
    units::Nanos,
};
use std::collections::{BTreeMap, VecDeque};

/// Token ids of a request's own part begin at (its number + 1) × 2^32: no two requests share one.
const OWN_IDS: u32 = 32;
/// Token ids of shared prefixes have this bit, which no request's own ids reach.
const PREFIX_IDS: u64 = 1 << 63;

/// The clients of a workload. A request exists from the moment in which it is sent: a workload costs
/// memory by group and by requests under way, not by requests.
#[derive(Clone, Debug)]
pub struct WorkloadClients {
    senders: Vec<Sender>,
    /// Requests sent so far: the number of the next one.
    sent: u64,
    /// Whose connection a request holds, where connections are limited.
    under_way: BTreeMap<u64, usize>,
}

impl WorkloadClients {
    pub(super) fn new(groups: &[Group], seed: u64) -> Self {
        let mut prefixes = 0;
        let senders = groups
            .iter()
            .map(|group| {
                let first_prefix = prefixes;
                prefixes += group.shared_prefix.map_or(0, |prefix| prefix.groups);
                Sender::new(group, seed, first_prefix)
            })
            .collect();
        Self { senders, sent: 0, under_way: BTreeMap::new() }
    }

    /// Requests of the whole workload.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.senders.iter().map(|sender| sender.requests).sum()
    }

    /// Requests sent so far.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// Who sends next and when; of equal times the earlier group.
    fn next_sender(&self) -> Option<(Nanos, usize)> {
        let next = |(at, sender): (usize, &Sender)| Some((sender.next_at()?, at));
        self.senders.iter().enumerate().filter_map(next).min()
    }
}

impl Clients for WorkloadClients {
    fn take(&mut self, now: Nanos) -> Option<Arrival> {
        let (at, who) = self.next_sender().filter(|(at, _)| *at <= now)?;
        let number = self.sent;
        let sender = self.senders.get_mut(who)?;
        let request = sender.send(number);
        let sampling = sender.group.shape.sampling;
        if sender.connections.is_some() {
            self.under_way.insert(number, who);
        }
        self.sent += 1;
        Some(Arrival { at, request, sampling })
    }

    fn next_at(&self) -> Option<Nanos> {
        self.next_sender().map(|(at, _)| at)
    }

    fn finished(&mut self, request: RequestId, _: Finish, now: Nanos) {
        let who = self.under_way.remove(&request.0);
        if let Some(sender) = who.and_then(|who| self.senders.get_mut(who)) {
            sender.give_back(now);
        }
    }

    fn is_done(&self) -> bool {
        self.senders.iter().all(Sender::is_done)
    }
}

/// Connections of a group whose concurrency is limited.
#[derive(Clone, Debug)]
struct Connections {
    /// Not used yet.
    fresh: u64,
    /// When those that were used are free again, ascending.
    free_at: VecDeque<Nanos>,
}

impl Connections {
    /// When one is free; `None`: all are under way.
    fn next(&self) -> Option<Nanos> {
        if self.fresh > 0 { Some(Nanos(0)) } else { self.free_at.front().copied() }
    }

    fn take(&mut self) {
        match self.fresh.checked_sub(1) {
            Some(rest) => self.fresh = rest,
            None => {
                self.free_at.pop_front();
            }
        }
    }
}

/// One group on its way.
#[derive(Clone, Debug)]
struct Sender {
    group: Group,
    requests: u64,
    sent: u64,
    due: Due,
    connections: Option<Connections>,
    prompts: Drawer,
    outputs: Drawer,
    limits: Option<Drawer>,
    prefix_choice: Stream,
    /// Number of the group's first prefix among those of all groups.
    first_prefix: u64,
}

impl Sender {
    fn new(group: &Group, seed: u64, first_prefix: u64) -> Self {
        let stream = |purpose| Stream::named(seed, &group.name, purpose);
        let shape = &group.shape;
        let limits = match &shape.max_tokens {
            MaxTokens::Lengths(lengths) => Some(Drawer::new(lengths.clone(), stream("max_tokens"))),
            MaxTokens::Output | MaxTokens::Engine => None,
        };
        Self {
            requests: group.requests,
            sent: 0,
            due: Due::new(group.schedule, stream("arrivals")),
            connections: group
                .concurrency
                .map(|fresh| Connections { fresh, free_at: VecDeque::new() }),
            prompts: Drawer::new(shape.prompt_tokens.clone(), stream("prompt_tokens")),
            outputs: Drawer::new(shape.output_tokens.clone(), stream("output_tokens")),
            limits,
            prefix_choice: stream("shared_prefix"),
            first_prefix,
            group: group.clone(),
        }
    }

    const fn is_done(&self) -> bool {
        self.sent >= self.requests
    }

    /// When the next request is sent: it is due, and a connection is free.
    fn next_at(&self) -> Option<Nanos> {
        if self.is_done() {
            return None;
        }
        let free = match &self.connections {
            None => Nanos(0),
            Some(connections) => connections.next()?,
        };
        Some(self.due.next().max(free))
    }

    /// The next request, under its number.
    fn send(&mut self, number: u64) -> NewRequest {
        self.sent += 1;
        self.due.advance();
        if let Some(connections) = &mut self.connections {
            connections.take();
        }
        let output_len = self.outputs.next();
        let shape = &self.group.shape;
        let max_new_tokens = match (&shape.max_tokens, &mut self.limits) {
            (MaxTokens::Engine, _) => None,
            (_, Some(limits)) => Some(limits.next()),
            (_, None) => Some(output_len),
        };
        let (eos, logprob_start, priority) = (shape.eos, shape.logprob_start, shape.priority);
        NewRequest {
            max_new_tokens,
            output_len,
            eos,
            logprob_start,
            priority,
            ..NewRequest::plain(RequestId(number), self.prompt(number), output_len)
        }
    }

    /// A shared prefix, where there is one, and the request's own tokens: a run each.
    fn prompt(&mut self, number: u64) -> Runs {
        let mut prompt = Runs::new();
        if let Some(prefix) = self.group.shared_prefix {
            let which = self.first_prefix + self.prefix_choice.below(prefix.groups);
            prompt.push(Run { first: PREFIX_IDS | (which << OWN_IDS), len: prefix.tokens });
        }
        prompt.push(Run { first: (number + 1) << OWN_IDS, len: self.prompts.next() });
        prompt
    }

    /// A request is over: its connection is free after the think time.
    fn give_back(&mut self, now: Nanos) {
        let free = Nanos(now.0.saturating_add(self.group.think_time.0));
        if let Some(connections) = &mut self.connections {
            let at = connections.free_at.partition_point(|time| *time <= free);
            connections.free_at.insert(at, free);
        }
    }
}
