//! From a model's geometry and resolved settings to what each rank keeps: one KV geometry a pipeline stage.

use super::{
    args::ServerArgs,
    facts::{
        AttentionArch, Checkpoint, Family, KvDtype, ModelFacts, Multimodal, MultimodalPrefill,
    },
    from_model_state::state_bytes,
    geometry::{
        CellShape, DraftKv, Heads, Hybrid, KvGeometry, Latent, LatentRow, LayerLists, MambaHybrid,
        MambaStrategy, SwaHybrid,
    },
    refusal::{Refusal, in_range},
    settings::Resolved,
    speculation::DraftKind,
};
use crate::model::geometry::{
    Attention, Dtype, Layer, LinearKind, Mlp, ModelGeometry, Quantization, Span,
};

/// One pipeline stage.
#[derive(Clone, PartialEq, Debug)]
pub struct Stage {
    /// First layer.
    pub first_layer: usize,
    /// Layers.
    pub layer_count: usize,
    /// What a rank of it keeps.
    pub kv: KvGeometry,
    /// Draft KV beside it; on the last stage only.
    pub draft: Option<DraftKv>,
}

/// All stages, and what was assumed on the way.
#[derive(Clone, PartialEq, Debug)]
pub struct Stages {
    /// In order; one without pipeline parallelism.
    pub stages: Vec<Stage>,
    /// What is weaker than a verified rule.
    pub notes: Vec<String>,
}

/// Experts that ModelOpt stores in FP4.
fn fp4_experts(model: &ModelGeometry) -> bool {
    let experts = model.layers.iter().any(|layer| matches!(layer.mlp, Mlp::Moe { .. }));
    let modelopt = |q: &Quantization| q.method.starts_with("modelopt") && q.weight_bits == 4;
    experts && model.quantization.as_ref().is_some_and(modelopt)
}

/// What the settings ask about the model.
#[must_use]
pub fn model_facts(model: &ModelGeometry) -> ModelFacts {
    let mut attention = AttentionArch::Mha;
    let mut kda = false;
    for layer in &model.layers {
        match layer.attention {
            Attention::Mla { indexer: Some(_), .. } => attention = AttentionArch::Dsa,
            Attention::Mla { .. } if attention == AttentionArch::Mha => {
                attention = AttentionArch::Mla;
            }
            Attention::Linear(state) => kda |= state.kind == LinearKind::Kda,
            _ => {}
        }
    }
    let multimodal = match (model.multimodal, model.vision) {
        (false, _) => Multimodal::No,
        (true, Some(tower)) => Multimodal::WithVisionConfig {
            layers: tower.sized.then_some(tower.layers),
            hidden: tower.sized.then_some(tower.hidden),
        },
        (true, None) => Multimodal::WithoutVisionConfig,
    };
    let gguf = model.quantization.as_ref().is_some_and(|q| q.method.contains("gguf"));
    ModelFacts {
        attention,
        multimodal,
        multimodal_prefill: MultimodalPrefill::Chunked,
        family: family(&model.architecture, kda),
        architecture: model.architecture.clone(),
        context_len: model.context_len.0,
        dtype: kv_dtype(model.dtype),
        checkpoint: if gguf {
            Checkpoint::Gguf
        } else if model.kv_cache_fp8 {
            Checkpoint::Fp8Kv
        } else {
            Checkpoint::Plain
        },
        heads: model.layers.iter().find_map(|layer| match layer.attention {
            Attention::Gqa { kv_heads, .. } => Some(kv_heads),
            Attention::Mla { q_heads, .. } => Some(q_heads),
            _ => None,
        }),
        asymmetric_kv: model.layers.iter().any(|layer| {
            matches!(layer.attention, Attention::Gqa { head_dim, v_head_dim, .. } if head_dim != v_head_dim)
        }),
        fp4_experts: fp4_experts(model),
    }
}

