//! One step: the tape's operations in order over the arena. Nothing is allocated here.

use std::{collections::BTreeMap, ops::Range};

use plimsoll_core::tape::own::{
    ArenaPlan, Bounds, BufferId, DecoderShape, Effect, Op, OwnTape, Role, Sequence, SequenceError,
    StepLimits, StepSize, WeightId,
};
use rayon::prelude::*;

use super::{
    attention::{Attend, Scratch},
    dot::vectors,
    held::Held,
    kv::KvPool,
    linear::{Part, Parts, Processor, linear},
    load::{Arena, HostModel},
    vector::{norm, norm_in_place, rotate, swiglu},
};

/// Values below which an operation by rows is not worth a second thread.
const SERIAL: usize = 1 << 14;

/// Why a step is refused. Nothing has changed then.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StepError {
    /// More than the arena is planned for.
    #[error("a step of {tokens} tokens and {outputs} outputs; planned: {} and {}", limits.tokens, limits.outputs)]
    TooLarge {
        /// Tokens asked for.
        tokens: u64,
        /// Outputs asked for.
        outputs: u64,
        /// The plan.
        limits: StepLimits,
    },
    /// A number of a sequence that is out of its range.
    #[error("sequence {sequence}: {what} is {value}; allowed: {allowed}")]
    Sequence {
        /// Index in the step.
        sequence: usize,
        /// What.
        what: &'static str,
        /// As given.
        value: u64,
        /// What would be right.
        allowed: String,
    },
    /// Tape and plan do not belong together: a mistake of this crate.
    #[error("the tape names {0}, which is not there")]
    Tape(&'static str),
}

/// Logits of a step: one row an output, in the order of the sequences.
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    values: &'a [f32],
    vocab: usize,
}

impl<'a> Logits<'a> {
    /// Rows.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.values.len() / self.vocab
    }

    /// A row.
    #[must_use]
    pub fn row(&self, index: usize) -> Option<&'a [f32]> {
        self.values.chunks(self.vocab).nth(index)
    }

    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = &'a [f32]> + use<'a> {
        self.values.chunks(self.vocab)
    }
}

impl HostModel {
    /// Executes one step.
    ///
    /// # Errors
    /// [`StepError`]: what the plan does not cover, ids and slots that are not there.
    pub fn step(&mut self, sequences: &[Sequence<'_>]) -> Result<Logits<'_>, StepError> {
        let Self { pool, body } = self;
        body.take(sequences)?;
        pool.install(|| body.run(sequences))?;
        body.logits()
    }
}

/// One new token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) token: u32,
    pub(super) position: u32,
    pub(super) sequence: u32,
}

/// The rows of the step; their room is taken once.
#[derive(Debug)]
pub(super) struct Rows {
    rows: Vec<Row>,
    outputs: Vec<u32>,
}

impl Rows {
    pub(super) fn new(limits: StepLimits) -> Self {
        Self {
            rows: Vec::with_capacity(limits.tokens as usize),
            outputs: Vec::with_capacity(limits.outputs as usize),
        }
    }

    pub(super) const fn planned(limits: StepLimits) -> u64 {
        limits.tokens * size_of::<Row>() as u64 + limits.outputs * 4
    }

    pub(super) const fn bytes(&self) -> u64 {
        (self.rows.capacity() * size_of::<Row>() + self.outputs.capacity() * 4) as u64
    }

    fn size(&self) -> StepSize {
        StepSize { tokens: self.rows.len() as u64, outputs: self.outputs.len() as u64 }
    }
}

/// Cosines and sines by position.
#[derive(Debug)]
pub(super) struct Rope {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rope {
    /// Angles are made in double precision: at position 100,000 a float32 angle is off by 0.01.
    pub(super) fn new(turns: &[f64], positions: usize) -> Self {
        let angles = (0..positions).flat_map(|p| turns.iter().map(move |turn| p as f64 * turn));
        let (cos, sin) = angles.map(|a| (libm::cos(a) as f32, libm::sin(a) as f32)).unzip();
        Self { half: turns.len(), cos, sin }
    }

    pub(super) fn planned(turns: usize, positions: u64) -> u64 {
        turns as u64 * positions * 8
    }

    pub(super) fn bytes(&self) -> u64 {
        self.cos.len() as u64 * 8
    }

