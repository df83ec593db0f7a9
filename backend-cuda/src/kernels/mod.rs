//! The device code of this project, embedded, and its kernels as typed calls: sizes of memory are
//! checked, grids are computed here. What each kernel computes is said in docs/kernels.md.

mod arguments;
mod rebuild;
mod sizes;

pub use arguments::{
    Attention, CopyBlocks, DecodeAttention, Dequantise, Draw, Embed, HeadNorm, Heads, Pages,
    PrefillAttention, RmsNorm, RopeStore, Tile,
};
pub use rebuild::{compile, rebuild};

use crate::card::Card;
use crate::failure::Failure;
use crate::ffi::memory::DevicePointer;
use crate::gemm::Float;
use crate::module::{Argument, Function, Launch, Module};
use crate::stream::Stream;
use plimsoll_core::model::encoding::Encoding;
use sizes as launch;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Code for compute capabilities 9.0, 10.0 and 12.0, and portable code from 9.0 on.
pub const IMAGE: &[u8] = include_bytes!("../../kernels/plimsoll.fatbin");

/// How keys and values are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvFloat {
    /// As the model's numbers.
    Same,
    /// fp8 e4m3, without a scale.
    Fp8,
}

/// The kernels for one arithmetic type, one width of heads, and one way to store keys and values.
pub struct Kernels {
    float: Float,
    kv: KvFloat,
    head_width: u32,
    module: Module,
    embed: Function,
    rms_norm: Function,
    head_norm: Function,
    bias: Function,
    rope_store: Function,
    decode: Function,
    merge: Function,
    prefill: Function,
    swiglu: Function,
    gather: Function,
    sample: Function,
    copy_blocks: Function,
    dequant: BTreeMap<&'static str, Function>,
}

use Argument::{F32, I32, Pointer, U64};

fn int(value: u32) -> Argument {
    I32(value.cast_signed())
}

/// Fails when memory is shorter than what a kernel touches.
fn need(what: &str, memory: DevicePointer, bytes: u64) -> Result<(), Failure> {
    if memory.size() >= bytes {
        return Ok(());
    }
    Err(Failure::misuse("kernel", format!("{what} has {} bytes for {bytes}", memory.size())))
}

fn cells(a: u32, b: u32) -> u64 {
    u64::from(a) * u64::from(b)
}

const fn rows(rows: u32, threads: u32) -> Launch {
    Launch { grid: [rows, 1, 1], block: [threads, 1, 1], shared: 0 }
}

/// Blocks that share a row of `work` units, so that a few rows fill the device too.
fn shared_row(rows: u32, work: u64, threads: u32) -> Launch {
    const MOST: u64 = 64;
    let blocks = work.div_ceil(u64::from(threads)).clamp(1, MOST) as u32;
    Launch { grid: [rows, blocks, 1], block: [threads, 1, 1], shared: 0 }
}

impl Kernels {
    /// Loads the embedded code on a card and finds the kernels.
    ///
    /// # Errors
    ///
    /// [`Failure`]; `Misuse` when there is no code for the device, or heads are wider than 256.
    pub fn load(
        card: &Rc<Card>,
        float: Float,
        head_width: u32,
        kv: KvFloat,
    ) -> Result<Self, Failure> {
        Self::of(Module::load(card, IMAGE)?, float, head_width, kv)
    }

    /// The kernels of a module that was built from the same sources.
    ///
    /// # Errors
    ///
    /// As [`Self::load`].
    pub fn of(module: Module, float: Float, head_width: u32, kv: KvFloat) -> Result<Self, Failure> {
        let (width, shared) = match head_width {
            0..=64 => (64, launch::PREFILL_ATTENTION_SHARED_D64),
            65..=128 => (128, launch::PREFILL_ATTENTION_SHARED_D128),
            129..=256 => (256, launch::PREFILL_ATTENTION_SHARED_D256),
            _ => {
                return Err(Failure::misuse("kernel", format!("heads {head_width} wide")));
            }
        };
        let t = suffix(float);
        let kv8 = if kv == KvFloat::Fp8 { "_kv8" } else { "" };
        let find = |name: &str| module.function(&format!("{name}_{t}"));
        let attention = |name: &str| module.function(&format!("{name}_{t}_d{width}{kv8}"));
        let prefill = attention("prefill_attention")?;
        prefill.allow_shared(shared)?;
        Ok(Self {
            float,
            kv,
            head_width: width,
            embed: find("embed")?,
            rms_norm: find("rms_norm")?,
            head_norm: find("head_norm")?,
            bias: find("bias")?,
            rope_store: module.function(&format!("rope_store_{t}{kv8}"))?,
            decode: attention("decode_attention")?,
            merge: find("merge_attention")?,
            prefill,
            swiglu: find("swiglu")?,
            gather: find("gather")?,
            sample: module.function("sample")?,
            copy_blocks: module.function("copy_blocks")?,
            dequant: BTreeMap::new(),
            module,
        })
    }

