//! A step on the device: the program's actions, each a launch on every rank's stream.

use super::{
    program::{Action, Span, WeightSpan},
    rank::{Rank, all},
};
use crate::{
    device::{Comms, DevicePointer, Failure, Part},
    kernels::{Attention, DecodeAttention, Embed, HeadNorm, PrefillAttention, RmsNorm, RopeStore},
};
use plimsoll_core::tape::own::Per;

/// Ranks at most: places for their parts in a sum.
const RANKS_MAX: usize = 16;

/// The size of a step as it is launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Now {
    /// Rows of tokens.
    pub(super) rows: u32,
    /// Rows of logits.
    pub(super) outputs: u32,
    /// Tiles of prefill attention; 0 for a decode step.
    pub(super) tiles: u32,
    /// Splits of decode attention.
    pub(super) splits: u32,
}

/// Which actions are launched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Which {
    /// All.
    All,
    /// Those of the first layer and outside of layers: every kernel once.
    FirstLayer,
}

/// Launches a step on all ranks; the first also chooses tokens.
pub(super) fn run(
    ranks: &[Rank],
    comms: Option<&Comms>,
    now: &Now,
    which: Which,
) -> Result<(), Failure> {
    let Some(first) = ranks.first() else { return Ok(()) };
    match which {
        Which::All => {
            for at in 0..first.sketch.program.actions.len() {
                at_all(ranks, comms, now, at)?;
            }
        }
        Which::FirstLayer => {
            for at in &first.sketch.program.first_layer {
                at_all(ranks, comms, now, *at)?;
            }
        }
    }
    first.choose(now)
}

fn at_all(ranks: &[Rank], comms: Option<&Comms>, now: &Now, at: usize) -> Result<(), Failure> {
    let action = ranks.first().and_then(|rank| rank.sketch.program.actions.get(at));
    if let (Some(Action::AllReduce { at }), Some(comms)) = (action, comms) {
        return sum(ranks, comms, *at, now);
    }
    for rank in ranks {
        // Only the first rank has what makes logits.
        if let Some(action) = rank.sketch.program.actions.get(at) {
            rank.act(action, now)?;
        }
    }
    Ok(())
}

/// Sums a buffer over the ranks.
fn sum(ranks: &[Rank], comms: &Comms, at: Span, now: &Now) -> Result<(), Failure> {
    let Some(first) = ranks.first() else { return Ok(()) };
    let none = Part { place: DevicePointer::NULL, stream: &first.compute };
    let mut parts = [none; RANKS_MAX];
    for (part, rank) in parts.iter_mut().zip(ranks) {
        *part = Part { place: rank.span(at, now.rows)?, stream: &rank.compute };
    }
    let parts = parts.get(..ranks.len()).unwrap_or_default();
    let float = first.arithmetic.float();
    comms.all_reduce(parts, u64::from(now.rows) * at.width, Some(float))
}

impl Rank {
    fn weight(&self, of: WeightSpan) -> Result<DevicePointer, Failure> {
        self.held.weights.pointer().slice(of.offset, of.bytes)
    }

    /// Launches one action.
    pub(super) fn act(&self, action: &Action, now: &Now) -> Result<(), Failure> {
        let (kernels, stream, own) = (&self.kernels, &self.compute, &self.sketch.own);
        match *action {
            Action::Embed { weight, to } => {
                let of = Embed {
                    out: self.span(to, now.rows)?,
                    table: self.weight(weight)?,
                    tokens: self.input(self.sketch.inputs.tokens)?,
                    rows: now.rows,
                    width: to.width as u32,
                };
                kernels.embed(stream, &of)
            }
            Action::Norm { weight, add, from, to } => self.norm((weight, add), (from, to), now),
            Action::Product { kind, weight, from, to, bias } => {
                self.product((kind, weight, bias), (from, to), now)
            }
            Action::HeadNorm { weight, at, start, heads } => {
                let of = HeadNorm {
                    x: self.span(at, now.rows)?,
                    weight: self.weight(weight)?,
                    rows: now.rows,
                    row_width: at.width as u32,
                    start: start as u32,
                    heads: heads as u32,
                    head_width: own.head_dim as u32,
                    epsilon: own.norm_eps,
                };
                kernels.head_norm(stream, &of)
            }
            Action::Store { layer, qkv } => self.store(layer, qkv, now),
            Action::Attend { layer, qkv, to, window } => {
                self.attend((layer, window), (qkv, to), now)
            }
            Action::SwiGlu { from, to } => {
                let (from, out) = (self.span(from, now.rows)?, self.span(to, now.rows)?);
                kernels.swiglu(stream, out, from, (now.rows, to.width as u32))
            }
            Action::AllReduce { .. } => {
                Err(Failure::misuse("ncclAllReduce", "one rank has nobody to sum with"))
            }
            Action::Gather { from, to } => {
                let (out, from) = (self.span(to, now.outputs)?, self.span(from, now.rows)?);
                let numbers = self.input(self.sketch.inputs.outputs)?;
                kernels.gather(stream, [out, from, numbers], (now.outputs, to.width as u32))
            }
        }
    }

