//! The launch flags that reach memory, by the engine's own names. `None` means the flag was not given.

use super::scheduling::SchedulingArgs;
use super::version::Version;

/// Where the server runs, as far as sizing rules differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Platform {
    /// NVIDIA.
    #[default]
    Cuda,
    /// AMD.
    Rocm,
    /// Ascend.
    Npu,
    /// Gaudi.
    Hpu,
    /// Intel GPU.
    Xpu,
    /// Moore Threads.
    Musa,
    /// No accelerator.
    Cpu,
    /// Apple Metal through torch.
    Mps,
    /// Apple Metal through MLX (`SGLANG_USE_MLX`).
    Mlx,
}

/// `--disaggregation-mode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DisaggregationMode {
    /// Prefill and decode in one server.
    #[default]
    Null,
    /// Prefill role.
    Prefill,
    /// Decode role.
    Decode,
}

/// Whether CUDA graphs of one phase are asked for, and how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GraphRequest {
    /// No flag given: the version's default.
    #[default]
    Default,
    /// Switched on without naming a backend.
    On,
    /// Switched off.
    Off,
    /// Backend `breakable`.
    Breakable,
    /// Backend `full`.
    Full,
    /// Backend `tc_piecewise`.
    TcPiecewise,
}

/// Flags of `python -m sglang.launch_server` (or `sglang serve`) that reach memory.
#[derive(Clone, PartialEq, Debug)]
pub struct ServerArgs {
    /// Release whose rules apply.
    pub version: Version,
    /// Backend of the server.
    pub platform: Platform,
    /// `--model-path`.
    pub model_path: String,
    /// `--tp-size`.
    pub tp_size: u32,
    /// `--pp-size`.
    pub pp_size: u32,
    /// `--dp-size`.
    pub dp_size: u32,
    /// `--ep-size`.
    pub ep_size: u32,
    /// `--enable-dp-attention`.
    pub enable_dp_attention: bool,
    /// `--nnodes`.
    pub nnodes: u32,
    /// `--dtype`.
    pub dtype: Option<String>,
    /// `--quantization`.
    pub quantization: Option<String>,
    /// `--kv-cache-dtype`.
    pub kv_cache_dtype: Option<String>,
    /// `--context-length`, tokens.
    pub context_length: Option<u64>,
    /// `--mem-fraction-static`.
    pub mem_fraction_static: Option<f64>,
    /// `--chunked-prefill-size`, tokens; -1 switches chunking off.
    pub chunked_prefill_size: Option<i64>,
    /// `--max-prefill-tokens`.
    pub max_prefill_tokens: Option<u64>,
    /// `--max-running-requests`.
    pub max_running_requests: Option<u64>,
    /// `--max-total-tokens`.
    pub max_total_tokens: Option<u64>,
    /// `--page-size`, tokens.
    pub page_size: Option<u64>,
    /// `--cuda-graph-max-bs` (`--cuda-graph-max-bs-decode` in late releases).
    pub cuda_graph_max_bs: Option<u64>,
    /// `--cuda-graph-bs`, an explicit list of batch sizes.
    pub cuda_graph_bs: Option<Vec<u64>>,
    /// `--disable-cuda-graph` and per-phase forms: the decode phase.
    pub decode_graph: GraphRequest,
    /// `--disable-cuda-graph`, `--enable-piecewise-cuda-graph` and per-phase forms: the prefill phase.
    pub prefill_graph: GraphRequest,
    /// `--piecewise-cuda-graph-max-tokens` (`--cuda-graph-max-bs-prefill` later), tokens.
    pub prefill_graph_max_tokens: Option<u64>,
    /// `--disable-cuda-graph-padding`.
    pub disable_cuda_graph_padding: bool,
    /// `--torch-compile-max-bs`.
    pub torch_compile_max_bs: Option<u64>,
    /// `--speculative-algorithm`, upper case (EAGLE, EAGLE3, NEXTN, STANDALONE, NGRAM, DFLASH, …).
    pub speculative_algorithm: Option<String>,
    /// `--speculative-draft-model-path`.
    pub speculative_draft_model_path: Option<String>,
    /// `--speculative-num-steps`.
    pub speculative_num_steps: Option<u64>,
    /// `--speculative-eagle-topk`.
    pub speculative_eagle_topk: Option<u64>,
    /// `--speculative-num-draft-tokens`.
    pub speculative_num_draft_tokens: Option<u64>,
    /// `--disable-radix-cache`.
    pub disable_radix_cache: bool,
    /// `--disable-overlap-schedule`.
    pub disable_overlap_schedule: bool,
    /// `--enable-two-batch-overlap`.
    pub enable_two_batch_overlap: bool,
    /// `--enable-hierarchical-cache`.
    pub enable_hierarchical_cache: bool,
    /// `--hicache-ratio`.
    pub hicache_ratio: Option<f64>,
    /// `--hicache-size`, decimal GB per rank; 0 means the ratio decides.
    pub hicache_size: Option<f64>,
    /// `--swa-full-tokens-ratio`.
    pub swa_full_tokens_ratio: Option<f64>,
    /// `--disable-hybrid-swa-memory`.
    pub disable_hybrid_swa_memory: bool,
    /// `--mamba-full-memory-ratio`.
    pub mamba_full_memory_ratio: Option<f64>,
    /// `--max-mamba-cache-size`, requests.
    pub max_mamba_cache_size: Option<u64>,
    /// `--mamba-scheduler-strategy`.
    pub mamba_scheduler_strategy: Option<String>,
    /// `--mamba-ssm-dtype`.
    pub mamba_ssm_dtype: Option<String>,
    /// `--disaggregation-mode`.
    pub disaggregation_mode: DisaggregationMode,
    /// `--moe-runner-backend`; none stands for `auto`.
    pub moe_runner_backend: Option<String>,
    /// `--disable-flashinfer-autotune`.
    pub disable_flashinfer_autotune: bool,
    /// `--moe-a2a-backend`; `deepep` also from `--enable-deepep-moe`.
    pub moe_a2a_backend: Option<String>,
    /// `--deepep-mode`.
    pub deepep_mode: Option<String>,
    /// `--attention-backend`.
    pub attention_backend: Option<String>,
    /// `--prefill-attention-backend`.
    pub prefill_attention_backend: Option<String>,
    /// `--decode-attention-backend`.
    pub decode_attention_backend: Option<String>,
    /// `--enable-memory-saver`.
    pub enable_memory_saver: bool,
    /// `--enable-lora` (or a non-empty `--lora-paths`).
    pub enable_lora: bool,
    /// `--enable-multimodal` or a multimodal model without `--language-only`.
    pub language_only: bool,
    /// `--cpu-offload-gb`, GiB.
    pub cpu_offload_gb: Option<f64>,
    /// `SGLANG_ENABLE_POST_CAPTURE_KV_SIZING`.
    pub post_capture_kv_sizing: bool,
    /// `--enable-torch-compile`.
    pub enable_torch_compile: bool,
    /// `--enable-deterministic-inference`.
    pub enable_deterministic_inference: bool,
    /// `--enable-symm-mem`.
    pub enable_symm_mem: bool,
    /// `--enable-eplb` or `--expert-distribution-recorder-mode`.
    pub records_expert_distribution: bool,
    /// `--attention-context-parallel-size` and its aliases.
    pub attention_cp_size: u32,
    /// `--decode-context-parallel-size` (`--dcp-size`).
    pub dcp_size: u32,
    /// `SGLANG_AITER_HONOR_EXPLICIT_MEM_FRACTION`.
    pub aiter_honors_explicit_fraction: bool,
    /// `SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK` (or the older environment switch) turns the check off.
    pub unbalanced_ranks_allowed: bool,
    /// Flags of the scheduler and the sampler.
    pub scheduling: SchedulingArgs,
}

