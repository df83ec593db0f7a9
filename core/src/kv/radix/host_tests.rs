//! Tests of the host tier.

use super::*;
use proptest::prelude::*;

fn tree(tokens: u64, write_policy: WritePolicy) -> RadixTree {
    let clock = TreeClock::PerVisit;
    let options = TreeOptions { page_size: 1, eviction: EvictionPolicy::Lru, clock };
    RadixTree::with_host(options, HostTierOptions { tokens, write_policy })
}

fn put(tree: &mut RadixTree, first_id: u64, len: u64, first_slot: u64) -> Inserted {
    tree.insert(0, Runs::of(first_id, len).cursor(), Runs::of(first_slot, len).cursor(), 0)
}

fn find(tree: &mut RadixTree, first_id: u64, len: u64) -> Match {
    tree.match_prefix(0, Runs::of(first_id, len).cursor())
}

fn stored(tokens: u64) -> HostEvent {
    HostEvent::BackedUp { tokens, stored: tokens }
}

impl RadixTree {
    /// Recomputes from the nodes what the tree keeps.
    fn check_tiers(&self) {
        let (mut slots, mut left) = (0, vec![NodeId::ROOT]);
        let (mut leaves, mut copies) = (BTreeSet::new(), BTreeSet::new());
        while let Some(id) = left.pop() {
            let node = self.at(id);
            slots += node.slots.len();
            assert!(node.is_resident() || (node.has_copy() && node.locks == 0));
            assert!(!node.has_copy() || node.host.len() == node.key.len());
            let below: Vec<NodeId> = node.children.values().copied().collect();
            let resident = below.iter().filter(|child| self.at(**child).is_resident()).count();
            assert_eq!(node.resident_children as usize, resident);
            assert!(node.is_resident() || resident == 0, "slots below a node without");
            let policy = self.options.eviction;
            leaves.extend(policy.leaf_key(node).map(|key| (key, id)));
            copies.extend(policy.copy_key(node).map(|key| (key, id)));
            left.extend(below);
        }
        assert_eq!(slots, self.evictable + self.protected);
        assert_eq!(leaves, self.leaves);
        assert_eq!(copies, self.host.as_ref().unwrap().copies);
    }

    fn host_held(&self) -> u64 {
        self.nodes.iter().map(|node| node.host.len()).sum()
    }
}

#[test]
fn write_through_copies_at_once_and_locks_until_it_is_seen() {
    let mut tree = tree(100, WritePolicy::WriteThrough);
    put(&mut tree, 0, 30, 1);
    assert_eq!(tree.take_host_events(), [stored(30)]);
    assert_eq!((tree.evictable(), tree.protected()), (0, 30));
    assert_eq!((tree.host_available(), tree.pending_writes()), (70, 1));
    assert!(tree.evict(30).is_empty());
    tree.acknowledge_transfers();
    assert_eq!((tree.evictable(), tree.pending_writes()), (30, 0));
    assert_eq!(tree.evict(30), [Runs::of(1, 30)]);
    let found = find(&mut tree, 0, 40);
    assert_eq!((found.node, found.len, found.host.len), (NodeId::ROOT, 0, 30));
    tree.check_tiers();
}

#[test]
fn selective_copies_at_the_second_insert_and_chunks_do_not_count() {
    let mut tree = tree(100, WritePolicy::WriteThroughSelective);
    let (ids, slots) = (Runs::of(0, 30), Runs::of(1, 30));
    tree.insert_beyond(0, ids.cursor(), slots.cursor(), 0, 30);
    put(&mut tree, 0, 30, 1);
    assert_eq!(tree.take_host_events(), []);
    put(&mut tree, 0, 30, 1);
    assert_eq!(tree.take_host_events(), [stored(30)]);
    // Both halves of a node have its hits and its copy.
    put(&mut tree, 0, 10, 1);
    assert_eq!(tree.take_host_events(), []);
    tree.check_tiers();
}

#[test]
fn what_is_evicted_without_a_copy_is_gone() {
    let mut tree = tree(100, WritePolicy::WriteThroughSelective);
    put(&mut tree, 0, 30, 1);
    assert_eq!(tree.evict(1), [Runs::of(1, 30)]);
    assert_eq!(find(&mut tree, 0, 30).host, HostHit::NONE);
}

