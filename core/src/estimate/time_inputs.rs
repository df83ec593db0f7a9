//! From a model, its division over ranks and a device to a [`TimeModel`], every number with its
//! derivation. A prior: public runs with timings may replace its rates.

use super::roofline::{ExpertTraffic, TimeModel, WindowTraffic};
use crate::{
    device::{DeviceProfile, Evidence, Link, Platform, Rate, Sourced},
    figure::{FigureValue, NamedFigure, Tag, Why},
    model::{
        detail::{KvSource, Model},
        geometry::{Attention, Dtype, Layer, Mlp, Span},
        kv,
        parallel::{Parallel, ParallelError},
        weights::{Bill, DraftWeights, Part, PartKind, WeightOptions, bill},
    },
    units::{Bytes, Nanos},
};

/// Share of the datasheet's bandwidth that kernels reach, in percent. Source: the factor of a public
/// planner (NVIDIA AIConfigurator).
const BANDWIDTH_PERCENT: u64 = 80;
/// Share of the datasheet's dense rate that large GEMMs reach, in percent. Assumed; single prompts of
/// 1,000 to 2,400 tokens of a public vLLM 0.19 run of Llama-3.1-8B on an RTX PRO 6000 come to 46 and 54.
const COMPUTE_PERCENT: u64 = 50;
/// Bandwidth of a device that states none, bytes per second. Assumed.
const DEFAULT_BANDWIDTH: u64 = 1_000_000_000_000;
/// 16-bit operations for a byte of bandwidth on a device that states no rate (MIG slices, Apple). Assumed:
/// data-centre cards have 150 to 300, Apple chips about 30.
const OPERATIONS_A_BYTE: u64 = 150;
const OPERATIONS_A_BYTE_METAL: u64 = 30;
/// Scheduler, sampling and launch of a step. Assumed.
const STEP_NANOS: u64 = 500_000;
/// Gaps between the kernels of a layer. Assumed.
const LAYER_NANOS: u64 = 12_000;
/// All-reduces of a layer: after attention and after the feed-forward part.
const COLLECTIVES_A_LAYER: u64 = 2;

/// What the time of a step depends on.
#[derive(Clone, Copy, Debug)]
pub struct TimeInputs<'a> {
    /// The model.
    pub model: &'a Model,
    /// Its division and storage. Stages of a pipeline are taken one after the other: the time is that of
    /// a step through all of them. Draft layers and the vision tower take no part.
    pub weights: WeightOptions,
    /// Element type of KV.
    pub kv_dtype: Dtype,
    /// The device of a rank.
    pub device: &'a DeviceProfile,
}

/// The same where only sizes are known.
#[derive(Clone, Copy, Debug)]
pub struct SizedInputs<'a> {
    /// Weights of a rank.
    pub weights: Bytes,
    /// KV of one token on a rank.
    pub kv_bytes_per_token: Bytes,
    /// Layers; 0 when that is not known.
    pub layers: u64,
    /// The device of a rank.
    pub device: &'a DeviceProfile,
}

/// A time model and what it rests on.
#[derive(Clone, PartialEq, Debug)]
pub struct TimeBasis {
    /// The model.
    pub model: TimeModel,
    /// Its numbers with their derivations, for `--why`.
    pub figures: Vec<NamedFigure>,
}

impl TimeBasis {
    /// The weakest evidence among the numbers.
    #[must_use]
    pub fn tag(&self) -> Tag {
        self.figures.iter().map(|figure| figure.why.tag).max().unwrap_or(Tag::Computed)
    }
}

