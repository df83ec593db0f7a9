//! Pool sizes of every release against SGLang's own functions.

use super::{Row, Table, Tally, tables};
use plimsoll_core::policy::sglang::{
    args::DisaggregationMode,
    facts::KvDtype,
    geometry::{
        CellShape, DraftKv, Heads, Hybrid, KvGeometry, Latent, LatentRow, LayerLists, MambaHybrid,
        MambaStrategy, SwaHybrid,
    },
    pool::{Overlap, Pool, PoolInputs, RadixCache, size},
    speculation::{DraftKind, Speculation},
    version::Version,
};

#[test]
fn every_row_of_the_pool_is_equal() {
    let mut unequal = 0;
    for table in tables("sglang-", &["pre_load_free_gib", "attention", "kv_budget_bytes"]) {
        unequal += compare(&table);
    }
    assert_eq!(unequal, 0, "rows differ; the lines above name the first of each file");
}

fn compare(table: &Table) -> u64 {
    let mut tally = Tally::default();
    for row in table.rows() {
        tally.row();
        let refused = row.text("error");
        match size(&inputs(&row)) {
            Err(refusal) if refused.is_empty() => {
                tally.differs(&row, "error", "none", &refusal.to_string());
            }
            Err(refusal) => {
                // The recorded text is cut off; it has to begin as the engine's message does.
                let message = refusal.engine_message(row.needed("version")).unwrap_or_default();
                let text = refused.split_once(": ").map_or(refused, |(_, text)| text);
                if !agree(&message, text) {
                    tally.differs(&row, "error", text, &message);
                }
            }
            Ok(_) if !refused.is_empty() => tally.differs(&row, "error", refused, "none"),
            Ok(pool) => outputs(&mut tally, &row, &pool),
        }
    }
    tally.close(table)
}

/// One text is the beginning of the other.
fn agree(a: &str, b: &str) -> bool {
    !a.is_empty() && !b.is_empty() && (a.starts_with(b) || b.starts_with(a))
}

fn outputs(tally: &mut Tally, row: &Row<'_>, pool: &Pool) {
    let count = |n: Option<u64>| n.map_or(String::new(), |n| n.to_string());
    let cell: f64 = row.needed("cell_size_bytes");
    if (cell - pool.cell.bytes).abs() > 1e-6 {
        tally.differs(row, "cell_size_bytes", &cell.to_string(), &pool.cell.bytes.to_string());
    }
    tally.check(row, "kv_budget_bytes", &pool.budget_bytes.to_string());
    if !row.text("kv_heads_per_rank").is_empty() {
        tally.check(row, "kv_heads_per_rank", &count(pool.cell.kv_heads_per_rank));
    }
    tally.check(row, "max_total_num_tokens", &pool.max_total_num_tokens.0.to_string());
    tally.check(row, "full_layer_tokens", &count(pool.swa.map(|s| s.full.0)));
    tally.check(row, "swa_layer_tokens", &count(pool.swa.map(|s| s.swa.0)));
    tally.check(row, "draft_pool_tokens", &count(pool.draft_pool_tokens.map(|t| t.0)));
    let slots = pool.mamba.map_or(String::new(), |m| m.slots.to_string());
    tally.check(row, "max_mamba_cache_size", &slots);
    tally.check(row, "req_pool_size", &pool.requests.req_pool_size.to_string());
    tally.check(row, "max_running_requests", &pool.requests.max_running_requests.to_string());
    tally.check(row, "req_to_token_columns", &pool.requests.columns.to_string());
}

