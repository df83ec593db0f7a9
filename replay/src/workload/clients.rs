//! The clients: which request is sent next, and what is in it.

use super::{group_sender::GroupSender, import::Loaded, trace_sender::TraceSender};
use crate::scenario::Part;
use plimsoll_core::{
    engine::serving::{Arrival, Clients, Sampling},
    sched::{Finish, NewRequest, RequestId},
    units::Nanos,
};
use std::{collections::BTreeMap, sync::Arc};

/// The clients of a workload. A request exists from the moment in which it is sent: what is drawn costs
/// memory by group and by requests under way, what was recorded a few dozen bytes a row.
#[derive(Clone, Debug)]
pub struct WorkloadClients {
    senders: Vec<Sender>,
    /// Requests sent so far: the number of the next one.
    sent: u64,
    /// Whose a request is, where its end matters to somebody.
    under_way: BTreeMap<u64, usize>,
}

impl WorkloadClients {
    /// Clients of these parts; `traces` are those of the parts that are traces, in their order. One that is
    /// not there sends nothing.
    pub(super) fn new(parts: &[Part], traces: &[Arc<Loaded>], seed: u64) -> Self {
        let (mut prefixes, mut scope) = (0, 0);
        let mut traces = traces.iter();
        let mut senders = Vec::new();
        for part in parts {
            match part {
                Part::Group(group) => {
                    senders.push(Sender::Group(Box::new(GroupSender::new(group, seed, prefixes))));
                    prefixes += group.shared_prefix.as_ref().map_or(0, |prefix| prefix.groups);
                }
                Part::Trace(source) => {
                    if let Some(loaded) = traces.next() {
                        let sender = TraceSender::new(source, Arc::clone(loaded), scope, seed);
                        senders.push(Sender::Trace(Box::new(sender)));
                    }
                    scope += 1;
                }
            }
        }
        Self { senders, sent: 0, under_way: BTreeMap::new() }
    }

    /// Requests of the whole workload.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.senders.iter().map(Sender::total).sum()
    }

    /// Requests sent so far.
    #[must_use]
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// Who sends next and when; of equal times the earlier part.
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
        let request = sender.send(number, at);
        let sampling = sender.sampling();
        if sender.follows_ends() {
            self.under_way.insert(number, who);
        }
        self.sent += 1;
        Some(Arrival { at, request, sampling })
    }

    fn next_at(&self) -> Option<Nanos> {
        self.next_sender().map(|(at, _)| at)
    }

    fn finished(&mut self, request: RequestId, finish: Finish, outputs: u64, now: Nanos) {
        let who = self.under_way.remove(&request.0);
        if let Some(sender) = who.and_then(|who| self.senders.get_mut(who)) {
            sender.ended(request.0, finish, outputs, now);
        }
    }

    fn is_done(&self) -> bool {
        self.senders.iter().all(Sender::is_done)
    }
}

/// A part on its way.
#[derive(Clone, Debug)]
enum Sender {
    Group(Box<GroupSender>),
    Trace(Box<TraceSender>),
}

impl Sender {
    fn total(&self) -> u64 {
        match self {
            Self::Group(group) => group.total(),
            Self::Trace(trace) => trace.total(),
        }
    }

    fn next_at(&self) -> Option<Nanos> {
        match self {
            Self::Group(group) => group.next_at(),
            Self::Trace(trace) => trace.next_at(),
        }
    }

    fn send(&mut self, number: u64, at: Nanos) -> NewRequest {
        match self {
            Self::Group(group) => group.send(number, at),
            Self::Trace(trace) => trace.send(number, at),
        }
    }

    fn sampling(&self) -> Sampling {
        match self {
            Self::Group(group) => group.sampling(),
            Self::Trace(trace) => trace.sampling(),
        }
    }

    fn follows_ends(&self) -> bool {
        match self {
            Self::Group(group) => group.follows_ends(),
            Self::Trace(trace) => trace.follows_ends(),
        }
    }

    fn ended(&mut self, number: u64, finish: Finish, outputs: u64, now: Nanos) {
        match self {
            Self::Group(group) => group.ended(number, finish, outputs, now),
            Self::Trace(trace) => trace.ended(number, outputs, now),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Self::Group(group) => group.is_done(),
            Self::Trace(trace) => trace.is_done(),
        }
    }
}
