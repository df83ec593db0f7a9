//! The lines that a serving server writes all the time: counted, not kept.

use memchr::memmem;

use super::fields::{float, uint};
use crate::log::{Activity, Server, Spread};

/// Words of which every such line holds one.
pub(super) const WORDS: &[&str] =
    &["Prefill batch", "Decode batch", "Avg generation throughput", "HTTP/1."];

/// Which frequent line it is, and where its figures begin.
#[derive(Clone, Copy, Debug)]
pub(super) enum Line<'a> {
    /// `Prefill batch…` of SGLang.
    Prefill(&'a str),
    /// `Decode batch…` of SGLang.
    Decode(&'a str),
    /// `Avg prompt throughput: …, Avg generation throughput: …` of vLLM, with the engine's number where it has one.
    Statistics(&'a str, Option<u32>),
    /// `"POST /generate HTTP/1.1" 200`: a request was answered, or probed.
    Answered,
    /// The same for anything that generates nothing.
    Probed,
    /// An access line that tells nothing: an error of the client.
    Refused,
}

/// What the line is; `None` for one that only holds the words.
pub(super) fn classify(text: &str) -> Option<Line<'_>> {
    let at = |words: &str| text.get(memmem::find(text.as_bytes(), words.as_bytes())?..);
    if let Some(rest) = at("Decode batch") {
        return rest.contains('#').then_some(Line::Decode(rest));
    }
    if let Some(rest) = at("Prefill batch") {
        return rest.contains('#').then_some(Line::Prefill(rest));
    }
    if at("Avg generation throughput").is_some() {
        let start = text.find("Avg ")?;
        let (head, rest) = text.split_at(start);
        let engine =
            head.trim_end().trim_end_matches(':').rsplit(' ').next().and_then(|n| n.parse().ok());
        return at("Running:").map(|_| Line::Statistics(rest, engine));
    }
    access(text)
}

fn access(text: &str) -> Option<Line<'_>> {
    let at = memmem::find(text.as_bytes(), b" HTTP/1.")?;
    let (request, rest) = text.split_at(at);
    let status = uint(rest.get(" HTTP/1.1".len()..)?.trim_start_matches(['"', ' ']))?;
    if status != 200 {
        return Some(Line::Refused);
    }
    let route = request.rsplit(' ').next()?;
    let route = route.split('?').next()?;
    let words = [
        "/generate",
        "completions",
        "/messages",
        "/responses",
        "/embeddings",
        "/rerank",
        "/score",
        "/encode",
        "/classify",
        "/infer",
        "/chat",
    ];
    let generating = words.iter().any(|end| route.ends_with(end)) && !request.contains("GET ");
    Some(if generating { Line::Answered } else { Line::Probed })
}

impl Line<'_> {
    /// Whose line it is.
    pub(super) fn server(self) -> Option<Server> {
        match self {
            Self::Prefill(_) | Self::Decode(_) => Some(Server::Sglang),
            Self::Statistics(..) => Some(Server::Vllm),
            _ => None,
        }
    }

    /// Counts it.
    pub(super) fn count(self, line: u64, into: &mut Activity) {
        match self {
            Self::Prefill(text) => pairs(text, |key, value| prefill(key, value, line, into)),
            Self::Decode(text) => pairs(text, |key, value| decode(key, value, line, into)),
            Self::Statistics(text, _) => {
                pairs(text, |key, value| statistics(key, value, line, into))
            }
            Self::Answered => into.answered += 1,
            Self::Probed => into.probes += 1,
            Self::Refused => {}
        }
        if self.server().is_some() {
            let first = into.lines.map_or(line, |(first, _)| first);
            into.lines = Some((first, line));
        }
    }
}

/// Every `key: value` of a line; the key is what stands after its last `#` or comma.
fn pairs(text: &str, mut take: impl FnMut(&str, &str)) {
    let bytes = text.as_bytes();
    let mut from = 0;
    for at in memchr::memchr_iter(b':', bytes) {
        if bytes.get(at + 1) != Some(&b' ') {
            continue;
        }
        let Some(key) = text.get(from..at) else { continue };
        let start = memchr::memrchr2(b'#', b',', key.as_bytes()).map_or(0, |mark| mark + 1);
        let (key, value) = (key.get(start..), text.get(at + 2..));
        if let (Some(key), Some(value)) = (key, value) {
            take(key.trim_start_matches(' '), value);
        }
        from = at + 2;
    }
}

/// The number at the beginning: a few digits with a point are exact in whole numbers, all else is parsed.
fn number(text: &str) -> Option<f64> {
    const POWERS: [f64; 16] =
        [1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];
    let (mut whole, mut digits, mut point) = (0_u64, 0_usize, None);
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' if digits < 15 => {
                whole = whole * 10 + u64::from(byte - b'0');
                digits += 1;
            }
            b'.' if point.is_none() => point = Some(digits),
            b'0'..=b'9' | b'-' | b'+' => return float(text),
            _ => break,
        }
    }
    if digits == 0 {
        return None;
    }
    let decimals = point.map_or(0, |point| digits - point);
    Some(whole as f64 / POWERS.get(decimals)?)
}

fn add(spread: &mut Spread, value: &str, line: u64) {
    if let Some(value) = number(value) {
        spread.add(value, line);
    }
}

/// Adds to a sum of tokens.
fn sum(sum: &mut u64, value: &str) {
    *sum = sum.saturating_add(uint(value).unwrap_or(0));
}

fn prefill(key: &str, value: &str, line: u64, into: &mut Activity) {
    match key {
        "new-seq" => add(&mut into.prefill_requests, value, line),
        "new-token" => {
            add(&mut into.prefill_tokens, value, line);
            sum(&mut into.prefill_tokens_sum, value);
        }
        "cached-token" => {
            add(&mut into.cached_tokens, value, line);
            sum(&mut into.cached_tokens_sum, value);
        }
        _ => shared(key, value, line, into),
    }
}

fn decode(key: &str, value: &str, line: u64, into: &mut Activity) {
    match key {
        "token" | "full token" => add(&mut into.held_tokens, value, line),
        "gen throughput (token/s)" => add(&mut into.throughput, value, line),
        _ => shared(key, value, line, into),
    }
}

fn shared(key: &str, value: &str, line: u64, into: &mut Activity) {
    match key {
        "running-req" => add(&mut into.running, value, line),
        "queue-req" => add(&mut into.queued, value, line),
        "token usage" | "full token usage" => add(&mut into.usage, value, line),
        "swa token usage" | "mamba usage" => add(&mut into.second_usage, value, line),
        "transferring-req" | "inflight-req" => add(&mut into.transferring, value, line),
        _ => {}
    }
}

fn statistics(key: &str, value: &str, line: u64, into: &mut Activity) {
    match key {
        "Running" => add(&mut into.running, value, line),
        "Waiting" | "Pending" => add(&mut into.queued, value, line),
        "Avg generation throughput" => add(&mut into.throughput, value, line),
        "GPU KV cache usage" => {
            if let Some(percent) = number(value) {
                into.usage.add(percent / 100.0, line);
            }
        }
        _ => {}
    }
}