    /// The model's numbers.
    #[must_use]
    pub const fn float(&self) -> Float {
        self.float
    }

    /// Bytes of a key's or value's element.
    #[must_use]
    pub const fn kv_bytes(&self) -> u64 {
        match self.kv {
            KvFloat::Same => 2,
            KvFloat::Fp8 => 1,
        }
    }

    /// Rows of the embedding of `rows` tokens.
    ///
    /// # Errors
    ///
    /// [`Failure`], as of every call here; `Misuse` when memory is shorter than what is touched.
    /// Ids, positions and tables are read by the device and not checked.
    pub fn embed(&self, stream: &Stream, of: &Embed) -> Result<(), Failure> {
        need("out", of.out, cells(of.rows, of.width) * 2)?;
        need("tokens", of.tokens, u64::from(of.rows) * 4)?;
        let arguments = [Pointer(of.out), Pointer(of.table), Pointer(of.tokens), int(of.width)];
        self.embed.launch(stream, rows(of.rows, launch::EMBED_THREADS), &arguments)
    }

    /// `x += add` (rounded, when `add` is given), `out = norm(x)` (when `out` is given).
    ///
    /// # Errors
    ///
    /// As [`Self::embed`].
    pub fn rms_norm(&self, stream: &Stream, of: &RmsNorm) -> Result<(), Failure> {
        let bytes = cells(of.rows, of.width) * 2;
        need("x", of.x, bytes)?;
        let out = of.out.unwrap_or(DevicePointer::NULL);
        let add = of.add.unwrap_or(DevicePointer::NULL);
        for (name, memory) in [("out", of.out), ("add", of.add)] {
            memory.map_or(Ok(()), |memory| need(name, memory, bytes))?;
        }
        need("weight", of.weight, u64::from(of.width) * 4)?;
        let arguments = [
            Pointer(out),
            Pointer(of.x),
            Pointer(add),
            Pointer(of.weight),
            int(of.width),
            F32(of.epsilon),
        ];
        self.rms_norm.launch(stream, rows(of.rows, launch::RMS_NORM_THREADS), &arguments)
    }

    /// Norms heads of each row in place.
    ///
    /// # Errors
    ///
    /// As [`Self::embed`].
    pub fn head_norm(&self, stream: &Stream, of: &HeadNorm) -> Result<(), Failure> {
        need("x", of.x, cells(of.rows, of.row_width) * 2)?;
        need("weight", of.weight, u64::from(of.head_width) * 4)?;
        if u64::from(of.start) + cells(of.heads, of.head_width) > u64::from(of.row_width) {
            return Err(Failure::misuse("kernel", "heads that do not lie in the row"));
        }
        let arguments = [
            Pointer(of.x),
            Pointer(of.weight),
            int(of.row_width),
            int(of.start),
            int(of.heads),
            int(of.head_width),
            F32(of.epsilon),
        ];
        let threads = launch::HEAD_NORM_THREADS;
        let launch = Launch { grid: [of.rows, of.heads, 1], block: [threads, 1, 1], shared: 0 };
        self.head_norm.launch(stream, launch, &arguments)
    }

    /// Adds a bias (float32) to each of `count` rows in place.
    ///
    /// # Errors
    ///
    /// As [`Self::embed`].
    pub fn bias(
        &self,
        stream: &Stream,
        x: DevicePointer,
        bias: DevicePointer,
        (count, width): (u32, u32),
    ) -> Result<(), Failure> {
        need("x", x, cells(count, width) * 2)?;
        need("bias", bias, u64::from(width) * 4)?;
        let arguments = [Pointer(x), Pointer(bias), int(width)];
        self.bias.launch(stream, rows(count, launch::BIAS_THREADS), &arguments)
    }

    /// Rotates queries and keys; keys and values go to the pool.
    ///
    /// # Errors
    ///
    /// As [`Self::embed`].
    pub fn rope_store(
        &self,
        stream: &Stream,
        (heads, pages): (&Heads, &Pages),
        of: &RopeStore,
    ) -> Result<(), Failure> {
        need("qkv", of.qkv, u64::from(of.rows) * heads.row() * 2)?;
        need("positions", of.positions, u64::from(of.rows) * 4)?;
        need("sequences", of.sequences, u64::from(of.rows) * 4)?;
        let arguments = [
            Pointer(of.qkv),
            Pointer(of.positions),
            Pointer(of.sequences),
            Pointer(pages.table_start),
            Pointer(pages.tables),
            Pointer(of.cos),
            Pointer(of.sin),
            Pointer(pages.pool),
            U64(pages.page_bytes),
            int(of.layer),
            int(heads.queries),
            int(heads.kv),
            int(heads.width),
            int(pages.page_tokens),
        ];
        self.rope_store.launch(stream, rows(of.rows, launch::ROPE_STORE_THREADS), &arguments)
    }

