//! The numbers for the estimates, read from a geometry: the widest layer of each kind.

use plimsoll_core::estimate::shape::{AttentionShape, MlpNames, MoeShape, QkNorm, ShapeInputs};
use plimsoll_core::model::geometry::{Attention, Dtype, Layer, Mlp, ModelGeometry, Span};
use plimsoll_core::units::Tokens;

fn gqa(q_heads: u64, span: Span) -> Attention {
    Attention::Gqa { q_heads, kv_heads: 4, head_dim: 128, v_head_dim: 128, span }
}

fn model(model_type: &str, layers: Vec<Layer>) -> ModelGeometry {
    ModelGeometry {
        name: "test".to_owned(),
        architecture: "Test".to_owned(),
        model_type: model_type.to_owned(),
        dtype: Dtype::Bf16,
        hidden_size: 2048,
        vocab_size: 151_936,
        context_len: Tokens(40_960),
        tie_word_embeddings: false,
        layers,
        nextn_layers: 0,
        quantization: None,
        kv_cache_fp8: false,
        state_dtype: None,
        vision: None,
        multimodal: false,
    }
}

#[test]
fn the_widest_layers_count() {
    let moe =
        Mlp::Moe { experts: 128, top_k: 8, intermediate: 768, shared_intermediate: 0, matrices: 3 };
    let layers = vec![
        Layer {
            attention: gqa(16, Span::Sliding { window: 1024 }),
            mlp: Mlp::Dense { intermediate: 6144, matrices: 3 },
        },
        Layer { attention: gqa(32, Span::Full), mlp: moe },
        Layer { attention: Attention::None, mlp: Mlp::None },
    ];
    let shape = ShapeInputs::from_geometry(&model("qwen3_moe", layers));
    assert_eq!(shape.attention, AttentionShape::Gqa { q_heads: 32, kv_heads: 4, head_dim: 128 });
    assert_eq!(shape.dense_intermediate, 6144);
    let expected = MoeShape { experts: 128, top_k: 8, intermediate: 768, shared_intermediate: 0 };
    assert_eq!(shape.moe, Some(expected));
    assert_eq!((shape.layers, shape.qk_norm), (3, QkNorm::Copied));
    assert_eq!(shape.mlp_names, MlpNames::Kept);
    let llama = ShapeInputs::from_geometry(&model("llama", Vec::new()));
    assert_eq!((llama.mlp_names, llama.qk_norm), (MlpNames::Reused, QkNorm::Absent));
}
