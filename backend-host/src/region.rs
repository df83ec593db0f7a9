//! A stretch of real memory: an anonymous mapping, touched from its beginning as far as is wanted.

use memmap2::{MmapMut, MmapOptions};
use plimsoll_core::units::Bytes;
use std::io;

/// Stride of touching. No system that this runs on has smaller pages; on larger ones some pages are
/// written more than once.
const PAGE: usize = 4096;
/// From this size on, huge pages are asked for.
const HUGE: u64 = 2 << 20;

/// A mapping that is unmapped when it is dropped. One of zero bytes maps nothing.
#[derive(Debug, Default)]
pub(crate) struct Region {
    map: Option<MmapMut>,
    size: Bytes,
    touched: Bytes,
}

impl Region {
    /// Maps `size` bytes without reserving swap for them, and touches the first `touch`.
    ///
    /// # Errors
    ///
    /// The kernel's, when it refuses the mapping: too many mappings, a limit of addresses, or strict
    /// overcommit. Touching cannot fail: a kernel that cannot back a page kills the process.
    pub(crate) fn new(size: Bytes, touch: Bytes) -> io::Result<Self> {
        if size == Bytes::ZERO {
            return Ok(Self::default());
        }
        let len = usize::try_from(size.0).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let map = MmapOptions::new().len(len).no_reserve_swap().map_anon()?;
        let mut region = Self { map: Some(map), size, touched: touch.min(size) };
        if touch.0 >= HUGE {
            region.ask_for_huge_pages();
        }
        region.again(touch);
        Ok(region)
    }

    /// Fewer faults where the kernel has them; nothing is lost where it has not.
    fn ask_for_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        if let Some(map) = &self.map {
            let _ = map.advise(memmap2::Advice::HugePage);
        }
    }

    /// Writes one byte a page on the first `most` bytes that are touched. Answers how many those are.
    pub(crate) fn again(&mut self, most: Bytes) -> Bytes {
        let bytes = most.min(self.touched);
        let len = usize::try_from(bytes.0).unwrap_or(usize::MAX);
        if let Some(map) = self.map.as_mut() {
            let end = len.min(map.len());
            for page in map[..end].chunks_mut(PAGE) {
                page[0] = page[0].wrapping_add(1);
            }
        }
        bytes
    }

    pub(crate) const fn size(&self) -> Bytes {
        self.size
    }

    pub(crate) const fn touched(&self) -> Bytes {
        self.touched
    }
}