fn inputs(row: &Row<'_>) -> PoolInputs {
    let version: Version = row.needed("version");
    let requests = row.number("max_running_requests_in");
    PoolInputs {
        version,
        kv: geometry(row, version),
        draft: row.number("draft_layers").map(|layers| DraftKv { layers, cell_bytes: None }),
        page_size: row.needed("page_size_tokens"),
        context_len: row.needed("context_len_tokens"),
        pre_load_free_gib: row.needed("pre_load_free_gib"),
        avail_after_load_gib: row.needed("avail_after_load_gib"),
        mem_fraction_static: row.needed("mem_fraction_static"),
        withheld_mib: 0.0,
        max_total_tokens: row.number("max_total_tokens_in"),
        max_running_requests: requests,
        user_max_running_requests: requests,
        attn_dp_size: 1,
        chunked_prefill_size: row.needed("chunked_prefill_size_tokens"),
        speculation: speculation(row),
        radix_cache: match row.text("disable_radix_cache") {
            "1" => RadixCache::Disabled,
            _ => RadixCache::Enabled,
        },
        overlap: Overlap::Enabled,
        role: DisaggregationMode::Null,
        pp_min_tokens: None,
    }
}

fn speculation(row: &Row<'_>) -> Option<Speculation> {
    let algorithm = row.text("speculative_algorithm");
    if algorithm == "none" {
        return None;
    }
    let kind = if algorithm == "NGRAM" { DraftKind::Ngram } else { DraftKind::Model };
    Some(Speculation {
        algorithm: algorithm.to_owned(),
        kind,
        num_steps: 3,
        topk: 1,
        num_draft_tokens: row.needed("num_draft_tokens"),
    })
}

fn geometry(row: &Row<'_>, version: Version) -> KvGeometry {
    let layers: u64 = row.needed("num_layers_on_rank");
    let full: u64 = row.needed("num_full_attention_layers");
    let heads = Heads {
        kv_heads: row.needed("kv_heads_total"),
        head_dim: row.needed("head_dim"),
        v_head_dim: row.needed("v_head_dim"),
    };
    let attention = row.text("attention");
    let shape = match attention {
        "mla" | "dsa" => CellShape::Latent(Latent {
            kv_lora_rank: row.needed("kv_lora_rank"),
            qk_rope_head_dim: row.needed("qk_rope_head_dim"),
            index_head_dim: row.number("index_head_dim").filter(|_| attention == "dsa"),
            indexer_layers: layers,
            row: LatentRow::Packed,
        }),
        _ => CellShape::Heads(heads),
    };
    let name = row.text("kv_cache_dtype");
    let dtype = KvDtype::from_name(name).unwrap_or_else(|| panic!("line {}: {name}", row.line));
    let tp = row.needed("attn_tp_size");
    let mut kv = KvGeometry::uniform(shape, layers, tp, dtype);
    match attention {
        "swa-hybrid" => {
            let lists = LayerLists { total: layers, full, swa: row.needed("num_swa_layers") };
            kv.hybrid = Hybrid::Swa(SwaHybrid {
                layers: lists,
                split_by: split_lists(row, version, lists),
                swa_heads: heads,
                window: row.number("sliding_window_tokens"),
                ratio: row.needed("swa_full_tokens_ratio"),
            });
        }
        "mamba-hybrid" => {
            kv.layers = full;
            kv.hybrid = Hybrid::Mamba(MambaHybrid {
                whole_model_full_layers: full * row.needed::<u64>("pp_size"),
                state_bytes_per_request: row.needed("mamba_cache_per_req_bytes"),
                ratio: row.needed("mamba_full_memory_ratio"),
                max_mamba_cache_size: row.number("max_mamba_cache_size_in"),
                strategy: MambaStrategy::NoBuffer,
            });
        }
        _ => {}
    }
    kv
}

/// The run that made the 0.5.8 rows stubbed the model and kept whole-model layer lists on every
/// stage, so the split divided by those; other runs sliced them. The lists are the models' own.
fn split_lists(row: &Row<'_>, version: Version, stage: LayerLists) -> LayerLists {
    if version != Version::new(0, 5, 8) {
        return stage;
    }
    match row.text("model") {
        "gpt-oss-20b-swa" => LayerLists { total: 24, full: 12, swa: 12 },
        "gemma3-27b-swa" => LayerLists { total: 62, full: 10, swa: 52 },
        _ => {
            let stages: u64 = row.needed("pp_size");
            let [total, full, swa] = [stage.total, stage.full, stage.swa].map(|n| n * stages);
            LayerLists { total, full, swa }
        }
    }
}
