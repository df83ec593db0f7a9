//! What a rank launches for a step: the own tape with every place found. Offsets stay offsets, so that each
//! launch is checked against the region that it works on.

use super::{error::CudaError, layout::WeightLayout};
use plimsoll_core::tape::own::{
    ArenaPlan, Buffer, BufferId, DecoderShape, Effect, Op, OwnTape, Per, Role, WeightId,
};

/// A buffer of the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    /// From the arena's beginning, in bytes.
    pub(crate) offset: u64,
    /// Values of a row.
    pub(crate) width: u64,
    /// Bytes of a value.
    pub(crate) value_bytes: u64,
    /// What its rows stand for.
    pub(crate) per: Per,
}

/// A vector or matrix in the region of weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WeightSpan {
    /// From the region's beginning, in bytes.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) bytes: u64,
}

/// A kind of product: of what the matrix library chooses an algorithm for, beside the rows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct ProductKind {
    /// Columns of the result.
    pub(crate) outputs: u64,
    /// Columns of the input.
    pub(crate) inputs: u64,
    /// The result is float32: logits.
    pub(crate) wide: bool,
    /// The result is added to what is there.
    pub(crate) add: bool,
    /// Its rows are outputs instead of tokens.
    pub(crate) by_output: bool,
}

/// One launch, or two that belong together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Rows of the embedding.
    Embed { weight: WeightSpan, to: Span },
    /// `from += add`, then the norm of it; only the sum without `to`.
    Norm { weight: WeightSpan, add: Option<Span>, from: Span, to: Option<Span> },
    /// A product by the kind of that number, with a bias.
    Product { kind: usize, weight: WeightSpan, from: Span, to: Span, bias: Option<WeightSpan> },
    /// Norm of each head of some in the rows of `at`.
    HeadNorm { weight: WeightSpan, at: Span, start: u64, heads: u64 },
    /// Rotates queries and keys; keys and values go to the pool.
    Store { layer: u32, qkv: Span },
    /// Attention over the pool.
    Attend { layer: u32, qkv: Span, to: Span, window: u64 },
    /// Gated activation.
    SwiGlu { from: Span, to: Span },
    /// Sum over the ranks.
    AllReduce { at: Span },
    /// Rows whose logits are asked for.
    Gather { from: Span, to: Span },
}

/// A rank's step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Program {
    /// In order.
    pub(crate) actions: Vec<Action>,
    /// Kinds of products.
    pub(crate) kinds: Vec<ProductKind>,
    /// Logits; `None` on a rank that makes none.
    pub(crate) logits: Option<Span>,
    /// Actions of the first layer, and of what stands outside of layers, when later layers are left out:
    /// they launch every kernel that the others do.
    pub(crate) first_layer: Vec<usize>,
}

/// A layer's first action after it: where the second layer begins and the last ends.
type Bounds = (Option<usize>, usize);

struct Build<'a> {
    own: &'a DecoderShape,
    tape: &'a OwnTape,
    plan: &'a ArenaPlan,
    weights: &'a WeightLayout,
    kinds: Vec<ProductKind>,
}

impl Program {
    /// Finds the places of a rank's tape. A rank that makes no logits stops before the rows are gathered.
    pub(crate) fn new(
        own: &DecoderShape,
        tape: &OwnTape,
        plan: &ArenaPlan,
        weights: &WeightLayout,
        logits: bool,
    ) -> Result<Self, CudaError> {
        let mut build = Build { own, tape, plan, weights, kinds: Vec::new() };
        let mut actions = Vec::new();
        let mut bounds: Bounds = (None, 0);
        for op in &tape.ops {
            if matches!(op, Op::Gather { .. }) && !logits {
                break;
            }
            let layer = layer_of(op);
            if layer == Some(1) && bounds.0.is_none() {
                bounds.0 = Some(actions.len());
            }
            actions.extend(build.action(op)?);
            if layer.is_some() {
                bounds.1 = actions.len();
            }
        }
        let span = logits.then(|| build.span(tape.logits)).transpose()?;
        let later = bounds.0.unwrap_or(bounds.1)..bounds.1;
        let first_layer = (0..actions.len()).filter(|at| !later.contains(at)).collect();
        Ok(Self { actions, kinds: build.kinds, logits: span, first_layer })
    }

