//! Lines of vLLM.

mod args;
mod serving;
mod sizing;

use super::scan::{Known, read_by, words};
use crate::log::{Reached, Vllm};

/// Every line known, by its telling words. The order decides where a line holds the words of two.
const LINES: &[Known<Vllm>; 67] = &[
    // What the server says of itself.
    ("non-default args: ", args::mapping),
    ("args: Namespace(", args::namespace),
    ("LLM engine (v", args::config),
    // Sizing.
    ("Actual usage is ", sizing::usage),
    ("Free memory on device", sizing::free_at_start),
    ("Model loading took ", sizing::load_end),
    ("Loading model weights took ", sizing::load_end),
    ("gpu_memory_utilization (", sizing::budget),
    ("model weights take ", sizing::profile),
    ("Memory profiling results: ", sizing::profile_results),
    ("Available KV cache memory: ", sizing::available),
    ("Available memory: ", sizing::available_npu),
    ("KV cache size: ", sizing::tokens),
    (" blocks: ", sizing::blocks),
    ("Maximum concurrency for ", sizing::concurrency),
    ("CUDA graph memory profiling ", sizing::utilization_note),
    ("Estimated CUDA graph memory: ", sizing::graph_estimate),
    ("as specified by kv_cache_memory_bytes", sizing::kv_given),
    ("Overriding num_gpu_blocks=", sizing::blocks_override),
    ("No available memory for the cache blocks", |_| Some(Vllm::NoBlocks)),
    ("To serve at least one request", sizing::one_request),
    ("can be stored in KV cache", sizing::longer_than_pool),
    ("Error in memory profiling", sizing::free_grew),
    ("Auto-fit max_model_len: reduced from ", sizing::model_len_reduced),
    ("Cannot auto-fit max_model_len", |_| Some(Vllm::AutoFitFailed)),
    ("greater than the derived max_model_len", sizing::model_len_too_large),
    ("Setting attention block size to ", sizing::hybrid),
    (" padding layers, may waste", sizing::hybrid),
    ("Padding mamba page size", sizing::hybrid),
    ("too short to hold the multi-modal embeddings", sizing::encoder_worst),
    ("Encoder cache will be initialized with a budget of ", sizing::encoder_budget),
    ("exceeds available Mamba cache blocks", sizing::mamba_blocks),
    ("exceeds the pre-allocated encoder cache size", serving::encoder_item),
    ("oo large swap space", sizing::swap_space),
    ("VLLM_CPU_KVCACHE_SPACE", sizing::cpu_kv_space),
    ("enabled with max_num_batched_tokens=", sizing::batched_tokens),
    // Graphs and warm-up.
    ("Graph capturing finished", sizing::capture_end),
    ("CUDA graph pool memory: ", sizing::graph_pool),
    ("Capturing CUDA graph", sizing::capturing),
    ("Capturing cudagraph", sizing::capturing),
    ("Capturing the model for CUDA graphs", sizing::capturing),
    ("Encoder CUDA graph capture complete", |_| Some(Vllm::EncoderGraphs)),
    (" cuda graph addresses", sizing::graph_addresses),
    ("occurred when warming up ", serving::sampler),
    ("Workspace is locked but allocation", serving::workspace_locked),
    ("Expandable segments are not compatible", |_| Some(Vllm::SegmentsRefused)),
    ("Sleep mode freed ", serving::sleep),
    // Serving.
    ("is preempted by ", serving::preempted),
    ("num_preemptions", serving::preemption_metric),
    ("lack of CPU swap space", |_| Some(Vllm::NoSwapSpace)),
    ("maximum context length is ", serving::prompt_too_long),
    // Phases.
    ("Memory profiling takes ", |_| Some(Vllm::Phase(Reached::Profiled))),
    ("Profiling CUDA graph memory", |_| Some(Vllm::Phase(Reached::GraphProfile))),
    ("Loading weights took ", |_| Some(Vllm::Phase(Reached::Weights))),
    ("Starting to load model ", |_| Some(Vllm::Phase(Reached::Load))),
    ("torch.compile takes ", |_| Some(Vllm::Phase(Reached::Compile))),
    ("init engine (profile", |_| Some(Vllm::Phase(Reached::Initialized))),
    ("Application startup complete", |_| Some(Vllm::Ready)),
    ("Starting vLLM API server", |_| Some(Vllm::Ready)),
    // The end.
    ("Exception in worker", |_| Some(Vllm::EngineFailed)),
    ("WorkerProc ", serving::worker_failed),
    ("EngineCore encountered a fatal error", |_| Some(Vllm::EngineFailed)),
    ("EngineCore failed to start", |_| Some(Vllm::EngineFailed)),
    ("Engine core initialization failed", |_| Some(Vllm::EngineFailed)),
    ("Engine process failed to start", |_| Some(Vllm::EngineFailed)),
    ("EngineDeadError", |_| Some(Vllm::EngineFailed)),
    ("Background loop has errored", |_| Some(Vllm::EngineFailed)),
];

/// Words of which every line that [`read`] understands holds at least one, in any case.
pub(super) const WORDS: &[&str] = &words(LINES);

/// What one undressed line says; `None` when it is no line of this server.
pub(super) fn read(line: &str) -> Option<Vllm> {
    read_by(LINES, line)
}

#[cfg(test)]
mod tests;