impl TimeModel {
    /// The time model of a model on a device.
    ///
    /// # Errors
    ///
    /// [`ParallelError`] where the engine would refuse the division.
    pub fn of(inputs: &TimeInputs<'_>) -> Result<TimeBasis, ParallelError> {
        let parallel = Parallel { pp: 1, ..inputs.weights.parallel };
        let draft = DraftWeights::Unused;
        let options = WeightOptions { parallel, stage: 0, draft, ..inputs.weights };
        let bill = bill(inputs.model, &options)?;
        let layers = inputs.model.geometry.layers.len() as u64;
        let attention = attention(inputs, &parallel);
        if bill.parts.is_empty() {
            let (weights, device) = (bill.per_rank.mid, inputs.device);
            let kv_bytes_per_token = Bytes(attention.kv_bytes_per_token);
            let sized = SizedInputs { weights, kv_bytes_per_token, layers, device };
            return Ok(Self::of_sizes(&sized));
        }
        let mut basis = TimeBasis { model: attention, figures: Vec::new() };
        weights(&mut basis, inputs.model, &parallel, &bill);
        arithmetic(&mut basis, inputs, &parallel, &bill);
        rates(&mut basis, inputs.device);
        link(&mut basis, inputs, &parallel);
        overhead(&mut basis, layers, (parallel.dense > 1).then_some(inputs.device.link));
        Ok(basis)
    }

    /// The time model where only sizes are known: all weights are read in every step and are 16-bit
    /// parameters of which each costs two operations a token. Attention scores, logits and collectives
    /// are not counted.
    #[must_use]
    pub fn of_sizes(inputs: &SizedInputs<'_>) -> TimeBasis {
        let bytes = inputs.weights.0;
        let model = Self {
            weight_bytes: bytes,
            kv_bytes_per_token: inputs.kv_bytes_per_token.0,
            flops_per_token: bytes,
            ..Self::default()
        };
        let mut basis = TimeBasis { model, figures: Vec::new() };
        let rule = "weights of the rank, all read in each step";
        basis.figure("step_weight_bytes", bytes, Why::new(Tag::Assumed, rule, "sizes as given"));
        let rule = "2 operations for each 2 bytes of weights";
        basis.figure("flops_per_token", bytes, Why::new(Tag::Assumed, rule, "sizes as given"));
        rates(&mut basis, inputs.device);
        overhead(&mut basis, inputs.layers, None);
        basis
    }
}

impl TimeBasis {
    fn figure(&mut self, name: &'static str, value: u64, why: Why) {
        let value = match name.ends_with("_bytes") {
            true => FigureValue::Bytes(Bytes(value)),
            false => FigureValue::Count(value),
        };
        self.figures.push(NamedFigure::new(name, value, why));
    }
}

/// KV, states and scores of all layers. Layers that use the KV of an earlier one read it all the same.
fn attention(inputs: &TimeInputs<'_>, parallel: &Parallel) -> TimeModel {
    let mut model = TimeModel::default();
    for layer in &inputs.model.geometry.layers {
        add_layer(&mut model, inputs, layer, parallel.attention.max(1));
    }
    if let KvSource::Given(bytes) = inputs.model.kv {
        model.kv_bytes_per_token = bytes.0;
        model.window = WindowTraffic::default();
    }
    model
}

