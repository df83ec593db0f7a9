//! Dense gated MLP of SGLang.

use super::buffers::{ACT, DOWN, GATE_UP, MLP_REDUCED};
use super::collective::all_reduce;
use super::event::BufferId;
use super::recorder::Recorder;
use super::setup::Cx;
use crate::estimate::shape::narrow;

/// The MLP's output. `gate_up` and the activation keep their names until it returns; in 0.5.8 the
/// all-reduce runs inside, in 0.5.23 after it.
pub(super) fn mlp(cx: &Cx<'_>, rec: &mut Recorder, input: BufferId) -> BufferId {
    let (t, i) = (cx.tokens(), narrow(cx.rank.i));
    let gate_up = rec.alloc(GATE_UP, 2, &[t, 2 * i]);
    let act = rec.alloc(ACT, 2, &[t, i]);
    let down = rec.alloc(DOWN, 2, &[t, cx.h()]);
    let locals = [input, gate_up, act];
    let reduced = if cx.is_0508() {
        let reduced = all_reduce(cx, rec, MLP_REDUCED);
        rec.release(locals);
        reduced
    } else {
        rec.release(locals);
        all_reduce(cx, rec, MLP_REDUCED)
    };
    rec.release(reduced.map(|_| down));
    reduced.unwrap_or(down)
}