    /// Kernel launches of a decode step, of the matrix library too.
    pub(crate) fn launches(&self) -> u64 {
        let of = |action: &Action| match action {
            Action::Product { bias: Some(_), .. } | Action::Attend { .. } => 2,
            _ => 1,
        };
        // And the choice of tokens.
        self.actions.iter().map(of).sum::<u64>() + 1
    }
}

/// The layer that an operation belongs to, where its names say so.
fn layer_of(op: &Op) -> Option<u32> {
    match op {
        Op::Norm { weight, .. } | Op::HeadNorm { weight, .. } => weight.layer,
        Op::Linear { weights, .. } => weights.first().and_then(|weight| weight.layer),
        Op::StoreKv { layer, .. } | Op::Attend { layer, .. } => Some(*layer),
        _ => None,
    }
}

impl Build<'_> {
    fn buffer(&self, id: BufferId) -> Result<&Buffer, CudaError> {
        self.tape.buffer(id).ok_or(CudaError::Tape("a buffer"))
    }

    fn span(&self, id: BufferId) -> Result<Span, CudaError> {
        let buffer = self.buffer(id)?;
        let offset = self.plan.offsets.get(id.0 as usize).ok_or(CudaError::Tape("an offset"))?.0;
        let Buffer { width, value_bytes, per, .. } = *buffer;
        Ok(Span { offset, width, value_bytes, per })
    }

    fn weight(&self, id: WeightId) -> Result<WeightSpan, CudaError> {
        let place = self.weights.place(id).ok_or(CudaError::Tape("a weight"))?;
        Ok(WeightSpan { offset: place.offset, bytes: place.bytes() })
    }

    /// Weights that stand under each other as one.
    fn group(&self, ids: impl Iterator<Item = WeightId>) -> Result<WeightSpan, CudaError> {
        let mut all: Option<WeightSpan> = None;
        for id in ids {
            let one = self.weight(id)?;
            all = Some(match all {
                None => one,
                Some(all) if all.offset + all.bytes == one.offset => {
                    WeightSpan { offset: all.offset, bytes: all.bytes + one.bytes }
                }
                Some(_) => return Err(CudaError::Tape("weights under each other")),
            });
        }
        all.ok_or(CudaError::Tape("a weight"))
    }

    fn action(&mut self, op: &Op) -> Result<Option<Action>, CudaError> {
        let action = match op {
            Op::Embed { to } => {
                let id = WeightId { layer: None, role: Role::Embedding };
                Action::Embed { weight: self.weight(id)?, to: self.span(*to)? }
            }
            Op::Norm { weight, add, from, to } => Action::Norm {
                weight: self.weight(*weight)?,
                add: add.map(|add| self.span(add)).transpose()?,
                from: self.span(*from)?,
                to: Some(self.span(*to)?),
            },
            Op::Linear { weights, from, to, effect, .. } => {
                self.product(weights, (*from, *to), *effect)?
            }
            Op::HeadNorm { weight, at, start, heads } => Action::HeadNorm {
                weight: self.weight(*weight)?,
                at: self.span(*at)?,
                start: *start,
                heads: *heads,
            },
            // The kernel that stores keys rotates them and the queries.
            Op::Rope { .. } => return Ok(None),
            Op::StoreKv { layer, from } => Action::Store { layer: *layer, qkv: self.span(*from)? },
            Op::Attend { layer, from, to, window } => Action::Attend {
                layer: *layer,
                qkv: self.span(*from)?,
                to: self.span(*to)?,
                window: window.unwrap_or(0),
            },
            Op::SwiGlu { from, to } => {
                Action::SwiGlu { from: self.span(*from)?, to: self.span(*to)? }
            }
            Op::AllReduce { at } => Action::AllReduce { at: self.span(*at)? },
            // A norm that writes no result; its scale is not read.
            Op::Add { from, to } => Action::Norm {
                weight: self.any_norm()?,
                add: Some(self.span(*from)?),
                from: self.span(*to)?,
                to: None,
            },
            Op::Gather { from, to } => {
                Action::Gather { from: self.span(*from)?, to: self.span(*to)? }
            }
        };
        Ok(Some(action))
    }

    fn any_norm(&self) -> Result<WeightSpan, CudaError> {
        self.weight(WeightId { layer: Some(0), role: Role::MlpNorm })
    }

    fn product(
        &mut self,
        weights: &[WeightId],
        (from, to): (BufferId, BufferId),
        effect: Effect,
    ) -> Result<Action, CudaError> {
        let (from, to) = (self.span(from)?, self.span(to)?);
        let biases = weights.iter().filter_map(|weight| weight.bias());
        let biases = biases.filter(|bias| self.own.extent(*bias).is_some());
        let biases: Vec<WeightId> = biases.collect();
        let bias = match biases.is_empty() {
            true => None,
            false => Some(self.group(biases.into_iter())?),
        };
        let kind = ProductKind {
            outputs: to.width,
            inputs: from.width,
            wide: to.value_bytes == 4,
            add: effect == Effect::Add,
            by_output: to.per == Per::Output,
        };
        let known = self.kinds.iter().position(|known| *known == kind);
        let kind = known.unwrap_or_else(|| {
            self.kinds.push(kind);
            self.kinds.len() - 1
        });
        let weight = self.group(weights.iter().copied())?;
        Ok(Action::Product { kind, weight, from, to, bias })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::{
        tape::own::{self, Execution, LayerShape, StepLimits, Workspace},
        units::Bytes,
    };

    fn shape(ranks: u64) -> DecoderShape {
        DecoderShape {
            vocab: 97,
            hidden: 40,
            layers: vec![LayerShape { intermediate: 36, window: Some(9) }; 3],
            q_heads: 4 * ranks,
            kv_heads: 2 * ranks,
            head_dim: 10,
            norm_eps: 1e-5,
            rope: vec![1.0; 5],
            tied: true,
            qkv_bias: true,
            o_bias: false,
            mlp_bias: false,
            qk_norm: true,
            context: 128,
        }
    }

    fn program(ranks: u64, rank: u64) -> (Program, Bytes) {
        let own = shape(ranks).of_rank(ranks).unwrap();
        let execution = Execution { workspace: Workspace::None, activation_bytes: 2, ranks };
        let tape = own::tape(&own, execution).unwrap();
        let plan = ArenaPlan::new(&tape, StepLimits { tokens: 24, outputs: 8 }).unwrap();
        let weights = WeightLayout::new(&own, rank);
        (Program::new(&own, &tape, &plan, &weights, rank == 0).unwrap(), plan.total)
    }

    #[test]
    fn the_first_layer_launches_all_kinds() {
        let (program, total) = program(1, 0);
        let of = |at: &usize| std::mem::discriminant(&program.actions[*at]);
        let first: Vec<_> = program.first_layer.iter().map(of).collect();
        assert!(program.actions.iter().all(|a| first.contains(&std::mem::discriminant(a))));
        // Nine a layer with head norms and rotation, and four outside: embedding, gather, norm, logits.
        assert_eq!(program.actions.len(), 3 * 11 + 4);
        assert_eq!(program.first_layer.len(), 11 + 4);
        assert_eq!(program.kinds.len(), 5);
        let logits = program.logits.unwrap();
        assert_eq!((logits.width, logits.value_bytes), (97, 4));
        assert!(logits.offset + 8 * 97 * 4 <= total.0);
        // Each layer: 11 actions, one bias, one merge.
        assert_eq!(program.launches(), 3 * 13 + 4 + 1);
        let bias = program.actions.iter().find_map(|action| match action {
            Action::Product { bias, .. } => *bias,
            _ => None,
        });
        assert_eq!(bias.unwrap().bytes, (4 + 2 + 2) * 10 * 4);
    }

    #[test]
    fn other_ranks_make_no_logits() {
        let (first, other) = (program(2, 0).0, program(2, 1).0);
        assert_eq!(other.logits, None);
        assert!(other.actions.len() < first.actions.len());
        // Until then they do the same, so that their sums meet.
        for (a, b) in first.actions.iter().zip(&other.actions) {
            assert_eq!(std::mem::discriminant(a), std::mem::discriminant(b));
        }
        assert!(matches!(other.actions.last(), Some(Action::Norm { to: None, .. })));
    }
}
