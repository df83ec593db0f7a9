//! The command line: verbs, their flags, and the help texts.

use crate::exit::Failure;
use clap::{Args, Parser, Subcommand, ValueEnum};
use plimsoll_core::units::Bytes;
use plimsoll_ingest::workload::{Format as TraceFormat, MAX_BLOCK_SIZE};
use plimsoll_replay::ledger_at::Moment;
use std::path::PathBuf;

/// Shown under the help of the whole.
const EXIT_CODES: &str = "Exit codes:
  0  it holds
  1  a claim failed, a problem was found, or the margin is too small
  2  bad input or usage
  3  the device or server is missing or lost
  130  interrupted; the recording is closed

Results go to stdout, all else to stderr. The text for people may change at any time; JSON has a
schema with a version (`plimsoll schema plan`).";

/// Shown under the help of `plan`.
const PLAN_EXAMPLES: &str = "Examples:
  plimsoll plan --device \"RTX PRO 6000 Blackwell\" -- \\
      python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8
  plimsoll plan --device H100 --model Qwen/Qwen3-8B --engine vllm --why
  plimsoll plan --device H200 --from-log server.log --min-margin 2GiB -- vllm serve openai/gpt-oss-120b
  plimsoll plan --device L4 --model mine --kv-bytes-per-token 128KiB --weights 14.9GiB

The command may stand in docker, kubectl, env, srun or bash -c, with a --config file. Amounts have a
unit; a log's \"GB\" is GiB.";

/// Shown under the help of `diagnose`.
const DIAGNOSE_EXAMPLES: &str = "Examples:
  plimsoll diagnose server.log
  plimsoll diagnose server.log --device \"H100 SXM\" -- python -m sglang.launch_server --model-path …
  kubectl logs pod/server --previous | plimsoll diagnose --command @run.sh
  plimsoll diagnose rank0.log rank1.log.gz --format sarif --output server.sarif

Files are read in the order given, as the ranks or rotations of one server; .gz is read as it is. What
the log prints of paths, keys, addresses and names of people is cut, unless --no-redact is given.";

/// Shown under the help of `workload`.
const WORKLOAD_EXAMPLES: &str = "Examples:
  plimsoll workload conversation_trace.jsonl --smear-arrivals
  plimsoll workload code-azure
  plimsoll workload \"vllm bench serve --random-input-len 512 --request-rate 8\"
  plimsoll workload scenarios/workloads/mooncake-shared-system-prompt.yaml --format json

Formats of files are told by their content; --input-format says otherwise.";

/// The load line for LLM servers: what a launch does with GPU memory, and what to pass instead.
#[derive(Parser, Debug)]
#[command(name = "plimsoll", version, propagate_version = true, disable_help_subcommand = true, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
    /// Presentation.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// How results are shown.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Form of the result on stdout.
    #[arg(long, global = true, value_enum, default_value = "human", env = "PLIMSOLL_FORMAT")]
    pub format: Format,
    /// Write the result to a file instead of stdout.
    #[arg(long, short, global = true, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// When to colour.
    #[arg(long, global = true, value_enum, default_value = "auto")]
    pub color: ColorWhen,
}

/// Form of a result.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// One screen for people.
    Human,
    /// One JSON document with integer bytes and tokens.
    Json,
    /// One JSON object a line.
    Jsonl,
    /// Comma-separated values.
    Csv,
    /// Markdown.
    Md,
    /// SARIF 2.1.0, which CI systems read (`diagnose`).
    Sarif,
}

