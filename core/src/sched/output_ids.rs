//! Token ids of outputs, which no model computes here.

use super::RequestId;
use crate::kv::Runs;

/// Token ids that the model is taken to make: output `k` of request `r` is `first + r * stride + k`, and its
/// last is `eos`. They matter where outputs are matched again: later turns of a conversation, and requests
/// that were retracted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutputIds {
    /// Output 0 of request 0.
    pub first: u64,
    /// Distance between requests; more than any request makes.
    pub stride: u64,
    /// End of sequence.
    pub eos: u64,
}

impl Default for OutputIds {
    fn default() -> Self {
        Self { first: 1 << 56, stride: 1 << 24, eos: 2 }
    }
}

impl OutputIds {
    /// Output `k` of a request whose model ends it after `output_len`.
    #[must_use]
    pub const fn token(self, request: RequestId, k: u64, output_len: u64) -> u64 {
        if k.wrapping_add(1) == output_len {
            return self.eos;
        }
        self.first.wrapping_add(request.0.wrapping_mul(self.stride)).wrapping_add(k)
    }

    /// The first `count` outputs of a request that made more than that: the next turn's prompt.
    #[must_use]
    pub fn outputs(self, request: RequestId, count: u64) -> Runs {
        Runs::of(self.token(request, 0, 0), count)
    }
}
