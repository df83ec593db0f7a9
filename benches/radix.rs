//! The radix cache alone, at sizes up to 10 million tokens in 100,000 nodes. `cargo bench --bench radix`.
//!
//! Families of prompts share 1,000 tokens; each has 100 members of 90 tokens of its own. Members are visited in an
//! order that jumps about. Target: a match or an insert takes under 2 µs and 1 ns a token; an eviction grows
//! as the logarithm of the nodes.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a bench stops where a test would; the harness makes a public function"
)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_core::kv::{EvictionPolicy, RadixTree, Run, Runs, TreeClock, TreeOptions};
use std::hint::black_box;

const SHARED: u64 = 1000;
const OWN: u64 = 90;
const MEMBERS: u64 = 100;

fn prompt(member: u64) -> Runs {
    let shared = Run { first: (member / MEMBERS) << 32, len: SHARED };
    let own = Run { first: 1 << 62 | member << 20, len: OWN };
    [shared, own].into_iter().collect()
}

fn insert(tree: &mut RadixTree, member: u64) -> u64 {
    let ids = prompt(member);
    let slots = Runs::of(0, SHARED + OWN);
    tree.insert(0, ids.cursor(), slots.cursor(), 0).present
}

/// A tree of `members` leaves, and of as many hundredths of that many inner nodes.
fn tree(members: u64, page_size: u64) -> RadixTree {
    let options =
        TreeOptions { page_size, eviction: EvictionPolicy::Lru, clock: TreeClock::PerCall };
    let mut tree = RadixTree::new(options);
    for member in 0..members {
        insert(&mut tree, member);
    }
    assert_eq!(tree.evictable(), members * OWN + members / MEMBERS * SHARED);
    tree
}

/// Members in an order that jumps about: the multiplier is prime to every power of ten.
struct Jumps {
    at: u64,
    members: u64,
}

impl Iterator for Jumps {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.at = (self.at + 61_803_399) % self.members;
        Some(self.at)
    }
}

fn radix(c: &mut Criterion) {
    for members in [1000, 10_000, 100_000] {
        let mut group = c.benchmark_group(format!("radix of {members} leaves"));
        group.throughput(Throughput::Elements(1));
        let mut cache = tree(members, 1);
        let mut jumps = Jumps { at: 0, members };
        group.bench_function("match 1,090 tokens", |b| {
            b.iter(|| {
                let ids = prompt(jumps.next().unwrap());
                let found = cache.match_prefix(0, ids.cursor());
                assert_eq!(found.len, SHARED + OWN);
            });
        });
        group.bench_function("insert what is there", |b| {
            b.iter(|| assert_eq!(insert(&mut cache, jumps.next().unwrap()), SHARED + OWN));
        });
        let mut next = members;
        group.bench_function("insert a leaf and evict one", |b| {
            b.iter(|| {
                // Of the families that are there: a new member of one of them.
                next += 1;
                let shared = Run { first: (next % (members / MEMBERS)) << 32, len: SHARED };
                let own = Run { first: 1 << 61 | next << 20, len: OWN };
                let ids: Runs = [shared, own].into_iter().collect();
                cache.insert(0, ids.cursor(), Runs::of(0, SHARED + OWN).cursor(), 0);
                black_box(cache.evict(1).len())
            });
        });
        group.finish();
    }
}

/// As above with pages: a child is found by its whole first page.
fn pages(c: &mut Criterion) {
    let mut group = c.benchmark_group("radix with pages of 10");
    let mut cache = tree(100_000, 10);
    let mut jumps = Jumps { at: 0, members: 100_000 };
    group.bench_function("match 1,090 tokens", |b| {
        b.iter(|| {
            let ids = prompt(jumps.next().unwrap());
            assert_eq!(cache.match_prefix(0, ids.cursor()).len, SHARED + OWN);
        });
    });
    group.finish();
}

criterion_group!(benches, radix, pages);
criterion_main!(benches);
