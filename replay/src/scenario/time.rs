//! Times and rates of the scenario format: a number with its unit.

use crate::problem::near;
use plimsoll_core::units::Nanos;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, Unexpected, Visitor},
};
use std::{borrow::Cow, fmt};

/// Units of time and their nanoseconds.
const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// The longest time that a file can hold: 366 days.
pub const MAX_TIME: Nanos = Nanos(366 * 86_400_000_000_000);

/// A decimal number as it is written: `digits / 10^places`.
struct Decimal {
    digits: u128,
    places: u32,
}

/// Most digits of a number with a unit.
const MAX_DIGITS: usize = 20;

/// Splits `12.5 s` into its number and its unit; `None` where no plain number leads.
fn split(text: &str) -> Option<(Decimal, &str)> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || whole.len() + part.len() > MAX_DIGITS || part.contains('.') {
        return None;
    }
    let digits = format!("{whole}{part}").parse().ok()?;
    Some((Decimal { digits, places: u32::try_from(part.len()).ok()? }, unit.trim()))
}

fn unit(name: &str) -> Option<u64> {
    UNITS.iter().find(|(unit, _)| *unit == name).map(|(_, nanos)| *nanos)
}

/// What is wrong with the text of a time.
fn time_expected(text: &str) -> String {
    let form =
        "a time with its unit, such as `12 s`, up to 366 days; units: ns, us, ms, s, min, h, d";
    match split(text) {
        Some((_, "")) => format!("{form}; did you mean `{} s`?", text.trim()),
        Some((_, other)) => match near(other, UNITS.iter().map(|(unit, _)| *unit)) {
            Some(unit) if unit != other => format!("{form}; did you mean `{unit}`?"),
            _ => form.to_owned(),
        },
        None => form.to_owned(),
    }
}

/// Reads `12 s`, `1.5 h`, `250ms`; rounds to the nearest nanosecond, half up.
///
/// # Errors
/// What is allowed, in words.
pub fn nanos(text: &str) -> Result<Nanos, String> {
    let value = split(text).and_then(|(number, name)| {
        let scaled = number.digits.checked_mul(u128::from(unit(name)?))?;
        let divisor = 10_u128.pow(number.places);
        u64::try_from((scaled + divisor / 2) / divisor).ok()
    });
    match value {
        Some(value) if value <= MAX_TIME.0 => Ok(Nanos(value)),
        _ => Err(time_expected(text)),
    }
}

/// The exact text of a time in its largest unit of at least 1, seconds at most: `12.5 s`, `250 ms`.
#[must_use]
pub fn show(time: Nanos) -> String {
    let (name, scale) = UNITS
        .iter()
        .take(4)
        .rev()
        .find(|(_, scale)| time.0 >= *scale)
        .copied()
        .unwrap_or(("s", 1_000_000_000));
    let (whole, rest) = (time.0 / scale, time.0 % scale);
    if rest == 0 {
        return format!("{whole} {name}");
    }
    let width = scale.to_string().len() - 1;
    let part = format!("{rest:0width$}");
    format!("{whole}.{} {name}", part.trim_end_matches('0'))
}

/// A time as it stands in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span(pub(crate) Nanos);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Span;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time with its unit, such as `12 s`")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                nanos(text)
                    .map(Span)
                    .map_err(|expected| E::invalid_value(Unexpected::Str(text), &expected.as_str()))
            }
        }
        d.deserialize_str(Text)
    }
}

impl JsonSchema for Span {
    fn schema_name() -> Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = r"^\s*[0-9]+(\.[0-9]+)?\s*(ns|us|ms|s|min|h|d)\s*$";
        json_schema!({ "title": "time", "type": "string", "pattern": pattern })
    }
}

/// `deserialize_with` for an optional time.
pub(crate) fn optional_span<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Nanos>, D::Error> {
    Ok(Option::<Span>::deserialize(d)?.map(|span| span.0))
}

