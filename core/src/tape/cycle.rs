//! Layers that repeat: most of a tape is one layer again and again.

use super::event::{BufferId, Event};

/// Stretches of events that follow each other and are the same, but that the ids go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cycle {
    /// Index of the first event of the first stretch.
    pub start: usize,
    /// Events of a stretch.
    pub len: usize,
    /// Buffers that a stretch allocates: what its ids go on by.
    pub ids: u32,
    /// Stretches.
    pub times: usize,
}

/// The longest series of equal layers; `None` where fewer than `least` follow each other.
pub(super) fn longest(events: &[Event], least: usize) -> Option<Cycle> {
    let starts = layer_starts(events);
    let mut best: Option<Cycle> = None;
    let mut at = 0;
    while at + 2 < starts.len() {
        let (first, next) = (starts[at], starts[at + 1]);
        let (len, ids) = (next - first, allocations(&events[first..next]));
        let mut times = 1;
        while let Some(end) = starts.get(at + times + 1)
            && same(&events[starts[at + times - 1]..], &events[starts[at + times]..*end], len, ids)
        {
            times += 1;
        }
        if best.is_none_or(|best| times > best.times) {
            best = Some(Cycle { start: first, len, ids, times });
        }
        at += times;
    }
    best.filter(|cycle| cycle.times >= least)
}

/// Where the layers begin, each with its first allocation, and where the last one ends at the latest.
fn layer_starts(events: &[Event]) -> Vec<usize> {
    let (mut starts, mut layer) = (Vec::new(), None);
    for (at, event) in events.iter().enumerate() {
        let Event::Alloc { name, .. } = event else { continue };
        if name.layer != layer {
            layer = name.layer;
            starts.push(at);
        }
    }
    starts.push(events.len());
    starts
}

fn allocations(events: &[Event]) -> u32 {
    events.iter().filter(|event| matches!(event, Event::Alloc { .. })).count() as u32
}

/// Whether `next` is the first `len` events of `first` with ids that are `ids` larger.
fn same(first: &[Event], next: &[Event], len: usize, ids: u32) -> bool {
    let follows = |a: BufferId, b: BufferId| a.0.checked_add(ids) == Some(b.0);
    next.len() == len
        && first.iter().zip(next).all(|(a, b)| match (a, b) {
            (
                Event::Alloc { id: a, bytes: x, name: n },
                Event::Alloc { id: b, bytes: y, name: m },
            ) => follows(*a, *b) && x == y && n.buffer == m.buffer,
            (Event::Free { id: a }, Event::Free { id: b }) => follows(*a, *b),
            _ => false,
        })
}
