//! The flags of `serve`, and those of a model's start that other verbs take too. Spelled as SGLang spells them.

use super::device::{Device, Dtype, device};
use crate::{args::parse_bytes, exit::Failure};
use clap::{Args, ValueEnum};
use plimsoll_core::{engine::live::LiveSettings, sched::sglang::QueuePolicy, units::Bytes};
use plimsoll_server::start::Ask;
use std::{
    net::IpAddr,
    path::PathBuf,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Shown under the help of `serve`.
pub const EXAMPLES: &str = "Examples:
  plimsoll serve --model-path SmolLM2-135M-Instruct.Q4_1.gguf
  plimsoll serve --model-path ./Qwen2.5-0.5B-Instruct --memory-limit 4GiB --max-running-requests 32
  plimsoll serve --model-path model.gguf --memory-limit 600MiB --plan-only
  plimsoll serve --model-path ./Llama-3.1-8B-Instruct --device cuda --strict-memory
  plimsoll serve --model-path model.gguf --record night.log, then: plimsoll replay night.log

All memory is planned before the first request, printed, and proven by the largest prefill and the largest
decode; after that the server does not grow. SIGTERM drains it; a second one ends it at once.";

/// How matrices are kept and multiplied.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precision {
    /// As stored, float32 arithmetic: the reference's greedy tokens.
    #[value(name = "float32")]
    AsStored,
    /// Everything kept as float32: the same tokens, more memory.
    #[value(name = "float32-unpacked")]
    F32,
    /// Kept as bfloat16, float32 arithmetic.
    #[value(name = "bfloat16")]
    Bf16,
    /// Quantised weights as stored, what they multiply rounded to 8 bits: the fastest, of llama.cpp's accuracy.
    #[value(name = "int8")]
    Int8,
}

/// How keys and values are kept.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvDtype {
    /// float32 on the host, the type of the arithmetic on a CUDA device.
    Auto,
    /// float32.
    Float32,
    /// float16.
    Float16,
    /// bfloat16.
    Bfloat16,
    /// float8 of 4 exponent and 3 mantissa bits.
    #[value(name = "fp8_e4m3")]
    Fp8E4m3,
}

/// A model and what its engine may take.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "Engine")]
pub struct ModelArgs {
    /// A folder from the hub (config.json, safetensors, tokenizer.json) or a .gguf file.
    #[arg(long = "model-path", visible_alias = "model", value_name = "PATH")]
    pub model_path: PathBuf,
    /// Name under which the model is served. Default: the last part of its path.
    #[arg(long, value_name = "NAME")]
    pub served_model_name: Option<String>,
    /// Where it computes: `host`, `cuda`, `cuda:N`, or `cuda:N,M` with a rank on each.
    #[arg(long, value_name = "DEVICE", default_value = "host", value_parser = device)]
    pub device: Device,
    /// Ranks of tensor parallelism, a CUDA device each. Default: as many as --device names.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub tp_size: Option<u32>,
    /// On the host: all that the process may hold. Default: what the machine and its control group have available now.
    #[arg(long, value_name = "AMOUNT", value_parser = parse_bytes)]
    pub memory_limit: Option<Bytes>,
    /// Kept free of what the machine, or the device, has available.
    #[arg(long, value_name = "AMOUNT", value_parser = parse_bytes)]
    pub mem_margin: Option<Bytes>,
    /// Longest sequence, prompt and answer. Default: the model's own, at most 8192.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(16..=(1 << 24)))]
    pub context_length: Option<u64>,
    /// Requests that run at once. Default: 16 on the host, 64 on a CUDA device.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub max_running_requests: Option<u64>,
    /// Requests that may wait; more are answered with 429. Default: any number.
    #[arg(long, value_name = "N")]
    pub max_queued_requests: Option<u64>,
    /// Token slots of the KV pool. Default: what memory allows, on the host only what the running requests can use.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..=(1 << 32)))]
    pub max_total_tokens: Option<u64>,
    /// Tokens of a prefill pass; longer prompts are cut there. Default: 512 on the host, 2048 on a CUDA device.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..=(1 << 20)))]
    pub chunked_prefill_size: Option<u64>,
    /// Token slots of a page of the pool: the unit of prefix reuse and of lending.
    #[arg(long, value_name = "TOKENS", default_value = "16", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub page_size: u64,
    /// Order of the waiting queue.
    #[arg(long, value_name = "ORDER", default_value = "fcfs", value_parser = policy)]
    pub schedule_policy: QueuePolicy,
    /// Above 1 admits later, below 1 earlier and retracts more.
    #[arg(long, value_name = "FACTOR", default_value = "1.0")]
    pub schedule_conservativeness: f64,
    /// Schedule by the requests' `priority`, larger values first.
    #[arg(long)]
    pub enable_priority_scheduling: bool,
    /// Keep no prefixes.
    #[arg(long)]
    pub disable_radix_cache: bool,
    /// How keys and values are kept.
    #[arg(long, value_enum, default_value = "auto")]
    pub kv_cache_dtype: KvDtype,
    /// On the host: how weights are kept and multiplied. Weights that are not quantised are as with float32 in both.
    /// Default: int8.
    #[arg(long, value_enum)]
    pub precision: Option<Precision>,
    /// On CUDA: the type in which it computes. Default: auto.
    #[arg(long, value_enum)]
    pub dtype: Option<Dtype>,
    /// On CUDA: the largest batch of a decode graph. Default: the requests that run at once.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub cuda_graph_max_bs: Option<u64>,
    /// On CUDA: launch every kernel by itself.
    #[arg(long)]
    pub disable_cuda_graph: bool,
    /// On CUDA: do not start when the device holds memory that no row of the plan explains.
    #[arg(long)]
    pub strict_memory: bool,
    /// On the host: threads of the model. Default: one a core.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Keep the pool when the machine, or the device, runs short, instead of lending its pages.
    #[arg(long)]
    pub no_lend: bool,
}

