//! A summary → the verdict, and what to set.
//!
//! The rules are the operating rules of the engines' fractions: raise only on a full pool and retractions, in
//! steps of 0.02; lower when free memory falls below the line; a bigger pool that no load fills buys nothing.

use super::{Ending, FULL, Header, RankSummary, ServerKind, Summary};
use plimsoll_core::units::Bytes;

/// One step of the fraction.
const STEP: f64 = 0.02;

/// How a watch went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Nothing fell below the line.
    Ok,
    /// Free memory fell below the line.
    Undercut,
    /// The server was lost.
    Lost,
    /// There is no sample.
    Nothing,
}

impl Verdict {
    /// Its word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Undercut => "undercut",
            Self::Lost => "lost",
            Self::Nothing => "nothing",
        }
    }
}

/// One thing to do.
#[derive(Clone, PartialEq, Debug)]
pub struct Remedy {
    /// `keep`, `lower`, `raise` or `look`.
    pub action: &'static str,
    /// The flag.
    pub flag: Option<&'static str>,
    /// The value to pass.
    pub value: Option<String>,
    /// In words.
    pub text: String,
}

/// Verdict first, then the number, then what to do.
#[derive(Clone, PartialEq, Debug)]
pub struct Advice {
    /// Verdict.
    pub verdict: Verdict,
    /// The verdict's sentence, without its word.
    pub headline: String,
    /// What to do.
    pub help: Vec<Remedy>,
}

/// Judges a watch.
#[must_use]
pub fn advise(header: &Header, summary: &Summary) -> Advice {
    let verdict = match summary {
        _ if summary.ending == Some(Ending::Lost) => Verdict::Lost,
        Summary { undercut: Some(_), .. } => Verdict::Undercut,
        Summary { samples: 0, .. } => Verdict::Nothing,
        _ => Verdict::Ok,
    };
    let help = if verdict == Verdict::Nothing { Vec::new() } else { help(header, summary) };
    Advice { verdict, headline: headline(verdict, header, summary), help }
}

fn headline(verdict: Verdict, header: &Header, summary: &Summary) -> String {
    let memory = match (summary.undercut, summary.least(), summary.min_free) {
        (Some(undercut), _, Some(line)) => {
            let first = undercut.first;
            format!(
                "{} free on {} at {} (sample {}), {} below the line of {line}",
                first.free,
                device(header, first.device),
                seconds(first.low.at_ms),
                first.low.sample,
                line.saturating_sub(first.free),
            )
        }
        (None, Some(least), Some(line)) => format!(
            "at least {} free on {}, {} above the line of {line}",
            least.free,
            device(header, least.device),
            least.free.saturating_sub(line),
        ),
        (_, Some(least), None) => {
            format!("at least {} free on {}", least.free, device(header, least.device))
        }
        (_, None, _) => "free memory cannot be seen from here".to_owned(),
    };
    match verdict {
        Verdict::Nothing => "no sample".to_owned(),
        Verdict::Lost => {
            format!("{} no longer answers after {}; {memory}", header.server.name(), {
                seconds(summary.span_ms)
            })
        }
        Verdict::Ok | Verdict::Undercut => memory,
    }
}

fn device(header: &Header, index: u32) -> String {
    match header.memory {
        super::MemoryPlace::Host => "the host".to_owned(),
        _ => format!("device {index}"),
    }
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

const fn flag(server: ServerKind) -> &'static str {
    match server {
        ServerKind::Sglang => "--mem-fraction-static",
        ServerKind::Vllm => "--gpu-memory-utilization",
    }
}

fn help(header: &Header, summary: &Summary) -> Vec<Remedy> {
    if let Some(undercut) = summary.undercut {
        return vec![lower(header, summary, undercut.least.free)];
    }
    let starved = summary.ranks.iter().find(|(_, rank)| {
        rank.retractions.unwrap_or(0) > 0 && rank.peak_usage.is_some_and(|usage| usage >= FULL)
    });
    let word = retracted(summary.server);
    if let Some((id, rank)) = starved {
        let usage = percent(rank.peak_usage.unwrap_or(0.0));
        let count = rank.retractions.unwrap_or(0);
        let seen = format!("the pool of {id} was {usage} full ({word}: {count})");
        return vec![raise(header, summary, &seen)];
    }
    summary.fullest().map(|(_, rank)| keep(summary, rank)).into_iter().collect()
}

