//! Small checkpoints as files: a GGUF file and a folder from the hub, with the same weights.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use plimsoll_core::tape::own::{Role, WeightId};
use serde_json::{Value, json};

pub(crate) const VOCAB: u64 = 260;
const HIDDEN: u64 = 8;
const HEADS: u64 = 2;
const KV_HEADS: u64 = 1;
const HEAD_DIM: u64 = 4;
const WIDE: u64 = 12;

/// A folder that goes with the test.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("plimsoll-checkpoint-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// One tensor: both names, rows first, values, and whether its rows are rotated heads.
pub(crate) struct Tensor {
    pub(crate) id: WeightId,
    pub(crate) hub: &'static str,
    pub(crate) ggml: &'static str,
    pub(crate) shape: Vec<u64>,
    pub(crate) values: Vec<f32>,
}

/// A tied model of one layer. Every value tells where it stands.
pub(crate) fn tensors() -> Vec<Tensor> {
    let layer = |role| WeightId { layer: Some(0), role };
    let outside = |role| WeightId { layer: None, role };
    let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    let list: [(WeightId, &str, &str, Vec<u64>); 11] = [
        (outside(Role::Embedding), "model.embed_tokens", "token_embd", vec![VOCAB, HIDDEN]),
        (outside(Role::FinalNorm), "model.norm", "output_norm", vec![HIDDEN]),
        (layer(Role::AttentionNorm), "input_layernorm", "attn_norm", vec![HIDDEN]),
        (layer(Role::Query), "self_attn.q_proj", "attn_q", vec![q, HIDDEN]),
        (layer(Role::Key), "self_attn.k_proj", "attn_k", vec![kv, HIDDEN]),
        (layer(Role::Value), "self_attn.v_proj", "attn_v", vec![kv, HIDDEN]),
        (layer(Role::Output), "self_attn.o_proj", "attn_output", vec![HIDDEN, q]),
        (layer(Role::MlpNorm), "post_attention_layernorm", "ffn_norm", vec![HIDDEN]),
        (layer(Role::Gate), "mlp.gate_proj", "ffn_gate", vec![WIDE, HIDDEN]),
        (layer(Role::Up), "mlp.up_proj", "ffn_up", vec![WIDE, HIDDEN]),
        (layer(Role::Down), "mlp.down_proj", "ffn_down", vec![HIDDEN, WIDE]),
    ];
    let mut base = 0.0;
    list.into_iter()
        .map(|(id, hub, ggml, shape)| {
            let count = shape.iter().product::<u64>();
            let values = (0..count).map(|i| base + i as f32).collect();
            base += 1000.0;
            Tensor { id, hub, ggml, shape, values }
        })
        .collect()
}

/// As the converter does: rows (head, half, i) become (head, i, half).
fn interleaved(tensor: &Tensor) -> Vec<f32> {
    if !matches!(tensor.id.role, Role::Query | Role::Key) {
        return tensor.values.clone();
    }
    let (head, row) = (HEAD_DIM as usize, HIDDEN as usize);
    let rows = tensor.values.chunks(row).count();
    let mut out = vec![0.0; tensor.values.len()];
    for at in 0..rows {
        let (start, within) = (at / head * head, at % head);
        let (half, i) = (within / (head / 2), within % (head / 2));
        let to = start + 2 * i + half;
        out[to * row..(to + 1) * row].copy_from_slice(&tensor.values[at * row..(at + 1) * row]);
    }
    out
}

/// The characters that stand for the bytes in a byte-level vocabulary.
fn byte_tokens() -> Vec<String> {
    let plain = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    (0..256)
        .map(|b| {
            let code = if plain(b) {
                b
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).unwrap().to_string()
        })
        .collect()
}

