//! Boundaries and properties of pool sizing that the recorded vectors do not hold.

use super::{
    args::{DisaggregationMode, ServerArgs},
    facts::{KvDtype, MachineFacts, ModelFacts},
    geometry::{
        CellShape, DraftKv, Heads, Hybrid, KvGeometry, LayerLists, MambaHybrid, MambaStrategy,
        SwaHybrid,
    },
    pool::{Overlap, PoolInputs, RadixCache, RankInputs, size, size_pool, size_stages, tokens},
    refusal::Refusal,
    resolve,
    speculation::{DraftKind, Speculation},
    window::{floor_range, smallest_fraction, tokens_at},
};
use crate::units::{Bytes, GIB, Tokens};
use proptest::prelude::*;

const HEADS: Heads = Heads { kv_heads: 8, head_dim: 128, v_head_dim: 128 };

fn inputs(version: &str) -> PoolInputs {
    PoolInputs {
        version: version.parse().unwrap(),
        kv: KvGeometry::uniform(CellShape::Heads(HEADS), 32, 1, KvDtype::Bf16),
        draft: None,
        page_size: 1,
        context_len: 131_072,
        pre_load_free_gib: 78.5,
        avail_after_load_gib: 62.5,
        mem_fraction_static: 0.85,
        withheld_mib: 0.0,
        max_total_tokens: None,
        max_running_requests: None,
        user_max_running_requests: None,
        attn_dp_size: 1,
        chunked_prefill_size: 8192,
        speculation: None,
        radix_cache: RadixCache::Enabled,
        overlap: Overlap::Enabled,
        role: DisaggregationMode::Null,
        pp_min_tokens: None,
    }
}

fn swa(kv: &mut KvGeometry) {
    let lists = LayerLists { total: 32, full: 16, swa: 16 };
    kv.hybrid = Hybrid::Swa(SwaHybrid {
        layers: lists,
        split_by: lists,
        swa_heads: HEADS,
        window: Some(1024),
        ratio: 0.8,
    });
}

fn mamba(kv: &mut KvGeometry) {
    kv.hybrid = Hybrid::Mamba(MambaHybrid {
        whole_model_full_layers: 32,
        state_bytes_per_request: 77_266_944,
        ratio: 0.9,
        max_mamba_cache_size: None,
        strategy: MambaStrategy::NoBuffer,
    });
}

fn eagle() -> Option<Speculation> {
    Some(Speculation {
        algorithm: "EAGLE".to_owned(),
        kind: DraftKind::Model,
        num_steps: 3,
        topk: 1,
        num_draft_tokens: 4,
    })
}

#[test]
fn weights_above_the_fraction_are_refused_with_the_least_fraction() {
    let mut i = inputs("0.5.23");
    i.avail_after_load_gib = 10.0;
    let refusal = size(&i).unwrap_err();
    let Refusal::WeightsLeaveNoMemory { minimum, suggested, .. } = refusal else {
        panic!("{refusal}")
    };
    assert!((minimum - (1.0 - 10.0 / 78.5)).abs() < 1e-12);
    assert_eq!(suggested, 0.873);
    assert!(matches!(size(&PoolInputs { version: "0.5.13".parse().unwrap(), ..i.clone() }),
        Err(Refusal::NotEnoughMemory { tokens, .. }) if tokens < 0));
    // At the suggestion the start goes through.
    i.mem_fraction_static = suggested;
    assert!(size(&i).is_ok());
}

#[test]
fn multimodal_caches_come_out_of_the_budget() {
    let plain = size(&inputs("0.5.18")).unwrap();
    let less = size(&PoolInputs { withheld_mib: 100.0, ..inputs("0.5.18") }).unwrap();
    let cells = (100.0 * 1_048_576.0 / plain.cell.bytes) as u64;
    let lost = plain.max_total_num_tokens.0 - less.max_total_num_tokens.0;
    assert!(lost.abs_diff(cells) <= 1, "{lost}");
}

#[test]
fn stages_follow_the_smallest() {
    for version in ["0.5.8", "0.5.23"] {
        let small = inputs(version);
        let mut large = inputs(version);
        large.kv.layers = 40;
        let pools = size_stages(&[small.clone(), large.clone()]).unwrap();
        assert_eq!(pools[0].max_total_num_tokens, pools[1].max_total_num_tokens);
        assert_eq!(pools[1].max_total_num_tokens, tokens(&large).unwrap());
        assert!(tokens(&small).unwrap() > tokens(&large).unwrap());
    }
}

