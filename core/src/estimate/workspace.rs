//! Fixed buffers of libraries and backends: attention workspaces, custom all-reduce, symmetric
//! memory, cuBLAS. Exact per release; read in the engines' sources.

use super::shape::{ShapeInputs, U, narrow, wide};
use super::{Engine, Figure};
use crate::device::{DeviceProfile, Link, Platform};
use crate::figure::Tag;
use crate::policy::sglang::version::Version;
use crate::units::MIB;

/// Attention backend, as far as its buffers differ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AttentionBackend {
    /// FlashInfer, GQA.
    Flashinfer,
    /// FlashInfer, MLA.
    FlashinferMla,
    /// TensorRT-LLM kernels, GQA.
    TrtllmMha,
    /// TensorRT-LLM kernels, MLA.
    TrtllmMla,
    /// Triton: no fixed workspace; index and partial-result buffers with decode graphs.
    Triton,
    /// FlashAttention 3 or 4: page tables with decode graphs.
    FlashAttention,
    /// No fixed workspace worth naming (FlashMLA, PyTorch).
    Other,
}

impl AttentionBackend {
    /// Whether it makes a page table as wide as the longest sequence.
    #[must_use]
    pub const fn has_page_table(self) -> bool {
        matches!(self, Self::FlashAttention | Self::TrtllmMha | Self::TrtllmMla)
    }
}

/// Deterministic inference, which enlarges SGLang's FlashInfer workspace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Determinism {
    /// Off.
    Off,
    /// `--enable-deterministic-inference`.
    On,
}

/// Architectures that get 512 MiB in SGLang. Source: SGLang 0.5.2 to 0.5.23, FlashInfer backend.
const WIDE_WORKSPACE: [&str; 8] = [
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM",
    "MiMoForCausalLM",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "MiMoMTP",
];

/// Float workspace of the attention backend, one for each process. Allocated when the backend is
/// made: after the pool in SGLang, on first use (not profiled) in vLLM.
#[must_use]
pub fn attention_workspace(
    engine: Engine,
    version: Version,
    backend: AttentionBackend,
    architecture: &str,
    determinism: Determinism,
) -> Figure {
    let (mib, rule) = match engine {
        Engine::Sglang => sglang_attention(backend, architecture, determinism),
        Engine::Vllm => vllm_attention(version, backend),
    };
    let source = match engine {
        Engine::Sglang => "SGLang 0.5.2 to 0.5.23, attention backends",
        Engine::Vllm => "vLLM 0.8 to 0.33, attention backends",
    };
    let mut figure = Figure::computed(mib * MIB, rule, source).with("release", version);
    if engine == Engine::Sglang && version < Version::new(0, 5, 2) {
        figure.why.tag = Tag::Assumed;
    }
    figure
}

fn sglang_attention(
    backend: AttentionBackend,
    architecture: &str,
    determinism: Determinism,
) -> (u64, &'static str) {
    let flashinfer =
        matches!(backend, AttentionBackend::Flashinfer | AttentionBackend::FlashinferMla);
    match backend {
        _ if flashinfer && determinism == Determinism::On => (2048, "2048 MiB when deterministic"),
        _ if flashinfer && WIDE_WORKSPACE.contains(&architecture) => {
            (512, "512 MiB for Qwen2, Qwen3, MiMo and Qwen3-VL")
        }
        _ if flashinfer => (384, "384 MiB (SGLANG_FLASHINFER_WORKSPACE_SIZE)"),
        AttentionBackend::TrtllmMha => (512, "512 MiB"),
        AttentionBackend::TrtllmMla => (150, "150 MiB"),
        _ => (0, "no fixed workspace"),
    }
}

fn vllm_attention(version: Version, backend: AttentionBackend) -> (u64, &'static str) {
    match backend {
        AttentionBackend::FlashinferMla => (128, "128 MiB (256 with log-sum-exp)"),
        AttentionBackend::TrtllmMla => (128, "128 MiB"),
        AttentionBackend::Flashinfer | AttentionBackend::TrtllmMha => {
            if version < Version::new(0, 12, 0) {
                (256, "256 MiB before 0.12")
            } else {
                (394, "394 MiB from 0.12 (VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE)")
            }
        }
        AttentionBackend::Triton | AttentionBackend::FlashAttention | AttentionBackend::Other => {
            (0, "no fixed workspace")
        }
    }
}

