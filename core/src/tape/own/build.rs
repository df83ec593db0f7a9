//! Builds the tape of a dense decoder.

use super::{Buffer, BufferId, DecoderShape, Effect, Op, OwnTape, Per, Role, ShapeError, WeightId};

/// Scratch that a projection needs beside its output.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workspace {
    /// None.
    None,
    /// float32 values of one scratch for all projections (a library's workspace).
    Fixed(u64),
    /// The input in another form: for each `of` values of its rows, or part of them, so many float32.
    Input {
        /// Values of the input.
        of: u64,
        /// float32 values of their other form.
        values: u64,
    },
}

/// How a tape is executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Execution {
    /// Scratch of projections.
    pub workspace: Workspace,
    /// Bytes of an activation; logits are float32 in every case.
    pub activation_bytes: u64,
    /// Ranks that share the model's heads and feed-forward parts. The shape is that of one rank
    /// ([`DecoderShape::of_rank`]).
    pub ranks: u64,
}

impl From<Workspace> for Execution {
    /// One rank in float32.
    fn from(workspace: Workspace) -> Self {
        Self { workspace, activation_bytes: FLOAT32, ranks: 1 }
    }
}

const FLOAT32: u64 = 4;

/// The step of a decoder: from token ids to logits of the rows that are asked for.
///
/// # Errors
/// [`ShapeError`] for a shape that is not one.
pub fn tape(shape: &DecoderShape, execution: impl Into<Execution>) -> Result<OwnTape, ShapeError> {
    shape.check()?;
    let execution = execution.into();
    let mut build = Build { ops: Vec::new(), buffers: Vec::new(), execution, unadded: None };
    let residual = build.buffer("residual", None, Per::Token, shape.hidden);
    build.op(Op::Embed { to: residual });
    for layer in 0..shape.layers.len() as u32 {
        build.attention(shape, layer, residual);
        build.feed_forward(shape, layer, residual);
    }
    if let Some(from) = build.unadded.take() {
        build.op(Op::Add { from, to: residual });
    }
    let rows = build.buffer("output rows", None, Per::Output, shape.hidden);
    build.op(Op::Gather { from: residual, to: rows });
    let normed = build.buffer("normed output rows", None, Per::Output, shape.hidden);
    let weight = WeightId { layer: None, role: Role::FinalNorm };
    build.norm(weight, rows, normed);
    let logits = build.wide_buffer("logits", None, Per::Output, shape.vocab);
    let role = if shape.tied { Role::Embedding } else { Role::Head };
    build.linear(vec![WeightId { layer: None, role }], normed, logits, Effect::Store);
    Ok(OwnTape { ops: build.ops, buffers: build.buffers, logits })
}

struct Build {
    ops: Vec<Op>,
    buffers: Vec<Buffer>,
    execution: Execution,
    /// A sum over the ranks that the residual stream does not have yet.
    unadded: Option<BufferId>,
}

impl Build {
    /// A buffer of activations, whose life begins and ends with the operations that name it.
    fn buffer(&mut self, name: &'static str, layer: Option<u32>, per: Per, width: u64) -> BufferId {
        self.sized(name, layer, (per, width), self.execution.activation_bytes)
    }

    /// The same in float32.
    fn wide_buffer(
        &mut self,
        name: &'static str,
        layer: Option<u32>,
        per: Per,
        width: u64,
    ) -> BufferId {
        self.sized(name, layer, (per, width), FLOAT32)
    }

    fn sized(
        &mut self,
        name: &'static str,
        layer: Option<u32>,
        (per, width): (Per, u64),
        value_bytes: u64,
    ) -> BufferId {
        let id = BufferId(self.buffers.len() as u32);
        let next = self.ops.len();
        self.buffers.push(Buffer { name, layer, per, width, value_bytes, first: next, last: next });
        id
    }

