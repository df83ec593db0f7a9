//! The two founding cases to the token. Their inputs are back-solved from the printed figures: free
//! memory and weights of the first are one point of the small region in which both printed token
//! counts come out; available RAM of the second is the middle of the interval that gives its slots.

use plimsoll_core::{
    policy::sglang::{
        Resolved,
        args::{GraphRequest, Platform, ServerArgs},
        facts::{AttentionArch, KvDtype, MachineFacts, ModelFacts},
        geometry::{CellShape, KvGeometry, Latent, LatentRow},
        hicache::{self, HicacheInputs, HostMemory},
        mlx::{self, MlxBound, MlxInputs},
        pool::{Pool, RankInputs, size_pool},
        resolve,
        window::{smallest_fraction, tokens_at},
    },
    units::{Bytes, GIB, Tokens},
};

/// Back-solved: 94.0359 to 94.0376 GiB free before loading, 72.3276 to 72.3290 GiB used after it.
const KIMI_FREE_GIB: f64 = 94.037;
const KIMI_WEIGHTS_GIB: f64 = 72.3285;

fn kimi(version: &str, fraction: Option<f64>) -> Resolved {
    let mut args = ServerArgs::new(version.parse().unwrap(), "moonshotai/Kimi-K2.5");
    args.tp_size = 8;
    args.mem_fraction_static = fraction;
    let mut model = ModelFacts::text(262_144);
    model.attention = AttentionArch::Mla;
    model.architecture = "KimiK25ForConditionalGeneration".to_owned();
    let machine = MachineFacts { gpu_mem_mib: Some(97_887.0), compute_capability: Some((12, 0)) };
    resolve(&args, &machine, &model).unwrap()
}

fn kimi_rank() -> RankInputs {
    let latent = Latent {
        kv_lora_rank: 512,
        qk_rope_head_dim: 64,
        index_head_dim: None,
        indexer_layers: 0,
        row: LatentRow::Packed,
    };
    RankInputs {
        kv: KvGeometry::uniform(CellShape::Latent(latent), 61, 8, KvDtype::Bf16),
        draft: None,
        pre_load_free_gib: KIMI_FREE_GIB,
        avail_after_load_gib: KIMI_FREE_GIB - KIMI_WEIGHTS_GIB,
    }
}

fn kimi_pool(version: &str, fraction: f64) -> Pool {
    size_pool(&kimi(version, Some(fraction)), &kimi_rank()).unwrap()
}

#[test]
fn kimi_pools_at_three_fractions() {
    for version in ["0.5.2", "0.5.8", "0.5.23"] {
        let tokens = |f| kimi_pool(version, f).max_total_num_tokens.0;
        assert_eq!(tokens(0.85), 116_171, "{version}");
        assert!([159_276, 159_277].contains(&tokens(0.88)), "{version}: {}", tokens(0.88));
        assert_eq!(tokens(0.93), 231_120, "{version}");
    }
}

#[test]
fn kimi_request_table_and_pool_bytes() {
    let pool = kimi_pool("0.5.8", 0.93);
    assert_eq!(pool.cell.bytes, 70_272.0);
    assert_eq!(pool.requests.rows, 2048);
    assert_eq!(pool.requests.columns, 262_148);
    assert_eq!(pool.bytes.req_to_token, Bytes(2048 * 262_148 * 4));
    assert_eq!(pool.bytes.kv_pool, Bytes(231_121 * 70_272));
    assert_eq!(pool.bytes.kv_padding, Bytes(70_272));
    assert_eq!(pool.bytes.free_lists, Bytes(8 * 231_120));
    assert_eq!(format!("{:.3}", pool.bytes.kv_pool.as_gib_f64()), "15.126");
    for figure in ["kv_budget", "cell_size", "max_total_num_tokens", "req_to_token"] {
        assert!(pool.whys.get(figure).is_some(), "{figure}");
    }
}

#[test]
fn kimi_automatic_fractions() {
    let fraction = |version| kimi(version, None);
    assert_eq!(fraction("0.5.8").mem_fraction_static, 0.848);
    assert_eq!(fraction("0.5.8").reserve.unwrap().total_mib, 14_848.0);
    assert_eq!(fraction("0.5.23").mem_fraction_static, 0.833);
    assert_eq!(fraction("0.5.8").chunked_prefill_size, 8192);
}