/// What SGLang's static buffers for captured decode steps depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeBuffers<'a> {
    /// Attention backend of decode.
    pub backend: AttentionBackend,
    /// Numbers of the model.
    pub shape: &'a ShapeInputs,
    /// Largest captured batch; 0 when decode is not captured.
    pub max_bs: u64,
    /// `context_len`, tokens.
    pub context_len: u64,
    /// `page_size`, tokens.
    pub page_size: u64,
    /// Tensor-parallel ranks.
    pub tp: u64,
}

/// Static buffers that SGLang makes before it captures decode: the attention backend's index of the
/// longest batch, partial results of Triton, logits in float32, ids and positions.
///
/// Source: SGLang 0.5.8 and 0.5.23 attention backends and graph runner. `max_bs · context · 4` B for
/// FlashInfer, `· 9` for Triton, a page table for FlashAttention and TRT-LLM.
#[must_use]
pub fn decode_buffers(inputs: &DecodeBuffers<'_>) -> Figure {
    let source = "SGLang 0.5.8 and 0.5.23 attention backends and graph runner";
    let (max_bs, context) = (wide(inputs.max_bs), wide(inputs.context_len));
    if max_bs == 0 {
        return Figure::none("decode is not captured", source);
    }
    let rank = inputs.shape.rank(inputs.tp);
    let pages = context.div_ceil(wide(inputs.page_size.max(1)));
    let (index, rule) = match inputs.backend {
        AttentionBackend::Flashinfer | AttentionBackend::FlashinferMla => {
            (4 * max_bs * context, "bs·context·4 + bs·V·4 + ids")
        }
        AttentionBackend::Triton => (9 * max_bs * context, "bs·context·9 + splits + bs·V·4 + ids"),
        AttentionBackend::TrtllmMha
        | AttentionBackend::TrtllmMla
        | AttentionBackend::FlashAttention => {
            (4 * max_bs * pages, "bs·(context/page)·4 + bs·V·4 + ids")
        }
        AttentionBackend::Other => (0, "bs·V·4 + ids"),
    };
    // Triton splits each head's keys in 8 and keeps a float32 partial result of each.
    let partial = match (inputs.backend, rank.mla) {
        (AttentionBackend::Triton, Some(mla)) => max_bs * mla.heads * 8 * mla.kv_lora * 4,
        (AttentionBackend::Triton, None) => max_bs * rank.q * 8 * 4,
        _ => 0,
    };
    let small = max_bs * (rank.v * 4 + U * rank.h + 24);
    Figure::computed(narrow(index + partial + small), rule, source)
        .with("bs", inputs.max_bs)
        .with("context", inputs.context_len)
        .with("vocab", inputs.shape.vocab)
}

/// Buffers that communicators make at first use, after the pool is sized: NCCL's channels for the
/// transports that the first collectives choose. None on one rank.
#[must_use]
pub fn late_communicators(ranks: u64) -> Figure {
    let source = "public start logs: what graphs and workspaces leave unexplained";
    if ranks <= 1 {
        return Figure::none("one rank", source);
    }
    let mut figure = Figure::computed(0, "communicators at first use", source).with("ranks", ranks);
    figure.value = super::gib(0.0, 0.25, 0.9);
    figure.why.tag = Tag::Assumed;
    figure
}

