//! All-reduce of a `tokens × hidden` tensor: who allocates.

use super::event::{Buffer, BufferId};
use super::recorder::Recorder;
use super::setup::{Code, Cx};

/// Largest message of SGLang's custom all-reduce, which is out of place; a larger one goes to NCCL in
/// place. Source: SGLang `custom_all_reduce`, `_MAX_SIZE`.
const CUSTOM_MAX: u64 = 8 << 20;

/// The new tensor of an all-reduce over the hidden states, when the engine makes one: SGLang for
/// messages of at most 8 MiB that are whole 16-byte words, vLLM always.
pub(super) fn all_reduce(
    cx: &Cx<'_>,
    rec: &mut Recorder,
    buffer: &'static Buffer,
) -> Option<BufferId> {
    if cx.setup.tp == 1 {
        return None;
    }
    let message = cx.tokens().saturating_mul(cx.h()).saturating_mul(2);
    let new = match cx.setup.code {
        Code::Vllm019 => true,
        Code::Sglang0508 | Code::Sglang0523 => message <= CUSTOM_MAX && message.is_multiple_of(16),
    };
    new.then(|| rec.alloc(buffer, 2, &[cx.tokens(), cx.h()]))
}
