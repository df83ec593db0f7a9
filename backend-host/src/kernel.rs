//! What the kernel says can still be taken.

use crate::linux::{self, Roots};
use plimsoll_core::units::Bytes;
use std::time::{Duration, Instant};

/// A reading this old is taken again.
const STALE: Duration = Duration::from_millis(10);

/// Readings of the kernel's own count: the smaller of `MemAvailable` and what the control group leaves.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    roots: Roots,
    last: Option<(Instant, Option<Bytes>)>,
}

impl Kernel {
    /// Reads now. `None` where the system does not say (macOS).
    pub(crate) fn now(&mut self) -> Option<Bytes> {
        let free = linux::headroom(&self.roots).ok().flatten();
        self.last = Some((Instant::now(), free));
        free
    }

    /// A reading of the last moments: for reports, never for decisions.
    pub(crate) fn recent(&mut self) -> Option<Bytes> {
        match self.last {
            Some((at, free)) if at.elapsed() < STALE => free,
            _ => self.now(),
        }
    }
}
