//! Passes of a recording, and windows of a watch.

use crate::evidence::PassTime;
use plimsoll_core::{estimate::roofline::StepShape, units::Nanos};
use plimsoll_ingest::{
    measured::Window,
    watch::recording::{self, Line, Sample},
};
use plimsoll_replay::{
    record::{FieldValue, Record},
    wire::Log,
};

/// Passes of a recording whose work its records tell: those of decode, and prefills of one request. A
/// measured time wins over the model's.
pub(crate) fn of(log: &Log) -> Vec<PassTime> {
    let started = log.records.iter().find(|record| record.kind == "serving_started");
    let of_start = |name| started.and_then(|record| count(record, name));
    let page = of_start("block_size").or_else(|| of_start("page_size")).unwrap_or(1);
    let passes = log.records.iter().filter_map(|record| pass(record, page));
    passes.filter(|pass| pass.elapsed.0 > 0).collect()
}

fn count(record: &Record, name: &str) -> Option<u64> {
    match record.fields.get(name) {
        Some(FieldValue::Unsigned(n)) => Some(*n),
        _ => None,
    }
}

fn pass(record: &Record, page: u64) -> Option<PassTime> {
    let count = |name| count(record, name);
    let elapsed = || count("elapsed_real_ns").or_else(|| count("elapsed_ns"));
    let requests = count("requests")?;
    match record.kind.as_str() {
        "decode_run" => {
            let steps = count("steps").filter(|steps| *steps > 0)?;
            // The last page of a request is half full on the mean.
            let held = count("used_tokens")?.saturating_sub(requests * page.saturating_sub(1) / 2);
            let middle = held.saturating_sub(requests * (steps - 1) / 2);
            let shape = decode(requests, middle);
            Some(PassTime { shape, elapsed: Nanos(elapsed()? / steps) })
        }
        "step" => {
            let (tokens, prefix) = (count("tokens")?, count("prefix_tokens")?);
            let alone = requests == 1 && tokens > 1;
            let decodes = record.fields.get("mode") == Some(&FieldValue::from("decode"));
            if !alone && !decodes {
                return None;
            }
            let pairs = match decodes {
                true => prefix + tokens,
                false => tokens * prefix + tokens * (tokens + 1) / 2,
            };
            let shape = StepShape {
                tokens,
                requests,
                context_tokens: prefix + tokens,
                attention_pairs: pairs,
                logits_rows: requests,
            };
            Some(PassTime { shape, elapsed: Nanos(elapsed()?) })
        }
        _ => None,
    }
}

/// A decode pass over so many tokens.
pub(crate) const fn decode(requests: u64, context: u64) -> StepShape {
    StepShape {
        tokens: requests,
        requests,
        context_tokens: context,
        attention_pairs: context,
        logits_rows: requests,
    }
}

/// Stretches of a watch between two samples with the same load and no prompt between them.
pub(crate) fn of_watch(bytes: &[u8]) -> Result<Vec<Window>, String> {
    let (mut before, mut windows) = (None::<Sample>, Vec::new());
    let read = recording::read(bytes, |_, line| {
        let Line::Sample(sample) = line else {
            before = None;
            return;
        };
        if let Some(window) = before.as_ref().and_then(|before| between(before, sample)) {
            windows.push(window);
        }
        before = Some(sample.clone());
    });
    read.map_err(|error| error.to_string())?;
    Ok(windows)
}

fn between(before: &Sample, after: &Sample) -> Option<Window> {
    let (rank, last) = after.ranks.iter().next()?;
    let first = before.ranks.get(rank)?;
    let seconds = after.at_ms.checked_sub(before.at_ms).filter(|ms| *ms > 0)? as f64 / 1e3;
    let running = last.running_requests?;
    let prompts = |figures: &plimsoll_ingest::watch::RankFigures| {
        figures.prefill_tokens_total.or(figures.prompt_tokens_total)
    };
    let steady = first.running_requests == Some(running) && prompts(first) == prompts(last);
    let made = last.output_tokens_total?.checked_sub(first.output_tokens_total?)?;
    (steady && running > 0 && made > 0).then(|| Window {
        line: 0,
        running: running as f64,
        held_tokens: last.pool_held_tokens.map(|tokens| tokens as f64),
        usage: last.pool_usage,
        output_per_second: made as f64 / seconds,
        prompt_per_second: 0.0,
    })
}
