//! Real start-up logs: the printed pool lies in the interval that the printed rounding of the inputs
//! allows (two decimals of GiB: half a hundredth each way). Exceptions are listed with their cause and
//! with the memory that the cause has to have taken; a row that no longer is one fails.

use super::{Row, Table, is_elsewhere, tables};
use plimsoll_core::policy::sglang::{
    args::{DisaggregationMode, Platform, ServerArgs},
    facts::{KvDtype, MachineFacts, ModelFacts},
    geometry::{CellShape, Heads, Hybrid, KvGeometry, Latent, LatentRow, LayerLists, SwaHybrid},
    pool::{Overlap, PoolInputs, RadixCache, size, tokens},
    refusal::Refusal,
    resolve,
    version::Version,
};

/// Between the reading after loading, which the log prints, and the reading that sizes the pool.
const LATE: &str = "memory taken between the printed reading after loading and the pool's reading";

struct Exception {
    /// Start of the row's id.
    id: &'static str,
    cause: &'static str,
    /// GiB that the cause took from the budget, as an interval that holds every such row.
    gib: (f64, f64),
}

const EXCEPTIONS: &[Exception] = &[
    Exception { id: "r3090-A1-gemma4-12b", cause: LATE, gib: (0.037, 0.050) },
    Exception { id: "r3090-A2-gemma4-26b", cause: LATE, gib: (0.013, 0.026) },
    Exception { id: "r3090-B1-gemma4-26b", cause: LATE, gib: (0.013, 0.026) },
    Exception { id: "r3090-A3-gemma4-31b", cause: LATE, gib: (0.072, 0.086) },
    Exception { id: "r3090-A5", cause: LATE, gib: (0.072, 0.086) },
    Exception { id: "diffusiongemma-gb10-055", cause: LATE, gib: (0.0, 0.08) },
    Exception {
        id: "qwen3-30b-fp8-mi355-aiter-patched",
        cause: "the patch under test keeps 51.75 GiB of the budget for the aiter workspace",
        gib: (51.74, 51.78),
    },
    Exception {
        id: "ornith-9b-bf16-gb10-080",
        cause: "shared memory board: other programs moved between the readings",
        gib: (0.28, 0.33),
    },
    Exception {
        id: "ornith-9b-fp8-gb10-080",
        cause: "shared memory board: other programs moved between the readings",
        gib: (0.22, 0.26),
    },
];

fn startup_tables() -> Vec<Table> {
    tables(
        "sglang-startup",
        &["avail_before_load_gib", "max_total_num_tokens", "formula_within_1pct"],
    )
}

/// The fraction, where the log or the command shows it.
fn fraction(row: &Row<'_>) -> Option<f64> {
    let (number, how) = row.text("mem_fraction_static").split_once(' ')?;
    let shown = ["(given)", "(server_args)", "(printed)"].contains(&how);
    number.parse().ok().filter(|_| shown)
}

/// Releases as the table names them.
fn version(row: &Row<'_>) -> Version {
    let text = row.text("version");
    match text {
        "0.4.2 range" => Version::new(0, 4, 6),
        "0.5.x 2026" | "v0.5.12 rebase" => Version::new(0, 5, 12),
        // Builds between releases: the pool rules are the same from 0.5.14 to 0.5.17.
        _ => text
            .parse()
            .ok()
            .filter(|v| *v > Version::new(0, 1, 0))
            .unwrap_or(Version::new(0, 5, 16)),
    }
}

fn gqa(kv_heads: u64, head_dim: u64) -> Heads {
    Heads { kv_heads, head_dim, v_head_dim: head_dim }
}

