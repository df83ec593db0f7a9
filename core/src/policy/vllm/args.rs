//! The launch flags that reach memory, by the engine's own names. `None` means the flag was not given.

use crate::policy::sglang::version::Version;

/// Which engine generation runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Generation {
    /// The first engine (up to 0.8.x by default or with `VLLM_USE_V1=0`).
    V0,
    /// The second engine.
    #[default]
    V1,
}

/// Flags that decide what the scheduler does; no byte of the start depends on them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SchedulingArgs {
    /// `--scheduling-policy`.
    pub policy: Option<String>,
    /// `--long-prefill-token-threshold`, tokens.
    pub long_prefill_token_threshold: Option<u64>,
    /// `--long-prefill-token-threshold-adaptive`.
    pub adaptive_threshold: bool,
    /// `--scheduler-reserve-full-isl` / `--no-scheduler-reserve-full-isl`.
    pub reserve_full_isl: Option<bool>,
    /// `--watermark`, a share of the blocks.
    pub watermark: Option<f64>,
    /// `--prefix-cache-retention-interval`, tokens.
    pub prefix_cache_retention_interval: Option<u64>,
    /// `--max-num-active-seqs`.
    pub max_num_active_seqs: Option<u64>,
    /// `--prefill-schedule-interval`, turns.
    pub prefill_schedule_interval: Option<u64>,
}

/// Flags of `vllm serve` (or `python -m vllm.entrypoints.openai.api_server`) that reach memory.
#[derive(Clone, PartialEq, Debug)]
pub struct EngineArgs {
    /// Release whose rules apply.
    pub version: Version,
    /// V0 or V1; `None` means the version's default.
    pub generation: Option<Generation>,
    /// The model: positional or `--model`.
    pub model: String,
    /// `--tensor-parallel-size`.
    pub tensor_parallel_size: u32,
    /// `--pipeline-parallel-size`.
    pub pipeline_parallel_size: u32,
    /// `--data-parallel-size`.
    pub data_parallel_size: u32,
    /// `--decode-context-parallel-size`.
    pub decode_context_parallel_size: u32,
    /// `--enable-expert-parallel`.
    pub enable_expert_parallel: bool,
    /// `--dtype`.
    pub dtype: Option<String>,
    /// `--quantization`.
    pub quantization: Option<String>,
    /// `--kv-cache-dtype`.
    pub kv_cache_dtype: Option<String>,
    /// `--gpu-memory-utilization`.
    pub gpu_memory_utilization: Option<f64>,
    /// `--kv-cache-memory-bytes`.
    pub kv_cache_memory_bytes: Option<u64>,
    /// `--num-gpu-blocks-override`.
    pub num_gpu_blocks_override: Option<u64>,
    /// `--max-model-len`, tokens; -1 asks for the largest that fits.
    pub max_model_len: Option<i64>,
    /// `--max-num-seqs`.
    pub max_num_seqs: Option<u64>,
    /// `--max-num-batched-tokens`.
    pub max_num_batched_tokens: Option<u64>,
    /// `--block-size`, tokens.
    pub block_size: Option<u64>,
    /// `--swap-space`, GiB per rank (V0).
    pub swap_space: Option<f64>,
    /// `--cpu-offload-gb`, GiB.
    pub cpu_offload_gb: Option<f64>,
    /// `--enable-chunked-prefill` / `--no-enable-chunked-prefill`.
    pub enable_chunked_prefill: Option<bool>,
    /// `--enable-prefix-caching` / `--no-enable-prefix-caching`.
    pub enable_prefix_caching: Option<bool>,
    /// `--enforce-eager`.
    pub enforce_eager: bool,
    /// `--disable-hybrid-kv-cache-manager`.
    pub disable_hybrid_kv_cache_manager: bool,
    /// `--async-scheduling` / `--no-async-scheduling`.
    pub async_scheduling: Option<bool>,
    /// Draft tokens a step (`num_speculative_tokens` of `--speculative-config`).
    pub num_speculative_tokens: Option<u64>,
    /// `model` of `--speculative-config`.
    pub speculative_model: Option<String>,
    /// Explicit capture sizes of `--compilation-config` or `--cuda-graph-sizes`.
    pub cudagraph_capture_sizes: Option<Vec<u64>>,
    /// `--enable-lora`.
    pub enable_lora: bool,
    /// `--language-model-only` or `--limit-mm-per-prompt` with every modality 0.
    pub language_model_only: bool,
    /// `VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS`.
    pub estimate_cudagraphs: Option<bool>,
    /// `--max-cudagraph-capture-size`, tokens; 0 is no graph.
    pub max_cudagraph_capture_size: Option<u64>,
    /// `cudagraph_mode` NONE, `use_cudagraph` false or `-O0`: no graphs in V1.
    pub disable_cudagraphs: bool,
    /// `-O0`: layers run as written, not compiled.
    pub disable_compilation: bool,
    /// `--attention-backend` or `VLLM_ATTENTION_BACKEND`, upper case.
    pub attention_backend: Option<String>,
    /// `method` of `--speculative-config`, `--spec-method`; `ngram` also from the model name `[ngram]`.
    pub spec_method: Option<String>,
    /// What the scheduler goes by.
    pub scheduling: SchedulingArgs,
    /// `--mamba-ssm-cache-dtype`: element type of the recurrent state; `auto` is the model's.
    pub mamba_ssm_cache_dtype: Option<String>,
}

impl EngineArgs {
    /// A launch of `model` with no other flag.
    #[must_use]
    pub fn new(version: Version, model: impl Into<String>) -> Self {
        Self {
            version,
            generation: None,
            model: model.into(),
            tensor_parallel_size: 1,
            pipeline_parallel_size: 1,
            data_parallel_size: 1,
            decode_context_parallel_size: 1,
            enable_expert_parallel: false,
            dtype: None,
            quantization: None,
            kv_cache_dtype: None,
            gpu_memory_utilization: None,
            kv_cache_memory_bytes: None,
            num_gpu_blocks_override: None,
            max_model_len: None,
            max_num_seqs: None,
            max_num_batched_tokens: None,
            block_size: None,
            swap_space: None,
            cpu_offload_gb: None,
            enable_chunked_prefill: None,
            enable_prefix_caching: None,
            enforce_eager: false,
            disable_hybrid_kv_cache_manager: false,
            async_scheduling: None,
            num_speculative_tokens: None,
            speculative_model: None,
            cudagraph_capture_sizes: None,
            enable_lora: false,
            language_model_only: false,
            estimate_cudagraphs: None,
            max_cudagraph_capture_size: None,
            disable_cudagraphs: false,
            disable_compilation: false,
            attention_backend: None,
            spec_method: None,
            scheduling: SchedulingArgs::default(),
            mamba_ssm_cache_dtype: None,
        }
    }

    /// Drafts come from layers of the model itself: draft tokens, no draft model, and no method that drafts
    /// without layers.
    #[must_use]
    pub fn drafts_with_own_layers(&self) -> bool {
        const WITHOUT_LAYERS: [&str; 3] = ["ngram", "ngram_gpu", "suffix"];
        let layerless = self.spec_method.as_deref().is_some_and(|m| WITHOUT_LAYERS.contains(&m));
        self.num_speculative_tokens.unwrap_or(0) > 0
            && self.speculative_model.is_none()
            && !layerless
    }
}
