//! What ballast does with a card beside holding its memory: fills that are timed, copies over
//! small staging buffers, graphs of fills.

use crate::card::Card;
use crate::failure::Failure;
use crate::ffi::memory::DevicePointer;
use crate::memory::Buffer;
use crate::pinned::Pinned;
use crate::stream::{Event, Graph, Stream};
use plimsoll_core::units::{Bytes, Nanos};
use std::rc::Rc;

/// Bytes of the staging buffers on either side; the piece in which KV is copied.
pub(crate) const STAGING: u64 = 4 << 20;

/// Fills of a captured graph at least.
const NODES_MIN: u64 = 4;
/// Fills of a captured graph at most.
const NODES_MAX: u64 = 64;

/// A stream, two events, and staging buffers of a card.
pub(crate) struct Exercise {
    stream: Stream,
    from: Event,
    to: Event,
    staging_device: Buffer,
    staging_host: Pinned,
}

impl Exercise {
    /// Takes all of it.
    pub(crate) fn new(card: &Rc<Card>) -> Result<Self, Failure> {
        Ok(Self {
            stream: Stream::new(card)?,
            from: Event::timed(card)?,
            to: Event::timed(card)?,
            staging_device: Buffer::take(card, Bytes(STAGING))?,
            staging_host: Pinned::take(card, Bytes(STAGING))?,
        })
    }

    /// Fills memory and measures on the device; does not wait.
    pub(crate) fn start_fill(&self, parts: &[DevicePointer], value: u8) -> Result<(), Failure> {
        self.from.record(&self.stream)?;
        let idle = [self.staging_device.pointer()];
        for part in if parts.is_empty() { &idle[..] } else { parts } {
            self.stream.fill(*part, value)?;
        }
        self.to.record(&self.stream)
    }

    /// Waits for [`Self::start_fill`]; the device's own time.
    pub(crate) fn end_fill(&self) -> Result<Nanos, Failure> {
        self.stream.synchronize()?;
        self.to.since(&self.from)
    }

    /// Copies `size` bytes from the device to the host, piece by piece over the staging buffers.
    pub(crate) fn copy_to_host(&self, size: u64) -> Result<(), Failure> {
        self.copy(size, |part| self.stream.copy_out(&self.staging_host, 0, part))
    }

    /// Copies `size` bytes from the host to the device; as [`Self::copy_to_host`].
    pub(crate) fn copy_to_device(&self, size: u64) -> Result<(), Failure> {
        self.copy(size, |part| self.stream.copy_in(part, &self.staging_host, 0))
    }

    fn copy(
        &self,
        size: u64,
        piece: impl Fn(DevicePointer) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut left = size;
        while left > 0 {
            let part = self.staging_device.pointer().part(0, left);
            piece(part)?;
            left -= part.size();
        }
        self.stream.synchronize()
    }

    /// Captures fills over the staging buffer, one for each request of the batch within
    /// [`NODES_MIN`] and [`NODES_MAX`], uploads the graph and launches it once.
    pub(crate) fn graph(&self, batch: u64) -> Result<Graph, Failure> {
        let nodes = batch.clamp(NODES_MIN, NODES_MAX);
        let piece = STAGING / NODES_MAX;
        let graph = self.stream.capture(|| {
            (0..nodes).try_for_each(|node| {
                let part = self.staging_device.pointer().part(node * piece, piece);
                self.stream.fill(part, 0x67)
            })
        })?;
        graph.upload(&self.stream)?;
        graph.launch(&self.stream)?;
        self.stream.synchronize()?;
        Ok(graph)
    }
}

impl Drop for Exercise {
    fn drop(&mut self) {
        // Memory is given back after the work that uses it.
        let _ = self.stream.synchronize();
    }
}
