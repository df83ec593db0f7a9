//! Flags and defaults resolved to one set of settings, each with its derivation.

use super::{
    args::{EngineArgs, Generation},
    defaults::{self, CaptureInputs, Device, Usage},
    rules::{GraphCharge, Rules},
};
use crate::{
    figure::{Tag, Why},
    pyfloat,
    units::{Bytes, Tokens},
};

/// What the resolution asks of a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModelFacts {
    /// Longest sequence that the configuration allows: the default of `max_model_len`.
    pub context_len: Tokens,
    /// Kind of its attention layers.
    pub attention: AttentionKind,
    /// Whether layers keep a recurrent state.
    pub state: StateKind,
}

/// Kind of a model's attention layers, as far as the block size depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AttentionKind {
    /// Multi-head or grouped-query.
    #[default]
    Heads,
    /// Multi-head latent.
    Latent,
    /// Multi-head latent with a sparse index.
    SparseLatent,
}

/// Whether a model has Mamba, GDN or linear-attention layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StateKind {
    /// Attention only.
    #[default]
    Absent,
    /// Some layers keep a recurrent state.
    Recurrent,
}

/// On or off, where the engine has a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    /// Off.
    Off,
    /// On.
    On,
}

impl Switch {
    /// From a flag's value.
    #[must_use]
    pub const fn from_flag(flag: bool) -> Self {
        if flag { Self::On } else { Self::Off }
    }

    /// Whether it is on.
    #[must_use]
    pub const fn is_on(self) -> bool {
        matches!(self, Self::On)
    }
}

/// Longest request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MaxModelLen {
    /// This many tokens.
    Tokens(u64),
    /// The largest that fits, at most `limit` (`--max-model-len -1`, 0.15+).
    Auto {
        /// What the model allows.
        limit: u64,
    },
}

impl MaxModelLen {
    /// The length that checks start from, tokens.
    #[must_use]
    pub const fn ceiling(self) -> u64 {
        match self {
            Self::Tokens(n) | Self::Auto { limit: n } => n,
        }
    }
}

/// How recurrent states are cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MambaMode {
    /// One state a request (prefix caching off).
    None,
    /// One state for each block of tokens (0.11 with prefix caching).
    All,
    /// Two states a request, at block boundaries (prefix caching, by 0.19).
    Align,
}

/// Everything that sizing depends on.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// The rules that hold.
    pub rules: Rules,
    /// Fraction of total memory.
    pub gpu_memory_utilization: f64,
    /// `--kv-cache-memory-bytes`.
    pub kv_cache_memory_bytes: Option<Bytes>,
    /// `--num-gpu-blocks-override`.
    pub num_gpu_blocks_override: Option<u64>,
    /// Longest request.
    pub max_model_len: MaxModelLen,
    /// Tokens a step.
    pub max_num_batched_tokens: u64,
    /// Requests a step.
    pub max_num_seqs: u64,
    /// Tokens a block, before hybrid models raise it.
    pub block_size: u64,
    /// Smallest block of the attention kernel.
    pub kernel_block: u64,
    /// Automatic prefix caching.
    pub prefix_caching: Switch,
    /// Chunked prefill.
    pub chunked_prefill: Switch,
    /// Asynchronous scheduling.
    pub async_scheduling: Switch,
    /// Steps in flight at once.
    pub max_concurrent_batches: u64,
    /// Draft tokens a step.
    pub num_speculative_tokens: u64,
    /// Sizes captured as graphs, ascending; empty with `--enforce-eager`.
    pub capture_sizes: Vec<u64>,
    /// Whether the estimate of the graphs' memory is charged.
    pub graphs_charged: Switch,
    /// Decode-context-parallel ranks.
    pub decode_context_parallel_size: u64,
    /// The hybrid manager; off stores window and chunk layers as full attention.
    pub hybrid_manager: Switch,
    /// How recurrent states are cached.
    pub mamba_mode: MambaMode,
    /// `--swap-space`, per rank (V0).
    pub swap_space: Bytes,
    /// What the user should know: version followed, flags without effect.
    pub notes: Vec<String>,
    /// Derivations by setting name.
    pub whys: Vec<(&'static str, Why)>,
}