/// What the scheduler takes for the window of a hybrid (`sliding_window_size`): the tokens before the
/// current one, so one less than the configuration's; as it stands there for MiMo-V2, and for layers that
/// look at chunks. `None` where no layer slides.
///
/// Source: SGLang 0.5.8 `ModelRunner.load_model`, the models' `get_attention_sliding_window_size`.
#[must_use]
pub fn sliding_window_size(model: &ModelGeometry) -> Option<u64> {
    let as_it_stands = model.architecture.starts_with("MiMoV2");
    let of = |layer: &Layer| match layer.attention {
        Attention::Gqa { span: Span::Sliding { window }, .. } if as_it_stands => Some(window),
        Attention::Gqa { span: Span::Sliding { window }, .. } => Some(window.saturating_sub(1)),
        Attention::Gqa { span: Span::Chunked { chunk }, .. } => Some(chunk),
        _ => None,
    };
    model.layers.iter().filter_map(of).max()
}

fn family(architecture: &str, kda: bool) -> Family {
    if architecture.starts_with("DeepseekV4") {
        Family::DeepseekV4
    } else if architecture.starts_with("NemotronH") {
        Family::NemotronH
    } else if architecture.starts_with("Qwen3VL") {
        Family::Qwen3Vl
    } else if kda {
        Family::Kda
    } else {
        Family::Other
    }
}

fn kv_dtype(dtype: Dtype) -> KvDtype {
    match dtype {
        Dtype::F32 => KvDtype::Fp32,
        Dtype::F16 => KvDtype::Fp16,
        // Weights in one byte compute in bfloat16.
        Dtype::Bf16 | Dtype::Fp8E4m3 | Dtype::Fp8E5m2 | Dtype::I8 => KvDtype::Bf16,
    }
}

/// Layers of each pipeline stage: equal, the first stages take one of the remainder each.
/// The place of the remainder is assumed; the largest stage, which decides, has the same size anyway.
#[must_use]
pub fn stage_sizes(layers: usize, pp_size: u32) -> Vec<usize> {
    let stages = usize::try_from(pp_size.max(1)).unwrap_or(1);
    let (base, rest) = (layers / stages, layers % stages);
    (0..stages).map(|i| base + usize::from(i < rest)).collect()
}

/// Maps a model to its stages. `draft` is the geometry behind `--speculative-draft-model-path`.
///
/// # Errors
/// [`Refusal::NotModelled`] for layouts whose sizing is unknown (DeepSeek-V4);
/// [`Refusal::MlaWithPipeline`] before 0.5.1; ranges.
pub fn stages(
    model: &ModelGeometry,
    resolved: &Resolved,
    draft: Option<&ModelGeometry>,
) -> Result<Stages, Refusal> {
    let mapper = Mapper { model, resolved, draft };
    if family(&model.architecture, false) == Family::DeepseekV4 {
        return Err(Refusal::NotModelled {
            what: model.architecture.clone(),
            why: "DeepSeek-V4 has its own configurator of compressed pools",
        });
    }
    in_range("layers", model.layers.len(), 1, 10_000)?;
    let (v, pp_size) = (resolved.rules.used, resolved.args.pp_size);
    let latent = model.layers.iter().any(|l| matches!(l.attention, Attention::Mla { .. }));
    if latent && pp_size > 1 && !v.since(5, 1) {
        return Err(Refusal::MlaWithPipeline { version: v, pp_size });
    }
    let mut notes = Vec::new();
    let sizes = stage_sizes(model.layers.len(), resolved.args.pp_size);
    let mut stages = Vec::with_capacity(sizes.len());
    let mut first = 0;
    for (i, &count) in sizes.iter().enumerate() {
        let kv = mapper.stage(first, count, &sizes, &mut notes)?;
        let last = i + 1 == sizes.len();
        let draft = if last { mapper.draft_kv(&mut notes) } else { None };
        stages.push(Stage { first_layer: first, layer_count: count, kv, draft });
        first += count;
    }
    if !model.layers.len().is_multiple_of(sizes.len()) {
        notes.push("which pipeline stages take the remaining layers is assumed".to_owned());
    }
    notes.sort();
    notes.dedup();
    Ok(Stages { stages, notes })
}

