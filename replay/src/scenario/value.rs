//! Value types of the scenario format that check themselves while they are read: amounts with units,
//! fractions, bounded integers, readings with one value for all ranks or one for each.

use plimsoll_core::{
    figure::Tag,
    units::{AmountError, Bytes},
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, Expected, MapAccess, SeqAccess, Unexpected, Visitor, value::MapAccessDeserializer},
};
use std::{borrow::Cow, fmt};

use crate::problem::near;

/// Units that an amount of memory may have.
pub const UNITS: [&str; 9] = ["B", "KiB", "MiB", "GiB", "TiB", "KB", "MB", "GB", "TB"];

/// Pattern of an amount in the JSON schema.
const AMOUNT_PATTERN: &str = r"^\s*[0-9][0-9_,]*(\.[0-9]+)?\s*([KMGT]iB|[KkMGT]B|B)\s*$";

/// An amount of memory as it stands in a file: a number with its unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Amount(pub(crate) Bytes);

struct AmountExpected(AmountError);

impl Expected for AmountExpected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number with a unit of memory, such as `24.25 GiB`; units: ")?;
        f.write_str(&UNITS.join(", "))?;
        match &self.0 {
            AmountError::NoUnit(n) => write!(f, "; did you mean `{n} GiB`?"),
            AmountError::UnknownUnit { unit } => match near(unit, UNITS) {
                Some(unit) => write!(f, "; did you mean `{unit}`?"),
                None => Ok(()),
            },
            AmountError::NotANumber(_) => Ok(()),
        }
    }
}

/// Reads an amount out of its text.
pub(crate) fn amount<E: de::Error>(text: &str) -> Result<Bytes, E> {
    text.parse().map_err(|e| E::invalid_value(Unexpected::Str(text), &AmountExpected(e)))
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Amount;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an amount of memory with its unit, such as `24.25 GiB`")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Amount, E> {
                amount(text).map(Amount)
            }
        }
        d.deserialize_str(Text)
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "title": "amount", "type": "string", "pattern": AMOUNT_PATTERN })
    }
}

/// `deserialize_with` for an optional amount.
pub(crate) fn optional_amount<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Bytes>, D::Error> {
    Ok(Option::<Amount>::deserialize(d)?.map(|amount| amount.0))
}

/// `deserialize_with` for a required amount.
pub(crate) fn required_amount<'de, D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
    Ok(Amount::deserialize(d)?.0)
}

/// An integer from `MIN` to `MAX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bounded<const MIN: u64, const MAX: u64>(pub(crate) u64);

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Bounded<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Range<const MIN: u64, const MAX: u64>;
        impl<const MIN: u64, const MAX: u64> Visitor<'_> for Range<MIN, MAX> {
            type Value = u64;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an integer from {MIN} to {MAX}")
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<u64, E> {
                if (MIN..=MAX).contains(&v) {
                    return Ok(v);
                }
                Err(E::invalid_value(Unexpected::Unsigned(v), &self))
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<u64, E> {
                Err(E::invalid_value(Unexpected::Signed(v), &self))
            }
            fn visit_f64<E: de::Error>(self, v: f64) -> Result<u64, E> {
                Err(E::invalid_value(Unexpected::Float(v), &self))
            }
        }
        d.deserialize_u64(Range::<MIN, MAX>).map(Self)
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Bounded<MIN, MAX> {
    fn schema_name() -> Cow<'static, str> {
        format!("Bounded_{MIN}_{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }
}

/// Most ranks of one server.
pub const MAX_RANKS: u64 = 1024;
/// `machine.ranks`.
pub(crate) type RankCount = Bounded<1, MAX_RANKS>;
/// A rank, from 0.
pub(crate) type RankIndex = Bounded<0, { MAX_RANKS - 1 }>;
/// A count of tokens, layers or rows: 1 to 2^40.
pub(crate) type Count = Bounded<1, { 1 << 40 }>;

/// `deserialize_with` for an optional count of 1 and more.
pub(crate) fn optional_count<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    Ok(Option::<Count>::deserialize(d)?.map(|count| count.0))
}

/// `deserialize_with` for `machine.ranks`.
pub(crate) fn optional_ranks<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u32>, D::Error> {
    Ok(Option::<RankCount>::deserialize(d)?.and_then(|count| u32::try_from(count.0).ok()))
}

/// One reading of memory: the same on every rank, or one value for each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PerRank {
    /// Every rank reads this.
    All(Bytes),
    /// Rank i reads the i-th; at least one value.
    Each(Vec<Bytes>),
}