impl Settings {
    /// Tokens of one request that may be in flight beyond its window.
    #[must_use]
    pub fn tokens_in_flight(&self) -> u64 {
        let batches = match self.rules.in_flight {
            super::rules::InFlightRule::OneBatch => 1,
            super::rules::InFlightRule::ConcurrentBatches => self.max_concurrent_batches,
        };
        batches.saturating_mul(self.max_num_batched_tokens)
    }

    /// The derivation of setting `name`.
    #[must_use]
    pub fn why(&self, name: &str) -> Option<&Why> {
        self.whys.iter().find(|(n, _)| *n == name).map(|(_, why)| why)
    }
}

/// A flag that the engine would refuse.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{flag} {value}: {allowed}")]
pub struct SettingsError {
    /// The flag as typed.
    pub flag: &'static str,
    /// Its value.
    pub value: String,
    /// What is allowed.
    pub allowed: String,
}

impl SettingsError {
    fn new(flag: &'static str, value: impl ToString, allowed: impl Into<String>) -> Self {
        Self { flag, value: value.to_string(), allowed: allowed.into() }
    }
}

/// Resolves flags and defaults.
///
/// # Errors
/// A value outside the range that the engine accepts.
pub fn resolve(
    args: &EngineArgs,
    device: &Device,
    usage: Usage,
    model: ModelFacts,
) -> Result<Settings, SettingsError> {
    let rules = Rules::of(args.version, args.generation);
    let mut out = Out::new(&rules);
    let utilization = utilization(args, &rules, &mut out)?;
    let max_model_len = max_model_len(args, &rules, model, &mut out)?;
    let chunked_prefill = chunked_prefill(args, &rules, max_model_len);
    let batch = batch(args, &rules, device, (usage, max_model_len, chunked_prefill), &mut out)?;
    let (block_size, kernel_block) = block_size(args, &rules, device, model, &mut out)?;
    let prefix_caching = prefix_caching(args, &rules, model, &mut out);
    let async_scheduling = Switch::from_flag(
        rules.generation == Generation::V1
            && args.async_scheduling.unwrap_or(rules.async_scheduling.exists()),
    );
    let num_speculative_tokens = args.num_speculative_tokens.unwrap_or(0);
    let pipeline = u64::from(args.pipeline_parallel_size.max(1));
    let capture_sizes = captures(args, &rules, device, batch);
    out.why("cudagraph_capture_sizes", capture_why(&rules, args, &capture_sizes));
    graph_note(args, &rules, &mut out);
    Ok(Settings {
        gpu_memory_utilization: utilization,
        kv_cache_memory_bytes: kv_bytes(args, &rules, &mut out)?,
        num_gpu_blocks_override: args.num_gpu_blocks_override,
        max_model_len,
        max_num_batched_tokens: batch.0,
        max_num_seqs: batch.1,
        block_size,
        kernel_block,
        prefix_caching,
        chunked_prefill,
        async_scheduling,
        max_concurrent_batches: match (pipeline, async_scheduling) {
            (1, Switch::On) => 2,
            (stages, _) => stages,
        },
        num_speculative_tokens,
        capture_sizes,
        graphs_charged: graphs_charged(args, &rules),
        decode_context_parallel_size: u64::from(args.decode_context_parallel_size.max(1)),
        hybrid_manager: Switch::from_flag(!args.disable_hybrid_kv_cache_manager),
        mamba_mode: mamba_mode(&rules, prefix_caching),
        swap_space: Bytes::from_gib_f64(args.swap_space.unwrap_or(4.0)),
        notes: out.notes,
        whys: out.whys,
        rules,
    })
}

struct Out {
    notes: Vec<String>,
    whys: Vec<(&'static str, Why)>,
    release: String,
}

impl Out {
    fn new(rules: &Rules) -> Self {
        let mut notes: Vec<String> = rules.basis.note(rules.version).into_iter().collect();
        let newer_than_v0 = (rules.version.major, rules.version.minor) > (0, 10);
        if rules.generation == Generation::V0 && newer_than_v0 {
            notes.push(format!(
                "vLLM {} has no V0 engine any more; the rules of the last V0 are used",
                rules.version
            ));
        }
        Self { notes, whys: Vec::new(), release: rules.release() }
    }

    fn why(&mut self, name: &'static str, why: Why) {
        self.whys.push((name, why));
    }

