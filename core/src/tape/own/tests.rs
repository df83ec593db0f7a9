//! Properties of the own tape and of its arena, over random shapes.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn shape(
    (layers, groups, kv_heads, half, wide): (usize, u64, u64, u64, u64),
    (tied, qk_norm): (bool, bool),
) -> DecoderShape {
    DecoderShape {
        vocab: 97,
        hidden: groups * 24,
        layers: vec![LayerShape { intermediate: wide, window: None }; layers],
        q_heads: groups * kv_heads,
        kv_heads,
        head_dim: half * 2,
        norm_eps: 1e-5,
        rope: vec![1.0; half as usize],
        tied,
        qkv_bias: qk_norm,
        o_bias: false,
        mlp_bias: false,
        qk_norm,
        context: 512,
    }
}

fn shapes() -> impl Strategy<Value = DecoderShape> {
    let numbers = (1_usize..5, 1_u64..5, 1_u64..4, 1_u64..20, 1_u64..200);
    (numbers, any::<(bool, bool)>()).prop_map(|(numbers, flags)| shape(numbers, flags))
}

fn workspaces() -> impl Strategy<Value = Workspace> {
    prop_oneof![
        Just(Workspace::None),
        (1_u64..5000).prop_map(Workspace::Fixed),
        (1_u64..64, 1_u64..64).prop_map(|(of, values)| Workspace::Input { of, values })
    ]
}

fn executions() -> impl Strategy<Value = Execution> {
    let bytes = prop::sample::select(vec![2_u64, 4]);
    (workspaces(), bytes, 1_u64..4).prop_map(|(workspace, activation_bytes, ranks)| Execution {
        workspace,
        activation_bytes,
        ranks,
    })
}

/// What each operation reads and writes, worked out here once more: what is read was written before.
fn check_flow(tape: &OwnTape) {
    let mut written = BTreeSet::new();
    for (at, op) in tape.ops.iter().enumerate() {
        let (reads, writes) = match op {
            Op::Embed { to } => (vec![], vec![*to]),
            Op::Norm { add: Some(add), from, to, .. } => (vec![*add, *from], vec![*from, *to]),
            Op::Add { from, to } => (vec![*from, *to], vec![*to]),
            Op::Norm { from, to, .. }
            | Op::Attend { from, to, .. }
            | Op::SwiGlu { from, to }
            | Op::Gather { from, to } => (vec![*from], vec![*to]),
            Op::Linear { from, to, effect, .. } => match effect {
                Effect::Store => (vec![*from], vec![*to]),
                Effect::Add => (vec![*from, *to], vec![*to]),
            },
            Op::HeadNorm { at, .. } | Op::Rope { at, .. } | Op::AllReduce { at } => {
                (vec![*at], vec![*at])
            }
            Op::StoreKv { from, .. } => (vec![*from], vec![]),
        };
        for id in reads {
            assert!(written.contains(&id), "operation {at} reads {id:?} before it is written");
        }
        written.extend(writes);
        for id in op.buffers() {
            let buffer = tape.buffer(id).unwrap();
            assert!(buffer.first <= at && at <= buffer.last, "{} is not alive", buffer.name);
        }
    }
    assert_eq!(tape.buffer(tape.logits).unwrap().last, tape.ops.len() - 1);
}

/// With several ranks each part is summed once before it joins the residual stream, and joins it once.
fn check_sums(tape: &OwnTape, ranks: u64) {
    let count = |what: fn(&Op) -> bool| tape.ops.iter().filter(|op| what(op)).count();
    let summed = count(|op| matches!(op, Op::AllReduce { .. }));
    let joined = count(|op| matches!(op, Op::Norm { add: Some(_), .. } | Op::Add { .. }));
    let added = count(|op| matches!(op, Op::Linear { effect: Effect::Add, .. }));
    let layers = count(|op| matches!(op, Op::Attend { .. }));
    let expected = if ranks == 1 { (0, 0, 2 * layers) } else { (2 * layers, 2 * layers, 0) };
    assert_eq!((summed, joined, added), expected);
}

fn check_plan(tape: &OwnTape, plan: &ArenaPlan, step: StepSize) {
    for (i, a) in tape.buffers.iter().enumerate() {
        let start = plan.offsets[i].0;
        assert!(start.is_multiple_of(ALIGNMENT.0));
        let end = start + a.bytes(step).0;
        assert!(end <= plan.total.0, "{} ends outside", a.name);
        for (j, b) in tape.buffers.iter().enumerate().skip(i + 1) {
            let apart = a.last < b.first || b.last < a.first;
            let other = plan.offsets[j].0;
            let clear = end <= other || other + b.bytes(step).0 <= start;
            assert!(apart || clear, "{} and {} overlap", a.name, b.name);
        }
    }
}