/// `deserialize_with` for an optional time of more than 0.
pub(crate) fn positive_span<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Nanos>, D::Error> {
    let span = optional_span(d)?;
    if span == Some(Nanos(0)) {
        return Err(de::Error::invalid_value(Unexpected::Str("0"), &"a time of more than 0"));
    }
    Ok(span)
}

/// A rate: `count` events in every `per` nanoseconds, exactly as it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Events; at least 1.
    pub count: u64,
    /// Nanoseconds; at least 1.
    pub per: u64,
}

impl Rate {
    /// A number of events a second, as a flag has it: `8`, `0.5`.
    #[must_use]
    pub fn per_second(text: &str) -> Option<Self> {
        rate(&format!("{text} /s"))
    }

    /// When the n-th event of an even rhythm is, from 0 at 0; rounded down.
    #[must_use]
    pub fn even(self, n: u64) -> Nanos {
        let at = u128::from(n) * u128::from(self.per) / u128::from(self.count);
        Nanos(u64::try_from(at).unwrap_or(u64::MAX))
    }

    /// Mean gap between events, nanoseconds.
    #[must_use]
    pub fn mean_gap(self) -> f64 {
        self.per as f64 / self.count as f64
    }
}

/// Reads `5 /s`, `0.5/s`, `300 /min`.
fn rate(text: &str) -> Option<Rate> {
    let (number, unit_text) = split(text)?;
    let per = unit(unit_text.strip_prefix('/')?.trim())?;
    let count = u64::try_from(number.digits).ok().filter(|count| *count > 0)?;
    // Below one in 366 days nothing arrives; above one a nanosecond there is no order.
    let per = per.checked_mul(10_u64.checked_pow(number.places)?)?;
    let rate = Rate { count, per };
    ((1.0..=MAX_TIME.0 as f64).contains(&rate.mean_gap())).then_some(rate)
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Rate;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rate of more than 0, such as `5 /s` or `30 /min`")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Rate, E> {
                rate(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        d.deserialize_str(Text)
    }
}

impl JsonSchema for Rate {
    fn schema_name() -> Cow<'static, str> {
        "Rate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = r"^\s*[0-9]+(\.[0-9]+)?\s*/\s*(ns|us|ms|s|min|h|d)\s*$";
        json_schema!({ "title": "rate", "type": "string", "pattern": pattern })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_are_read_to_the_nanosecond() {
        let cases = [
            ("12 s", 12_000_000_000),
            ("1.5h", 5_400_000_000_000),
            ("250 ms", 250_000_000),
            ("0 s", 0),
            ("0.0000000005 s", 1),
            ("0.0000000004 s", 0),
            ("366 d", MAX_TIME.0),
        ];
        for (text, expected) in cases {
            assert_eq!(nanos(text), Ok(Nanos(expected)), "{text}");
        }
        for text in ["", "12", "s", "-1 s", "1.2.3 s", "367 d", "1e3 s", "12 sec", ".5 s"] {
            assert!(nanos(text).is_err(), "{text}");
        }
        assert!(nanos("12").unwrap_err().ends_with("did you mean `12 s`?"));
        assert!(nanos("12 mins").unwrap_err().ends_with("did you mean `min`?"));
    }

    #[test]
    fn rates_are_exact() {
        assert_eq!(rate("5 /s"), Some(Rate { count: 5, per: 1_000_000_000 }));
        assert_eq!(rate("0.5/s"), Some(Rate { count: 5, per: 10_000_000_000 }));
        let three = rate("3 /s").unwrap();
        assert_eq!((three.even(1), three.even(3)), (Nanos(333_333_333), Nanos(1_000_000_000)));
        for text in ["5", "0 /s", "5 s", "/s", "2 /ns", "-1 /s", "0.001 /d"] {
            assert_eq!(rate(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(time in 0..=MAX_TIME.0) {
            prop_assert_eq!(nanos(&show(Nanos(time))), Ok(Nanos(time)));
        }
    }
}
