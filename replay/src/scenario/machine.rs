//! Ranks that are weaker than the others.

use super::{
    form::{Form, checked},
    neighbours::Held,
    types::Machine,
    value::{Amount, RankIndex, optional_amount},
};
use plimsoll_core::units::Bytes;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use std::{borrow::Cow, fmt};

/// A rank whose device differs from that of the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WeakerRank {
    /// Which, from 0.
    pub rank: u32,
    /// Its capacity; `None`: as the others.
    pub capacity: Option<Bytes>,
    /// What other programs hold of it before the start; `None`: as on the others.
    pub others_hold: Option<Bytes>,
}

/// The weaker ranks, each at most once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WeakerRanks(pub Vec<WeakerRank>);

impl Machine {
    /// How a rank's device differs from the others.
    #[must_use]
    pub fn weaker_rank(&self, rank: u32) -> Option<&WeakerRank> {
        self.weaker.0.iter().find(|weaker| weaker.rank == rank)
    }

    /// What other programs hold of a rank's device before any event.
    #[must_use]
    pub fn others_at_start(&self, rank: u32) -> Option<Bytes> {
        self.weaker_rank(rank)?.others_hold
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WeakerForm {
    /// The rank, from 0.
    #[schemars(example = &3)]
    rank: RankIndex,
    /// Capacity of its device.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Amount>", example = &"80 GiB")]
    capacity: Option<Bytes>,
    /// What other programs hold of it before the start.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Held>", example = &"3 GiB")]
    others_hold: Option<Bytes>,
}

impl Form for WeakerForm {
    type Whole = WeakerRank;
    const EXPECTED: &'static str = "a rank, such as `{rank: 3, capacity: 80 GiB}`";

    fn build<E: de::Error>(self) -> Result<WeakerRank, E> {
        let rank = u32::try_from(self.rank.0).unwrap_or(u32::MAX);
        match (self.capacity, self.others_hold) {
            (None, None) => {
                Err(E::custom("a weaker rank says in what: `capacity`, `others_hold` or both"))
            }
            (Some(Bytes::ZERO), _) => Err(E::custom("a device has more than 0 B")),
            (capacity, others_hold) => Ok(WeakerRank { rank, capacity, others_hold }),
        }
    }
}

impl<'de> Deserialize<'de> for WeakerRank {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        checked::<WeakerForm, D>(d)
    }
}

impl<'de> Deserialize<'de> for WeakerRanks {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct RanksForm;
        impl<'de> Visitor<'de> for RanksForm {
            type Value = WeakerRanks;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rank such as `{rank: 3, capacity: 80 GiB}`, or a list of such")
            }
            fn visit_unit<E>(self) -> Result<WeakerRanks, E> {
                Ok(WeakerRanks::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<WeakerRanks, A::Error> {
                let mut ranks: Vec<WeakerRank> = Vec::new();
                while let Some(next) = list.next_element::<WeakerRank>()? {
                    if ranks.iter().any(|other| other.rank == next.rank) {
                        let message = format!("rank {} stands twice", next.rank);
                        return Err(de::Error::custom(message));
                    }
                    ranks.push(next);
                }
                Ok(WeakerRanks(ranks))
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<WeakerRanks, A::Error> {
                let rank = WeakerRank::deserialize(MapAccessDeserializer::new(map))?;
                Ok(WeakerRanks(vec![rank]))
            }
        }
        d.deserialize_any(RanksForm)
    }
}

impl JsonSchema for WeakerRanks {
    fn schema_name() -> Cow<'static, str> {
        "WeakerRanks".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        let rank = g.subschema_for::<WeakerForm>();
        json_schema!({ "anyOf": [rank, { "type": "array", "items": rank }] })
    }
}
