//! SGLang's sampler over float32 logits `rows × vocab`, which exist before.

use super::buffers::{
    ARANGE, ARGMAX, CLAMP, DRAWN, FREQUENCY, LOG, LOG_SOFTMAX, NEXT_IDS, NOISE, POSITIONS,
    PRESENCE, PROBS, RATIO, RENORM, SORT_INDEX, SORT_INDEX_COPY, SORT_KEYS, SORT_PAIRS, SORT_RADIX,
    SORT_VALUES, TOKEN_LOGPROBS, TOP_INDEX, TOP_VALUES,
};
use super::event::{BufferId, Tape};
use super::recorder::Recorder;
use super::setup::{Code, TapeError};

/// How the next token is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// Arg-max.
    Greedy,
    /// From all probabilities.
    Temperature,
    /// top-k and top-p in a fused FlashInfer kernel.
    TopKTopP,
    /// min-p after renormalising by top-k and top-p.
    MinP,
    /// The PyTorch backend's top-k and top-p: `torch.sort` over the vocabulary, then as
    /// temperature.
    TorchSort,
}

/// Output logprobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutputLogprobs {
    /// Not asked for.
    Absent,
    /// The token's own and this many top ones.
    Top(u64),
}

/// A batch to sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SamplerBatch {
    /// Rows of logits.
    pub rows: u64,
    /// Vocabulary.
    pub vocab: u64,
    /// The choice; the most demanding request of the batch decides.
    pub choice: Choice,
    /// Logprobs.
    pub logprobs: OutputLogprobs,
}

/// What the sampler allocates for one batch.
///
/// Buffers inside compiled operators (multinomial in 0.5.8) are not in it, except those of
/// `torch.sort`, whose sizes are known from reports.
///
/// Source: SGLang 0.5.8 and 0.5.23 `sampler.forward`, recorded.
///
/// # Errors
///
/// [`TapeError::OutOfRange`]; [`TapeError::NotRecorded`] for vLLM.
pub fn sampler(code: Code, batch: &SamplerBatch) -> Result<Tape, TapeError> {
    if code == Code::Vllm019 {
        return Err(TapeError::NotRecorded { code, what: "the sampler" });
    }
    in_range(batch)?;
    let mut rec = Recorder::default();
    let positions = rec.alloc(POSITIONS, 8, &[batch.rows]);
    choose(&mut rec, code, batch);
    let logged = match batch.logprobs {
        OutputLogprobs::Absent => None,
        OutputLogprobs::Top(top) => Some(log_probs(&mut rec, code, batch, top)),
    };
    rec.release(logged.into_iter().flatten().chain([positions]));
    Ok(rec.finish())
}

pub(super) fn in_range(batch: &SamplerBatch) -> Result<(), TapeError> {
    let (min, max) = (1, 1 << 24);
    for (field, value) in [("rows", batch.rows), ("vocab_size", batch.vocab)] {
        if value < min || value > max {
            return Err(TapeError::OutOfRange { field, value, min, max });
        }
    }
    Ok(())
}

/// What presence and frequency penalties hold for a batch: one float32 row over the vocabulary each, for
/// every request of the batch as soon as one asks. They live through the pass (in the engine until the batch
/// changes).
///
/// Source: SGLang `penaltylib`, read and not recorded.
#[must_use]
pub fn penalties(rows: u64, vocab: u64) -> Tape {
    let mut rec = Recorder::default();
    for buffer in [PRESENCE, FREQUENCY] {
        rec.alloc(buffer, 4, &[rows, vocab]);
    }
    rec.finish()
}

fn choose(rec: &mut Recorder, code: Code, batch: &SamplerBatch) {
    let rows = batch.rows;
    let full = [rows, batch.vocab];
    if batch.choice == Choice::Greedy {
        rec.alloc(ARGMAX, 8, &[rows]);
        return;
    }
    let probs = rec.alloc(PROBS, 4, &full);
    rec.release([probs]);
    match batch.choice {
        Choice::Greedy => {}
        Choice::Temperature => draw(rec, code, full),
        Choice::TopKTopP => {
            rec.alloc(NEXT_IDS, 4, &[rows]);
        }
        Choice::MinP => {
            let by_top_k = rec.alloc(RENORM, 4, &full);
            let by_top_p = rec.alloc(RENORM, 4, &full);
            rec.release([by_top_k]);
            rec.alloc(NEXT_IDS, 4, &[rows]);
            rec.release([by_top_p]);
        }
        Choice::TorchSort => {
            let outputs = torch_sort(rec, full);
            draw(rec, code, full);
            rec.release(outputs);
        }
    }
}

