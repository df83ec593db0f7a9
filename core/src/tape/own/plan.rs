//! The static arena: an offset for every buffer of a tape, found before the first step.
//!
//! Sizes grow with tokens and outputs, so the offsets of the largest step hold for every smaller one.

use crate::units::Bytes;

use super::{OwnTape, StepSize};

/// Every offset is a multiple of this: a cache line, and a vector of 16 float32.
pub const ALIGNMENT: Bytes = Bytes(64);

/// What the scheduler may form at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepLimits {
    /// New tokens of all requests in one step.
    pub tokens: u64,
    /// Rows of logits in one step; at most `tokens` are ever asked for.
    pub outputs: u64,
}

/// Why there is no plan.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlanError {
    /// A limit out of its range.
    #[error("{what} is {value}; allowed: 1 to {most}")]
    Limit {
        /// Which.
        what: &'static str,
        /// As given.
        value: u64,
        /// The largest that is allowed.
        most: u64,
    },
    /// Larger than what can be addressed.
    #[error(
        "the arena of a step of {tokens} tokens and {outputs} outputs is larger than 2^62 bytes"
    )]
    TooLarge {
        /// Tokens of the largest step.
        tokens: u64,
        /// Outputs of the largest step.
        outputs: u64,
    },
}

/// Where each buffer lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArenaPlan {
    /// Offset by the buffer's number.
    pub offsets: Vec<Bytes>,
    /// Size of the arena.
    pub total: Bytes,
    /// The largest step.
    pub limits: StepLimits,
}

impl ArenaPlan {
    /// Packs the buffers of the largest step by their lives: the largest first, each at the lowest place
    /// that no buffer of an overlapping life holds.
    ///
    /// # Errors
    /// [`PlanError`] for limits out of range and sizes that cannot be addressed.
    pub fn new(tape: &OwnTape, limits: StepLimits) -> Result<Self, PlanError> {
        let range = [("tokens of a step", limits.tokens, 1 << 32)];
        let range = range.into_iter().chain([("outputs of a step", limits.outputs, limits.tokens)]);
        for (what, value, most) in range {
            if !(1..=most).contains(&value) {
                return Err(PlanError::Limit { what, value, most });
            }
        }
        let step = StepSize { tokens: limits.tokens, outputs: limits.outputs };
        let too_large = || PlanError::TooLarge { tokens: limits.tokens, outputs: limits.outputs };
        let mut sizes = Vec::new();
        let mut sum = 0_u64;
        for buffer in &tape.buffers {
            let bytes = buffer.bytes(step);
            sum = sum.saturating_add(bytes.0).saturating_add(ALIGNMENT.0);
            if sum >= 1 << 62 {
                return Err(too_large());
            }
            sizes.push(bytes.round_up_to(ALIGNMENT).0);
        }
        let offsets = pack(tape, &sizes);
        let ends = offsets.iter().zip(&sizes).map(|(start, size)| start + size);
        let total = Bytes(ends.max().unwrap_or(0));
        Ok(Self { offsets: offsets.into_iter().map(Bytes).collect(), total, limits })
    }

    /// Whether a step is within the plan.
    #[must_use]
    pub const fn covers(&self, step: StepSize) -> bool {
        step.tokens <= self.limits.tokens && step.outputs <= self.limits.outputs
    }
}

fn pack(tape: &OwnTape, sizes: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(sizes[*i]), *i));
    let mut offsets = vec![0_u64; sizes.len()];
    let mut placed: Vec<usize> = Vec::new();
    for one in order {
        let life = &tape.buffers[one];
        let mut taken: Vec<(u64, u64)> = placed
            .iter()
            .filter(|other| {
                let other = &tape.buffers[**other];
                life.first <= other.last && other.first <= life.last
            })
            .map(|other| (offsets[*other], offsets[*other] + sizes[*other]))
            .collect();
        taken.sort_unstable();
        let mut at = 0;
        for (start, end) in taken {
            if at + sizes[one] <= start {
                break;
            }
            at = at.max(end);
        }
        offsets[one] = at;
        placed.push(one);
    }
    offsets
}
