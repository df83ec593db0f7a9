//! The closed forms of activation peaks against recorded ones: the engines' own layer code was run under a
//! recording allocator (no GPU) and the peak of live bytes noted (`data/activation-peaks.json`).
#![expect(clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use plimsoll_core::estimate::activation::{MlaPrefix, Phase, RunInputs, Step, peak};
use plimsoll_core::estimate::logits::{LogprobChunks, Sampling, input_logprobs, sampler};
use plimsoll_core::estimate::moe::{MoeBuffers, MoeKernel, SharedExperts, experts_alone};
use plimsoll_core::estimate::shape::{AttentionShape, MlpNames, MoeShape, QkNorm, ShapeInputs};
use plimsoll_core::estimate::vllm_profile::eager_layer_peak;
use plimsoll_core::policy::sglang::version::Version;
use serde_json::Value;

const VECTORS: &str = include_str!("data/activation-peaks.json");

fn n(inputs: &Value, key: &str) -> u64 {
    inputs[key].as_u64().unwrap_or(0)
}

fn first(inputs: &Value, keys: &[&str]) -> u64 {
    keys.iter().map(|key| n(inputs, key)).find(|n| *n > 0).unwrap_or(0)
}

fn shape(name: &str, inputs: &Value) -> ShapeInputs {
    let attention = if n(inputs, "kv_lora_rank") > 0 {
        AttentionShape::Mla {
            q_heads: n(inputs, "num_attention_heads"),
            q_lora_rank: n(inputs, "q_lora_rank"),
            kv_lora_rank: n(inputs, "kv_lora_rank"),
            qk_nope_head_dim: n(inputs, "qk_nope_head_dim"),
            qk_rope_head_dim: n(inputs, "qk_rope_head_dim"),
            v_head_dim: n(inputs, "v_head_dim"),
        }
    } else {
        AttentionShape::Gqa {
            q_heads: n(inputs, "num_attention_heads"),
            kv_heads: n(inputs, "num_key_value_heads"),
            head_dim: n(inputs, "head_dim"),
        }
    };
    let experts = first(inputs, &["num_experts", "n_routed_experts", "num_local_experts"]);
    let moe = (experts > 0).then(|| MoeShape {
        experts,
        top_k: n(inputs, "num_experts_per_tok"),
        intermediate: first(inputs, &["moe_intermediate_size", "intermediate_size"]),
        shared_intermediate: 0,
    });
    ShapeInputs {
        hidden: n(inputs, "hidden_size"),
        attention,
        // Qwen3-MoE and Mixtral have no dense layer; their dense width is not used.
        dense_intermediate: if moe.is_some() && n(inputs, "kv_lora_rank") == 0 {
            0
        } else {
            n(inputs, "intermediate_size")
        },
        moe,
        vocab: n(inputs, "vocab_size"),
        layers: 3,
        mlp_names: if name.contains("llama") { MlpNames::Reused } else { MlpNames::Kept },
        qk_norm: if name.contains("qwen3") { QkNorm::Copied } else { QkNorm::Absent },
    }
}

fn sglang_layers(row: &Value, version: Version) -> u64 {
    let (name, inputs) = (row["name"].as_str().unwrap_or_default(), &row["inputs"]);
    let mla = n(inputs, "kv_lora_rank") > 0;
    let marlin = name.contains("marlin");
    let run = RunInputs {
        version,
        tp: n(inputs, "tp"),
        moe_kernel: if marlin { MoeKernel::Marlin } else { MoeKernel::Triton },
        shared_experts: match (mla, marlin) {
            (true, true) => SharedExperts::Separate,
            (true, false) => SharedExperts::Fused,
            (false, _) => SharedExperts::Absent,
        },
        tma_block_rows: row["tma_block_rows"].as_u64(),
        mla_prefix: if name.contains("triton") { MlaPrefix::Absorbed } else { MlaPrefix::OneShot },
    };
    let decode = inputs["mode"].as_str() == Some("decode");
    let step = Step {
        phase: if decode { Phase::Decode } else { Phase::Prefill },
        tokens: n(inputs, "tokens"),
        prefix_tokens: n(inputs, "prefix"),
        logits_rows: n(inputs, "batch"),
    };
    peak(&shape(name, inputs), &run, &step).expect("a peak").figure.value.mid.0
}

fn sampler_row(row: &Value, version: Version) -> u64 {
    let inputs = &row["inputs"];
    let kind = match inputs["kind"].as_str().expect("kind") {
        "greedy" => Sampling::Greedy,
        "greedy+logprob" => Sampling::GreedyLogprob,
        "temperature" => Sampling::Temperature,
        "temperature+logprob" => Sampling::TemperatureLogprob,
        "top_p+logprob" => Sampling::TopPLogprob,
        "top_p+top_k" => Sampling::TopKTopP,
        "top_p+top_k+min_p" => Sampling::MinP,
        other => panic!("unknown sampling {other}"),
    };
    let figure = sampler(&shape("", inputs), version, kind, n(inputs, "batch"));
    // torch's own multinomial buffer is not in the recording: the low end.
    figure.value.low.0
}

fn logprob_row(row: &Value, version: Version) -> u64 {
    let (name, inputs) = (row["name"].as_str().unwrap_or_default(), &row["inputs"]);
    let chunks = if name.ends_with("chunked") { LogprobChunks::On } else { LogprobChunks::Default };
    let mut shape = shape(name, inputs);
    shape.hidden = 3584;
    let tokens = n(inputs, "tokens");
    input_logprobs(&shape, version, chunks, tokens, tokens).value.mid.0
}

