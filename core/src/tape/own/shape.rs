//! The shape of a dense decoder as execution needs it, and the weights by their part in it.

use std::fmt;

use crate::model::encoding::Encoding;

/// One layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayerShape {
    /// Width of the feed-forward part.
    pub intermediate: u64,
    /// Positions that a token sees, itself included; `None` for all before it.
    pub window: Option<u64>,
}

/// A dense decoder: RMS norm before each part, rotary embedding, grouped queries, SwiGLU.
#[derive(Clone, PartialEq, Debug)]
pub struct DecoderShape {
    /// Rows of the embedding.
    pub vocab: u64,
    /// Width of the residual stream.
    pub hidden: u64,
    /// In order.
    pub layers: Vec<LayerShape>,
    /// Query heads; a multiple of `kv_heads`.
    pub q_heads: u64,
    /// Key-value heads.
    pub kv_heads: u64,
    /// Width of a head; even.
    pub head_dim: u64,
    /// Added to the mean of squares in a norm.
    pub norm_eps: f32,
    /// Radians that each plane of a head turns by a position, scaling included: half a head of them.
    pub rope: Vec<f64>,
    /// The output head is the embedding.
    pub tied: bool,
    /// Bias of query, key and value projections.
    pub qkv_bias: bool,
    /// Bias of attention's output projection.
    pub o_bias: bool,
    /// Bias of the feed-forward projections.
    pub mlp_bias: bool,
    /// Queries and keys have a norm of their own, one head wide.
    pub qk_norm: bool,
    /// Longest sequence that the model is made for.
    pub context: u64,
}

/// The part that a weight plays.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Embedding: vocabulary × hidden.
    Embedding,
    /// Output head: vocabulary × hidden.
    Head,
    /// Norm before the output head.
    FinalNorm,
    /// Norm before attention.
    AttentionNorm,
    /// Query projection.
    Query,
    /// Key projection.
    Key,
    /// Value projection.
    Value,
    /// Attention's output projection.
    Output,
    /// Norm of a query head.
    QueryNorm,
    /// Norm of a key head.
    KeyNorm,
    /// Norm before the feed-forward part.
    MlpNorm,
    /// Gate projection.
    Gate,
    /// Up projection.
    Up,
    /// Down projection.
    Down,
    /// Bias of the query projection.
    QueryBias,
    /// Bias of the key projection.
    KeyBias,
    /// Bias of the value projection.
    ValueBias,
    /// Bias of attention's output projection.
    OutputBias,
    /// Bias of the gate projection.
    GateBias,
    /// Bias of the up projection.
    UpBias,
    /// Bias of the down projection.
    DownBias,
}

impl Role {
    /// What products and the embedding read is a matrix; all else is a vector of a row.
    #[must_use]
    pub const fn is_matrix(self) -> bool {
        matches!(
            self,
            Self::Embedding
                | Self::Head
                | Self::Query
                | Self::Key
                | Self::Value
                | Self::Output
                | Self::Gate
                | Self::Up
                | Self::Down
        )
    }
}

/// One weight.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct WeightId {
    /// Layer, where it has one.
    pub layer: Option<u32>,
    /// Its part.
    pub role: Role,
}

impl fmt::Display for WeightId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layer {layer} {:?}", self.role),
            None => write!(f, "{:?}", self.role),
        }
    }
}

impl WeightId {
    /// The bias that belongs to a projection; `None` for what never has one.
    #[must_use]
    pub const fn bias(self) -> Option<Self> {
        let role = match self.role {
            Role::Query => Role::QueryBias,
            Role::Key => Role::KeyBias,
            Role::Value => Role::ValueBias,
            Role::Output => Role::OutputBias,
            Role::Gate => Role::GateBias,
            Role::Up => Role::UpBias,
            Role::Down => Role::DownBias,
            _ => return None,
        };
        Some(Self { layer: self.layer, role })
    }
}

/// Rows and columns; a vector is one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Outputs of a projection.
    pub rows: u64,
    /// Inputs of a projection.
    pub columns: u64,
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rows {
            1 => write!(f, "[{}]", self.columns),
            rows => write!(f, "[{rows}, {}]", self.columns),
        }
    }
}

/// A weight as stored: rows one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Matrix {
    /// Rows and columns.
    pub extent: Extent,
    /// Storage of a row.
    pub encoding: Encoding,
    /// All rows.
    pub bytes: Vec<u8>,
}

/// Where an executor gets its weights: each is asked for once, in the order of [`DecoderShape::weights`].
pub trait WeightSource {
    /// Why there is none.
    type Error;

    /// The weight, of exactly the extent that the shape gives it.
    ///
    /// # Errors
    /// The source's own: a file that cannot be read, a tensor that is not there.
    fn weight(&mut self, id: WeightId) -> Result<Matrix, Self::Error>;
}

