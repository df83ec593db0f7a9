//! Amounts with their unit in the type. Rounding is always in the method name.

use std::{fmt, str::FromStr};

/// Bytes in one kibibyte, mebibyte and gibibyte.
pub const KIB: u64 = 1 << 10;
/// Bytes in one mebibyte.
pub const MIB: u64 = 1 << 20;
/// Bytes in one gibibyte; what SGLang and vLLM logs print as "GB" or "GiB".
pub const GIB: u64 = 1 << 30;

/// A byte count. Prints in binary units; SGLang prints the same value as "GB".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

/// A count of KV token slots.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Tokens(pub u64);

/// Time since the start of a run, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Nanos(pub u64);

impl Bytes {
    /// Zero bytes.
    pub const ZERO: Self = Self(0);

    /// `n` binary kibibytes.
    #[must_use]
    pub const fn kib(n: u64) -> Self {
        Self(n * KIB)
    }

    /// `n` binary mebibytes.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n * MIB)
    }

    /// `n` binary gibibytes.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n * GIB)
    }

    /// Nearest whole byte of a GiB figure; negative and non-finite become zero.
    #[must_use]
    pub fn from_gib_f64(gib: f64) -> Self {
        Self((gib * GIB as f64).round().max(0.0) as u64)
    }

    /// The amount as a double of GiB; exact below 2^53 bytes.
    #[must_use]
    pub fn as_gib_f64(self) -> f64 {
        self.0 as f64 / GIB as f64
    }

    /// `self - rhs`, or `None` when `rhs` is larger.
    #[must_use]
    pub const fn checked_sub(self, rhs: Self) -> Option<Self> {
        match self.0.checked_sub(rhs.0) {
            Some(bytes) => Some(Self(bytes)),
            None => None,
        }
    }

    /// `self - rhs`, zero when `rhs` is larger.
    #[must_use]
    pub const fn saturating_sub(self, rhs: Self) -> Self {
        Self(self.0.saturating_sub(rhs.0))
    }

    /// `self + rhs`, clamped to the largest amount.
    #[must_use]
    pub const fn saturating_add(self, rhs: Self) -> Self {
        Self(self.0.saturating_add(rhs.0))
    }

    /// Rounded up to a multiple of `unit`; `unit` zero leaves it as it is.
    #[must_use]
    pub const fn round_up_to(self, unit: Self) -> Self {
        if unit.0 == 0 { self } else { Self(self.0.div_ceil(unit.0) * unit.0) }
    }
}

impl std::ops::Add for Bytes {
    type Output = Self;
    fn add(self, rhs: Self) -> Self {
        Self(self.0 + rhs.0)
    }
}

impl std::ops::AddAssign for Bytes {
    fn add_assign(&mut self, rhs: Self) {
        self.0 += rhs.0;
    }
}

impl std::iter::Sum for Bytes {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        Self(iter.map(|b| b.0).sum())
    }
}

impl fmt::Display for Bytes {
    /// Two decimals, rounded to nearest, ties up: `31.10 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            b if b >= GIB => (GIB, "GiB"),
            b if b >= MIB => (MIB, "MiB"),
            b if b >= KIB => (KIB, "KiB"),
            b => return write!(f, "{b} B"),
        };
        let hundredths = (u128::from(self.0) * 100 + u128::from(unit / 2)) / u128::from(unit);
        write!(f, "{}.{:02} {name}", hundredths / 100, hundredths % 100)
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0)
    }
}

impl fmt::Display for Tokens {
    /// Thousands separated by commas: `231,120`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&group_thousands(self.0))
    }
}

/// `1234567` as `1,234,567`.
#[must_use]
pub fn group_thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Why a text is not an amount.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    /// A number without a unit.
    #[error("`{0}` has no unit; write `{0} GiB`, `{0} MiB` or `{0} B`")]
    NoUnit(String),
    /// A unit that is not one of bytes.
    #[error(
        "`{unit}` is not a unit of memory; use B, KiB, MiB, GiB, TiB (2^10 steps) or KB, MB, GB, TB (10^3 steps)"
    )]
    UnknownUnit {
        /// As written.
        unit: String,
    },
    /// Not a number, or a negative one.
    #[error("`{0}` is not an amount of memory; write for example `24.25 GiB`")]
    NotANumber(String),
}

impl FromStr for Bytes {
    type Err = AmountError;

    /// `24.25 GiB`, `512MiB`, `48 GB` (decimal), `1024 B`; rounds to the nearest byte.
    fn from_str(text: &str) -> Result<Self, AmountError> {
        let text = text.trim();
        let split = text
            .find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_' || c == ','))
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let number: String = number.chars().filter(|c| *c != '_' && *c != ',').collect();
        let value: f64 = number.parse().map_err(|_| AmountError::NotANumber(text.to_owned()))?;
        let scale = match unit.trim() {
            "" => return Err(AmountError::NoUnit(text.to_owned())),
            "B" => 1.0,
            "KiB" => KIB as f64,
            "MiB" => MIB as f64,
            "GiB" => GIB as f64,
            "TiB" => GIB as f64 * 1024.0,
            "KB" | "kB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            "TB" => 1e12,
            other => return Err(AmountError::UnknownUnit { unit: other.to_owned() }),
        };
        let bytes = (value * scale).round();
        if !bytes.is_finite() || bytes >= u64::MAX as f64 {
            return Err(AmountError::NotANumber(text.to_owned()));
        }
        Ok(Self(bytes as u64))
    }
}

impl FromStr for Tokens {
    type Err = AmountError;

    /// `8192 tokens` or `1 token`; the unit is required.
    fn from_str(text: &str) -> Result<Self, AmountError> {
        let text = text.trim();
        let number = text.strip_suffix("tokens").or_else(|| text.strip_suffix("token"));
        let Some(number) = number else {
            return Err(AmountError::UnknownUnit { unit: text.to_owned() });
        };
        let digits: String = number.chars().filter(|c| !matches!(c, '_' | ',' | ' ')).collect();
        digits.parse().map(Self).map_err(|_| AmountError::NotANumber(text.to_owned()))
    }
}

#[cfg(feature = "serde")]
mod serde_impls {
    use super::{Bytes, Tokens};
    use serde::{Deserialize, Deserializer, de::Error as _};

    impl<'de> Deserialize<'de> for Bytes {
        fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
            String::deserialize(d)?.parse().map_err(D::Error::custom)
        }
    }

    impl<'de> Deserialize<'de> for Tokens {
        fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
            String::deserialize(d)?.parse().map_err(D::Error::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_print_and_parse_in_binary_units() {
        assert_eq!(Bytes(33_390_000_000).to_string(), "31.10 GiB");
        assert_eq!("24.25 GiB".parse(), Ok(Bytes(26_038_239_232)));
        assert_eq!("48 GB".parse(), Ok(Bytes(48_000_000_000)));
        assert!(matches!("48".parse::<Bytes>(), Err(AmountError::NoUnit(_))));
        assert_eq!(Tokens(231_120).to_string(), "231,120");
        assert_eq!("8,192 tokens".parse(), Ok(Tokens(8192)));
    }
}