/// Published geometry of the models in the table; `None` where it is not public.
fn geometry(row: &Row<'_>) -> Option<KvGeometry> {
    let tp = row.number("tp").unwrap_or(1);
    let dtype = match row.text("kv_dtype") {
        "fp8_e5m2" => KvDtype::Fp8E5m2,
        _ => KvDtype::Bf16,
    };
    let uniform = |heads, layers| KvGeometry::uniform(CellShape::Heads(heads), layers, tp, dtype);
    let gemma4 = |full_heads, n_full, swa_heads, n_swa| {
        let lists = LayerLists { total: n_full + n_swa, full: n_full, swa: n_swa };
        let mut kv = uniform(gqa(full_heads, 512), n_full + n_swa);
        kv.hybrid = Hybrid::Swa(SwaHybrid {
            layers: lists,
            split_by: lists,
            swa_heads: gqa(swa_heads, 256),
            window: Some(1024),
            ratio: swa_ratio(row),
        });
        kv
    };
    let model = row.text("model");
    let starts = |prefix: &str| model.starts_with(prefix);
    Some(if starts("gemma-4-12B") {
        gemma4(2, 8, 8, 40)
    } else if starts("gemma-4-26B") || starts("diffusiongemma-26B") {
        gemma4(2, 5, 8, 25)
    } else if starts("gemma-4-31B") {
        gemma4(4, 10, 16, 50)
    } else if starts("DeepSeek-R1-Distill-Qwen-7B") {
        uniform(gqa(4, 128), 28)
    } else if starts("Kimi-K2.5") {
        let latent = Latent {
            kv_lora_rank: 512,
            qk_rope_head_dim: 64,
            index_head_dim: None,
            indexer_layers: 0,
            row: LatentRow::Packed,
        };
        KvGeometry::uniform(CellShape::Latent(latent), 61, tp, KvDtype::Bf16)
    } else if starts("Qwen3-30B-A3B 5 layers") {
        uniform(gqa(4, 128), 5)
    } else if starts("Qwen3-30B-A3B") {
        uniform(gqa(4, 128), 48)
    } else if starts("Qwen3ForCausalLM 62 GB") || starts("Grok-2") {
        uniform(gqa(8, 128), 64)
    } else if starts("Llama-3.1-8B") {
        uniform(gqa(8, 128), 32)
    } else if starts("Ornith-1.0-9B") {
        // 8 full-attention layers of 4 heads by 256; the state's share is folded into the cell.
        let mut kv = uniform(gqa(4, 256), 8);
        kv.cell_override = Some(62_259);
        kv
    } else {
        return None;
    })
}

fn swa_ratio(row: &Row<'_>) -> f64 {
    let note = row.text("note");
    let ratio = note.split("ratio ").nth(1).and_then(|rest| rest.split([' ', ';']).next());
    ratio.and_then(|text| text.parse().ok()).unwrap_or(0.8)
}

fn inputs(row: &Row<'_>, fraction: f64, kv: KvGeometry) -> PoolInputs {
    PoolInputs {
        version: version(row),
        kv,
        draft: None,
        page_size: row.number("page_size").unwrap_or(1),
        context_len: row.number("context_len").unwrap_or(262_144),
        pre_load_free_gib: row.needed("avail_before_load_gib"),
        avail_after_load_gib: row.needed("avail_after_load_gib"),
        mem_fraction_static: fraction,
        withheld_mib: 0.0,
        max_total_tokens: None,
        max_running_requests: None,
        user_max_running_requests: None,
        attn_dp_size: 1,
        chunked_prefill_size: row.number("chunked_prefill_size").unwrap_or(8192),
        speculation: None,
        radix_cache: RadixCache::Enabled,
        overlap: Overlap::Enabled,
        role: DisaggregationMode::Null,
        pp_min_tokens: None,
    }
}

/// The same inputs with both readings moved by their rounding, against or for the pool, and with
/// `taken` GiB less after loading.
fn moved(inputs: &PoolInputs, toward: f64, taken: f64) -> PoolInputs {
    PoolInputs {
        pre_load_free_gib: inputs.pre_load_free_gib - 0.005 * toward,
        avail_after_load_gib: inputs.avail_after_load_gib + 0.005 * toward - taken,
        ..inputs.clone()
    }
}

/// Whether `truth` lies between the least and the largest pool of the rounding.
fn within(inputs: &PoolInputs, truth: u64, taken: (f64, f64)) -> bool {
    let low = tokens(&moved(inputs, -1.0, taken.1)).unwrap().0;
    let high = tokens(&moved(inputs, 1.0, taken.0)).unwrap().0;
    (low..=high).contains(&truth)
}

/// Largest amount that [`LATE`] may take in rows that are not listed here (another folder's rows).
const LATE_MOST_GIB: f64 = 0.1;