    /// A value that was given or a default.
    fn chosen(&mut self, name: &'static str, given: bool, rule: String, source: &str) {
        let why = if given {
            Why::new(Tag::Measured, format!("{name} as given"), "launch command")
        } else {
            Why::new(Tag::Computed, rule, format!("{} {source}", self.release))
        };
        self.why(name, why);
    }
}

fn utilization(args: &EngineArgs, rules: &Rules, out: &mut Out) -> Result<f64, SettingsError> {
    let value = args.gpu_memory_utilization.unwrap_or(rules.default_utilization);
    if !(value > 0.0 && value <= 1.0) {
        let allowed = "a fraction of total memory above 0 and up to 1";
        return Err(SettingsError::new("--gpu-memory-utilization", value, allowed));
    }
    out.chosen(
        "gpu_memory_utilization",
        args.gpu_memory_utilization.is_some(),
        format!("default {} (0.9 up to 0.19, 0.92 from 0.20)", pyfloat::repr(value)),
        "CacheConfig",
    );
    Ok(value)
}

fn max_model_len(
    args: &EngineArgs,
    rules: &Rules,
    model: ModelFacts,
    out: &mut Out,
) -> Result<MaxModelLen, SettingsError> {
    let limit = model.context_len.0;
    if limit == 0 {
        return Err(SettingsError::new(
            "--max-model-len",
            0,
            "the model states no context length; give one",
        ));
    }
    let rule = format!("context length of the configuration, {limit}");
    out.chosen("max_model_len", args.max_model_len.is_some(), rule, "ModelConfig");
    match args.max_model_len {
        None => Ok(MaxModelLen::Tokens(limit)),
        Some(-1) if rules.auto_fit.exists() => Ok(MaxModelLen::Auto { limit }),
        Some(-1) => {
            let allowed = format!("-1 (auto-fit) exists from 0.15 on, not in {}", rules.version);
            Err(SettingsError::new("--max-model-len", -1, allowed))
        }
        Some(n) => match u64::try_from(n) {
            Ok(n) if n > 0 => Ok(MaxModelLen::Tokens(n)),
            _ => Err(SettingsError::new(
                "--max-model-len",
                n,
                "at least 1 token, or -1 from 0.15 on",
            )),
        },
    }
}

/// V1 chunks always unless told not to; V0 only above 32,768 tokens. Source: vLLM 0.6.6, 0.8.5
/// `EngineArgs.create_engine_config`.
fn chunked_prefill(args: &EngineArgs, rules: &Rules, len: MaxModelLen) -> Switch {
    let default = rules.generation == Generation::V1 || len.ceiling() > 32_768;
    Switch::from_flag(args.enable_chunked_prefill.unwrap_or(default))
}

/// (`max_num_batched_tokens`, `max_num_seqs`).
fn batch(
    args: &EngineArgs,
    rules: &Rules,
    device: &Device,
    (usage, len, chunked): (Usage, MaxModelLen, Switch),
    out: &mut Out,
) -> Result<(u64, u64), SettingsError> {
    let defaults = defaults::batch_defaults(rules, device, usage);
    let seqs_flag = args.max_num_seqs;
    let mut seqs = seqs_flag.unwrap_or(defaults.max_num_seqs);
    if seqs == 0 {
        return Err(SettingsError::new("--max-num-seqs", 0, "at least 1"));
    }
    let tokens = args.max_num_batched_tokens.unwrap_or_else(|| {
        let base = defaults.max_num_batched_tokens;
        let base = if chunked.is_on() { base } else { base.max(len.ceiling()) };
        base.min(seqs.saturating_mul(len.ceiling()))
    });
    if seqs_flag.is_none() {
        seqs = seqs.min(tokens);
    }
    if tokens < seqs {
        let allowed = format!("at least max_num_seqs ({seqs})");
        return Err(SettingsError::new("--max-num-batched-tokens", tokens, allowed));
    }
    if !chunked.is_on() && tokens < len.ceiling() {
        let allowed = format!("at least max_model_len ({}) without chunked prefill", len.ceiling());
        return Err(SettingsError::new("--max-num-batched-tokens", tokens, allowed));
    }
    let rule = format!("default of a {}, capped by max_num_seqs * max_model_len", defaults.class);
    let source = "EngineArgs.get_batch_defaults";
    out.chosen("max_num_batched_tokens", args.max_num_batched_tokens.is_some(), rule, source);
    let rule = format!("default of a {}, capped by max_num_batched_tokens", defaults.class);
    out.chosen("max_num_seqs", seqs_flag.is_some(), rule, source);
    Ok((tokens, seqs))
}

/// Smallest block of a backend, tokens, 16 at least; `None` for a name that is not known here.
/// Source: vLLM 0.11 to 0.33, supported kernel block sizes of the backends.
fn smallest_block(backend: &str) -> Option<u64> {
    Some(match backend {
        "CUTLASS_MLA" | "CUTLASS_MLA_VLLM_V1" => 128,
        "FLASHMLA"
        | "FLASHMLA_VLLM_V1"
        | "FLASHMLA_SPARSE"
        | "FLASHINFER_MLA"
        | "ROCM_AITER_UNIFIED_ATTN" => 64,
        "FLASH_ATTN"
        | "FLASH_ATTN_VLLM_V1"
        | "FLASHINFER"
        | "FLASHINFER_VLLM_V1"
        | "TRITON_ATTN"
        | "TRITON_ATTN_VLLM_V1"
        | "FLEX_ATTENTION"
        | "TRITON_MLA"
        | "TRITON_MLA_VLLM_V1"
        | "FLASH_ATTN_MLA" => 16,
        _ => return None,
    })
}

/// (block size, smallest kernel block), tokens. 16 where the backend supports it, else the
/// backend's smallest. Which latent backend runs is an assumption from the compute capability.
fn block_size(
    args: &EngineArgs,
    rules: &Rules,
    device: &Device,
    model: ModelFacts,
    out: &mut Out,
) -> Result<(u64, u64), SettingsError> {
    let named = args.attention_backend.as_deref().and_then(smallest_block);
    let kernel = match (model.attention, device.compute_capability) {
        _ if named.is_some() => named.unwrap_or(16),
        (AttentionKind::SparseLatent, _) | (AttentionKind::Latent, Some((9, _))) => 64,
        (AttentionKind::Latent, Some((10, _)))
            if (rules.version.major, rules.version.minor) < (0, 12) =>
        {
            128
        }
        (AttentionKind::Latent, Some((10, _))) => 64,
        _ => 16,
    };
    if let Some(0) = args.block_size {
        return Err(SettingsError::new("--block-size", 0, "at least 1 token"));
    }
    let size = args.block_size.unwrap_or(kernel);
    let why = match args.block_size {
        Some(_) => Why::new(Tag::Measured, "block_size as given", "launch command"),
        None if named.is_some() => Why::new(
            Tag::Computed,
            "smallest block of the attention backend that was named",
            format!("{} attention backends", out.release),
        )
        .with("attention_backend", args.attention_backend.clone().unwrap_or_default()),
        None if model.attention == AttentionKind::Heads => Why::new(
            Tag::Computed,
            "16 tokens, which the attention backend supports",
            format!("{} CacheConfig", out.release),
        ),
        None => Why::new(
            Tag::Assumed,
            "smallest block of the latent-attention backend that this device would choose",
            format!("{} attention backends", out.release),
        ),
    };
    out.why("block_size", why);
    Ok((size, kernel))
}

/// On by default in V1, for models with recurrent state only from 0.28 on; off in V0.
/// Source: vLLM `ModelConfig.is_prefix_caching_supported`.
fn prefix_caching(args: &EngineArgs, rules: &Rules, model: ModelFacts, out: &mut Out) -> Switch {
    let (default, rule) = match (rules.generation, model.state) {
        (Generation::V0, _) => (false, "off in V0"),
        (Generation::V1, StateKind::Absent) => (true, "on in V1"),
        (Generation::V1, StateKind::Recurrent) => (
            rules.hybrid_prefix_caching.exists(),
            "off for models with recurrent state up to 0.27, on from 0.28",
        ),
    };
    let given = args.enable_prefix_caching.is_some();
    let source = "ModelConfig.is_prefix_caching_supported";
    out.chosen("enable_prefix_caching", given, rule.to_owned(), source);
    Switch::from_flag(args.enable_prefix_caching.unwrap_or(default))
}

/// Source: vLLM 0.11.2 (`all`), 0.19.0 and 0.33.0 (`align`) `cache_config.mamba_cache_mode`.
const fn mamba_mode(rules: &Rules, prefix_caching: Switch) -> MambaMode {
    match (prefix_caching, rules.version.minor) {
        (Switch::Off, _) => MambaMode::None,
        (Switch::On, ..15) if rules.version.major == 0 => MambaMode::All,
        (Switch::On, _) => MambaMode::Align,
    }
}

/// Why nothing is captured.
fn graphs_off(args: &EngineArgs, rules: &Rules) -> Option<&'static str> {
    let v1 = rules.generation == Generation::V1;
    if args.enforce_eager {
        Some("none: enforce_eager")
    } else if v1 && args.disable_cudagraphs {
        Some("none: cudagraph_mode NONE")
    } else if v1 && args.max_cudagraph_capture_size == Some(0) {
        Some("none: max_cudagraph_capture_size 0")
    } else {
        None
    }
}

