//! Tests of the weights: divisions, stages, copies that the engines make.

use serde_json::{Value, json};

use super::*;
use crate::model::config;

fn model(changes: Value) -> Model {
    let mut config = json!({"architectures": ["Qwen3MoeForCausalLM"], "torch_dtype": "bfloat16",
        "hidden_size": 2048, "num_hidden_layers": 10, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "moe_intermediate_size": 768,
        "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151_936,
        "max_position_embeddings": 40_960});
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config::from_value("m", &config).unwrap()
}

fn sglang(tp: u64, pp: u64, ep: u64, dp: u64) -> WeightOptions {
    let parallel = Parallel::sglang(tp, pp, ep, dp).unwrap();
    WeightOptions { parallel, ..WeightOptions::new(Loader::Sglang) }
}

fn on_rank(bill: &Bill, kind: PartKind) -> u64 {
    bill.part(kind).map_or(0, |p| p.per_rank.mid.0)
}

/// Checkpoint bytes of all stages together are those of the whole model.
#[test]
fn stages_add_up_to_the_model() {
    for loader in [Loader::Sglang, Loader::Vllm] {
        for pp in 1..=10 {
            let mut sum = 0;
            for stage in 0..pp {
                let options = WeightOptions { stage, loader, ..sglang(1, pp, 1, 1) };
                let bill = bill(&model(json!({})), &options).unwrap();
                let parts = bill.parts.iter().filter(|p| p.kind.in_checkpoint());
                sum += parts.map(|p| p.per_rank.mid.0).sum::<u64>();
            }
            let whole = bill(&model(json!({})), &sglang(1, 1, 1, 1)).unwrap().whole;
            assert_eq!(sum, whole.0, "pp {pp}");
        }
    }
}

#[test]
fn dp_attention_copies_attention_and_divides_experts() {
    let one = bill(&model(json!({})), &sglang(1, 1, 1, 1)).unwrap();
    let dp = bill(&model(json!({})), &sglang(8, 1, 8, 8)).unwrap();
    assert_eq!(on_rank(&dp, PartKind::Attention), on_rank(&one, PartKind::Attention));
    assert_eq!(on_rank(&dp, PartKind::Experts) * 8, on_rank(&one, PartKind::Experts));
    assert_eq!(on_rank(&dp, PartKind::Head) * 8, on_rank(&one, PartKind::Head));
    let half = bill(&model(json!({})), &sglang(8, 1, 1, 4)).unwrap();
    assert_eq!(on_rank(&half, PartKind::Attention) * 2, on_rank(&one, PartKind::Attention));
    assert_eq!(on_rank(&half, PartKind::Experts) * 8, on_rank(&one, PartKind::Experts));
}

#[test]
fn keys_and_values_are_copied_beyond_their_heads() {
    let at =
        |tp| on_rank(&bill(&model(json!({})), &sglang(tp, 1, 1, 1)).unwrap(), PartKind::Attention);
    // Queries and output 2 x 4096 x 2048; keys and values one head of 128 each; two bytes.
    assert_eq!(at(8), 10 * (2 * 4096 / 8 + 2 * 128) * 2048 * 2);
    assert_eq!(at(16), 10 * (2 * 4096 / 16 + 2 * 128) * 2048 * 2);
}

#[test]
fn a_tied_head_is_copied_to_another_stage_only() {
    let tied = model(json!({"tie_word_embeddings": true}));
    assert_eq!(on_rank(&bill(&tied, &sglang(1, 1, 1, 1)).unwrap(), PartKind::Head), 0);
    let last = WeightOptions { stage: 1, ..sglang(1, 2, 1, 1) };
    let last = bill(&tied, &last).unwrap();
    assert_eq!(on_rank(&last, PartKind::Head), 151_936 * 2048 * 2);
    assert_eq!(last.part(PartKind::Head).map(|p| p.parameters), Some(0));
    assert_eq!(on_rank(&last, PartKind::Embedding), 0);
}

#[test]
fn the_vocabulary_is_padded_for_equal_parts() {
    let odd = model(json!({"vocab_size": 49_159, "num_attention_heads": 36,
        "num_key_value_heads": 6}));
    let rows = |tp| {
        let bill = bill(&odd, &sglang(tp, 1, 1, 1)).unwrap();
        on_rank(&bill, PartKind::Embedding) / 4096
    };
    assert_eq!(rows(1), 49_216);
    assert_eq!(rows(2), 49_216 / 2);
    // 49,216 is not divisible by 3: the next multiple of 192 is 49,344.
    assert_eq!(rows(3), 49_344 / 3);
}

