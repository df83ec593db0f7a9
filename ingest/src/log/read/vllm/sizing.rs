//! From loading to the last graph. Templates: vLLM 0.6 to 0.33, `worker`, `gpu_worker`, `gpu_model_runner`,
//! `kv_cache_utils`, `profiling`.

use crate::log::read::fields::{after, float_after, uint, uint_after};
use crate::log::read::scan::{amount_after, between, bytes_after, gib2, gib2_after};
use crate::log::{Amount, Refused, Vllm};

/// `Model loading took 14.96 GiB …` (V1), `Loading model weights took 7.5122 GB` (V0).
pub(super) fn load_end(line: &str) -> Option<Vllm> {
    Some(Vllm::LoadEnd { weights: amount_after(line, " took ")? })
}

/// `(110.37/121.69 GiB) on startup. Desired GPU memory utilization is (0.87, 105.87 GiB)` or `… is less than
/// desired GPU memory utilization (0.9, 71.3 GiB)`.
pub(super) fn free_at_start(line: &str) -> Option<Vllm> {
    let ((free, total), (utilization, wanted)) = (free_of_total(line)?, desired(line));
    let refused = if line.contains("is less than") { Refused::Yes } else { Refused::No };
    Some(Vllm::FreeAtStart { free, total, utilization, wanted, refused })
}

fn free_of_total(line: &str) -> Option<(Amount, Amount)> {
    let at = line.find(" GiB) on startup")?;
    let inside = line.get(..at)?.rsplit_once('(')?.1;
    let (free, total) = inside.split_once('/')?;
    Some((gib2(free)?, gib2(total)?))
}

fn desired(line: &str) -> (Option<f64>, Option<Amount>) {
    let Some(rest) = after(line, "GPU memory utilization") else { return (None, None) };
    let wanted = between(rest, "(", ")").and_then(|inside| inside.split_once(',')).map(|(_, b)| b);
    (float_after(rest, "("), wanted.and_then(gib2))
}

/// V0: `total_gpu_memory (15.77GiB) x gpu_memory_utilization (0.95) = 14.98GiB`.
pub(super) fn budget(line: &str) -> Option<Vllm> {
    Some(Vllm::Budget {
        total: amount_after(line, "total_gpu_memory (")?,
        utilization: float_after(line, "gpu_memory_utilization (")?,
        budget: amount_after(line, ") = ")?,
    })
}

/// V0: `model weights take …; non_torch_memory takes …; PyTorch activation peak memory takes …; the rest …`.
pub(super) fn profile(line: &str) -> Option<Vllm> {
    Some(Vllm::Profile {
        weights: amount_after(line, "model weights take "),
        non_torch: amount_after(line, "non_torch_memory takes "),
        activation_peak: amount_after(line, "activation peak memory takes "),
        kv: amount_after(line, "reserved for KV Cache is "),
        peak_torch: None,
        initial: None,
        total: None,
        utilization: None,
    })
}

/// V0 of 0.6.3 and 0.6.4: `Memory profiling results: total_gpu_memory=…GiB …`.
pub(super) fn profile_results(line: &str) -> Option<Vllm> {
    Some(Vllm::Profile {
        weights: None,
        non_torch: amount_after(line, "non_torch_memory="),
        activation_peak: None,
        kv: amount_after(line, "kv_cache_size="),
        peak_torch: amount_after(line, "peak_torch_memory="),
        initial: amount_after(line, "initial_memory_usage="),
        total: amount_after(line, "total_gpu_memory="),
        utilization: float_after(line, "gpu_memory_utilization="),
    })
}

/// The sentence behind the graphs, in both forms: weights and non-torch together (0.27 and later) or apart.
pub(super) fn usage(line: &str) -> Option<Vllm> {
    let rest = after(line, "Actual usage is ")?;
    let (utilization, wanted) = desired(line);
    let (free, total) = free_of_total(line).map_or((None, None), |(a, b)| (Some(a), Some(b)));
    let before = |words: &str| {
        let head = rest.split_once(words)?.0;
        let number = head.rsplit([',', '`']).next()?.trim_start().trim_start_matches("and ");
        gib2(number)
    };
    let suggested = |words: &str| {
        let given = rest.split_once(words)?.0.rsplit_once("--kv-cache-memory")?.1;
        bytes_after(given.trim_start_matches(|c: char| !c.is_ascii_digit()), "")
    };
    Some(Vllm::Usage {
        consumed: before(" for consumed memory").or_else(|| before(" for weight")),
        activation_peak: before(" for peak activation"),
        non_torch: before(" for non-torch memory"),
        graphs: before(" for CUDAGraph memory"),
        fit: suggested("to fit into requested memory"),
        full: suggested("to fully utilize gpu memory"),
        in_use: gib2_after(rest, "kv cache memory in use is "),
        free,
        total,
        utilization,
        wanted,
    })
}

