//! Seeds, made from numbers for this purpose, and the words that each format knows.

macro_rules! seed_files {
    ($($path:literal),+ $(,)?) => {
        vec![$(include_bytes!(concat!("../../seeds/", $path)).to_vec()),+]
    };
}

/// A small dense model, for the division of tensors.
pub(crate) const SMALL_CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16",
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 256}"#;

pub(crate) const SCENARIO_WORDS: &[&str] = &[
    "name",
    "why",
    "seed",
    "machine",
    "device",
    "ranks",
    "readings",
    "free_before_load",
    "weights",
    "engine",
    "version",
    "command",
    "flags",
    "environment",
    "model",
    "kv_bytes_per_token",
    "events",
    "at",
    "before_load",
    "during_sizing",
    "others_hold",
    "rank",
    "all",
    "expect",
    "outcome",
    "started",
    "refused",
    "within",
    "min",
    "max",
    " GiB",
    " MiB",
    " B",
    " %",
    " tokens",
    "calibrated",
    "value",
    "source",
    "capacity",
    "unknown",
    "sglang",
    "vllm",
    "0.4.6",
    "0.5.23",
    "0.5.8.post1",
    "platform",
    "mlx",
    "workload",
    "requests",
    "concurrency",
    "rate",
    "gamma",
    "burstiness",
    "prompt_tokens",
    "output_tokens",
    "uniform",
    "lognormal",
    "median",
    "sigma",
    "shared_prefix",
    "sampling",
    "top_p",
    "others_grow",
    "leak",
    "step",
    "over",
    "limits",
    "max_steps",
    "weaker",
    "died_in",
    "contains",
    " s",
    " ms",
    " /s",
];
pub(crate) const LAUNCH_WORDS: &[&str] = &[
    "python -m sglang.launch_server",
    "vllm serve m",
    "sglang serve",
    "--model-path",
    "--tp",
    "--pp",
    "--dp",
    "--ep",
    "--mem-fraction-static",
    "--gpu-memory-utilization",
    "--max-model-len",
    "--max-num-seqs",
    "--page-size",
    "--chunked-prefill-size",
    "--max-total-tokens",
    "--context-length",
    "--quantization fp8",
    "--kv-cache-dtype fp8_e5m2",
    "--speculative-algorithm EAGLE",
    "--speculative-num-draft-tokens 4",
    "--cuda-graph-bs",
    "--cuda-graph-max-bs",
    "--enable-dp-attention",
    "--config c.yaml",
    "--device cpu",
    "--disable-radix-cache",
    "--max-mamba-cache-size",
    "--swa-full-tokens-ratio",
    "--block-size",
    "--num-gpu-blocks-override",
    "--kv-cache-memory-bytes",
    "--enforce-eager",
    "--max-num-batched-tokens",
    "--dtype float32",
    "--hicache-ratio",
    "--hicache-size",
    "--max-running-requests",
    "sglang==0.4.6",
    "vllm==0.8.5",
    "VLLM_USE_V1=0",
    "SGLANG_USE_MLX=1",
    "bash -c '",
    "docker run",
    "A100-SXM4-40GB",
    "meta-llama/Llama-3.1-8B-Instruct",
    "openai/gpt-oss-120b",
    "image: ",
    "command: ",
    "args: ",
    "32k",
    "1.5",
];
pub(crate) const FLAG_WORDS: &[&str] = &[
    "tp-size: 2",
    "tp: 3",
    "mem-fraction-static: 1.2",
    "gpu_memory_utilization: .9",
    "max-model-len: 8k",
    "enable-hierarchical-cache: true",
    "hicache-size: 0",
    "cuda-graph-bs: [1, 2]",
    "config: other.yaml",
    "model: org/model",
    "no-enable-prefix-caching: true",
    "compilation-config: {level: 3}",
    "kv-cache-dtype: fp8",
];
pub(crate) const MODEL_WORDS: &[&str] = &[
    "architectures",
    "LlamaForCausalLM",
    "Qwen3MoeForCausalLM",
    "GptOssForCausalLM",
    "DeepseekV32ForCausalLM",
    "Llama4ForConditionalGeneration",
    "NemotronHForCausalLM",
    "FalconH1ForCausalLM",
    "MambaForCausalLM",
    "text_config",
    "vision_config",
    "quantization_config",
    "quant_method",
    "fp8",
    "awq",
    "gptq",
    "mxfp4",
    "compressed-tensors",
    "bits",
    "group_size",
    "head_dim",
    "kv_lora_rank",
    "num_experts",
    "layer_types",
    "sliding_attention",
    "full_attention",
    "sliding_window",
    "num_hidden_layers",
    "num_key_value_heads",
    "NaN",
    "Infinity",
    "index_topk",
    "hybrid_override_pattern",
    "M*-E",
    "rope_scaling",
    "yarn",
    "torch_dtype",
    "null",
    "first_k_dense_replace",
    "num_nextn_predict_layers",
    "num_kv_shared_layers",
    "re:.*",
    "block_configs",
];
pub(crate) const DEVICE_WORDS: &[&str] = &[
    "platform: ",
    "metal",
    "rocm",
    "integrated",
    "nvlink",
    "evidence: observed",
    "gib: [1, 2, 3]",
    "mib: 1",
    "tflops: [.nan, 1]",
    ".inf",
    "-.inf",
    "1e20",
    "mig: ",
    "metal: ",
    "ram_gib: 8",
    "context: ",
];
pub(crate) const SERVER_WORDS: &[&str] = &[
    "Load weight begin.",
    "Load weight end.",
    "avail mem=",
    "mem usage=",
    "Memory pool end.",
    "Capture ",
    " end.",
    "max_total_num_tokens=",
    "GPU KV cache size: ",
    "Available KV cache memory:",
    "Graph capturing finished",
    "took ",
    "Model loading took ",
    "9999999.99",
    "...",
    "1,2,3",
    " GB",
    " GiB",
    "-0.5",
    "ServerArgs(",
    "Traceback (most recent call last):\n",
    "  File \"/a/torch/b.py\", line 3, in f\n",
    "CUDA out of memory. Tried to allocate ",
    "During handling of the above exception",
    "Decode batch. #running-req: 1, ",
    "\u{1b}[31m",
    "[2026-01-02 03:04:05 DP0 TP1] ",
    "{\"log\":\"",
    "api_key='",
    "python -m sglang.launch_server --tp 2 \\\n",
];
pub(crate) const SMI_WORDS: &[&str] = &[
    "index",
    "name",
    "memory.total [MiB]",
    "memory.free",
    ", ",
    "[N/A]",
    "[Not Supported]",
    " MiB",
    "No devices were found",
    "NVIDIA-SMI has failed",
    "4294967296",
    "[GPU is lost]",
];
pub(crate) const ALLOC_WORDS: &[&str] = &[
    "max_split_size_mb:",
    "max_non_split_rounding_mb:",
    "garbage_collection_threshold:",
    "roundup_power2_divisions:",
    "[256:1,512:2,>:8]",
    "expandable_segments:True",
    "large_segment_size_mb:",
    "per_process_memory_fraction:",
    "backend:native",
    "18446744073709551615",
];

