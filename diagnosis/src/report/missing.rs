//! What a log does not have and would have helped.

use plimsoll_ingest::log::{Server, Sglang, Vllm};

use crate::{
    Case,
    reconstruct::{RankLedger, Stage},
};

/// The lines of a whole start that are not there, in the order of a start; each fits behind "the log has no".
#[must_use]
pub(crate) fn missing(case: &Case, rank: Option<&RankLedger>) -> Vec<String> {
    match case.server() {
        Some(Server::Sglang) => sglang(case, rank),
        Some(Server::Vllm) => vllm(case, rank),
        _ => Vec::new(),
    }
}

fn sglang(case: &Case, rank: Option<&RankLedger>) -> Vec<String> {
    let has = |found: fn(&Sglang) -> bool| case.sglang().any(|(_, line)| found(line));
    let pool = rank.and_then(|rank| rank.pool);
    let reached = rank.and_then(|rank| rank.left).map(|left| left.stage);
    // The laptop backend reads memory once, when it sizes the pool.
    let laptop = has(|line| matches!(line, Sglang::MlxPool { .. }));
    let lines = [
        ("`Load weight begin`", laptop || has(|line| matches!(line, Sglang::LoadBegin { .. }))),
        ("`Load weight end`", laptop || has(|line| matches!(line, Sglang::LoadEnd { .. }))),
        ("line of the pool", pool.is_some()),
        (
            "reading of free memory after the pool",
            reached.is_some_and(|stage| stage >= Stage::AfterPools),
        ),
        ("`max_total_num_tokens=`", has(|line| matches!(line, Sglang::Summary { .. }))),
        (
            "line of a ready server or of a request",
            has(|line| matches!(line, Sglang::Ready)) || !case.log.activity.is_empty(),
        ),
    ];
    absent(&lines)
}

fn vllm(case: &Case, rank: Option<&RankLedger>) -> Vec<String> {
    let has = |found: fn(&Vllm) -> bool| case.vllm().any(|(_, line)| found(line));
    let pool = rank.and_then(|rank| rank.pool);
    let lines = [
        (
            "figure of the weights",
            has(|line| {
                matches!(line, Vllm::LoadEnd { .. } | Vllm::Profile { .. } | Vllm::Usage { .. })
            }),
        ),
        ("`Available KV cache memory`", pool.is_some_and(|pool| pool.bytes.is_some())),
        ("size of the pool in tokens", pool.is_some_and(|pool| pool.tokens.is_some())),
        (
            "line of a ready server or of a request",
            has(|line| matches!(line, Vllm::Ready)) || !case.log.activity.is_empty(),
        ),
    ];
    absent(&lines)
}

fn absent(lines: &[(&str, bool)]) -> Vec<String> {
    lines.iter().filter(|(_, there)| !there).map(|(name, _)| (*name).to_owned()).collect()
}
