//! The caching allocator on the prefill of the founding case: Kimi-K2.5, tensor parallel over 8, one
//! chunk of 8,192 tokens, 61 layers. `cargo bench --bench allocator`.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a bench stops where a test would; the harness makes a public function"
)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use plimsoll_core::{
    estimate::{
        moe::SharedExperts,
        shape::{AttentionShape, MlpNames, MoeShape, QkNorm, ShapeInputs},
    },
    memory::caching_allocator::{
        BlockId, CachingAllocator, CountingSource, Options, Setup, StreamId, TorchVersion,
    },
    tape::{
        self, Code, Event, Experts, Family, LayerMlp, MarlinReduce, PrefillChunk, Tape, TapeModel,
        prefill_chunk,
    },
    units::GIB,
};
use std::hint::black_box;

const TOTAL: u64 = 95 * GIB;

/// Kimi-K2.5 as SGLang 0.5.8 runs it: latent attention, Marlin experts.
fn tape() -> Tape {
    let shape = ShapeInputs {
        hidden: 7168,
        attention: AttentionShape::Mla {
            q_heads: 64,
            q_lora_rank: 1536,
            kv_lora_rank: 512,
            qk_nope_head_dim: 128,
            qk_rope_head_dim: 64,
            v_head_dim: 128,
        },
        dense_intermediate: 18_432,
        moe: Some(MoeShape {
            experts: 384,
            top_k: 8,
            intermediate: 2048,
            shared_intermediate: 2048,
        }),
        vocab: 163_840,
        layers: 61,
        mlp_names: MlpNames::Kept,
        qk_norm: QkNorm::Absent,
    };
    let mut layers = vec![LayerMlp::Experts; 61];
    layers[0] = LayerMlp::Dense;
    let model = TapeModel { shape, layers, family: Family::DeepSeek };
    let setup = tape::Setup {
        experts: Experts::Marlin { multiprocessors: 188, reduce: MarlinReduce::Atomic },
        shared_experts: SharedExperts::Separate,
        ..tape::Setup::plain(Code::Sglang0508, 8)
    };
    let chunk = PrefillChunk { tokens: 8192, requests: 1, prefix_tokens: 0 };
    prefill_chunk(&model, &setup, &chunk).unwrap()
}

struct Player {
    cache: CachingAllocator,
    device: CountingSource,
}

impl Player {
    fn new(conf: &str) -> Self {
        let options = Options::parse(conf, TorchVersion::NEWEST).unwrap();
        Self {
            cache: CachingAllocator::new(Setup { options, ..Setup::new(TOTAL) }),
            device: CountingSource::new(TOTAL),
        }
    }

    /// One chunk, its result freed.
    fn play(&mut self, tape: &Tape) {
        for (_, block) in self.cache.play(&mut self.device, tape, StreamId(0)).unwrap() {
            self.cache.free(block).unwrap();
        }
    }
}

fn prefill(c: &mut Criterion) {
    let tape = tape();
    let pairs = tape.events().iter().filter(|op| matches!(op, Event::Alloc { .. })).count() as u64;
    let mut group = c.benchmark_group("prefill of Kimi-K2.5, 8192 tokens");
    group.throughput(Throughput::Elements(pairs));
    for (name, conf) in [("plain segments", ""), ("growing ranges", "expandable_segments:True")] {
        let mut player = Player::new(conf);
        player.play(&tape);
        // The founding case's peak: 0.875 GiB for the largest request, about 1.49 GiB in all.
        let peak = player.cache.stats().allocated.peak;
        assert!((1_595_000_000..1_610_000_000).contains(&peak), "a fast wrong answer: {peak}");
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
