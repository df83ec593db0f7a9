//! Arguments of the kernels. `T` is the model's number, bf16 or f16; rows follow one another
//! without gaps.

use crate::ffi::memory::DevicePointer;
use bytemuck::{Pod, Zeroable};
use plimsoll_core::model::encoding::Encoding;

/// Heads of a layer on this card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heads {
    /// Of queries.
    pub queries: u32,
    /// Of keys and values.
    pub kv: u32,
    /// Elements of a head.
    pub width: u32,
}

impl Heads {
    /// Elements of a row: queries, keys, values side by side.
    #[must_use]
    pub fn row(&self) -> u64 {
        u64::from(self.width) * (u64::from(self.queries) + 2 * u64::from(self.kv))
    }
}

/// The pool of keys and values, and which pages a sequence has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pages {
    /// The pool; page `p` begins at `p · page_bytes`.
    pub pool: DevicePointer,
    /// Bytes of a page, all layers.
    pub page_bytes: u64,
    /// Positions of a page.
    pub page_tokens: u32,
    /// `int` for each sequence: where its pages begin in `tables`.
    pub table_start: DevicePointer,
    /// `int`: numbers of pages.
    pub tables: DevicePointer,
}

/// Rows of the embedding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Embed {
    /// `T[rows][width]`.
    pub out: DevicePointer,
    /// `T[vocabulary][width]`.
    pub table: DevicePointer,
    /// `unsigned[rows]`.
    pub tokens: DevicePointer,
    /// How many.
    pub rows: u32,
    /// Elements of a row.
    pub width: u32,
}

/// RMS norm, with the residual before it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RmsNorm {
    /// `T[rows][width]`; without it only `x` is changed.
    pub out: Option<DevicePointer>,
    /// `T[rows][width]`; changed when `add` is given.
    pub x: DevicePointer,
    /// `T[rows][width]`.
    pub add: Option<DevicePointer>,
    /// `float[width]`.
    pub weight: DevicePointer,
    /// How many.
    pub rows: u32,
    /// Elements of a row.
    pub width: u32,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

/// RMS norm of heads inside rows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HeadNorm {
    /// `T[rows][row_width]`.
    pub x: DevicePointer,
    /// `float[head_width]`.
    pub weight: DevicePointer,
    /// How many.
    pub rows: u32,
    /// Elements of a row.
    pub row_width: u32,
    /// Element of a row where the first head begins.
    pub start: u32,
    /// Heads, one after another.
    pub heads: u32,
    /// Elements of a head.
    pub head_width: u32,
    /// Added to the mean of squares.
    pub epsilon: f32,
}

/// Rotation, and the way into the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RopeStore {
    /// `T[rows]` of [`Heads::row`].
    pub qkv: DevicePointer,
    /// `int[rows]`; negative for padding.
    pub positions: DevicePointer,
    /// `int[rows]`: which sequence.
    pub sequences: DevicePointer,
    /// `float[position][head_width / 2]`.
    pub cos: DevicePointer,
    /// As `cos`.
    pub sin: DevicePointer,
    /// Which layer.
    pub layer: u32,
    /// How many.
    pub rows: u32,
}

/// What both kinds of attention take.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attention {
    /// `T[rows][query heads · head width]`.
    pub out: DevicePointer,
    /// `T[rows]` of [`Heads::row`], rotated.
    pub qkv: DevicePointer,
    /// Which layer.
    pub layer: u32,
    /// Positions that are seen, the own included; 0 for all.
    pub window: u32,
    /// Factor of the scores.
    pub scale: f32,
}

/// Attention of single rows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DecodeAttention {
    /// What both kinds take.
    pub attention: Attention,
    /// `float`, for more than one split: see `Kernels::partial_bytes`.
    pub partial: DevicePointer,
    /// `int[rows]`; negative for padding.
    pub positions: DevicePointer,
    /// `int[rows]`.
    pub sequences: DevicePointer,
    /// How many.
    pub rows: u32,
    /// Parts in which the positions of a row are worked on.
    pub splits: u32,
}

/// Attention of tiles of rows.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PrefillAttention {
    /// What both kinds take.
    pub attention: Attention,
    /// [`Tile`]s.
    pub tiles: DevicePointer,
    /// How many.
    pub count: u32,
}

/// Up to 64 rows of one sequence.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Pod, Zeroable)]
pub struct Tile {
    /// First row.
    pub row: i32,
    /// How many; 0 for padding.
    pub rows: i32,
    /// Which sequence.
    pub sequence: i32,
    /// Position of the first row.
    pub position: i32,
}

/// How a token is chosen.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Default, Debug, Pod, Zeroable)]
pub struct Draw {
    /// 0: the highest logit, the lowest id of equals.
    pub temperature: f32,
    /// How many stay; 0 for all.
    pub top_k: i32,
    /// Sum of probabilities that stays.
    pub top_p: f32,
    /// Least probability, relative to the highest.
    pub min_p: f32,
    /// The draw, from 0 to below 1.
    pub unit: f64,
}

/// Blocks of memory that are copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyBlocks {
    /// Where to.
    pub to: DevicePointer,
    /// Where from.
    pub from: DevicePointer,
    /// `long long[count][2]`: a block of `from`, a block of `to`.
    pub pairs: DevicePointer,
    /// How many.
    pub count: u32,
    /// Bytes of a block, a multiple of 16.
    pub block_bytes: u64,
}

/// Stored weights, part of each row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dequantise {
    /// How they are stored.
    pub encoding: Encoding,
    /// `T[rows]`, `out_stride` elements from row to row.
    pub out: DevicePointer,
    /// The stored rows.
    pub stored: DevicePointer,
    /// How many.
    pub rows: u32,
    /// Elements of a stored row.
    pub columns: u32,
    /// First element of each row that is wanted.
    pub first_column: u32,
    /// How many of each row.
    pub width: u32,
    /// Elements from row to row of `out`.
    pub out_stride: u32,
}
