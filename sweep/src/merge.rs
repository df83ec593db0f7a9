//! Shards of one sweep, put together.

use crate::{
    question::header::{Header, Shard},
    row::Row,
    rows_file::RowsRead,
};
use std::collections::BTreeMap;

/// Whether every point must be there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Completeness {
    /// All of them.
    Whole,
    /// Those that are there.
    Partial,
}

/// Why shards are not one sweep.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MergeError {
    /// None at all.
    #[error("no shard is given")]
    Nothing,
    /// A file that breaks off in its first line.
    #[error("{0} has no header: it broke off in its first line")]
    NoHeader(String),
    /// Two questions.
    #[error("{first} and {other} answer different questions: {what}")]
    Other {
        /// One.
        first: String,
        /// The other.
        other: String,
        /// What differs.
        what: String,
    },
    /// One point, two answers.
    #[error("the point {index} has different rows in {first} and {other}")]
    Conflict {
        /// The point.
        index: u64,
        /// One.
        first: String,
        /// The other.
        other: String,
    },
    /// One part given twice.
    #[error("the point {index} stands in {first} and in {other}")]
    Twice {
        /// The point.
        index: u64,
        /// One.
        first: String,
        /// The other.
        other: String,
    },
    /// Points that no shard has.
    #[error(
        "{count} of {points} points are missing: {indexes}; run those shards to their end, or pass --partial"
    )]
    Missing {
        /// How many.
        count: u64,
        /// Of how many.
        points: u64,
        /// Which, as spans, the first ones.
        indexes: String,
    },
}

/// A merged sweep.
#[derive(Clone, PartialEq, Debug)]
pub struct Merged {
    /// The header of the whole.
    pub header: Header,
    /// Its rows, in order.
    pub rows: Vec<Row>,
    /// Points that are missing; none, unless that was allowed.
    pub missing: u64,
}

/// Puts shards together, each with the name of its file.
///
/// # Errors
///
/// [`MergeError`].
pub fn merge(
    shards: Vec<(String, RowsRead)>,
    completeness: Completeness,
) -> Result<Merged, MergeError> {
    let mut whole: Option<(String, Header)> = None;
    let mut rows: BTreeMap<u64, (Row, String)> = BTreeMap::new();
    for (file, read) in shards {
        let header = read.header.ok_or_else(|| MergeError::NoHeader(file.clone()))?;
        let header = Header { shard: Shard::WHOLE, ..header };
        match &whole {
            None => whole = Some((file.clone(), header)),
            Some((first, there)) => {
                if let Some(what) = there.difference(&header) {
                    return Err(MergeError::Other { first: first.clone(), other: file, what });
                }
            }
        }
        for row in read.rows {
            let index = row.index;
            if let Some((there, first)) = rows.get(&index) {
                let (first, other) = (first.clone(), file);
                return Err(match *there == row {
                    true => MergeError::Twice { index, first, other },
                    false => MergeError::Conflict { index, first, other },
                });
            }
            rows.insert(index, (row, file.clone()));
        }
    }
    let (_, header) = whole.ok_or(MergeError::Nothing)?;
    let points = header.question.points();
    let missing = points - rows.len() as u64;
    if missing > 0 && completeness == Completeness::Whole {
        let indexes = missing_spans(points, &rows);
        return Err(MergeError::Missing { count: missing, points, indexes });
    }
    let rows = rows.into_values().map(|(row, _)| row).collect();
    Ok(Merged { header, rows, missing })
}

/// Most spans that a message names.
const SPANS: usize = 8;

/// `3, 7 to 12, …`.
fn missing_spans<T>(points: u64, there: &BTreeMap<u64, T>) -> String {
    let mut spans: Vec<(u64, u64)> = Vec::new();
    for index in (0..points).filter(|index| !there.contains_key(index)) {
        let full = spans.len() > SPANS;
        match spans.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ if full => break,
            _ => spans.push((index, index)),
        }
    }
    let one = |(first, last): &(u64, u64)| match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    };
    let mut shown: Vec<String> = spans.iter().take(SPANS).map(one).collect();
    if spans.len() > SPANS {
        shown.push("…".to_owned());
    }
    shown.join(", ")
}
