//! vLLM's V1 sampler over float32 logits `rows × vocab`, which exist before.

use super::{
    buffers::{ARGMAX, DRAWN, LOG_SOFTMAX, NEXT_IDS, NOISE, PROBS},
    event::Tape,
    recorder::Recorder,
    sampler::{Choice, OutputLogprobs, SamplerBatch, in_range, torch_sort},
    setup::TapeError,
};

/// What the sampler allocates for one batch: 4 bytes an element each for probabilities and exponential noise,
/// 4 more for raw logprobs, and what sorting takes where no fused kernel does top-k and top-p.
///
/// Source: vLLM V1 `Sampler.forward`, `TopKTopPSampler`, `random_sample`; read, not recorded.
///
/// # Errors
///
/// [`TapeError::OutOfRange`].
pub fn vllm_sampler(batch: &SamplerBatch) -> Result<Tape, TapeError> {
    in_range(batch)?;
    let (rows, full) = (batch.rows, [batch.rows, batch.vocab]);
    let mut rec = Recorder::default();
    let logprobs = match batch.logprobs {
        OutputLogprobs::Absent => None,
        OutputLogprobs::Top(_) => Some(rec.alloc(LOG_SOFTMAX, 4, &full)),
    };
    if batch.choice == Choice::Greedy {
        rec.alloc(ARGMAX, 8, &[rows]);
        rec.release(logprobs);
        return Ok(rec.finish());
    }
    if batch.choice == Choice::TorchSort {
        let sorted = torch_sort(&mut rec, full);
        rec.release(sorted);
    }
    let probs = rec.alloc(PROBS, 4, &full);
    let drawn = match batch.choice {
        // A fused kernel draws from the probabilities.
        Choice::TopKTopP => None,
        _ => Some([rec.alloc(NOISE, 4, &full), rec.alloc(DRAWN, 8, &[rows])]),
    };
    rec.alloc(NEXT_IDS, 4, &[rows]);
    rec.release(drawn.into_iter().flatten().chain([probs]).chain(logprobs));
    Ok(rec.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_an_element_by_choice() {
        let peak = |choice| {
            let logprobs = OutputLogprobs::Absent;
            let batch = SamplerBatch { rows: 256, vocab: 152_064, choice, logprobs };
            vllm_sampler(&batch).unwrap().peak().bytes.0 / (256 * 152_064)
        };
        assert_eq!(peak(Choice::Greedy), 0);
        assert_eq!((peak(Choice::Temperature), peak(Choice::TopKTopP)), (8, 4));
        assert_eq!(peak(Choice::TorchSort), 32);
    }
}
