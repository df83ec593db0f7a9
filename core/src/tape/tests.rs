//! Tapes against the closed forms, the founding case, and what every tape has to obey.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::estimate::activation::{MlaPrefix, Phase as EstimatePhase, RunInputs, Step, peak};
use crate::estimate::logits::{self as closed, LogprobChunks, Sampling};
use crate::estimate::moe::{MoeKernel, SharedExperts};
use crate::estimate::shape::{AttentionShape, MlpNames, MoeShape, QkNorm, ShapeInputs};
use crate::estimate::vllm_profile::eager_layer_peak;
use crate::model::geometry::ModelGeometry;
use crate::policy::sglang::version::Version;
use crate::units::Bytes;

fn shape(hidden: u64, heads: (u64, u64, u64), intermediate: u64, vocab: u64) -> ShapeInputs {
    let (q_heads, kv_heads, head_dim) = heads;
    ShapeInputs {
        hidden,
        attention: AttentionShape::Gqa { q_heads, kv_heads, head_dim },
        dense_intermediate: intermediate,
        moe: None,
        vocab,
        layers: 3,
        mlp_names: MlpNames::Kept,
        qk_norm: QkNorm::Absent,
    }
}

fn dense(family: Family, shape: ShapeInputs) -> TapeModel {
    TapeModel { shape, layers: vec![LayerMlp::Dense; 3], family }
}

fn llama_8b() -> TapeModel {
    let mut shape = shape(4096, (32, 8, 128), 14_336, 128_256);
    shape.mlp_names = MlpNames::Reused;
    dense(Family::Llama, shape)
}

fn qwen3_30b() -> TapeModel {
    let mut shape = shape(2048, (32, 4, 128), 0, 151_936);
    shape.qk_norm = QkNorm::Copied;
    shape.moe =
        Some(MoeShape { experts: 128, top_k: 8, intermediate: 768, shared_intermediate: 0 });
    TapeModel { shape, layers: vec![LayerMlp::Experts; 3], family: Family::Qwen3Moe }
}

fn mixtral() -> TapeModel {
    let mut shape = shape(4096, (32, 8, 128), 0, 32_000);
    shape.moe =
        Some(MoeShape { experts: 8, top_k: 2, intermediate: 14_336, shared_intermediate: 0 });
    TapeModel { shape, layers: vec![LayerMlp::Experts; 3], family: Family::Mixtral }
}

fn latent(heads: u64, experts: u64, vocab: u64, layers: usize) -> TapeModel {
    let mut shape = shape(7168, (1, 1, 1), 18_432, vocab);
    shape.attention = AttentionShape::Mla {
        q_heads: heads,
        q_lora_rank: 1536,
        kv_lora_rank: 512,
        qk_nope_head_dim: 128,
        qk_rope_head_dim: 64,
        v_head_dim: 128,
    };
    shape.moe = Some(MoeShape { experts, top_k: 8, intermediate: 2048, shared_intermediate: 2048 });
    let mut all = vec![LayerMlp::Experts; layers];
    all[0] = LayerMlp::Dense;
    TapeModel { shape, layers: all, family: Family::DeepSeek }
}

fn kimi(layers: usize) -> TapeModel {
    latent(64, 384, 163_840, layers)
}

const MARLIN: Experts = Experts::Marlin { multiprocessors: 188, reduce: MarlinReduce::Atomic };

fn setup(code: Code, tp: u64, experts: Experts) -> Setup {
    let shared_experts = match experts {
        Experts::Marlin { .. } => SharedExperts::Separate,
        _ => SharedExperts::Fused,
    };
    Setup { experts, shared_experts, workspace: Once::Made, ..Setup::plain(code, tp) }
}

fn chunk(tokens: u64) -> PrefillChunk {
    PrefillChunk { tokens, requests: 1, prefix_tokens: 0 }
}

fn release(code: Code) -> Version {
    match code {
        Code::Sglang0508 => Version::new(0, 5, 8),
        _ => Version::new(0, 5, 23),
    }
}

/// Panics when two amounts differ by more than a hundredth and 128 KiB (the closed forms leave the
/// sorted token lists out).
fn near(what: &str, tape: u64, formula: u64) {
    let gap = tape.abs_diff(formula);
    assert!(gap <= tape / 100 || gap <= 128 << 10, "{what}: tape {tape}, formula {formula}");
}