#[test]
fn divisions_that_the_engine_refuses_are_errors() {
    let refused = bill(&model(json!({})), &sglang(5, 1, 1, 1)).unwrap_err();
    assert_eq!(refused.to_string(), "query heads (32) is not divisible by attention tp (5)");
    let experts = model(json!({"num_experts": 6}));
    assert!(bill(&experts, &sglang(4, 1, 4, 1)).is_err());
    assert!(bill(&model(json!({})), &sglang(1, 11, 1, 1)).is_err());
    let stage = WeightOptions { stage: 2, ..sglang(1, 2, 1, 1) };
    assert!(bill(&model(json!({})), &stage).is_err());
}

#[test]
fn the_heaviest_stage_has_the_ends() {
    let (stage, bill) = heaviest(&model(json!({})), &sglang(1, 4, 1, 1)).unwrap();
    // 10 layers: 2, 2, 3, 3; the last stage has three and the head.
    assert_eq!(stage, 3);
    assert!(on_rank(&bill, PartKind::Head) > 0);
}

fn latent() -> Model {
    model(json!({"architectures": ["DeepseekV3ForCausalLM"], "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "num_nextn_predict_layers": 1}))
}

#[test]
fn latent_attention_keeps_its_down_projections_and_copies_its_up_projection() {
    let one = bill(&latent(), &sglang(1, 1, 1, 1)).unwrap();
    let eight = bill(&latent(), &sglang(8, 1, 1, 1)).unwrap();
    let up = 32 * 256 * 512 * 2 * 10;
    assert_eq!(on_rank(&one, PartKind::Absorbed), up);
    assert_eq!(on_rank(&eight, PartKind::Absorbed), up / 8);
    let down = 10 * (1536 + 576) * 2048 * 2;
    let rest = on_rank(&one, PartKind::Attention) - down;
    assert_eq!(on_rank(&eight, PartKind::Attention), down + rest / 8);
}

#[test]
fn draft_layers_count_when_they_are_loaded() {
    let without = bill(&latent(), &sglang(1, 1, 1, 1)).unwrap();
    let options = WeightOptions { draft: DraftWeights::Loaded, ..sglang(1, 1, 1, 1) };
    let with = bill(&latent(), &options).unwrap();
    assert_eq!(on_rank(&without, PartKind::Draft), 0);
    // One layer of the ten, with its own up-projection copy, and 2 x 2048 x 2048 to join.
    let layer: u64 = [PartKind::Attention, PartKind::Experts, PartKind::Router, PartKind::Absorbed]
        .iter()
        .map(|kind| on_rank(&without, *kind) / 10)
        .sum();
    let draft = on_rank(&with, PartKind::Draft);
    assert!(draft > layer + 2 * 2048 * 2048 * 2 && draft < layer + 2 * 2048 * 2048 * 2 + 100_000);
    assert_eq!(with.parameters, without.parameters);
}

#[test]
fn mxfp4_experts_grow_with_the_kernels_layout() {
    let oss = model(json!({"architectures": ["GptOssForCausalLM"], "hidden_size": 2880,
        "intermediate_size": 2880, "moe_intermediate_size": null, "head_dim": 64,
        "num_attention_heads": 64, "num_key_value_heads": 8,
        "quantization_config": {"quant_method": "mxfp4"}}));
    let experts = |mxfp4| {
        let options = WeightOptions { mxfp4, ..WeightOptions::new(Loader::Vllm) };
        let bill = bill(&oss, &options).unwrap();
        bill.part(PartKind::Experts).unwrap().per_rank
    };
    let matrix = |rows: u64, cols: u64| rows * cols / 2 + rows * cols / 32;
    let bias = 10 * 128 * (2 * 2880 + 2880) * 2;
    let triton = experts(Mxfp4Layout::Triton);
    assert_eq!(triton, Estimate::exact(Bytes(10 * 128 * 3 * matrix(2880, 2880) + bias)));
    let marlin = experts(Mxfp4Layout::Marlin);
    assert_eq!(marlin.mid.0, 10 * 128 * 3 * matrix(2944, 3072) + bias);
    let unknown = experts(Mxfp4Layout::Unknown);
    assert_eq!((unknown.low, unknown.mid), (triton.mid, marlin.mid));
    assert_eq!(unknown.high, experts(Mxfp4Layout::Flashinfer).mid);
}

#[test]
fn float32_checkpoints_load_in_sixteen_bits_unless_told_otherwise() {
    let wide = model(json!({"torch_dtype": "float32"}));
    let half = bill(&wide, &sglang(1, 1, 1, 1)).unwrap();
    let options = WeightOptions { dtype: Some(Dtype::F32), ..sglang(1, 1, 1, 1) };
    assert_eq!(bill(&wide, &options).unwrap().whole.0, 2 * half.whole.0);
}