    fn positions(&self) -> usize {
        self.cos.len() / self.half.max(1)
    }

    fn at(&self, position: u32) -> (&[f32], &[f32]) {
        let range = position as usize * self.half..(position as usize + 1) * self.half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}

/// A model without its threads.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) shape: DecoderShape,
    pub(super) tape: OwnTape,
    pub(super) plan: ArenaPlan,
    pub(super) matrices: BTreeMap<WeightId, Held>,
    pub(super) vectors: BTreeMap<WeightId, Vec<f32>>,
    pub(super) rope: Rope,
    pub(super) arena: Arena,
    pub(super) kv: KvPool,
    pub(super) scratch: Scratch,
    pub(super) rows: Rows,
    pub(super) processor: Processor,
}

impl std::fmt::Debug for Processor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.tile)
    }
}

impl Body {
    /// Checks the sequences and lays out their rows.
    fn take(&mut self, sequences: &[Sequence<'_>]) -> Result<(), StepError> {
        let (mut tokens, mut outputs) = (0_u64, 0_u64);
        for (index, sequence) in sequences.iter().enumerate() {
            self.check(index, sequence)?;
            tokens += sequence.tokens.len() as u64;
            outputs += sequence.output_rows() as u64;
        }
        if tokens == 0 || !self.plan.covers(StepSize { tokens, outputs }) {
            return Err(StepError::TooLarge { tokens, outputs, limits: self.plan.limits });
        }
        self.scratch.lay_out(sequences);
        self.rows.rows.clear();
        self.rows.outputs.clear();
        for (index, sequence) in sequences.iter().enumerate() {
            for (i, token) in sequence.tokens.iter().enumerate() {
                let position = (sequence.before + i) as u32;
                self.rows.rows.push(Row { token: *token, position, sequence: index as u32 });
            }
            let end = self.rows.rows.len() as u32;
            self.rows.outputs.extend(end - sequence.output_rows() as u32..end);
        }
        Ok(())
    }

    fn check(&self, sequence: usize, given: &Sequence<'_>) -> Result<(), StepError> {
        let bounds = Bounds {
            positions: self.rope.positions(),
            page_tokens: self.kv.cell().page_tokens,
            pages: self.kv.pages(),
            vocab: self.shape.vocab,
        };
        let wrong = |SequenceError { what, value, allowed }| StepError::Sequence {
            sequence,
            what,
            value,
            allowed,
        };
        given.check(&bounds, |page| self.kv.is_here(page)).map_err(wrong)
    }

    fn run(&mut self, sequences: &[Sequence<'_>]) -> Result<(), StepError> {
        let Self { tape, arena, kv, scratch, .. } = self;
        let model = Run {
            shape: &self.shape,
            matrices: &self.matrices,
            vectors: &self.vectors,
            rope: &self.rope,
            rows: &self.rows,
            processor: self.processor,
            places: Places { tape, plan: &self.plan, size: self.rows.size() },
        };
        let values = arena.values();
        for op in &tape.ops {
            model.op(op, values, (kv, scratch), sequences)?;
        }
        Ok(())
    }

    fn logits(&mut self) -> Result<Logits<'_>, StepError> {
        let size = self.rows.size();
        let places = Places { tape: &self.tape, plan: &self.plan, size };
        let range = places.range(self.tape.logits)?;
        let values = self.arena.values().get(range).ok_or(StepError::Tape("logits"))?;
        Ok(Logits { values, vocab: self.shape.vocab as usize })
    }
}

/// Where buffers lie in this step.
#[derive(Clone, Copy)]
struct Places<'a> {
    tape: &'a OwnTape,
    plan: &'a ArenaPlan,
    size: StepSize,
}

impl Places<'_> {
    /// Values of the arena.
    fn range(&self, id: BufferId) -> Result<Range<usize>, StepError> {
        let buffer = self.tape.buffer(id).ok_or(StepError::Tape("a buffer"))?;
        let offset = self.plan.offsets.get(id.0 as usize).ok_or(StepError::Tape("an offset"))?;
        let start = offset.0 as usize / 4;
        Ok(start..start + buffer.values(self.size) as usize)
    }

    fn width(&self, id: BufferId) -> usize {
        self.tape.buffer(id).map_or(1, |b| b.width as usize)
    }

    fn some<'v, const N: usize>(
        &self,
        values: &'v mut [f32],
        ids: [BufferId; N],
    ) -> Result<[&'v mut [f32]; N], StepError> {
        let mut ranges = [const { 0..0 }; N];
        for (range, id) in ranges.iter_mut().zip(ids) {
            *range = self.range(id)?;
        }
        values.get_disjoint_mut(ranges).map_err(|_| StepError::Tape("buffers apart"))
    }
}