    fn norm(
        &self,
        (weight, add): (WeightSpan, Option<Span>),
        (from, to): (Span, Option<Span>),
        now: &Now,
    ) -> Result<(), Failure> {
        let rows = if from.per == Per::Output { now.outputs } else { now.rows };
        let of = RmsNorm {
            out: to.map(|to| self.span(to, rows)).transpose()?,
            x: self.span(from, rows)?,
            add: add.map(|add| self.span(add, rows)).transpose()?,
            weight: self.weight(weight)?,
            rows,
            width: from.width as u32,
            epsilon: self.sketch.own.norm_eps,
        };
        self.kernels.rms_norm(&self.compute, &of)
    }

    fn product(
        &self,
        (kind, weight, bias): (usize, WeightSpan, Option<WeightSpan>),
        (from, to): (Span, Span),
        now: &Now,
    ) -> Result<(), Failure> {
        let by_output = to.per == Per::Output;
        let rows = if by_output { now.outputs } else { now.rows };
        if rows == 0 {
            return Ok(());
        }
        let unplanned = || Failure::misuse("cublasLtMatmul", "a product that was not planned");
        let products = self.products.as_ref().ok_or_else(unplanned)?;
        let planned = products.find(kind, by_output, rows).ok_or_else(unplanned)?;
        let (x, y) = (self.span(from, planned.rows())?, self.span(to, planned.rows())?);
        self.gemm.run(planned, x, self.weight(weight)?, y, &self.compute)?;
        match bias {
            Some(bias) => {
                let width = (rows, to.width as u32);
                self.kernels.bias(&self.compute, y, self.weight(bias)?, width)
            }
            None => Ok(()),
        }
    }

    fn store(&self, layer: u32, qkv: Span, now: &Now) -> Result<(), Failure> {
        let inputs = &self.sketch.inputs;
        let table = self.held.rotary.pointer();
        let half = self.context * self.sketch.own.head_dim * 2;
        let of = RopeStore {
            qkv: self.span(qkv, now.rows)?,
            positions: self.input(inputs.positions)?,
            sequences: self.input(inputs.seq_of)?,
            cos: table.slice(0, half)?,
            sin: table.slice(half, half)?,
            layer,
            rows: now.rows,
        };
        self.kernels.rope_store(&self.compute, (&self.heads(), &self.pages()?), &of)
    }

    fn attend(
        &self,
        (layer, window): (u32, u64),
        (qkv, to): (Span, Span),
        now: &Now,
    ) -> Result<(), Failure> {
        let (inputs, stream) = (&self.sketch.inputs, &self.compute);
        let attention = Attention {
            out: self.span(to, now.rows)?,
            qkv: self.span(qkv, now.rows)?,
            layer,
            // Beyond the context a window hides nothing.
            window: if window >= self.context { 0 } else { window as u32 },
            scale: (self.sketch.own.head_dim as f32).sqrt().recip(),
        };
        let around = (&self.heads(), &self.pages()?);
        if now.tiles > 0 {
            let (tiles, count) = (self.input(inputs.tiles)?, now.tiles);
            let of = PrefillAttention { attention, tiles, count };
            return self.kernels.prefill_attention(stream, around, &of);
        }
        let of = DecodeAttention {
            attention,
            partial: all(self.held.scratch.as_ref()),
            positions: self.input(inputs.positions)?,
            sequences: self.input(inputs.seq_of)?,
            rows: now.rows,
            splits: now.splits,
        };
        self.kernels.decode_attention(stream, around, &of)
    }

    /// Chooses a token for every row of logits, as its draw says.
    fn choose(&self, now: &Now) -> Result<(), Failure> {
        let Some(logits) = self.sketch.program.logits.filter(|_| now.outputs > 0) else {
            return Ok(());
        };
        let inputs = &self.sketch.inputs;
        let places = [
            self.input(inputs.chosen)?,
            self.span(logits, now.outputs)?,
            self.input(inputs.draws)?,
        ];
        let size = (now.outputs, logits.width as u32);
        self.kernels.sample(&self.compute, places, size)
    }
}
