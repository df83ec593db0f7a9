//! What one step of SGLang allocates outside the pool: the peak of a prefill chunk or decode batch,
//! in closed form. The formulas hold for 0.5.8 and 0.5.23 as recorded by running the layer code of
//! both under a recording allocator; 88 of those tapes agree within 1 %.

use super::logits::decode_logits;
use super::moe::{MoeBuffers, MoeKernel, SharedExperts, moe_bytes};
use super::shape::{MlaRank, Rank, ShapeInputs, U, narrow, wide};
use super::{Figure, hull};
use crate::figure::{Estimate, Tag};
use crate::policy::sglang::version::Version;
use crate::units::Bytes;

/// Which part of a step an amount belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Instant {
    /// `down_proj` of a dense MLP.
    DenseMlp,
    /// The experts of a mixture-of-experts layer.
    Moe,
    /// Attention (GQA, or MLA without a prefix).
    Attention,
    /// MLA over a prefix, while the keys are built.
    MlaPrefixKeys,
    /// MLA over a prefix, at the output projection.
    MlaPrefixOutput,
    /// MLA in the absorbed form (decode; short prefixes; Triton).
    MlaAbsorbed,
    /// Logits of the last tokens.
    Logits,
}

impl Instant {
    /// Whether it still runs outside the graphs of a captured prefill pass.
    ///
    /// Source: SGLang 0.5.23, breakable prefill graphs: attention runs between the segments.
    #[must_use]
    pub const fn is_outside_prefill_graphs(self) -> bool {
        matches!(
            self,
            Self::MlaPrefixKeys | Self::MlaPrefixOutput | Self::MlaAbsorbed | Self::Logits
        )
    }

    /// As it is printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DenseMlp => "dense MLP",
            Self::Moe => "experts",
            Self::Attention => "attention",
            Self::MlaPrefixKeys => "attention over the prefix (keys)",
            Self::MlaPrefixOutput => "attention over the prefix (output)",
            Self::MlaAbsorbed => "absorbed attention",
            Self::Logits => "logits",
        }
    }
}

/// Prefill chunk or decode batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// One chunk of prompt tokens.
    Prefill,
    /// One token for each running request.
    Decode,
}

/// How MLA attends to cached tokens in prefill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MlaPrefix {
    /// All of it expanded at once up to 131,072 tokens, chunked above (FlashInfer, FA3).
    OneShot,
    /// Always by chunks of 131,072 tokens (FA4, TRT-LLM).
    Chunked,
    /// Never expanded (Triton, speculative verification).
    Absorbed,
}

/// One step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Prefill or decode.
    pub phase: Phase,
    /// New tokens of the step (decode: requests). With DP attention the sum over the DP ranks.
    pub tokens: u64,
    /// Cached tokens that the step attends to.
    pub prefix_tokens: u64,
    /// Rows for which logits are made (requests).
    pub logits_rows: u64,
}

/// What the engine runs the step with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunInputs {
    /// SGLang release.
    pub version: Version,
    /// Tensor-parallel ranks.
    pub tp: u64,
    /// Kernel of the experts.
    pub moe_kernel: MoeKernel,
    /// Treatment of shared experts.
    pub shared_experts: SharedExperts,
    /// Rows of a TMA block in the down GEMM's tuned table (0.5.23 Triton on Hopper and later), when
    /// the table asks for it.
    pub tma_block_rows: Option<u64>,
    /// MLA prefix form of the attention backend.
    pub mla_prefix: MlaPrefix,
}

/// An instant of a step with its amount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InstantPeak {
    /// Which.
    pub instant: Instant,
    /// How much is live then, beyond weights and pool.
    pub figure: Figure,
}

const SOURCE: &str = "SGLang 0.5.8 and 0.5.23 layer code, recorded allocations";
/// Longest sequence that is expanded at once. Source: SGLang 0.5.8 DeepSeek attention.
const ONE_SHOT_LIMIT: u128 = 131_072;
/// Shortest prefix for which MLA leaves the absorbed form. Source: as above.
const EXPAND_FROM: u128 = 8192;

/// All instants of one step, in layer order. The peak is the largest, see [`peak`].
///
/// Bytes are sums of live tensors (16-bit activations), without the allocator's rounding, lazily
/// loaded kernels and communicator buffers. Between 0.5.8 and 0.5.23 the interval covers both
/// forms.
#[must_use]
pub fn instants(shape: &ShapeInputs, run: &RunInputs, step: &Step) -> Vec<InstantPeak> {
    let rank = shape.rank(run.tp);
    let tokens = wide(step.tokens);
    let mut peaks = Vec::new();
    let mut push = |instant, figure| peaks.push((instant, figure));
    match rank.mla {
        Some(mla) => {
            for (instant, bytes, rule) in mla_attention(&rank, &mla, run.mla_prefix, step) {
                push(instant, Figure::computed(narrow(bytes), rule, SOURCE));
            }
        }
        None => {
            let bytes = U * tokens * (3 * rank.h + 2 * rank.q + 2 * rank.kv);
            let rule = "2·T·(3h + 2q + 2kv)";
            push(Instant::Attention, Figure::computed(narrow(bytes), rule, SOURCE));
        }
    }
    if rank.i > 0 {
        push(Instant::DenseMlp, by_version(run.version, |form| dense(&rank, form, tokens)));
    }
    if let Some(moe) = rank.moe {
        let figure = by_version(run.version, |form| moe_bytes(&rank, &moe, run, form, tokens));
        push(Instant::Moe, figure);
    }
    push(Instant::Logits, decode_logits(&rank, wide(step.logits_rows), tokens));
    let explained = |figure: Figure| {
        figure
            .with("T", step.tokens)
            .with("prefix_tokens", step.prefix_tokens)
            .with("rows", step.logits_rows)
            .with("hidden", shape.hidden)
            .with("tp", run.tp)
    };
    peaks
        .into_iter()
        .map(|(instant, figure)| InstantPeak { instant, figure: explained(figure) })
        .collect()
}

