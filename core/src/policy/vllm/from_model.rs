//! KV cache specs of a model's layers on one rank, from its geometry and the launch flags.

use super::{
    args::EngineArgs,
    rules::Rules,
    settings::{AttentionKind, ModelFacts, Settings, StateKind},
    spec::{self, Heads, Kind, LayerSpec},
};
use crate::model::geometry::{Attention, Dtype, LinearKind, LinearState, ModelGeometry, Span};

/// Element of the KV cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvDtype {
    /// Plain elements of this many bytes (scales of fp8 are per tensor and stored elsewhere).
    Plain(u64),
    /// `fp8_ds_mla`: packed latent, 656 B a token.
    Fp8DsMla,
    /// `nvfp4_ds_mla`: packed latent, 352 B a token.
    Nvfp4DsMla,
}

/// Why a geometry and flags give no specs.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpecError {
    /// A KV dtype without a known page.
    #[error(
        "--kv-cache-dtype {value}: not known here; write auto, bfloat16, float16, float32, fp8, \
         fp8_e4m3, fp8_e5m2, fp8_inc, fp8_ds_mla or nvfp4_ds_mla{}", did_you_mean(.near.as_ref())
    )]
    UnknownKvDtype {
        /// As given.
        value: String,
        /// A name that looks like it.
        near: Option<&'static str>,
    },
    /// A packed latent dtype on a model without latents.
    #[error("--kv-cache-dtype {value}: only for latent attention, which layer {layer} has not")]
    PackedWithoutLatent {
        /// As given.
        value: String,
        /// Index of the layer.
        layer: usize,
    },
    /// A state dtype that is not one.
    #[error("--mamba-ssm-cache-dtype {0}: write auto, float32, float16 or bfloat16")]
    UnknownStateDtype(String),
    /// Recurrent heads that cannot be sharded.
    #[error("layer {layer}: {heads} state heads do not divide over --tensor-parallel-size {tp}")]
    StateHeads {
        /// Index of the layer.
        layer: usize,
        /// State heads of the whole model.
        heads: u64,
        /// Ranks.
        tp: u64,
    },
    /// A pipeline stage that does not exist.
    #[error("pipeline stage {stage}: --pipeline-parallel-size is {stages}, over {layers} layers")]
    Stage {
        /// Stage asked for.
        stage: usize,
        /// Stages.
        stages: usize,
        /// Layers.
        layers: usize,
    },
}

fn did_you_mean(name: Option<&&'static str>) -> String {
    name.map_or_else(String::new, |n| format!(" (did you mean {n}?)"))
}

/// What [`super::settings::resolve`] asks of the model.
#[must_use]
pub fn facts(geometry: &ModelGeometry) -> ModelFacts {
    let mut attention = AttentionKind::Heads;
    let mut state = StateKind::Absent;
    for layer in &geometry.layers {
        match layer.attention {
            Attention::Mla { indexer: Some(_), .. } => attention = AttentionKind::SparseLatent,
            Attention::Mla { .. } if attention == AttentionKind::Heads => {
                attention = AttentionKind::Latent;
            }
            Attention::Linear(_) => state = StateKind::Recurrent,
            _ => {}
        }
    }
    ModelFacts { context_len: geometry.context_len, attention, state }
}