/// `Available KV cache memory: -2.14 GiB`.
pub(super) fn available(line: &str) -> Option<Vllm> {
    Some(Vllm::AvailableKv { amount: gib2_after(line, "Available KV cache memory: ")? })
}

/// vLLM on Ascend: `Available memory: 23106324992, total memory: 65452113920`, whole bytes.
pub(super) fn available_npu(line: &str) -> Option<Vllm> {
    line.contains(", total memory: ")
        .then(|| bytes_after(line, "Available memory: "))
        .flatten()
        .map(|amount| Vllm::AvailableKv { amount })
}

/// `GPU KV cache size: 178,880 tokens`, with the concurrency behind it from 0.28 on. Other devices print
/// their own name.
pub(super) fn tokens(line: &str) -> Option<Vllm> {
    let rest = after(line, "KV cache size: ")?;
    let tokens = uint(rest).filter(|_| rest.contains(" token"))?;
    Some(Vllm::KvTokens { tokens, per_request: per_request(rest) })
}

fn per_request(text: &str) -> Option<(u64, f64)> {
    let rest = after(text, "Maximum concurrency for ")?;
    Some((uint(rest)?, float_after(rest, "per request: ")?))
}

/// `Maximum concurrency for 40000 tokens per request: 1.86x`.
pub(super) fn concurrency(line: &str) -> Option<Vllm> {
    per_request(line).map(|(tokens, times)| Vllm::Concurrency { tokens, times })
}

/// `# GPU blocks: 4660, # CPU blocks: 4096`; `# cuda blocks` in 0.8.
pub(super) fn blocks(line: &str) -> Option<Vllm> {
    let rest = after(line, "# ")?;
    let (device, rest) = rest.split_once(" blocks: ")?;
    if device.eq_ignore_ascii_case("CPU") || device.contains(' ') {
        return None;
    }
    Some(Vllm::Blocks { gpu: uint(rest)?, cpu: uint_after(rest, "# CPU blocks: ") })
}

/// The healthy note on graph profiling, on by default (`… is equivalent to …`) or announced
/// (`increase --gpu-memory-utilization from … to …`).
pub(super) fn utilization_note(line: &str) -> Option<Vllm> {
    let increase = after(line, "increase --gpu-memory-utilization ");
    Some(Vllm::UtilizationNote {
        current: float_after(line, "current --gpu-memory-utilization=")
            .or_else(|| float_after(increase?, "from ")),
        without: float_after(line, "equivalent to --gpu-memory-utilization="),
        increase_to: increase.and_then(|rest| float_after(rest, "to ")),
    })
}

/// `Estimated CUDA graph memory: 0.58 GiB total`.
pub(super) fn graph_estimate(line: &str) -> Option<Vllm> {
    let amount = gib2_after(line, "Estimated CUDA graph memory: ")?;
    Some(Vllm::GraphEstimate { amount })
}

/// `Graph capturing finished in 4 secs, took 0.31 GiB`.
pub(super) fn capture_end(line: &str) -> Option<Vllm> {
    Some(Vllm::CaptureEnd { took: gib2_after(line, "took ") })
}

/// `CUDA graph pool memory: 7.46 GiB (actual), 0.58 GiB (estimated), …`.
pub(super) fn graph_pool(line: &str) -> Option<Vllm> {
    let rest = after(line, "CUDA graph pool memory: ")?;
    Some(Vllm::GraphPool { actual: gib2(rest)?, estimated: gib2_after(rest, "(actual), ")? })
}

/// `Capturing cudagraphs for decoding. …`, `Capturing CUDA graphs (decode, FULL):  12%|█ | 8/67 [00:01<…]`.
pub(super) fn capturing(line: &str) -> Option<Vllm> {
    let mode = between(line, "(", ")").and_then(|inside| inside.rsplit(", ").next());
    let mode = mode.filter(|mode| mode.bytes().all(|b| b.is_ascii_uppercase() || b == b'_'));
    Some(Vllm::Capturing { mode: mode.map(Into::into), progress: progress(line) })
}

/// `8/67` of a progress bar: the last such pair of words.
fn progress(line: &str) -> Option<(u64, u64)> {
    line.split_whitespace().rev().find_map(|word| {
        let (done, all) = word.split_once('/')?;
        Some((done.parse().ok()?, all.parse().ok()?)).filter(|(done, all)| done <= all)
    })
}

/// `Registering 7108 cuda graph addresses`.
pub(super) fn graph_addresses(line: &str) -> Option<Vllm> {
    Some(Vllm::GraphAddresses { count: uint_after(line, "Registering ")? })
}

/// `Initial free memory …, reserved … memory for KV Cache as specified by kv_cache_memory_bytes config`.
pub(super) fn kv_given(line: &str) -> Option<Vllm> {
    Some(Vllm::KvGiven {
        free: gib2_after(line, "nitial free memory "),
        reserved: gib2_after(line, "reserved "),
    })
}

