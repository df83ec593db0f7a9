//! Input logprobs of SGLang: a whole chunk at once (0.5.8), by 2048 rows when switched on there, and
//! by 2048 rows always (0.5.23).

use super::buffers::{
    ARANGE, CHUNK_INDEX, CHUNK_MASK, INPUT_INDEX, INPUT_LOGITS, LAST_ROWS, LOG_SOFTMAX, LSE,
    SAMPLE_INDEX, SAMPLED_LOGITS, TOKEN_LOGPROBS, TOP_INDEX, TOP_VALUES,
};
use super::event::BufferId;
use super::logits::{float32, head};
use super::recorder::Recorder;
use super::setup::Cx;
use crate::estimate::logits::LogprobChunks;

/// Rows of a chunk. Source: SGLang `SGLANG_LOGITS_PROCESSER_CHUNK_SIZE`.
const CHUNK: u64 = 2048;

/// What the logprobs are asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InputLogprobs {
    /// Rows of the chunk whose logprobs are wanted (from `logprob_start`).
    pub rows: u64,
    /// Row that each request samples from, ascending; the last row of a request that ends here.
    pub sample_rows: Vec<u64>,
    /// `top_logprobs_num`; 0 for none.
    pub top_logprobs: u64,
    /// 0.5.8: whether chunking is switched on.
    pub chunks: LogprobChunks,
}

/// Logits and logprobs after the layers.
pub(super) fn after_layers(
    cx: &Cx<'_>,
    rec: &mut Recorder,
    hidden: BufferId,
    want: &InputLogprobs,
) {
    let samples = want.sample_rows.len() as u64;
    let mut outer = vec![
        hidden,
        rec.alloc(LAST_ROWS, 2, &[want.rows, cx.h()]),
        rec.alloc(SAMPLE_INDEX, 8, &[samples]),
        rec.alloc(INPUT_INDEX, 8, &[want.rows]),
    ];
    if !cx.is_0508() {
        chunked_0523(cx, rec, want, outer);
        return;
    }
    outer.push(rec.alloc(SAMPLE_INDEX, 8, &[samples]));
    if want.chunks == LogprobChunks::On && want.rows > CHUNK {
        chunked_0508(cx, rec, want, outer);
    } else {
        whole_0508(cx, rec, want, outer);
    }
}

/// Top logprobs of `rows` rows: values and indices.
fn top(rec: &mut Recorder, rows: u64, k: u64) -> [BufferId; 2] {
    [rec.alloc(TOP_VALUES, 4, &[rows, k]), rec.alloc(TOP_INDEX, 8, &[rows, k])]
}

/// 0.5.8: top values are copied to the host and dropped.
fn top_to_host(rec: &mut Recorder, want: &InputLogprobs, rows: u64) {
    if want.top_logprobs > 0 {
        let top = top(rec, rows, want.top_logprobs);
        rec.release(top);
    }
}

/// 0.5.8 by default: at most two float32 copies of all rows live together.
fn whole_0508(cx: &Cx<'_>, rec: &mut Recorder, want: &InputLogprobs, outer: Vec<BufferId>) {
    let (rows, vocab) = (want.rows, cx.model.shape.vocab);
    let half = head(cx, rec, rows);
    let logits = float32(cx, rec, rows);
    rec.release([half]);
    // The sampled rows are the step's result.
    rec.alloc(SAMPLED_LOGITS, 4, &[want.sample_rows.len() as u64, vocab]);
    let input = rec.alloc(INPUT_LOGITS, 4, &[rows, vocab]);
    rec.release([logits]);
    let logprobs = rec.alloc(LOG_SOFTMAX, 4, &[rows, vocab]);
    top_to_host(rec, want, rows);
    let numbers = rec.alloc(ARANGE, 8, &[rows]);
    rec.alloc(TOKEN_LOGPROBS, 4, &[rows]);
    rec.release(outer);
    rec.release([input, logprobs, numbers]);
}