/// The specs of one pipeline stage on one tensor-parallel rank, in layer order; layers that keep
/// nothing have none. With draft tokens and no separate draft model the layers of the built-in draft
/// head join the last stage, each like the model's last attention layer
/// (source: vLLM `GPUModelRunner.get_kv_cache_spec`, which lists draft layers too).
///
/// # Errors
/// A dtype that is not known, heads that do not divide, a stage that does not exist.
pub fn layer_specs(
    geometry: &ModelGeometry,
    args: &EngineArgs,
    settings: &Settings,
    stage: usize,
) -> Result<Vec<LayerSpec>, SpecError> {
    let kv = kv_dtype(geometry, args, &settings.rules)?;
    let ssm = ssm_dtype(geometry, args)?;
    let tp = u64::from(args.tensor_parallel_size.max(1));
    let stages = args.pipeline_parallel_size.max(1) as usize;
    let (start, end) = stage_layers(geometry.layers.len(), stages, stage)
        .ok_or(SpecError::Stage { stage, stages, layers: geometry.layers.len() })?;
    let shard = Shard { kv, ssm, tp, model: geometry.dtype };
    let mut specs = Vec::with_capacity(end - start);
    for (i, layer) in geometry.layers.iter().enumerate().take(end).skip(start) {
        shard.push(&layer.attention, i, (args, settings), &mut specs)?;
    }
    if args.drafts_with_own_layers() && stage + 1 == stages {
        let built_in = |l: &&crate::model::geometry::Layer| {
            !matches!(l.attention, Attention::Linear(_) | Attention::None)
        };
        if let Some(last) = geometry.layers.iter().rfind(built_in) {
            for n in 0..geometry.nextn_layers as usize {
                let index = geometry.layers.len() + n;
                shard.push(&last.attention, index, (args, settings), &mut specs)?;
            }
        }
    }
    Ok(specs)
}

/// What is the same for every layer of one rank.
struct Shard {
    kv: KvDtype,
    ssm: Option<Dtype>,
    model: Dtype,
    tp: u64,
}

impl Shard {
    fn push(
        &self,
        attention: &Attention,
        layer: usize,
        (args, settings): (&EngineArgs, &Settings),
        specs: &mut Vec<LayerSpec>,
    ) -> Result<(), SpecError> {
        let block_size = settings.block_size;
        match *attention {
            Attention::Gqa { kv_heads, head_dim, v_head_dim, span, .. } => {
                let KvDtype::Plain(element) = self.kv else {
                    let value = args.kv_cache_dtype.clone().unwrap_or_default();
                    return Err(SpecError::PackedWithoutLatent { value, layer });
                };
                let heads = Heads {
                    kv_heads: spec::kv_heads_per_rank(kv_heads, self.tp),
                    head_size: head_dim,
                    head_size_v: v_head_dim,
                    element,
                };
                specs.push(LayerSpec::heads(kind(span), heads, block_size));
            }
            Attention::Mla { kv_lora_rank, qk_rope_head_dim, indexer, .. } => {
                let width = kv_lora_rank.saturating_add(qk_rope_head_dim);
                specs.push(latent(self.kv, width, block_size));
                if let Some(index) = indexer {
                    specs.push(LayerSpec::indexer(index.head_dim, block_size));
                }
            }
            Attention::Linear(state) => {
                let bytes = state_bytes(&state, (self.model, self.ssm), self.tp, settings)
                    .ok_or(SpecError::StateHeads { layer, heads: state.heads, tp: self.tp })?;
                specs.push(LayerSpec::mamba(bytes, block_size));
            }
            Attention::None => {}
        }
        Ok(())
    }
}

const fn kind(span: Span) -> Kind {
    match span {
        Span::Full => Kind::Full,
        Span::Sliding { window } => Kind::SlidingWindow { window },
        Span::Chunked { chunk } => Kind::ChunkedLocal { chunk },
    }
}

const fn latent(kv: KvDtype, width: u64, block_size: u64) -> LayerSpec {
    match kv {
        KvDtype::Plain(element) => LayerSpec::latent(width, element, block_size),
        KvDtype::Fp8DsMla => LayerSpec::packed_latent(spec::FP8_DS_MLA_TOKEN, block_size),
        KvDtype::Nvfp4DsMla => LayerSpec::packed_latent(spec::NVFP4_DS_MLA_TOKEN, block_size),
    }
}

const KV_NAMES: [&str; 12] = [
    "auto",
    "bfloat16",
    "float16",
    "half",
    "float32",
    "float",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_inc",
    "fp8_ds_mla",
    "nvfp4_ds_mla",
];

