//! Tests of the GGUF reader on files built here, and on hostile ones.

use proptest::prelude::*;

use super::*;
use crate::model::{
    geometry::{Attention, Mlp},
    parallel::Loader,
    tensors,
    weights::{PartKind, WeightOptions},
};

/// A file as a converter writes it.
struct Builder {
    pairs: Vec<u8>,
    pair_count: u64,
    tensors: Vec<u8>,
    tensor_count: u64,
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl Builder {
    fn new() -> Self {
        Self { pairs: Vec::new(), pair_count: 0, tensors: Vec::new(), tensor_count: 0 }
    }

    fn key(&mut self, key: &str, kind: u32) -> &mut Vec<u8> {
        self.pair_count += 1;
        text(&mut self.pairs, key);
        self.pairs.extend(kind.to_le_bytes());
        &mut self.pairs
    }

    fn text(mut self, key: &str, value: &str) -> Self {
        text(self.key(key, 8), value);
        self
    }

    fn number(mut self, key: &str, value: u32) -> Self {
        self.key(key, 4).extend(value.to_le_bytes());
        self
    }

    fn tokens(mut self, count: u64) -> Self {
        let out = self.key("tokenizer.ggml.tokens", 9);
        out.extend(8_u32.to_le_bytes());
        out.extend(count.to_le_bytes());
        for _ in 0..count {
            text(out, "t");
        }
        self
    }

    fn tensor(mut self, name: &str, dims: &[u64], kind: u32) -> Self {
        self.tensor_count += 1;
        text(&mut self.tensors, name);
        self.tensors.extend((dims.len() as u32).to_le_bytes());
        for dim in dims {
            self.tensors.extend(dim.to_le_bytes());
        }
        self.tensors.extend(kind.to_le_bytes());
        self.tensors.extend(0_u64.to_le_bytes());
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend(self.tensor_count.to_le_bytes());
        out.extend(self.pair_count.to_le_bytes());
        out.extend(&self.pairs);
        out.extend(&self.tensors);
        out
    }
}

/// Qwen3-0.6B's shape, Q8_0 matrices, float32 norms.
fn qwen3() -> Builder {
    let mut builder = Builder::new()
        .text("general.architecture", "qwen3")
        .number("qwen3.block_count", 28)
        .number("qwen3.context_length", 40_960)
        .number("qwen3.embedding_length", 1024)
        .number("qwen3.feed_forward_length", 3072)
        .number("qwen3.attention.head_count", 16)
        .number("qwen3.attention.head_count_kv", 8)
        .number("qwen3.attention.key_length", 128)
        .number("qwen3.attention.value_length", 128)
        .tokens(64)
        .tensor("token_embd.weight", &[1024, 151_936], 8)
        .tensor("output_norm.weight", &[1024], 0);
    for layer in 0..28 {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        builder = builder
            .tensor(&name("attn_q"), &[1024, 2048], 8)
            .tensor(&name("attn_k"), &[1024, 1024], 8)
            .tensor(&name("attn_v"), &[1024, 1024], 8)
            .tensor(&name("attn_output"), &[2048, 1024], 8)
            .tensor(&name("attn_q_norm"), &[128], 0)
            .tensor(&name("attn_k_norm"), &[128], 0)
            .tensor(&name("attn_norm"), &[1024], 0)
            .tensor(&name("ffn_norm"), &[1024], 0)
            .tensor(&name("ffn_gate"), &[1024, 3072], 8)
            .tensor(&name("ffn_up"), &[1024, 3072], 8)
            .tensor(&name("ffn_down"), &[3072, 1024], 8);
    }
    builder
}

#[test]
fn a_file_gives_geometry_and_exact_bytes() {
    let file = parse(&qwen3().bytes()).unwrap();
    assert_eq!(file.types, ["Q8_0", "F32"]);
    let model = model("qwen3.gguf", &file).unwrap();
    assert_eq!(model.geometry.layers.len(), 28);
    assert_eq!((model.geometry.vocab_size, model.geometry.tie_word_embeddings), (151_936, true));
    let Attention::Gqa { kv_heads, head_dim, .. } = model.geometry.layers[0].attention else {
        panic!("not GQA")
    };
    assert_eq!((kv_heads, head_dim), (8, 128));
    let bill = tensors::bill(&file.tensors, &model, &WeightOptions::new(Loader::Vllm)).unwrap();
    // 596,049,920 parameters of Qwen3-0.6B; matrices at 34 bytes for 32, norms at 4 bytes each.
    assert_eq!(bill.parameters, 596_049_920);
    let norms = 1024 + 28 * (2 * 1024 + 2 * 128);
    assert_eq!(bill.whole.0, (596_049_920 - norms) / 32 * 34 + norms * 4);
    assert_eq!(bill.whole.0, file.tensor_bytes());
    assert_eq!(bill.part(PartKind::Embedding).map(|p| p.parameters), Some(151_936 * 1024));
}

#[test]
fn mla_and_experts_are_read() {
    let mut builder = Builder::new().text("general.architecture", "deepseek2");
    for (key, value) in [
        ("block_count", 27),
        ("context_length", 163_840),
        ("embedding_length", 2048),
        ("feed_forward_length", 10_944),
        ("attention.head_count", 16),
        ("attention.head_count_kv", 1),
        ("attention.key_length", 576),
        ("attention.value_length", 512),
        ("attention.key_length_mla", 192),
        ("attention.value_length_mla", 128),
        ("attention.kv_lora_rank", 512),
        ("rope.dimension_count", 64),
        ("vocab_size", 102_400),
        ("expert_count", 64),
        ("expert_used_count", 6),
        ("expert_feed_forward_length", 1408),
        ("expert_shared_count", 2),
        ("leading_dense_block_count", 1),
    ] {
        builder = builder.number(&format!("deepseek2.{key}"), value);
    }
    let model = model("v2-lite", &parse(&builder.bytes()).unwrap()).unwrap();
    let Attention::Mla { kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, .. } =
        model.geometry.layers[3].attention
    else {
        panic!("not MLA")
    };
    assert_eq!((kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim), (512, 128, 64, 128));
    assert!(matches!(model.geometry.layers[0].mlp, Mlp::Dense { intermediate: 10_944, .. }));
    let Mlp::Moe { experts, shared_intermediate, .. } = model.geometry.layers[1].mlp else {
        panic!("not a mixture")
    };
    assert_eq!((experts, shared_intermediate), (64, 2816));
}

#[test]
fn wrong_files_say_where() {
    assert!(matches!(parse(b"PK"), Err(GgufError::Magic { .. })));
    assert_eq!(parse(b"GGUF\x01\0\0\0"), Err(GgufError::Version { found: 1 }));
    let whole = qwen3().bytes();
    let cut = parse(&whole[..whole.len() - 3]).unwrap_err();
    let GgufError::Truncated { offset, needed: 8, left: 5, .. } = cut else { panic!("{cut}") };
    assert_eq!(offset, whole.len() as u64 - 8);
    // A count that no file can hold is refused before anything is allocated.
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(u64::MAX.to_le_bytes());
    bytes.extend(0_u64.to_le_bytes());
    assert!(matches!(parse(&bytes), Err(GgufError::Value { offset: 8, .. })));
    let odd = Builder::new().tensor("t", &[32], 77).bytes();
    let Err(GgufError::Value { what: "tensor type", value: 77, .. }) = parse(&odd) else {
        panic!()
    };
    let huge = Builder::new().tensor("t", &[u64::MAX, u64::MAX], 0).bytes();
    assert!(matches!(parse(&huge), Err(GgufError::Value { .. })));
    let strange = Builder::new().text("general.architecture", "qwen33").bytes();
    let error = model("x", &parse(&strange).unwrap()).unwrap_err();
    assert!(error.to_string().contains("nearest known: qwen3"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_bytes_panic(mut tail in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.append(&mut tail);
        if let Ok(file) = parse(&bytes) {
            let _ = model("x", &file);
        }
    }

    #[test]
    fn no_mutation_panics(at in 0_usize..2000, value in any::<u8>(), cut in 0_usize..4000) {
        let mut bytes = qwen3().bytes();
        let length = bytes.len();
        bytes[at % length] = value;
        bytes.truncate(length - cut % length);
        if let Ok(file) = parse(&bytes)
            && let Ok(model) = model("x", &file)
        {
            let _ = tensors::bill(&file.tensors, &model, &WeightOptions::new(Loader::Sglang));
        }
    }
}
