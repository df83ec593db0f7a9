//! Automatic fraction, chunk and graph sizes of every release against SGLang's own functions.

use super::{Row, Table, Tally, tables};
use plimsoll_core::{
    policy::sglang::{
        Resolved,
        args::{DisaggregationMode, GraphRequest, Platform, ServerArgs},
        facts::{AttentionArch, MachineFacts, ModelFacts, Multimodal},
        resolve,
    },
    pyfloat::repr,
};

#[test]
fn every_row_of_the_automatic_fraction_is_equal() {
    let mut unequal = 0;
    for table in
        tables("sglang-", &["mem_fraction_static", "platform", "gpu_mem_mib", "vit_layers"])
    {
        unequal += compare(&table);
    }
    assert_eq!(unequal, 0, "rows differ; the lines above name the first of each file");
}

fn compare(table: &Table) -> u64 {
    let mut tally = Tally::default();
    for row in table.rows() {
        tally.row();
        let refused = !row.text("error").is_empty();
        match resolve(&args(&row), &machine(&row), &model(&row)) {
            Err(refusal) if !refused => {
                tally.differs(&row, "error", "none", &refusal.to_string());
            }
            Ok(_) if refused => tally.differs(&row, "error", row.text("error"), "none"),
            Ok(resolved) => outputs(&mut tally, &row, &resolved),
            Err(_) => {}
        }
    }
    tally.close(table)
}

fn outputs(tally: &mut Tally, row: &Row<'_>, r: &Resolved) {
    let optional = |n: Option<i64>| n.map_or(String::new(), |n| n.to_string());
    let v = r.rules.used;
    tally.check(row, "chunked_prefill_size_tokens", &r.chunked_prefill_size.to_string());
    let after_dp = r.chunked_prefill_size_after_dp.to_string();
    tally.check(row, "chunked_prefill_size_after_dp_tokens", &after_dp);
    let max_bs = r.cuda_graph_max_bs.and_then(|n| i64::try_from(n).ok());
    tally.check(row, "cuda_graph_max_bs", &optional(max_bs));
    tally.check(row, "decode_bs_count", &r.decode_bs.len().to_string());
    let last = r.decode_bs.last().copied().unwrap_or(0);
    tally.check(row, "decode_bs_last", &last.to_string());
    tally.check(row, "prefill_graph_max_tokens", &optional(r.prefill_graph.max_tokens));
    tally.check(row, "prefill_graph_shape_count", &r.prefill_graph.sizes.len().to_string());
    tally.check(row, "prefill_graph_backend", r.prefill_graph.backend.name(v));
    tally.check(row, "mem_fraction_static", &repr(r.mem_fraction_static));
}

fn args(row: &Row<'_>) -> ServerArgs {
    let mut a = ServerArgs::new(row.needed("version"), "model");
    a.platform = match row.text("platform") {
        "cuda" => Platform::Cuda,
        "rocm" => Platform::Rocm,
        "npu" => Platform::Npu,
        "xpu" => Platform::Xpu,
        "hpu" => Platform::Hpu,
        "musa" => Platform::Musa,
        "cpu" => Platform::Cpu,
        "mps" => Platform::Mps,
        other => panic!("line {}: platform {other}", row.line),
    };
    a.tp_size = row.needed("tp_size");
    a.pp_size = row.needed("pp_size");
    a.dp_size = row.needed("dp_size");
    a.enable_dp_attention = row.text("dp_attention") == "1";
    a.chunked_prefill_size = row.number("chunked_prefill_size_in");
    a.cuda_graph_max_bs = row.number("cuda_graph_max_bs_in");
    a.max_running_requests = row.number("max_running_requests_in");
    a.max_total_tokens = row.number("max_total_tokens_in");
    a.max_prefill_tokens = row.number("max_prefill_tokens_in");
    a.speculative_algorithm =
        Some(row.text("speculative_algorithm").to_owned()).filter(|name| name != "none");
    a.speculative_num_draft_tokens = row.number("speculative_num_draft_tokens");
    a.disaggregation_mode = match row.text("disaggregation_mode") {
        "null" => DisaggregationMode::Null,
        "prefill" => DisaggregationMode::Prefill,
        "decode" => DisaggregationMode::Decode,
        other => panic!("line {}: role {other}", row.line),
    };
    a.moe_a2a_backend = Some(row.text("moe_a2a_backend").to_owned());
    a.prefill_graph = graph(row, "prefill_graph_in");
    a.decode_graph = graph(row, "decode_graph_in");
    a.post_capture_kv_sizing = row.text("post_capture_kv_env") == "1";
    // The vectors come from the memory handlers alone; no page is decided there.
    a.page_size = Some(1);
    a
}

fn graph(row: &Row<'_>, column: &str) -> GraphRequest {
    match row.text(column) {
        "default" => GraphRequest::Default,
        "on" => GraphRequest::On,
        "off" => GraphRequest::Off,
        "breakable" => GraphRequest::Breakable,
        "full" => GraphRequest::Full,
        "tc_piecewise" => GraphRequest::TcPiecewise,
        other => panic!("line {}: {column} {other}", row.line),
    }
}

fn machine(row: &Row<'_>) -> MachineFacts {
    MachineFacts { gpu_mem_mib: row.number("gpu_mem_mib"), compute_capability: None }
}

fn model(row: &Row<'_>) -> ModelFacts {
    let mut model = ModelFacts::text(131_072);
    match row.text("model_kind") {
        "mha" => {}
        "mla" => model.attention = AttentionArch::Mla,
        "vlm" => {
            model.multimodal = Multimodal::WithVisionConfig {
                layers: row.number("vit_layers"),
                hidden: row.number("vit_hidden"),
            };
        }
        "vlm-novc" => model.multimodal = Multimodal::WithoutVisionConfig,
        other => panic!("line {}: model_kind {other}", row.line),
    }
    model
}
