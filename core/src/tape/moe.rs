//! Mixture of experts of SGLang: routing, shared experts, Triton and Marlin kernels.

use super::blocks::{self, Fp8};
use super::buffers::{
    CACHE1, CACHE2, CACHE3, CACHE13, EXPERT_COUNTERS, EXPERT_IDS, EXPERTS_OUT, GATE_SCALAR,
    MARLIN_LOCKS, MARLIN_REDUCE, MLP_REDUCED, PADDED_COUNT, QUANT_INPUT, QUANT_SCALES, ROUTER,
    ROUTER_F32, SHARED_ACT, SHARED_DOWN, SHARED_GATE_UP, SORTED_IDS, TOPK_IDS, TOPK_WEIGHTS,
};
use super::collective::all_reduce;
use super::event::BufferId;
use super::recorder::Recorder;
use super::setup::{Code, Cx, Experts, Family, MarlinReduce, Once, Tma};
use crate::estimate::moe::SharedExperts;
use crate::estimate::shape::{MoeRank, narrow};

/// One rank's widths in elements. A fused shared expert counts as one more expert that every token
/// visits (0.5.8 only).
pub(super) struct Widths {
    t: u64,
    h: u64,
    /// Experts whose scores the router makes.
    routed: u64,
    experts: u64,
    top_k: u64,
    m: u64,
    shared: u64,
}

impl Widths {
    pub(super) fn new(cx: &Cx<'_>, moe: &MoeRank) -> Self {
        let shared = narrow(moe.shared);
        let fused = cx.is_0508() && cx.setup.shared_experts == SharedExperts::Fused && shared > 0;
        let separate = match cx.setup.shared_experts {
            SharedExperts::Absent => false,
            SharedExperts::Separate => true,
            SharedExperts::Fused => !fused,
        };
        Self {
            t: cx.tokens(),
            h: cx.h(),
            routed: narrow(moe.e),
            experts: narrow(moe.e) + u64::from(fused),
            top_k: narrow(moe.k) + u64::from(fused),
            m: narrow(moe.m),
            shared: if separate { shared } else { 0 },
        }
    }

    fn pairs(&self) -> u64 {
        self.t.saturating_mul(self.top_k)
    }
}

/// One MoE layer after the norm. The output is the input written in place (Triton) or a new tensor
/// (Marlin).
///
/// The all-reduce runs inside in 0.5.8, while the layer's locals live, and after them in 0.5.23.
pub(super) fn layer(cx: &Cx<'_>, moe: &MoeRank, rec: &mut Recorder, input: BufferId) -> BufferId {
    let w = Widths::new(cx, moe);
    let mut locals = Vec::new();
    if w.shared > 0 {
        locals.push(shared_experts(&w, rec));
    }
    locals.extend(route(cx, &w, rec));
    let output = kernel(cx, &w, rec, Output::InPlace).unwrap_or(input);
    if output != input {
        locals.push(input);
    }
    if cx.is_0508() {
        let reduced = all_reduce(cx, rec, MLP_REDUCED);
        rec.release(locals);
        rec.release(reduced.map(|_| output));
        return reduced.unwrap_or(output);
    }
    rec.release(locals);
    let reduced = all_reduce(cx, rec, MLP_REDUCED);
    rec.release(reduced.map(|_| output));
    reduced.unwrap_or(output)
}

/// Shared experts run first; their output waits for the routed one.
fn shared_experts(w: &Widths, rec: &mut Recorder) -> BufferId {
    let gate_up = rec.alloc(SHARED_GATE_UP, 2, &[w.t, 2, w.shared]);
    let act = rec.alloc(SHARED_ACT, 2, &[w.t, w.shared]);
    let down = rec.alloc(SHARED_DOWN, 2, &[w.t, w.h]);
    rec.release([gate_up, act]);
    down
}

/// Router scores and the choice of experts; returns what lives through the experts.
fn route(cx: &Cx<'_>, w: &Widths, rec: &mut Recorder) -> Vec<BufferId> {
    let grouped = cx.model.family == Family::DeepSeek;
    let choice = |rec: &mut Recorder| {
        [rec.alloc(TOPK_WEIGHTS, 4, &[w.t, w.top_k]), rec.alloc(TOPK_IDS, 4, &[w.t, w.top_k])]
    };
    // DeepSeek's gate in 0.5.23 multiplies into float32; 0.5.8 casts its 16-bit scores.
    let score_bytes = if grouped && !cx.is_0508() { 4 } else { 2 };
    let mut locals = vec![rec.alloc(ROUTER, score_bytes, &[w.t, w.routed])];
    if cx.is_0508() {
        let scores = grouped.then(|| rec.alloc(ROUTER_F32, 4, &[w.t, w.routed]));
        locals.extend(choice(rec));
        rec.release(scores);
        return locals;
    }
    // The grouped kernel takes powers of two; the fused gate of the others makes its own results.
    let fused_gate = !grouped || !w.routed.is_power_of_two();
    let unused = (!grouped).then(|| choice(rec));
    locals.extend(choice(rec));
    if fused_gate && cx.setup.gate_scalar == Once::Made && is_first_experts(cx, rec) {
        rec.alloc(GATE_SCALAR, 4, &[1]);
    }
    rec.release(unused.into_iter().flatten());
    locals
}

