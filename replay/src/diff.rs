//! The first difference of two decision logs, with the records around it.

use crate::{
    record::{DigestScope, FieldValue, Fields, Record},
    wire::Log,
};
use std::fmt;

/// Records shown before and after a difference.
pub const AROUND: usize = 3;

/// One field that differs.
#[derive(Clone, PartialEq, Debug)]
pub struct FieldDifference {
    /// Its name; `kind` and `rank` are compared as fields.
    pub name: String,
    /// In the first log; `None` when it has no such field.
    pub a: Option<FieldValue>,
    /// In the second log.
    pub b: Option<FieldValue>,
}

/// Where two logs part.
#[derive(Clone, PartialEq, Debug)]
pub struct Difference {
    /// Position among the compared records, from 0; `None` for the header.
    pub index: Option<usize>,
    /// The fields that differ; empty when one log ends here.
    pub fields: Vec<FieldDifference>,
    /// Up to three records before, the same in both.
    pub before: Vec<Record>,
    /// The record of the first log and up to three after it; empty where it has ended.
    pub a: Vec<Record>,
    /// The same of the second log.
    pub b: Vec<Record>,
}

/// Compares what `scope` covers: decisions alone, or all that was written. `None`: no difference.
/// A log that was cut off differs where it ends.
#[must_use]
pub fn diff(a: &Log, b: &Log, scope: DigestScope) -> Option<Difference> {
    let header = field_differences(&a.header, &b.header, scope);
    if !header.is_empty() {
        let none = Vec::new;
        let (before, a, b) = (none(), none(), none());
        return Some(Difference { index: None, fields: header, before, a, b });
    }
    let compared = |log: &Log| -> Vec<Record> {
        let kept =
            |r: &&Record| scope == DigestScope::Measured || r.scope == DigestScope::Decisions;
        log.records.iter().filter(kept).cloned().collect()
    };
    let (left, right) = (compared(a), compared(b));
    let index = left
        .iter()
        .zip(&right)
        .position(|(x, y)| !record_differences(x, y, scope).is_empty())
        .or_else(|| (left.len() != right.len()).then(|| left.len().min(right.len())))?;
    let fields = match (left.get(index), right.get(index)) {
        (Some(x), Some(y)) => record_differences(x, y, scope),
        _ => Vec::new(),
    };
    let window = |records: &[Record]| -> Vec<Record> {
        records.iter().skip(index).take(1 + AROUND).cloned().collect()
    };
    let before = left[index.saturating_sub(AROUND)..index].to_vec();
    Some(Difference { index: Some(index), fields, before, a: window(&left), b: window(&right) })
}

fn record_differences(a: &Record, b: &Record, scope: DigestScope) -> Vec<FieldDifference> {
    let mut found = Vec::new();
    let mut compare = |name: &str, a: Option<FieldValue>, b: Option<FieldValue>| {
        if !same(a.as_ref(), b.as_ref()) {
            found.push(FieldDifference { name: name.to_owned(), a, b });
        }
    };
    let rank = |r: &Record| r.rank.map(FieldValue::from);
    compare("kind", Some(a.kind.as_str().into()), Some(b.kind.as_str().into()));
    compare("rank", rank(a), rank(b));
    if scope == DigestScope::Measured {
        let measured = |r: &Record| Some(FieldValue::Flag(r.scope == DigestScope::Measured));
        compare("scope", measured(a), measured(b));
    }
    found.extend(field_differences(&a.fields, &b.fields, scope));
    found
}

/// Whether two values are written the same: what a log says, and NaN is NaN there.
fn same(a: Option<&FieldValue>, b: Option<&FieldValue>) -> bool {
    a.map(ToString::to_string) == b.map(ToString::to_string)
}

fn field_differences(a: &Fields, b: &Fields, scope: DigestScope) -> Vec<FieldDifference> {
    let mut found = group_differences(&a.decided, &b.decided);
    if scope == DigestScope::Measured {
        found.extend(group_differences(&a.measured, &b.measured));
    }
    found
}

/// Differences of two groups; an order that differs alone shows at the fields that moved.
fn group_differences(
    a: &[(String, FieldValue)],
    b: &[(String, FieldValue)],
) -> Vec<FieldDifference> {
    let value = |group: &[(String, FieldValue)], name: &str| {
        group.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone())
    };
    let mut found = Vec::new();
    for (name, x) in a {
        let y = value(b, name);
        if !same(y.as_ref(), Some(x)) {
            found.push(FieldDifference { name: name.clone(), a: Some(x.clone()), b: y });
        }
    }
    for (name, y) in b {
        if value(a, name).is_none() {
            found.push(FieldDifference { name: name.clone(), a: None, b: Some(y.clone()) });
        }
    }
    let names = |group: &[(String, FieldValue)]| -> Vec<String> {
        group.iter().map(|(name, _)| name.clone()).collect()
    };
    if found.is_empty() && names(a) != names(b) {
        let order = |group| Some(FieldValue::from(names(group)));
        found.push(FieldDifference {
            name: "order of fields".to_owned(),
            a: order(a),
            b: order(b),
        });
    }
    found
}

impl fmt::Display for Difference {
    /// `  ` before common lines, `- ` before those of the first log, `+ ` before those of the second.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            None => writeln!(f, "the headers differ")?,
            Some(_) => {
                let seq = |list: &[Record]| {
                    list.first()
                        .map_or_else(|| "its end".to_owned(), |r| format!("record {}", r.seq))
                };
                writeln!(f, "first difference: {} against {}", seq(&self.a), seq(&self.b))?;
            }
        }
        let shown = |value: &Option<FieldValue>| {
            value.as_ref().map_or_else(|| "nothing".to_owned(), ToString::to_string)
        };
        for field in &self.fields {
            writeln!(f, "  {}: {} against {}", field.name, shown(&field.a), shown(&field.b))?;
        }
        for record in &self.before {
            writeln!(f, "  {}", record.line())?;
        }
        for (mark, records) in [('-', &self.a), ('+', &self.b)] {
            for record in records {
                writeln!(f, "{mark} {}", record.line())?;
            }
        }
        Ok(())
    }
}