#[test]
fn sliding_window_pools_want_page_one_to_0_5_7() {
    let mut i = inputs("0.5.7");
    swa(&mut i.kv);
    assert!(size(&i).is_ok());
    i.page_size = 16;
    assert!(matches!(size(&i), Err(Refusal::SwaNeedsPageOne { .. })));
    i.version = "0.5.8".parse().unwrap();
    assert!(size(&i).is_ok());
}

#[test]
fn sliding_window_bytes_are_two_pools_and_a_mapping() {
    let mut i = inputs("0.5.23");
    swa(&mut i.kv);
    let pool = size(&i).unwrap();
    let both = pool.swa.unwrap();
    let layer = 8 * 256 * 2 * 16;
    assert_eq!(pool.bytes.kv_pool, Bytes((both.full.0 + 1) * layer));
    assert_eq!(pool.bytes.swa_pool, Bytes((both.swa.0 + 1) * layer));
    let lists = 8 * (both.full.0 + both.swa.0 + both.full.0 + 2);
    assert_eq!(pool.bytes.free_lists, Bytes(lists));
    let used = pool.bytes.inside_budget_accounts().0 - pool.bytes.kv_padding.0;
    assert!(i128::from(used) <= pool.budget_bytes);
}

#[test]
fn a_padding_slot_is_charged_from_0_5_17() {
    let slots = |version: &str| {
        let mut i = inputs(version);
        mamba(&mut i.kv);
        let pool = size(&i).unwrap();
        (pool.mamba.unwrap().slots, pool.bytes.mamba_state.0 / 77_266_944)
    };
    let (before, bytes_before) = slots("0.5.16");
    let (after, bytes_after) = slots("0.5.17");
    assert_eq!((before, bytes_before), (after + 1, bytes_after));
    assert_eq!(u64::try_from(before).unwrap(), bytes_before);
}

#[test]
fn draft_kv_is_beside_the_budget_to_0_5_13() {
    let pool = |version: &str| {
        let mut i = inputs(version);
        i.speculation = eagle();
        i.max_running_requests = Some(48);
        i.draft = Some(DraftKv { layers: 1, cell_bytes: None });
        size(&i).unwrap()
    };
    let (old, new) = (pool("0.5.13"), pool("0.5.14"));
    assert_eq!(old.cell.bytes, 131_072.0);
    assert_eq!(new.cell.bytes, 131_072.0 * 33.0 / 32.0);
    let total = |p: &super::Pool| i128::from(p.bytes.inside_budget_accounts().0);
    assert!(total(&old) > old.budget_bytes && total(&new) <= new.budget_bytes + 2 * 135_168);
}

#[test]
fn the_decode_role_adds_rows_to_small_tables() {
    let rows = |version: &str, requests| {
        let mut i = inputs(version);
        i.role = DisaggregationMode::Decode;
        i.max_running_requests = Some(requests);
        size(&i).unwrap().requests.rows
    };
    assert_eq!(rows("0.4.6", 32), 33);
    assert_eq!(rows("0.4.7", 32), 96);
    assert_eq!(rows("0.5.23", 32), 97);
    assert_eq!(rows("0.5.23", 33), 34);
}

#[test]
fn floors_follow_the_used_interval() {
    let range = floor_range(&inputs("0.5.23"), (15.0, 17.0), Tokens(100_000));
    let (low, high) = (range.low.unwrap(), range.high.unwrap());
    assert!(low.exact < high.exact);
    let cell = 131_072.0;
    let closed = |used: f64| (used * GIB as f64 + 100_000.0 * cell) / (78.5 * GIB as f64);
    assert!((low.exact - closed(15.0)).abs() < 1e-9);
    assert!((high.exact - closed(17.0)).abs() < 1e-9);
    let capped = PoolInputs { max_total_tokens: Some(10), ..inputs("0.5.23") };
    assert!(smallest_fraction(&capped, Tokens(11)).is_none());
}

#[test]
fn settings_and_pool_join() {
    let mut args = ServerArgs::new("0.5.23".parse().unwrap(), "m");
    args.mem_fraction_static = Some(0.85);
    let model = ModelFacts::text(131_072);
    let machine = MachineFacts { gpu_mem_mib: Some(81_559.0), compute_capability: Some((9, 0)) };
    let resolved = resolve(&args, &machine, &model).unwrap();
    let rank = RankInputs {
        kv: inputs("0.5.23").kv,
        draft: None,
        pre_load_free_gib: 78.5,
        avail_after_load_gib: 62.5,
    };
    let pool = size_pool(&resolved, &rank).unwrap();
    assert_eq!(pool.max_total_num_tokens, tokens(&inputs("0.5.23")).unwrap());
}