/// Names of 0.5.8's chunk loop that keep a chunk's tensors until the next chunk rebinds them.
#[derive(Default)]
struct Bound {
    rows_mask: Option<BufferId>,
    global: Option<BufferId>,
    shifted: Option<BufferId>,
    local: Option<BufferId>,
    logits: Option<BufferId>,
    samples_mask: Option<BufferId>,
    sample_index: Option<BufferId>,
    logprobs: Option<BufferId>,
}

impl Bound {
    fn into_ids(self) -> impl Iterator<Item = BufferId> {
        [
            self.rows_mask,
            self.global,
            self.shifted,
            self.local,
            self.logits,
            self.samples_mask,
            self.sample_index,
            self.logprobs,
        ]
        .into_iter()
        .flatten()
    }
}

/// Binds `new` to a name; what it named before dies.
fn rebind(rec: &mut Recorder, name: &mut Option<BufferId>, new: BufferId) {
    rec.release(name.replace(new));
}

/// Mask of the elements of a vector of `n` that fall into the chunk.
fn mask(rec: &mut Recorder, n: u64) -> (BufferId, [BufferId; 2]) {
    let tests = [rec.alloc(CHUNK_MASK, 1, &[n]), rec.alloc(CHUNK_MASK, 1, &[n])];
    (rec.alloc(CHUNK_MASK, 1, &[n]), tests)
}

/// 0.5.8 with `SGLANG_ENABLE_LOGITS_PROCESSER_CHUNK`. The sampled rows of every chunk are counted as
/// all requests, as the recording's shapes have it: the true count is known only on the device.
fn chunked_0508(cx: &Cx<'_>, rec: &mut Recorder, want: &InputLogprobs, outer: Vec<BufferId>) {
    let (vocab, samples) = (cx.model.shape.vocab, want.sample_rows.len() as u64);
    let (mut bound, mut results, mut left) = (Bound::default(), Vec::new(), want.rows);
    let mut first = true;
    while left > 0 {
        let rows = left.min(CHUNK);
        left -= rows;
        choose_rows(rec, &mut bound, want.rows, rows);
        let half = head(cx, rec, rows);
        let logits = float32(cx, rec, rows);
        rebind(rec, &mut bound.logits, logits);
        rec.release([half]);
        if std::mem::take(&mut first) {
            // Sampled rows of all chunks: a result of the step.
            rec.alloc(SAMPLED_LOGITS, 4, &[samples, vocab]);
        }
        copy_samples(rec, &mut bound, samples, vocab);
        let input = rec.alloc(INPUT_LOGITS, 4, &[rows, vocab]);
        rec.release(bound.logprobs.take());
        let logprobs = rec.alloc(LOG_SOFTMAX, 4, &[rows, vocab]);
        bound.logprobs = Some(logprobs);
        rec.release([input]);
        top_to_host(rec, want, rows);
        let numbers = rec.alloc(ARANGE, 8, &[rows]);
        let ids = rec.alloc(CHUNK_INDEX, 8, &[rows]);
        results.push(rec.alloc(TOKEN_LOGPROBS, 4, &[rows]));
        rec.release([numbers, ids]);
    }
    rec.alloc(TOKEN_LOGPROBS, 4, &[want.rows]);
    rec.release(outer.into_iter().chain(results).chain(bound.into_ids()));
}

/// Indices of the prompt rows of one chunk of `rows` out of `all`.
fn choose_rows(rec: &mut Recorder, bound: &mut Bound, all: u64, rows: u64) {
    let (rows_mask, tests) = mask(rec, all);
    rec.release(tests);
    rebind(rec, &mut bound.rows_mask, rows_mask);
    let found = rec.alloc(CHUNK_INDEX, 8, &[rows]);
    let global = rec.alloc(CHUNK_INDEX, 8, &[rows]);
    rec.release([found]);
    rebind(rec, &mut bound.global, global);
    let shifted = rec.alloc(CHUNK_INDEX, 8, &[rows]);
    rebind(rec, &mut bound.shifted, shifted);
    let local = rec.alloc(CHUNK_INDEX, 8, &[rows]);
    rebind(rec, &mut bound.local, local);
}

