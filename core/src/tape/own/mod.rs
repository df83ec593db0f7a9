//! Plimsoll's own tape: one step of a dense decoder as a list of operations over named buffers, and the
//! static arena that holds them. The host executes it; a device can execute the same list.
//!
//! Unlike an engine tape it computes: every operation says what it reads and writes. A buffer's size is a
//! function of the step's tokens and output rows, its life is a range of operations.

mod build;
mod plan;
mod shape;
mod shard;
mod step;
#[cfg(test)]
mod tests;

pub use build::{Execution, Workspace, tape};
pub use plan::{ALIGNMENT, ArenaPlan, PlanError, StepLimits};
pub use shape::{
    DecoderShape, Extent, LayerShape, Matrix, Role, ShapeError, WeightId, WeightSource,
};
pub use shard::Split;
pub use step::{Bounds, Draw, Outputs, Sequence, SequenceError};

use crate::units::Bytes;

/// A buffer of the tape, numbered in the order of the first use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct BufferId(pub u32);

/// Of what a buffer has one row each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Per {
    /// New tokens of the step.
    Token,
    /// Rows whose logits are asked for.
    Output,
    /// Nothing: one for the step.
    Step,
}

/// One buffer: rows of values, as wide as the executing backend keeps them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Name as printed.
    pub name: &'static str,
    /// Layer, where it has one.
    pub layer: Option<u32>,
    /// What its rows stand for.
    pub per: Per,
    /// Values of a row.
    pub width: u64,
    /// Bytes of a value: 4 for float32, 2 for bfloat16 and float16.
    pub value_bytes: u64,
    /// First operation that needs it.
    pub first: usize,
    /// Last operation that needs it.
    pub last: usize,
}

/// The size of one step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StepSize {
    /// New tokens, prompt chunks and decodes together.
    pub tokens: u64,
    /// Rows whose logits are asked for.
    pub outputs: u64,
}

impl Buffer {
    /// Values that it holds in a step; saturating.
    #[must_use]
    pub const fn values(&self, step: StepSize) -> u64 {
        let rows = match self.per {
            Per::Token => step.tokens,
            Per::Output => step.outputs,
            Per::Step => 1,
        };
        rows.saturating_mul(self.width)
    }

    /// Bytes of it in a step.
    #[must_use]
    pub const fn bytes(&self, step: StepSize) -> Bytes {
        Bytes(self.values(step).saturating_mul(self.value_bytes))
    }
}

/// What a projection does with its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Writes it.
    Store,
    /// Adds it to what is there: the residual stream.
    Add,
}

/// One operation. Rows of `from` and `to` are tokens unless said otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Rows of the embedding by token id.
    Embed {
        /// Residual stream.
        to: BufferId,
    },
    /// RMS norm of each row.
    Norm {
        /// Scale.
        weight: WeightId,
        /// What is added to the input before, and stays added: the sum that the ranks have made.
        add: Option<BufferId>,
        /// Input.
        from: BufferId,
        /// Output.
        to: BufferId,
    },
    /// Rows times the transposes of matrices that stand under each other: their outputs stand side by side.
    Linear {
        /// Matrices; of a bias with the same layer, [`WeightId::bias`] says the name.
        weights: Vec<WeightId>,
        /// Input.
        from: BufferId,
        /// Output.
        to: BufferId,
        /// Scratch of the executing library, where the plan gives one.
        workspace: Option<BufferId>,
        /// Written or added.
        effect: Effect,
    },
    /// RMS norm of each head of queries or keys, in place.
    HeadNorm {
        /// Scale, one head wide.
        weight: WeightId,
        /// Buffer of queries, keys and values side by side.
        at: BufferId,
        /// First value of the heads in a row.
        start: u64,
        /// Heads.
        heads: u64,
    },
    /// Rotary embedding of heads, in place: halves of a head are the two parts of the plane.
    Rope {
        /// Buffer of queries, keys and values side by side.
        at: BufferId,
        /// First value of the heads in a row.
        start: u64,
        /// Heads.
        heads: u64,
    },
    /// Keys and values of the new tokens go to their slots in the pool.
    StoreKv {
        /// Layer.
        layer: u32,
        /// Buffer of queries, keys and values side by side.
        from: BufferId,
    },
    /// Causal attention of the new tokens over their requests' slots.
    Attend {
        /// Layer.
        layer: u32,
        /// Buffer whose rows begin with the queries.
        from: BufferId,
        /// Output: query heads times the head's width.
        to: BufferId,
        /// Positions that a token sees, itself included; `None` for all before it.
        window: Option<u64>,
    },
    /// SiLU of the gate times up, side by side in `from`.
    SwiGlu {
        /// Gate and up.
        from: BufferId,
        /// Output, half as wide.
        to: BufferId,
    },
    /// Sums a buffer over all ranks, in place: each then holds the sum.
    AllReduce {
        /// The rank's part.
        at: BufferId,
    },
    /// Adds one buffer to another.
    Add {
        /// What is added.
        from: BufferId,
        /// What it is added to.
        to: BufferId,
    },
    /// The rows whose logits are asked for.
    Gather {
        /// Rows by token.
        from: BufferId,
        /// Rows by output.
        to: BufferId,
    },
}

impl Op {
    /// Buffers that it reads or writes.
    pub fn buffers(&self) -> impl Iterator<Item = BufferId> {
        let (a, b, c) = match self {
            Self::Embed { to } => (Some(*to), None, None),
            Self::Norm { add, from, to, .. } => (Some(*from), Some(*to), *add),
            Self::Attend { from, to, .. }
            | Self::SwiGlu { from, to }
            | Self::Add { from, to }
            | Self::Gather { from, to } => (Some(*from), Some(*to), None),
            Self::Linear { from, to, workspace, .. } => (Some(*from), Some(*to), *workspace),
            Self::HeadNorm { at, .. } | Self::Rope { at, .. } | Self::AllReduce { at } => {
                (Some(*at), None, None)
            }
            Self::StoreKv { from, .. } => (Some(*from), None, None),
        };
        [a, b, c].into_iter().flatten()
    }
}

/// One step of a decoder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OwnTape {
    /// In order.
    pub ops: Vec<Op>,
    /// By number.
    pub buffers: Vec<Buffer>,
    /// What is there after the last operation: logits, one row an output.
    pub logits: BufferId,
}

impl OwnTape {
    /// A buffer by its number.
    #[must_use]
    pub fn buffer(&self, id: BufferId) -> Option<&Buffer> {
        self.buffers.get(id.0 as usize)
    }

    /// Bytes that are live at the fullest operation of a step: no arena can be smaller.
    #[must_use]
    pub fn live_bytes_max(&self, step: StepSize) -> Bytes {
        let at = |op: usize| {
            let live = self.buffers.iter().filter(|b| b.first <= op && op <= b.last);
            live.fold(0_u64, |sum, b| sum.saturating_add(b.bytes(step).0))
        };
        Bytes((0..self.ops.len()).map(at).max().unwrap_or(0))
    }
}