/// All that an operation reads beside arena and pool.
#[derive(Clone, Copy)]
struct Run<'a> {
    shape: &'a DecoderShape,
    matrices: &'a BTreeMap<WeightId, Held>,
    vectors: &'a BTreeMap<WeightId, Vec<f32>>,
    rope: &'a Rope,
    rows: &'a Rows,
    processor: Processor,
    places: Places<'a>,
}

/// Rows of `to` on all threads, or on this one where they are few.
fn by_rows(to: &mut [f32], width: usize, each: impl Fn(usize, &mut [f32]) + Sync) {
    if to.len() < SERIAL {
        to.chunks_mut(width).enumerate().for_each(|(i, row)| each(i, row));
    } else {
        to.par_chunks_mut(width).enumerate().for_each(|(i, row)| each(i, row));
    }
}

impl<'a> Run<'a> {
    fn op(
        self,
        op: &Op,
        values: &mut [f32],
        (kv, scratch): (&mut KvPool, &mut Scratch),
        sequences: &[Sequence<'_>],
    ) -> Result<(), StepError> {
        match op {
            Op::Embed { to } => self.embed(values, *to),
            Op::Norm { weight, from, to, .. } => self.norm(values, *weight, [*from, *to]),
            Op::Linear { weights, from, to, workspace, effect } => {
                self.linear(values, weights, ([*from, *to], *workspace), *effect)
            }
            Op::HeadNorm { weight, at, start, heads } => {
                let (weight, eps) = (self.vector(*weight)?, self.shape.norm_eps);
                self.heads(values, *at, (*start, *heads), move |_, head| {
                    norm_in_place(head, weight, eps);
                })
            }
            Op::Rope { at, start, heads } => {
                let rope = self.rope;
                self.heads(values, *at, (*start, *heads), move |row, head| {
                    let (cos, sin) = rope.at(row.position);
                    rotate(head, cos, sin);
                })
            }
            Op::StoreKv { layer, from } => self.store(values, kv, *layer, *from, sequences),
            Op::Attend { layer, from, to, window } => {
                self.attend(values, (kv, scratch), (*layer, *window), [*from, *to], sequences)
            }
            Op::SwiGlu { from, to } => self.swiglu(values, [*from, *to]),
            Op::Gather { from, to } => self.gather(values, [*from, *to]),
            Op::AllReduce { .. } | Op::Add { .. } => Err(StepError::Tape("another rank")),
        }
    }

    fn vector(self, id: WeightId) -> Result<&'a [f32], StepError> {
        self.vectors.get(&id).map(Vec::as_slice).ok_or(StepError::Tape("a vector"))
    }

    fn embed(self, values: &mut [f32], to: BufferId) -> Result<(), StepError> {
        let [rows] = self.places.some(values, [to])?;
        let id = WeightId { layer: None, role: Role::Embedding };
        let embedding = self.matrices.get(&id).ok_or(StepError::Tape("an embedding"))?;
        for (row, to) in self.rows.rows.iter().zip(rows.chunks_mut(embedding.columns)) {
            embedding.row(row.token as usize, to);
        }
        Ok(())
    }

    fn norm(self, values: &mut [f32], id: WeightId, ids: [BufferId; 2]) -> Result<(), StepError> {
        let (weight, eps, arch) = (self.vector(id)?, self.shape.norm_eps, self.processor.arch);
        let [from, to] = self.places.some(values, ids)?;
        let (from, width): (&[f32], _) = (from, weight.len());
        by_rows(to, width, |i, to| {
            let from = &from[i * width..(i + 1) * width];
            vectors(
                arch,
                #[inline(always)]
                || norm(from, weight, eps, to),
            );
        });
        Ok(())
    }