/// When to colour.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ColorWhen {
    /// On a terminal, unless `NO_COLOR` is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub enum Verb {
    /// What a launch command does with memory, how near the line it is, and what to pass instead.
    #[command(after_help = PLAN_EXAMPLES)]
    Plan(Box<PlanArgs>),
    /// What happened to a server, from its log, and what to set.
    #[command(after_help = DIAGNOSE_EXAMPLES, disable_version_flag = true)]
    Diagnose(Box<DiagnoseArgs>),
    /// What a finding of `diagnose` means, an operating rule, or why a usual answer is wrong.
    Explain(ExplainArgs),
    /// Run scenario files and check what they expect.
    Run(RunArgs),
    /// Run a scenario at many values and seeds: how high is safe, how sure that is, what nothing else beats.
    #[command(after_help = crate::commands::sweep::options::EXAMPLES)]
    Sweep(Box<crate::commands::sweep::options::SweepArgs>),
    /// Run a recording again on the simulator and say whether the decisions are the same.
    Replay(ReplayArgs),
    /// The first difference between two decision logs.
    Diff(DiffArgs),
    /// Fit the time model and the memory that the rules do not predict to what was measured, and write a
    /// profile.
    #[command(after_help = crate::commands::calibrate::options::EXAMPLES)]
    Calibrate(crate::commands::calibrate::options::CalibrateArgs),
    /// What a workload is like, without running it: a trace, a preset, a benchmark command, or the workload of
    /// a scenario.
    #[command(after_help = WORKLOAD_EXAMPLES)]
    Workload(WorkloadArgs),
    /// Serve a model over the interface of OpenAI, on memory that is planned and proven before the first
    /// request.
    #[command(after_help = crate::commands::serve::options::EXAMPLES)]
    Serve(Box<crate::commands::serve::options::ServeArgs>),
    /// Load an engine in this process, or a server, in real time, and measure it as `run` measures a simulation.
    #[command(after_help = crate::commands::bench::options::EXAMPLES)]
    Bench(Box<crate::commands::bench::options::BenchArgs>),
    /// Talk with a model in this process.
    #[command(after_help = crate::commands::chat::options::EXAMPLES)]
    Chat(Box<crate::commands::chat::options::ChatArgs>),
    /// Attach to a running SGLang or vLLM server and read its pool, queue and free memory.
    #[command(after_help = crate::commands::watch::options::EXAMPLES)]
    Watch(crate::commands::watch::options::WatchArgs),
    /// What this machine has, and what each backend can do here.
    Doctor(DoctorArgs),
    /// JSON schema of scenario files, or of a result.
    Schema(SchemaArgs),
    /// Completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// The manual page.
    Man,
}

impl Verb {
    /// Whether a verb has a form of its result: SARIF is of `diagnose`, which has no table.
    ///
    /// # Errors
    ///
    /// It does not; says which it has.
    pub fn allows(&self, format: Format) -> Result<(), Failure> {
        let (verb, forms) = match (self, format) {
            (Self::Diagnose(_), Format::Csv) => ("diagnose", "human, json, jsonl, md and sarif"),
            (Self::Explain(_), Format::Csv | Format::Sarif) => {
                ("explain", "human, json, jsonl and md")
            }
            (Self::Watch(_), Format::Csv | Format::Md | Format::Sarif) => {
                ("watch", "human, json and jsonl")
            }
            (Self::Serve(_), Format::Csv | Format::Md | Format::Sarif) => {
                ("serve", "human, json and jsonl")
            }
            (Self::Chat(_), Format::Human) => return Ok(()),
            (Self::Chat(_), _) => ("chat", "human"),
            (Self::Diagnose(_), _) => return Ok(()),
            (_, Format::Sarif) => ("this verb", "human, json, jsonl, csv and md"),
            _ => return Ok(()),
        };
        let name = format.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
        Err(Failure::input(format!("--format {name}: {verb} writes {forms}")))
    }
}

/// `plimsoll plan`.
#[derive(Args, Debug)]
pub struct PlanArgs {
    /// Model: a hub id, a catalog name (`--model list` prints them), a folder with config.json, or a
    /// GGUF file. Default: the model of the launch command.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Device, by catalog name (`--device list` prints them all). Default: the one of this machine.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Engine, when no launch command says it. Default: sglang, or vllm beside --gpu-memory-utilization.
    #[arg(long, value_enum)]
    pub engine: Option<EngineName>,
    /// Release of the engine whose rules apply, for example 0.5.8.
    #[arg(long, value_name = "RELEASE")]
    pub engine_version: Option<String>,
    /// Tensor-parallel ranks; wins over the launch command.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub tp: Option<String>,
    /// SGLang's fraction; wins over the launch command.
    #[arg(long, value_name = "F", allow_hyphen_values = true)]
    pub mem_fraction_static: Option<String>,
    /// vLLM's fraction; wins over the launch command.
    #[arg(long, value_name = "F", allow_hyphen_values = true)]
    pub gpu_memory_utilization: Option<String>,
    /// Any other flag of the engine as NAME=VALUE (or NAME alone), repeatable: `--set page-size=64`.
    #[arg(long = "set", value_name = "NAME[=VALUE]")]
    pub set: Vec<String>,
    /// Show the rule, source and inputs of every figure.
    #[arg(long)]
    pub why: bool,
    /// Show the start-up lines that the engine will log, to lay beside a log.
    #[arg(long)]
    pub engine_lines: bool,
    /// Exit 1 when less than this is left after graphs and the largest prefill.
    #[arg(long, value_name = "AMOUNT", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub min_margin: Option<Bytes>,
    /// The launch command as typed, after `--`.
    #[arg(last = true, value_name = "LAUNCH COMMAND")]
    pub command: Vec<String>,
    /// Measurements that replace estimates; last, for their heading holds for all that follows.
    #[command(flatten)]
    pub measured: MeasuredArgs,
}

