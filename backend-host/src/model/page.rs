//! One page of the pool: a mapping of its own, so that it can be given back to the system alone.

use memmap2::{MmapMut, MmapOptions};
use std::io;

/// Stride of touching. No system that this runs on has smaller pages.
const TOUCH: usize = 4096;

/// Zeros, all of them in RAM.
#[derive(Debug)]
pub(super) struct Page(MmapMut);

impl Page {
    /// Maps and touches `bytes`.
    ///
    /// # Errors
    /// The kernel's, when it refuses the mapping. Touching cannot fail: a kernel that cannot back a page
    /// kills the process.
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
        let mut map = MmapOptions::new().len(bytes).no_reserve_swap().map_anon()?;
        // A huge page that reaches over the end of a mapping is given back late: only small ones here.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::NoHugePage);
        for piece in map.chunks_mut(TOUCH) {
            piece[0] = 0;
        }
        Ok(Self(map))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}
