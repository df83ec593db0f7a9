//! Writes a tape the way the engine's Python lets tensors go: a buffer whose last reference died is
//! freed before the next operator runs, and those that die together are freed in their order.

use super::cycle::Cycle;
use super::event::{Buffer, BufferId, Event, Name, Tape};
use crate::units::Bytes;

/// A tape under construction.
#[derive(Default)]
pub(super) struct Recorder {
    events: Vec<Event>,
    next: u32,
    dead: Vec<BufferId>,
    layer: Option<u32>,
    /// The longest series of layers that were copied.
    cycle: Option<Cycle>,
    /// Every layer is asked for: tests compare copies with it.
    #[cfg(test)]
    pub(super) asks: bool,
}

/// Where a layer begins.
pub(super) struct Start {
    event: usize,
    next: u32,
    dead: Vec<BufferId>,
    /// The output of the layer before, which the loop over layers holds.
    hidden: Option<BufferId>,
}

impl Start {
    /// Whether `later` is the same place some layers on: all that it holds was made as much later.
    pub(super) fn returns_in(&self, later: &Self) -> bool {
        let ids = later.next - self.next;
        let moved = |id: &BufferId| BufferId(id.0 + ids);
        self.hidden.is_some()
            && self.hidden.as_ref().map(moved) == later.hidden
            && self.dead.len() == later.dead.len()
            && self.dead.iter().map(moved).eq(later.dead.iter().copied())
    }
}

impl Recorder {
    /// Here, before a layer that goes on from `hidden`.
    pub(super) fn start(&self, hidden: Option<BufferId>) -> Start {
        Start { event: self.events.len(), next: self.next, dead: self.dead.clone(), hidden }
    }

    /// Writes what stands from `start` to here `times` times more, each time for the next layer. Answers the
    /// output of the last one.
    pub(super) fn copy(&mut self, start: &Start, times: u32) -> Option<BufferId> {
        let (end, ids) = (self.events.len(), self.next - start.next);
        let on = |id: BufferId, layers: u32| BufferId(id.0 + layers * ids);
        for nth in 1..=times {
            for at in start.event..end {
                let event = match self.events[at] {
                    Event::Alloc { id, bytes, name } => {
                        let layer = name.layer.map(|layer| layer + nth);
                        Event::Alloc { id: on(id, nth), bytes, name: Name { layer, ..name } }
                    }
                    Event::Free { id } => Event::Free { id: on(id, nth) },
                };
                self.events.push(event);
            }
        }
        self.next += times * ids;
        self.dead.iter_mut().for_each(|id| *id = on(*id, times));
        let (len, times) = (end - start.event, times as usize);
        let cycle = Cycle { start: start.event, len, ids, times: times + 1 };
        if self.cycle.is_none_or(|longest| longest.times < cycle.times) {
            self.cycle = Some(cycle);
        }
        // One layer on from the start, and as many as were copied.
        start.hidden.map(|id| on(id, times as u32 + 1))
    }

    /// The layer that buffers belong to now.
    pub(super) const fn layer(&self) -> Option<u32> {
        self.layer
    }

    /// Buffers from here on belong to `layer`.
    pub(super) const fn in_layer(&mut self, layer: Option<u32>) {
        self.layer = layer;
    }

    /// An operator that makes a tensor of `dims` with elements of `element` bytes. Sizes saturate.
    pub(super) fn alloc(
        &mut self,
        buffer: &'static Buffer,
        element: u64,
        dims: &[u64],
    ) -> BufferId {
        self.op();
        let id = BufferId(self.next);
        self.next += 1;
        let bytes = Bytes(dims.iter().fold(element, |bytes, dim| bytes.saturating_mul(*dim)));
        let name = Name { layer: self.layer, buffer };
        self.events.push(Event::Alloc { id, bytes, name });
        id
    }

    /// The last reference to each of `ids` is gone; they are freed before the next operator.
    pub(super) fn release(&mut self, ids: impl IntoIterator<Item = BufferId>) {
        self.dead.extend(ids);
    }

    /// An operator that allocates nothing (in place, or a launch).
    pub(super) fn op(&mut self) {
        self.dead.sort_unstable();
        self.events.extend(self.dead.drain(..).map(|id| Event::Free { id }));
    }

    /// The tape; what was not released stays live (results of the step, static buffers).
    pub(super) fn finish(mut self) -> Tape {
        self.op();
        Tape::new(self.events, self.cycle)
    }
}
