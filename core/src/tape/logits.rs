//! From the final hidden states to logits: the last row of each request, the head, the gather.

use super::buffers::{
    LAST_CUMSUM, LAST_ROWS, LOGITS, LOGITS_CONTIGUOUS, LOGITS_F32, LOGITS_GATHERED,
};
use super::event::BufferId;
use super::recorder::Recorder;
use super::setup::{Code, Cx, Phase};

/// Logits of the step's requests; the hidden states die with the rest.
pub(super) fn last_rows(cx: &Cx<'_>, rec: &mut Recorder, hidden: BufferId) {
    let rows = cx.step.requests;
    if cx.setup.code == Code::Vllm019 {
        rec.alloc(LAST_ROWS, 2, &[rows, cx.h()]);
        head(cx, rec, rows);
        return;
    }
    let mut locals = vec![hidden];
    if cx.phase == Phase::Prefill {
        let ends = rec.alloc(LAST_CUMSUM, 8, &[rows]);
        let last = rec.alloc(LAST_CUMSUM, 8, &[rows]);
        rec.release([ends]);
        locals.push(rec.alloc(LAST_ROWS, 2, &[rows, cx.h()]));
        if cx.is_0508() {
            locals.push(last);
        } else {
            rec.release([last]);
        }
    }
    let logits = head(cx, rec, rows);
    float32(cx, rec, rows);
    locals.push(logits);
    rec.release(locals);
}

/// The head over `rows` rows: this rank's part of the vocabulary, gathered and made contiguous
/// (`rows × vocab`, 16-bit). One row is contiguous as gathered.
pub(super) fn head(cx: &Cx<'_>, rec: &mut Recorder, rows: u64) -> BufferId {
    let (tp, shard) = (cx.setup.tp, cx.vocab_shard());
    let part = rec.alloc(LOGITS, 2, &[rows, shard]);
    if tp == 1 {
        return part;
    }
    let gathered = rec.alloc(LOGITS_GATHERED, 2, &[tp, rows, shard]);
    if rows == 1 {
        rec.release([part]);
        return gathered;
    }
    let contiguous = rec.alloc(LOGITS_CONTIGUOUS, 2, &[rows, tp, shard]);
    rec.release([part, gathered]);
    contiguous
}

/// The float32 copy that sampling works on.
pub(super) fn float32(cx: &Cx<'_>, rec: &mut Recorder, rows: u64) -> BufferId {
    rec.alloc(LOGITS_F32, 4, &[rows, cx.model.shape.vocab])
}
