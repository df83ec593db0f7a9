//! Lengths of prompts and answers: one, a list, or a distribution.

use super::{
    form::{Form, checked},
    value::Bounded,
};
use plimsoll_core::units::Tokens;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, SeqAccess, Unexpected, Visitor},
};
use std::{borrow::Cow, fmt};

/// Most tokens of one prompt or answer: token ids of two requests then never meet.
pub const MAX_TOKENS: u64 = 1 << 30;

/// A count of tokens, 1 to 2^30.
pub(crate) type TokenCount = Bounded<1, MAX_TOKENS>;

/// `deserialize_with` for an optional count of tokens.
pub(crate) fn optional_tokens<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    Ok(Option::<TokenCount>::deserialize(d)?.map(|count| count.0))
}

/// How long prompts or answers are, tokens.
#[derive(Clone, PartialEq, Debug)]
pub enum Lengths {
    /// All the same.
    Fixed(u64),
    /// One after the other, and from the beginning again; at least one.
    List(Vec<u64>),
    /// Each from `low` to `high` as likely.
    Uniform {
        /// Shortest.
        low: u64,
        /// Longest, at least `low`.
        high: u64,
    },
    /// Lognormal, rounded to the nearest token, cut at the ends.
    Lognormal(Lognormal),
}

impl Lengths {
    /// The longest that it can give.
    #[must_use]
    pub fn longest(&self) -> u64 {
        match self {
            Self::Fixed(n) => *n,
            Self::List(list) => list.iter().copied().max().unwrap_or(1),
            Self::Uniform { high, .. } => *high,
            Self::Lognormal(law) => law.max,
        }
    }
}

/// A lognormal law of lengths.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Lognormal {
    /// Its middle value before it is cut.
    pub middle: Middle,
    /// Standard deviation of the logarithm.
    pub sigma: f64,
    /// Shorter ones become this.
    pub min: u64,
    /// Longer ones become this.
    pub max: u64,
}

/// What the middle of a lognormal law is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Middle {
    /// The mean, tokens: log-mean is its logarithm less half of sigma squared.
    Mean(f64),
    /// The median, tokens: log-mean is its logarithm.
    Median(f64),
}

/// Reads a number within ends, both included.
pub(crate) fn number_within<'de, D: Deserializer<'de>>(
    d: D,
    low: f64,
    high: f64,
) -> Result<Option<f64>, D::Error> {
    match Option::<f64>::deserialize(d)? {
        Some(v) if !(low..=high).contains(&v) => Err(de::Error::invalid_value(
            Unexpected::Float(v),
            &format!("a number from {low} to {high}").as_str(),
        )),
        v => Ok(v),
    }
}

fn middle<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    number_within(d, 1.0, MAX_TOKENS as f64)
}

fn sigma<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    number_within(d, 0.0, 4.0)
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LognormalForm {
    /// Mean, tokens; or `median`.
    #[serde(default, deserialize_with = "middle")]
    #[schemars(range(min = 1, max = 1_073_741_824), example = &512)]
    mean: Option<f64>,
    /// Median, tokens; or `mean`.
    #[serde(default, deserialize_with = "middle")]
    #[schemars(range(min = 1, max = 1_073_741_824), example = &101)]
    median: Option<f64>,
    /// Standard deviation of the logarithm.
    #[serde(default, deserialize_with = "sigma")]
    #[schemars(required, range(min = 0, max = 4), example = &0.85)]
    sigma: Option<f64>,
    /// Shorter ones become this.
    #[serde(default, deserialize_with = "optional_tokens")]
    #[schemars(with = "Option<TokenCount>", example = &4)]
    min: Option<u64>,
    /// Longer ones become this.
    #[serde(default, deserialize_with = "optional_tokens")]
    #[schemars(with = "Option<TokenCount>", example = &2048)]
    max: Option<u64>,
}

impl Form for LognormalForm {
    type Whole = Lognormal;
    const EXPECTED: &'static str = "a law, such as `{median: 101, sigma: 1.0}`";

