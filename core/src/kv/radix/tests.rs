//! Tests of the tree.

use super::*;
use proptest::prelude::*;

fn tree(page_size: u64, clock: TreeClock) -> RadixTree {
    RadixTree::new(TreeOptions { page_size, eviction: EvictionPolicy::Lru, clock })
}

fn put(tree: &mut RadixTree, ids: &Runs, first_slot: u64) -> Inserted {
    tree.insert(0, ids.cursor(), Runs::of(first_slot, ids.len()).cursor(), 0)
}

#[test]
fn a_partial_match_splits_and_keeps_slots() {
    let mut tree = tree(1, TreeClock::PerCall);
    assert_eq!(put(&mut tree, &Runs::of(100, 10), 1).present, 0);
    let mut other = Runs::of(100, 4);
    other.extend(&Runs::of(900, 6));
    let found = tree.match_prefix(0, other.cursor());
    assert_eq!(found.len, 4);
    assert_eq!(tree.slots_to(found.node), Runs::of(1, 4));
    let done = put(&mut tree, &other, 50);
    assert_eq!((done.present, done.ends), (4, vec![4]));
    // The first four keep their slots: 50 to 53 are the caller's to free.
    let mut slots = Runs::of(1, 4);
    slots.extend(&Runs::of(54, 6));
    assert_eq!(tree.slots_to(done.node), slots);
    assert_eq!((tree.evictable(), tree.protected()), (16, 0));
}

#[test]
fn namespaces_share_nothing() {
    let mut tree = tree(1, TreeClock::PerCall);
    put(&mut tree, &Runs::of(100, 10), 1);
    assert_eq!(tree.match_prefix(1, Runs::of(100, 10).cursor()).len, 0);
    assert_eq!(tree.match_prefix(0, Runs::of(100, 10).cursor()).len, 10);
}

#[test]
fn pages_are_shared_whole() {
    let mut tree = tree(16, TreeClock::PerCall);
    put(&mut tree, &Runs::of(0, 48), 16);
    assert_eq!(tree.match_prefix(0, Runs::of(0, 47).cursor()).len, 32);
    assert_eq!(tree.match_prefix(0, Runs::of(0, 15).cursor()).len, 0);
    assert_eq!(tree.match_prefix(0, Runs::of(1, 47).cursor()).len, 0);
}

#[test]
fn the_least_recently_used_leaf_goes_first_and_locked_ones_stay() {
    for clock in [TreeClock::PerCall, TreeClock::PerNode] {
        let mut tree = tree(1, clock);
        let a = put(&mut tree, &Runs::of(100, 10), 1);
        put(&mut tree, &Runs::of(200, 10), 11);
        put(&mut tree, &Runs::of(300, 10), 21);
        tree.lock(a.node);
        tree.match_prefix(0, Runs::of(200, 10).cursor());
        assert_eq!(tree.evict(1), [Runs::of(21, 10)]);
        assert_eq!((tree.evictable(), tree.protected()), (10, 10));
        assert_eq!(tree.evict(99), [Runs::of(11, 10)]);
        tree.unlock(a.node);
        assert_eq!(tree.evict(99), [Runs::of(1, 10)]);
        assert_eq!((tree.evictable(), tree.protected()), (0, 0));
    }
}

#[test]
fn other_strategies_order_leaves_their_way() {
    let first = |eviction, priorities: [i64; 3]| {
        let clock = TreeClock::PerCall;
        let mut tree = RadixTree::new(TreeOptions { page_size: 1, eviction, clock });
        for (i, priority) in (0..).zip(priorities) {
            let slots = Runs::of(1 + 10 * i, 10);
            tree.insert(0, Runs::of(100 * (i + 1), 10).cursor(), slots.cursor(), priority);
        }
        tree.match_prefix(0, Runs::of(100, 10).cursor());
        tree.evict(1)[0].first()
    };
    assert_eq!(first(EvictionPolicy::Lru, [0; 3]), Some(11));
    assert_eq!(first(EvictionPolicy::Mru, [0; 3]), Some(1));
    assert_eq!(first(EvictionPolicy::Fifo, [0; 3]), Some(1));
    assert_eq!(first(EvictionPolicy::Filo, [0; 3]), Some(21));
    assert_eq!(first(EvictionPolicy::Priority, [5, 4, 3]), Some(21));
}

#[test]
fn heavier_branches_come_first() {
    let mut tree = tree(1, TreeClock::PerCall);
    let a = put(&mut tree, &Runs::of(100, 10), 1).node;
    let b = put(&mut tree, &Runs::of(200, 10), 11).node;
    assert_eq!(tree.heavy_first(&[(a, 1), (b, 2), (NodeId::ROOT, 1)]), [b, a, NodeId::ROOT]);
    assert_eq!(tree.heavy_first(&[(b, 1), (a, 1)]), [a, b, NodeId::ROOT]);
}

proptest! {
    /// Against a plain list of what was stored: prefix lengths, slots and sums agree.
    #[test]
    fn the_tree_remembers_what_was_put(
        page in prop_oneof![Just(1_u64), Just(2)],
        sequences in proptest::collection::vec(proptest::collection::vec(0_u64..3, 0..12), 1..20),
        probe in proptest::collection::vec(0_u64..3, 0..12),
    ) {
        let mut tree = tree(page, TreeClock::PerNode);
        let mut known: Vec<Vec<u64>> = Vec::new();
        let mut next_slot = 1000;
        for sequence in &sequences {
            let cut = sequence.len() / page as usize * page as usize;
            let ids: Runs = sequence[..cut].iter().copied().collect();
            let done = put(&mut tree, &ids, next_slot);
            next_slot += 1000;
            prop_assert_eq!(tree.slots_to(done.node).len(), ids.len());
            known.push(sequence[..cut].to_vec());
        }
        let shared = |other: &Vec<u64>| {
            let n = other.iter().zip(&probe).take_while(|(a, b)| a == b).count() as u64;
            n / page * page
        };
        let expected = known.iter().map(shared).max().unwrap_or(0);
        let ids: Runs = probe.iter().copied().collect();
        let found = tree.match_prefix(0, ids.cursor());
        prop_assert_eq!(found.len, expected);
        prop_assert_eq!(tree.slots_to(found.node).len(), expected);
        let sum = tree.evictable();
        let freed: u64 = tree.evict(u64::MAX).iter().map(Runs::len).sum();
        prop_assert_eq!((freed, tree.evictable(), tree.nodes.len() - tree.unused.len()), (sum, 0, 1));
    }
}