impl ServerArgs {
    /// Tokens of a prefill batch: as given, else 16,384 in every release.
    ///
    /// Source: SGLang `ServerArgs.max_prefill_tokens`.
    #[must_use]
    pub const fn prefill_budget(&self) -> u64 {
        match self.max_prefill_tokens {
            Some(tokens) => tokens,
            None => 16_384,
        }
    }

    /// A launch of `model_path` with no other flag.
    #[must_use]
    pub fn new(version: Version, model_path: impl Into<String>) -> Self {
        Self {
            version,
            platform: Platform::Cuda,
            model_path: model_path.into(),
            tp_size: 1,
            pp_size: 1,
            dp_size: 1,
            ep_size: 1,
            enable_dp_attention: false,
            nnodes: 1,
            dtype: None,
            quantization: None,
            kv_cache_dtype: None,
            context_length: None,
            mem_fraction_static: None,
            chunked_prefill_size: None,
            max_prefill_tokens: None,
            max_running_requests: None,
            max_total_tokens: None,
            page_size: None,
            cuda_graph_max_bs: None,
            cuda_graph_bs: None,
            decode_graph: GraphRequest::Default,
            prefill_graph: GraphRequest::Default,
            prefill_graph_max_tokens: None,
            disable_cuda_graph_padding: false,
            torch_compile_max_bs: None,
            speculative_algorithm: None,
            speculative_draft_model_path: None,
            speculative_num_steps: None,
            speculative_eagle_topk: None,
            speculative_num_draft_tokens: None,
            disable_radix_cache: false,
            disable_overlap_schedule: false,
            enable_two_batch_overlap: false,
            enable_hierarchical_cache: false,
            hicache_ratio: None,
            hicache_size: None,
            swa_full_tokens_ratio: None,
            disable_hybrid_swa_memory: false,
            mamba_full_memory_ratio: None,
            max_mamba_cache_size: None,
            mamba_scheduler_strategy: None,
            mamba_ssm_dtype: None,
            disaggregation_mode: DisaggregationMode::Null,
            moe_runner_backend: None,
            disable_flashinfer_autotune: false,
            moe_a2a_backend: None,
            deepep_mode: None,
            attention_backend: None,
            prefill_attention_backend: None,
            decode_attention_backend: None,
            enable_memory_saver: false,
            enable_lora: false,
            language_only: false,
            cpu_offload_gb: None,
            post_capture_kv_sizing: false,
            enable_torch_compile: false,
            enable_deterministic_inference: false,
            enable_symm_mem: false,
            records_expert_distribution: false,
            attention_cp_size: 1,
            dcp_size: 1,
            aiter_honors_explicit_fraction: false,
            unbalanced_ranks_allowed: false,
            scheduling: SchedulingArgs::default(),
        }
    }
}
