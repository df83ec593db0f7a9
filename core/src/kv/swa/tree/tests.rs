//! Tests of the tree.

use super::*;
use proptest::prelude::*;

const NOTHING: Taken = Taken { held: 0, window_freed: 0 };

fn put(tree: &mut SwaTree, ids: &Runs, first_slot: u64, taken: Taken) -> Vec<Runs> {
    tree.insert(0, ids.cursor(), Runs::of(first_slot, ids.len()).cursor(), taken)
}

fn find(tree: &mut SwaTree, ids: &Runs) -> Match {
    tree.match_prefix(0, ids.cursor())
}

const fn counts(full: u64, window: u64) -> PerPool {
    PerPool { full, window }
}

/// 100.. of 10 tokens, with 5 more below it.
fn two_levels(window: u64) -> SwaTree {
    let mut tree = SwaTree::new(1, window);
    put(&mut tree, &Runs::of(100, 10), 1, NOTHING);
    put(&mut tree, &Runs::of(100, 15), 101, NOTHING);
    tree
}

#[test]
fn a_prefix_ends_where_a_window_is_alive() {
    for (window, found) in [(5, 15), (6, 0)] {
        let mut tree = two_levels(window);
        assert_eq!(tree.evict(counts(0, 1)), [Evicted::Window(Runs::of(1, 10))]);
        assert_eq!(tree.evictable(), counts(15, 5));
        assert_eq!(find(&mut tree, &Runs::of(100, 15)).len, found);
    }
}

#[test]
fn before_the_first_tombstone_any_prefix_is_good() {
    let mut tree = SwaTree::new(1, 8);
    put(&mut tree, &Runs::of(100, 4), 1, NOTHING);
    put(&mut tree, &Runs::of(100, 8), 101, NOTHING);
    put(&mut tree, &Runs::of(100, 12), 201, NOTHING);
    let locked = find(&mut tree, &Runs::of(100, 4)).node;
    // The last eight tokens of the path are locked, not the first four.
    let deepest = find(&mut tree, &Runs::of(100, 12)).node;
    let mark = tree.lock(deepest);
    assert_eq!(tree.protected(), counts(12, 8));
    tree.lock(locked);
    assert_eq!(tree.protected(), counts(12, 12));
    tree.unlock(deepest, mark);
    assert_eq!(tree.protected(), counts(4, 4));
    // The middle one is a tombstone now: what lies below it is too short for a window.
    assert_eq!(tree.evict(counts(0, 1)), [Evicted::Window(Runs::of(105, 4))]);
    assert_eq!(find(&mut tree, &Runs::of(100, 12)).len, 4);
}

#[test]
fn a_tombstone_comes_alive_with_the_slots_that_are_given() {
    let mut tree = two_levels(5);
    tree.evict(counts(0, 1));
    // Window slots are gone up to 4: the node is cut there, and the rest comes alive.
    let freed = put(&mut tree, &Runs::of(100, 15), 201, Taken { held: 0, window_freed: 4 });
    assert_eq!(freed, [Runs::of(5, 6), Runs::of(201, 4), Runs::of(211, 5)]);
    assert_eq!(tree.evictable(), counts(15, 11));
    let found = find(&mut tree, &Runs::of(100, 15));
    let mut slots = Runs::of(1, 4);
    slots.extend(&Runs::of(205, 6));
    slots.extend(&Runs::of(111, 5));
    assert_eq!((found.len, tree.slots_to(found.node)), (15, slots));
    // What the caller holds is left alone.
    let freed = put(&mut tree, &Runs::of(100, 15), 301, Taken { held: 10, window_freed: 0 });
    assert_eq!(freed, [Runs::of(311, 5)]);
}

#[test]
fn a_new_leaf_begins_with_a_tombstone_where_window_slots_are_gone() {
    let mut tree = SwaTree::new(1, 4);
    put(&mut tree, &Runs::of(100, 10), 1, Taken { held: 0, window_freed: 6 });
    assert_eq!(tree.evictable(), counts(10, 4));
    assert_eq!(find(&mut tree, &Runs::of(100, 9)).len, 0);
    assert_eq!(find(&mut tree, &Runs::of(100, 10)).len, 10);
    // The leaf goes, of which a part was matched, and the tombstone above it with it.
    let gone = tree.evict(counts(2, 0));
    assert_eq!(
        gone,
        [
            Evicted::Node(Runs::of(10, 1)),
            Evicted::Node(Runs::of(7, 3)),
            Evicted::Node(Runs::of(1, 6))
        ]
    );
    assert_eq!(tree.evictable(), counts(0, 0));
}