    /// Bytes of the partial results of a decode over `count` rows in `splits` parts.
    #[must_use]
    pub fn partial_bytes(heads: &Heads, count: u32, splits: u32) -> u64 {
        let head = u64::from(heads.width) + 2;
        cells(count, splits) * u64::from(heads.queries) * head * 4
    }

    /// Attention of single rows over what the pool holds; with several splits, merged after.
    ///
    /// # Errors
    ///
    /// As [`Self::embed`].
    pub fn decode_attention(
        &self,
        stream: &Stream,
        (heads, pages): (&Heads, &Pages),
        of: &DecodeAttention,
    ) -> Result<(), Failure> {
        let Attention { out, qkv, layer, window, scale } = of.attention;
        self.same_width(heads)?;
        let splits = of.splits.max(1);
        need("out", out, cells(of.rows, heads.queries) * u64::from(heads.width) * 2)?;
        need("qkv", qkv, u64::from(of.rows) * heads.row() * 2)?;
        if splits > 1 {
            need("partial", of.partial, Self::partial_bytes(heads, of.rows, splits))?;
        }
        let arguments = [
            Pointer(out),
            Pointer(of.partial),
            Pointer(qkv),
            Pointer(of.positions),
            Pointer(of.sequences),
            Pointer(pages.table_start),
            Pointer(pages.tables),
            Pointer(pages.pool),
            U64(pages.page_bytes),
            int(layer),
            int(heads.queries),
            int(heads.kv),
            int(heads.width),
            int(pages.page_tokens),
            int(window),
            F32(scale),
            int(splits),
        ];
        let grid = [splits, heads.kv, of.rows];
        let threads = launch::DECODE_ATTENTION_THREADS;
        let decode = Launch { grid, block: [threads, 1, 1], shared: 0 };
        self.decode.launch(stream, decode, &arguments)?;
        if splits == 1 {
            return Ok(());
        }
        let arguments =
            [Pointer(out), Pointer(of.partial), int(heads.queries), int(heads.width), int(splits)];
        let grid = [of.rows, heads.queries, 1];
        let threads = launch::MERGE_ATTENTION_THREADS;
        self.merge.launch(stream, Launch { grid, block: [threads, 1, 1], shared: 0 }, &arguments)
    }

    /// Attention of tiles of rows over what the pool holds, their own keys included.
    ///
    /// # Errors
    ///
    /// As [`Self::embed`].
    pub fn prefill_attention(
        &self,
        stream: &Stream,
        (heads, pages): (&Heads, &Pages),
        of: &PrefillAttention,
    ) -> Result<(), Failure> {
        let Attention { out, qkv, layer, window, scale } = of.attention;
        self.same_width(heads)?;
        need("tiles", of.tiles, u64::from(of.count) * size_of::<Tile>() as u64)?;
        let arguments = [
            Pointer(out),
            Pointer(qkv),
            Pointer(of.tiles),
            Pointer(pages.table_start),
            Pointer(pages.tables),
            Pointer(pages.pool),
            U64(pages.page_bytes),
            int(layer),
            int(heads.queries),
            int(heads.kv),
            int(heads.width),
            int(pages.page_tokens),
            int(window),
            F32(scale),
        ];
        let shared = match self.head_width {
            64 => launch::PREFILL_ATTENTION_SHARED_D64,
            128 => launch::PREFILL_ATTENTION_SHARED_D128,
            _ => launch::PREFILL_ATTENTION_SHARED_D256,
        };
        let grid = [of.count, heads.queries, 1];
        let threads = launch::PREFILL_ATTENTION_THREADS;
        self.prefill.launch(stream, Launch { grid, block: [threads, 1, 1], shared }, &arguments)
    }

    fn same_width(&self, heads: &Heads) -> Result<(), Failure> {
        let fits = heads.width <= self.head_width && (heads.width > self.head_width / 2)
            || heads.width <= 64 && self.head_width == 64;
        if fits { Ok(()) } else { Err(Failure::misuse("kernel", "heads of another width")) }
    }

    /// `out = silu(gate) · up`; a row of `both` is `width` gates, then as many ups.
    ///
    /// # Errors
    ///
    /// As [`Self::embed`].
    pub fn swiglu(
        &self,
        stream: &Stream,
        out: DevicePointer,
        both: DevicePointer,
        (count, width): (u32, u32),
    ) -> Result<(), Failure> {
        need("out", out, cells(count, width) * 2)?;
        need("both", both, cells(count, width) * 4)?;
        let launch = shared_row(count, u64::from(width / 8), launch::SWIGLU_THREADS);
        self.swiglu.launch(stream, launch, &[Pointer(out), Pointer(both), int(width)])
    }

