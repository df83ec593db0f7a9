//! What the engines' benchmark clients would send for a command: each one's own flags, defaults and meanings.
//!
//! The laws are theirs, the draws are not: lengths and gaps come from Plimsoll's own streams.

mod sglang;
mod vllm;

use crate::scenario::{
    Gaps, Group, Lengths, MaxTokens, Pacing, Part, Rate, Schedule, Shape, TraceSource,
};
use plimsoll_core::{engine::serving::Sampling, sched::EosRule, units::Nanos};
use plimsoll_ingest::{
    bench::{BenchCommand, client_name, parse},
    launch::Engine,
};

/// Most requests of a command.
const MOST_PROMPTS: u64 = 10_000_000;
/// Most tokens of a prompt or an answer.
const MOST_TOKENS: u64 = crate::scenario::lengths::MAX_TOKENS;

/// The part of a workload that a command stands for.
///
/// # Errors
///
/// What is wrong with the command, or what of it is not emulated, in words.
pub fn part(text: &str) -> Result<Part, String> {
    let command = parse(text)?;
    match command.client {
        Engine::Sglang => sglang::part(&command),
        Engine::Vllm => vllm::part(&command),
    }
}

/// Flags of one command as values.
struct Flags<'a>(&'a BenchCommand);

impl Flags<'_> {
    fn bad(&self, flag: &str, expected: &str) -> String {
        let value = self.0.get(flag).unwrap_or_default();
        let shown: String =
            value.chars().take(60).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        format!("`--{flag}` cannot be `{shown}`; allowed: {expected}")
    }

    fn count(&self, flag: &str, default: u64, (low, high): (u64, u64)) -> Result<u64, String> {
        Ok(self.some_count(flag, (low, high))?.unwrap_or(default))
    }

    fn some_count(&self, flag: &str, (low, high): (u64, u64)) -> Result<Option<u64>, String> {
        let Some(text) = self.0.get(flag) else { return Ok(None) };
        let value = text.parse().ok().filter(|value| (low..=high).contains(value));
        value.map(Some).ok_or_else(|| self.bad(flag, &format!("an integer from {low} to {high}")))
    }

    fn tokens(&self, flag: &str, default: u64) -> Result<u64, String> {
        self.count(flag, default, (1, MOST_TOKENS))
    }

    fn prompts(&self) -> Result<u64, String> {
        self.count("num-prompts", 1000, (1, MOST_PROMPTS))
    }

    fn number(&self, flag: &str, (low, high): (f64, f64)) -> Result<Option<f64>, String> {
        let Some(text) = self.0.get(flag) else { return Ok(None) };
        let value: Option<f64> = text.parse().ok().filter(|value| (low..=high).contains(value));
        value.map(Some).ok_or_else(|| self.bad(flag, &format!("a number from {low} to {high}")))
    }

    /// A mean rate in requests a second; `None`: `inf`, all at once.
    fn rate(&self) -> Result<Option<Rate>, String> {
        let Some(text) =
            self.0.get("request-rate").filter(|text| !text.eq_ignore_ascii_case("inf"))
        else {
            return Ok(None);
        };
        let rate = Rate::per_second(text);
        rate.map(Some).ok_or_else(|| {
            self.bad("request-rate", "requests a second, such as `8` or `0.5`, or `inf`")
        })
    }

    fn max_concurrency(&self) -> Result<Option<u64>, String> {
        self.some_count("max-concurrency", (1, MOST_PROMPTS))
    }

    /// Name of the part: another seed draws other numbers.
    fn name(&self) -> String {
        self.0.get("seed").map_or_else(|| "bench".to_owned(), |seed| format!("bench, seed {seed}"))
    }

    fn not_emulated(&self, what: &str) -> String {
        format!("{what} of {} is not emulated", client_name(self.0.client))
    }

    /// A file with the data of the client; nothing is fetched.
    fn trace(&self, data: &str) -> Result<TraceSource, String> {
        let path = self.0.get("dataset-path").filter(|path| !path.is_empty()).ok_or_else(|| {
            format!("`--dataset-name {data}` needs its file: `--dataset-path FILE` (nothing is downloaded)")
        })?;
        let mut source = TraceSource::plain(path.into());
        source.name = self.name();
        source.concurrency = self.max_concurrency()?;
        source.limit = Some(self.prompts()?);
        Ok(source)
    }

    /// Rows taken from a data set without times, in mixed order, and sent as the client sends all else.
    fn sampled(&self, mut source: TraceSource, schedule: Schedule) -> TraceSource {
        source.shuffle = !self.0.has("disable-shuffle");
        source.options.limit = source.limit.filter(|_| !source.shuffle);
        source.schedule = Some(schedule);
        source
    }
}

/// A group that sends these lengths.
fn group(
    flags: &Flags<'_>,
    requests: u64,
    (prompt_tokens, output_tokens): (Lengths, Lengths),
    schedule: Schedule,
) -> Result<Group, String> {
    Ok(Group {
        name: flags.name(),
        requests,
        schedule,
        concurrency: flags.max_concurrency()?,
        think_time: Nanos(0),
        shape: Shape {
            prompt_tokens,
            output_tokens,
            max_tokens: MaxTokens::Output,
            eos: EosRule::Ends,
            sampling: Sampling::default(),
            logprob_start: None,
            priority: None,
        },
        shared_prefix: None,
        turns: None,
    })
}

const AT_ONCE: Schedule = Schedule::Together { at: Nanos(0) };

/// Gaps at a rate, from the ready server on.
const fn at_rate(rate: Rate, gaps: Gaps, pacing: Pacing) -> Schedule {
    Schedule::Rate { rate, gaps, start: Nanos(0), pacing }
}

/// Each length from `low` to `high` as likely.
const fn even(low: u64, high: u64) -> Lengths {
    if low >= high { Lengths::Fixed(high) } else { Lengths::Uniform { low, high } }
}