fn captures(args: &EngineArgs, rules: &Rules, device: &Device, batch: (u64, u64)) -> Vec<u64> {
    if graphs_off(args, rules).is_some() {
        return Vec::new();
    }
    let (max_num_batched_tokens, max_num_seqs) = batch;
    match &args.cudagraph_capture_sizes {
        Some(sizes) => {
            let mut sizes: Vec<u64> =
                sizes.iter().copied().filter(|&s| s > 0 && s <= max_num_batched_tokens).collect();
            sizes.sort_unstable();
            sizes.dedup();
            sizes
        }
        None => {
            let num_speculative_tokens = args.num_speculative_tokens.unwrap_or(0);
            let inputs = CaptureInputs {
                max_num_seqs,
                num_speculative_tokens,
                max_num_batched_tokens,
                largest: args.max_cudagraph_capture_size,
            };
            defaults::capture_sizes(rules, device, inputs)
        }
    }
}

fn capture_why(rules: &Rules, args: &EngineArgs, sizes: &[u64]) -> Why {
    let given = (&args.cudagraph_capture_sizes, args.max_cudagraph_capture_size);
    let rule = match (graphs_off(args, rules), given) {
        (Some(reason), _) => reason,
        (None, (Some(_), _)) => "sizes as given, up to max_num_batched_tokens",
        (None, (None, Some(_))) => "1, 2, 4, then steps up to max_cudagraph_capture_size",
        _ => "1, 2, 4, then steps up to min(max_num_seqs * query length * 2, 512)",
    };
    Why::new(Tag::Computed, rule, format!("{} VllmConfig capture sizes", rules.release()))
        .with("sizes", sizes.len())
        .with("largest", sizes.last().copied().unwrap_or(0))
}

