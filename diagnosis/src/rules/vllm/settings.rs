//! The settings in force: what the server printed, else what the command says.

use plimsoll_core::policy::sglang::version::Version;
use plimsoll_core::policy::vllm::{args::EngineArgs, args::Generation, rules::Rules};
use plimsoll_ingest::launch::{EngineLaunch, Launch};
use plimsoll_ingest::log::{Amount, Vllm};

use crate::Case;

/// The arguments that the rules read.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Settings {
    /// Release, where the log or the command says one.
    pub(super) version: Option<Version>,
    /// Which engine: by its lines, else by the release.
    pub(super) generation: Option<Generation>,
    /// `gpu_memory_utilization` in force; the release's default where the release is known.
    pub(super) utilization: Option<f64>,
    /// Memory of the device.
    pub(super) total: Option<Amount>,
    /// `--kv-cache-memory-bytes`.
    pub(super) kv_bytes: Option<u64>,
    /// `--max-model-len`.
    pub(super) max_model_len: Option<u64>,
    /// `--max-num-seqs`.
    pub(super) max_num_seqs: Option<u64>,
    /// `--max-num-batched-tokens`.
    pub(super) max_num_batched_tokens: Option<u64>,
    /// `--tensor-parallel-size`.
    pub(super) tp: u32,
    /// The model as named.
    pub(super) model: Option<String>,
    /// A draft model, by name.
    pub(super) draft: Option<String>,
    /// Whether drafts are made at all.
    pub(super) speculative: bool,
    /// `--enforce-eager`.
    pub(super) eager: bool,
    /// `--enable-lora`.
    pub(super) lora: bool,
    /// `--enable-sleep-mode`.
    pub(super) sleep: bool,
    /// Chunked prefill, where it is said.
    pub(super) chunked_prefill: Option<bool>,
    /// The keys and values are kept in one byte.
    pub(super) fp8_kv: bool,
    /// `expandable_segments` is on in the allocator's variable.
    pub(super) expandable: bool,
}

impl Settings {
    /// Of a case.
    pub(super) fn of(case: &Case) -> Self {
        let launch = case.launched();
        let mut settings = Self { tp: 1, version: case.version(), ..Self::default() };
        if let Some(launch) = &launch {
            if let EngineLaunch::Vllm(args) = &launch.engine {
                settings.take_command(args);
            }
            settings.take_named(launch);
        }
        settings.take_printed(case);
        settings.generation = generation(case, settings.generation, settings.version);
        settings.total = case.capacity();
        let default = || Some(settings.rules()?.default_utilization);
        settings.utilization = printed_utilization(case).or(settings.utilization).or_else(default);
        settings
    }

    /// The rules of the release, where one is known.
    pub(super) fn rules(&self) -> Option<Rules> {
        Some(Rules::of(self.version?, self.generation))
    }

    /// Whether this is the first engine; `false` too where nothing says.
    pub(super) fn is_v0(&self) -> bool {
        self.generation == Some(Generation::V0)
    }

    fn take_command(&mut self, args: &EngineArgs) {
        self.generation = args.generation;
        self.utilization = args.gpu_memory_utilization;
        self.kv_bytes = args.kv_cache_memory_bytes;
        self.max_model_len = args.max_model_len.and_then(|len| u64::try_from(len).ok());
        self.max_num_seqs = args.max_num_seqs;
        self.max_num_batched_tokens = args.max_num_batched_tokens;
        self.tp = args.tensor_parallel_size;
        self.model = (!args.model.is_empty()).then(|| args.model.clone());
        self.draft.clone_from(&args.speculative_model);
        self.speculative = args.speculative_model.is_some()
            || args.num_speculative_tokens.is_some()
            || args.spec_method.is_some();
        self.eager = args.enforce_eager;
        self.lora = args.enable_lora;
        self.chunked_prefill = args.enable_chunked_prefill;
        self.fp8_kv = args.kv_cache_dtype.as_deref().is_some_and(|kv| kv.contains("fp8"));
    }

    /// Flags that the engine's arguments do not model, and variables.
    fn take_named(&mut self, launch: &Launch) {
        self.sleep = launch.not_modelled.iter().any(|flag| flag.name == "--enable-sleep-mode");
        self.expandable = launch.env.iter().any(|var| {
            var.name.ends_with("ALLOC_CONF") && var.value.contains("expandable_segments:True")
        });
    }

    /// What the server printed of itself wins.
    fn take_printed(&mut self, case: &Case) {
        let text = |name: &str| case.arg(name).filter(|v| !v.is_empty() && *v != "None");
        let number = |name: &str| text(name).and_then(|v| v.parse::<u64>().ok());
        let yes = |name: &str| text(name) == Some("True");
        self.utilization =
            text("gpu_memory_utilization").and_then(|v| v.parse().ok()).or(self.utilization);
        self.max_model_len = printed_len(case).or(number("max_model_len")).or(self.max_model_len);
        self.max_num_seqs = number("max_num_seqs").or(self.max_num_seqs);
        self.max_num_batched_tokens = printed_batch(case)
            .or(number("max_num_batched_tokens"))
            .or(self.max_num_batched_tokens);
        self.kv_bytes = number("kv_cache_memory_bytes").or(self.kv_bytes);
        self.eager |= yes("enforce_eager");
        self.lora |= yes("enable_lora");
        self.sleep |= yes("enable_sleep_mode");
        self.speculative |= text("speculative_config").is_some();
    }
}

fn printed_len(case: &Case) -> Option<u64> {
    case.vllm().find_map(|(_, line)| match line {
        Vllm::OneRequestTooLong { max_model_len, .. } => *max_model_len,
        Vllm::LongerThanPool { max_model_len, .. } => Some(*max_model_len),
        Vllm::KvTokens { per_request: Some((tokens, _)), .. } => Some(*tokens),
        Vllm::Concurrency { tokens, .. } => Some(*tokens),
        _ => None,
    })
}

fn printed_batch(case: &Case) -> Option<u64> {
    case.vllm().find_map(|(_, line)| match line {
        Vllm::BatchedTokens { tokens } => Some(*tokens),
        _ => None,
    })
}

fn printed_utilization(case: &Case) -> Option<f64> {
    case.vllm().find_map(|(_, line)| match line {
        Vllm::FreeAtStart { utilization, .. }
        | Vllm::Usage { utilization, .. }
        | Vllm::Profile { utilization, .. } => *utilization,
        Vllm::Budget { utilization, .. } => Some(*utilization),
        Vllm::UtilizationNote { current, .. } => *current,
        _ => None,
    })
}

/// Lines that only one of the engines writes decide before the release does: 0.6 to 0.8 hold both.
fn generation(
    case: &Case,
    given: Option<Generation>,
    version: Option<Version>,
) -> Option<Generation> {
    let by_lines = case.vllm().find_map(|(_, line)| match line {
        Vllm::Budget { .. }
        | Vllm::Profile { .. }
        | Vllm::Blocks { .. }
        | Vllm::LongerThanPool { .. }
        | Vllm::Preempted { .. }
        | Vllm::NoSwapSpace => Some(Generation::V0),
        Vllm::AvailableKv { .. }
        | Vllm::KvTokens { .. }
        | Vllm::Usage { .. }
        | Vllm::OneRequestTooLong { .. }
        | Vllm::GraphPool { .. } => Some(Generation::V1),
        _ => None,
    });
    by_lines.or(given).or_else(|| version.map(|version| Rules::of(version, None).generation))
}
