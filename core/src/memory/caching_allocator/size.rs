//! Sizes of PyTorch's caching allocator: rounding of requests, classes, sizes of segments.
//!
//! Source: torch 2.1 to 2.15, `c10/cuda/CUDACachingAllocator`, identical over all of them.

use super::options::Options;
use crate::units::MIB;

/// Rounding unit of a request, and the smallest remainder that the small pool keeps. Bytes.
pub const MIN_BLOCK: u64 = 512;
/// Largest rounded request that the small pool serves. Bytes.
pub const SMALL_MAX: u64 = MIB;
/// Segment of the small pool. Bytes.
pub const SMALL_SEGMENT: u64 = 2 * MIB;
/// Segment of the large pool for requests under [`OWN_SEGMENT`]. Bytes.
pub const LARGE_SEGMENT: u64 = 20 * MIB;
/// Rounded requests from here on get a segment of their own. Bytes.
pub const OWN_SEGMENT: u64 = 10 * MIB;
/// Such segments are multiples of this. Bytes.
pub const ROUND_LARGE: u64 = 2 * MIB;

/// Which of the two pools of a pair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SizeClass {
    /// Rounded size up to 1 MiB, 2 MiB segments.
    Small,
    /// Everything above.
    Large,
}

impl SizeClass {
    /// The class that a rounded size belongs to.
    #[must_use]
    pub const fn of(rounded: u64) -> Self {
        if rounded <= SMALL_MAX { Self::Small } else { Self::Large }
    }

    /// `small` or `large`, as a snapshot spells it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Large => "large",
        }
    }
}

/// `value` up to the next multiple of `unit` (not zero); `None` past `u64::MAX`.
pub(super) const fn round_up(value: u64, unit: u64) -> Option<u64> {
    value.div_ceil(unit).checked_mul(unit)
}

/// The bytes that a request of `requested` bytes takes from a block.
///
/// Under 512 bytes: 512. With `roundup_power2_divisions` d > 1 and a request above 512·d: up to
/// the next d-th part of the step between two powers of two. Otherwise up to a multiple of 512.
/// `None` when the result does not fit 64 bits.
///
/// ```
/// use plimsoll_core::memory::caching_allocator::{Options, rounded_size};
/// assert_eq!(rounded_size(1, &Options::default()), Some(512));
/// assert_eq!(rounded_size(513, &Options::default()), Some(1024));
/// ```
///
/// Source: torch `round_size`, `roundup_power2_next_division`.
#[must_use]
pub fn rounded_size(requested: u64, options: &Options) -> Option<u64> {
    if requested < MIN_BLOCK {
        return Some(MIN_BLOCK);
    }
    let divisions = options.roundup_power2_divisions.of(requested);
    if divisions > 1 && requested > MIN_BLOCK.saturating_mul(divisions) {
        return power2_division(requested, divisions);
    }
    round_up(requested, MIN_BLOCK)
}

fn power2_division(size: u64, divisions: u64) -> Option<u64> {
    if size.is_power_of_two() {
        return Some(size);
    }
    let floor = 1_u64 << size.ilog2();
    let step = floor >> divisions.ilog2();
    if step == 0 { floor.checked_mul(2) } else { round_up(size, step) }
}

/// The segment that a miss of `rounded` bytes asks the device for, and the size that an
/// out-of-memory text names. `None` when it does not fit 64 bits.
///
/// Source: torch `get_allocation_size`.
#[must_use]
pub fn segment_size(rounded: u64, options: &Options) -> Option<u64> {
    if rounded <= SMALL_MAX {
        Some(SMALL_SEGMENT)
    } else if rounded < OWN_SEGMENT {
        Some(options.large_segment_size)
    } else {
        round_up(rounded, ROUND_LARGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::caching_allocator::options::TorchVersion;

    fn with(text: &str) -> Options {
        Options::parse(text, TorchVersion::NEWEST).unwrap()
    }

    #[test]
    fn a_request_rounds_to_512_or_to_a_part_of_a_power_of_two() {
        let plain = Options::default();
        for (n, rounded) in [(0, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)] {
            assert_eq!(rounded_size(n, &plain), Some(rounded), "{n}");
        }
        let four = with("roundup_power2_divisions:4");
        // 1,200 is not above 512·4: plain rounding. 5,000 goes to 4,096 + 1,024.
        for (n, rounded) in [(1200, 1536), (5000, 5120), (5120, 5120), (8192, 8192), (8193, 10240)]
        {
            assert_eq!(rounded_size(n, &four), Some(rounded), "{n}");
        }
        assert_eq!(rounded_size(u64::MAX, &plain), None);
    }

    #[test]
    fn divisions_follow_the_interval_of_the_size() {
        let listed = with("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]");
        // Below the first key its value holds; `>` fills from the last key on.
        for (mib, divisions) in [(1, 1), (300, 1), (512, 2), (1023, 2), (1024, 8), (70_000, 8)] {
            assert_eq!(listed.roundup_power2_divisions.of(mib * MIB), divisions, "{mib} MiB");
        }
    }

    #[test]
    fn a_miss_asks_for_2_20_or_its_own_rounded_segment() {
        let o = Options::default();
        for (rounded, segment) in [
            (MIB, 2 * MIB),
            (MIB + 512, 20 * MIB),
            (10 * MIB - 512, 20 * MIB),
            (10 * MIB, 10 * MIB),
            (10 * MIB + 512, 12 * MIB),
        ] {
            assert_eq!(segment_size(rounded, &o), Some(segment), "{rounded}");
        }
    }
}