    fn linear(
        self,
        values: &mut [f32],
        weights: &[WeightId],
        (ids, rounded): ([BufferId; 2], Option<BufferId>),
        effect: Effect,
    ) -> Result<(), StepError> {
        let mut parts = Parts { parts: [None; 3] };
        for (part, id) in parts.parts.iter_mut().zip(weights) {
            let matrix = self.matrices.get(id).ok_or(StepError::Tape("a matrix"))?;
            let bias = id.bias().and_then(|bias| self.vectors.get(&bias)).map(Vec::as_slice);
            *part = Some(Part { matrix, bias });
        }
        let [from, to] = ids;
        let (from, to, rounded) = match rounded {
            Some(rounded) => self.places.some(values, [from, to, rounded])?.into(),
            None => {
                let [from, to] = self.places.some(values, ids)?;
                (from, to, Default::default())
            }
        };
        linear(self.processor, parts, from, rounded, (to, effect));
        Ok(())
    }

    /// Each head of some that stand side by side in the rows of a buffer.
    fn heads(
        self,
        values: &mut [f32],
        at: BufferId,
        (start, heads): (u64, u64),
        each: impl Fn(Row, &mut [f32]) + Sync,
    ) -> Result<(), StepError> {
        let width = self.places.width(at);
        let head_dim = self.shape.head_dim as usize;
        let range = start as usize..start as usize + heads as usize * head_dim;
        let arch = self.processor.arch;
        let [rows] = self.places.some(values, [at])?;
        by_rows(rows, width, |i, values| {
            vectors(
                arch,
                #[inline(always)]
                || {
                    let row = self.rows.rows[i];
                    for head in values[range.clone()].chunks_mut(head_dim) {
                        each(row, head);
                    }
                },
            );
        });
        Ok(())
    }

    fn store(
        self,
        values: &mut [f32],
        kv: &mut KvPool,
        layer: u32,
        from: BufferId,
        sequences: &[Sequence<'_>],
    ) -> Result<(), StepError> {
        let (q, width) = (self.shape.q_width() as usize, self.shape.kv_width() as usize);
        let row_width = self.places.width(from);
        let [from] = self.places.some(values, [from])?;
        for (row, values) in self.rows.rows.iter().zip(from.chunks(row_width)) {
            let (keys, values) = values[q..q + 2 * width].split_at(width);
            let slot = slot(sequences, *row, kv.cell().page_tokens as usize);
            if !slot.is_some_and(|slot| kv.store(layer as usize, slot, keys, values)) {
                return Err(StepError::Tape("a slot"));
            }
        }
        Ok(())
    }

    fn attend(
        self,
        values: &mut [f32],
        (kv, scratch): (&KvPool, &mut Scratch),
        (layer, window): (u32, Option<u64>),
        ids: [BufferId; 2],
        sequences: &[Sequence<'_>],
    ) -> Result<(), StepError> {
        let row_width = self.places.width(ids[0]);
        let [from, to] = self.places.some(values, ids)?;
        let attend = Attend {
            kv,
            layer: layer as usize,
            window: window.map(|window| window as usize),
            shape: self.shape,
            processor: self.processor,
            rows: &self.rows.rows,
            sequences,
            from: (from, row_width),
        };
        attend.run(scratch, to);
        Ok(())
    }

    fn swiglu(self, values: &mut [f32], ids: [BufferId; 2]) -> Result<(), StepError> {
        let (wide, width) = (self.places.width(ids[0]), self.places.width(ids[1]));
        let arch = self.processor.arch;
        let [from, to] = self.places.some(values, ids)?;
        let from: &[f32] = from;
        by_rows(to, width, |i, to| {
            let from = &from[i * wide..(i + 1) * wide];
            vectors(
                arch,
                #[inline(always)]
                || swiglu(from, to),
            );
        });
        Ok(())
    }

    fn gather(self, values: &mut [f32], ids: [BufferId; 2]) -> Result<(), StepError> {
        let width = self.places.width(ids[0]);
        let [from, to] = self.places.some(values, ids)?;
        for (row, to) in self.rows.outputs.iter().zip(to.chunks_mut(width)) {
            to.copy_from_slice(&from[*row as usize * width..][..width]);
        }
        Ok(())
    }
}

/// Page of a row's position, and the place in it.
fn slot(sequences: &[Sequence<'_>], row: Row, page_tokens: usize) -> Option<(u32, usize)> {
    let position = row.position as usize;
    let page = sequences.get(row.sequence as usize)?.table.get(position / page_tokens)?;
    Some((*page, position % page_tokens))
}
