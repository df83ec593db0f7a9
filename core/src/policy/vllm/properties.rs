//! Properties that hold for any model and any amount of memory.

use super::{
    args::EngineArgs,
    capacity::{self, Rank},
    defaults::Usage,
    groups, hybrid, lines,
    settings::{self, AttentionKind, ModelFacts, Settings, StateKind},
    spec::{Heads, Kind, LayerSpec},
    testing, v0,
};
use crate::{
    policy::sglang::version::Version,
    units::{Bytes, Tokens},
};
use proptest::prelude::*;

fn layers() -> impl Strategy<Value = Vec<LayerSpec>> {
    let heads = (1_u64..9, prop::sample::select(vec![64_u64, 128, 256]), 1_u64..3);
    let kind = prop_oneof![
        Just(Kind::Full),
        (1_u64..5000).prop_map(|window| Kind::SlidingWindow { window }),
        (1_u64..9000).prop_map(|chunk| Kind::ChunkedLocal { chunk }),
    ];
    let part = (kind, 1_usize..20);
    let state = prop::option::of((1_u64..5_000_000, 1_usize..20));
    (heads, prop::collection::vec(part, 1..4), state).prop_map(|(heads, parts, state)| {
        let (kv_heads, head_size, element) = heads;
        let heads = Heads { kv_heads, head_size, head_size_v: head_size, element };
        let spec = |kind| LayerSpec::heads(kind, heads, 16);
        let mut all: Vec<_> = parts.into_iter().flat_map(|(kind, n)| vec![spec(kind); n]).collect();
        if let Some((bytes, count)) = state {
            all.extend(vec![LayerSpec::mamba(bytes, 16); count]);
        }
        all
    })
}

fn any_settings() -> impl Strategy<Value = Settings> {
    let minor = prop::sample::select(vec![8_u16, 9, 10, 11, 12, 15, 18, 20, 21, 24, 27, 30, 33]);
    (minor, 1_u64..200_000, any::<bool>(), 0_u64..4).prop_map(|(minor, len, caching, drafts)| {
        testing::settings(minor, len, |a| {
            a.enable_prefix_caching = Some(caching);
            a.num_speculative_tokens = Some(drafts);
        })
    })
}

proptest! {
    /// Every layer is in one group; no group is larger than a block id.
    #[test]
    fn groups_partition_the_layers(s in any_settings(), layers in layers()) {
        let (layers, _) = hybrid::apply(&s, &layers);
        let g = groups::group(&s, &layers).unwrap();
        let mut members: Vec<usize> = g.groups.iter().flat_map(|g| g.layers.clone()).collect();
        members.sort_unstable();
        prop_assert_eq!(members, (0..layers.len()).collect::<Vec<_>>());
        for group in &g.groups {
            let pages: u64 = group.layers.iter().map(|&i| g.layers[i].page_size().0).sum();
            prop_assert!(pages <= g.bytes_per_block.0);
        }
    }

    /// The pool stays inside what is available, and one more block would not.
    #[test]
    fn the_pool_fills_what_is_available(
        s in any_settings(),
        layers in layers(),
        available in 1_i64..(64 << 30),
    ) {
        if let Ok(pool) = capacity::size_pool(&s, &[Rank { layers, available }]) {
            let bytes = pool.bytes().0 as i64;
            prop_assert!(bytes <= available);
            prop_assert!(available - bytes < pool.bytes_per_block.0 as i64);
        }
    }

    /// The estimated longest request fits, and one token more does not.
    #[test]
    fn the_estimate_is_the_longest(
        s in any_settings(),
        layers in layers(),
        usable in 0_i64..(8 << 30),
        limit in 1_u64..200_000,
    ) {
        let (layers, _) = hybrid::apply(&s, &layers);
        let g = groups::group(&s, &layers).unwrap();
        let est = capacity::estimated_max_len(&s, &g, usable, limit);
        let needed = |len| capacity::needed_bytes(&s, &g, len).0 as i64;
        prop_assert!(est <= limit);
        if est > 0 {
            prop_assert!(needed(est) <= usable);
        }
        if est < limit {
            prop_assert!(needed(est + 1) > usable);
        }
    }

    /// No input panics, however absurd.
    #[test]
    fn nothing_panics(
        minor in 0_u16..50,
        numbers in prop::array::uniform8(any::<u64>()),
        len in any::<i64>(),
        available in any::<i64>(),
        mut layers in layers(),
    ) {
        let mut args = EngineArgs::new(Version::new(0, minor, 0), "m");
        let [tokens, seqs, block, drafts, blocks, total, bytes, dcp] = numbers;
        args.max_num_batched_tokens = Some(tokens);
        args.max_num_seqs = Some(seqs.min(tokens));
        args.block_size = Some(block);
        args.num_speculative_tokens = Some(drafts);
        args.num_gpu_blocks_override = (blocks % 2 == 0).then_some(blocks);
        args.max_model_len = Some(len);
        args.decode_context_parallel_size = dcp as u32;
        let model = ModelFacts {
            context_len: Tokens(bytes),
            attention: AttentionKind::Latent,
            state: StateKind::Recurrent,
        };
        let mut device = testing::device();
        device.total = Bytes(total);
        for layer in &mut layers {
            layer.block_size = block.max(1);
            layer.bytes = bytes.max(1);
        }
        if let Ok(s) = settings::resolve(&args, &device, Usage::Server, model) {
            let token = layers.clone();
            let _ = v0::size_pool(&s, &token, &[available]);
            match capacity::size_pool(&s, &[Rank { layers, available }]) {
                Ok(pool) => prop_assert!(!lines::capacity(&s.rules, &pool).is_empty()),
                Err(refusal) => prop_assert!(!refusal.to_string().is_empty()),
            }
        }
    }

    /// More memory never gives fewer tokens, nor a refusal where less was accepted.
    #[test]
    fn tokens_rise_with_memory(
        s in any_settings(),
        layers in layers(),
        available in 1_i64..(64 << 30),
        more in 0_i64..(1 << 30),
    ) {
        let tokens = |available| {
            capacity::size_pool(&s, &[Rank { layers: layers.clone(), available }])
                .map(|pool| pool.kv_cache_tokens)
        };
        if let Ok(less) = tokens(available) {
            prop_assert!(tokens(available + more).unwrap() >= less);
        }
    }
}