    fn build<E: de::Error>(self) -> Result<Lognormal, E> {
        let middle = match (self.mean, self.median) {
            (Some(mean), None) => Middle::Mean(mean),
            (None, Some(median)) => Middle::Median(median),
            _ => return Err(E::custom("a lognormal law has either a `mean` or a `median`")),
        };
        let Some(sigma) = self.sigma else { return Err(E::missing_field("sigma")) };
        let (min, max) = (self.min.unwrap_or(1), self.max.unwrap_or(MAX_TOKENS));
        if min > max {
            return Err(E::custom(format!("`min` is {min}, above `max`, which is {max}")));
        }
        Ok(Lognormal { middle, sigma, min, max })
    }
}

impl<'de> Deserialize<'de> for Lognormal {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        checked::<LognormalForm, D>(d)
    }
}

/// The mapping forms; exactly one key.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Law {
    Uniform,
    Lognormal,
}

fn uniform<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Lengths, A::Error> {
    let ends: Vec<TokenCount> = map.next_value()?;
    match ends.as_slice() {
        [low, high] if low.0 <= high.0 => Ok(Lengths::Uniform { low: low.0, high: high.0 }),
        _ => Err(de::Error::custom(
            "`uniform` is a list of two, shortest first, such as `uniform: [64, 512]`",
        )),
    }
}

impl<'de> Deserialize<'de> for Lengths {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(LengthsVisitor)
    }
}

struct LengthsVisitor;

impl<'de> Visitor<'de> for LengthsVisitor {
    type Value = Lengths;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "1 to {MAX_TOKENS} tokens, a list of such, {{uniform: [64, 512]}} or \
             {{lognormal: {{median: 101, sigma: 1.0}}}}"
        )
    }

    fn visit_u64<E: de::Error>(self, v: u64) -> Result<Lengths, E> {
        match v {
            1..=MAX_TOKENS => Ok(Lengths::Fixed(v)),
            _ => Err(E::invalid_value(Unexpected::Unsigned(v), &self)),
        }
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Lengths, E> {
        Err(E::invalid_value(Unexpected::Signed(v), &self))
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Lengths, E> {
        Err(E::invalid_value(Unexpected::Float(v), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Lengths, E> {
        match text.parse::<Tokens>() {
            Ok(tokens) => self.visit_u64(tokens.0),
            Err(_) => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Lengths, A::Error> {
        let mut lengths = Vec::new();
        while let Some(TokenCount { 0: length }) = list.next_element()? {
            lengths.push(length);
        }
        match lengths.is_empty() {
            true => Err(de::Error::custom("a list of lengths has at least one")),
            false => Ok(Lengths::List(lengths)),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Lengths, A::Error> {
        let law = match map.next_key()? {
            Some(Law::Uniform) => uniform(&mut map)?,
            Some(Law::Lognormal) => Lengths::Lognormal(map.next_value()?),
            None => return Err(de::Error::custom("a law is `uniform` or `lognormal`")),
        };
        match map.next_key::<Law>()? {
            None => Ok(law),
            Some(_) => Err(de::Error::custom("lengths have one law: `uniform` or `lognormal`")),
        }
    }
}

impl JsonSchema for Lengths {
    fn schema_name() -> Cow<'static, str> {
        "Lengths".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        let count = g.subschema_for::<TokenCount>();
        let law = g.subschema_for::<LognormalForm>();
        json_schema!({ "title": "length", "anyOf": [
            count,
            { "type": "string", "pattern": r"^[0-9][0-9_, ]*tokens?$" },
            { "type": "array", "items": count, "minItems": 1 },
            { "type": "object", "additionalProperties": false, "minProperties": 1,
              "maxProperties": 1, "properties": {
                "uniform": { "title": "[shortest, longest]", "type": "array",
                  "description": "Each length from the first to the second as likely.",
                  "items": count, "minItems": 2, "maxItems": 2, "examples": [[64, 512]] },
                "lognormal": { "anyOf": [law],
                  "description": "A lognormal law, rounded to the nearest token and cut at the ends." },
              } },
        ]})
    }
}
