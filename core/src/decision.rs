//! The decision log: one record per decision, in a stable order, of integers and exact decimals.

use crate::backend::Rank;

/// A value in a record.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// An amount; the field's name ends in its unit.
    Int(i64),
    /// A float that the engine decides by, written as its shortest round-trip decimal.
    Float(f64),
    /// A name.
    Text(String),
    /// Yes or no.
    Flag(bool),
    /// Not known, or not given.
    Null,
    /// A list of amounts.
    Ints(Vec<u64>),
}

impl From<u64> for Value {
    /// Amounts beyond `i64::MAX`, which no machine has, stay at it.
    fn from(n: u64) -> Self {
        Self::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }
}

impl From<i64> for Value {
    fn from(n: i64) -> Self {
        Self::Int(n)
    }
}

impl From<bool> for Value {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<f64> for Value {
    fn from(x: f64) -> Self {
        Self::Float(x)
    }
}

impl From<&str> for Value {
    fn from(s: &str) -> Self {
        Self::Text(s.to_owned())
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(v: Option<T>) -> Self {
        v.map_or(Self::Null, Into::into)
    }
}

/// Which digest a field enters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Digest {
    /// `decisions` and `full`: must agree on every backend.
    Decisions,
    /// `full` only: a measured reading or time.
    Full,
}

/// One named value of a record.
#[derive(Clone, PartialEq, Debug)]
pub struct Field {
    /// snake_case, the unit last.
    pub name: &'static str,
    /// The value.
    pub value: Value,
    /// Where it counts.
    pub digest: Digest,
}

/// One decision, with the numbers it was made on.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    /// Stable name of the kind, for example `pool_sized`.
    pub kind: &'static str,
    /// The rank it concerns; `None` for the server as a whole.
    pub rank: Option<Rank>,
    /// Values in a fixed order.
    pub fields: Vec<Field>,
}

impl Record {
    /// A record of the server as a whole.
    #[must_use]
    #[inline]
    pub const fn new(kind: &'static str) -> Self {
        Self { kind, rank: None, fields: Vec::new() }
    }

    /// A record of one rank.
    #[must_use]
    #[inline]
    pub const fn of(kind: &'static str, rank: Rank) -> Self {
        Self { kind, rank: Some(rank), fields: Vec::new() }
    }

    /// The same with room for `fields` of them.
    #[must_use]
    #[inline]
    pub fn with_room(mut self, fields: usize) -> Self {
        self.fields.reserve(fields);
        self
    }

    /// Adds a value that every backend must agree on.
    #[must_use]
    #[inline]
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push(Field { name, value: value.into(), digest: Digest::Decisions });
        self
    }

    /// Adds a measured value.
    #[must_use]
    #[inline]
    pub fn measured(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push(Field { name, value: value.into(), digest: Digest::Full });
        self
    }
}

/// Receives records in order. A sink that writes keeps its first error for its end.
pub trait DecisionSink {
    /// Takes one record.
    fn record(&mut self, record: Record);
}

impl DecisionSink for Vec<Record> {
    fn record(&mut self, record: Record) {
        self.push(record);
    }
}
