//! Scores of a sparse-attention indexer (DeepSeek V3.2 and V4, GLM 5): not divided by tensor
//! parallelism, and linear in tokens times context.

use super::buffers::{INDEXER_MASK, INDEXER_SCORES};
use super::event::Tape;
use super::recorder::Recorder;
use super::setup::TapeError;

/// Whether the indexer scores in a kernel or by dense tensor operators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexerForm {
    /// Scores only.
    Kernel,
    /// Scores and two masks of a byte an element.
    Dense,
}

/// One call of an indexer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexerCall {
    /// Query rows: tokens of the chunk, or captured rows.
    pub rows: u64,
    /// Longest context, tokens.
    pub context: u64,
    /// Tokens that share one index key: 1 (V3.2, GLM 5), 4 (V4).
    pub ratio: u64,
    /// Kernel or dense.
    pub form: IndexerForm,
}

/// What one call allocates. Columns: index keys in pages of 64, padded to 256.
///
/// Source: sizes printed in SGLang reports (#35201, #34155, #33246, PR 39187), which this equals.
///
/// # Errors
///
/// [`TapeError::OutOfRange`].
pub fn indexer(call: &IndexerCall) -> Result<Tape, TapeError> {
    for (field, value, max) in [
        ("rows", call.rows, 1 << 24),
        ("context", call.context, 1 << 32),
        ("ratio", call.ratio, 1 << 16),
    ] {
        if value == 0 || value > max {
            return Err(TapeError::OutOfRange { field, value, min: 1, max });
        }
    }
    let keys = call.context.div_ceil(call.ratio);
    let columns = keys.next_multiple_of(64).next_multiple_of(256);
    let mut rec = Recorder::default();
    let scores = rec.alloc(INDEXER_SCORES, 4, &[call.rows, columns]);
    if call.form == IndexerForm::Dense {
        let masks = [0, 1].map(|_| rec.alloc(INDEXER_MASK, 1, &[call.rows, columns]));
        rec.release(masks);
    }
    rec.release([scores]);
    Ok(rec.finish())
}
