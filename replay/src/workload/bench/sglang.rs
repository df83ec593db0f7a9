//! SGLang's `bench_serving`.
//!
//! Source: SGLang 0.5.23 `sglang.benchmark` (`serving`, `datasets`).

use super::{AT_ONCE, Flags, at_rate, even, group};
use crate::scenario::{
    Gaps, Group, Lengths, Pacing, Part, PrefixChoice, Schedule, SharedPrefix, Turns,
};
use plimsoll_core::{engine::serving::SamplingChoice, sched::EosRule, units::Nanos};
use plimsoll_ingest::{
    bench::BenchCommand,
    workload::{Filter, Format},
};

/// Data sets that are drawn or read here.
const DATA: &str = "`sharegpt`, `random`, `random-ids`, `generated-shared-prefix` or `mooncake`";
/// Tokens of a block id in the prompts that the client writes for Mooncake's trace: the id and 128 times one
/// short word, whatever the trace's lengths are.
const MOONCAKE_BLOCK: u64 = 130;

pub(super) fn part(command: &BenchCommand) -> Result<Part, String> {
    let flags = Flags(command);
    let schedule = match flags.rate()? {
        None => AT_ONCE,
        // The first goes out before the client waits for the first time.
        Some(rate) => at_rate(rate, Gaps::Poisson, Pacing::Steady),
    };
    match command.get("dataset-name").unwrap_or("sharegpt") {
        "random" | "random-ids" => drawn(&flags, random(&flags, schedule)?),
        "generated-shared-prefix" => drawn(&flags, shared_prefix(&flags, schedule)?),
        "sharegpt" => sharegpt(&flags, schedule),
        "mooncake" => mooncake(&flags),
        other @ ("custom" | "openai" | "agentic-trace" | "longbench_v2" | "mmmu" | "image"
        | "speed-bench") => Err(flags.not_emulated(&format!("`--dataset-name {other}`"))),
        _ => Err(flags.bad("dataset-name", DATA)),
    }
}

/// What all requests of the client have in common.
fn drawn(flags: &Flags<'_>, mut group: Group) -> Result<Part, String> {
    group.shape.eos = eos(flags);
    group.shape.sampling.output_logprobs = flags.0.has("return-logprob");
    group.shape.sampling.choice = sampling(flags)?;
    Ok(Part::Group(Box::new(group)))
}

/// It asks the server to ignore the end of sequence unless it is told not to.
fn eos(flags: &Flags<'_>) -> EosRule {
    if flags.0.has("disable-ignore-eos") { EosRule::Ends } else { EosRule::Ignored }
}

/// It asks for the most likely token; another body may say otherwise.
fn sampling(flags: &Flags<'_>) -> Result<SamplingChoice, String> {
    let Some(body) = flags.0.get("extra-request-body") else { return Ok(SamplingChoice::Greedy) };
    let body: serde_json::Value = serde_json::from_str(body).map_err(|_| {
        flags.bad("extra-request-body", "a JSON object such as `{\"temperature\": 0.6}`")
    })?;
    // The server's own interface has them in `sampling_params`.
    let params = body.get("sampling_params").unwrap_or(&body);
    let number = |key: &str| params.get(key).and_then(serde_json::Value::as_f64);
    let top_k = params.get("top_k").and_then(serde_json::Value::as_u64);
    let cuts = (number("top_p"), top_k, number("min_p"));
    Ok(crate::scenario::choice(number("temperature").or(Some(0.0)), cuts))
}

/// One-sided: from the ratio's part of a length up to all of it. 0 is anything from 1 on, 1 is always all.
///
/// Source: SGLang `compute_random_lens`.
fn lengths(full: u64, ratio: f64) -> Lengths {
    let low = ((full as f64 * ratio) as u64).max(1);
    even(low, full)
}

fn ratio(flags: &Flags<'_>, flag: &str, default: f64) -> Result<f64, String> {
    Ok(flags.number(flag, (0.0, 1.0))?.unwrap_or(default))
}