/// Why no tape can be made of a shape.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} is {value}; allowed: {allowed}")]
pub struct ShapeError {
    /// The field.
    pub what: &'static str,
    /// As given.
    pub value: u64,
    /// What would be right.
    pub allowed: &'static str,
}

impl DecoderShape {
    /// Width of all query heads.
    #[must_use]
    pub const fn q_width(&self) -> u64 {
        self.q_heads * self.head_dim
    }

    /// Width of all key heads; values are as wide.
    #[must_use]
    pub const fn kv_width(&self) -> u64 {
        self.kv_heads * self.head_dim
    }

    /// Checks what a tape rests on.
    ///
    /// # Errors
    /// The first field that is out of its range.
    pub fn check(&self) -> Result<(), ShapeError> {
        let wrong = |what, value, allowed| Err(ShapeError { what, value, allowed });
        for (what, value) in
            [("vocabulary", self.vocab), ("hidden size", self.hidden), ("context", self.context)]
        {
            if !(1..=1 << 32).contains(&value) {
                return wrong(what, value, "1 to 2^32");
            }
        }
        if !(1..=1024).contains(&self.layers.len()) {
            return wrong("layers", self.layers.len() as u64, "1 to 1024");
        }
        if !(1..=1 << 12).contains(&self.head_dim) || !self.head_dim.is_multiple_of(2) {
            return wrong("head width", self.head_dim, "an even number up to 4096");
        }
        let heads = self.q_heads;
        if !(1..=1 << 16).contains(&self.kv_heads) || !(1..=1 << 16).contains(&heads) {
            return wrong("heads", heads.min(self.kv_heads), "1 to 65536");
        }
        if !heads.is_multiple_of(self.kv_heads) {
            return wrong("query heads", heads, "a multiple of the key-value heads");
        }
        if self.rope.len() as u64 * 2 != self.head_dim {
            return wrong("planes of rotation", self.rope.len() as u64, "half the head width");
        }
        for layer in &self.layers {
            if !(1..=1 << 24).contains(&layer.intermediate) {
                return wrong("feed-forward width", layer.intermediate, "1 to 2^24");
            }
            if layer.window == Some(0) {
                return wrong("window", 0, "at least 1");
            }
        }
        Ok(())
    }

    /// Rows and columns of a weight; `None` for one that this model does not have.
    #[must_use]
    pub fn extent(&self, id: WeightId) -> Option<Extent> {
        let (hidden, head) = (self.hidden, self.head_dim);
        let (q, kv) = (self.q_width(), self.kv_width());
        let layer = match id.layer {
            Some(layer) => Some(self.layers.get(layer as usize)?),
            None => None,
        };
        let is = |rows, columns| Some(Extent { rows, columns });
        let when = |there: bool, width| there.then_some(Extent { rows: 1, columns: width });
        let Some(layer) = layer else {
            return match id.role {
                Role::Embedding => is(self.vocab, hidden),
                Role::Head if !self.tied => is(self.vocab, hidden),
                Role::FinalNorm => is(1, hidden),
                _ => None,
            };
        };
        let wide = layer.intermediate;
        match id.role {
            Role::AttentionNorm | Role::MlpNorm => is(1, hidden),
            Role::Query => is(q, hidden),
            Role::Key | Role::Value => is(kv, hidden),
            Role::Output => is(hidden, q),
            Role::Gate | Role::Up => is(wide, hidden),
            Role::Down => is(hidden, wide),
            Role::QueryNorm | Role::KeyNorm => when(self.qk_norm, head),
            Role::QueryBias => when(self.qkv_bias, q),
            Role::KeyBias | Role::ValueBias => when(self.qkv_bias, kv),
            Role::OutputBias => when(self.o_bias, hidden),
            Role::GateBias | Role::UpBias => when(self.mlp_bias, wide),
            Role::DownBias => when(self.mlp_bias, hidden),
            Role::Embedding | Role::Head | Role::FinalNorm => None,
        }
    }

    /// All weights of the model: those of no layer, then layer by layer.
    pub fn weights(&self) -> impl Iterator<Item = WeightId> {
        let outside = [Role::Embedding, Role::Head, Role::FinalNorm];
        let outside = outside.into_iter().map(|role| WeightId { layer: None, role });
        let layers = 0..self.layers.len() as u32;
        let inside =
            layers.flat_map(|layer| IN_LAYER.map(|role| WeightId { layer: Some(layer), role }));
        outside.chain(inside).filter(|id| self.extent(*id).is_some())
    }
}

const IN_LAYER: [Role; 18] = [
    Role::AttentionNorm,
    Role::Query,
    Role::Key,
    Role::Value,
    Role::Output,
    Role::QueryNorm,
    Role::KeyNorm,
    Role::MlpNorm,
    Role::Gate,
    Role::Up,
    Role::Down,
    Role::QueryBias,
    Role::KeyBias,
    Role::ValueBias,
    Role::OutputBias,
    Role::GateBias,
    Role::UpBias,
    Role::DownBias,
];