pub(crate) const SNAPSHOT_WORDS: &[&str] = &[
    "\"segments\":",
    "\"blocks\":",
    "\"size\":",
    "\"total_size\":",
    "\"address\":",
    "\"state\":",
    "\"inactive\"",
    "\"active_awaiting_free\"",
    "\"is_expandable\":true",
    "18446744073709551615",
    "h\u{0}",
    "q\u{0}",
];

pub(crate) const LOG_WORDS: &[&str] = &[
    "\"schema\":\"plimsoll.log/1\"",
    "\"seq\":0",
    "\"seq\":1",
    "\"rank\":0",
    "\"kind\":\"a\"",
    "\"measured\":{}",
    "\"scope\":\"measured\"",
    "{\"footer\":\"complete\",\"records\":4",
    "\"float:NaN\"",
    "\"float:-inf\"",
    "1e400",
    "-0.0",
    "\\u0000",
    "\\ud800",
    "0.1",
    "1e16",
    "[[]]",
];
pub(crate) const GGUF_WORDS: &[&str] = &[
    "GGUF",
    "\u{3}\0\0\0",
    "\u{8}\0\0\0",
    "\t\0\0\0",
    "llama",
    "qwen3moe",
    "deepseek2",
    "gpt-oss",
    ".block_count",
    ".attention.head_count_kv",
    "general.architecture",
    "output.weight",
    "\0\0\0\0\0\0\0\u{40}",
];
pub(crate) const TENSOR_WORDS: &[&str] = &[
    "\"dtype\":\"BF16\"",
    "F4",
    "F32",
    "F8_E4M3",
    "\"shape\":[2,3]",
    "\"data_offsets\":[0,12]",
    "weight_map",
    "metadata",
    "total_size",
    "model.layers.1.mlp.experts.0.down_proj.weight",
    "mtp.0.weight",
    "model.embed_tokens.weight",
    "lm_head.weight",
    "1e18",
    "__metadata__",
];