/// Whether this is the first MoE layer of the step.
fn is_first_experts(cx: &Cx<'_>, rec: &Recorder) -> bool {
    let first = cx.model.layers.iter().position(|mlp| *mlp == super::setup::LayerMlp::Experts);
    first.and_then(|first| u32::try_from(first).ok()) == rec.layer()
}

/// Where the Triton kernel writes its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output {
    /// Over its input.
    InPlace,
    /// Into a new tensor.
    New,
}

/// The kernel alone; the new output when it makes one.
pub(super) fn kernel(
    cx: &Cx<'_>,
    w: &Widths,
    rec: &mut Recorder,
    output: Output,
) -> Option<BufferId> {
    match (cx.setup.experts, cx.setup.code) {
        (Experts::Marlin { multiprocessors, reduce }, Code::Sglang0508) => {
            Some(marlin_0508(w, rec, multiprocessors, reduce))
        }
        (Experts::Marlin { multiprocessors, reduce }, _) => {
            Some(marlin_0523(w, rec, multiprocessors, reduce))
        }
        (_, Code::Sglang0508) => triton_0508(cx, w, rec, output),
        (_, _) => triton_0523(cx, w, rec, output),
    }
}

/// Token lists sorted by expert: the lists live through the GEMMs, the counters die at once.
struct Sorted {
    lists: [BufferId; 3],
    counters: BufferId,
}

/// Sorted ids for `tokens` in blocks of `block` rows. Every expert's list is padded to whole blocks;
/// fewer pairs than experts: one block a pair. 0.5.23 rounds the ids up to a multiple of four.
/// Source: SGLang `moe_align_block_size.moe_align_block_size`.
fn sort_tokens(
    rec: &mut Recorder,
    w: &Widths,
    code: Code,
    (tokens, block): (u64, u64),
    counts: u64,
) -> Sorted {
    let pairs = tokens.saturating_mul(w.top_k);
    let (slots, ids) = (w.experts + 1, padded_pairs(w, pairs, block));
    let ids = if code == Code::Sglang0508 { ids } else { ids.next_multiple_of(4) };
    let lists = [
        rec.alloc(SORTED_IDS, 4, &[ids]),
        rec.alloc(EXPERT_IDS, 4, &[ids.div_ceil(block)]),
        rec.alloc(PADDED_COUNT, 4, &[counts]),
    ];
    let counters = rec.alloc(EXPERT_COUNTERS, 4, &[slots + 1]);
    Sorted { lists, counters }
}

fn padded_pairs(w: &Widths, pairs: u64, block: u64) -> u64 {
    let slots = w.experts + 1;
    if pairs < slots {
        pairs.saturating_mul(block)
    } else {
        pairs.saturating_add(slots.saturating_mul(block - 1))
    }
}

fn fp8(cx: &Cx<'_>) -> Fp8 {
    if cx.setup.experts == Experts::TritonFp8Block { Fp8::Blocks } else { Fp8::No }
}

fn block(cx: &Cx<'_>, w: &Widths, tokens: u64) -> blocks::Block {
    blocks::triton(cx.setup.blocks, cx.setup.code, fp8(cx), (w.experts, w.m), tokens)
}

/// FP8 copy of a GEMM's input with a float32 scale for each 128 elements, `rows × width`.
fn quantise(rec: &mut Recorder, rows: u64, width: u64) -> [BufferId; 2] {
    [
        rec.alloc(QUANT_INPUT, 1, &[rows, width]),
        rec.alloc(QUANT_SCALES, 4, &[rows, width.div_ceil(128)]),
    ]
}

/// Tokens of one pass. Source: SGLang 0.5.8 `fused_moe.fused_experts_impl`, `CHUNK_SIZE`.
const PASS: u64 = 65_536;

/// 0.5.8: one cache for first and last GEMM over passes of 65,536 tokens. The activation of a pass
/// is still bound while the next makes its own.
fn triton_0508(cx: &Cx<'_>, w: &Widths, rec: &mut Recorder, output: Output) -> Option<BufferId> {
    let first = w.t.min(PASS);
    let cache13 = rec.alloc(CACHE13, 2, &[first, w.top_k, (2 * w.m).max(w.h)]);
    let out = (output == Output::New).then(|| rec.alloc(EXPERTS_OUT, 2, &[w.t, w.h]));
    let (mut bound, mut left) = (Vec::new(), w.t);
    while left > 0 {
        let tokens = left.min(PASS);
        left -= tokens;
        let cache2 = rec.alloc(CACHE2, 2, &[tokens, w.top_k, w.m]);
        let (old_cache2, old_lists) = match bound.split_first() {
            Some((cache2, lists)) => (Some(*cache2), lists.to_vec()),
            None => (None, Vec::new()),
        };
        rec.release(old_cache2);
        let rows = block(cx, w, tokens).rows;
        let sorted = sort_tokens(rec, w, cx.setup.code, (tokens, rows), 1);
        rec.release(old_lists.into_iter().chain([sorted.counters]));
        rec.op();
        if fp8(cx) == Fp8::Blocks {
            let input = quantise(rec, tokens, w.h);
            rec.release(input);
            let act = quantise(rec, tokens.saturating_mul(w.top_k), w.m);
            rec.release(act);
            rec.op();
        }
        bound = [cache2].into_iter().chain(sorted.lists).collect();
    }
    rec.release(bound);
    rec.release([cache13]);
    rec.op();
    out
}

