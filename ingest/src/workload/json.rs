//! Rows written as JSON: values, and what is wrong with them.

use super::error::BadRow;
use plimsoll_core::units::Nanos;
use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};
use std::fmt;

/// Reads one line.
pub(super) fn row<'t, T: Deserialize<'t>>(text: &'t str) -> Result<T, BadRow> {
    serde_json::from_str(text).map_err(|error| bad(text, &error))
}

/// What serde says, in parts: the field before the place, the value, what is allowed.
pub(super) fn bad(text: &str, error: &serde_json::Error) -> BadRow {
    // Bytes, from 1; at the end of the value.
    let end = error.column().min(text.len());
    let before = String::from_utf8_lossy(&text.as_bytes()[..end]);
    let column = before.chars().count().max(1) as u64;
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or_default();
    let bad = match message.strip_prefix("missing field `") {
        Some(rest) => BadRow::missing(rest.trim_end_matches('`'), "a value"),
        None => {
            let field = last_key(&before).unwrap_or("row");
            match message.split_once(", expected ") {
                Some((found, expected)) => {
                    let found = found.split_once(": ").map_or(found, |(_, found)| found);
                    BadRow::new(field, found.trim_matches('`'), expected)
                }
                None => BadRow::new(field, last_word(&before), format!("JSON: {message}")),
            }
        }
    };
    bad.at(error.line() as u64, Some(column))
}

/// The key that a place belongs to: the last `"name":` before it.
fn last_key(before: &str) -> Option<&str> {
    let (keys, _) = before.rsplit_once("\":")?;
    keys.rsplit_once('"').map(|(_, key)| key)
}

fn last_word(before: &str) -> &str {
    let word = before.rsplit([':', ',', '{', '[']).next().unwrap_or_default().trim();
    if word.is_empty() { before.trim() } else { word }
}

/// A name: a text, or a number as its text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Name(pub(super) String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Name;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name: a text or an integer")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Name, E> {
                Ok(Name(text.to_owned()))
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Name, E> {
                Ok(Name(number.to_string()))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Name, E> {
                Ok(Name(number.to_string()))
            }
        }
        d.deserialize_any(Text)
    }
}

/// A time of a file in nanoseconds, rounded to the nearest; `scale` is the file's unit.
///
/// # Errors
///
/// Below zero, above 500 years, or no number.
pub(super) fn nanos(field: &str, time: f64, scale: f64) -> Result<Nanos, BadRow> {
    let nanos = (time * scale + 0.5).floor();
    match (0.0..1.6e19).contains(&nanos) && time >= 0.0 {
        true => Ok(Nanos(nanos as u64)),
        false => Err(BadRow::new(field, time, "a time of 0 or more, at most 500 years")),
    }
}

/// Nanoseconds of a millisecond and of a second.
pub(super) const MILLIS: f64 = 1e6;
pub(super) const SECONDS: f64 = 1e9;