/// Two operations for each element of a query · key product and of a weighted value, heads divided by
/// the ranks. A latent counts as unfolded keys and values, as prefill computes it. The largest window of a
/// model stands for all.
fn add_layer(model: &mut TimeModel, inputs: &TimeInputs<'_>, layer: &Layer, tp: u64) {
    let bytes = kv::layer_bytes(&layer.attention, inputs.kv_dtype, tp).0;
    let window = match layer.attention {
        Attention::Gqa { span: Span::Sliding { window }, .. } => Some(window),
        Attention::Gqa { span: Span::Chunked { chunk }, .. } => Some(chunk),
        Attention::Mla { indexer: Some(indexer), .. } => {
            let keys = indexer.head_dim.saturating_add(indexer.head_dim / 128 * 4);
            add(&mut model.kv_bytes_per_token, keys);
            add(&mut model.flops_per_pair, product([2, indexer.heads, indexer.head_dim]));
            Some(indexer.topk)
        }
        _ => None,
    };
    let pair = match layer.attention {
        Attention::Gqa { q_heads, head_dim, v_head_dim, .. } => {
            product([2, q_heads, head_dim.saturating_add(v_head_dim)]) / tp
        }
        Attention::Mla { q_heads, qk_nope_head_dim, qk_rope_head_dim, v_head_dim, .. } => {
            let width = qk_nope_head_dim.saturating_add(qk_rope_head_dim);
            product([2, q_heads, width.saturating_add(v_head_dim)]) / tp
        }
        Attention::Linear(state) => {
            let dtypes = (inputs.model.engine_dtype(), inputs.model.detail.ssm_dtype);
            let held = kv::linear_state(&state, dtypes.0, dtypes.1, tp).total().0;
            add(&mut model.state_bytes_per_request, product([2, held]));
            let update = product([4, state.heads, state.head_dim, state.state_dim]) / tp;
            add(&mut model.flops_per_token, update);
            0
        }
        Attention::None => 0,
    };
    if let Some(window) = window {
        model.window.window = model.window.window.max(window);
        add(&mut model.window.kv_bytes_per_token, bytes);
        add(&mut model.window.flops_per_pair, pair);
    } else {
        add(&mut model.kv_bytes_per_token, bytes);
        add(&mut model.flops_per_pair, pair);
    }
}

/// Whether a step reads the part, routed experts apart. Of an embedding it reads its tokens' rows only;
/// copies of up-projections stand in for those that are counted.
const fn is_read(kind: PartKind) -> bool {
    match kind {
        PartKind::Head
        | PartKind::Attention
        | PartKind::Linear
        | PartKind::Dense
        | PartKind::Shared
        | PartKind::Router
        | PartKind::Norms => true,
        PartKind::Embedding
        | PartKind::Experts
        | PartKind::Vision
        | PartKind::Draft
        | PartKind::Absorbed
        | PartKind::Rotary
        | PartKind::Loading => false,
    }
}

fn weights(basis: &mut TimeBasis, model: &Model, parallel: &Parallel, bill: &Bill) {
    let read = bill.parts.iter().filter(|part| is_read(part.kind));
    let mut bytes = read.fold(0_u64, |sum, part| sum.saturating_add(part.per_rank.mid.0));
    if model.geometry.tie_word_embeddings {
        let rows = model.geometry.vocab_size.div_ceil(parallel.head.max(1));
        add(&mut bytes, product([rows, model.geometry.hidden_size, model.engine_dtype().size()]));
    }
    basis.model.weight_bytes = bytes;
    let rule = "weights of the rank without embedding, routed experts, vision tower and drafts";
    let why = Why::new(bill.why.tag, rule, bill.why.source.as_str());
    basis.figure("step_weight_bytes", bytes, why);
    let Some(experts) = bill.part(PartKind::Experts) else { return };
    let (count, top_k) = routing(model);
    let traffic = ExpertTraffic { bytes: experts.per_rank.mid.0, experts: count, top_k };
    basis.model.experts = traffic;
    let rule = "routed experts × (1 − (1 − top_k / experts)^tokens): expected distinct experts of \
         tokens that choose evenly";
    let why = Why::new(Tag::Assumed, rule, "arithmetic of independent choices");
    let why =
        why.with("experts", count).with("top_k", top_k).with("one token reads", traffic.read(1));
    basis.figure("routed_experts_bytes", traffic.bytes, why);
}

/// Experts of a layer and those that a token visits, of the first layer that has any.
fn routing(model: &Model) -> (u64, u64) {
    let found = model.geometry.layers.iter().find_map(|layer| match layer.mlp {
        Mlp::Moe { experts, top_k, .. } => Some((experts, top_k.min(experts))),
        _ => None,
    });
    found.unwrap_or((1, 1))
}

