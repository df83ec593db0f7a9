//! vLLM's `bench serve`.
//!
//! Source: vLLM `vllm.benchmarks` (`serve`, `datasets`).

use super::{AT_ONCE, Flags, at_rate, even, group};
use crate::scenario::{
    Gaps, Group, Lengths, Pacing, Part, PrefixChoice, RampLaw, Rate, Schedule, SharedPrefix,
    TraceSource,
};
use plimsoll_core::{engine::serving::Sampling, sched::EosRule};
use plimsoll_ingest::{
    bench::BenchCommand,
    workload::{Filter, Format},
};

/// Data sets that are drawn or read here.
const DATA: &str =
    "`random`, `sharegpt`, `burstgpt`, `sonnet`, `prefix_repetition` or `timed_trace`";
/// Rates that a ramp may have, requests a second.
const RATES: (f64, f64) = (0.001, 1_000_000.0);

pub(super) fn part(command: &BenchCommand) -> Result<Part, String> {
    let flags = Flags(command);
    let schedule = schedule(&flags)?;
    match command.get("dataset-name").unwrap_or("random") {
        "random" => drawn(&flags, random(&flags, schedule)?),
        "prefix_repetition" => drawn(&flags, prefix_repetition(&flags, schedule)?),
        "sonnet" => drawn(&flags, sonnet(&flags, schedule)?),
        "sharegpt" => {
            let mut source = flags.trace("sharegpt")?;
            source.options.format = Some(Format::ShareGpt);
            source.options.filter = Filter::Vllm;
            if flags.0.has("sharegpt-output-len") || flags.0.has("output-len") {
                return Err(flags.not_emulated("a fixed length of ShareGPT's answers"));
            }
            recorded(&flags, flags.sampled(source, schedule))
        }
        "burstgpt" => {
            // Only the lengths are taken, in mixed order; the times are the client's own.
            let mut source = flags.trace("burstgpt")?;
            source.options.format = Some(Format::BurstGpt);
            recorded(&flags, flags.sampled(source, schedule))
        }
        "timed_trace" => {
            let mut source = flags.trace("timed_trace")?;
            source.options.limit = source.limit;
            recorded(&flags, source)
        }
        other @ ("hf" | "custom" | "custom_mm" | "spec_bench" | "speed_bench" | "random-mm"
        | "random-rerank" | "txt-slices") => {
            Err(flags.not_emulated(&format!("`--dataset-name {other}`")))
        }
        _ => Err(flags.bad("dataset-name", DATA)),
    }
}

fn drawn(flags: &Flags<'_>, mut group: Group) -> Result<Part, String> {
    group.shape.eos = eos(flags);
    group.shape.sampling = sampling(flags)?;
    Ok(Part::Group(Box::new(group)))
}

fn recorded(flags: &Flags<'_>, mut source: TraceSource) -> Result<Part, String> {
    source.eos = eos(flags);
    source.sampling = sampling(flags)?;
    Ok(Part::Trace(Box::new(source)))
}

fn eos(flags: &Flags<'_>) -> EosRule {
    if flags.0.has("ignore-eos") { EosRule::Ignored } else { EosRule::Ends }
}

fn sampling(flags: &Flags<'_>) -> Result<Sampling, String> {
    let number = |flag: &str| flags.number(flag, (-100.0, 100.0));
    let top_k = flags.some_count("top-k", (1, 1 << 30))?;
    let cuts = (number("top-p")?, top_k, number("min-p")?);
    let penalties = ["frequency-penalty", "presence-penalty", "repetition-penalty"];
    Ok(Sampling {
        choice: crate::scenario::choice(number("temperature")?, cuts),
        output_logprobs: flags.0.has("logprobs"),
        penalties: penalties.into_iter().any(|flag| flags.0.has(flag)),
    })
}