#[test]
fn a_split_keeps_where_the_window_lock_ends() {
    let mut tree = SwaTree::new(1, 6);
    put(&mut tree, &Runs::of(100, 10), 1, NOTHING);
    let node = find(&mut tree, &Runs::of(100, 10)).node;
    let mark = tree.lock(node);
    assert_eq!(tree.protected(), counts(10, 10));
    assert_eq!(find(&mut tree, &Runs::of(100, 2)).len, 2);
    assert_eq!(tree.evict(counts(99, 99)), []);
    tree.unlock(node, mark);
    assert_eq!((tree.protected(), tree.evictable()), (counts(0, 0), counts(10, 10)));
}

#[test]
fn the_end_of_a_path_outlives_its_beginning() {
    let mut tree = two_levels(4);
    put(&mut tree, &Runs::of(900, 5), 901, NOTHING);
    find(&mut tree, &Runs::of(100, 15));
    let gone = tree.evict(counts(0, 20));
    assert_eq!(
        gone,
        [
            Evicted::Node(Runs::of(901, 5)),
            Evicted::Window(Runs::of(1, 10)),
            Evicted::Node(Runs::of(111, 5)),
            Evicted::Node(Runs::of(1, 10)),
        ]
    );
}

proptest! {
    /// Whatever is stored, matched, locked and evicted: the sums are those of the nodes, no leaf is a
    /// tombstone, and locks come back to nothing.
    #[test]
    fn the_books_close(
        page in prop_oneof![Just(1_u64), Just(2)],
        window in 1_u64..8,
        ops in proptest::collection::vec(
            (0_u8..4, proptest::collection::vec(0_u64..3, 1..14), 0_u64..12), 1..60),
    ) {
        let mut tree = SwaTree::new(page, window);
        let (mut locks, mut next_slot) = (Vec::new(), 1000);
        for (op, ids, n) in ops {
            let mut ids: Runs = ids.into_iter().collect();
            ids.truncate(ids.len() / page * page);
            match op {
                0 | 1 => {
                    // As a request does it: what it holds is a prefix that it has locked.
                    let found = tree.match_prefix(0, ids.cursor());
                    let mark = tree.lock(found.node);
                    let window_freed = (found.len + n).min(ids.len().saturating_sub(window)) / page * page;
                    let taken = Taken { held: found.len, window_freed };
                    put(&mut tree, &ids, next_slot, taken);
                    next_slot += 1000;
                    tree.unlock(found.node, mark);
                }
                2 => {
                    let node = tree.match_prefix(0, ids.cursor()).node;
                    locks.push((node, tree.lock(node)));
                }
                _ => {
                    tree.evict(PerPool { full: n, window: n / 2 });
                }
            }
            if locks.len() > 3 {
                let (node, mark) = locks.remove(0);
                tree.unlock(node, mark);
            }
            check(&tree);
        }
        for (node, mark) in locks {
            tree.unlock(node, mark);
        }
        prop_assert_eq!(tree.protected(), PerPool::default());
        tree.evict(PerPool { full: u64::MAX, window: 0 });
        prop_assert_eq!(tree.evictable(), PerPool::default());
        prop_assert_eq!(tree.nodes.len() - tree.unused.len(), 1);
    }
}

fn check(tree: &SwaTree) {
    let (mut evictable, mut protected) = (PerPool::default(), PerPool::default());
    let mut lists = (0, 0);
    for (at, node) in tree.nodes.iter().enumerate().skip(1) {
        if tree.unused.contains(&NodeId::at(at)) {
            continue;
        }
        let len = node.key.len();
        assert!(len > 0 && node.slots.len() == len);
        assert!(!node.is_tombstone() || !node.children.is_empty(), "a leaf is a tombstone");
        assert!(!node.is_tombstone() || node.window_locks == 0, "a tombstone is locked");
        assert!(node.window_locks <= node.full_locks);
        let sum = if node.full_locks > 0 { &mut protected.full } else { &mut evictable.full };
        *sum += len;
        if !node.is_tombstone() {
            let sum =
                if node.window_locks > 0 { &mut protected.window } else { &mut evictable.window };
            *sum += len;
        }
        lists.0 += usize::from(node.is_free_leaf());
        lists.1 += usize::from(node.has_free_window());
    }
    assert_eq!((tree.evictable, tree.protected), (evictable, protected));
    assert_eq!((tree.free_leaves.len(), tree.free_windows.len()), lists);
}