/// Two operations for each parameter that a token passes, in units of the 16-bit rate: a part that
/// runs at the rate of a narrower type counts less.
fn arithmetic(basis: &mut TimeBasis, inputs: &TimeInputs<'_>, parallel: &Parallel, bill: &Bill) {
    let (experts, top_k) = routing(inputs.model);
    let (mut flops, mut of_experts) = (0_u64, 0_u64);
    for part in &bill.parts {
        let all = product([2, part.parameters]);
        let here = match part.kind {
            PartKind::Attention | PartKind::Linear => all / parallel.attention.max(1),
            PartKind::Dense => all / parallel.dense.max(1),
            PartKind::Shared => all / parallel.shared.max(1),
            PartKind::Router => all,
            PartKind::Experts => {
                let ranks = product([parallel.expert_tp, parallel.expert_ep]).max(1);
                scale(all, top_k, experts) / ranks
            }
            _ => 0,
        };
        let here = at_rate_of(here, part, inputs.device);
        add(&mut flops, here);
        if part.kind == PartKind::Experts {
            add(&mut of_experts, here);
        }
    }
    add(&mut basis.model.flops_per_token, flops);
    basis.model.expert_flops_per_token = of_experts;
    let geometry = &inputs.model.geometry;
    let row = product([2, geometry.vocab_size, geometry.hidden_size]) / parallel.head.max(1);
    basis.model.flops_per_row = row;
    let rule = "2 × parameters that a token passes / ranks, parts of FP8 and NVFP4 weights by their \
         rate; latent down-projections count as divided";
    let why = Why::new(Tag::Computed, rule, "module shapes of the architecture");
    let why = why.with("experts", experts).with("top_k", top_k);
    basis.figure("flops_per_token", basis.model.flops_per_token, why);
}

/// `flops` of a part, times the 16-bit rate over the rate of its storage. Weights of 4 bits with 16-bit
/// activations (AWQ, GPTQ, MXFP4) run at the 16-bit rate.
fn at_rate_of(flops: u64, part: &Part, device: &DeviceProfile) -> u64 {
    let sixteen = operations(device).0;
    let all = |prefix: &str| part.storages.iter().any(|name| name.starts_with(prefix));
    let rate = if all("nvfp4") {
        device.tflops.fp4.as_ref()
    } else if all("fp8") || all("mxfp8") {
        device.tflops.fp8.as_ref()
    } else {
        None
    };
    rate.map_or(flops, |rate| scale(flops, sixteen, per_second(rate.value, 1_000_000_000_000)))
}

/// Peak 16-bit operations per second and where they are from.
pub(super) fn operations(device: &DeviceProfile) -> (u64, Why) {
    if let Some(rate) = &device.tflops.bf16 {
        let why = Why::new(tag(rate), "dense 16-bit rate of the device", rate.source());
        return (per_second(rate.value, 1_000_000_000_000), why);
    }
    let each = match device.platform {
        Platform::Metal => OPERATIONS_A_BYTE_METAL,
        Platform::Cuda | Platform::Rocm | Platform::Xpu => OPERATIONS_A_BYTE,
    };
    let why = Why::new(Tag::Assumed, "operations for each byte of bandwidth", "no rate is known");
    (product([bandwidth(device).0, each]), why.with("operations a byte", each))
}

/// Peak bytes per second and where they are from.
pub(super) fn bandwidth(device: &DeviceProfile) -> (u64, Why) {
    match &device.bandwidth_gb_s {
        Some(rate) => {
            let why = Why::new(tag(rate), "memory bandwidth of the device", rate.source());
            (per_second(rate.value, 1_000_000_000), why)
        }
        None => {
            let why = Why::new(Tag::Assumed, "a default bandwidth", "none is known");
            (DEFAULT_BANDWIDTH, why)
        }
    }
}

/// Peaks times what is reached of them.
fn rates(basis: &mut TimeBasis, device: &DeviceProfile) {
    let (peak, why) = bandwidth(device);
    let reached = scale(peak, BANDWIDTH_PERCENT, 100);
    basis.model.bytes_per_second = reached;
    let why = assumed(why, peak, BANDWIDTH_PERCENT);
    basis.figure("bandwidth_bytes_per_second", reached, why);
    let (peak, why) = operations(device);
    let reached = scale(peak, COMPUTE_PERCENT, 100);
    basis.model.flops_per_second = reached;
    let why = assumed(why, peak, COMPUTE_PERCENT);
    basis.figure("flops_per_second", reached, why);
}