fn graphs_charged(args: &EngineArgs, rules: &Rules) -> Switch {
    let wanted = match (rules.graph_charge, args.estimate_cudagraphs) {
        (GraphCharge::Never, _) | (_, Some(false)) => false,
        (GraphCharge::OptIn, None) => false,
        (GraphCharge::Default, None) | (_, Some(true)) => true,
    };
    Switch::from_flag(wanted && graphs_off(args, rules).is_none())
}

fn graph_note(args: &EngineArgs, rules: &Rules, out: &mut Out) {
    if rules.graph_charge == GraphCharge::Never && args.estimate_cudagraphs == Some(true) {
        out.notes.push(format!(
            "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS has no effect before 0.18 (this is {})",
            rules.version
        ));
    }
}

fn kv_bytes(
    args: &EngineArgs,
    rules: &Rules,
    out: &mut Out,
) -> Result<Option<Bytes>, SettingsError> {
    match args.kv_cache_memory_bytes {
        None => Ok(None),
        Some(n) if !rules.kv_cache_memory_bytes.exists() => {
            let allowed = format!("the flag exists from 0.11 on, not in {}", rules.version);
            Err(SettingsError::new("--kv-cache-memory-bytes", n, allowed))
        }
        Some(n) => {
            out.notes.push(
                "kv_cache_memory_bytes is taken as it is: gpu_memory_utilization no longer sizes \
                 the pool, it only decides the check of free memory at the start"
                    .to_owned(),
            );
            Ok(Some(Bytes(n)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{sglang::version::Version, vllm::defaults::MemoryKind};

    fn h100() -> Device {
        Device {
            name: "NVIDIA H100 80GB HBM3".into(),
            total: Bytes::from_gib_f64(79.22),
            memory: MemoryKind::Discrete,
            compute_capability: Some((9, 0)),
        }
    }

    fn model(len: u64) -> ModelFacts {
        ModelFacts {
            context_len: Tokens(len),
            attention: AttentionKind::Heads,
            state: StateKind::Absent,
        }
    }

    fn args(minor: u16) -> EngineArgs {
        EngineArgs::new(Version::new(0, minor, 0), "m")
    }

    fn run(args: &EngineArgs, len: u64) -> Result<Settings, SettingsError> {
        resolve(args, &h100(), Usage::Server, model(len))
    }

    #[test]
    fn defaults_resolve_with_a_derivation_each() {
        let s = run(&args(20), 131_072).unwrap();
        assert_eq!(s.gpu_memory_utilization, 0.92);
        assert_eq!((s.max_num_batched_tokens, s.max_num_seqs, s.block_size), (8192, 1024, 16));
        assert_eq!(s.tokens_in_flight(), 8192);
        assert!(s.graphs_charged.is_on() && s.async_scheduling.is_on());
        assert!(s.why("max_num_seqs").unwrap().rule.contains("at least 70 GiB"));
        assert_eq!(run(&args(27), 4096).unwrap().tokens_in_flight(), 16384);
        assert!(!run(&args(12), 4096).unwrap().async_scheduling.is_on());
    }

    #[test]
    fn the_batch_is_capped_and_raised() {
        let mut a = args(12);
        a.max_num_seqs = Some(2);
        assert_eq!(run(&a, 1024).unwrap().max_num_batched_tokens, 2048);
        let mut a = args(12);
        a.enable_chunked_prefill = Some(false);
        assert_eq!(run(&a, 40_960).unwrap().max_num_batched_tokens, 40_960);
        let mut a = args(12);
        a.max_num_batched_tokens = Some(512);
        assert_eq!(run(&a, 40_960).unwrap().max_num_seqs, 512);
        // V0 chunks only above 32 K.
        assert_eq!(run(&args(7), 29_000).unwrap().max_num_batched_tokens, 29_000);
        assert_eq!(run(&args(7), 35_000).unwrap().max_num_batched_tokens, 2048);
    }

    #[test]
    fn values_out_of_range_name_flag_value_and_range() {
        let refused = |edit: fn(&mut EngineArgs)| {
            let mut a = args(12);
            edit(&mut a);
            run(&a, 4096).unwrap_err().to_string()
        };
        let text = refused(|a| a.gpu_memory_utilization = Some(1.5));
        assert_eq!(
            text,
            "--gpu-memory-utilization 1.5: a fraction of total memory above 0 and up to 1"
        );
        assert!(refused(|a| a.gpu_memory_utilization = Some(f64::NAN)).contains("above 0"));
        assert!(refused(|a| a.max_model_len = Some(-1)).contains("from 0.15 on"));
        assert!(refused(|a| a.max_num_seqs = Some(0)).contains("at least 1"));
        assert!(refused(|a| a.block_size = Some(0)).contains("--block-size 0"));
        assert!(
            refused(|a| {
                a.max_num_batched_tokens = Some(64);
                a.max_num_seqs = Some(128);
            })
            .contains("at least max_num_seqs (128)")
        );
    }

    #[test]
    fn graphs_are_charged_by_release_and_variable() {
        let charged = |minor, env, eager| {
            let mut a = args(minor);
            a.estimate_cudagraphs = env;
            a.enforce_eager = eager;
            run(&a, 4096).unwrap().graphs_charged.is_on()
        };
        assert!(!charged(17, Some(true), false));
        assert!(!charged(19, None, false) && charged(19, Some(true), false));
        assert!(charged(20, None, false) && !charged(20, Some(false), false));
        assert!(!charged(20, None, true));
    }

    #[test]
    fn prefix_caching_and_state_mode_by_release() {
        let of = |minor, state| {
            let model = ModelFacts { state, ..model(4096) };
            let s = resolve(&args(minor), &h100(), Usage::Server, model).unwrap();
            (s.prefix_caching, s.mamba_mode)
        };
        assert_eq!(of(7, StateKind::Absent).0, Switch::Off);
        assert_eq!(of(20, StateKind::Absent).0, Switch::On);
        assert_eq!(of(24, StateKind::Recurrent), (Switch::Off, MambaMode::None));
        assert_eq!(of(33, StateKind::Recurrent), (Switch::On, MambaMode::Align));
    }
}
