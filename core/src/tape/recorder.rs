//! Writes a tape the way the engine's Python lets tensors go: a buffer whose last reference died is
//! freed before the next operator runs, and those that die together are freed in their order.

use super::event::{Buffer, BufferId, Event, Name, Tape};
use crate::units::Bytes;

/// A tape under construction.
#[derive(Default)]
pub(super) struct Recorder {
    events: Vec<Event>,
    next: u32,
    dead: Vec<BufferId>,
    layer: Option<u32>,
}

impl Recorder {
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
        Tape::new(self.events)
    }
}