/// `Overriding num_gpu_blocks=… with num_gpu_blocks_override=…`.
pub(super) fn blocks_override(line: &str) -> Option<Vllm> {
    Some(Vllm::BlocksOverride {
        computed: uint_after(line, "num_gpu_blocks=")?,
        taken: uint_after(line, "num_gpu_blocks_override=")?,
    })
}

/// The refusal of V1 when one request of `max_model_len` does not fit. `models's` up to 0.21, and an
/// opening bracket that never closes.
pub(super) fn one_request(line: &str) -> Option<Vllm> {
    Some(Vllm::OneRequestTooLong {
        max_model_len: uint_after(line, "max seq len ("),
        needed: line
            .split_once(" KV cache is needed")
            .and_then(|(head, _)| gib2(head.rsplit_once('(')?.1)),
        available: gib2_after(line, "available KV cache memory ("),
        estimated: uint_after(line, "estimated maximum model length is "),
    })
}

/// V0: `The model's max seq len (29000) is larger than the maximum number of tokens that can be stored in KV
/// cache (23648)`.
pub(super) fn longer_than_pool(line: &str) -> Option<Vllm> {
    Some(Vllm::LongerThanPool {
        max_model_len: uint_after(line, "max seq len (")?,
        tokens: uint_after(line, "stored in KV cache (")?,
    })
}

/// `Error in memory profiling. Initial free memory 82.94 GiB, current free memory 90.17 GiB`; bytes without a
/// unit in the oldest releases.
pub(super) fn free_grew(line: &str) -> Option<Vllm> {
    let figure = |key| amount_after(line, key).or_else(|| bytes_after(line, key));
    Some(Vllm::FreeGrewWhileProfiling {
        initial: figure("nitial free memory "),
        current: figure("current free memory "),
    })
}

/// `Auto-fit max_model_len: reduced from … to …`.
pub(super) fn model_len_reduced(line: &str) -> Option<Vllm> {
    let rest = after(line, "reduced from ")?;
    Some(Vllm::ModelLenReduced { from: uint(rest)?, to: uint_after(rest, " to ")? })
}

/// `User-specified max_model_len (…) is greater than the derived max_model_len`.
pub(super) fn model_len_too_large(line: &str) -> Option<Vllm> {
    Some(Vllm::ModelLenTooLarge { asked: uint_after(line, "max_model_len (") })
}

/// Lines that only models with Mamba, linear or window layers cause.
pub(super) fn hybrid(line: &str) -> Option<Vllm> {
    Some(Vllm::HybridLayout { block: uint_after(line, "attention block size to ") })
}

/// V0: `(max_num_batched_tokens / max_num_seqs = 8192) is too short … in the worst case (180224 tokens in total`.
pub(super) fn encoder_worst(line: &str) -> Option<Vllm> {
    Some(Vllm::EncoderBudget {
        worst: uint_after(line, "worst case ("),
        profiled: uint_after(line, "max_num_seqs = "),
    })
}

/// V1: `Encoder cache will be initialized with a budget of 16384 tokens, and profiled with …`.
pub(super) fn encoder_budget(line: &str) -> Option<Vllm> {
    Some(Vllm::EncoderBudget { worst: None, profiled: uint_after(line, "a budget of ") })
}

/// `Too large swap space. 4.00 GiB out of the 4.30 GiB total CPU memory` or `Possibly too large …`.
pub(super) fn swap_space(line: &str) -> Option<Vllm> {
    let refused = if line.contains("Possibly") { Refused::No } else { Refused::Yes };
    Some(Vllm::SwapSpace {
        asked: amount_after(line, "swap space. "),
        host: amount_after(line, "out of the "),
        refused,
    })
}

/// `Environment variable VLLM_CPU_KVCACHE_SPACE (GB) for CPU backend is not set, using 4 by default.`
pub(super) fn cpu_kv_space(line: &str) -> Option<Vllm> {
    let size = gib2(after(line, "using ")?).map(|size| Amount::exact(size.bytes));
    line.contains("not set").then_some(Vllm::CpuKvSpace { size })
}

/// `Chunked prefill is enabled with max_num_batched_tokens=8192.`
pub(super) fn batched_tokens(line: &str) -> Option<Vllm> {
    Some(Vllm::BatchedTokens { tokens: uint_after(line, "max_num_batched_tokens=")? })
}

/// `max_num_seqs (256) exceeds available Mamba cache blocks (142). Each decode sequence requires one …`.
pub(super) fn mamba_blocks(line: &str) -> Option<Vllm> {
    Some(Vllm::MambaBlocks {
        requests: uint_after(line, "max_num_seqs (")?,
        blocks: uint_after(line, "cache blocks (")?,
    })
}