fn assumed(why: Why, peak: u64, percent: u64) -> Why {
    Why { tag: Tag::Assumed, ..why }.with("peak", peak).with("reached, percent", percent)
}

/// A ring all-reduce sends 2 (n − 1) / n of its bytes; activations are 16-bit. A larger rate of FP8
/// collectives and overlap with arithmetic are not counted.
fn link(basis: &mut TimeBasis, inputs: &TimeInputs<'_>, parallel: &Parallel) {
    let ranks = parallel.dense.max(1);
    if ranks == 1 {
        return;
    }
    let geometry = &inputs.model.geometry;
    let layers = geometry.layers.len() as u64;
    let each = product([2, geometry.hidden_size, COLLECTIVES_A_LAYER, layers]);
    let sent = scale(each, 2 * (ranks - 1), ranks);
    let rate = link_bytes_per_second(inputs.device.link);
    basis.model.link_bytes_per_token = sent;
    basis.model.link_bytes_per_second = rate;
    let rule = "2 all-reduces a layer of 16-bit activations, each sending 2 (n − 1) / n of them";
    let why = Why::new(Tag::Computed, rule, "ring all-reduce").with("ranks", ranks);
    basis.figure("link_sent_per_token_bytes", sent, why);
    let rule = "bus bandwidth of an all-reduce by kind of link";
    let why = Why::new(Tag::Assumed, rule, "general knowledge");
    let why = why.with("link", format!("{:?}", inputs.device.link));
    basis.figure("link_bytes_per_second", rate, why);
}

/// Bus bandwidth of a large all-reduce, assumed.
pub(super) const fn link_bytes_per_second(link: Link) -> u64 {
    1_000_000_000
        * match link {
            Link::NvSwitch => 350,
            Link::NvLink | Link::Fabric => 150,
            Link::Pcie | Link::None => 25,
        }
}

/// Latency of one collective, assumed.
pub(super) const fn link_nanos(link: Link) -> u64 {
    match link {
        Link::NvSwitch | Link::NvLink | Link::Fabric => 15_000,
        Link::Pcie | Link::None => 40_000,
    }
}

fn overhead(basis: &mut TimeBasis, layers: u64, link: Option<Link>) {
    let collective = link.map_or(0, link_nanos);
    let each = product([COLLECTIVES_A_LAYER, collective]).saturating_add(LAYER_NANOS);
    let nanos = product([layers, each]).saturating_add(STEP_NANOS);
    basis.model.overhead = Nanos(nanos);
    let rule = "constant of a step + layers × (gaps + 2 collectives)";
    let why = Why::new(Tag::Assumed, rule, "general knowledge")
        .with("step", STEP_NANOS)
        .with("layer", LAYER_NANOS)
        .with("collective", collective)
        .with("layers", layers);
    basis.figure("step_overhead_ns", nanos, why);
}

const fn tag(rate: &Sourced<Rate>) -> Tag {
    match rate.evidence {
        Evidence::Measured | Evidence::Observed => Tag::Measured,
        Evidence::Rule => Tag::Computed,
        Evidence::Planner => Tag::Calibrated,
        Evidence::Datasheet | Evidence::Assumed => Tag::Assumed,
    }
}

/// Middle of a rate in whole units per second; the one place where a float becomes an integer.
fn per_second(rate: Rate, unit: u64) -> u64 {
    (rate.mid().max(0.0) * unit as f64).round() as u64
}

fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

fn product<const N: usize>(factors: [u64; N]) -> u64 {
    factors.into_iter().fold(1, u64::saturating_mul)
}

/// `amount` × `part` / `whole`, rounded down; saturates. A `whole` of 0 counts as 1.
pub(super) fn scale(amount: u64, part: u64, whole: u64) -> u64 {
    let scaled = u128::from(amount) * u128::from(part) / u128::from(whole.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
