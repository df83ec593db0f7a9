//! Tensor parallelism: what of a model one rank holds.
//!
//! Heads and feed-forward columns are shared out in order; what stands on the residual stream (embedding,
//! norms, head) is whole on every rank. The two projections that join the stream give each rank a part of
//! the sum, and their biases are added once, by rank 0.
//!
//! Source: Megatron-LM's column- and row-parallel layers, as SGLang 0.5 and vLLM 0.19 use them for dense decoders.

use super::{DecoderShape, Role, ShapeError};

/// How the ranks share a weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Split {
    /// Every rank has all of it.
    Whole,
    /// Consecutive rows: outputs of a projection, values of its bias.
    Rows,
    /// Consecutive columns: inputs of a projection.
    Columns,
    /// Rank 0 has it, the others have zeros.
    First,
}

impl Role {
    /// How ranks share a weight of this part.
    #[must_use]
    pub const fn split(self) -> Split {
        match self {
            Self::Query
            | Self::Key
            | Self::Value
            | Self::Gate
            | Self::Up
            | Self::QueryBias
            | Self::KeyBias
            | Self::ValueBias
            | Self::GateBias
            | Self::UpBias => Split::Rows,
            Self::Output | Self::Down => Split::Columns,
            Self::OutputBias | Self::DownBias => Split::First,
            Self::Embedding
            | Self::Head
            | Self::FinalNorm
            | Self::AttentionNorm
            | Self::QueryNorm
            | Self::KeyNorm
            | Self::MlpNorm => Split::Whole,
        }
    }
}

impl DecoderShape {
    /// The shape of one of `ranks` ranks.
    ///
    /// # Errors
    /// [`ShapeError`] when heads or feed-forward widths cannot be shared evenly.
    pub fn of_rank(&self, ranks: u64) -> Result<Self, ShapeError> {
        let part = |what, value: u64, allowed| {
            if ranks > 0 && value.is_multiple_of(ranks) {
                Ok(value / ranks)
            } else {
                Err(ShapeError { what, value, allowed })
            }
        };
        let allowed = "a multiple of the ranks of tensor parallelism";
        let mut own = self.clone();
        own.q_heads = part("query heads", self.q_heads, allowed)?;
        own.kv_heads = part("key-value heads", self.kv_heads, allowed)?;
        for layer in &mut own.layers {
            layer.intermediate = part("feed-forward width", layer.intermediate, allowed)?;
        }
        Ok(own)
    }
}