/// Measured values, from a log or a device.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Measured values, which replace estimates")]
pub struct MeasuredArgs {
    /// Free memory of the weakest rank before loading, as the log prints it ("94.04 GiB").
    #[arg(long, value_name = "AMOUNT", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub free_before_load: Option<Bytes>,
    /// What loading took on a rank, as the log prints it ("72.33 GiB").
    #[arg(long, value_name = "AMOUNT", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub weights: Option<Bytes>,
    /// Free memory after graph capture of a start with this very command.
    #[arg(long, value_name = "AMOUNT", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub free_after_graphs: Option<Bytes>,
    /// Held by other programs on each device.
    #[arg(long, value_name = "AMOUNT", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub others: Option<Bytes>,
    /// Host memory that programs can still take (MemAvailable).
    #[arg(long, value_name = "AMOUNT", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub host_available: Option<Bytes>,
    /// Bytes that one token takes in the pool of one rank, for a model that is not known.
    #[arg(long, value_name = "AMOUNT", value_parser = parse_bytes, allow_hyphen_values = true)]
    pub kv_bytes_per_token: Option<Bytes>,
    /// Take the start-up figures of a server log instead.
    #[arg(long, value_name = "FILE")]
    pub from_log: Option<PathBuf>,
    /// Take what `calibrate` wrote of this device; flags and a log win over it.
    #[arg(long, value_name = "FILE")]
    pub profile: Option<PathBuf>,
}

/// Which engine.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineName {
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
}

/// `plimsoll diagnose`.
#[derive(Args, Debug)]
pub struct DiagnoseArgs {
    /// Log files of one server, in order; `-` is stdin. Default: stdin, where it is no terminal.
    #[arg(value_name = "LOG")]
    pub logs: Vec<PathBuf>,
    /// The launch command as a text, or @FILE. Default: the one that the log itself shows.
    #[arg(long, value_name = "TEXT|@FILE", conflicts_with = "launch")]
    pub command: Option<String>,
    /// Device, by catalog name. Default: the one that the log names.
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Model: a hub id, a catalog name, a folder with config.json, or a GGUF file. Default: that of the
    /// command or the log.
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Release of the server. Default: the one that the log prints, else that of the command.
    #[arg(long, visible_alias = "version", value_name = "RELEASE")]
    pub engine_version: Option<String>,
    /// Whose log it is, where its lines do not tell.
    #[arg(long, value_enum)]
    pub server: Option<ServerName>,
    /// Show lines as they stand, with paths, keys and addresses.
    #[arg(long)]
    pub no_redact: bool,
    /// Write scenario files into this folder: `crash.yaml` dies as the log did, `fixed.yaml` lives. Both are
    /// run before they are claimed.
    #[arg(long, value_name = "DIR")]
    pub emit_scenario: Option<PathBuf>,
    /// Lay a plan beside the log: the JSON of `plan`, a scenario, or a recording of `run`. Says where reality
    /// first left it.
    #[arg(long, value_name = "PLAN")]
    pub against: Option<PathBuf>,
    /// Show every finding and every line in full.
    #[arg(long)]
    pub all: bool,
    /// The launch command as typed, after `--`.
    #[arg(last = true, value_name = "LAUNCH COMMAND")]
    pub launch: Vec<String>,
}

/// Whose log.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerName {
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
    /// llama.cpp's server.
    LlamaCpp,
    /// ollama.
    Ollama,
    /// TensorRT-LLM.
    #[value(name = "tensorrt-llm")]
    TensorRtLlm,
    /// Text Generation Inference.
    Tgi,
    /// LMDeploy.
    Lmdeploy,
}