/// Element of the KV cache. `auto` is the model's dtype, or fp8 where the checkpoint asks for it
/// (0.12+); fp8 on a sparse latent is the packed form, which 0.11 also takes for `auto`.
/// Source: vLLM 0.11+ `models/config.py` of DeepSeek V3.2, `resolve_kv_cache_dtype_string`.
///
/// # Errors
/// [`SpecError::UnknownKvDtype`].
pub fn kv_dtype(
    geometry: &ModelGeometry,
    args: &EngineArgs,
    rules: &Rules,
) -> Result<KvDtype, SpecError> {
    let checkpoint_counts = (rules.version.major, rules.version.minor) >= (0, 12);
    let given = args.kv_cache_dtype.as_deref().unwrap_or("auto");
    let sparse = facts(geometry).attention == AttentionKind::SparseLatent;
    Ok(match given {
        "auto" if geometry.kv_cache_fp8 && checkpoint_counts => fp8(sparse),
        "auto" if sparse && (rules.version.major, rules.version.minor) < (0, 12) => {
            KvDtype::Fp8DsMla
        }
        "auto" => KvDtype::Plain(geometry.dtype.size()),
        "bfloat16" | "float16" | "half" => KvDtype::Plain(2),
        "float32" | "float" => KvDtype::Plain(4),
        "fp8" | "fp8_e4m3" | "fp8_e5m2" | "fp8_inc" => fp8(sparse),
        "fp8_ds_mla" => KvDtype::Fp8DsMla,
        "nvfp4_ds_mla" => KvDtype::Nvfp4DsMla,
        other => {
            return Err(SpecError::UnknownKvDtype {
                value: other.to_owned(),
                near: near_name(other),
            });
        }
    })
}

const fn fp8(sparse: bool) -> KvDtype {
    if sparse { KvDtype::Fp8DsMla } else { KvDtype::Plain(1) }
}

/// The known name that shares the longest beginning with `value`, of three letters at least.
fn near_name(value: &str) -> Option<&'static str> {
    let lower = value.to_ascii_lowercase();
    let shared = |name: &str| lower.bytes().zip(name.bytes()).take_while(|(a, b)| a == b).count();
    KV_NAMES
        .into_iter()
        .filter(|n| shared(n) >= 3)
        .max_by_key(|n| (shared(n), usize::MAX - n.len()))
}

/// Element of the recurrent state; `None` is the model's dtype.
///
/// Without the flag vLLM takes what the configuration names (`mamba_ssm_dtype`,
/// `mamba_ssm_cache_dtype`): float32 in the published ones of Qwen3.5 and later hybrids and of
/// Nemotron 3, nothing in those of Qwen3-Next, Granite and Falcon. Kimi's delta attention is always
/// float32 ([`state_bytes`]). Source: vLLM 0.11 to 0.33 `MambaStateDtypeCalculator`, `models/config.py`.
///
/// # Errors
/// [`SpecError::UnknownStateDtype`].
pub fn ssm_dtype(geometry: &ModelGeometry, args: &EngineArgs) -> Result<Option<Dtype>, SpecError> {
    match args.mamba_ssm_cache_dtype.as_deref() {
        None | Some("auto") => Ok(geometry.state_dtype),
        Some("float32") => Ok(Some(Dtype::F32)),
        Some("float16") => Ok(Some(Dtype::F16)),
        Some("bfloat16") => Ok(Some(Dtype::Bf16)),
        Some(other) => Err(SpecError::UnknownStateDtype(other.to_owned())),
    }
}

