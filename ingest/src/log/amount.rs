//! Figures as a log prints them: a value and the interval that its rounding allows.

use std::fmt;

use plimsoll_core::units::GIB;

/// A printed amount of memory. Signed: engines print differences (`mem usage=-5.29 GB`) and budgets below
/// zero (`Available KV cache memory: -2.14 GiB`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Amount {
    /// The value printed, in bytes, to the nearest byte.
    pub bytes: i64,
    /// Half of the last printed digit, in bytes: the true value lies in `bytes ± half`. Zero when whole
    /// bytes were printed.
    pub half: i64,
}

impl Amount {
    /// An amount known to the byte.
    #[must_use]
    pub const fn exact(bytes: i64) -> Self {
        Self { bytes, half: 0 }
    }

    /// A GiB figure printed with `decimals` decimals. A value that no machine holds (over 2^43 GiB) saturates.
    #[must_use]
    pub fn gib(value: f64, decimals: u32) -> Self {
        let half = 0.5 * 0.1_f64.powi(i32::try_from(decimals).unwrap_or(i32::MAX)) * GIB as f64;
        Self { bytes: symmetric((value * GIB as f64).round() as i64), half: half.ceil() as i64 }
    }

    /// The value as a double of GiB.
    #[must_use]
    pub fn as_gib(self) -> f64 {
        self.bytes as f64 / GIB as f64
    }

    /// The smallest value that would print so.
    #[must_use]
    pub const fn least(self) -> i64 {
        symmetric(self.bytes.saturating_sub(self.half))
    }

    /// The largest value that would print so.
    #[must_use]
    pub const fn most(self) -> i64 {
        self.bytes.saturating_add(self.half)
    }
}

/// Figures of foreign text saturate; the smallest integer has no opposite, so it is not one of them.
const fn symmetric(bytes: i64) -> i64 {
    if bytes == i64::MIN { -i64::MAX } else { bytes }
}

/// Intervals add up: the sum of two printed figures is known to the sum of their halves.
impl std::ops::Add for Amount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: symmetric(self.bytes.saturating_add(other.bytes)),
            half: self.half.saturating_add(other.half),
        }
    }
}

/// As for a sum: the halves add up.
impl std::ops::Sub for Amount {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            bytes: symmetric(self.bytes.saturating_sub(other.bytes)),
            half: self.half.saturating_add(other.half),
        }
    }
}

/// In GiB with two decimals, as the engines' logs print it.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} GiB", self.as_gib())
    }
}
