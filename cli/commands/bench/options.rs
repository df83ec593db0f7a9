//! The flags of `bench`, spelled as the engines' benchmark clients spell them.

use crate::commands::serve::options::ModelArgs;
use clap::{Args, ValueEnum};
use plimsoll_ingest::workload::{Format as TraceFormat, MAX_BLOCK_SIZE};
use plimsoll_replay::scenario::Rate;
use std::{path::PathBuf, time::Duration};

/// Shown under the help of `bench`.
pub const EXAMPLES: &str = "Examples:
  plimsoll bench --model-path model.gguf --num-prompts 64 --input-len 256 --output-len 64
  plimsoll bench --model-path model.gguf --workload chat-short --num-prompts 50 --request-rate 2
  plimsoll bench --model-path model.gguf --workload trace.jsonl --record bench.log
  plimsoll bench --base-url http://127.0.0.1:30000 --max-concurrency 16 --format json
  plimsoll bench --base-url http://127.0.0.1:8000 --workload \"vllm bench serve --random-input-len 512\"

With --model-path the engine runs in this process; with --base-url the load goes to a server. Without
--request-rate and --max-concurrency everything is sent at once: an offline batch.";

/// `plimsoll bench`.
#[derive(Args, Debug)]
#[command(mut_arg("model_path", |arg| arg.required(false).required_unless_present("base_url")))]
pub struct BenchArgs {
    /// Send the load to this server instead: `http://127.0.0.1:30000` (Plimsoll, SGLang, vLLM).
    #[arg(long, value_name = "URL", conflicts_with = "ModelArgs")]
    pub base_url: Option<String>,
    /// A file of requests, a scenario (`.yaml`), a benchmark command in quotes, or a preset. Default: prompts of one
    /// length, as the flags below say.
    #[arg(long, value_name = "WORKLOAD")]
    pub workload: Option<String>,
    /// Requests; of a workload its first ones. Default: all of a workload, else 100.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub num_prompts: Option<u64>,
    /// Tokens of a prompt behind the shared prefix. Default: 256.
    #[arg(long, visible_alias = "random-input-len", value_name = "TOKENS", conflicts_with = "workload", value_parser = clap::value_parser!(u64).range(1..=(1 << 24)))]
    pub input_len: Option<u64>,
    /// Tokens of an answer. Default: 64.
    #[arg(long, visible_alias = "random-output-len", value_name = "TOKENS", conflicts_with = "workload", value_parser = clap::value_parser!(u64).range(1..=(1 << 24)))]
    pub output_len: Option<u64>,
    /// Tokens that all prompts begin with. Default: none.
    #[arg(long, visible_alias = "random-prefix-len", value_name = "TOKENS", conflicts_with = "workload", value_parser = clap::value_parser!(u64).range(..=(1 << 24)))]
    pub shared_prefix_len: Option<u64>,
    /// Most requests under way together.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub max_concurrency: Option<u64>,
    /// Requests a second with random gaps, or `inf`: all at once. Default: the workload's own times, else inf.
    #[arg(long, value_name = "RATE", value_parser = request_rate)]
    pub request_rate: Option<RequestRate>,
    /// Seed of what is drawn. Default: the scenario's, or 1.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Let the model end its answers, instead of making them as long as the workload says.
    #[arg(long)]
    pub disable_ignore_eos: bool,
    /// Format of the workload's file. Default: as its content shows.
    #[arg(long, value_name = "NAME", requires = "workload", value_parser = clap::builder::PossibleValuesParser::new(TraceFormat::NAMES))]
    pub input_format: Option<String>,
    /// Tokens of a block of the file's ids. Default: the format's, or what fits the rows.
    #[arg(long, value_name = "TOKENS", requires = "workload", value_parser = clap::value_parser!(u64).range(1..=MAX_BLOCK_SIZE))]
    pub block_size: Option<u64>,
    /// Spread rows of one recorded time until the next.
    #[arg(long, requires = "workload")]
    pub smear_arrivals: bool,
    /// Exit 2 at the first row that cannot be read, instead of leaving such rows out.
    #[arg(long)]
    pub strict_input: bool,
    /// Write a recording of the engine that `replay` decides again.
    #[arg(long, value_name = "FILE", conflicts_with = "base_url")]
    pub record: Option<PathBuf>,
    /// Name of the model in requests. Default: the first that the server lists.
    #[arg(long, value_name = "NAME", requires = "base_url")]
    pub model_name: Option<String>,
    /// How prompts are sent to a server: as token ids, or as words of about a token each.
    #[arg(long, value_enum, default_value = "ids")]
    pub prompt_as: PromptAs,
    /// Ids that prompts for a server are made of: plain tokens in almost every vocabulary.
    #[arg(long, value_name = "LOW..HIGH", default_value = "1000..30000", value_parser = id_range)]
    pub token_ids: IdRange,
    /// Name of the environment variable that holds the server's API key.
    #[arg(long, value_name = "NAME", requires = "base_url")]
    pub api_key_env: Option<String>,
    /// Longest that a server may take for an answer.
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = span)]
    pub timeout: Duration,
    /// The model; last, for its heading holds for all that follows.
    #[command(flatten)]
    pub model: Option<ModelArgs>,
}

/// How a prompt travels.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum PromptAs {
    /// As ids.
    Ids,
    /// As words.
    Text,
}

/// When requests are due instead of at a workload's own times.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum RequestRate {
    /// All at once.
    Inf,
    /// At a mean rate, with gaps of a Poisson process.
    Mean(Rate),
}

fn request_rate(text: &str) -> Result<RequestRate, String> {
    if text.eq_ignore_ascii_case("inf") {
        return Ok(RequestRate::Inf);
    }
    let rate = Rate::per_second(text).map(RequestRate::Mean);
    rate.ok_or_else(|| "requests a second, such as 8 or 0.5, or inf".to_owned())
}

/// Token ids from `low` to below `high`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdRange {
    /// The first.
    pub low: u32,
    /// Behind the last.
    pub high: u32,
}

fn id_range(text: &str) -> Result<IdRange, String> {
    let ends = text.split_once("..").and_then(|(low, high)| {
        Some(IdRange { low: low.trim().parse().ok()?, high: high.trim().parse().ok()? })
    });
    ends.filter(|range| range.low < range.high)
        .ok_or_else(|| "two ids with dots between them, such as 1000..30000".to_owned())
}

fn span(text: &str) -> Result<Duration, String> {
    let time = plimsoll_replay::scenario::time::nanos(text)?;
    match time.0 {
        0 => Err("a time above 0".to_owned()),
        nanos => Ok(Duration::from_nanos(nanos)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_rates_are_read_or_refused() {
        assert_eq!(id_range("3..250"), Ok(IdRange { low: 3, high: 250 }));
        for text in ["", "3", "5..5", "9..3", "a..b", "-1..4"] {
            assert!(id_range(text).is_err(), "{text}");
        }
        assert_eq!(request_rate("INF"), Ok(RequestRate::Inf));
        assert!(matches!(request_rate("0.5"), Ok(RequestRate::Mean(_))));
        for text in ["", "0", "-1", "fast"] {
            assert!(request_rate(text).is_err(), "{text}");
        }
        assert!(span("0s").is_err() && span("2s").is_ok());
    }
}