struct Mapper<'a> {
    model: &'a ModelGeometry,
    resolved: &'a Resolved,
    draft: Option<&'a ModelGeometry>,
}

/// Layers of a slice by what they keep.
#[derive(Default)]
struct Kinds {
    full: u64,
    sliding: u64,
    latent: u64,
    indexed: u64,
    full_heads: Option<Heads>,
    swa_heads: Option<Heads>,
    latent_shape: Option<Latent>,
    window: Option<u64>,
    unequal: bool,
    chunked: bool,
}

fn kinds(layers: &[Layer]) -> Kinds {
    let mut k = Kinds::default();
    for layer in layers {
        match layer.attention {
            Attention::Gqa { kv_heads, head_dim, v_head_dim, span, .. } => {
                let heads = Heads { kv_heads, head_dim, v_head_dim };
                let window = match span {
                    Span::Full => None,
                    Span::Sliding { window } => Some(window),
                    Span::Chunked { chunk } => {
                        k.chunked = true;
                        Some(chunk)
                    }
                };
                let slot = if window.is_some() { &mut k.swa_heads } else { &mut k.full_heads };
                k.unequal |= *slot.get_or_insert(heads) != heads;
                match window {
                    None => k.full += 1,
                    Some(w) => {
                        k.sliding += 1;
                        k.window = Some(k.window.map_or(w, |old| old.max(w)));
                    }
                }
            }
            Attention::Mla { kv_lora_rank, qk_rope_head_dim, indexer, .. } => {
                k.latent += 1;
                k.indexed += u64::from(indexer.is_some());
                k.latent_shape.get_or_insert(Latent {
                    kv_lora_rank,
                    qk_rope_head_dim,
                    index_head_dim: None,
                    indexer_layers: 0,
                    row: LatentRow::Packed,
                });
                if let (Some(shape), Some(index)) = (&mut k.latent_shape, indexer) {
                    shape.index_head_dim = Some(index.head_dim);
                }
            }
            Attention::Linear(_) | Attention::None => {}
        }
    }
    k
}

