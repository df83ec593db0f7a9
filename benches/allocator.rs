//! The caching allocator on the prefill of the founding case: Kimi-K2.5, tensor parallel over 8, one
//! chunk of 8,192 tokens, 61 layers. `cargo bench --bench allocator`.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a bench stops where a test would; the harness makes a public function"
)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_core::{
    memory::caching_allocator::{
        BlockId, CachingAllocator, CountingSource, Options, Setup, StreamId, TorchVersion,
    },
    units::GIB,
};
use std::hint::black_box;

const LAYERS: usize = 61;
const TOTAL: u64 = 95 * GIB;

#[derive(Clone, Copy)]
enum Op {
    /// Slot and bytes.
    Alloc(usize, u64),
    /// Slot.
    Free(usize),
}
use Op::{Alloc, Free};

/// T·h in 16 bits: one row of the residual stream for each of 8,192 tokens.
const STREAM: u64 = 8192 * 7168 * 2;

/// Attention without a prefix, the same in every layer. Slot 0 holds the output of the layer before.
const ATTENTION: &[Op] = &[
    Alloc(1, 34_603_008), // fused q_a, kv_a and rope
    Alloc(2, 25_165_824), // normed q_a
    Alloc(3, 25_165_824), // q
    Free(2),
    Alloc(4, 8_388_608),  // normed kv
    Alloc(5, 25_165_824), // latent as read back
    Alloc(6, 3_145_728),  // rope as read back
    Free(4),
    Alloc(7, 100_663_296), // k without rope, and v
    Alloc(8, 75_497_472),  // k
    Free(5),
    Free(6),
    Alloc(9, 16_777_216), // attention out
    Alloc(10, STREAM),    // o_proj
    Free(3),
    Free(7),
    Free(8),
    Free(9),
];

/// Routed and shared experts (Marlin); leaves the layer's output in slot 0.
const EXPERTS: &[Op] = &[
    Alloc(11, 8_388_608),
    Alloc(12, 4_194_304),
    Alloc(13, STREAM), // shared experts
    Free(11),
    Free(12),
    Alloc(14, 6_291_456),  // router logits
    Alloc(15, 12_582_912), // their 32-bit copy
    Alloc(16, 262_144),    // weights
    Alloc(17, 262_144),    // ids
    Free(15),
    Alloc(18, 359_164),
    Alloc(19, 5_612),
    Alloc(20, 4),
    Alloc(21, 1_544),
    Free(21),
    Alloc(22, 3_008),
    Alloc(23, 33_554_432),  // activation
    Alloc(24, 939_524_096), // both GEMMs
    Alloc(25, STREAM),      // routed experts
    Free(18),
    Free(19),
    Free(20),
    Free(22),
    Free(23),
    Free(24),
    Free(10),
    Free(13),
    Free(14),
    Free(16),
    Free(17),
    Free(0),
    Free(1),
];

/// The dense first layer.
const DENSE: &[Op] = &[
    Alloc(11, 75_497_472),
    Alloc(12, 37_748_736),
    Alloc(25, STREAM),
    Free(10),
    Free(11),
    Free(12),
    Free(0),
    Free(1),
];

fn tape() -> Vec<Op> {
    // The embedding becomes the residual stream; the first norm makes the layer's input.
    let mut ops = vec![Alloc(26, STREAM), Alloc(0, STREAM)];
    for layer in 0..LAYERS {
        ops.extend(ATTENTION);
        ops.extend(if layer == 0 { DENSE } else { EXPERTS });
        // The output becomes the input of the next: a name, no allocation.
        ops.push(Free(usize::MAX));
    }
    ops.extend([Free(0), Free(26)]);
    ops
}

struct Player {
    cache: CachingAllocator,
    device: CountingSource,
    slots: [Option<BlockId>; 32],
}

impl Player {
    fn new(conf: &str) -> Self {
        let options = Options::parse(conf, TorchVersion::NEWEST).unwrap();
        Self {
            cache: CachingAllocator::new(Setup { options, ..Setup::new(TOTAL) }),
            device: CountingSource::new(TOTAL),
            slots: [None; 32],
        }
    }

    fn play(&mut self, tape: &[Op]) {
        for op in tape {
            match *op {
                Alloc(slot, bytes) => {
                    let id = self.cache.malloc(&mut self.device, bytes, StreamId(0)).unwrap();
                    self.slots[slot] = Some(id);
                }
                Free(usize::MAX) => self.slots[0] = self.slots[25].take(),
                Free(slot) => self.cache.free(self.slots[slot].take().unwrap()).unwrap(),
            }
        }
    }
}

fn prefill(c: &mut Criterion) {
    let tape = tape();
    let pairs = tape.iter().filter(|op| matches!(op, Alloc(..))).count() as u64;
    let mut group = c.benchmark_group("prefill of Kimi-K2.5, 8192 tokens");
    group.throughput(Throughput::Elements(pairs));
    for (name, conf) in [("plain segments", ""), ("growing ranges", "expandable_segments:True")] {
        let mut player = Player::new(conf);
        player.play(&tape);
        // The founding case's peak: 0.875 GiB for the largest request, about 1.49 GiB in all.
        let peak = player.cache.stats().allocated.peak;
        assert!((1_560_000_000..1_610_000_000).contains(&peak), "a fast wrong answer: {peak}");
        assert_eq!(player.cache.stats().allocated.current, 0);
        group.bench_function(name, |b| b.iter(|| player.play(black_box(&tape))));
    }
    group.finish();
}

/// Ten thousand blocks in use, one in three of them freed and asked for again: sets that are large.
fn fragmented(c: &mut Criterion) {
    let mut player = Player::new("");
    let size = |n: u64| 512 + (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 46);
    let mut held: Vec<BlockId> = (0..10_000)
        .map(|n| player.cache.malloc(&mut player.device, size(n), StreamId(0)).unwrap())
        .collect();
    let mut group = c.benchmark_group("ten thousand blocks in use");
    group.throughput(Throughput::Elements(3334));
    group.bench_function("free and ask again for every third", |b| {
        b.iter(|| {
            for slot in held.iter().step_by(3) {
                player.cache.free(*slot).unwrap();
            }
            for (n, slot) in (0..).zip(&mut held).step_by(3) {
                *slot = player.cache.malloc(&mut player.device, size(n), StreamId(0)).unwrap();
            }
        });
    });
    group.finish();
    assert_eq!(player.cache.verify(), Ok(()));
}

criterion_group! {
    name = benches;
    config = Criterion::default().without_plots();
    targets = prefill, fragmented
}
criterion_main!(benches);