/// Bytes, two merges, and two control tokens.
pub(crate) fn vocabulary() -> (Vec<String>, Vec<String>, Vec<i32>) {
    let mut tokens = byte_tokens();
    tokens.extend(["ab", "Ġa", "<s>", "</s>"].map(str::to_owned));
    let merges = ["a b", "Ġ a"].map(str::to_owned).to_vec();
    let mut kinds = vec![1; tokens.len()];
    kinds[258..].fill(3);
    (tokens, merges, kinds)
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// The parts of a GGUF file, which a test may change before it is written.
pub(crate) struct Gguf {
    pub(crate) texts: Vec<(String, String)>,
    pub(crate) numbers: Vec<(String, u32)>,
    pub(crate) floats: Vec<(String, f32)>,
    pub(crate) tensors: Vec<(String, Vec<u64>, Vec<f32>)>,
    pub(crate) pre: &'static str,
    pub(crate) vocabulary: (Vec<String>, Vec<String>, Vec<i32>),
}

impl Gguf {
    pub(crate) fn new(kind: &str) -> Self {
        let key = |name: &str| format!("{kind}.{name}");
        let tensors = tensors();
        let permuted = kind == "llama";
        let tensors = tensors.iter().map(|t| {
            let name = match t.id.layer {
                Some(layer) => format!("blk.{layer}.{}.weight", t.ggml),
                None => format!("{}.weight", t.ggml),
            };
            let values = if permuted { interleaved(t) } else { t.values.clone() };
            (name, t.shape.clone(), values)
        });
        Self {
            texts: vec![("general.architecture".to_owned(), kind.to_owned())],
            numbers: vec![
                (key("embedding_length"), HIDDEN as u32),
                (key("block_count"), 1),
                (key("context_length"), 64),
                (key("feed_forward_length"), WIDE as u32),
                (key("attention.head_count"), HEADS as u32),
                (key("attention.head_count_kv"), KV_HEADS as u32),
                (key("attention.key_length"), HEAD_DIM as u32),
                (key("attention.value_length"), HEAD_DIM as u32),
                ("tokenizer.ggml.bos_token_id".to_owned(), 258),
                ("tokenizer.ggml.eos_token_id".to_owned(), 259),
            ],
            floats: vec![(key("attention.layer_norm_rms_epsilon"), 1e-5)],
            tensors: tensors.collect(),
            pre: "smollm",
            vocabulary: vocabulary(),
        }
    }

    fn pairs(&self) -> (u64, Vec<u8>) {
        let mut out = Vec::new();
        let mut count = 0;
        let mut key = |out: &mut Vec<u8>, name: &str, kind: u32| {
            count += 1;
            text(out, name);
            out.extend(kind.to_le_bytes());
        };
        for (name, value) in &self.texts {
            key(&mut out, name, 8);
            text(&mut out, value);
        }
        for (name, value) in &self.numbers {
            key(&mut out, name, 4);
            out.extend(value.to_le_bytes());
        }
        for (name, value) in &self.floats {
            key(&mut out, name, 6);
            out.extend(value.to_le_bytes());
        }
        if !self.pre.is_empty() {
            for (name, value) in [("model", "gpt2"), ("pre", self.pre)] {
                key(&mut out, &format!("tokenizer.ggml.{name}"), 8);
                text(&mut out, value);
            }
            let (tokens, merges, kinds) = &self.vocabulary;
            for (name, list) in [("tokens", tokens), ("merges", merges)] {
                key(&mut out, &format!("tokenizer.ggml.{name}"), 9);
                out.extend(8_u32.to_le_bytes());
                out.extend((list.len() as u64).to_le_bytes());
                list.iter().for_each(|token| text(&mut out, token));
            }
            key(&mut out, "tokenizer.ggml.token_type", 9);
            out.extend(5_u32.to_le_bytes());
            out.extend((kinds.len() as u64).to_le_bytes());
            kinds.iter().for_each(|kind| out.extend(kind.to_le_bytes()));
        }
        (count, out)
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let (count, pairs) = self.pairs();
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(count.to_le_bytes());
        out.extend(pairs);
        let mut at = 0_u64;
        for (name, shape, values) in &self.tensors {
            text(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend(0_u32.to_le_bytes());
            out.extend(at.to_le_bytes());
            at += (values.len() as u64 * 4).next_multiple_of(32);
        }
        for (_, _, values) in &self.tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            values.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }
        out
    }
}

pub(crate) fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "hidden_size": HIDDEN, "intermediate_size": WIDE, "num_hidden_layers": 1,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "vocab_size": VOCAB, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": true, "eos_token_id": [259, 258],
    })
}

/// Safetensors bytes of some tensors, float32.
pub(crate) fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for tensor in tensors {
        let name = match tensor.id.layer {
            Some(layer) => format!("model.layers.{layer}.{}.weight", tensor.hub),
            None => format!("{}.weight", tensor.hub),
        };
        let start = data.len();
        tensor.values.iter().for_each(|v| data.extend(v.to_le_bytes()));
        let ends = [start, data.len()];
        header.insert(name, json!({"dtype": "F32", "shape": tensor.shape, "data_offsets": ends}));
    }
    let header = Value::Object(header).to_string();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

/// A folder in two shards.
pub(crate) fn folder(scratch: &Scratch, config: &Value) -> PathBuf {
    let path = scratch.0.clone();
    let mut tensors = tensors();
    let rest = tensors.split_off(4);
    scratch.file("config.json", config.to_string());
    let mut map = serde_json::Map::new();
    for (file, tensors) in [("a.safetensors", &tensors), ("b.safetensors", &rest)] {
        scratch.file(file, safetensors(tensors));
        for (index, _) in tensors.iter().enumerate() {
            map.insert(format!("{file}{index}"), json!(file));
        }
    }
    scratch.file("model.safetensors.index.json", json!({"weight_map": map}).to_string());
    path
}

/// The error of opening, as printed, without the folder's name.
pub(crate) fn error(path: &Path) -> String {
    let error = plimsoll_checkpoint::Checkpoint::open(path).unwrap_err().to_string();
    let folder = if path.is_dir() { path } else { path.parent().unwrap() };
    error.replace(&folder.display().to_string(), "DIR")
}