pub(crate) fn scenario() -> Vec<Vec<u8>> {
    seed_files!(
        "scenario/start.yaml",
        "scenario/command.yaml",
        "scenario/cell.yaml",
        "scenario/anchors.yaml",
        "scenario/serving.yaml"
    )
}

pub(crate) fn launch_text() -> Vec<Vec<u8>> {
    seed_files!(
        "launch_text/docker.sh",
        "launch_text/serve.sh",
        "launch_text/compose.yaml",
        "launch_text/nested.sh",
    )
}

pub(crate) fn launch_argv() -> Vec<Vec<u8>> {
    seed_files!("launch_argv/sglang.txt", "launch_argv/vllm.txt", "launch_argv/nested.txt")
}

pub(crate) fn launch_config() -> Vec<Vec<u8>> {
    seed_files!("launch_config/sglang.yaml", "launch_config/vllm.yaml", "launch_config/flags.json")
}

pub(crate) fn plan() -> Vec<Vec<u8>> {
    seed_files!(
        "plan/kimi.txt",
        "plan/llama.txt",
        "plan/mlx.txt",
        "plan/moe.txt",
        "plan/hybrid.txt",
        "plan/swa.txt",
    )
}

pub(crate) fn model_config() -> Vec<Vec<u8>> {
    seed_files!(
        "model_config/gqa.json",
        "model_config/mla_moe.json",
        "model_config/nested_swa.json",
        "model_config/hybrid.json",
    )
}

pub(crate) fn model_entry() -> Vec<Vec<u8>> {
    seed_files!("model_entry/small.yaml", "model_entry/moe.yaml")
}

pub(crate) fn device_file() -> Vec<Vec<u8>> {
    seed_files!("device_file/gpu.yaml", "device_file/laptop.yaml")
}

pub(crate) fn server_log() -> Vec<Vec<u8>> {
    seed_files!(
        "server_log/sglang.log",
        "server_log/vllm.log",
        "server_log/restart.log",
        "server_log/capture.log",
        "server_log/dressed.log",
    )
}

pub(crate) fn nvidia_smi() -> Vec<Vec<u8>> {
    seed_files!("nvidia_smi/plain.csv", "nvidia_smi/header.csv")
}

pub(crate) fn decision_log() -> Vec<Vec<u8>> {
    seed_files!("decision_log/short.jsonl", "decision_log/served.jsonl")
}

