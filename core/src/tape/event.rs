//! A tape as data: allocations of named buffers and their frees, in order.

use super::cycle::{self, Cycle};
use std::fmt;

use crate::units::Bytes;

/// One allocation of a tape; numbered from 0 in the order of allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufferId(pub u32);

/// A buffer of the engine's code: its name there, and where it is made.
#[derive(PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Name in the engine's terms, such as `mlp.gate_up_proj`.
    pub name: &'static str,
    /// File and function of the engine that makes it.
    pub source: &'static str,
}

impl Buffer {
    pub(super) const fn new(name: &'static str, source: &'static str) -> Self {
        Self { name, source }
    }
}

/// Which buffer, and of which layer; `None` outside the layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// Layer from 0.
    pub layer: Option<u32>,
    /// The buffer.
    pub buffer: &'static Buffer,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layer {layer} {}", self.buffer.name),
            None => f.write_str(self.buffer.name),
        }
    }
}

/// One step of a tape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request to the allocator.
    Alloc {
        /// Number of the buffer.
        id: BufferId,
        /// Bytes asked for, before the allocator's rounding.
        bytes: Bytes,
        /// What it is.
        name: Name,
    },
    /// The last reference died before the next operator ran.
    Free {
        /// Number of the buffer.
        id: BufferId,
    },
}

/// A buffer that is live at some instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Live {
    /// Its number.
    pub id: BufferId,
    /// Bytes asked for.
    pub bytes: Bytes,
    /// What it is.
    pub name: Name,
}

/// The instant with the most live bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peak {
    /// Live bytes, each buffer rounded up to 512 bytes as the caching allocator does.
    pub bytes: Bytes,
    /// Index of the event that reaches it.
    pub event: usize,
    /// What is live then, largest first, equal ones in the order of allocation.
    pub live: Vec<Live>,
}

/// What one step of an engine allocates outside weights and pool, in its order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tape {
    events: Vec<Event>,
    cycle: Option<Cycle>,
}

/// Equal layers from which on it pays to look for the end of their series.
const LEAST_CYCLES: usize = 6;

/// Rounding of a request. Source: `c10/cuda/CUDACachingAllocator`, `kMinBlockSize`.
const BLOCK: u64 = 512;

/// `bytes` as the allocator counts it.
fn rounded(bytes: Bytes) -> u64 {
    bytes.0.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX)
}

impl Tape {
    /// Of these events, of which `cycle` is a series of equal layers; without one it is looked for.
    pub(super) fn new(events: Vec<Event>, cycle: Option<Cycle>) -> Self {
        let long = cycle.filter(|cycle| cycle.times >= LEAST_CYCLES);
        let cycle = long.or_else(|| cycle::longest(&events, LEAST_CYCLES));
        Self { events, cycle }
    }

    /// Its longest series of equal layers, if it has one of some length.
    #[must_use]
    pub const fn cycle(&self) -> Option<Cycle> {
        self.cycle
    }

    /// The events in order. Every freed buffer was allocated before, once.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Its allocations in order.
    pub fn allocations(&self) -> impl Iterator<Item = Live> {
        self.events.iter().filter_map(|event| match *event {
            Event::Alloc { id, bytes, name } => Some(Live { id, bytes, name }),
            Event::Free { .. } => None,
        })
    }

    /// The largest single request; the first of equal ones. `None` for an empty tape.
    #[must_use]
    pub fn largest(&self) -> Option<Live> {
        self.allocations().reduce(|best, next| if next.bytes > best.bytes { next } else { best })
    }

    /// The first allocation of the buffer with this name.
    #[must_use]
    pub fn find(&self, buffer: &str) -> Option<Live> {
        self.allocations().find(|live| live.name.buffer.name == buffer)
    }

    /// The first instant with the most live bytes.
    #[must_use]
    pub fn peak(&self) -> Peak {
        let mut sizes: Vec<u64> = Vec::new();
        let (mut now, mut best, mut at) = (0_u64, 0_u64, 0_usize);
        for (index, event) in self.events.iter().enumerate() {
            match *event {
                Event::Alloc { bytes, .. } => {
                    sizes.push(rounded(bytes));
                    now = now.saturating_add(rounded(bytes));
                    if now > best {
                        (best, at) = (now, index);
                    }
                }
                Event::Free { id } => {
                    let size = usize::try_from(id.0).ok().and_then(|id| sizes.get(id));
                    now = now.saturating_sub(size.copied().unwrap_or(0));
                }
            }
        }
        let mut live = self.live_after(at);
        live.sort_by_key(|buffer| (std::cmp::Reverse(buffer.bytes), buffer.id));
        Peak { bytes: Bytes(best), event: at, live }
    }

    /// What is live after event `index`, in the order of allocation.
    #[must_use]
    pub fn live_after(&self, index: usize) -> Vec<Live> {
        let mut live: Vec<Live> = Vec::new();
        for event in self.events.iter().take(index.saturating_add(1)) {
            match *event {
                Event::Alloc { id, bytes, name } => live.push(Live { id, bytes, name }),
                Event::Free { id } => live.retain(|buffer| buffer.id != id),
            }
        }
        live
    }
}
