//! The first full prefill chunk of a started server, played through the caching allocator: whether it
//! is served from what is left, and where it dies if not. Rounding, segments and reuse are torch's own.

use crate::start::Ran;
use plimsoll_core::{
    memory::caching_allocator::{
        CachingAllocator, CountingSource, MallocError, Setup, StreamId, TapeStopped,
    },
    tape::Tape,
    units::Bytes,
};

/// How the chunk ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PrefillTrial {
    /// It is served; the allocator keeps this much.
    Served {
        /// Segments taken from the device.
        reserved: Bytes,
    },
    /// A request is refused.
    Dies {
        /// The buffer, with its layer.
        buffer: String,
        /// What the allocator asks the device for.
        requested: Bytes,
        /// What the device has free then.
        free: Bytes,
        /// Live buffers of the chunk at that moment.
        allocated: Bytes,
    },
}

/// Plays the chunk; `None` where no tape is known or the server did not start. What other programs or
/// the allocator's cache of the start could still give is not counted.
pub(super) fn trial(ran: &Ran) -> Option<PrefillTrial> {
    let tape = ran.basis.prefill_tape.as_ref()?;
    let left = ran.start.reading("after_graphs")?.least();
    play(tape, left, ran.basis.total.value.mid)
}

fn play(tape: &Tape, left: Bytes, total: Bytes) -> Option<PrefillTrial> {
    let mut allocator = CachingAllocator::new(Setup::new(total.0));
    let mut source = CountingSource::new(left.0);
    match allocator.play(&mut source, tape, StreamId(0)) {
        Ok(_) => {
            let reserved = Bytes(left.0.saturating_sub(source.free()));
            Some(PrefillTrial::Served { reserved })
        }
        Err(stopped) => dies(&stopped),
    }
}

fn dies(stopped: &TapeStopped) -> Option<PrefillTrial> {
    let MallocError::OutOfMemory(error) = &stopped.error else { return None };
    Some(PrefillTrial::Dies {
        buffer: stopped.name.to_string(),
        requested: Bytes(error.segment),
        free: Bytes(error.device_free),
        allocated: Bytes(error.allocated),
    })
}