/// One token a row from its probabilities: `multinomial` in 0.5.8, exponential noise in 0.5.23.
fn draw(rec: &mut Recorder, code: Code, full: [u64; 2]) {
    let rows = full[0];
    let mut locals = Vec::new();
    if code == Code::Sglang0523 {
        locals.push(rec.alloc(NOISE, 4, &full));
        let ratio = rec.alloc(RATIO, 4, &full);
        locals.push(rec.alloc(DRAWN, 8, &[rows]));
        rec.release([ratio]);
    } else {
        locals.push(rec.alloc(DRAWN, 8, &[rows]));
    }
    rec.alloc(NEXT_IDS, 4, &[rows]);
    rec.release(locals);
}

/// Log-probabilities for the report; what dies at the end.
fn log_probs(rec: &mut Recorder, code: Code, batch: &SamplerBatch, top: u64) -> [BufferId; 2] {
    let (rows, full) = (batch.rows, [batch.rows, batch.vocab]);
    let logged = match (batch.choice, code) {
        (Choice::Greedy, _) => rec.alloc(LOG_SOFTMAX, 4, &full),
        (_, Code::Sglang0508) => {
            let log = rec.alloc(LOG, 4, &full);
            let clamped = rec.alloc(CLAMP, 4, &full);
            rec.release([log]);
            clamped
        }
        (_, _) => rec.alloc(LOG, 4, &full),
    };
    if top > 0 {
        let best = [rec.alloc(TOP_VALUES, 4, &[rows, top]), rec.alloc(TOP_INDEX, 8, &[rows, top])];
        // 0.5.23 returns them as they are; 0.5.8 copies them to the host.
        rec.release(best.into_iter().filter(|_| code == Code::Sglang0508));
    }
    let numbers = rec.alloc(ARANGE, 8, &[rows]);
    rec.alloc(TOKEN_LOGPROBS, 4, &[rows]);
    [logged, numbers]
}

/// `torch.sort` of float32 `rows × vocab` on CUDA, outputs returned.
///
/// From 128 rows: an index copy (8 bytes an element) and double buffers of the radix sort (12);
/// below: two pair buffers (8 each), keys (4) and the double buffers. The sizes 8 and 12 are seen in
/// reports; that they live together, and all of the small form, is general knowledge.
pub(super) fn torch_sort(rec: &mut Recorder, full: [u64; 2]) -> [BufferId; 2] {
    let outputs = [rec.alloc(SORT_VALUES, 4, &full), rec.alloc(SORT_INDEX, 8, &full)];
    let mut scratch = if full[0] >= 128 {
        vec![rec.alloc(SORT_INDEX_COPY, 8, &full)]
    } else {
        vec![
            rec.alloc(SORT_PAIRS, 8, &full),
            rec.alloc(SORT_PAIRS, 8, &full),
            rec.alloc(SORT_KEYS, 4, &full),
        ]
    };
    scratch.push(rec.alloc(SORT_RADIX, 12, &full));
    rec.release(scratch);
    outputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorting_takes_32_bytes_an_element_from_128_rows() {
        let batch = |rows| SamplerBatch {
            rows,
            vocab: 152_064,
            choice: Choice::TorchSort,
            logprobs: OutputLogprobs::Absent,
        };
        let peak = |rows| sampler(Code::Sglang0508, &batch(rows)).unwrap().peak().bytes.0;
        assert_eq!(peak(256) / (256 * 152_064), 32);
        assert_eq!(peak(64) / (64 * 152_064), 44);
        assert!(sampler(Code::Sglang0508, &batch(0)).is_err());
    }

    #[test]
    fn penalties_are_two_rows_a_request_and_stay() {
        let tape = penalties(64, 152_064);
        assert_eq!(tape.peak().bytes.0, 2 * 4 * 64 * 152_064);
        assert_eq!(tape.live_after(usize::MAX - 1).len(), 2);
    }
}