/// Copies the sampled rows of one chunk.
fn copy_samples(rec: &mut Recorder, bound: &mut Bound, samples: u64, vocab: u64) {
    let (samples_mask, tests) = mask(rec, samples);
    rec.release(tests);
    rebind(rec, &mut bound.samples_mask, samples_mask);
    let any = rec.alloc(CHUNK_MASK, 1, &[]);
    rec.release([any]);
    let found = rec.alloc(SAMPLE_INDEX, 8, &[samples]);
    let global = rec.alloc(SAMPLE_INDEX, 8, &[samples]);
    rec.release([found]);
    let local = rec.alloc(SAMPLE_INDEX, 8, &[samples]);
    rec.release([global]);
    rebind(rec, &mut bound.sample_index, local);
    let copied = rec.alloc(SAMPLED_LOGITS, 4, &[samples, vocab]);
    let target = rec.alloc(SAMPLE_INDEX, 8, &[samples]);
    rec.release([copied, target]);
}

/// 0.5.23: at most two float32 copies of 2048 rows live together.
fn chunked_0523(cx: &Cx<'_>, rec: &mut Recorder, want: &InputLogprobs, outer: Vec<BufferId>) {
    let vocab = cx.model.shape.vocab;
    let (mut indices, mut sums, mut results) = (None, Vec::new(), Vec::new());
    let mut start = 0;
    while start < want.rows {
        let rows = CHUNK.min(want.rows - start);
        let local = rec.alloc(CHUNK_INDEX, 8, &[rows]);
        rebind(rec, &mut indices, local);
        let half = head(cx, rec, rows);
        let logits = float32(cx, rec, rows);
        rec.release([half]);
        if start == 0 {
            rec.alloc(SAMPLED_LOGITS, 4, &[want.sample_rows.len() as u64, vocab]);
        }
        let chunk = start..start + rows;
        let samples = want.sample_rows.iter().filter(|row| chunk.contains(row)).count() as u64;
        if samples > 0 {
            let index = rec.alloc(SAMPLE_INDEX, 8, &[samples]);
            let copied = rec.alloc(SAMPLED_LOGITS, 4, &[samples, vocab]);
            rec.release([index, copied]);
        }
        let input = rec.alloc(INPUT_LOGITS, 4, &[rows, vocab]);
        rec.release([logits]);
        log_sum_exp(rec, want, rows, &mut sums);
        let numbers = rec.alloc(ARANGE, 8, &[rows]);
        let own = rec.alloc(TOKEN_LOGPROBS, 4, &[rows]);
        rec.release([numbers]);
        let shifted = rec.alloc(TOKEN_LOGPROBS, 4, &[rows]);
        results.push(rec.alloc(TOKEN_LOGPROBS, 4, &[rows]));
        rec.release([input, own, shifted]);
        start += rows;
    }
    rec.alloc(TOKEN_LOGPROBS, 4, &[want.rows]);
    rec.release(outer.into_iter().chain(indices).chain(sums).chain(results));
}

/// Maximum and log-sum-exp of each row with the top values; `names` keeps them until the next chunk.
fn log_sum_exp(rec: &mut Recorder, want: &InputLogprobs, rows: u64, names: &mut Vec<BufferId>) {
    let mut new = vec![rec.alloc(LSE, 4, &[rows]), rec.alloc(LSE, 4, &[rows])];
    if want.top_logprobs > 0 {
        new.extend(top(rec, rows, want.top_logprobs));
    }
    rec.release(std::mem::replace(names, new));
    if want.top_logprobs > 0 {
        let k = want.top_logprobs;
        let shifted = [rec.alloc(TOP_VALUES, 4, &[rows, k]), rec.alloc(TOP_VALUES, 4, &[rows, k])];
        rec.release(shifted);
    }
}
