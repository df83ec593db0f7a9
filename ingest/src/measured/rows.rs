//! Rows with a request each: when it arrived, when its tokens came, how long it was.

use super::{Form, MAX_REQUESTS, MAX_TOKENS, MeasuredError, Request, Requests, settle};
use plimsoll_core::units::Nanos;
use serde_json::{Map, Value};

/// Names that writers give a field; the first is the one in messages.
const INPUT: &[&str] =
    &["input_tokens", "input_toks", "prompt_tokens", "input_length", "input_len", "prompt_len"];
const OUTPUT: &[&str] = &[
    "output_tokens",
    "output_toks",
    "completion_tokens",
    "output_length",
    "output_len",
    "generated_tokens",
];
const ARRIVAL: &[&str] =
    &["arrival_time", "arrival_ts", "arrival", "start_time", "send_time", "sent_at", "timestamp"];
const QUEUED: &[&str] = &["queued_ts", "queued_time"];
const FIRST: &[&str] = &["first_token_ts", "first_token_time", "first_token"];
const LAST: &[&str] =
    &["last_token_ts", "last_token_time", "last_token", "finish_time", "end_time"];
const TTFT: &[&str] = &["ttft", "ttft_s"];
const LATENCY: &[&str] = &["e2e", "latency", "e2e_latency", "request_latency"];

/// Two clocks differ where what follows an arrival seems this far from it, seconds.
const APART: f64 = 7200.0;

/// A row's times as they stand, seconds.
struct Raw {
    arrival: f64,
    queued: Option<f64>,
    first: f64,
    last: f64,
    input: u64,
    output: u64,
    line: u64,
}

pub(super) fn read(text: &str) -> Result<Requests, MeasuredError> {
    let (mut raws, mut unanswered) = (Vec::new(), 0_u64);
    for (number, line) in (1_u64..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        if raws.len() >= MAX_REQUESTS {
            let what = format!("more than {MAX_REQUESTS} requests");
            return Err(MeasuredError::Line { line: number, what });
        }
        match row(line, number).map_err(|what| MeasuredError::Line { line: number, what })? {
            Some(raw) => raws.push(raw),
            None => unanswered += 1,
        }
    }
    let mut notes = Vec::new();
    if unanswered > 0 {
        notes.push(format!("{unanswered} requests without an answer are left out"));
    }
    let list = one_clock(&raws, &mut notes)?;
    settle(list, Form::Rows, notes)
}

fn row(text: &str, line: u64) -> Result<Option<Raw>, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        let what: String = error.to_string().chars().filter(|c| !c.is_control()).collect();
        format!("no JSON object: {what}")
    })?;
    let Value::Object(row) = value else { return Err("no JSON object".to_owned()) };
    let (input, output) = (tokens(&row, INPUT)?, tokens(&row, OUTPUT)?);
    let arrival = required(&row, ARRIVAL)?;
    if output == 0 {
        return Ok(None);
    }
    let first = match number(&row, FIRST)? {
        Some(first) => first,
        None => match number(&row, TTFT)? {
            Some(ttft) => arrival + ttft,
            None => return Err(absent(FIRST)),
        },
    };
    let last = match number(&row, LAST)? {
        Some(last) => last,
        None => match number(&row, LATENCY)? {
            Some(latency) => arrival + latency,
            None => return Err(absent(LAST)),
        },
    };
    if last < first {
        return Err(format!("the last token ({last}) comes before the first ({first})"));
    }
    if input == 0 {
        return Err(format!("`{}` is 0; allowed: 1 to {MAX_TOKENS}", INPUT[0]));
    }
    let queued = number(&row, QUEUED)?;
    Ok(Some(Raw { arrival, queued, first, last, input, output, line }))
}

fn find<'a>(
    row: &'a Map<String, Value>,
    names: &[&'static str],
) -> Option<(&'static str, &'a Value)> {
    names.iter().find_map(|name| Some((*name, row.get(*name)?)))
}

fn absent(names: &[&str]) -> String {
    format!("no `{}` (also read: {})", names[0], names[1..].join(", "))
}

fn number(row: &Map<String, Value>, names: &[&'static str]) -> Result<Option<f64>, String> {
    match find(row, names) {
        None | Some((_, Value::Null)) => Ok(None),
        Some((name, value)) => match value.as_f64().filter(|n| (0.0..=1e11).contains(n)) {
            Some(number) => Ok(Some(number)),
            None => {
                Err(format!("`{name}` cannot be {}; allowed: seconds, 0 or more", short(value)))
            }
        },
    }
}

fn required(row: &Map<String, Value>, names: &[&'static str]) -> Result<f64, String> {
    number(row, names)?.ok_or_else(|| absent(names))
}

fn tokens(row: &Map<String, Value>, names: &[&'static str]) -> Result<u64, String> {
    let Some((name, value)) = find(row, names) else { return Err(absent(names)) };
    value.as_u64().filter(|n| *n <= MAX_TOKENS).ok_or_else(|| {
        format!("`{name}` cannot be {}; allowed: 0 to {MAX_TOKENS} tokens", short(value))
    })
}

fn short(value: &Value) -> String {
    let text: String = value.to_string().chars().filter(|c| !c.is_control()).take(40).collect();
    format!("`{text}`")
}

/// Engines stamp arrivals by the time of day and all else by a clock that counts from the machine's start.
/// The two are laid together so that the request that was taken fastest was taken at once.
fn one_clock(raws: &[Raw], notes: &mut Vec<String>) -> Result<Vec<Request>, MeasuredError> {
    let taken = |raw: &Raw| raw.queued.unwrap_or(raw.first) - raw.arrival;
    let least = raws.iter().map(taken).fold(f64::INFINITY, f64::min);
    let apart = least.is_finite() && !(0.0..=APART).contains(&least);
    let shift = if apart { least } else { 0.0 };
    if apart {
        notes.push(
            "arrivals are on another clock than tokens: the two are laid together at the request that \
             was taken fastest"
                .to_owned(),
        );
    }
    let begin = raws.iter().map(|raw| raw.arrival).fold(f64::INFINITY, f64::min);
    let list = raws.iter().map(|raw| {
        let wrong = |what: &str| MeasuredError::Line { line: raw.line, what: what.to_owned() };
        let at = |seconds: f64| {
            super::nanos((seconds - shift - begin).max(0.0))
                .map(Nanos)
                .ok_or_else(|| wrong("a time lies more than 30 years behind the first arrival"))
        };
        let arrival = super::nanos(raw.arrival - begin).map(Nanos);
        let arrival = arrival.ok_or_else(|| wrong("arrivals lie more than 30 years apart"))?;
        let queued = raw.queued.map(at).transpose()?;
        let (first, last) = (at(raw.first)?, at(raw.last)?);
        Ok(Request { arrival, queued, first, last, input: raw.input, output: raw.output })
    });
    list.collect()
}