proptest! {
    #[test]
    fn plans_hold_for_every_smaller_step(
        shape in shapes(), execution in executions(), tokens in 1_u64..300, part in 0.0..1.0_f64,
        smaller in 0.0..1.0_f64,
    ) {
        let tape = tape(&shape, execution).unwrap();
        check_flow(&tape);
        check_sums(&tape, execution.ranks);
        let outputs = ((tokens as f64 * part) as u64).max(1);
        let plan = ArenaPlan::new(&tape, StepLimits { tokens, outputs }).unwrap();
        let largest = StepSize { tokens, outputs };
        check_plan(&tape, &plan, largest);
        let step = StepSize {
            tokens: ((tokens as f64 * smaller) as u64).max(1),
            outputs: ((outputs as f64 * smaller) as u64).max(1),
        };
        prop_assert!(plan.covers(step));
        check_plan(&tape, &plan, step);
        prop_assert!(plan.total >= tape.live_bytes_max(largest));
        // What one layer needs serves all: the arena does not grow with the layers.
        let mut deeper = shape.clone();
        deeper.layers.push(shape.layers[0]);
        let deeper = super::tape(&deeper, execution).unwrap();
        let more = ArenaPlan::new(&deeper, StepLimits { tokens, outputs }).unwrap();
        prop_assert_eq!(more.total, plan.total);
    }

    #[test]
    fn every_weight_is_used_once(shape in shapes()) {
        let tape = tape(&shape, Workspace::None).unwrap();
        let mut used = vec![WeightId { layer: None, role: Role::Embedding }];
        for op in &tape.ops {
            match op {
                Op::Norm { weight, .. } | Op::HeadNorm { weight, .. } => used.push(*weight),
                Op::Linear { weights, .. } => {
                    let biases = weights.iter().filter_map(|w| w.bias());
                    used.extend(biases.filter(|b| shape.extent(*b).is_some()));
                    used.extend(weights);
                }
                _ => {}
            }
        }
        if shape.tied {
            used.pop();
        }
        used.sort_unstable();
        let mut all: Vec<_> = shape.weights().collect();
        all.sort_unstable();
        prop_assert_eq!(used, all);
    }
}

#[test]
fn ranks_share_a_shape_evenly_or_not_at_all() {
    let mut whole = shape((2, 3, 4, 8, 96), (false, true));
    let half = whole.of_rank(2).unwrap();
    assert_eq!((half.q_heads, half.kv_heads, half.hidden), (6, 2, whole.hidden));
    assert_eq!(half.layers[1].intermediate, 48);
    // Every weight of a rank is that part of the whole one that its role says.
    for id in whole.weights() {
        let (all, own) = (whole.extent(id).unwrap(), half.extent(id).unwrap());
        // A bias is one row, and what is shared are its values.
        let shared = match (id.role.split(), all.rows) {
            (Split::Rows, 1) | (Split::Columns, _) => (all.rows, all.columns / 2),
            (Split::Rows, _) => (all.rows / 2, all.columns),
            (Split::Whole | Split::First, _) => (all.rows, all.columns),
        };
        assert_eq!((own.rows, own.columns), shared, "{id}");
    }
    whole.layers[1].intermediate = 97;
    let error = whole.of_rank(2).unwrap_err().to_string();
    let allowed = "a multiple of the ranks of tensor parallelism";
    assert_eq!(error, format!("feed-forward width is 97; allowed: {allowed}"));
    assert!(whole.of_rank(0).is_err() && whole.of_rank(8).is_err());
}

#[test]
fn limits_out_of_range_are_errors() {
    let tape = tape(&shape((1, 1, 1, 2, 8), (true, false)), Workspace::None).unwrap();
    let error = ArenaPlan::new(&tape, StepLimits { tokens: 4, outputs: 5 }).unwrap_err();
    assert_eq!(error.to_string(), "outputs of a step is 5; allowed: 1 to 4");
    assert!(ArenaPlan::new(&tape, StepLimits { tokens: 0, outputs: 0 }).is_err());
}

#[test]
fn shapes_out_of_range_are_errors() {
    let mut wrong = shape((1, 3, 2, 4, 8), (true, false));
    wrong.kv_heads = 4;
    let error = tape(&wrong, Workspace::None).unwrap_err();
    assert_eq!(error.to_string(), "query heads is 6; allowed: a multiple of the key-value heads");
}