fn random(flags: &Flags<'_>, schedule: Schedule) -> Result<Group, String> {
    let ratio = ratio(flags, "random-range-ratio", 0.0)?;
    let input = lengths(flags.tokens("random-input-len", 1024)?, ratio);
    let output = lengths(flags.tokens("random-output-len", 1024)?, ratio);
    group(flags, flags.prompts()?, (input, output), schedule)
}

/// Its ratio is 1 unless it is told otherwise, so that lengths are what they are called; the number of prompts
/// is that of the groups.
fn shared_prefix(flags: &Flags<'_>, schedule: Schedule) -> Result<Group, String> {
    let ratio = ratio(flags, "gsp-range-ratio", 1.0)?;
    let groups = flags.count("gsp-num-groups", 64, (1, 1_000_000))?;
    let each = flags.count("gsp-prompts-per-group", 16, (1, 10_000_000 / groups))?;
    let question = lengths(flags.tokens("gsp-question-len", 128)?, ratio);
    let output = lengths(flags.tokens("gsp-output-len", 256)?, ratio);
    let tokens = lengths(flags.tokens("gsp-system-prompt-len", 2048)?, ratio);
    let mut group = group(flags, groups * each, (question.clone(), output), schedule)?;
    let ordered = flags.0.has("gsp-ordered");
    let choice = match flags.0.get("gsp-group-distribution").unwrap_or("uniform") {
        "uniform" if ordered => PrefixChoice::InOrder,
        "uniform" => PrefixChoice::Even,
        "zipf" => PrefixChoice::Zipf {
            alpha: flags.number("gsp-zipf-alpha", (0.0, 10.0))?.unwrap_or(1.0),
        },
        _ => return Err(flags.bad("gsp-group-distribution", "`uniform` or `zipf`")),
    };
    group.shared_prefix = Some(SharedPrefix { tokens, groups, choice });
    let turns = flags.count("gsp-num-turns", 1, (1, 1000))?;
    if turns > 1 {
        let count = Lengths::Fixed(turns);
        group.turns = Some(Turns { count, think_time: Nanos(0), prompt_tokens: question });
    }
    Ok(group)
}

fn sharegpt(flags: &Flags<'_>, schedule: Schedule) -> Result<Part, String> {
    if flags.0.has("sharegpt-output-len") {
        return Err(flags.not_emulated("`--sharegpt-output-len`"));
    }
    let mut source = flags.trace("sharegpt")?;
    source.options.format = Some(Format::ShareGpt);
    source.options.filter = Filter::Sglang;
    source.options.context_length =
        flags.some_count("sharegpt-context-len", (1, super::MOST_TOKENS))?;
    source.eos = eos(flags);
    source.sampling.output_logprobs = flags.0.has("return-logprob");
    source.sampling.choice = sampling(flags)?;
    Ok(Part::Trace(Box::new(flags.sampled(source, schedule))))
}

/// The trace's own times, slowed down; a request rate is ignored. Prompts are not as long as in the trace.
///
/// Source: SGLang `get_mooncake_request_over_time`.
fn mooncake(flags: &Flags<'_>) -> Result<Part, String> {
    if flags.count("mooncake-num-rounds", 1, (1, 1000))? > 1 {
        return Err(flags.not_emulated("`--mooncake-num-rounds` above 1"));
    }
    let mut source = flags.trace("mooncake")?;
    source.options.format = Some(Format::Mooncake);
    source.options.limit = source.limit;
    let slowdown =
        flags.number("mooncake-slowdown-factor", (0.000_001, 1_000_000.0))?.unwrap_or(1.0);
    source.speedup = 1.0 / slowdown;
    source.tokens_per_block = Some(MOONCAKE_BLOCK);
    source.eos = eos(flags);
    source.sampling.choice = sampling(flags)?;
    Ok(Part::Trace(Box::new(source)))
}