impl PerRank {
    /// What `rank` reads; `None` past the end of a list.
    #[must_use]
    pub fn get(&self, rank: usize) -> Option<Bytes> {
        match self {
            Self::All(value) => Some(*value),
            Self::Each(list) => list.get(rank).copied(),
        }
    }

    /// The values that are written down, at least one.
    #[must_use]
    pub fn values(&self) -> &[Bytes] {
        match self {
            Self::All(value) => std::slice::from_ref(value),
            Self::Each(list) => list,
        }
    }

    /// The smallest value that is written down.
    #[must_use]
    pub fn min(&self) -> Bytes {
        self.values().iter().copied().min().unwrap_or(Bytes::ZERO)
    }
}

/// A declared reading: its values and where they come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reading {
    /// The amounts.
    pub values: PerRank,
    /// Where the numbers come from.
    pub source: Option<String>,
    /// What they rest on: [`Tag::Calibrated`] when `calibrated: true` is written, else [`Tag::Measured`].
    pub tag: Tag,
}

impl Reading {
    /// What `rank` reads; `None` past the end of a list.
    #[must_use]
    pub fn get(&self, rank: usize) -> Option<Bytes> {
        self.values.get(rank)
    }
}

impl<'de> Deserialize<'de> for PerRank {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Values;
        impl<'de> Visitor<'de> for Values {
            type Value = PerRank;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an amount of memory such as `24.25 GiB`, or a list with one per rank")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<PerRank, E> {
                amount(text).map(PerRank::All)
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<PerRank, E> {
                self.visit_str(&v.to_string())
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<PerRank, E> {
                self.visit_str(&v.to_string())
            }
            fn visit_f64<E: de::Error>(self, v: f64) -> Result<PerRank, E> {
                self.visit_str(&v.to_string())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PerRank, A::Error> {
                let mut values = Vec::new();
                while let Some(Amount(value)) = list.next_element()? {
                    values.push(value);
                }
                if values.is_empty() || values.len() as u64 > MAX_RANKS {
                    return Err(de::Error::invalid_length(
                        values.len(),
                        &format!("1 to {MAX_RANKS} amounts, one per rank").as_str(),
                    ));
                }
                Ok(PerRank::Each(values))
            }
        }
        d.deserialize_any(Values)
    }
}

/// The long form of a reading.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LongReading {
    /// The amount, or a list with one per rank.
    value: PerRank,
    /// Where the number comes from.
    source: Option<String>,
    /// `true` for a number that was back-solved or fitted; a `source` must then stand here or at the top.
    #[serde(default)]
    calibrated: bool,
}

impl<'de> Deserialize<'de> for Reading {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = Reading;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "an amount such as `24.25 GiB`, a list with one per rank, or \
                     {value, source, calibrated}",
                )
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Reading, E> {
                amount(text).map(|value| plain(PerRank::All(value)))
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<Reading, E> {
                self.visit_str(&v.to_string())
            }
            fn visit_i64<E: de::Error>(self, v: i64) -> Result<Reading, E> {
                self.visit_str(&v.to_string())
            }
            fn visit_f64<E: de::Error>(self, v: f64) -> Result<Reading, E> {
                self.visit_str(&v.to_string())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Reading, A::Error> {
                PerRank::deserialize(de::value::SeqAccessDeserializer::new(list)).map(plain)
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Reading, A::Error> {
                let long = LongReading::deserialize(MapAccessDeserializer::new(map))?;
                let tag = if long.calibrated { Tag::Calibrated } else { Tag::Measured };
                Ok(Reading { values: long.value, source: long.source, tag })
            }
        }
        d.deserialize_any(Form)
    }
}

fn plain(values: PerRank) -> Reading {
    Reading { values, source: None, tag: Tag::Measured }
}

impl JsonSchema for PerRank {
    fn schema_name() -> Cow<'static, str> {
        "PerRank".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        let amount = g.subschema_for::<Amount>();
        json_schema!({ "anyOf": [
            amount, { "type": "array", "items": amount, "minItems": 1, "maxItems": MAX_RANKS }
        ]})
    }
}

impl JsonSchema for Reading {
    fn schema_name() -> Cow<'static, str> {
        "Reading".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        let (amount, long) = (g.subschema_for::<Amount>(), g.subschema_for::<LongReading>());
        json_schema!({ "anyOf": [
            amount, { "type": "array", "items": amount, "minItems": 1, "maxItems": MAX_RANKS }, long
        ]})
    }
}
