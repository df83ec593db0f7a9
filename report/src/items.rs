//! Decisions as a page keeps them: the names of their fields once, their values in a short list.

use plimsoll_replay::record::{FieldValue, Record};
use serde_json::{Value, json};

/// One decision: the number of its form, its position in the log, its values.
#[derive(Clone, PartialEq, Debug)]
pub struct Item(Vec<Value>);

impl Item {
    /// As JSON.
    #[must_use]
    pub(crate) fn json(&self) -> Value {
        Value::Array(self.0.clone())
    }
}

/// The forms of decisions: kind, and names of fields in their order.
#[derive(Clone, Default, Debug)]
pub(crate) struct Forms(Vec<(String, Vec<String>)>);

/// Name of the rank among the fields.
const RANK: &str = "rank";

impl Forms {
    /// A record at position `seq`.
    pub(crate) fn item(&mut self, seq: u64, record: &Record) -> Item {
        let fields = || record.fields.decided.iter().chain(&record.fields.measured);
        let ranks = record.rank.iter().map(|_| RANK);
        let same = |(kind, names): &(String, Vec<String>)| {
            *kind == record.kind
                && names
                    .iter()
                    .map(String::as_str)
                    .eq(ranks.clone().chain(fields().map(|(name, _)| name.as_str())))
        };
        let form = self.0.iter().position(same).unwrap_or_else(|| {
            let names = ranks.clone().chain(fields().map(|(name, _)| name.as_str()));
            self.0.push((record.kind.clone(), names.map(str::to_owned).collect()));
            self.0.len() - 1
        });
        let mut values = vec![json!(form), json!(seq)];
        values.extend(record.rank.map(|rank| json!(rank)));
        values.extend(fields().map(|(_, value)| json_of(value)));
        Item(values)
    }

    pub(crate) fn json(&self) -> Value {
        json!(self.0)
    }
}

/// A value of a record.
pub(crate) fn json_of(value: &FieldValue) -> Value {
    match value {
        FieldValue::Unsigned(n) => json!(n),
        FieldValue::Signed(n) => json!(n),
        FieldValue::Float(x) if x.is_finite() => json!(x),
        FieldValue::Float(x) => json!(x.to_string()),
        FieldValue::Text(text) => json!(text),
        FieldValue::Flag(flag) => json!(flag),
        FieldValue::List(list) => list.iter().map(json_of).collect(),
    }
}