/// Bytes of all states of one layer and request on one rank: the convolution's taps before the
/// current token (and draft tokens) in the model's dtype, and the recurrent state. `None` when heads
/// or channels do not divide over the ranks.
///
/// Source: vLLM `MambaStateShapeCalculator`. A Mamba-2 model with fewer groups than ranks repeats
/// groups until each rank has one.
#[must_use]
pub fn state_bytes(
    state: &LinearState,
    (model, ssm): (Dtype, Option<Dtype>),
    tp: u64,
    settings: &Settings,
) -> Option<u64> {
    let extra_groups = match state.kind {
        LinearKind::Mamba2 if !state.groups.is_multiple_of(tp) => tp.saturating_sub(state.groups),
        _ => 0,
    };
    let repeated = extra_groups.checked_mul(2)?.checked_mul(state.state_dim)?;
    let channels = state.conv_channels.checked_add(repeated)?;
    if !state.heads.is_multiple_of(tp) || !channels.is_multiple_of(tp) {
        return None;
    }
    let taps = match channels {
        0 => 0,
        _ => state.conv_kernel.saturating_sub(1).checked_add(settings.num_speculative_tokens)?,
    };
    let conv = taps.checked_mul(channels / tp)?.checked_mul(model.size())?;
    let element = match state.kind {
        LinearKind::Kda => Dtype::F32.size(),
        LinearKind::Lightning => model.size(),
        LinearKind::Mamba2 | LinearKind::Gdn => ssm.unwrap_or(model).size(),
    };
    let cells = (state.heads / tp).checked_mul(state.head_dim)?.checked_mul(state.state_dim)?;
    conv.checked_add(cells.checked_mul(element)?)
}