#[test]
fn write_back_copies_what_it_evicts_and_frees_it_last() {
    let mut tree = tree(40, WritePolicy::WriteBack);
    put(&mut tree, 0, 20, 1);
    put(&mut tree, 100, 20, 21);
    assert_eq!(tree.take_host_events(), []);
    assert_eq!(tree.evict(1), [Runs::of(1, 20)]);
    let hit = find(&mut tree, 0, 20).host;
    assert_eq!(tree.begin_load(hit.node), Some(20));
    tree.end_load(hit.node, &Runs::of(41, 20));
    tree.start_loads();
    tree.acknowledge_transfers();
    // The loaded node has a copy already, and goes before the one that must be copied.
    put(&mut tree, 100, 20, 21);
    put(&mut tree, 200, 20, 61);
    let freed = tree.evict(60);
    assert_eq!(freed, [Runs::of(41, 20), Runs::of(21, 20), Runs::of(61, 20)]);
    // The third copy took the place of the oldest one.
    let events = tree.take_host_events();
    let evicted = HostEvent::Evicted { asked: 20, freed: 20 };
    assert_eq!(events, [stored(20), stored(20), evicted, stored(20)]);
    assert_eq!((tree.host_available(), tree.evictable()), (0, 0));
    assert!(!tree.take_out_of_room());
    tree.check_tiers();
}

#[test]
fn write_back_without_room_is_told() {
    let mut tree = tree(10, WritePolicy::WriteBack);
    put(&mut tree, 0, 20, 1);
    assert!(tree.evict(1).is_empty());
    assert!(tree.take_out_of_room());
    assert!(!tree.take_out_of_room());
    tree.check_tiers();
}

#[test]
fn short_parts_are_not_loaded() {
    for (len, loads) in [(9, None), (10, Some(10))] {
        let mut tree = tree(100, WritePolicy::WriteThrough);
        put(&mut tree, 0, len, 1);
        tree.acknowledge_transfers();
        tree.evict(1);
        let hit = find(&mut tree, 0, len).host;
        assert_eq!((hit.len, tree.begin_load(hit.node)), (len, loads));
    }
}

#[test]
fn a_load_keeps_its_copy_and_may_fail() {
    let mut tree = tree(30, WritePolicy::WriteBack);
    put(&mut tree, 0, 20, 1);
    tree.evict(1);
    put(&mut tree, 100, 20, 1);
    let hit = find(&mut tree, 0, 20).host;
    assert_eq!(tree.begin_load(hit.node), Some(20));
    // An eviction for the load would need the host slots that the load reads.
    assert!(tree.evict(20).is_empty());
    assert!(tree.take_out_of_room());
    tree.end_load(hit.node, &Runs::new());
    assert_eq!(find(&mut tree, 0, 20).host, hit);
    tree.check_tiers();
}

#[test]
fn an_insert_gives_slots_to_nodes_without() {
    let mut tree = tree(100, WritePolicy::WriteThrough);
    put(&mut tree, 0, 30, 1);
    put(&mut tree, 0, 40, 1);
    tree.acknowledge_transfers();
    assert_eq!(tree.evict(11), [Runs::of(31, 10), Runs::of(1, 30)]);
    let done = put(&mut tree, 0, 35, 51);
    assert_eq!((done.present, done.ends), (0, vec![]));
    assert_eq!(tree.slots_to(done.node), Runs::of(51, 35));
    let found = find(&mut tree, 0, 40);
    assert_eq!((found.len, found.host.len), (35, 5));
    tree.check_tiers();
}

#[test]
fn frequency_decides_with_a_host_tier() {
    let options =
        TreeOptions { page_size: 1, eviction: EvictionPolicy::Lfu, clock: TreeClock::PerVisit };
    let host = HostTierOptions { tokens: 100, write_policy: WritePolicy::WriteThrough };
    let mut tree = RadixTree::with_host(options, host);
    put(&mut tree, 0, 10, 1);
    put(&mut tree, 0, 10, 1);
    put(&mut tree, 100, 10, 11);
    find(&mut tree, 0, 10);
    find(&mut tree, 100, 10);
    tree.acknowledge_transfers();
    assert_eq!(tree.evict(1), [Runs::of(11, 10)]);
}

