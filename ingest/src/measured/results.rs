//! Detailed results of the engines' benchmark clients: times to the first token and between tokens.

use super::{Form, MAX_REQUESTS, MAX_TOKENS, MeasuredError, Request, Requests, settle};
use plimsoll_core::units::Nanos;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BinaryHeap;

/// What is taken of a result.
#[derive(Deserialize)]
struct Details {
    input_lens: Vec<u64>,
    output_lens: Vec<u64>,
    ttfts: Vec<f64>,
    #[serde(default)]
    itls: Vec<Vec<f64>>,
    start_times: Option<Vec<f64>>,
    #[serde(default)]
    errors: Vec<Option<String>>,
    request_rate: Option<Value>,
    max_concurrency: Option<u64>,
}

pub(super) fn read(value: &Value, results: usize) -> Result<Requests, MeasuredError> {
    // SGLang's client says which backend it drove.
    let form = match value.get("server_info").is_some() || value.get("tag").is_some() {
        true => Form::SglangBench,
        false => Form::VllmBench,
    };
    let file = |what: String| MeasuredError::File(what);
    let details = Details::deserialize(value).map_err(|error| {
        let text: String =
            error.to_string().chars().filter(|c| !c.is_control()).take(200).collect();
        file(format!("a result without the times of its requests: {text}"))
    })?;
    let rows = details.input_lens.len();
    if rows > MAX_REQUESTS {
        return Err(file(format!("more than {MAX_REQUESTS} requests")));
    }
    for (name, len) in [
        ("output_lens", details.output_lens.len()),
        ("ttfts", details.ttfts.len()),
        ("itls", details.itls.len()),
    ] {
        if len != rows {
            return Err(file(format!("`input_lens` has {rows} values and `{name}` {len}")));
        }
    }
    let mut notes = Vec::new();
    if results > 1 {
        notes.push(format!("the file has {results} results; the last one is taken"));
    }
    let answered = answers(&details)?;
    if answered.len() < rows {
        notes.push(format!("{} requests without an answer are left out", rows - answered.len()));
    }
    let list = timed(&details, &answered, &mut notes)?;
    settle(list, form, notes)
}

/// A request that was answered: its place in the result, time to the first token, time after it.
struct Answer {
    at: usize,
    ttft: u64,
    rest: u64,
}

fn answers(details: &Details) -> Result<Vec<Answer>, MeasuredError> {
    let mut answered = Vec::new();
    for (at, ttft) in details.ttfts.iter().enumerate() {
        let wrong = |what: String| MeasuredError::File(format!("request {at}: {what}"));
        let length = |list: &[u64]| list.get(at).copied().unwrap_or_default();
        let (input, output) = (length(&details.input_lens), length(&details.output_lens));
        if input > MAX_TOKENS || output > MAX_TOKENS {
            let tokens = input.max(output);
            return Err(wrong(format!("{tokens} tokens; allowed: 0 to {MAX_TOKENS}")));
        }
        let failed =
            details.errors.get(at).and_then(Option::as_deref).is_some_and(|e| !e.is_empty());
        if failed || output == 0 || input == 0 {
            continue;
        }
        let gaps = details.itls.get(at).map(Vec::as_slice).unwrap_or_default();
        let sum: f64 = gaps.iter().sum();
        let spans = super::nanos(*ttft).zip(super::nanos(sum));
        let Some((ttft, rest)) = spans else {
            return Err(wrong("a time that is none; allowed: seconds, 0 or more".to_owned()));
        };
        answered.push(Answer { at, ttft, rest });
    }
    Ok(answered)
}

fn timed(
    details: &Details,
    answered: &[Answer],
    notes: &mut Vec<String>,
) -> Result<Vec<Request>, MeasuredError> {
    let starts = starts(details, answered, notes)?;
    let length = |list: &[u64], at: usize| list.get(at).copied().unwrap_or_default();
    let request = |(answer, start): (&Answer, u64)| {
        let first = start.saturating_add(answer.ttft);
        Request {
            arrival: Nanos(start),
            queued: None,
            first: Nanos(first),
            last: Nanos(first.saturating_add(answer.rest)),
            input: length(&details.input_lens, answer.at),
            output: length(&details.output_lens, answer.at),
        }
    };
    Ok(answered.iter().zip(starts).map(request).collect())
}

/// When each was sent: as the file says, or as a closed loop must have sent them.
fn starts(
    details: &Details,
    answered: &[Answer],
    notes: &mut Vec<String>,
) -> Result<Vec<u64>, MeasuredError> {
    if let Some(times) = &details.start_times
        && times.len() == details.input_lens.len()
    {
        let begin = times.iter().copied().fold(f64::INFINITY, f64::min);
        let start = |answer: &Answer| {
            let time = times.get(answer.at).copied().unwrap_or(f64::NAN);
            super::nanos(time - begin).ok_or_else(|| {
                let at = answer.at;
                MeasuredError::File(format!(
                    "request {at}: `start_times` has {time}, which is no time"
                ))
            })
        };
        return answered.iter().map(start).collect();
    }
    let finite = match &details.request_rate {
        Some(Value::Number(rate)) => rate.as_f64().is_some_and(|rate| rate < 1e9),
        Some(Value::String(word)) => word.parse::<f64>().is_ok_and(f64::is_finite),
        _ => false,
    };
    if finite {
        let what = "the file has no `start_times`, and at a finite rate nothing else says when requests were \
                    sent: use a client that writes them, or --request-rate inf with --max-concurrency";
        return Err(MeasuredError::File(what.to_owned()));
    }
    let slots = details.max_concurrency.map_or(usize::MAX, |most| most.max(1) as usize);
    notes.push(match details.max_concurrency {
        Some(most) => format!(
            "the file has no `start_times`: each request is sent when one of {most} before it ends"
        ),
        None => "the file has no `start_times`: all are sent at once".to_owned(),
    });
    // The request that ends first lets the next one go.
    let mut ends: BinaryHeap<std::cmp::Reverse<u64>> = BinaryHeap::new();
    let mut starts = Vec::with_capacity(answered.len());
    for answer in answered {
        let start = match ends.len() < slots {
            true => 0,
            false => ends.pop().map_or(0, |end| end.0),
        };
        let end = start.saturating_add(answer.ttft).saturating_add(answer.rest);
        ends.push(std::cmp::Reverse(end));
        starts.push(start);
    }
    Ok(starts)
}