/// `plimsoll explain`.
#[derive(Args, Debug)]
pub struct ExplainArgs {
    /// Codes of findings, or topics; none lists them all.
    #[arg(value_name = "CODE|TOPIC")]
    pub names: Vec<String>,
    /// List every code and topic with a line each.
    #[arg(long, conflicts_with = "names")]
    pub list: bool,
}

/// `plimsoll run`.
#[derive(Args, Debug)]
pub struct RunArgs {
    /// Scenario files, or folders of them; `-` is stdin.
    #[arg(required = true, value_name = "SCENARIO")]
    pub scenarios: Vec<PathBuf>,
    /// What changes in every file.
    #[command(flatten)]
    pub changes: crate::commands::changes::ChangeArgs,
    /// Exit 2 at the first row of a recorded workload that cannot be read, instead of leaving such rows out.
    #[arg(long)]
    pub strict_input: bool,
    /// Write the decision log to this file as it grows, with the scenario, so that `replay` can run it
    /// again (one scenario only).
    #[arg(long, visible_alias = "log", value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Write what this release of the engine would log (`-`: to stdout), to lay beside a real log (one scenario
    /// only).
    #[arg(long, value_name = "FILE")]
    pub engine_log: Option<PathBuf>,
    /// What the decision log tells: decisions, or every token slot that changes hands too.
    #[arg(long, value_enum, default_value = "decisions")]
    pub detail: Detail,
    /// Keep of the decision log only the start, the end and the digests, for runs of very many requests. It
    /// is not checked then.
    #[arg(long, conflicts_with_all = ["record", "timeline", "svg", "at"])]
    pub unlogged: bool,
    /// Take every decode pass by itself, where quiet ones are skipped otherwise. The log is the same.
    #[arg(long)]
    pub step_by_step: bool,
    /// Show the rule, source and inputs of every figure.
    #[arg(long)]
    pub why: bool,
    /// What to look at.
    #[command(flatten)]
    pub views: ViewArgs,
    /// Where the memory is: arithmetic, real bytes of this host, or a CUDA device.
    #[arg(long, value_enum, default_value = "sim")]
    pub backend: BackendName,
    /// Which readings decide on a real backend: those of the scenario, or the device's own. With its own,
    /// `--record` keeps them, and `replay` makes the same decisions without the device.
    #[arg(long, value_enum, default_value = "declared")]
    pub observe: Observe,
    /// Write the results as JUnit XML too, for CI systems: a suite a folder, a case a file.
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    /// Scenarios that run at the same time. Default: 1; with --seeds one a core.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Run with this seed instead of the file's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub seed: Option<u64>,
    /// Run with each of these seeds: `1..1000`, `1,5,9`, or `20` for the first 20. Those that fail take a line
    /// each.
    #[arg(
        long,
        value_name = "SEEDS",
        conflicts_with_all = ["seed", "record", "engine_log", "timeline", "svg", "at", "why", "report", "trace", "junit"]
    )]
    pub seeds: Option<plimsoll_sweep::question::Seeds>,
    /// Take every distribution of what other programs hold at this percentile (`p99`) instead of drawing from
    /// it (`drawn`).
    #[arg(long, value_name = "PERCENTILE", value_parser = crate::commands::sweep::options::percentile)]
    pub neighbours: Option<String>,
}

/// How much a decision log tells.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Detail {
    /// Every decision.
    Decisions,
    /// Every token slot that is taken or given back, too.
    Slots,
}

/// What of a run is shown beside its verdict.
#[derive(Args, Debug, Clone, Default)]
pub struct ViewArgs {
    /// Plot memory, pool and queues over time.
    #[arg(long)]
    pub timeline: bool,
    /// Plot in ASCII alone; also under `NO_COLOR` and where the locale is no UTF-8.
    #[arg(long)]
    pub ascii: bool,
    /// Write the timeline as an SVG file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write one HTML page that shows the run and its failure, to open in any browser without network.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Write a trace of the run for Perfetto or chrome://tracing. To send the requests of a file, use
    /// --workload.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Who held what at a moment: a step's number, `ready`, `crash` or `end`.
    #[arg(long, value_name = "WHEN")]
    pub at: Option<Moment>,
}

impl ViewArgs {
    /// Whether any of them is asked for.
    pub fn wanted(&self) -> bool {
        let files = [&self.svg, &self.report, &self.trace];
        self.timeline || self.at.is_some() || files.iter().any(|file| file.is_some())
    }
}