fn run_inputs(model: &TapeModel, setup: &Setup) -> RunInputs {
    let has_shared = model.shape.moe.is_some_and(|moe| moe.shared_intermediate > 0);
    RunInputs {
        version: release(setup.code),
        tp: setup.tp,
        moe_kernel: match setup.experts {
            Experts::Marlin { .. } => MoeKernel::Marlin,
            Experts::Triton => MoeKernel::Triton,
            Experts::TritonFp8Block => MoeKernel::TritonFp8Block,
        },
        shared_experts: if has_shared { setup.shared_experts } else { SharedExperts::Absent },
        tma_block_rows: None,
        mla_prefix: setup.mla_prefix,
    }
}

#[test]
fn closed_forms_of_sglang_agree() {
    let models = [
        ("llama", llama_8b(), Experts::Triton),
        ("qwen3-moe", qwen3_30b(), Experts::Triton),
        ("mixtral", mixtral(), Experts::Triton),
        ("deepseek-v3", latent(128, 256, 129_280, 3), Experts::Triton),
        ("kimi", kimi(3), MARLIN),
    ];
    let mut compared = 0;
    for (name, model, experts) in &models {
        for code in [Code::Sglang0508, Code::Sglang0523] {
            // Without allocating all-reduces, which the closed forms leave out.
            for (tp, tokens, prefix_tokens) in [
                (1, 4096, 0),
                (2, 8192, 0),
                (4, 8192, 0),
                (8, 8192, 0),
                (8, 8192, 65_536),
                (8, 70_000, 0),
            ] {
                let setup = setup(code, tp, *experts);
                let step = PrefillChunk { tokens, requests: 1, prefix_tokens };
                let tape = prefill_chunk(model, &setup, &step).unwrap().peak().bytes.0;
                let phase = EstimatePhase::Prefill;
                let step = Step { phase, tokens, prefix_tokens, logits_rows: 1 };
                let formula = peak(&model.shape, &run_inputs(model, &setup), &step).unwrap();
                let what = format!("{name} {code:?} tp {tp} T {tokens} prefix {prefix_tokens}");
                near(&what, tape, formula.figure.value.mid.0);
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 60);
}

/// Layers that are copied are those that the code would write.
#[test]
fn copied_layers_are_as_if_written() {
    let long = |model: TapeModel, pattern: &[(LayerMlp, usize)]| {
        let layers = pattern.iter().flat_map(|(mlp, times)| vec![*mlp; *times]).collect();
        TapeModel { layers, ..model }
    };
    let (dense, experts) = (LayerMlp::Dense, LayerMlp::Experts);
    let models = [
        (long(llama_8b(), &[(dense, 9)]), Experts::Triton),
        (long(qwen3_30b(), &[(experts, 9)]), Experts::Triton),
        (long(mixtral(), &[(experts, 4), (dense, 4), (experts, 5)]), Experts::Triton),
        (long(kimi(3), &[(dense, 3), (experts, 8)]), MARLIN),
    ];
    let mut copied = 0;
    for (model, experts) in &models {
        for code in [Code::Sglang0508, Code::Sglang0523, Code::Vllm019] {
            for (tp, phase) in [(1, Phase::Prefill), (8, Phase::Prefill), (8, Phase::Decode)] {
                let setup = setup(code, tp, *experts);
                let Ok(cx) = Cx::new(model, &setup, phase, chunk(64)) else { continue };
                let [copies, asks] = [false, true].map(|asks| {
                    let mut rec = Recorder::default();
                    rec.asks = asks;
                    let hidden = layers(&cx, &mut rec);
                    logits::last_rows(&cx, &mut rec, hidden);
                    rec.finish()
                });
                assert_eq!(copies.events(), asks.events(), "{model:?} {code:?} {tp} {phase:?}");
                copied += usize::from(copies.cycle() != asks.cycle());
            }
        }
    }
    assert!(copied > 20, "{copied} tapes have copies");
}

#[test]
fn closed_forms_of_decode_logits_agree() {
    for (model, experts) in [(llama_8b(), Experts::Triton), (kimi(3), MARLIN)] {
        for rows in [32, 256, 512] {
            let setup = setup(Code::Sglang0508, 8, experts);
            let tape = decode_batch(&model, &setup, rows).unwrap().peak().bytes.0;
            let phase = EstimatePhase::Decode;
            let step = Step { phase, tokens: rows, prefix_tokens: 0, logits_rows: rows };
            let formula = peak(&model.shape, &run_inputs(&model, &setup), &step).unwrap();
            near(&format!("decode {rows}"), tape, formula.figure.value.mid.0);
        }
    }
}

#[test]
fn closed_forms_of_vllm_agree() {
    for (name, model) in [("llama", llama_8b()), ("qwen3-moe", qwen3_30b()), ("mixtral", mixtral())]
    {
        for tp in [1, 2, 4] {
            let setup = setup(Code::Vllm019, tp, Experts::Triton);
            let tape = prefill_chunk(&model, &setup, &chunk(8192)).unwrap().peak().bytes.0;
            let formula = eager_layer_peak(&model.shape, tp, 8192).value.mid.0;
            near(&format!("{name} tp {tp}"), tape, formula);
        }
    }
}

#[test]
fn closed_forms_of_logprobs_and_sampler_agree() {
    let model = llama_8b();
    for code in [Code::Sglang0508, Code::Sglang0523] {
        for (chunks, tokens) in [
            (LogprobChunks::Default, 4096),
            (LogprobChunks::Default, 8192),
            (LogprobChunks::On, 8192),
        ] {
            let want = InputLogprobs {
                rows: tokens,
                sample_rows: vec![tokens - 1],
                top_logprobs: 0,
                chunks,
            };
            let setup = setup(code, 1, Experts::Triton);
            let tape = input_logprobs(&model, &setup, &chunk(tokens), &want).unwrap();
            let formula =
                closed::input_logprobs(&model.shape, release(code), chunks, tokens, tokens);
            near(&format!("{code:?} {tokens}"), tape.peak().bytes.0, formula.value.mid.0);
        }
        for (choice, sampling) in [
            (Choice::Greedy, Sampling::Greedy),
            (Choice::Temperature, Sampling::Temperature),
            (Choice::TopKTopP, Sampling::TopKTopP),
            (Choice::MinP, Sampling::MinP),
        ] {
            let (vocab, logprobs) = (model.shape.vocab, OutputLogprobs::Absent);
            let batch = SamplerBatch { rows: 256, vocab, choice, logprobs };
            let tape = sampler(code, &batch).unwrap().peak().bytes.0;
            let formula = closed::sampler(&model.shape, release(code), sampling, 256);
            near(&format!("{choice:?}"), tape, formula.value.low.0);
        }
    }
}

/// Kimi-K2.5 on eight RTX PRO 6000: the peak of a full chunk, the request that does not fit, and how
/// the peak grows with the chunk.
#[test]
fn the_founding_chunk() {
    let setup = setup(Code::Sglang0508, 8, MARLIN);
    let tape = |tokens| prefill_chunk(&kimi(61), &setup, &chunk(tokens)).unwrap();
    let full = tape(8192);
    let peak = full.peak();
    assert_eq!((peak.bytes.as_gib_f64() * 1000.0).round(), 1492.0);
    assert_eq!(peak.live[0].name.to_string(), "layer 1 mlp.experts.intermediate_cache13");
    let largest = full.largest().unwrap();
    assert_eq!(largest.bytes, Bytes::mib(896));
    // What lives when it is asked for leaves less than that of 0.82 GiB.
    let at = full
        .events()
        .iter()
        .position(|event| matches!(event, Event::Alloc { bytes, .. } if *bytes == largest.bytes));
    let before: u64 = full.live_after(at.unwrap() - 1).iter().map(|live| live.bytes.0).sum();
    assert_eq!((Bytes(before).as_gib_f64() * 100.0).round(), 51.0);
    let per_token = (peak.bytes.0 - tape(4096).peak().bytes.0) as f64 / 4096.0 / (1 << 20) as f64;
    assert!((per_token - 0.1865).abs() < 0.0002, "{per_token}");
    assert_eq!((tape(4096).peak().bytes.0 as f64 / f64::from(1 << 20)).round(), 764.0);
    // All layers reuse what three need.
    assert_eq!(prefill_chunk(&kimi(3), &setup, &chunk(8192)).unwrap().peak().bytes, peak.bytes);
}

#[test]
fn a_first_step_makes_what_later_ones_find() {
    let made = setup(Code::Vllm019, 1, Experts::Triton);
    let later = Setup { workspace: Once::Exists, ..made };
    let workspaces = |setup: &Setup| {
        let tape = prefill_chunk(&qwen3_30b(), setup, &chunk(8192)).unwrap();
        tape.allocations().filter(|live| live.name.buffer.name == "moe.workspace").count()
    };
    assert_eq!((workspaces(&made), workspaces(&later)), (1, 0));
}

#[test]
fn ranges_and_missing_recordings_are_errors() {
    let model = llama_8b();
    let setup = setup(Code::Sglang0508, 1, Experts::Triton);
    let error = prefill_chunk(&model, &setup, &chunk(0)).unwrap_err();
    assert_eq!(error.to_string(), "tokens is 0, allowed are 1 to 16777216");
    let vllm = Setup { code: Code::Vllm019, ..setup };
    let error = prefill_chunk(&kimi(3), &vllm, &chunk(8)).unwrap_err();
    assert_eq!(error.to_string(), "no tape of Vllm019 for latent attention");
    assert!(experts_alone(&model, &setup, 8, ExpertsOutput::New).is_err());
}

#[test]
fn between_the_recorded_releases_both_codes_count() {
    assert_eq!(Code::sglang(Version::new(0, 5, 8)), [Code::Sglang0508]);
    assert_eq!(Code::sglang(Version::new(0, 5, 15)).len(), 2);
    assert_eq!(Code::sglang(Version::new(0, 5, 23)), [Code::Sglang0523]);
}

#[test]
fn a_geometry_gives_family_and_layers() {
    use crate::model::geometry::{Attention, Dtype, Layer, LinearKind, LinearState, Mlp, Span};
    use crate::units::Tokens;
    let attention = Attention::Gqa {
        q_heads: 32,
        kv_heads: 8,
        head_dim: 128,
        v_head_dim: 128,
        span: Span::Full,
    };
    let mlp = Mlp::Dense { intermediate: 14_336, matrices: 3 };
    let mut geometry = ModelGeometry {
        name: "llama".to_owned(),
        architecture: "LlamaForCausalLM".to_owned(),
        model_type: "llama".to_owned(),
        state_dtype: None,
        dtype: Dtype::Bf16,
        hidden_size: 4096,
        vocab_size: 128_256,
        context_len: Tokens(131_072),
        tie_word_embeddings: false,
        layers: vec![Layer { attention, mlp }; 3],
        nextn_layers: 0,
        quantization: None,
        kv_cache_fp8: false,
        vision: None,
        multimodal: false,
    };
    let model = TapeModel::from_geometry(&geometry).unwrap();
    assert_eq!(model, llama_8b());
    let tape = prefill_chunk(&model, &Setup::plain(Code::Sglang0508, 2), &chunk(8192)).unwrap();
    assert_eq!(tape.peak().bytes, Bytes::mib(592));
    geometry.layers[1].attention = Attention::Linear(LinearState {
        kind: LinearKind::Gdn,
        heads: 32,
        head_dim: 128,
        state_dim: 128,
        conv_channels: 8192,
        conv_kernel: 4,
        groups: 16,
    });
    let error = TapeModel::from_geometry(&geometry).unwrap_err();
    assert_eq!(error.to_string(), "layer 1 is linear attention: no tape for such layers");
}

/// Every free names a live buffer.
fn assert_well_formed(tape: &Tape) {
    let mut live = BTreeSet::new();
    for event in tape.events() {
        match event {
            Event::Alloc { id, .. } => assert!(live.insert(*id)),
            Event::Free { id } => assert!(live.remove(id), "{id:?} is not live"),
        }
    }
}

fn any_number() -> impl Strategy<Value = u64> {
    prop_oneof![1..300_u64, Just(131_072), Just(1 << 20), Just(u64::MAX)]
}

proptest! {
    #[test]
    fn tapes_are_well_formed_whatever_the_numbers(
        width in any_number(),
        experts in any_number(),
        tokens in 1..200_000_u64,
        prefix_tokens in prop_oneof![Just(0), Just(9000), Just(300_000)],
        tp in 1..9_u64,
        which in 0..5_usize,
        kernel in 0..3_usize,
        code in 0..3_usize,
    ) {
        let models = [llama_8b(), qwen3_30b(), mixtral(), kimi(3), latent(128, 256, 129_280, 2)];
        let mut model = models[which].clone();
        model.shape.dense_intermediate = width;
        if let Some(moe) = &mut model.shape.moe {
            moe.experts = experts;
            moe.intermediate = width;
        }
        let scratch = Experts::Marlin { multiprocessors: 132, reduce: MarlinReduce::Scratch };
        let code = [Code::Sglang0508, Code::Sglang0523, Code::Vllm019][code];
        let kernel = [Experts::Triton, Experts::TritonFp8Block, scratch][kernel];
        let mut setup = setup(code, tp, kernel);
        setup.gate_scalar = Once::Made;
        let step = PrefillChunk { tokens, requests: 3, prefix_tokens };
        for mla_prefix in [MlaPrefix::OneShot, MlaPrefix::Chunked, MlaPrefix::Absorbed] {
            setup.mla_prefix = mla_prefix;
            if let Ok(tape) = prefill_chunk(&model, &setup, &step) {
                assert_well_formed(&tape);
            }
        }
        if let Ok(tape) = decode_batch(&model, &setup, tokens) {
            assert_well_formed(&tape);
        }
        let want = InputLogprobs {
            rows: tokens.min(10_000),
            sample_rows: vec![0, tokens - 1],
            top_logprobs: 3,
            chunks: LogprobChunks::On,
        };
        if let Ok(tape) = input_logprobs(&model, &setup, &step, &want) {
            assert_well_formed(&tape);
        }
    }
}
