//! Exact weights from the tensors of a checkpoint, divided over ranks by their names.

use crate::{
    figure::{Estimate, Tag},
    units::Bytes,
};

use super::{
    detail::Model,
    geometry::Attention,
    kv::{self, heads_on_rank},
    parallel::ParallelError,
    storage::Storage,
    weights::{self, Bill, DraftWeights, Part, PartKind, VisionUse, WeightOptions},
};

/// One tensor of a checkpoint file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Rows first.
    pub shape: Vec<u64>,
    /// Bytes in the file.
    pub bytes: u64,
    /// Kept as float32, which the engines narrow to the model's dtype for matrices.
    pub float32: bool,
}

/// How one tensor is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    kind: PartKind,
    /// Ranks among which its bytes are divided.
    parts: u64,
}

/// The bill of a checkpoint's tensors: bytes as stored, divided by name as the engines divide the
/// module, with the parts that the engine makes taken from the configuration.
///
/// # Errors
/// As `weights::bill`.
pub fn bill(
    tensors: &[TensorInfo],
    model: &Model,
    options: &WeightOptions,
) -> Result<Bill, ParallelError> {
    let computed = weights::bill(model, options)?;
    let stage = kv::stage(model, options.loader, options.parallel.pp, options.stage)?;
    let layers = model.geometry.layers.len();
    let block = model.detail.layers_a_block.max(1) as usize;
    let blocks = stage.start / block..stage.end / block;
    let (first, last) = (stage.start == 0, stage.end == layers);
    let mut parts: Vec<Part> = Vec::new();
    for tensor in tensors {
        let name = hugging_face_name(&tensor.name);
        let layer = layer_index(&name);
        let mut place = place(&name, tensor, model, options);
        if layer.is_some_and(|l| l >= layers / block) || name.starts_with("mtp.") {
            place.kind = PartKind::Draft;
        }
        let here = match (place.kind, layer) {
            (PartKind::Draft, _) => last && options.draft == DraftWeights::Loaded,
            (PartKind::Vision, _) => first && options.vision == VisionUse::Loaded,
            (PartKind::Embedding, _) => first || (last && model.geometry.tie_word_embeddings),
            (PartKind::Head, _) => last && !model.geometry.tie_word_embeddings,
            (_, Some(layer)) => blocks.contains(&layer),
            (_, None) => last,
        };
        let loaded = loaded_bytes(tensor, model, options);
        let local = if here { loaded.div_ceil(place.parts.max(1)) } else { 0 };
        put(&mut parts, place.kind, tensor, Bytes(local));
    }
    parts.sort_by_key(|p| p.kind);
    for part in &computed.parts {
        if !part.kind.in_checkpoint() {
            parts.push(part.clone());
        } else if part.kind == PartKind::Experts && part.per_rank.low != part.per_rank.high {
            widen(&mut parts, part);
        }
    }
    let main = || parts.iter().filter(|p| p.kind.in_checkpoint() && p.kind != PartKind::Draft);
    let parameters = main().fold(0, |a: u64, p| a.saturating_add(p.parameters));
    let whole = main().fold(Bytes::ZERO, |a, p| a.saturating_add(p.whole));
    let mut why = computed.why;
    why.rule = "sum over the checkpoint's tensors of bytes / ranks that divide the module; plus \
         what the engine makes"
        .to_owned();
    why.source = "headers of the checkpoint's files".to_owned();
    Ok(Bill { per_rank: weights::sum(&parts), parts, parameters, whole, why })
}

/// Repacking changes the stored size in the proportion that the configuration's bill shows.
fn widen(parts: &mut [Part], computed: &Part) {
    let Some(part) = parts.iter_mut().find(|p| p.kind == computed.kind) else { return };
    let base = u128::from(computed.per_rank.low.0.max(1));
    let scale = |to: Bytes| {
        let bytes = u128::from(part.per_rank.mid.0) * u128::from(to.0) / base;
        Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    };
    let (mid, high) = (scale(computed.per_rank.mid), scale(computed.per_rank.high));
    part.per_rank = Estimate::new(part.per_rank.mid, mid, high);
    part.tag = Tag::Calibrated;
}

fn put(parts: &mut Vec<Part>, kind: PartKind, tensor: &TensorInfo, local: Bytes) {
    let elements = tensor.shape.iter().fold(1_u64, |a, b| a.saturating_mul(*b));
    let at = parts.iter().position(|p| p.kind == kind);
    let at = at.unwrap_or_else(|| {
        parts.push(Part {
            kind,
            parameters: 0,
            whole: Bytes::ZERO,
            per_rank: Estimate::ZERO,
            storages: ["as stored"].into(),
            tag: Tag::Measured,
        });
        parts.len() - 1
    });
    let part = &mut parts[at];
    part.parameters = part.parameters.saturating_add(elements);
    part.whole = part.whole.saturating_add(Bytes(tensor.bytes));
    part.per_rank = Estimate::exact(part.per_rank.mid.saturating_add(local));
}