impl Mapper<'_> {
    fn args(&self) -> &ServerArgs {
        &self.resolved.args
    }

    fn stage(
        &self,
        first: usize,
        count: usize,
        sizes: &[usize],
        notes: &mut Vec<String>,
    ) -> Result<KvGeometry, Refusal> {
        let v = self.resolved.rules.used;
        let all = &self.model.layers;
        // The first releases counted the whole model on every stage.
        let slice = if v.since_post(4, 6, 2) { &all[first..first + count] } else { &all[..] };
        let k = kinds(slice);
        let (shape, layers) = self.shape(&k, &kinds(all))?;
        let r = self.resolved;
        let mut kv = KvGeometry::uniform(shape, layers, r.attn_tp_size, r.kv_cache_dtype);
        if k.unequal {
            notes.push(
                "layers differ in KV heads; the first layer's are counted for all".to_owned(),
            );
        }
        if all.iter().any(|l| matches!(l.attention, Attention::Linear(_))) {
            kv.hybrid = Hybrid::Mamba(self.mamba(all, sizes));
        } else if k.sliding > 0 && !self.args().disable_hybrid_swa_memory {
            kv.hybrid = Hybrid::Swa(self.swa(&k, first, count, notes));
        }
        Ok(kv)
    }

    fn shape(&self, k: &Kinds, whole: &Kinds) -> Result<(CellShape, u64), Refusal> {
        if let Some(latent) = k.latent_shape.or(whole.latent_shape) {
            let raw = [
                self.args().attention_backend.as_deref(),
                self.args().decode_attention_backend.as_deref(),
            ];
            let raw = raw.iter().flatten().any(|b| b.starts_with("trtllm") || *b == "tilelang");
            let row = if raw { LatentRow::Raw } else { LatentRow::Packed };
            return Ok((
                CellShape::Latent(Latent { indexer_layers: k.indexed, row, ..latent }),
                k.latent,
            ));
        }
        let heads = k.full_heads.or(k.swa_heads).or(whole.full_heads).or(whole.swa_heads);
        match heads {
            Some(heads) => Ok((CellShape::Heads(heads), k.full + k.sliding)),
            None => Err(Refusal::NotModelled {
                what: self.model.architecture.clone(),
                why: "no layer keeps KV",
            }),
        }
    }

    fn swa(&self, k: &Kinds, first: usize, count: usize, notes: &mut Vec<String>) -> SwaHybrid {
        let v = self.resolved.rules.used;
        let lists = LayerLists { total: k.full + k.sliding, full: k.full, swa: k.sliding };
        let mut split_by = lists;
        if v.since(5, 8) && !v.since(5, 9) {
            // 0.5.8 takes the stage's lists with the layer after its last.
            let end = (first + count + 1).min(self.model.layers.len());
            let k = kinds(&self.model.layers[first..end]);
            split_by = LayerLists { total: lists.total, full: k.full, swa: k.sliding };
        }
        if k.chunked && !v.since(5, 8) && v.since(4, 9) {
            notes.push(
                "Llama 4 had a pool formula of its own to 0.5.7, which is not modelled; the generic split is used"
                    .to_owned(),
            );
        }
        if v.since_post(4, 9, 3) {
            notes.push(
                "that this architecture gets a sliding-window pool is taken from its layer list"
                    .to_owned(),
            );
        }
        let fallback = Heads { kv_heads: 1, head_dim: 1, v_head_dim: 1 };
        SwaHybrid {
            layers: lists,
            split_by,
            swa_heads: k.swa_heads.or(k.full_heads).unwrap_or(fallback),
            window: k.window,
            ratio: self.args().swa_full_tokens_ratio.unwrap_or(0.8),
        }
    }

    fn mamba(&self, all: &[Layer], sizes: &[usize]) -> MambaHybrid {
        let (v, a) = (self.resolved.rules.used, self.args());
        let tp = self.resolved.attn_tp_size;
        let ssm_bytes = a.mamba_ssm_dtype.as_deref().and_then(KvDtype::from_name);
        let ssm_bytes = ssm_bytes.map_or(4, KvDtype::element_bytes);
        let of = |layers: &[Layer]| -> u64 {
            layers
                .iter()
                .map(|l| state_bytes(&l.attention, tp, ssm_bytes))
                .fold(0, u64::saturating_add)
        };
        let mut state = of(all);
        if v.since(5, 17) && sizes.len() > 1 {
            let mut first = 0;
            state = 0;
            for &count in sizes {
                state = state.max(of(&all[first..first + count]));
                first += count;
            }
        }
        let k = kinds(all);
        MambaHybrid {
            whole_model_full_layers: k.full + k.sliding + k.latent,
            state_bytes_per_request: state.max(1),
            ratio: a.mamba_full_memory_ratio.unwrap_or(0.9),
            max_mamba_cache_size: a.max_mamba_cache_size,
            strategy: match a.mamba_scheduler_strategy.as_deref() {
                Some(name) if name.contains("lazy") => MambaStrategy::Lazy,
                Some("extra_buffer") => MambaStrategy::ExtraBuffer,
                _ => MambaStrategy::NoBuffer,
            },
        }
    }

    /// Draft KV: the draft model's next-n layers, else its depth; without a path the target's own head.
    fn draft_kv(&self, notes: &mut Vec<String>) -> Option<DraftKv> {
        let (v, r) = (self.resolved.rules.used, self.resolved);
        let kind = r.speculation.as_ref()?.kind;
        if kind == DraftKind::Ngram {
            return None;
        }
        let by_path = self.args().speculative_draft_model_path.is_some();
        let layers = match self.draft {
            Some(draft) if draft.nextn_layers > 0 => draft.nextn_layers,
            Some(draft) => draft.layers.len() as u64,
            None if self.model.nextn_layers > 0 => self.model.nextn_layers,
            None => {
                notes
                    .push("the draft model is unknown; one layer of the target's width".to_owned());
                1
            }
        };
        let per_layer =
            self.draft.and_then(|d| self.layer_bytes(d)).or(self.layer_bytes(self.model));
        let cell_bytes = per_layer.map(|b| b.saturating_mul(layers));
        // A head without a path of its own enters the target's cell only from 0.5.20.
        let charged = if by_path || v.since(5, 20) { layers } else { 0 };
        Some(DraftKv { layers: charged, cell_bytes })
    }

    /// Bytes of a token in one layer of `model` under these settings.
    fn layer_bytes(&self, model: &ModelGeometry) -> Option<u64> {
        let (r, k) = (self.resolved, kinds(&model.layers));
        let element = r.kv_cache_dtype.element_bytes();
        if let Some(l) = k.latent_shape {
            let index = l.index_head_dim.map_or(0, |d| d + d / 128 * 4);
            return Some((l.kv_lora_rank + l.qk_rope_head_dim) * element + index);
        }
        let heads = k.full_heads.or(k.swa_heads)?;
        Some(heads.per_rank(r.attn_tp_size) * (heads.head_dim + heads.v_head_dim) * element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::geometry::{Indexer, LinearState, Mlp},
        policy::sglang::{args::ServerArgs, cell::CellQuestion, facts::MachineFacts, resolve},
        units::Tokens,
    };

    fn layer(attention: Attention) -> Layer {
        Layer { attention, mlp: Mlp::None }
    }

    fn gqa(span: Span) -> Attention {
        Attention::Gqa { q_heads: 64, kv_heads: 8, head_dim: 64, v_head_dim: 64, span }
    }

    fn mla(indexer: Option<Indexer>) -> Attention {
        Attention::Mla {
            q_heads: 64,
            q_lora_rank: Some(1536),
            kv_lora_rank: 512,
            qk_nope_head_dim: 128,
            qk_rope_head_dim: 64,
            v_head_dim: 128,
            indexer,
        }
    }

    fn model(layers: Vec<Layer>) -> ModelGeometry {
        ModelGeometry {
            name: "m".to_owned(),
            architecture: "M".to_owned(),
            model_type: "m".to_owned(),
            dtype: Dtype::Bf16,
            hidden_size: 2880,
            vocab_size: 1000,
            context_len: Tokens(131_072),
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

    fn resolved(model: &ModelGeometry, version: &str, tp: u32, pp: u32) -> Resolved {
        let mut args = ServerArgs::new(version.parse().unwrap(), "m");
        (args.tp_size, args.pp_size) = (tp, pp);
        let machine = MachineFacts { gpu_mem_mib: Some(97_887.0), compute_capability: None };
        resolve(&args, &machine, &model_facts(model)).unwrap()
    }

    fn cell(kv: &KvGeometry, version: &str) -> f64 {
        let version = version.parse().unwrap();
        CellQuestion { version, kv, speculation: None, draft_layers: 0, draft_cell: None }
            .answer()
            .bytes
    }

    #[test]
    fn latent_models_map_to_one_row_a_layer() {
        let m = model(vec![layer(mla(None)); 61]);
        assert_eq!(model_facts(&m).attention, AttentionArch::Mla);
        let r = resolved(&m, "0.5.8", 8, 1);
        let s = stages(&m, &r, None).unwrap();
        assert_eq!(cell(&s.stages[0].kv, "0.5.8"), 70_272.0);
        let old = stages(&m, &resolved(&m, "0.4.10", 8, 2), None);
        assert!(matches!(old, Err(Refusal::MlaWithPipeline { pp_size: 2, .. })));
        let index = Indexer { heads: 64, head_dim: 128, topk: 2048 };
        let m = model(vec![layer(mla(Some(index))); 61]);
        assert_eq!(model_facts(&m).attention, AttentionArch::Dsa);
        let r = resolved(&m, "0.5.8", 8, 1);
        assert_eq!(r.page_size, 64);
        let s = stages(&m, &r, None).unwrap();
        assert_eq!(cell(&s.stages[0].kv, "0.5.8"), 70_272.0 + 132.0 * 61.0);
    }

    #[test]
    fn sliding_layers_become_a_hybrid_unless_switched_off() {
        let window = Span::Sliding { window: 128 };
        let m = model(
            (0..24).map(|i| layer(gqa(if i % 2 == 0 { window } else { Span::Full }))).collect(),
        );
        let mut r = resolved(&m, "0.5.23", 1, 2);
        let s = stages(&m, &r, None).unwrap();
        assert_eq!(s.stages.len(), 2);
        let Hybrid::Swa(swa) = s.stages[1].kv.hybrid else { panic!("no hybrid") };
        assert_eq!(swa.layers, LayerLists { total: 12, full: 6, swa: 6 });
        assert_eq!((swa.window, swa.ratio), (Some(128), 0.8));
        r.args.disable_hybrid_swa_memory = true;
        assert_eq!(stages(&m, &r, None).unwrap().stages[0].kv.hybrid, Hybrid::None);
    }

    #[test]
    fn linear_hybrids_carry_their_state() {
        let state = LinearState {
            kind: LinearKind::Gdn,
            heads: 32,
            head_dim: 128,
            state_dim: 128,
            conv_channels: 8192,
            conv_kernel: 4,
            groups: 16,
        };
        let kind = |i: usize| if i % 4 == 3 { gqa(Span::Full) } else { Attention::Linear(state) };
        let m = model((0..48).map(|i| layer(kind(i))).collect());
        let of = |version: &str, pp| {
            let s = stages(&m, &resolved(&m, version, 1, pp), None).unwrap();
            let Hybrid::Mamba(mamba) = s.stages[0].kv.hybrid else { panic!("no hybrid") };
            (s.stages[0].kv.layers, mamba.whole_model_full_layers, mamba.state_bytes_per_request)
        };
        assert_eq!(of("0.5.23", 1), (12, 12, 77_266_944));
        assert_eq!(of("0.5.23", 2), (6, 12, 77_266_944 / 2));
        assert_eq!(of("0.5.8", 2), (6, 12, 77_266_944));
    }

    #[test]
    fn a_head_without_a_path_is_charged_from_0_5_20() {
        let mut m = model(vec![layer(mla(None)); 61]);
        m.nextn_layers = 1;
        let charged = |version: &str, path: Option<&str>| {
            let mut args = ServerArgs::new(version.parse().unwrap(), "m");
            args.speculative_algorithm = Some("EAGLE".to_owned());
            args.speculative_draft_model_path = path.map(str::to_owned);
            let machine = MachineFacts { gpu_mem_mib: Some(97_887.0), compute_capability: None };
            let r = resolve(&args, &machine, &model_facts(&m)).unwrap();
            stages(&m, &r, None).unwrap().stages[0].draft.unwrap()
        };
        assert_eq!(charged("0.5.19", None).layers, 0);
        assert_eq!(charged("0.5.19", Some("m")).layers, 1);
        assert_eq!(charged("0.5.20", None).layers, 1);
        assert_eq!(charged("0.5.20", None).cell_bytes, Some(1152));
    }

    #[test]
    fn the_remainder_goes_to_the_first_stages() {
        assert_eq!(stage_sizes(61, 2), [31, 30]);
        assert_eq!(stage_sizes(61, 4), [16, 15, 15, 15]);
        assert_eq!(stage_sizes(1, 3), [1, 0, 0]);
    }
}