#[test]
fn kimi_floor_of_the_window() {
    let inputs = kimi("0.5.8", Some(0.85)).pool_inputs(&kimi_rank());
    let floor = smallest_fraction(&inputs, Tokens(231_120)).unwrap();
    assert_eq!(floor.thousandths, 0.93);
    assert!(floor.exact <= 0.93 && floor.exact > 0.929);
    assert!(tokens_at(&inputs, floor.exact).unwrap() >= Tokens(231_120));
    assert!(tokens_at(&inputs, floor.exact.next_down()).unwrap() < Tokens(231_120));
    let any = smallest_fraction(&inputs, Tokens(1)).unwrap();
    assert_eq!(any.thousandths, 0.77);
}

#[test]
fn kimi_host_pool_of_48_gb_a_rank() {
    let mut resolved = kimi("0.5.8", Some(0.93));
    let pool = size_pool(&resolved, &kimi_rank()).unwrap();
    let memory =
        HostMemory { os_available: Bytes::gib(1000), cgroup_headroom: None, ranks_on_host: 8 };
    assert_eq!(HicacheInputs::for_pool(&resolved, &pool, memory), None);
    resolved.args.enable_hierarchical_cache = true;
    resolved.args.hicache_size = Some(48.0);
    let inputs = HicacheInputs::for_pool(&resolved, &pool, memory).unwrap();
    let host = hicache::plan(&inputs).unwrap();
    assert_eq!(host.requested_tokens, Tokens(683_060));
    assert_eq!(host.tokens, Tokens(683_061));
    assert_eq!(host.overcommitted, None);
    assert_eq!(format!("{:.0}", host.host_bytes.0 as f64 / 1e9), "384");
    // With less RAM than 8 ranks take, each rank of this release still sees enough for itself.
    let small = HicacheInputs { os_available: Bytes::gib(256), ..inputs };
    assert!(hicache::plan(&small).unwrap().overcommitted.is_some());
}

fn laptop(fraction: f64, available_gib: f64) -> MlxInputs {
    MlxInputs {
        mem_fraction_static: fraction,
        working_set: Bytes(55_662_788_608),
        mlx_active: Bytes(GIB * 6 / 5),
        system_available: Bytes::from_gib_f64(available_gib),
        attention_layers: 28,
        full_attention_layers: 28,
        kv_heads: 8,
        head_dim: 128,
        kv_itemsize: 2,
        max_total_tokens: None,
        max_running_requests: None,
    }
}

#[test]
fn laptop_pools_of_three_starts() {
    for (fraction, available_gib, slots) in [
        (0.872, f64::midpoint(27.807_988, 27.808_111), 227_022),
        (0.872, f64::midpoint(38.288_134, 38.288_256), 312_581),
        (0.4, f64::midpoint(48.485_489, 48.485_756), 181_574),
    ] {
        let pool = mlx::size(&laptop(fraction, available_gib)).unwrap();
        assert_eq!(pool.slots, Tokens(slots));
        assert_eq!(pool.bound, MlxBound::SystemMemory);
        assert_eq!(pool.bytes_per_slot, Bytes(114_688));
    }
    let pool = mlx::size(&laptop(0.4, 48.4856)).unwrap();
    assert_eq!(format!("{:.1}", pool.pool_bytes.0 as f64 / 1_048_576.0), "19859.8");
}

#[test]
fn the_laptops_automatic_fraction() {
    let version = "0.5.23".parse().unwrap();
    let mut args = ServerArgs::new(version, "Qwen/Qwen3-0.6B");
    args.platform = Platform::Mlx;
    let machine = MachineFacts { gpu_mem_mib: Some(53_084.0), compute_capability: None };
    let auto = |args: &ServerArgs| {
        resolve(args, &machine, &ModelFacts::text(40_960)).unwrap().mem_fraction_static
    };
    assert_eq!(auto(&args), 0.871);
    args.decode_graph = GraphRequest::Off;
    assert_eq!(auto(&args), 0.872);
}
