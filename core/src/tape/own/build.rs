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

/// The step of a decoder: from token ids to logits of the rows that are asked for.
///
/// # Errors
/// [`ShapeError`] for a shape that is not one.
pub fn tape(shape: &DecoderShape, workspace: Workspace) -> Result<OwnTape, ShapeError> {
    shape.check()?;
    let mut build = Build { ops: Vec::new(), buffers: Vec::new(), workspace };
    let residual = build.buffer("residual", None, Per::Token, shape.hidden);
    build.op(Op::Embed { to: residual });
    for layer in 0..shape.layers.len() as u32 {
        build.attention(shape, layer, residual);
        build.feed_forward(shape, layer, residual);
    }
    let rows = build.buffer("output rows", None, Per::Output, shape.hidden);
    build.op(Op::Gather { from: residual, to: rows });
    let normed = build.buffer("normed output rows", None, Per::Output, shape.hidden);
    let weight = WeightId { layer: None, role: Role::FinalNorm };
    build.op(Op::Norm { weight, from: rows, to: normed });
    let logits = build.buffer("logits", None, Per::Output, shape.vocab);
    let role = if shape.tied { Role::Embedding } else { Role::Head };
    build.linear(vec![WeightId { layer: None, role }], normed, logits, Effect::Store);
    Ok(OwnTape { ops: build.ops, buffers: build.buffers, logits })
}

struct Build {
    ops: Vec<Op>,
    buffers: Vec<Buffer>,
    workspace: Workspace,
}

impl Build {
    /// A buffer whose life begins and ends with the operations that name it.
    fn buffer(&mut self, name: &'static str, layer: Option<u32>, per: Per, width: u64) -> BufferId {
        let id = BufferId(self.buffers.len() as u32);
        let next = self.ops.len();
        self.buffers.push(Buffer { name, layer, per, width, first: next, last: next });
        id
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
        let workspace = match self.workspace {
            Workspace::None => None,
            Workspace::Fixed(values) => {
                Some(self.buffer("projection workspace", layer, Per::Step, values))
            }
            Workspace::Input { of, values } => {
                let width = input.1.div_ceil(of.max(1)).saturating_mul(values);
                Some(self.buffer("input of a projection", layer, input.0, width))
            }
        };
        self.op(Op::Linear { weights, from, to, workspace, effect });
    }

    fn attention(&mut self, shape: &DecoderShape, layer: u32, residual: BufferId) {
        let own = Some(layer);
        let id = |role| WeightId { layer: own, role };
        let (q, kv) = (shape.q_width(), shape.kv_width());
        let normed = self.buffer("attention input", own, Per::Token, shape.hidden);
        self.op(Op::Norm { weight: id(Role::AttentionNorm), from: residual, to: normed });
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
        self.linear(vec![id(Role::Output)], mixed, residual, Effect::Add);
    }

    fn feed_forward(&mut self, shape: &DecoderShape, layer: u32, residual: BufferId) {
        let own = Some(layer);
        let id = |role| WeightId { layer: own, role };
        let wide = shape.layers.get(layer as usize).map_or(0, |l| l.intermediate);
        let normed = self.buffer("feed-forward input", own, Per::Token, shape.hidden);
        self.op(Op::Norm { weight: id(Role::MlpNorm), from: residual, to: normed });
        let both = self.buffer("gate, up", own, Per::Token, 2 * wide);
        self.linear([Role::Gate, Role::Up].map(id).to_vec(), normed, both, Effect::Store);
        let inner = self.buffer("gated", own, Per::Token, wide);
        self.op(Op::SwiGlu { from: both, to: inner });
        self.linear(vec![id(Role::Down)], inner, residual, Effect::Add);
    }
}