fn versions() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "0.4.6", "0.4.7", "0.4.10", "0.5.2", "0.5.3", "0.5.4", "0.5.6", "0.5.7", "0.5.8", "0.5.9",
        "0.5.10", "0.5.11", "0.5.13", "0.5.14", "0.5.16", "0.5.17", "0.5.20", "0.5.23",
    ])
}

proptest! {
    #[test]
    fn any_input_gives_a_pool_or_a_refusal(
        version in versions(),
        layout in 0_u8..3,
        page in prop::sample::select(vec![0_u64, 1, 16, 64, 1 << 20, u64::MAX]),
        context in prop::sample::select(vec![0_u64, 1, 4096, 1 << 40, u64::MAX]),
        gib in prop::array::uniform2(prop::num::f64::ANY),
        fraction in prop::num::f64::ANY,
        cap in prop::option::of(prop::sample::select(vec![0_u64, 1, 100, 1 << 40, u64::MAX])),
        requests in prop::option::of(prop::sample::select(vec![0_u64, 1, 48, 1 << 32])),
        layers in prop::sample::select(vec![0_u64, 1, 61, u64::MAX]),
        speculating in any::<bool>(),
        radix_off in any::<bool>(),
    ) {
        let mut i = inputs(version);
        match layout {
            0 => {}
            1 => swa(&mut i.kv),
            _ => mamba(&mut i.kv),
        }
        i.kv.layers = layers;
        (i.page_size, i.context_len) = (page, context);
        (i.pre_load_free_gib, i.avail_after_load_gib) = (gib[0], gib[1]);
        i.mem_fraction_static = fraction;
        i.max_total_tokens = cap;
        i.max_running_requests = requests;
        i.user_max_running_requests = requests;
        i.speculation = if speculating { eagle() } else { None };
        i.draft = speculating.then_some(DraftKv { layers, cell_bytes: None });
        i.radix_cache = if radix_off { RadixCache::Disabled } else { RadixCache::Enabled };
        match size(&i) {
            Ok(pool) => prop_assert_eq!(tokens(&i).unwrap(), pool.max_total_num_tokens),
            Err(refusal) => {
                prop_assert!(!refusal.to_string().is_empty());
                let _ = refusal.engine_message(i.version);
            }
        }
    }

    #[test]
    fn pools_fit_their_budget_and_their_pages(
        version in prop::sample::select(vec!["0.5.7", "0.5.8", "0.5.11", "0.5.17", "0.5.23"]),
        layout in 0_u8..3,
        page in prop::sample::select(vec![1_u64, 16, 64]),
        free in 40.0_f64..140.0,
        used in 0.05_f64..0.7,
        fraction in 0.8_f64..0.95,
    ) {
        let mut i = inputs(version);
        match layout {
            0 => {}
            1 if version != "0.5.7" => swa(&mut i.kv),
            _ => mamba(&mut i.kv),
        }
        i.page_size = page;
        i.pre_load_free_gib = free;
        i.avail_after_load_gib = free * (1.0 - used);
        i.mem_fraction_static = fraction;
        if let Ok(pool) = size(&i) {
            prop_assert!(pool.max_total_num_tokens.0.is_multiple_of(page));
            let pools = pool.bytes.inside_budget_accounts().0 - pool.bytes.kv_padding.0;
            // Splits in floating point may exceed the budget by less than a page.
            prop_assert!(i128::from(pools) <= pool.budget_bytes + i128::from(page) * 131_072);
        }
    }

    #[test]
    fn the_floor_is_least_and_agrees_with_the_sizing(
        version in prop::sample::select(vec!["0.5.2", "0.5.8", "0.5.10", "0.5.11", "0.5.23"]),
        layout in 0_u8..3,
        page in prop::sample::select(vec![1_u64, 64]),
        wanted in 1_u64..300_000,
        used in 0.05_f64..0.7,
    ) {
        let mut i = inputs(version);
        match layout {
            0 => {}
            1 => swa(&mut i.kv),
            _ => mamba(&mut i.kv),
        }
        i.page_size = if version == "0.5.2" { 1 } else { page };
        i.avail_after_load_gib = i.pre_load_free_gib * (1.0 - used);
        if let Some(floor) = smallest_fraction(&i, Tokens(wanted)) {
            let at = |f: f64| tokens_at(&i, f).map_or(0, |t| t.0);
            prop_assert!(at(floor.exact) >= wanted);
            prop_assert!(at(floor.exact.next_down()) < wanted);
            prop_assert_eq!(at(floor.thousandths), floor.tokens.0);
            prop_assert!(floor.tokens.0 >= wanted && floor.exact <= floor.thousandths);
            prop_assert!(at(floor.thousandths - 0.001) < wanted);
        }
    }
}