/// Gaps of a rate are stretched so that the last request is due on time; those of a ramp are not.
fn schedule(flags: &Flags<'_>) -> Result<Schedule, String> {
    let rate = flags.rate()?;
    let gaps = match flags.0.get("burstiness") {
        Some("inf") => Gaps::Constant,
        _ => match flags.number("burstiness", (0.001, 1000.0))? {
            Some(burstiness) if burstiness != 1.0 => Gaps::Gamma { burstiness },
            _ => Gaps::Poisson,
        },
    };
    let Some(strategy) = flags.0.get("ramp-up-strategy") else {
        return Ok(rate.map_or(AT_ONCE, |rate| at_rate(rate, gaps, Pacing::Stretched)));
    };
    let law = match strategy {
        "linear" => RampLaw::Linear,
        "exponential" => RampLaw::Exponential,
        _ => return Err(flags.bad("ramp-up-strategy", "`linear` or `exponential`")),
    };
    if rate.is_some() {
        return Err("`--ramp-up-strategy` and `--request-rate` exclude each other".to_owned());
    }
    let ends = (flags.number("ramp-up-start-rps", RATES)?, flags.number("ramp-up-end-rps", RATES)?);
    let (Some(from), Some(to)) = ends else {
        return Err(
            "`--ramp-up-strategy` needs `--ramp-up-start-rps` and `--ramp-up-end-rps`".to_owned()
        );
    };
    let unused = Rate { count: 1, per: 1_000_000_000 };
    Ok(at_rate(unused, gaps, Pacing::Ramp { from, to, law }))
}

/// Two-sided: from the ratio's part below a length to the same above it, 0 is the length itself.
///
/// Source: vLLM `RandomDataset.get_sampling_params`.
fn lengths(full: u64, ratio: f64) -> Lengths {
    let low = (full as f64 * (1.0 - ratio)).floor() as u64;
    let high = (full as f64 * (1.0 + ratio)).ceil() as u64;
    even(low.max(1), high.max(1))
}

fn random(flags: &Flags<'_>, schedule: Schedule) -> Result<Group, String> {
    let ratio = flags.number("random-range-ratio", (0.0, 0.999_999))?.unwrap_or(0.0);
    let input = flags.tokens("random-input-len", flags.tokens("input-len", 1024)?)?;
    let output = flags.tokens("random-output-len", flags.tokens("output-len", 128)?)?;
    let mut group =
        group(flags, flags.prompts()?, (lengths(input, ratio), lengths(output, ratio)), schedule)?;
    let prefix = flags.count("random-prefix-len", 0, (0, super::MOST_TOKENS))?;
    if prefix > 0 {
        let tokens = Lengths::Fixed(prefix);
        group.shared_prefix =
            Some(SharedPrefix { tokens, groups: 1, choice: PrefixChoice::Random });
    }
    Ok(group)
}

fn prefix_repetition(flags: &Flags<'_>, schedule: Schedule) -> Result<Group, String> {
    let prompts = flags.prompts()?;
    let groups = flags.count("prefix-repetition-num-prefixes", 10, (1, prompts))?;
    let flag = |name: &str| format!("prefix-repetition-{name}-len");
    let prefix = flags.tokens(&flag("prefix"), 256)?;
    let suffix = flags.tokens(&flag("suffix"), flags.tokens("input-len", 256)?)?;
    let output = flags.tokens(&flag("output"), flags.tokens("output-len", 128)?)?;
    // Each prefix as often as the others; what does not divide is not sent.
    let requests = prompts / groups * groups;
    let lens = (Lengths::Fixed(suffix), Lengths::Fixed(output));
    let mut group = group(flags, requests, lens, schedule)?;
    let choice = match flags.0.has("disable-shuffle") {
        true => PrefixChoice::InOrder,
        false => PrefixChoice::Even,
    };
    group.shared_prefix = Some(SharedPrefix { tokens: Lengths::Fixed(prefix), groups, choice });
    Ok(group)
}

/// Lines of a poem behind the same lines: the prefix is a part of the prompt's length.
fn sonnet(flags: &Flags<'_>, schedule: Schedule) -> Result<Group, String> {
    let input = flags.tokens("sonnet-input-len", flags.tokens("input-len", 550)?)?;
    let output = flags.tokens("sonnet-output-len", flags.tokens("output-len", 150)?)?;
    let prefix = flags.count("sonnet-prefix-len", 200, (0, input.saturating_sub(1)))?;
    let lens = (Lengths::Fixed(input - prefix), Lengths::Fixed(output));
    let mut group = group(flags, flags.prompts()?, lens, schedule)?;
    if prefix > 0 {
        let tokens = Lengths::Fixed(prefix);
        group.shared_prefix =
            Some(SharedPrefix { tokens, groups: 1, choice: PrefixChoice::Random });
    }
    Ok(group)
}