/// vLLM's workspace for the cached prefix of MLA: rows × (`kv_lora` + rope) × 2 B, made with the
/// backend (not in the profile run), rows = min(max(8·`max_model_len`, 4·`max_num_seqs`·block),
/// 65,536), at least `max_num_seqs`·block. Zero for other attention. Source: vLLM 0.19, MLA
/// metadata builder.
#[must_use]
pub fn vllm_mla_prefix(
    shape: &ShapeInputs,
    max_model_len: u64,
    max_num_seqs: u64,
    block_size: u64,
) -> Figure {
    let source = "vLLM 0.19, MLA metadata builder";
    let Some(mla) = shape.rank(1).mla else {
        return Figure::none("not MLA", source);
    };
    let blocks = wide(max_num_seqs) * wide(block_size);
    let rows = (8 * wide(max_model_len)).max(4 * blocks).min(65_536).max(blocks);
    let rule = "rows × (kv_lora + rope) × 2 B";
    Figure::computed(narrow(U * rows * (mla.kv_lora + mla.rope)), rule, source).with("rows", rows)
}

/// Custom all-reduce on one rank: two direct allocations (8 MiB + header → 10 MiB, and 8 MiB) and 8
/// MiB of rank data from torch. For 2, 4, 6 and 8 ranks, not for more than 2 ranks on PCI Express
/// alone; twice as much on ROCm.
#[must_use]
pub fn custom_all_reduce(device: &DeviceProfile, ranks: u64) -> Figure {
    const SOURCE: &str = "SGLang and vLLM custom all-reduce";
    let sizes = matches!(ranks, 2 | 4 | 6 | 8);
    let linked = device.link != Link::Pcie || ranks == 2;
    if !sizes || !linked || !matches!(device.platform, Platform::Cuda | Platform::Rocm) {
        return Figure::none("custom all-reduce is off", SOURCE).with("ranks", ranks);
    }
    let scale = if device.platform == Platform::Rocm { 2 } else { 1 };
    let bytes = (10 + 8 + 8) * MIB * scale;
    Figure::computed(bytes, "10 + 8 MiB outside torch and 8 MiB inside", SOURCE)
        .with("ranks", ranks)
}

/// Buffer of torch's symmetric-memory all-reduce, outside torch's pool.
#[must_use]
pub fn symmetric_memory(engine: Engine, device: &DeviceProfile, ranks: u64) -> Figure {
    let Some(cc) = device.compute_capability() else {
        return Figure::none("CUDA only", "rule");
    };
    let column = match ranks {
        2 => 0,
        4 => 1,
        6 => 2,
        8 => 3,
        _ => return Figure::none("2, 4, 6 or 8 ranks only", "rule").with("ranks", ranks),
    };
    let table = match (engine, cc.major, cc.minor) {
        (Engine::Sglang, 9 | 10, _) => [64, 64, 128, 128],
        (Engine::Vllm, 9, _) => [64, 32, 64, 64],
        (Engine::Vllm, 10, 3) => [4, 32, 32, 64],
        (Engine::Vllm, 10, _) => [8, 32, 128, 128],
        _ => [0, 0, 0, 0],
    };
    let source = "SGLang 0.5.23, vLLM 0.33: symmetric-memory communicators";
    Figure::computed(table[column] * MIB, "table by compute capability and ranks", source)
        .with("compute capability", cc)
        .with("ranks", ranks)
}

/// cuBLAS workspace that torch takes from its own allocator for each stream that multiplies.
///
/// 32 MiB on compute capability 9 (newer torch: on 10 and 12 too), else 8,519,680 B; ROCm 32 MiB,
/// 128 MiB on gfx94x and gfx95x. Source: PyTorch, CUDA blas workspace size.
#[must_use]
pub fn cublas_workspace(device: &DeviceProfile) -> Figure {
    const SOURCE: &str = "PyTorch, cuBLAS workspace size";
    let (bytes, rule) = match device.platform {
        Platform::Cuda => match device.compute_capability().map(|cc| cc.major) {
            Some(9 | 10 | 12) => (32 * MIB, "32 MiB from compute capability 9"),
            _ => (8_519_680, ":4096:2:16:8 = 8,519,680 B"),
        },
        Platform::Rocm if device.arch.starts_with("gfx94") || device.arch.starts_with("gfx95") => {
            (128 * MIB, "128 MiB on gfx94x and gfx95x")
        }
        Platform::Rocm => (32 * MIB, "32 MiB"),
        Platform::Xpu | Platform::Metal => (0, "no such workspace"),
    };
    Figure::computed(bytes, rule, SOURCE).with("device", &device.name)
}