const fn retracted(server: ServerKind) -> &'static str {
    match server {
        ServerKind::Sglang => "retractions",
        ServerKind::Vllm => "preemptions",
    }
}

/// What speaks against raising.
fn keep(summary: &Summary, fullest: &RankSummary) -> Remedy {
    let (flag, word) = (flag(summary.server), retracted(summary.server));
    let usage = percent(fullest.peak_usage.unwrap_or(0.0));
    let (action, text) = match summary.retractions().unwrap_or(0) {
        0 => {
            let seen = format!("at most {usage} of the pool was held, without {word}");
            ("keep", format!("keep {flag}: {seen}; a bigger pool buys nothing"))
        }
        count => (
            "look",
            format!(
                "keep {flag}: {word}: {count}, yet no sample shows the pool of that rank full ({usage} at \
                 most); sample more often"
            ),
        ),
    };
    Remedy { action, flag: Some(flag), value: None, text }
}

/// One or more steps down, as many as the missing bytes take.
fn lower(header: &Header, summary: &Summary, least: Bytes) -> Remedy {
    let missing = summary.min_free.unwrap_or(Bytes::ZERO).saturating_sub(least);
    let steps = step_bytes(header).map_or(1, |step| missing.0.div_ceil(step.0.max(1)).max(1));
    let value = fraction(header).map(|now| now - STEP * steps as f64).filter(|to| *to > 0.0);
    let flag = flag(summary.server);
    let text = match (value, fraction(header)) {
        (Some(value), Some(now)) => format!(
            "pass {flag} {value:.2} (now {now}): {missing} are missing, a step of {STEP} gives about {}",
            step_bytes(header).map_or_else(|| "two hundredths".to_owned(), |step| step.to_string())
        ),
        _ => {
            format!("lower {flag} in steps of {STEP}, or the prefill chunk: {missing} are missing")
        }
    };
    Remedy { action: "lower", flag: Some(flag), value: value.map(|v| format!("{v:.2}")), text }
}

/// One step up, where the least free memory leaves room for it.
fn raise(header: &Header, summary: &Summary, seen: &str) -> Remedy {
    let flag = flag(summary.server);
    let line = summary.min_free.unwrap_or(Bytes::ZERO);
    let left = summary.least().map(|least| least.free.saturating_sub(line));
    let value = fraction(header).map(|now| now + STEP).filter(|to| *to < 1.0);
    let fits = match (left, step_bytes(header)) {
        (Some(left), Some(step)) => Some(left > step),
        _ => None,
    };
    if fits == Some(false) {
        let left = left.unwrap_or(Bytes::ZERO);
        let text = format!(
            "{seen}, but only {left} are left above the line, less than one step of {flag}: fewer requests at \
             once, or more ranks"
        );
        return Remedy { action: "keep", flag: Some(flag), value: None, text };
    }
    let condition = match fits {
        Some(_) => "",
        None => ", once free memory during the heaviest prefill is known to allow it",
    };
    let text = match value {
        Some(value) => format!("{seen}: pass {flag} {value:.2}, one step of {STEP}{condition}"),
        None => format!("{seen}: raise {flag} by one step of {STEP}{condition}"),
    };
    Remedy { action: "raise", flag: Some(flag), value: value.map(|v| format!("{v:.2}")), text }
}

/// The server's fraction, where it tells one.
fn fraction(header: &Header) -> Option<f64> {
    let names = ["mem_fraction_static", "gpu_memory_utilization"];
    let value = names.iter().find_map(|name| header.settings.get(*name)?.as_f64());
    value.filter(|value| (0.0..=1.0).contains(value))
}

/// What one step of the fraction takes of the smallest device.
fn step_bytes(header: &Header) -> Option<Bytes> {
    let total = header.devices.iter().filter_map(|device| device.total).min()?;
    Some(Bytes((total.0 as f64 * STEP) as u64))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