/// A small dense model and one with experts, with tensors; version 3, little endian.
pub(crate) fn gguf() -> Vec<Vec<u8>> {
    let dense = Gguf::new("llama")
        .numbers(&[("embedding_length", 64), ("block_count", 2), ("context_length", 256)])
        .numbers(&[("feed_forward_length", 128), ("attention.head_count", 4), ("vocab_size", 100)])
        .numbers(&[("attention.head_count_kv", 2), ("rope.dimension_count", 16)])
        .tensor("token_embd.weight", &[64, 100], 1)
        .tensor("blk.0.attn_q.weight", &[64, 64], 8)
        .tensor("blk.1.ffn_down.weight", &[128, 64], 1)
        .tensor("output.weight", &[64, 100], 0);
    let experts = Gguf::new("qwen3moe")
        .numbers(&[("embedding_length", 64), ("block_count", 2), ("context_length", 256)])
        .numbers(&[("feed_forward_length", 128), ("attention.head_count", 4), ("vocab_size", 100)])
        .numbers(&[("attention.head_count_kv", 2), ("expert_count", 8), ("expert_used_count", 2)])
        .numbers(&[("expert_feed_forward_length", 32), ("attention.key_length", 16)])
        .tensor("blk.0.ffn_gate_exps.weight", &[64, 32, 8], 1);
    vec![dense.bytes(), experts.bytes()]
}

/// A GGUF file under construction.
struct Gguf {
    architecture: &'static str,
    pairs: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
}

impl Gguf {
    fn new(architecture: &'static str) -> Self {
        let mut kind = with_length("general.architecture");
        kind.extend(8_u32.to_le_bytes());
        kind.extend(with_length(architecture));
        Self { architecture, pairs: vec![kind], tensors: Vec::new() }
    }

    fn numbers(mut self, list: &[(&str, u32)]) -> Self {
        for (key, value) in list {
            let mut pair = with_length(&format!("{}.{key}", self.architecture));
            pair.extend(4_u32.to_le_bytes());
            pair.extend(value.to_le_bytes());
            self.pairs.push(pair);
        }
        self
    }

    fn tensor(mut self, name: &str, dims: &[u64], kind: u32) -> Self {
        let mut tensor = with_length(name);
        tensor.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| tensor.extend(dim.to_le_bytes()));
        tensor.extend(kind.to_le_bytes());
        tensor.extend(0_u64.to_le_bytes());
        self.tensors.push(tensor);
        self
    }

    fn bytes(self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        out.extend(self.pairs.concat());
        out.extend(self.tensors.concat());
        out
    }
}

fn with_length(text: &str) -> Vec<u8> {
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text.as_bytes());
    out
}

/// A header with its length before it, and an index.
pub(crate) fn safetensors() -> Vec<Vec<u8>> {
    let header = concat!(
        r#"{"__metadata__":{"format":"pt"},"#,
        r#""model.embed_tokens.weight":{"dtype":"BF16","shape":[100,64],"data_offsets":[0,12800]},"#,
        r#""model.layers.0.self_attn.q_proj.weight":{"dtype":"BF16","shape":[64,64],"data_offsets":[12800,20992]},"#,
        r#""model.layers.1.mlp.down_proj.weight":{"dtype":"F8_E4M3","shape":[64,128],"data_offsets":[20992,29184]},"#,
        r#""lm_head.weight":{"dtype":"F32","shape":[100,64],"data_offsets":[29184,54784]}}"#,
    );
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    let index = concat!(
        r#"{"metadata":{"total_size":54784},"weight_map":{"#,
        r#""model.embed_tokens.weight":"model-00001-of-00002.safetensors","#,
        r#""lm_head.weight":"model-00002-of-00002.safetensors"}}"#,
    );
    vec![file, index.as_bytes().to_vec()]
}

pub(crate) fn alloc_conf() -> Vec<Vec<u8>> {
    vec![
        b"max_split_size_mb:128,garbage_collection_threshold:0.8,per_process_memory_fraction:0.9"
            .to_vec(),
        b"expandable_segments:True, roundup_power2_divisions:[256:1,512:2,1024:4,>:8]".to_vec(),
        b"roundup_power2_divisions:4,large_segment_size_mb:32,release_lock_on_cudamalloc:True"
            .to_vec(),
    ]
}
