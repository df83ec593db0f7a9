//! The flags of `sweep`.

use crate::{commands::changes::ChangeArgs, exit::Failure};
use clap::{Args, Subcommand};
use plimsoll_replay::scenario::Neighbours;
use plimsoll_sweep::{
    answer::{Objective, Share},
    question::{Seeds, header::Shard},
};
use std::path::PathBuf;

/// Shown under the help of `sweep`.
pub const EXAMPLES: &str = "Examples:
  plimsoll sweep FILE --fraction 0.80..0.95:0.01 --seeds 1..20
  plimsoll sweep FILE --over workload.rate=[\"4 /s\",\"8 /s\"] --fraction 0.84,0.88 --format csv
  plimsoll sweep FILE --fraction 0.80..0.95:0.01 --chunk 2048,4096,8192 --pareto
  plimsoll sweep FILE --fraction 0.80..0.95:0.01 --seeds 1..3000 --out rows/ --shard 3/16
  plimsoll sweep merge rows/*.jsonl --parquet rows.parquet

A range is FROM..TO:STEP in exact decimals, with a unit where the value has one; a list is a,b,c. Points
go scenario by scenario, the last swept path fastest, then by seed.";

/// `plimsoll sweep`.
#[derive(Args, Debug)]
#[command(subcommand_negates_reqs = true)]
pub struct SweepArgs {
    /// What to do instead.
    #[command(subcommand)]
    pub verb: Option<SweepVerb>,
    /// What is asked.
    #[command(flatten)]
    pub question: QuestionArgs,
    /// How it is run.
    #[command(flatten)]
    pub drive: DriveArgs,
    /// What of it is shown.
    #[command(flatten)]
    pub answer: AnswerArgs,
}

impl SweepArgs {
    /// Whether nothing but `merge` is asked: its flags stand behind it.
    ///
    /// # Errors
    ///
    /// Something is.
    pub fn nothing_but_merge(&self) -> Result<(), Failure> {
        let (question, drive, answer) = (&self.question, &self.drive, &self.answer);
        let asked = [
            ("a scenario", !question.scenarios.is_empty()),
            ("--over", !question.over.is_empty()),
            ("--fraction", question.fraction.is_some()),
            ("--chunk", question.chunk.is_some()),
            ("--max-running", question.max_running.is_some()),
            ("--tp", question.tp.is_some()),
            ("--seeds", question.seeds.is_some() || question.seed.is_some()),
            ("--neighbours", question.neighbours.is_some()),
            ("--set", !question.changes.set.is_empty()),
            ("--out", drive.out.is_some()),
            ("--shard", drive.shard.is_some()),
            ("--parquet", answer.parquet.is_some()),
            ("--svg", answer.svg.is_some()),
            ("--pareto", answer.pareto || !answer.objectives.is_empty()),
        ];
        match asked.into_iter().find(|(_, is_asked)| *is_asked) {
            Some((what, _)) => Err(Failure::input(format!(
                "{what} stands before `merge`: what is merged and its flags stand behind it"
            ))),
            None => Ok(()),
        }
    }
}

/// What `sweep` can do instead of running.
#[derive(Subcommand, Debug)]
pub enum SweepVerb {
    /// Put the shards of a sweep together: the rows of all of them are those of one run.
    Merge(MergeArgs),
}

/// What is asked.
#[derive(Args, Debug)]
pub struct QuestionArgs {
    /// Scenario files, or folders of them; each is swept.
    #[arg(required = true, value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// Sweep a value of the scenario: a range or a list for a path as in `--set`. Repeatable.
    #[arg(long, value_name = "PATH=RANGE")]
    pub over: Vec<String>,
    /// Sweep --mem-fraction-static (SGLang) or --gpu-memory-utilization (vLLM).
    #[arg(long, value_name = "RANGE", allow_hyphen_values = true)]
    pub fraction: Option<String>,
    /// Sweep --chunked-prefill-size (SGLang) or --max-num-batched-tokens (vLLM).
    #[arg(long, value_name = "RANGE", allow_hyphen_values = true)]
    pub chunk: Option<String>,
    /// Sweep --max-running-requests (SGLang) or --max-num-seqs (vLLM).
    #[arg(long, value_name = "RANGE", allow_hyphen_values = true)]
    pub max_running: Option<String>,
    /// Sweep the tensor-parallel ranks.
    #[arg(long, value_name = "RANGE", allow_hyphen_values = true)]
    pub tp: Option<String>,
    /// Run every value with these seeds: `1..1000`, `1,5,9`, or `20` for the first 20. Default: the
    /// scenario's own.
    #[arg(long, value_name = "SEEDS", conflicts_with = "seed")]
    pub seeds: Option<Seeds>,
    /// Run every value with this seed alone.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub seed: Option<u64>,
    /// Take every distribution of what other programs hold at this percentile (`p99`) instead of drawing from
    /// it (`drawn`).
    #[arg(long, value_name = "PERCENTILE", value_parser = percentile)]
    pub neighbours: Option<String>,
    /// What changes in every file.
    #[command(flatten)]
    pub changes: ChangeArgs,
    /// Refuse a recorded workload with a row that cannot be read, instead of leaving such rows out.
    #[arg(long)]
    pub strict_input: bool,
}

/// The text of `neighbours`, once it is one.
pub fn percentile(text: &str) -> Result<String, String> {
    let wrong = |allowed: String| format!("allowed: {allowed}");
    text.parse::<Neighbours>().map(|_| text.to_owned()).map_err(wrong)
}

/// How it is run.
#[derive(Args, Debug)]
pub struct DriveArgs {
    /// Threads. Default: one a core. No result depends on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Keep rows in this file (or, for a folder, in a file of its own in it) as they come. Where it has rows of
    /// the same question, go on behind them.
    #[arg(long, value_name = "FILE|FOLDER")]
    pub out: Option<PathBuf>,
    /// Run this part of the points alone: `3/16` is the third of 16. `sweep merge` puts them together.
    #[arg(long, value_name = "I/N")]
    pub shard: Option<Shard>,
    /// Keep each run's decision log and check that it adds up, as `run` does. Slower.
    #[arg(long)]
    pub checked: bool,
}

/// What of the rows is shown.
#[derive(Args, Debug)]
pub struct AnswerArgs {
    /// Write the rows as a Parquet file too.
    #[arg(long, value_name = "FILE")]
    pub parquet: Option<PathBuf>,
    /// Write throughput, p99 TTFT and the chance of a crash over the first swept number as an SVG file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Part of the seeds that must live at a value for it to count as one that survives.
    #[arg(long, value_name = "SHARE", default_value = "99.9%")]
    pub survive: Share,
    /// Mark the values that no other beats in all objectives, and list them.
    #[arg(long)]
    pub pareto: bool,
    /// What is weighed: `throughput`, `ttft_p99`, `crash`, `margin`, or any column of integers; `+` before it:
    /// more is better, `-`: less is. Default: throughput,ttft_p99,crash.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', allow_hyphen_values = true)]
    pub objectives: Vec<Objective>,
    /// Plot in ASCII alone; also under `NO_COLOR` and where the locale is no UTF-8.
    #[arg(long)]
    pub ascii: bool,
}

/// `plimsoll sweep merge`.
#[derive(Args, Debug)]
pub struct MergeArgs {
    /// Files of rows, as `--out` wrote them.
    #[arg(required = true, value_name = "SHARD")]
    pub shards: Vec<PathBuf>,
    /// Write the merged rows to this file: the bytes that one run of all points would write.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Accept that points are missing.
    #[arg(long)]
    pub partial: bool,
    /// What of it is shown.
    #[command(flatten)]
    pub answer: AnswerArgs,
}