    /// A norm, of the residual stream with what it still lacks.
    fn norm(&mut self, weight: WeightId, from: BufferId, to: BufferId) {
        let add = self.unadded.take();
        self.op(Op::Norm { weight, add, from, to });
    }

    /// A projection whose result joins the residual stream.
    fn join(&mut self, weight: WeightId, from: BufferId, (residual, width): (BufferId, u64)) {
        if self.execution.ranks == 1 {
            return self.linear(vec![weight], from, residual, Effect::Add);
        }
        let part = self.buffer("part of a rank", weight.layer, Per::Token, width);
        self.linear(vec![weight], from, part, Effect::Store);
        self.op(Op::AllReduce { at: part });
        self.unadded = Some(part);
    }

    fn op(&mut self, op: Op) {
        let at = self.ops.len();
        for id in op.buffers() {
            if let Some(buffer) = self.buffers.get_mut(id.0 as usize) {
                buffer.last = at;
            }
        }
        self.ops.push(op);
    }

    fn linear(&mut self, weights: Vec<WeightId>, from: BufferId, to: BufferId, effect: Effect) {
        let input = self.buffers.get(from.0 as usize).map_or((Per::Step, 0), |b| (b.per, b.width));
        let layer = weights.first().and_then(|w| w.layer);
        let workspace = match self.execution.workspace {
            Workspace::None => None,
            Workspace::Fixed(values) => {
                Some(self.wide_buffer("projection workspace", layer, Per::Step, values))
            }
            Workspace::Input { of, values } => {
                let width = input.1.div_ceil(of.max(1)).saturating_mul(values);
                Some(self.wide_buffer("input of a projection", layer, input.0, width))
            }
        };
        self.op(Op::Linear { weights, from, to, workspace, effect });
    }

    fn attention(&mut self, shape: &DecoderShape, layer: u32, residual: BufferId) {
        let own = Some(layer);
        let id = |role| WeightId { layer: own, role };
        let (q, kv) = (shape.q_width(), shape.kv_width());
        let normed = self.buffer("attention input", own, Per::Token, shape.hidden);
        self.norm(id(Role::AttentionNorm), residual, normed);
        let qkv = self.buffer("queries, keys, values", own, Per::Token, q + 2 * kv);
        let weights = [Role::Query, Role::Key, Role::Value].map(id).to_vec();
        self.linear(weights, normed, qkv, Effect::Store);
        let heads = [(Role::QueryNorm, 0, shape.q_heads), (Role::KeyNorm, q, shape.kv_heads)];
        if shape.qk_norm {
            for (role, start, heads) in heads {
                self.op(Op::HeadNorm { weight: id(role), at: qkv, start, heads });
            }
        }
        for (_, start, heads) in heads {
            self.op(Op::Rope { at: qkv, start, heads });
        }
        self.op(Op::StoreKv { layer, from: qkv });
        let mixed = self.buffer("attention output", own, Per::Token, q);
        let window = shape.layers.get(layer as usize).and_then(|l| l.window);
        self.op(Op::Attend { layer, from: qkv, to: mixed, window });
        self.join(id(Role::Output), mixed, (residual, shape.hidden));
    }

    fn feed_forward(&mut self, shape: &DecoderShape, layer: u32, residual: BufferId) {
        let own = Some(layer);
        let id = |role| WeightId { layer: own, role };
        let wide = shape.layers.get(layer as usize).map_or(0, |l| l.intermediate);
        let normed = self.buffer("feed-forward input", own, Per::Token, shape.hidden);
        self.norm(id(Role::MlpNorm), residual, normed);
        let both = self.buffer("gate, up", own, Per::Token, 2 * wide);
        self.linear([Role::Gate, Role::Up].map(id).to_vec(), normed, both, Effect::Store);
        let inner = self.buffer("gated", own, Per::Token, wide);
        self.op(Op::SwiGlu { from: both, to: inner });
        self.join(id(Role::Down), inner, (residual, shape.hidden));
    }
}