/// 0.5.23: no passes; both GEMM outputs and the activation live together (the `del` of the first
/// leaves a second name). With TMA their rows are padded to whole blocks for each expert.
fn triton_0523(cx: &Cx<'_>, w: &Widths, rec: &mut Recorder, output: Output) -> Option<BufferId> {
    let block = block(cx, w, w.t);
    let sorted = sort_tokens(rec, w, cx.setup.code, (w.t, block.rows), 1);
    rec.release([sorted.counters]);
    let out = (output == Output::New).then(|| rec.alloc(EXPERTS_OUT, 2, &[w.t, w.h]));
    let rows = match block.tma {
        Tma::Off => w.pairs(),
        Tma::On => {
            let padding = w.pairs().min(w.experts + 1).saturating_mul(block.rows - 1);
            w.pairs().saturating_add(padding)
        }
    };
    let cache1 = rec.alloc(CACHE1, 2, &[rows, 2, w.m]);
    if fp8(cx) == Fp8::Blocks {
        let input = quantise(rec, w.t, w.h);
        rec.release(input);
    }
    let cache2 = rec.alloc(CACHE2, 2, &[rows, w.m]);
    let cache3 = rec.alloc(CACHE3, 2, &[w.t, w.top_k, w.h]);
    if fp8(cx) == Fp8::Blocks {
        let act = quantise(rec, rows, w.m);
        rec.release(act);
    }
    rec.release([cache2]);
    rec.op();
    rec.release(sorted.lists);
    rec.release([cache1, cache3]);
    rec.op();
    out
}

/// Lock words of Marlin: four for each multiprocessor.
fn locks(rec: &mut Recorder, multiprocessors: u64) -> BufferId {
    rec.alloc(MARLIN_LOCKS, 4, &[multiprocessors, 4])
}

/// Activation, the shared GEMM cache, and the new output.
fn marlin_gemms(
    w: &Widths,
    rec: &mut Recorder,
    (multiprocessors, reduce): (u64, MarlinReduce),
    block: u64,
) -> ([BufferId; 2], BufferId) {
    let cache2 = rec.alloc(CACHE2, 2, &[w.t, w.top_k, w.m]);
    let cache13 = rec.alloc(CACHE13, 2, &[w.t, w.top_k, (2 * w.m).max(w.h)]);
    if reduce == MarlinReduce::Scratch {
        for columns in [2 * w.m, w.h] {
            let sums = marlin_sums(w, multiprocessors, block, columns);
            let scratch = rec.alloc(MARLIN_REDUCE, 4, &[sums]);
            rec.release([scratch]);
        }
    }
    let out = rec.alloc(EXPERTS_OUT, 2, &[w.t, w.h]);
    ([cache2, cache13], out)
}

/// Elements of the partial sums of one GEMM. Source: SGLang `moe_wna16_marlin_gemm`; read, not
/// recorded.
fn marlin_sums(w: &Widths, multiprocessors: u64, block: u64, columns: u64) -> u64 {
    let sorted = padded_pairs(w, w.pairs(), block);
    let tiles = multiprocessors.saturating_mul(4 * 256).saturating_mul(block);
    let sums = columns.saturating_mul(sorted).min(tiles);
    if block == 8 { sums.saturating_mul(2) } else { sums }
}

fn marlin_0508(
    w: &Widths,
    rec: &mut Recorder,
    multiprocessors: u64,
    reduce: MarlinReduce,
) -> BufferId {
    let block = blocks::marlin(w.experts, w.top_k, w.t);
    let sorted = sort_tokens(rec, w, Code::Sglang0508, (w.t, block), 1);
    rec.release([sorted.counters]);
    let locks = locks(rec, multiprocessors);
    let (caches, out) = marlin_gemms(w, rec, (multiprocessors, reduce), block);
    rec.release(sorted.lists.into_iter().chain(caches).chain([locks]));
    rec.op();
    out
}

fn marlin_0523(
    w: &Widths,
    rec: &mut Recorder,
    multiprocessors: u64,
    reduce: MarlinReduce,
) -> BufferId {
    let block = blocks::marlin(w.experts, w.top_k, w.t);
    let locks = locks(rec, multiprocessors);
    let sorted = sort_tokens(rec, w, Code::Sglang0523, (w.t, block), 2);
    rec.release([sorted.counters]);
    let (caches, out) = marlin_gemms(w, rec, (multiprocessors, reduce), block);
    rec.release(sorted.lists.into_iter().chain(caches));
    rec.op();
    rec.release([locks]);
    rec.op();
    out
}
