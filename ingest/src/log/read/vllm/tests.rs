//! Lines of every generation, with figures of our own.

use super::*;
use crate::log::{Amount, Refused};

fn gib(value: f64) -> Amount {
    Amount::gib(value, 2)
}

#[test]
fn telling_words_are_in_no_common_line() {
    for word in WORDS {
        assert!(word.len() >= 8, "`{word}` is too short to tell");
    }
}

#[test]
fn first_engine_budget_and_profile() {
    let line = "the current vLLM instance can use total_gpu_memory (31.50GiB) x gpu_memory_utilization (0.90) = 28.35GiB";
    let budget = Vllm::Budget { total: gib(31.5), utilization: 0.9, budget: gib(28.35) };
    assert_eq!(read(line), Some(budget));
    let line = "model weights take 12.00GiB; non_torch_memory takes 0.25GiB; PyTorch activation peak memory takes \
                1.10GiB; the rest of the memory reserved for KV Cache is 15.00GiB.";
    let Some(Vllm::Profile { weights, non_torch, activation_peak, kv, .. }) = read(line) else {
        panic!("no profile");
    };
    let found = [weights, non_torch, activation_peak, kv].map(Option::unwrap);
    assert_eq!(found, [gib(12.0), gib(0.25), gib(1.1), gib(15.0)]);
    let line = "Memory profiling results: total_gpu_memory=31.50GiB initial_memory_usage=12.40GiB \
                peak_torch_memory=13.50GiB non_torch_memory=0.30GiB kv_cache_size=14.55GiB gpu_memory_utilization=0.90";
    let Some(Vllm::Profile { peak_torch, initial, total, utilization, .. }) = read(line) else {
        panic!("no profile");
    };
    let found = [peak_torch, initial, total].map(Option::unwrap);
    assert_eq!(found, [gib(13.5), gib(12.4), gib(31.5)]);
    assert_eq!(utilization, Some(0.9));
    let blocks = Some(Vllm::Blocks { gpu: 3100, cpu: Some(1024) });
    assert_eq!(read("# GPU blocks: 3100, # CPU blocks: 1024"), blocks);
    assert_eq!(read("# cuda blocks: 3100, # CPU blocks: 1024"), blocks);
    assert_eq!(read("held blocks: 3100"), None);
}

#[test]
fn pools_on_one_line_and_on_two() {
    let one = "GPU KV cache size: 310,016 tokens, Maximum concurrency for 65,536 tokens per request: 4.73x";
    let per_request = Some((65_536, 4.73));
    assert_eq!(read(one), Some(Vllm::KvTokens { tokens: 310_016, per_request }));
    assert_eq!(
        read("TPU KV cache size: 4,096 tokens"),
        Some(Vllm::KvTokens { tokens: 4096, per_request: None })
    );
    assert_eq!(
        read("Maximum concurrency for 40000 tokens per request: 1.86x"),
        Some(Vllm::Concurrency { tokens: 40_000, times: 1.86 })
    );
    let npu = Vllm::AvailableKv { amount: Amount::exact(23_000_000_000) };
    assert_eq!(read("Available memory: 23000000000, total memory: 65000000000"), Some(npu));
    assert_eq!(read("Available memory: 12 GB"), None);
    let less = Vllm::AvailableKv { amount: gib(-3.5) };
    assert_eq!(read("Available KV cache memory: -3.5 GiB"), Some(less));
}

#[test]
fn free_memory_refused_and_remarked() {
    let no = "Free memory on device cuda:1 (60.10/79.19 GiB) on startup is less than desired GPU memory utilization \
              (0.9, 71.27 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.";
    let Some(Vllm::FreeAtStart { free, total, utilization, wanted, refused }) = read(no) else {
        panic!("no line");
    };
    assert_eq!((free, total, utilization), (gib(60.1), gib(79.19), Some(0.9)));
    assert_eq!((wanted, refused), (Some(gib(71.27)), Refused::Yes));
    let yes = "Free memory on device (78.60/79.19 GiB) on startup. Desired GPU memory utilization is (0.9, 71.27 GiB).";
    assert!(matches!(read(yes), Some(Vllm::FreeAtStart { refused: Refused::No, .. })));
}

#[test]
fn usage_with_consumed_memory_and_with_weights_apart() {
    let new = "Free memory on device (78.6/79.19 GiB) on startup. Desired GPU memory utilization is (0.9, 71.27 GiB). \
               Actual usage is 40.5 GiB for consumed memory (weights + non-torch), 2.75 GiB for peak activation, and \
               1.2 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=28641214464` \
               (26.67 GiB) to fit into requested memory, or `--kv-cache-memory=36511000000` (34.0 GiB) to fully utilize \
               gpu memory. Current kv cache memory in use is 28.02 GiB.";
    let Some(Vllm::Usage {
        consumed,
        activation_peak,
        non_torch,
        graphs,
        fit,
        full,
        in_use,
        free,
        ..
    }) = read(new)
    else {
        panic!("no usage");
    };
    assert_eq!((consumed, activation_peak, non_torch), (Some(gib(40.5)), Some(gib(2.75)), None));
    assert_eq!((graphs, in_use, free), (Some(gib(1.2)), Some(gib(28.02)), Some(gib(78.6))));
    assert_eq!(fit, Some(Amount::exact(28_641_214_464)));
    assert_eq!(full, Some(Amount::exact(36_511_000_000)));
    let old = "Actual usage is 14.96 GiB for weight, 1.26 GiB for peak activation, 1.79 GiB for non-torch memory, and \
               0.5 GiB for CUDAGraph memory.";
    let Some(Vllm::Usage { consumed, non_torch, fit, .. }) = read(old) else { panic!("no usage") };
    assert_eq!((consumed, non_torch, fit), (Some(gib(14.96)), Some(gib(1.79)), None));
}

