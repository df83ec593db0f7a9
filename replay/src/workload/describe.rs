//! What a workload is like, without a server: its parts in figures.

use super::{Loaded, Told, WorkloadClients};
use crate::scenario::{Group, Part, Schedule, Workload};
use plimsoll_core::{
    engine::serving::Clients as _,
    kv::{EvictionPolicy, RadixTree, Runs, TreeClock, TreeOptions},
    sched::Finish,
    units::Nanos,
};
use plimsoll_ingest::workload::Summary;
use std::sync::Arc;

/// Most requests of a part that are drawn to describe it.
const MOST_DRAWN: u64 = 100_000;

/// One part of a workload in figures.
#[derive(Clone, PartialEq, Debug)]
pub struct Described {
    /// Its name.
    pub name: String,
    /// Its figures. Of what is drawn, the prefix share is in tokens.
    pub summary: Summary,
    /// Where it was recorded; `None`: it is drawn.
    pub told: Option<Told>,
    /// What the figures do not say, a sentence each.
    pub notes: Vec<String>,
}

/// The parts of a workload; `traces` are its traces, in their order.
#[must_use]
pub fn describe(workload: &Workload, traces: &[Arc<Loaded>], seed: u64) -> Vec<Described> {
    let mut traces = traces.iter();
    let parts = workload.parts.iter().filter_map(|part| match part {
        Part::Group(group) => Some(drawn(group, seed)),
        Part::Trace(_) => traces.next().map(|loaded| Described {
            name: part.name().to_owned(),
            summary: loaded.told.summary.clone(),
            notes: loaded.told.notes.clone(),
            told: Some(loaded.told.clone()),
        }),
    });
    parts.collect()
}

/// Draws a group as if every request were answered at once.
fn drawn(group: &Group, seed: u64) -> Described {
    let part = Part::Group(Box::new(group.clone()));
    let mut clients = WorkloadClients::new(std::slice::from_ref(&part), &[], seed);
    let mut cache = Cache::new();
    let (mut times, mut inputs, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    while clients.sent() < MOST_DRAWN
        && let Some(arrival) = clients.next_at().and_then(|at| clients.take(at))
    {
        let request = &arrival.request;
        times.push(arrival.at);
        inputs.push(request.prompt.len());
        outputs.push(request.output_len);
        cache.see(&request.prompt);
        clients.finished(request.id, Finish::Stop, request.output_len, arrival.at);
    }
    let mut notes = Vec::new();
    if !clients.is_done() {
        notes.push(format!("of the first {MOST_DRAWN} requests"));
    }
    let closed = group.concurrency.is_some() && matches!(group.schedule, Schedule::Together { .. });
    if closed || group.turns.is_some() {
        times.clear();
        notes.push(
            "requests come when others are answered: they have no rate of their own".to_owned(),
        );
    } else if let Some(most) = group.concurrency {
        notes.push(format!("at most {most} are under way: a slow server gets them later"));
    }
    let mut summary = Summary::new(times, inputs, outputs);
    summary.prefix_share = cache.share();
    Described { name: group.name.clone(), summary, told: None, notes }
}

/// A prefix cache without an end.
struct Cache {
    tree: RadixTree,
    tokens: u64,
    found: u64,
}

impl Cache {
    fn new() -> Self {
        let options =
            TreeOptions { page_size: 1, eviction: EvictionPolicy::Lru, clock: TreeClock::PerCall };
        Self { tree: RadixTree::new(options), tokens: 0, found: 0 }
    }

    fn see(&mut self, prompt: &Runs) {
        let slots = Runs::of(self.tokens, prompt.len());
        self.found += self.tree.insert(0, prompt.cursor(), slots.cursor(), 0).present;
        self.tokens += prompt.len();
    }

    /// Part of the tokens that was there; `None` where none was.
    fn share(&self) -> Option<f64> {
        (self.found > 0).then(|| self.found as f64 / self.tokens as f64)
    }
}

impl Described {
    /// Whether its figures are those of a file.
    #[must_use]
    pub const fn is_recorded(&self) -> bool {
        self.told.is_some()
    }

    /// Mean rate in words, where it has one.
    #[must_use]
    pub fn rate(&self) -> Option<String> {
        let rate = self.summary.rate?;
        let cv = self.summary.gap_cv.map_or(String::new(), |cv| format!(", gap CV {cv:.2}"));
        Some(format!("{rate:.2} a second over {:.1} s{cv}", seconds(self.summary.span)))
    }
}

fn seconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}