/// First and last-plus-one layer of a pipeline stage: even parts, the remainder given one each to
/// the stages before the last, from the back. Source: vLLM `distributed/utils.get_pp_indices`.
#[must_use]
pub fn stage_layers(layers: usize, stages: usize, stage: usize) -> Option<(usize, usize)> {
    if stages == 0 || stage >= stages || stages > layers.max(1) {
        return None;
    }
    let (each, rest) = (layers / stages, layers % stages);
    // Stages stages-2, stages-3, … carry one more; `rest` is below `stages`, so they suffice.
    let size = |s: usize| each + usize::from(s + 1 < stages && stages - 1 - s <= rest);
    let start: usize = (0..stage).map(size).sum();
    Some((start, start + size(stage)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::geometry::{Indexer, Layer, Mlp},
        policy::{
            sglang::version::Version,
            vllm::{
                defaults::{Device, MemoryKind, Usage},
                settings,
            },
        },
        units::{Bytes, Tokens},
    };

    fn geometry(model_type: &str, attention: Vec<Attention>) -> ModelGeometry {
        let layer = |attention| Layer { attention, mlp: Mlp::None };
        ModelGeometry {
            name: "m".into(),
            architecture: "M".into(),
            model_type: model_type.into(),
            dtype: Dtype::Bf16,
            hidden_size: 4096,
            vocab_size: 32_000,
            context_len: Tokens(131_072),
            tie_word_embeddings: false,
            layers: attention.into_iter().map(layer).collect(),
            nextn_layers: 1,
            quantization: None,
            kv_cache_fp8: false,
            state_dtype: None,
            vision: None,
            multimodal: false,
        }
    }

    fn specs(geometry: &ModelGeometry, args: &EngineArgs) -> Result<Vec<LayerSpec>, SpecError> {
        let device = Device {
            name: "NVIDIA H100".into(),
            total: Bytes::gib(79),
            memory: MemoryKind::Discrete,
            compute_capability: Some((9, 0)),
        };
        let settings = settings::resolve(args, &device, Usage::Server, facts(geometry)).unwrap();
        layer_specs(geometry, args, &settings, 0)
    }

    fn args(minor: u16, tp: u32) -> EngineArgs {
        let mut args = EngineArgs::new(Version::new(0, minor, 0), "m");
        args.tensor_parallel_size = tp;
        args
    }

    fn gqa(kv_heads: u64, head_dim: u64) -> Attention {
        Attention::Gqa { q_heads: 32, kv_heads, head_dim, v_head_dim: head_dim, span: Span::Full }
    }

    /// Qwen3.5 and later at 27B: 16 key heads and 48 value heads of 128, four taps.
    fn gdn(v_heads: u64) -> Attention {
        Attention::Linear(LinearState {
            kind: LinearKind::Gdn,
            heads: v_heads,
            head_dim: 128,
            state_dim: 128,
            conv_channels: 2 * 16 * 128 + v_heads * 128,
            conv_kernel: 4,
            groups: 16,
        })
    }

    #[test]
    fn the_worked_hybrid_pages_come_out() {
        let of = |named, v_heads, tp, minor| {
            let mut model = geometry("m", vec![gdn(v_heads)]);
            model.state_dtype = named;
            specs(&model, &args(minor, tp)).unwrap()[0].bytes
        };
        assert_eq!(of(Some(Dtype::F32), 48, 2, 27), 1_603_584);
        assert_eq!(of(Some(Dtype::F32), 32, 1, 24), 2_146_304);
        // Qwen3-Next names no state dtype: bf16, 548,864 B on two ranks.
        assert_eq!(of(None, 32, 2, 11), 548_864);
        let mut fp32 = args(11, 2);
        fp32.mamba_ssm_cache_dtype = Some("float32".into());
        let next = geometry("qwen3_next", vec![gdn(32)]);
        assert_eq!(specs(&next, &fp32).unwrap()[0].bytes, 1_048_576 + 24_576);
        let odd = specs(&geometry("qwen3_next", vec![gdn(33)]), &args(11, 2)).unwrap_err();
        assert_eq!(odd, SpecError::StateHeads { layer: 0, heads: 33, tp: 2 });
    }

    #[test]
    fn heads_latents_and_the_index() {
        let of = |attention, a: &EngineArgs| specs(&geometry("m", vec![attention]), a);
        assert_eq!(of(gqa(8, 128), &args(20, 4)).unwrap()[0].bytes, 2 * 256 * 2);
        assert_eq!(of(gqa(4, 128), &args(20, 8)).unwrap()[0].bytes, 256 * 2);
        let mla = |indexer| Attention::Mla {
            q_heads: 128,
            q_lora_rank: Some(1536),
            kv_lora_rank: 512,
            qk_nope_head_dim: 128,
            qk_rope_head_dim: 64,
            v_head_dim: 128,
            indexer,
        };
        let dense = of(mla(None), &args(20, 8)).unwrap();
        assert_eq!((dense.len(), dense[0].bytes, dense[0].block_size), (1, 1152, 64));
        let indexer = Some(Indexer { heads: 64, head_dim: 128, topk: 2048 });
        let mut fp8 = args(20, 8);
        fp8.kv_cache_dtype = Some("fp8".into());
        let sparse = of(mla(indexer), &fp8).unwrap();
        assert_eq!([sparse[0].bytes, sparse[1].bytes], [656, 132]);
        let bytes = |minor| of(mla(indexer), &args(minor, 8)).unwrap()[0].bytes;
        assert_eq!((bytes(11), bytes(12)), (656, 1152));
        fp8.kv_cache_dtype = Some("fp8_ds_mla".into());
        let text = of(gqa(8, 128), &fp8).unwrap_err().to_string();
        assert!(text.contains("only for latent attention"), "{text}");
        fp8.kv_cache_dtype = Some("fp8_e4m2".into());
        let text = of(gqa(8, 128), &fp8).unwrap_err().to_string();
        assert!(text.contains("did you mean fp8_e4m3?"), "{text}");
    }

    #[test]
    fn a_built_in_draft_adds_its_layer_and_a_tap() {
        let mut drafting = args(20, 1);
        drafting.num_speculative_tokens = Some(2);
        let model = geometry("qwen3_5", vec![gqa(8, 128), gdn(48)]);
        let plain = specs(&model, &args(20, 1)).unwrap();
        let with = specs(&model, &drafting).unwrap();
        assert_eq!((plain.len(), with.len()), (2, 3));
        assert_eq!(with[2], with[0]);
        assert_eq!(with[1].bytes - plain[1].bytes, 2 * (2 * 16 * 128 + 48 * 128) * 2);
    }

    #[test]
    fn stages_cover_the_layers_once() {
        let cuts = |layers, stages| {
            (0..stages).map(|s| stage_layers(layers, stages, s).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(cuts(61, 4), [(0, 15), (15, 30), (30, 46), (46, 61)]);
        assert_eq!(cuts(10, 4), [(0, 2), (2, 5), (5, 8), (8, 10)]);
        assert_eq!(stage_layers(4, 2, 2), None);
        assert_eq!(stage_layers(1, 2, 0), None);
    }
}