/// How a row compares.
enum Verdict {
    Inside,
    Listed(&'static str),
    Late,
}

fn verdict(id: &str, i: &PoolInputs, truth: u64) -> Verdict {
    let exception = EXCEPTIONS.iter().find(|e| id.starts_with(e.id));
    match (within(i, truth, (0.0, 0.0)), exception) {
        (true, None) => Verdict::Inside,
        (true, Some(e)) => panic!("{id} is no exception any more: {}", e.cause),
        (false, Some(e)) => {
            assert!(within(i, truth, e.gib), "{id}: {} does not explain it", e.cause);
            Verdict::Listed(e.id)
        }
        (false, None) => {
            assert!(is_elsewhere(), "{id}: {truth} is outside and not listed");
            assert!(within(i, truth, (0.0, LATE_MOST_GIB)), "{id}: {LATE} does not explain it");
            Verdict::Late
        }
    }
}

#[test]
fn printed_pools_lie_in_the_rounding_of_their_inputs() {
    for table in startup_tables() {
        let (mut inside, mut late, mut used) = (0, 0, Vec::new());
        for row in table.rows() {
            let (Some(f), Some(kv), Some(truth)) =
                (fraction(&row), geometry(&row), row.number("max_total_num_tokens"))
            else {
                continue;
            };
            match verdict(row.text("id"), &inputs(&row, f, kv), truth) {
                Verdict::Inside => inside += 1,
                Verdict::Listed(id) => used.push(id),
                Verdict::Late => late += 1,
            }
        }
        let listed = used.len();
        println!("{}: {inside} inside, {listed} listed exceptions, {late} by late use", table.name);
        used.dedup();
        if !is_elsewhere() {
            assert_eq!(used.len(), EXCEPTIONS.len(), "an exception names no row");
            assert!(inside > 0);
        }
    }
}

#[test]
fn refused_starts_are_refused() {
    for table in startup_tables() {
        let mut refused = 0;
        for row in table.rows() {
            let Some(f) = fraction(&row).filter(|_| row.text("max_total_num_tokens").is_empty())
            else {
                continue;
            };
            let kv = KvGeometry::uniform(CellShape::Heads(gqa(1, 128)), 1, 1, KvDtype::Bf16);
            for toward in [-1.0, 1.0] {
                let i = moved(&inputs(&row, f, kv), toward, 0.0);
                let refusal = size(&i).unwrap_err();
                assert!(
                    matches!(refusal, Refusal::WeightsLeaveNoMemory { minimum, .. } if minimum > f),
                    "{}: {refusal}",
                    row.text("id")
                );
            }
            refused += 1;
        }
        println!("{}: {refused} refused starts refused", table.name);
        assert!(refused > 0);
    }
}

/// K and V as printed: `(tokens + page) * cell`, half each, two decimals. Rows of hybrids print sums.
#[test]
fn printed_sizes_of_uniform_pools_include_the_padding_page() {
    for table in startup_tables() {
        let mut compared = 0;
        for row in table.rows() {
            let (Some(k), Some(truth), Some(kv)) = (
                row.number::<f64>("k_size_gb"),
                row.number::<u64>("max_total_num_tokens"),
                geometry(&row).filter(|kv| matches!(kv.hybrid, Hybrid::None)),
            ) else {
                continue;
            };
            let mut i = inputs(&row, 0.999, kv);
            i.max_total_tokens = Some(truth);
            i.avail_after_load_gib = i.pre_load_free_gib;
            let pool = size(&i).unwrap();
            assert_eq!(pool.max_total_num_tokens.0, truth, "{}", row.text("id"));
            let half = pool.bytes.kv_pool.as_gib_f64() / 2.0;
            assert!((half - k).abs() <= 0.005_001, "{}: K {half}, printed {k}", row.text("id"));
            compared += 1;
        }
        println!("{}: {compared} printed K sizes agree", table.name);
        assert!(compared > 0);
    }
}

/// Starts whose log hides the fraction: the automatic value is the one that the pool back-solves to.
#[test]
fn automatic_fractions_that_logs_back_solve_to() {
    let auto = |version: &str, platform, gpu_mem_mib, tp_size| {
        let mut args = ServerArgs::new(version.parse().unwrap(), "m");
        (args.platform, args.tp_size) = (platform, tp_size);
        let machine = MachineFacts { gpu_mem_mib: Some(gpu_mem_mib), compute_capability: None };
        resolve(&args, &machine, &ModelFacts::text(131_072)).unwrap()
    };
    let cuda = Platform::Cuda;
    assert_eq!(auto("0.5.2", cuda, 81_559.0, 8).mem_fraction_static, 0.831); // Grok-2, 8 x H100.
    assert_eq!(auto("0.5.10", cuda, 183_359.0, 4).mem_fraction_static, 0.852); // Qwen3, 4 x B200.
    assert_eq!(auto("0.5.20", cuda, 81_559.0, 1).mem_fraction_static, 0.83); // Qwen3-30B-A3B, H100.
    let mi355 = auto("0.5.7", Platform::Rocm, 294_896.0, 1); // aiter keeps 0.85 of it.
    assert_eq!(mi355.mem_fraction_static, 0.911);
    assert_eq!(format!("{:.3}", mi355.pool_fraction), "0.774");
}