    /// Rows of `from`, by their numbers, one after another.
    ///
    /// # Errors
    ///
    /// As [`Self::embed`].
    pub fn gather(
        &self,
        stream: &Stream,
        [out, from, numbers]: [DevicePointer; 3],
        (count, width): (u32, u32),
    ) -> Result<(), Failure> {
        need("out", out, cells(count, width) * 2)?;
        need("numbers", numbers, u64::from(count) * 4)?;
        let arguments = [Pointer(out), Pointer(from), Pointer(numbers), int(width)];
        self.gather.launch(stream, rows(count, launch::GATHER_THREADS), &arguments)
    }

    /// Chooses a token for each of `count` rows of logits by its [`Draw`].
    ///
    /// # Errors
    ///
    /// As [`Self::embed`].
    pub fn sample(
        &self,
        stream: &Stream,
        [chosen, logits, draws]: [DevicePointer; 3],
        (count, vocabulary): (u32, u32),
    ) -> Result<(), Failure> {
        need("chosen", chosen, u64::from(count) * 4)?;
        need("logits", logits, cells(count, vocabulary) * 4)?;
        need("draws", draws, u64::from(count) * size_of::<Draw>() as u64)?;
        let arguments = [Pointer(chosen), Pointer(logits), Pointer(draws), int(vocabulary)];
        self.sample.launch(stream, rows(count, launch::SAMPLE_THREADS), &arguments)
    }

    /// Copies blocks of one memory to blocks of another.
    ///
    /// # Errors
    ///
    /// As [`Self::embed`].
    pub fn copy_blocks(&self, stream: &Stream, of: &CopyBlocks) -> Result<(), Failure> {
        need("pairs", of.pairs, u64::from(of.count) * 16)?;
        if !of.block_bytes.is_multiple_of(16) {
            return Err(Failure::misuse("kernel", "blocks that are no multiple of 16 bytes"));
        }
        let arguments = [Pointer(of.to), Pointer(of.from), Pointer(of.pairs), U64(of.block_bytes)];
        let work = of.block_bytes / 16;
        let launch = shared_row(of.count, work, launch::COPY_BLOCKS_THREADS);
        self.copy_blocks.launch(stream, launch, &arguments)
    }

    /// Stored weights to the model's numbers.
    ///
    /// # Errors
    ///
    /// As [`Self::embed`]; `Misuse` for columns that are not there or no whole number of blocks.
    pub fn dequantise(&mut self, stream: &Stream, of: &Dequantise) -> Result<(), Failure> {
        let wrong = |what: &str| Failure::misuse("kernel", what.to_owned());
        let name = encoding(of.encoding);
        let stride = u64::from(of.out_stride);
        let inside = u64::from(of.first_column) + u64::from(of.width) <= u64::from(of.columns);
        if !inside || of.width > of.out_stride {
            return Err(wrong("columns that do not lie in the row"));
        }
        let last = u64::from(of.rows).saturating_sub(1) * stride + u64::from(of.width);
        need("out", of.out, last * 2)?;
        let row = of.encoding.row_bytes(of.columns as usize);
        let row = row.ok_or_else(|| wrong("a row that is no whole number of blocks"))?;
        need("stored", of.stored, u64::from(of.rows) * row as u64)?;
        if !self.dequant.contains_key(name) {
            let full = format!("dequant_{name}_{}", suffix(self.float));
            self.dequant.insert(name, self.module.function(&full)?);
        }
        let function = self.dequant.get(name).ok_or_else(|| wrong("no kernel"))?;
        let arguments = [
            Pointer(of.out),
            Pointer(of.stored),
            int(of.rows),
            int(of.columns),
            int(of.first_column),
            int(of.width),
            int(of.out_stride),
        ];
        let launch = shared_row(of.rows, u64::from(of.width / 8), launch::DEQUANT_THREADS);
        function.launch(stream, launch, &arguments)
    }
}

/// The kernels' name of an encoding.
const fn encoding(encoding: Encoding) -> &'static str {
    match encoding {
        Encoding::F32 => "f32",
        Encoding::F16 => "f16",
        Encoding::Bf16 => "bf16",
        Encoding::Q8_0 => "q8_0",
        Encoding::Q4_0 => "q4_0",
        Encoding::Q4_1 => "q4_1",
        Encoding::Q4K => "q4k",
        Encoding::Q6K => "q6k",
    }
}

const fn suffix(float: Float) -> &'static str {
    match float {
        Float::Bf16 => "bf16",
        Float::F16 => "f16",
    }
}
