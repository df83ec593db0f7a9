//! A timeline cut into columns of equal time, each at its worst.

use super::{Doing, Layers, Timeline};

/// What one column of time shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Column {
    /// Memory that moved, at its most.
    pub layers: Layers,
    /// Bytes free, at the least.
    pub free: u64,
    /// Slots in use, at the most.
    pub used: u64,
    /// Requests that ran, at the most.
    pub running: u64,
    /// Requests that waited, at the most.
    pub waiting: u64,
    /// Prefill passes that began here.
    pub prefills: u64,
}

/// Cuts `[0, end]` into `count` columns. A stretch shows in every column that it touches; a column that
/// nothing touches shows the state before it.
#[must_use]
pub fn columns(timeline: &Timeline, count: usize) -> Vec<Column> {
    let mut out: Vec<Option<Column>> = vec![None; count];
    let last = count.saturating_sub(1);
    let span = u128::from(timeline.end_ns.max(1));
    let index = |ns: u64| {
        let at = u128::from(ns) * count as u128 / span;
        usize::try_from(at).unwrap_or(last).min(last)
    };
    // After a pass its buffers are cached, no longer live.
    let mut after = Column::default();
    let mut filled = 0;
    for point in &timeline.points {
        let (from, to) = (index(point.from_ns), index(point.to_ns).max(index(point.from_ns)));
        for slot in out.iter_mut().take(from).skip(filled) {
            slot.get_or_insert(after);
        }
        let here = Column {
            layers: point.layers,
            free: point.free,
            used: point.used,
            running: point.running,
            waiting: point.waiting,
            prefills: 0,
        };
        for slot in out.iter_mut().take(to + 1).skip(from) {
            *slot = Some(slot.map_or(here, |column| worst(column, here)));
        }
        if let Some(Some(column)) = out.get_mut(from) {
            column.prefills += u64::from(point.doing == Doing::Prefill);
        }
        let layers = Layers {
            live: 0,
            cached: point.layers.live.saturating_add(point.layers.cached),
            ..point.layers
        };
        after = Column { layers, ..here };
        filled = filled.max(to);
    }
    out.into_iter().map(|slot| slot.unwrap_or(after)).collect()
}

/// The worst of two states: it keeps the stack of the one with less free, so that layers add up.
fn worst(a: Column, b: Column) -> Column {
    let (tight, loose) = if b.free <= a.free { (b, a) } else { (a, b) };
    Column {
        layers: live_at_most(tight.layers, loose.layers),
        free: tight.free,
        used: a.used.max(b.used),
        running: a.running.max(b.running),
        waiting: a.waiting.max(b.waiting),
        prefills: a.prefills + b.prefills,
    }
}

/// The tighter stack, with as much of the allocator's part live as either had.
fn live_at_most(tight: Layers, loose: Layers) -> Layers {
    let reserved = tight.live.saturating_add(tight.cached);
    let live = tight.live.max(loose.live).min(reserved);
    Layers { live, cached: reserved - live, ..tight }
}
