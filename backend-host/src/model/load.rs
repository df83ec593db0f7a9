//! Loading: everything that a model will ever hold is taken here, before its first step.

use std::{collections::BTreeMap, convert::Infallible};

use fearless_simd::Level;
use plimsoll_core::{
    model::encoding::Encoding,
    policy::plimsoll::{CellError, KvCell, KvFormat},
    tape::own::{
        self, ArenaPlan, DecoderShape, Op, OwnTape, PlanError, ShapeError, StepLimits, WeightId,
        WeightSource,
    },
};

use super::{
    attention::Scratch,
    held::{Held, Keep},
    kv::{KvPool, PoolError, system_page},
    linear::Processor,
    panels::Panels,
    step::{Body, Rope, Rows},
};

/// Most threads of a model.
const THREADS_MAX: usize = 1024;

/// What a model is loaded for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModelOptions {
    /// Threads of its own; the caller's thread waits for them.
    pub threads: usize,
    /// The largest step.
    pub limits: StepLimits,
    /// Pages of the pool.
    pub pages: usize,
    /// Consecutive positions of a page.
    pub page_tokens: usize,
    /// Longest sequence: positions of the rotary table.
    pub context: u64,
    /// How matrices are kept.
    pub keep: Keep,
    /// How keys and values are kept.
    pub kv: KvFormat,
}

/// Why a model is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError<E> {
    /// The source of its weights.
    #[error(transparent)]
    Source(E),
    /// Its shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Its arena.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A page of its pool.
    #[error(transparent)]
    Cell(#[from] CellError),
    /// A page of its pool that the system refuses.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// An option out of its range.
    #[error("{what} is {value}; allowed: {allowed}")]
    Option {
        /// Which.
        what: &'static str,
        /// As given.
        value: u64,
        /// What would be right.
        allowed: String,
    },
    /// A weight came with another extent or too few bytes: a mistake of the source.
    #[error("{0} does not have the extent that the shape gives it")]
    Extent(WeightId),
    /// No threads.
    #[error("cannot start {threads} threads: {message}")]
    Threads {
        /// How many.
        threads: usize,
        /// The system's answer.
        message: String,
    },
}

/// What a loaded model holds, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModelMemory {
    /// Matrices and vectors.
    pub weights: u64,
    /// Rotary table.
    pub rope: u64,
    /// Arena of activations.
    pub arena: u64,
    /// Spans of attention that are not merged yet, and the rows of a step.
    pub scratch: u64,
    /// Pages of the KV pool that are not lent.
    pub kv: u64,
}

impl ModelMemory {
    /// What a model will hold beside its weights, which are zero here: those depend on its files
    /// ([`kept_bytes`]).
    ///
    /// # Errors
    /// [`LoadError`]: what [`HostModel::load`] refuses before it reads a weight.
    pub fn planned(
        shape: &DecoderShape,
        options: &ModelOptions,
    ) -> Result<Self, LoadError<Infallible>> {
        check(shape, options)?;
        let cell = KvCell::new(shape, options.kv, options.page_tokens as u64)?;
        let tape = own::tape(shape, options.keep.workspace())?;
        let plan = ArenaPlan::new(&tape, options.limits)?;
        let (tokens, threads) = (options.limits.tokens as usize, options.threads);
        let scratch = Scratch::planned(shape, tokens, threads) + Rows::planned(options.limits);
        let kv = cell.page_bytes(system_page()).0 * options.pages as u64;
        Ok(Self {
            weights: 0,
            rope: Rope::planned(shape.rope.len(), options.context),
            arena: plan.total.0 + own::ALIGNMENT.0,
            scratch,
            kv,
        })
    }
}

/// Bytes of a model's weights as they are kept, by the storage of each; `None` when one has no storage or no
/// whole rows of it.
#[must_use]
pub fn kept_bytes(
    shape: &DecoderShape,
    keep: Keep,
    encoding: impl Fn(WeightId) -> Option<Encoding>,
) -> Option<u64> {
    shape.weights().try_fold(0_u64, |sum, id| {
        let (extent, stored) = (shape.extent(id)?, encoding(id)?);
        let packed = Panels::planned(stored, extent.rows, extent.columns);
        if let Some(packed) = packed.filter(|_| keep == Keep::Int8 && id.role.is_matrix()) {
            return sum.checked_add(packed);
        }
        let kept = match (id.role.is_matrix(), keep, stored) {
            (false, ..) | (_, Keep::F32, _) | (_, Keep::AsStored | Keep::Int8, Encoding::F16) => {
                Encoding::F32
            }
            (_, Keep::Bf16, _) => Encoding::Bf16,
            (_, Keep::AsStored | Keep::Int8, stored) => stored,
        };
        let row = kept.row_bytes(extent.columns as usize)? as u64;
        sum.checked_add(row.checked_mul(extent.rows)?)
    })
}

/// A dense decoder, loaded.
#[derive(Debug)]
pub struct HostModel {
    pub(super) pool: rayon::ThreadPool,
    pub(super) body: Body,
}

