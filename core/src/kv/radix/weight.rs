//! Depth-first order by weight, for the queue policy `dfs-weight`.

use std::{cmp::Reverse, collections::BTreeMap};

use super::NodeId;

/// The order of [`super::RadixTree::heavy_first`] for any tree, given a node's parent and its children
/// with the order in which they joined it.
pub(in crate::kv) fn heavy_first(
    weights: &[(NodeId, u64)],
    parent: impl Fn(NodeId) -> NodeId,
    children: impl Fn(NodeId) -> Vec<(NodeId, u64)>,
) -> Vec<NodeId> {
    let mut total: BTreeMap<NodeId, u64> = BTreeMap::new();
    for (node, weight) in weights {
        let mut at = *node;
        loop {
            *total.entry(at).or_default() += weight;
            if at == NodeId::ROOT {
                break;
            }
            at = parent(at);
        }
    }
    let mut order = Vec::new();
    // A node is pushed a second time, to be emitted after its children.
    let mut stack = vec![(NodeId::ROOT, false)];
    while let Some((id, seen)) = stack.pop() {
        if seen {
            order.push(id);
            continue;
        }
        stack.push((id, true));
        let mut heavy: Vec<(Reverse<u64>, u64, NodeId)> = children(id)
            .into_iter()
            .filter_map(|(child, joined)| Some((Reverse(*total.get(&child)?), joined, child)))
            .collect();
        heavy.sort_unstable();
        stack.extend(heavy.into_iter().rev().map(|(.., child)| (child, false)));
    }
    order
}
