//! Block ids: their forms, and how many tokens a block has.

use super::trace::MAX_BLOCK_SIZE;
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor},
};
use std::fmt;

/// One id: an integer, or 16 hexadecimal digits as hashes are written.
struct BlockId(u64);

impl<'de> Deserialize<'de> for BlockId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Id;
        impl Visitor<'_> for Id {
            type Value = BlockId;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a block id: an integer, or up to 16 hexadecimal digits")
            }
            fn visit_u64<E: de::Error>(self, id: u64) -> Result<BlockId, E> {
                Ok(BlockId(id))
            }
            fn visit_i64<E: de::Error>(self, id: i64) -> Result<BlockId, E> {
                // A hash that was written with its sign.
                Ok(BlockId(id as u64))
            }
            fn visit_str<E: de::Error>(self, id: &str) -> Result<BlockId, E> {
                let id = u64::from_str_radix(id, 16);
                id.map(BlockId).map_err(|_| E::custom("expected 1 to 16 hexadecimal digits"))
            }
        }
        d.deserialize_any(Id)
    }
}

/// Ids of the blocks of one prompt.
#[derive(Default)]
pub(super) struct BlockIds(pub(super) Vec<u64>);

impl<'de> Deserialize<'de> for BlockIds {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Ids;
        impl<'de> Visitor<'de> for Ids {
            type Value = BlockIds;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of block ids")
            }
            fn visit_unit<E: de::Error>(self) -> Result<BlockIds, E> {
                Ok(BlockIds::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<BlockIds, A::Error> {
                let mut ids = Vec::new();
                while let Some(BlockId(id)) = list.next_element()? {
                    ids.push(id);
                }
                Ok(BlockIds(ids))
            }
        }
        d.deserialize_any(Ids)
    }
}

/// What the rows say about the tokens of a block: a prompt of n tokens has n / size of them, rounded up,
/// the last one in part.
pub(super) struct BlockSizes {
    expected: Option<u64>,
    low: u64,
    high: u64,
    rows: u64,
    other: u64,
}

impl BlockSizes {
    pub(super) const fn new(expected: Option<u64>) -> Self {
        Self { expected, low: 1, high: MAX_BLOCK_SIZE, rows: 0, other: 0 }
    }

    pub(super) const fn set(&mut self, size: u64) {
        self.expected = Some(size);
    }

    /// A row of so many tokens with so many ids.
    pub(super) fn see(&mut self, tokens: u64, ids: usize) {
        if ids == 0 {
            return;
        }
        let ids = ids as u64;
        self.rows += 1;
        self.other += u64::from(self.expected.is_some_and(|size| tokens.div_ceil(size) != ids));
        self.low = self.low.max(tokens.div_ceil(ids));
        if ids > 1 {
            // The largest size under which one block less would not do.
            self.high = self.high.min((tokens.max(1) - 1) / (ids - 1));
        }
    }

    /// Tokens of a block; 0 without ids.
    pub(super) fn settle(&self, notes: &mut Vec<String>) -> Result<u64, String> {
        if self.rows == 0 {
            return Ok(0);
        }
        if let Some(size) = self.expected.filter(|_| self.other * 2 <= self.rows) {
            if self.other > 0 {
                notes.push(format!(
                    "{} of {} rows have more or fewer ids than their tokens make blocks of {size}: \
                     what is too much is cut, what is missing is new",
                    self.other, self.rows
                ));
            }
            return Ok(size);
        }
        let fits = (self.low..=self.high).contains(&self.low.next_power_of_two());
        if fits {
            let size = self.low.next_power_of_two();
            notes.push(format!("blocks have {size} tokens, as the rows show"));
            return Ok(size);
        }
        let tried = self.expected.map_or(String::new(), |size| format!(" ({size} do not fit)"));
        Err(format!(
            "the tokens of a block are not known{tried}, and no power of two fits the rows: give `block_size`"
        ))
    }
}