fn policy(text: &str) -> Result<QueuePolicy, String> {
    LiveSettings::policy_named(text).ok_or_else(|| {
        let names: Vec<&str> = LiveSettings::policies().collect();
        format!("one of {}", names.join(", "))
    })
}

/// Seconds since 1970; 0 on a clock before that.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl ModelArgs {
    /// The same for the engine.
    ///
    /// # Errors
    ///
    /// A value that no flag alone can refuse.
    pub fn ask(&self) -> Result<Ask, Failure> {
        let factor = self.schedule_conservativeness;
        if !(0.0..=100.0).contains(&factor) {
            return Err(Failure::input(format!(
                "--schedule-conservativeness is {factor}; allowed: 0 to 100"
            )));
        }
        Ok(Ask {
            path: self.model_path.clone(),
            name: self.served_model_name.clone(),
            margin: self.mem_margin,
            context_length: self.context_length,
            max_running_requests: self.max_running_requests,
            max_queued_requests: self.max_queued_requests,
            max_total_tokens: self.max_total_tokens,
            chunked_prefill_size: self.chunked_prefill_size,
            page_size: self.page_size,
            policy: self.schedule_policy,
            conservativeness: factor,
            by_priority: self.enable_priority_scheduling,
            prefix_cache: !self.disable_radix_cache,
            kv: self.kv(),
            on: self.on()?,
            lend: !self.no_lend,
            now: unix_seconds(),
        })
    }
}

/// `plimsoll serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Address to listen on; every other machine is let in by 0.0.0.0 alone.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value = "30000")]
    pub port: u16,
    /// Key that clients must send.
    #[arg(long, value_name = "KEY", env = "PLIMSOLL_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Write a recording that `replay` decides again.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Print the memory plan and load nothing.
    #[arg(long)]
    pub plan_only: bool,
    /// Seeds of requests that give none follow from this one. Default: another at every start.
    #[arg(long, value_name = "SEED")]
    pub random_seed: Option<u64>,
    /// How long requests may still take after SIGTERM.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = span)]
    pub drain_timeout: Duration,
    /// Largest body of a request.
    #[arg(long, value_name = "AMOUNT", default_value = "8MiB", value_parser = parse_bytes)]
    pub max_body: Bytes,
    /// Requests that may be open at once, those that wait among them.
    #[arg(long, value_name = "N", default_value = "4096", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_streams: u32,
}

fn span(text: &str) -> Result<Duration, String> {
    plimsoll_replay::scenario::time::nanos(text).map(|time| Duration::from_nanos(time.0))
}