/// Matrices in float32 are narrowed to the engine's dtype; scales and vectors stay.
fn loaded_bytes(tensor: &TensorInfo, model: &Model, options: &WeightOptions) -> u64 {
    let matrix = tensor.shape.len() >= 2 && !tensor.name.contains("scale");
    if !(tensor.float32 && matrix) {
        return tensor.bytes;
    }
    let dtype = options.dtype.unwrap_or_else(|| model.engine_dtype());
    let bytes = u128::from(tensor.bytes) * u128::from(Storage::plain(dtype).bits) / 32;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn layer_index(name: &str) -> Option<usize> {
    let rest = name.split("layers.").nth(1)?;
    rest.split('.').next()?.parse().ok()
}

/// GGUF's names in the form of the others.
fn hugging_face_name(name: &str) -> String {
    let Some(rest) = name.strip_prefix("blk.") else {
        return match name {
            "token_embd.weight" => "model.embed_tokens.weight".to_owned(),
            "output.weight" => "lm_head.weight".to_owned(),
            _ => super::pattern::normal(name),
        };
    };
    let mut name = format!("model.layers.{rest}");
    for (from, to) in [
        ("ffn_gate_inp", "mlp.gate"),
        ("ffn_gate_exps", "mlp.experts.gate_proj"),
        ("ffn_up_exps", "mlp.experts.up_proj"),
        ("ffn_down_exps", "mlp.experts.down_proj"),
        ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
        ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
        ("attn_q_a.", "self_attn.q_a_proj."),
        ("attn_q_b.", "self_attn.q_b_proj."),
        ("attn_kv_a_mqa.", "self_attn.kv_a_proj_with_mqa."),
        ("attn_kv_b.", "self_attn.kv_b_proj."),
        ("attn_k_b.", "self_attn.kv_b_proj."),
        ("attn_v_b.", "self_attn.kv_b_proj."),
        ("attn_qkv.", "self_attn.qkv_proj."),
        ("attn_q.", "self_attn.q_proj."),
        ("attn_k.", "self_attn.k_proj."),
        ("attn_v.", "self_attn.v_proj."),
        ("attn_output.", "self_attn.o_proj."),
        ("ssm_", "linear_attn.ssm_"),
    ] {
        if name.contains(from) {
            name = name.replacen(from, to, 1);
            break;
        }
    }
    name
}

/// Part and division of a tensor, by the parts of its name. A tensor with one element is on every
/// rank; a name that no rule knows is on every rank too.
fn place(name: &str, tensor: &TensorInfo, model: &Model, options: &WeightOptions) -> Place {
    let parallel = &options.parallel;
    let has = |part: &str| name.contains(part);
    let any = |parts: &[&str]| parts.iter().any(|p| name.contains(p));
    let at = |kind, parts| Place { kind, parts };
    let scalar = tensor.shape.iter().all(|n| *n == 1);
    if any(&["vision", "visual", "mm_projector", "multi_modal_projector", "embed_vision"]) {
        return at(PartKind::Vision, 1);
    }
    if has("experts.") && !has("shared_expert") {
        let parts = if has("bias") && has("down") { 1 } else { parallel.expert_tp };
        return at(PartKind::Experts, parallel.expert_ep * if scalar { 1 } else { parts });
    }
    if scalar || any(&["norm", "layernorm"]) {
        return at(PartKind::Norms, 1);
    }
    if any(&["embed_tokens", "embeddings.weight", "wte.", "word_embeddings", "tok_embeddings"]) {
        return at(PartKind::Embedding, parallel.embedding);
    }
    if has("lm_head") {
        return at(PartKind::Head, parallel.head);
    }
    if any(&["mlp.gate.", "moe.gate.", "mixer.gate.", ".router", "e_score", "shared_expert_gate"]) {
        return at(PartKind::Router, 1);
    }
    if any(&["shared_expert", "share_expert", "shared_mlp"]) {
        return at(PartKind::Shared, if has("latent") { 1 } else { parallel.shared });
    }
    if any(&["indexer", "q_a_proj", "kv_a_proj", "fused_qkv_a"]) {
        return at(PartKind::Attention, 1);
    }
    if any(&["linear_attn", ".mamba.", "mixer.in_proj", "mixer.out_proj", "conv1d", "A_log"]) {
        return at(PartKind::Linear, parallel.attention);
    }
    if any(&[".k_proj", ".v_proj"]) {
        return at(PartKind::Attention, key_parts(name, model, parallel.attention));
    }
    if any(&["self_attn", ".attn.", ".q_proj", ".o_proj", "attention."]) {
        let whole = has("o_proj.bias");
        return at(PartKind::Attention, if whole { 1 } else { parallel.attention });
    }
    if any(&[
        "gate_proj",
        "up_proj",
        "down_proj",
        "gate_up_proj",
        ".w1",
        ".w2",
        ".w3",
        "fc1",
        "fc2",
    ]) {
        let whole = has("down_proj.bias");
        return at(PartKind::Dense, if whole { 1 } else { parallel.dense });
    }
    at(PartKind::Norms, 1)
}

/// Ranks among which keys are divided: as many as there are heads, at most.
fn key_parts(name: &str, model: &Model, tp: u64) -> u64 {
    let index = layer_index(name).unwrap_or(0);
    match model.geometry.layers.get(index).map(|l| l.attention) {
        Some(Attention::Gqa { kv_heads, .. }) => (kv_heads / heads_on_rank(kv_heads, tp)).max(1),
        _ => tp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        config,
        parallel::{ExpertSplit, Loader, Parallel},
        storage::Storage,
    };

    const CONFIG: &str = r#"{"architectures": ["Qwen3MoeForCausalLM"], "torch_dtype": "bfloat16",
        "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 512,
        "moe_intermediate_size": 128, "num_experts": 8, "num_experts_per_tok": 2,
        "vocab_size": 1024, "max_position_embeddings": 4096, "tie_word_embeddings": false}"#;

    fn tensor(name: String, shape: &[u64]) -> TensorInfo {
        let bytes = 2 * shape.iter().product::<u64>();
        TensorInfo { name, shape: shape.to_vec(), bytes, float32: false }
    }

    fn checkpoint() -> Vec<TensorInfo> {
        let mut all = vec![
            tensor("model.embed_tokens.weight".into(), &[1024, 256]),
            tensor("lm_head.weight".into(), &[1024, 256]),
            tensor("model.norm.weight".into(), &[256]),
        ];
        for layer in 0..4 {
            let at = |part: &str| format!("model.layers.{layer}.{part}.weight");
            all.push(tensor(at("self_attn.q_proj"), &[256, 256]));
            all.push(tensor(at("self_attn.k_proj"), &[64, 256]));
            all.push(tensor(at("self_attn.v_proj"), &[64, 256]));
            all.push(tensor(at("self_attn.o_proj"), &[256, 256]));
            all.push(tensor(at("self_attn.q_norm"), &[32]));
            all.push(tensor(at("self_attn.k_norm"), &[32]));
            all.push(tensor(at("input_layernorm"), &[256]));
            all.push(tensor(at("post_attention_layernorm"), &[256]));
            all.push(tensor(at("mlp.gate"), &[8, 256]));
            for expert in 0..8 {
                all.push(tensor(at(&format!("mlp.experts.{expert}.gate_proj")), &[128, 256]));
                all.push(tensor(at(&format!("mlp.experts.{expert}.up_proj")), &[128, 256]));
                all.push(tensor(at(&format!("mlp.experts.{expert}.down_proj")), &[256, 128]));
            }
        }
        all
    }

    /// Two ways to the same bytes: names of a checkpoint, and shapes from the configuration.
    #[test]
    fn tensors_and_configuration_agree_on_every_division() {
        let model = config::parse("m", CONFIG, None).unwrap();
        for (tp, pp, ep) in [(1, 1, 1), (4, 1, 1), (8, 1, 4), (4, 2, 4), (2, 4, 2)] {
            let parallel = Parallel::sglang(tp, pp, ep, 1).unwrap();
            for stage in 0..pp {
                let options =
                    WeightOptions { parallel, stage, ..WeightOptions::new(Loader::Sglang) };
                let by_name = bill(&checkpoint(), &model, &options).unwrap();
                let by_shape = weights::bill(&model, &options).unwrap();
                assert_eq!(by_name.per_rank, by_shape.per_rank, "tp {tp} pp {pp} ep {ep} {stage}");
                assert_eq!(by_name.parameters, by_shape.parameters);
                assert_eq!(by_name.whole, by_shape.whole);
            }
        }
    }

    #[test]
    fn whole_experts_over_data_parallel_ranks() {
        let model = config::parse("m", CONFIG, None).unwrap();
        let parallel = Parallel::vllm(2, 1, 4, ExpertSplit::Whole).unwrap();
        let options = WeightOptions { parallel, ..WeightOptions::new(Loader::Vllm) };
        let bill = bill(&checkpoint(), &model, &options).unwrap();
        let experts = bill.part(PartKind::Experts).unwrap();
        assert_eq!(experts.per_rank.mid.0 * 8, experts.whole.0);
        let attention = bill.part(PartKind::Attention).unwrap();
        assert_eq!(attention.per_rank.mid.0 * 2, attention.whole.0);
    }

    #[test]
    fn an_exact_total_closes_the_interval() {
        let model = config::parse("m", CONFIG, None).unwrap();
        let options =
            WeightOptions { online: Some(Storage::FP8_TENSOR), ..WeightOptions::new(Loader::Vllm) };
        let plain = weights::bill(&model, &WeightOptions::new(Loader::Vllm)).unwrap();
        assert!(weights::bill(&model, &options).unwrap().whole < plain.whole);
        let exact = Bytes(plain.whole.0 + 1000);
        let scaled = plain.scaled_to(exact, "index");
        let checkpoint = scaled.parts.iter().filter(|p| p.kind.in_checkpoint());
        let sum: u64 = checkpoint.map(|p| p.per_rank.mid.0).sum();
        assert!(exact.0 - sum < 16, "{sum} of {exact:?}");
    }
}
