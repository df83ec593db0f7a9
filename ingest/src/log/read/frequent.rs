//! The lines that a serving server writes all the time: counted, not kept.

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
    let at = |words: &str| text.find(words).and_then(|at| text.get(at..));
    if let Some(rest) = at("Decode batch") {
        return rest.contains("#running-req").then_some(Line::Decode(rest));
    }
    if let Some(rest) = at("Prefill batch") {
        return rest.contains("#new-seq").then_some(Line::Prefill(rest));
    }
    if let Some(start) = text.find("Avg ").filter(|_| text.contains("Avg generation throughput")) {
        let (head, rest) = text.split_at(start);
        let engine =
            head.trim_end().trim_end_matches(':').rsplit(' ').next().and_then(|n| n.parse().ok());
        return rest.contains("Running:").then_some(Line::Statistics(rest, engine));
    }
    access(text)
}

fn access(text: &str) -> Option<Line<'_>> {
    let at = text.find(" HTTP/1.")?;
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
    let mut rest = text;
    while let Some((key, after)) = rest.split_once(": ") {
        let key = key.rsplit(['#', ',']).next().unwrap_or(key).trim_start();
        take(key, after);
        rest = after;
    }
}

fn add(spread: &mut Spread, value: &str, line: u64) {
    if let Some(value) = float(value) {
        spread.add(value, line);
    }
}

fn prefill(key: &str, value: &str, line: u64, into: &mut Activity) {
    match key {
        "new-seq" => add(&mut into.prefill_requests, value, line),
        "new-token" => {
            add(&mut into.prefill_tokens, value, line);
            into.prefill_tokens_sum =
                into.prefill_tokens_sum.saturating_add(uint(value).unwrap_or(0));
        }
        "cached-token" => {
            add(&mut into.cached_tokens, value, line);
            into.cached_tokens_sum =
                into.cached_tokens_sum.saturating_add(uint(value).unwrap_or(0));
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
            if let Some(percent) = float(value) {
                into.usage.add(percent / 100.0, line);
            }
        }
        _ => {}
    }
}