/// Where memory is.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum BackendName {
    /// The simulator.
    Sim,
    /// Memory of this host.
    Host,
    /// A CUDA device.
    Cuda,
}

/// Which readings decide.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Observe {
    /// Those of the scenario; the machine is made to agree.
    Declared,
    /// Those of the scenario; a device too small for it holds an n-th of every byte.
    Scaled,
    /// Those of the device; they are recorded.
    Device,
}

/// `plimsoll workload`.
#[derive(Args, Debug)]
pub struct WorkloadArgs {
    /// A file of requests, a scenario (`.yaml`), a benchmark command in quotes, or a preset (`list` prints them).
    #[arg(value_name = "WORKLOAD")]
    pub source: String,
    /// Format of the file. Default: as its content shows.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(TraceFormat::NAMES))]
    pub input_format: Option<String>,
    /// Tokens of a block of the file's ids. Default: the format's, or what fits the rows.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..=MAX_BLOCK_SIZE))]
    pub block_size: Option<u64>,
    /// Look at this many rows, from the beginning.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Spread rows of one recorded time until the next.
    #[arg(long)]
    pub smear_arrivals: bool,
    /// Seed of what is drawn. Default: the scenario's, or 1.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Exit 2 at the first row that cannot be read, instead of leaving such rows out.
    #[arg(long)]
    pub strict_input: bool,
}

/// `plimsoll replay`.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// What `run --record` wrote, whole or cut off.
    pub recording: PathBuf,
    /// What to look at, in the recording.
    #[command(flatten)]
    pub views: ViewArgs,
}

/// `plimsoll diff`.
#[derive(Args, Debug)]
pub struct DiffArgs {
    /// First log.
    pub a: PathBuf,
    /// Second log.
    pub b: PathBuf,
}

/// `plimsoll doctor`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("looks").args(["cuda", "before_relaunch"]))]
pub struct DoctorArgs {
    /// Look for all that a model on a CUDA device needs, say what each piece is for and how to get what is missing.
    /// Exit 1 when serving lacks one.
    #[arg(long)]
    pub cuda: bool,
    /// Say what still holds devices and host after a crash, and print the commands that look and free. Runs none
    /// of them. Exit 1 when something is in the way.
    #[arg(long)]
    pub before_relaunch: bool,
    /// Free memory of each device to wait for: what the last start's log shows at `Load weight begin`.
    #[arg(long, value_name = "AMOUNT", value_parser = parse_bytes, allow_hyphen_values = true, requires = "before_relaunch")]
    pub baseline: Option<Bytes>,
    /// The port that the server is to listen on.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), requires = "before_relaunch")]
    pub port: Option<u16>,
    /// Folder below which `proc`, `sys` and `dev` lie: the host's, seen from a container. With --cuda `dev` alone.
    #[arg(long, value_name = "FOLDER", default_value = "/", requires = "looks")]
    pub root: PathBuf,
}

/// `plimsoll schema`.
#[derive(Args, Debug)]
pub struct SchemaArgs {
    /// Whose schema.
    #[arg(value_enum, default_value = "scenario")]
    pub of: SchemaOf,
}

/// What has a schema.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SchemaOf {
    /// Scenario files.
    Scenario,
    /// The JSON of `plan`.
    Plan,
    /// The JSON of `diagnose`.
    Diagnosis,
    /// The JSON of `explain`.
    Explain,
    /// The JSON of `run`.
    Run,
    /// A profile, as `calibrate` writes it.
    Profile,
    /// The JSON of `sweep`.
    Sweep,
    /// A line of a file of rows of `sweep`.
    SweepRows,
    /// The JSON of `workload`.
    Workload,
    /// The JSON of `doctor`.
    Doctor,
    /// The JSON of `doctor --before-relaunch`.
    BeforeRelaunch,
    /// The JSON of `bench`.
    Bench,
    /// The memory plan of `serve`.
    Serve,
    /// The JSON of `watch`.
    Watch,
    /// A line of a recording of `watch`.
    WatchRecording,
    /// The JSON of `replay`.
    Replay,
    /// The JSON of `diff`.
    Diff,
}

/// An amount with its unit.
pub fn parse_bytes(text: &str) -> Result<Bytes, String> {
    text.parse().map_err(|error: plimsoll_core::units::AmountError| error.to_string())
}