#[test]
fn one_request_does_not_fit() {
    let line = "ValueError: To serve at least one request with the models's max seq len (65536), (8.0 GiB KV cache is \
                needed, which is larger than the available KV cache memory (2.5 GiB). Based on the available memory, \
                the estimated maximum model length is 20480.";
    let Some(Vllm::OneRequestTooLong { max_model_len, needed, available, estimated }) = read(line)
    else {
        panic!("no refusal");
    };
    assert_eq!((max_model_len, estimated), (Some(65_536), Some(20_480)));
    assert_eq!((needed, available), (Some(gib(8.0)), Some(gib(2.5))));
    let old = "The model's max seq len (30000) is larger than the maximum number of tokens that can be stored in KV cache (24000).";
    assert_eq!(read(old), Some(Vllm::LongerThanPool { max_model_len: 30_000, tokens: 24_000 }));
}

#[test]
fn graphs() {
    let bar =
        "Capturing CUDA graphs (decode, FULL):  50%|#####     | 26/52 [00:02<00:02,  9.1it/s]";
    let full = Vllm::Capturing { mode: Some("FULL".into()), progress: Some((26, 52)) };
    assert_eq!(read(bar), Some(full));
    let text = "Capturing cudagraphs for decoding. This may lead to unexpected consequences if the model is not static.";
    assert_eq!(read(text), Some(Vllm::Capturing { mode: None, progress: None }));
    let pool = "CUDA graph pool memory: 1.5 GiB (actual), 0.7 GiB (estimated), difference: 0.8 GiB (53.3%).";
    assert_eq!(read(pool), Some(Vllm::GraphPool { actual: gib(1.5), estimated: gib(0.7) }));
    let note = "CUDA graph memory profiling is enabled (default since v0.21.0). The current \
                --gpu-memory-utilization=0.9000 is equivalent to --gpu-memory-utilization=0.8900 without CUDA graph \
                memory profiling. To maintain the same effective KV cache size as before, increase \
                --gpu-memory-utilization to 0.9100.";
    let note_read =
        Vllm::UtilizationNote { current: Some(0.9), without: Some(0.89), increase_to: Some(0.91) };
    assert_eq!(read(note), Some(note_read));
}

#[test]
fn growth_swap_preemption() {
    let line = "AssertionError: Error in memory profiling. Initial free memory 20.58 GiB, current free memory 22.54 GiB.";
    let grew =
        Vllm::FreeGrewWhileProfiling { initial: Some(gib(20.58)), current: Some(gib(22.54)) };
    assert_eq!(read(line), Some(grew));
    let line = "Error in memory profiling. Initial free memory 22000000000, current free memory 22100000000.";
    let bytes = |n| Some(Amount::exact(n));
    let grew = Vllm::FreeGrewWhileProfiling {
        initial: bytes(22_000_000_000),
        current: bytes(22_100_000_000),
    };
    assert_eq!(read(line), Some(grew));
    let swap = |line: &str| match read(line) {
        Some(Vllm::SwapSpace { refused, .. }) => refused,
        other => panic!("{other:?}"),
    };
    let tail = "too large swap space. 8.00 GiB out of the 15.50 GiB total CPU memory is allocated for the swap space.";
    assert_eq!(swap(&tail.replace("too", "Too")), Refused::Yes);
    assert_eq!(swap(&format!("Possibly {tail}")), Refused::No);
    let line = "Sequence group 7 is preempted by PreemptionMode.SWAP mode because there is not enough KV cache space. \
                total_num_cumulative_preemption=51";
    assert_eq!(read(line), Some(Vllm::Preempted { mode: Some("SWAP".into()), total: Some(51) }));
}

#[test]
fn counters_and_blocks() {
    let metric = "vllm:num_preemptions_total{engine=\"0\",model_name=\"m\"} 57.0";
    assert_eq!(read(metric), Some(Vllm::Preempted { mode: None, total: Some(57) }));
    assert_eq!(read("# HELP vllm:num_preemptions_total Cumulative number of preemptions"), None);
    let line = "ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (200). Each decode sequence";
    assert_eq!(read(line), Some(Vllm::MambaBlocks { requests: 512, blocks: 200 }));
    let item = "The decoder prompt contains a(n) image item with length 5000, which exceeds the pre-allocated encoder \
                cache size 4096. Please reduce";
    let refused = Vllm::EncoderItemTooLarge { tokens: Some(5000), limit: Some(4096) };
    assert_eq!(read(item), Some(refused));
}

#[test]
fn requests_and_encoders() {
    let line = "This model's maximum context length is 8192 tokens. However, you requested 9001 tokens (8001 in the messages)";
    assert_eq!(read(line), Some(Vllm::PromptTooLong { limit: 8192, asked: Some(9001) }));
    let line = "(max_num_batched_tokens / max_num_seqs = 4096) is too short to hold the multi-modal embeddings in the \
                worst case (65536 tokens in total, out of which {'image': 65536})";
    assert_eq!(read(line), Some(Vllm::EncoderBudget { worst: Some(65_536), profiled: Some(4096) }));
}
