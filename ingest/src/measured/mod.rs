//! Measured times: of requests, from a benchmark client's result or from rows with a request each; and of
//! what a server's log prints of its throughput.
//!
//! Times are put on one clock that begins with the first arrival.

mod results;
mod rows;
mod statistics;
#[cfg(test)]
mod tests;

pub use statistics::{Window, windows};

use plimsoll_core::units::Nanos;
use serde_json::Value;

/// Most requests that are read.
pub const MAX_REQUESTS: usize = 1_000_000;
/// Most tokens of one side of a request.
pub const MAX_TOKENS: u64 = 100_000_000;

/// A request that was answered, with its times since the first arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// When it was sent.
    pub arrival: Nanos,
    /// When the engine's loop took it, where the engine itself tells: its time to the first token begins there.
    pub queued: Option<Nanos>,
    /// When its first token was there.
    pub first: Nanos,
    /// When its last token was there.
    pub last: Nanos,
    /// Tokens of the prompt.
    pub input: u64,
    /// Tokens of the answer.
    pub output: u64,
}

impl Request {
    /// Time to the first token, from where it is counted.
    #[must_use]
    pub fn ttft(&self) -> Nanos {
        Nanos(self.first.0.saturating_sub(self.queued.unwrap_or(self.arrival).0))
    }

    /// Mean time of a token after the first; `None` for an answer of one token.
    #[must_use]
    pub fn tpot(&self) -> Option<Nanos> {
        let gaps = self.output.checked_sub(1).filter(|gaps| *gaps > 0)?;
        Some(Nanos(self.last.0.saturating_sub(self.first.0) / gaps))
    }
}

/// What a client's file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A JSON object a request.
    Rows,
    /// What vLLM's `bench serve` saves in detail.
    VllmBench,
    /// What SGLang's `bench_serving` writes with its details.
    SglangBench,
}

/// Requests of a file, in the order of their arrival.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Requests {
    /// What the file is.
    pub form: Form,
    /// At least one.
    pub list: Vec<Request>,
    /// What was left out or assumed, a sentence each.
    pub notes: Vec<String>,
}

/// Why no times can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MeasuredError {
    /// A line that cannot be read.
    #[error("line {line}: {what}")]
    Line {
        /// Line, from 1.
        line: u64,
        /// What is wrong, with what is allowed.
        what: String,
    },
    /// The file as a whole.
    #[error("{0}")]
    File(String),
}

/// Whether a text is one of requests: its first line is a JSON object that is no recording of Plimsoll's.
#[must_use]
pub fn is_requests(text: &str) -> bool {
    let Some(line) = text.lines().find(|line| !line.trim().is_empty()) else { return false };
    // A result that was written over several lines begins with a brace alone.
    line.trim_start().starts_with('{') && !line.contains("\"plimsoll.")
}

/// Reads the requests of a file.
///
/// # Errors
///
/// [`MeasuredError`]: no request with times, a value out of its range.
pub fn requests(text: &str) -> Result<Requests, MeasuredError> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let first = match stream.next() {
        Some(Ok(value)) => value,
        Some(Err(error)) => return Err(json_error(&error)),
        None => return Err(MeasuredError::File("the file is empty".to_owned())),
    };
    if first.get("input_lens").is_some() || first.get("ttfts").is_some() {
        let mut last = first;
        let mut count = 1;
        for value in stream {
            last = value.map_err(|error| json_error(&error))?;
            count += 1;
        }
        return results::read(&last, count);
    }
    if first.get("mean_ttft_ms").is_some() {
        let what = "a result without its requests: run vLLM's client with --save-result --save-detailed, \
                    SGLang's with --output-details";
        return Err(MeasuredError::File(what.to_owned()));
    }
    rows::read(text)
}

fn json_error(error: &serde_json::Error) -> MeasuredError {
    let what: String = error.to_string().chars().filter(|c| !c.is_control()).take(200).collect();
    MeasuredError::Line { line: error.line() as u64, what: format!("no JSON: {what}") }
}

/// Seconds as nanoseconds; `None` for what is no time of a run.
fn nanos(seconds: f64) -> Option<u64> {
    (0.0..=1e9).contains(&seconds).then(|| (seconds * 1e9).round() as u64)
}

/// Orders requests and counts from the first arrival; an impossible order of times is a mistake.
fn settle(
    mut list: Vec<Request>,
    form: Form,
    notes: Vec<String>,
) -> Result<Requests, MeasuredError> {
    let Some(begin) = list.iter().map(|request| request.arrival.0).min() else {
        let what = "no request of the file has an answer with times";
        return Err(MeasuredError::File(what.to_owned()));
    };
    for request in &mut list {
        let back = |at: Nanos| Nanos(at.0.saturating_sub(begin));
        request.arrival = back(request.arrival);
        request.queued = request.queued.map(back);
        request.first = back(request.first);
        request.last = back(request.last);
    }
    // Of equal times the file's order holds.
    list.sort_by_key(|request| request.arrival);
    Ok(Requests { form, list, notes })
}