impl HostModel {
    /// Loads a model: plans its arena, reads its weights one by one, takes the pool.
    ///
    /// # Errors
    /// [`LoadError`]; nothing stays behind.
    pub fn load<S: WeightSource>(
        shape: &DecoderShape,
        source: &mut S,
        options: &ModelOptions,
    ) -> Result<Self, LoadError<S::Error>> {
        check(shape, options)?;
        let cell = KvCell::new(shape, options.kv, options.page_tokens as u64)?;
        let tape = own::tape(shape, options.keep.workspace())?;
        let plan = ArenaPlan::new(&tape, options.limits)?;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(options.threads)
            .thread_name(|i| format!("model-{i}"))
            .build()
            .map_err(|error| LoadError::Threads {
                threads: options.threads,
                message: error.to_string(),
            })?;
        let (matrices, vectors) = weights(shape, source, &tape, options.keep)?;
        let body = Body {
            kv: KvPool::new(cell, options.pages)?,
            scratch: Scratch::new(shape, options.limits.tokens as usize, options.threads),
            rope: Rope::new(&shape.rope, options.context as usize),
            rows: Rows::new(options.limits),
            arena: Arena::new(plan.total.0),
            processor: Processor::new(Level::new()),
            shape: shape.clone(),
            tape,
            plan,
            matrices,
            vectors,
        };
        Ok(Self { pool, body })
    }

    /// What it holds.
    #[must_use]
    pub fn memory(&self) -> ModelMemory {
        let body = &self.body;
        let vectors = body.vectors.values().map(|v| v.len() as u64 * 4);
        ModelMemory {
            weights: body.matrices.values().map(Held::bytes).chain(vectors).sum(),
            rope: body.rope.bytes(),
            arena: body.arena.values.len() as u64 * 4,
            scratch: body.scratch.bytes() + body.rows.bytes(),
            kv: body.kv.bytes(),
        }
    }

    /// Its shape.
    #[must_use]
    pub const fn shape(&self) -> &DecoderShape {
        &self.body.shape
    }

    /// The plan of its arena.
    #[must_use]
    pub const fn plan(&self) -> &ArenaPlan {
        &self.body.plan
    }

    /// Its pool.
    #[must_use]
    pub const fn pool(&self) -> &KvPool {
        &self.body.kv
    }

    /// Gives a page's memory back to the system: unmapped, at once. What it held is lost, and a step that
    /// names it is refused until it is taken back. Pages are lent in any order.
    ///
    /// # Errors
    /// [`PoolError`] for no such page and one that is lent already.
    pub fn lend(&mut self, page: u32) -> Result<(), PoolError> {
        self.body.kv.lend(page)
    }

    /// Takes a lent page's memory again: mapped and touched, so that it is there. It holds zeros.
    ///
    /// # Errors
    /// [`PoolError`] for no such page, one that is here, and a mapping that the system refuses.
    pub fn take_back(&mut self, page: u32) -> Result<(), PoolError> {
        self.body.kv.take_back(page)
    }
}

fn check<E>(shape: &DecoderShape, options: &ModelOptions) -> Result<(), LoadError<E>> {
    let wrong = |what, value, allowed| Err(LoadError::Option { what, value, allowed });
    if !(1..=THREADS_MAX).contains(&options.threads) {
        let allowed = format!("1 to {THREADS_MAX}");
        return wrong("threads", options.threads as u64, allowed);
    }
    if !(1..=1 << 32).contains(&options.pages) {
        return wrong("pages of the pool", options.pages as u64, "1 to 2^32".to_owned());
    }
    if !(1..=shape.context).contains(&options.context) {
        let allowed = format!("1 to {}, the model's own", shape.context);
        return wrong("context", options.context, allowed);
    }
    Ok(())
}

type Weights = (BTreeMap<WeightId, Held>, BTreeMap<WeightId, Vec<f32>>);

/// Matrices are what projections and the embedding use; the rest are vectors.
fn weights<S: WeightSource>(
    shape: &DecoderShape,
    source: &mut S,
    tape: &OwnTape,
    keep: Keep,
) -> Result<Weights, LoadError<S::Error>> {
    let projections = tape.ops.iter().flat_map(|op| match op {
        Op::Linear { weights, .. } => weights.as_slice(),
        _ => &[],
    });
    let projections: std::collections::BTreeSet<_> = projections.copied().collect();
    let (mut matrices, mut vectors) = (BTreeMap::new(), BTreeMap::new());
    for id in shape.weights() {
        let matrix = source.weight(id).map_err(LoadError::Source)?;
        let (rows, columns) = (matrix.extent.rows, matrix.extent.columns);
        let bytes = matrix.encoding.row_bytes(columns as usize);
        let bytes = bytes.and_then(|b| b.checked_mul(rows as usize));
        if shape.extent(id) != Some(matrix.extent) || bytes != Some(matrix.bytes.len()) {
            return Err(LoadError::Extent(id));
        }
        let embedding = id.role == own::Role::Embedding;
        if embedding || projections.contains(&id) {
            matrices.insert(id, Held::new(&matrix, keep));
        } else {
            let mut values = vec![0.0; columns as usize];
            matrix.encoding.decode(&matrix.bytes, &mut values);
            vectors.insert(id, values);
        }
    }
    Ok((matrices, vectors))
}

/// The planned buffers, in one piece that begins at a cache line.
#[derive(Debug)]
pub(super) struct Arena {
    values: Vec<f32>,
    start: usize,
}

impl Arena {
    fn new(bytes: u64) -> Self {
        let mut values = vec![f32::NAN; bytes as usize / 4 + 16];
        // Touched: its pages are there from now on.
        values.fill(0.0);
        let start = values.as_ptr().align_offset(64).min(16);
        Self { values, start }
    }

    pub(super) fn values(&mut self) -> &mut [f32] {
        let start = self.start;
        &mut self.values[start..]
    }
}