/// The largest instant of a step; `None` only for a model without layers and logits.
#[must_use]
pub fn peak(shape: &ShapeInputs, run: &RunInputs, step: &Step) -> Option<InstantPeak> {
    instants(shape, run, step).into_iter().reduce(|best, next| {
        if next.figure.value.mid > best.figure.value.mid { next } else { best }
    })
}

/// Form of the allocations, with the rule as text.
pub(crate) type Amount = (u128, &'static str);

/// Exact at and before 0.5.8 and from 0.5.23; an interval over both forms in between, where the
/// release of the change is not known.
fn by_version(version: Version, bytes: impl Fn(MoeBuffers) -> Amount) -> Figure {
    let (old, old_rule) = bytes(MoeBuffers::Shared);
    let (new, new_rule) = bytes(MoeBuffers::Separate);
    let (old, new) = (Bytes(narrow(old)), Bytes(narrow(new)));
    if version <= Version::new(0, 5, 8) {
        return Figure::computed(old.0, old_rule, SOURCE);
    }
    if version >= Version::new(0, 5, 23) {
        return Figure::computed(new.0, new_rule, SOURCE);
    }
    let both = hull(Estimate::exact(new.max(old)), Estimate::exact(new.min(old)));
    let mut figure = Figure::computed(0, new_rule, SOURCE);
    figure.value = both;
    if !both.is_exact() {
        figure.why.tag = Tag::Assumed;
        figure.why.rule =
            format!("{old_rule} (0.5.8) or {new_rule} (0.5.23): release of the change unknown");
    }
    figure
}

/// Bytes of `lat` that outlive attention: to the next layer in 0.5.8, dropped in 0.5.23.
pub(crate) fn kept_latent(rank: &Rank, form: MoeBuffers) -> u128 {
    match form {
        MoeBuffers::Shared => rank.mla.map_or(0, |mla| mla.lat),
        MoeBuffers::Separate => 0,
    }
}

fn dense(rank: &Rank, form: MoeBuffers, tokens: u128) -> Amount {
    let lat = kept_latent(rank, form);
    let rule = if lat > 0 { "2·T·(4h + 3i + latent)" } else { "2·T·(4h + 3i)" };
    (U * tokens * (4 * rank.h + 3 * rank.i + lat), rule)
}

/// MLA without a prefix, in the expanded form: queries, keys, values and output of the new tokens.
pub(crate) fn mla_own(rank: &Rank, mla: &MlaRank, tokens: u128) -> u128 {
    let query = mla.heads * (mla.nope + mla.rope);
    let (kv, out) = (mla.heads * (mla.nope + mla.v), mla.heads * mla.v);
    U * tokens * (3 * rank.h + mla.lat + 2 * query + kv + out)
}

/// MLA in prefill and decode. `S` = tokens with the prefix.
fn mla_attention(
    rank: &Rank,
    mla: &MlaRank,
    form: MlaPrefix,
    step: &Step,
) -> Vec<(Instant, u128, &'static str)> {
    let (tokens, prefix) = (wide(step.tokens), wide(step.prefix_tokens));
    let absorbed = step.phase == Phase::Decode
        || (prefix > 0 && (form == MlaPrefix::Absorbed || prefix < EXPAND_FROM));
    if absorbed {
        let heads = mla.heads * (3 * mla.kv_lora + mla.rope + mla.v + mla.nope + mla.rope);
        let bytes = U * tokens * (3 * rank.h + mla.lat + 2 * mla.kv_lora + mla.rope + heads);
        return vec![(
            Instant::MlaAbsorbed,
            bytes,
            "2·T·(3h + latent + 2·kv_lora + rope + H·(nope + rope) + H·(3·kv_lora + rope + v))",
        )];
    }
    let (h, query) = (rank.h, mla.heads * (mla.nope + mla.rope));
    let (kv, out) = (mla.heads * (mla.nope + mla.v), mla.heads * mla.v);
    let own = U * tokens * (3 * h + mla.lat + 2 * query + kv + out);
    let own =
        (Instant::Attention, own, "2·T·(3h + latent + 2·H·(nope + rope) + H·(nope + v) + H·v)");
    if prefix == 0 {
        return vec![own];
    }
    let total = tokens + prefix;
    let chunked = form == MlaPrefix::Chunked || total > ONE_SHOT_LIMIT;
    // By chunks: the newest tokens are apart, and two outputs and two log-sum-exps are merged.
    let (rows, merge) = if chunked {
        (prefix.min(ONE_SHOT_LIMIT), 2 * tokens * (U * out + 4 * mla.heads))
    } else {
        (total, 0)
    };
    let keys =
        U * (tokens * (2 * h + mla.lat + query) + rows * (mla.kv_lora + mla.rope + kv + query));
    let output = U * (tokens * (3 * h + mla.lat + query + out) + rows * (kv + query));
    vec![
        own,
        (
            Instant::MlaPrefixKeys,
            keys + merge,
            "2·[T·(2h + latent + H·(nope + rope)) + S·(kv_lora + rope + H·(2·nope + v + rope))]",
        ),
        (
            Instant::MlaPrefixOutput,
            output + merge,
            "2·[T·(3h + latent + H·(nope + rope) + H·v) + S·H·(2·nope + v + rope)]",
        ),
    ]
}