fn experts_row(row: &Value, version: Version) -> u64 {
    let inputs = &row["inputs"];
    let mut shape = shape("", inputs);
    shape.hidden = n(inputs, "hidden");
    shape.moe = Some(MoeShape {
        experts: n(inputs, "experts"),
        top_k: n(inputs, "topk"),
        intermediate: n(inputs, "moe_inter_per_rank"),
        shared_intermediate: 0,
    });
    let run = RunInputs {
        version,
        tp: 1,
        moe_kernel: MoeKernel::TritonFp8Block,
        shared_experts: SharedExperts::Absent,
        tma_block_rows: None,
        mla_prefix: MlaPrefix::OneShot,
    };
    let form =
        if version < Version::new(0, 5, 23) { MoeBuffers::Shared } else { MoeBuffers::Separate };
    experts_alone(&shape, &run, form, n(inputs, "tokens")).expect("experts")
}

/// The closed form for one row.
fn formula(row: &Value) -> u64 {
    let name = row["name"].as_str().expect("name");
    if row["engine"] == "vllm" {
        let inputs = &row["inputs"];
        return eager_layer_peak(&shape(name, inputs), n(inputs, "tp"), n(inputs, "tokens"))
            .value
            .mid
            .0;
    }
    let version: Version = row["version"].as_str().expect("version").parse().expect("release");
    if name.contains("sampler") {
        sampler_row(row, version)
    } else if name.contains("logits") {
        logprob_row(row, version)
    } else if name.contains("moeonly") {
        experts_row(row, version)
    } else {
        sglang_layers(row, version)
    }
}

/// Rows off by more than 1 % and 64 KiB, as text; and how many are exact to 4 KiB.
fn compare(rows: &[Value]) -> (Vec<String>, usize) {
    let mut bad = Vec::new();
    let mut exact = 0;
    for row in rows {
        let recorded = row["peak"].as_u64().expect("peak");
        let computed = formula(row);
        let gap = recorded.abs_diff(computed);
        exact += usize::from(gap <= 4096);
        if gap > recorded / 100 && gap > 64 << 10 {
            bad.push(format!("{}: recorded {recorded}, formula {computed}", row["name"]));
        }
    }
    (bad, exact)
}

#[test]
fn formulas_meet_the_recorded_peaks() {
    let rows: Vec<Value> = serde_json::from_str(VECTORS).expect("vectors");
    let (bad, exact) = compare(&rows);
    println!(
        "{} recorded peaks, {exact} within 4 KiB, {} off by more than 1 %",
        rows.len(),
        bad.len()
    );
    assert!(rows.len() >= 100, "vectors are missing");
    assert!(exact >= 40, "only {exact} exact");
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// Recordings beside the checkout (`PLIMSOLL_SHARED` or `../shared`), read as they are.
#[test]
fn formulas_meet_the_recordings_beside_the_checkout() {
    let folder = std::env::var_os("PLIMSOLL_SHARED").map_or_else(
        || std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
        std::path::PathBuf::from,
    );
    let Ok(files) = std::fs::read_dir(folder.join("data/tape")) else {
        println!("skipped: no recordings at {}", folder.display());
        return;
    };
    let mut rows = Vec::new();
    for file in files.map(|file| file.expect("entry").path()) {
        if file.extension().is_some_and(|ext| ext == "json") {
            let text = std::fs::read_to_string(&file).expect("readable");
            let mut row: Value = serde_json::from_str(&text).expect("JSON");
            row["name"] = file.file_stem().expect("name").to_string_lossy().into();
            row["version"] = row["version"].as_str().and_then(|v| v.split(' ').next()).into();
            row["peak"] = row["peak_bytes_rounded512"].clone();
            row["tma_block_rows"] = tma_block(&row).into();
            rows.push(row);
        }
    }
    let (bad, exact) = compare(&rows);
    println!("{} recordings, {exact} within 4 KiB, {} off by more than 1 %", rows.len(), bad.len());
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// Padding of the expert rows that a recording shows, as rows of a block.
fn tma_block(row: &Value) -> Option<u64> {
    let inputs = &row["inputs"];
    let k = n(inputs, "num_experts_per_tok");
    if row["engine"] != "sglang" || !row["version"].as_str()?.starts_with("0.5.23") || k == 0 {
        return None;
    }
    let experts = first(inputs, &["num_experts", "n_routed_experts", "num_local_experts"]);
    let rows = n(inputs, "tokens") * k;
    let first_gemm = row["events"].as_array()?.iter().find(|event| {
        event["op"] == "alloc"
            && event["at"].as_str().is_some_and(|at| at.contains("_fused_moe_kernel_sequence"))
            && event["shape"].as_array().is_some_and(|shape| shape.len() == 2)
    })?;
    let padding = first_gemm["shape"][0].as_u64()?.checked_sub(rows)?;
    (padding > 0).then(|| padding / rows.min(experts + 1) + 1)
}

/// The founding case: DeepSeek-style MLA, 384 experts, INT4 Marlin, tp 8, chunks of 8192 tokens.
#[test]
fn kimi_chunk_of_8192_takes_one_and_a_half_gib() {
    let rows: Vec<Value> = serde_json::from_str(VECTORS).expect("vectors");
    let row =
        rows.iter().find(|row| row["name"] == "sglang-0.5.23-kimi-k2.5-marlin-tp8-extend8192");
    let row = row.expect("row");
    let gib = |version: Version| sglang_layers(row, version) as f64 / (1 << 30) as f64;
    assert!((gib(Version::new(0, 5, 8)) - 1.492).abs() < 0.002);
    assert!((gib(Version::new(0, 5, 23)) - 1.466).abs() < 0.003);
}