#[test]
fn later_trees_count_hits_of_what_a_request_adds() {
    let first = |clock, eviction| {
        let mut tree = RadixTree::new(TreeOptions { page_size: 1, eviction, clock });
        put(&mut tree, 0, 10, 1);
        put(&mut tree, 0, 10, 1);
        put(&mut tree, 100, 10, 11);
        // What was inserted before by the same request is no second hit.
        tree.insert_beyond(0, Runs::of(100, 10).cursor(), Runs::of(11, 10).cursor(), 0, 10);
        tree.evict(1)[0].first()
    };
    assert_eq!(first(TreeClock::PerNode, EvictionPolicy::Lfu), Some(11));
    assert_eq!(first(TreeClock::PerNode, EvictionPolicy::Slru), Some(11));
    assert_eq!(first(TreeClock::PerNode, EvictionPolicy::Lru), Some(1));
    assert_eq!(first(TreeClock::PerCall, EvictionPolicy::Lfu), Some(1));
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Insert(u64, u64, u64),
    Evict(u64),
    Load(u64, u64, u64),
    Look,
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (0_u64..3, 1_u64..30, 0_u64..30).prop_map(|(f, shared, own)| Op::Insert(f, shared, own)),
        2 => (1_u64..60).prop_map(Op::Evict),
        2 => (0_u64..3, 1_u64..30, 0_u64..30).prop_map(|(f, shared, own)| Op::Load(f, shared, own)),
        1 => Just(Op::Look),
    ]
}

fn ids(family: u64, shared: u64, own: u64) -> Runs {
    let mut ids = Runs::of(family * 1000, shared);
    ids.extend(&Runs::of(100_000 + family * 1000 + own % 7, own));
    ids
}

proptest! {
    /// Whatever happens, both orders of eviction and all sums are what the nodes say, and host slots are
    /// free, held, or lost with a node that had no copy.
    #[test]
    fn both_tiers_keep_their_books(
        policy in prop_oneof![
            Just(WritePolicy::WriteThrough),
            Just(WritePolicy::WriteThroughSelective),
            Just(WritePolicy::WriteBack),
        ],
        tokens in prop_oneof![10_u64..60, Just(400)],
        ops in proptest::collection::vec(any_op(), 1..60),
    ) {
        let mut tree = tree(tokens, policy);
        let mut next = 1;
        let mut fresh = |len: u64| {
            next += len;
            Runs::of(next - len, len)
        };
        for op in ops {
            match op {
                Op::Insert(family, shared, own) => {
                    let ids = ids(family, shared, own);
                    let slots = fresh(ids.len());
                    let done = tree.insert(0, ids.cursor(), slots.cursor(), 0);
                    prop_assert_eq!(tree.slots_to(done.node).len(), ids.len());
                }
                Op::Evict(asked) => {
                    let before = tree.evictable();
                    let freed: u64 = tree.evict(asked).iter().map(Runs::len).sum();
                    prop_assert_eq!(before - freed, tree.evictable());
                    let enough = freed >= asked.min(before);
                    prop_assert!(tree.take_out_of_room() || enough || tree.protected() > 0);
                }
                Op::Load(family, shared, own) => {
                    let found = tree.match_prefix(0, ids(family, shared, own).cursor());
                    tree.lock(found.node);
                    if let Some(tokens) = tree.begin_load(found.host.node) {
                        tree.evict(tokens);
                        let slots = if own % 3 == 0 { Runs::new() } else { fresh(tokens) };
                        tree.end_load(found.host.node, &slots);
                        tree.start_loads();
                        let len = found.len + slots.len();
                        prop_assert_eq!(tree.slots_to(found.host.node).len(), len);
                    }
                    tree.unlock(found.node);
                }
                Op::Look => tree.acknowledge_transfers(),
            }
            tree.check_tiers();
            let (free, held) = (tree.host_available(), tree.host_held());
            prop_assert!(free + held <= tokens);
            prop_assert!(free + held == tokens || policy != WritePolicy::WriteBack);
        }
        tree.acknowledge_transfers();
        prop_assert_eq!(tree.protected(), 0);
    }
}
