//! The release that a log names.

use crate::log::Server;

/// Words of which every line that names a release holds one.
pub(super) const WORDS: &[&str] = &[
    "sglang==",
    "sglang:v",
    "sglang version",
    "sglang v0",
    "sglang 0.",
    "sglang[all]==",
    "sglang_version",
    "vllm==",
    "vllm-openai:v",
    "vllm version",
    "vllm v0",
    "vllm 0.",
    "server version",
    "LLM engine (v",
    "vllm:v",
];

/// Server and release of the line; the release as printed.
pub(super) fn read(line: &str) -> Option<(Server, &str)> {
    let sglang = [
        "sglang==",
        "sglang[all]==",
        "sglang:v",
        "glang version",
        "GLang version",
        "glang v",
        "GLang v",
        "GLang 0",
        "sglang 0",
        "sglang_version",
    ];
    let vllm = [
        "vllm==",
        "vllm-openai:v",
        "LLM engine (v",
        "API server version",
        "vLLM version",
        "vllm version",
        "vLLM v",
        "vllm v",
        "vLLM 0",
        "vllm 0",
        "vllm:v",
    ];
    find(line, &sglang)
        .map(|text| (Server::Sglang, text))
        .or_else(|| find(line, &vllm).map(|text| (Server::Vllm, text)))
}

/// The release behind the first of the keys that has one within a few signs.
fn find<'a>(line: &'a str, keys: &[&str]) -> Option<&'a str> {
    keys.iter().find_map(|key| {
        let at = line.find(key)?;
        // A key that ends in a digit is the release's first.
        let from = at + key.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let rest = line.get(from..)?;
        let start = rest.bytes().take(6).position(|b| b.is_ascii_digit())?;
        release(rest.get(start..)?)
    })
}

/// `0.5.8.post1`, `0.0.0.dev1+g5f55db35e`: up to what cannot be part of one.
fn release(text: &str) -> Option<&str> {
    let end = text.bytes().take_while(|b| b.is_ascii_alphanumeric() || b".+".contains(b)).count();
    let word = text.get(..end.min(48))?.trim_end_matches('.');
    let mut parts = word.split('.');
    let whole = |part: Option<&str>| {
        part.is_some_and(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()))
    };
    (whole(parts.next()) && whole(parts.next())).then_some(word)
}
