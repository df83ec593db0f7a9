//! Sizes that "out of memory" messages print, by report: which buffer of which tape has it, or that
//! none is known. Table: `tape-oom-sizes.csv`.

use std::collections::BTreeMap;

use plimsoll_core::estimate::activation::MlaPrefix;
use plimsoll_core::estimate::logits::LogprobChunks;
use plimsoll_core::estimate::moe::SharedExperts;
use plimsoll_core::estimate::shape::{AttentionShape, MlpNames, MoeShape, QkNorm, ShapeInputs};
use plimsoll_core::tape::{
    BlockTable, Choice, Code, Experts, Family, IndexerCall, IndexerForm, InputLogprobs, LayerMlp,
    MarlinReduce, Once, OutputLogprobs, PrefillChunk, SamplerBatch, Setup, Tape, TapeModel,
    indexer, input_logprobs, logits, prefill_chunk, sampler,
};

use super::{Row, tables};

const MIB: u64 = 1 << 20;

/// Bytes of the segment that a request needs, which is what the message prints.
/// Source: PyTorch `CUDACachingAllocator`, `get_allocation_size`.
fn segment(bytes: u64) -> u64 {
    match bytes {
        0..=MIB => 2 * MIB,
        b if b < 10 * MIB => 20 * MIB,
        b => b.next_multiple_of(2 * MIB),
    }
}

/// Whether `bytes` prints as `text`: within half a unit of its last digit.
fn prints_as(bytes: u64, text: &str) -> bool {
    let (number, unit) = text.split_once(' ').unwrap();
    let unit = match unit {
        "B" => 1.0,
        "MiB" => MIB as f64,
        "GiB" => (1_u64 << 30) as f64,
        other => panic!("unit {other}"),
    };
    let decimals = number.split_once('.').map_or(0, |(_, digits)| digits.len());
    let half = 0.5 / 10_f64.powi(i32::try_from(decimals).unwrap());
    // A message in bytes gives the request itself.
    let bytes = if unit > 1.0 { segment(bytes) } else { bytes };
    (bytes as f64 / unit - number.parse::<f64>().unwrap()).abs() <= half + 1e-9
}

fn dense(hidden: u64, intermediate: u64, vocab: u64) -> TapeModel {
    let attention = AttentionShape::Gqa { q_heads: 64, kv_heads: 8, head_dim: 128 };
    let shape = ShapeInputs {
        hidden,
        attention,
        dense_intermediate: intermediate,
        moe: None,
        vocab,
        layers: 1,
        mlp_names: MlpNames::Reused,
        qk_norm: QkNorm::Absent,
    };
    TapeModel { shape, layers: vec![LayerMlp::Dense], family: Family::Llama }
}

fn kimi() -> TapeModel {
    let mut model = dense(7168, 18_432, 163_840);
    model.shape.attention = AttentionShape::Mla {
        q_heads: 64,
        q_lora_rank: 1536,
        kv_lora_rank: 512,
        qk_nope_head_dim: 128,
        qk_rope_head_dim: 64,
        v_head_dim: 128,
    };
    model.shape.moe =
        Some(MoeShape { experts: 384, top_k: 8, intermediate: 2048, shared_intermediate: 2048 });
    TapeModel {
        layers: vec![LayerMlp::Dense, LayerMlp::Experts],
        family: Family::DeepSeek,
        ..model
    }
}

fn setup(code: Code, tp: u64) -> Setup {
    Setup {
        code,
        tp,
        experts: Experts::Marlin { multiprocessors: 188, reduce: MarlinReduce::Atomic },
        shared_experts: SharedExperts::Separate,
        blocks: BlockTable::Default,
        mla_prefix: MlaPrefix::OneShot,
        workspace: Once::Exists,
        gate_scalar: Once::Exists,
    }
}

/// The tape that a row names.
fn tape(row: &Row<'_>) -> Tape {
    let rows: u64 = row.needed("rows");
    let chunk = PrefillChunk { tokens: rows, requests: 1, prefix_tokens: 0 };
    let code = if row.text("engine") == "vllm" { Code::Vllm019 } else { Code::Sglang0508 };
    match row.text("by") {
        "sort" => {
            let (vocab, choice) = (row.needed("width"), Choice::TorchSort);
            let logprobs = OutputLogprobs::Absent;
            sampler(Code::Sglang0508, &SamplerBatch { rows, vocab, choice, logprobs }).unwrap()
        }
        "logits" => logits(&dense(4096, 4096, row.needed("width")), &setup(code, 1), rows).unwrap(),
        "logprobs" => {
            let model = dense(4096, 4096, row.needed("width"));
            let (sample_rows, chunks) = (vec![rows - 1], LogprobChunks::Default);
            let want = InputLogprobs { rows, sample_rows, top_logprobs: 0, chunks };
            input_logprobs(&model, &setup(code, 1), &chunk, &want).unwrap()
        }
        "layers" => {
            let model = dense(row.needed("width"), 28_672, 128_256);
            prefill_chunk(&model, &setup(code, 1), &chunk).unwrap()
        }
        "indexer" => {
            let form = IndexerForm::Dense;
            let (context, ratio) = (row.needed("context"), row.needed("ratio"));
            indexer(&IndexerCall { rows, context, ratio, form }).unwrap()
        }
        "kimi" => prefill_chunk(&kimi(), &setup(code, 8), &chunk).unwrap(),
        other => panic!("line {}: by `{other}`", row.line),
    }
}

/// Bytes that a row's explanation gives.
fn explained(row: &Row<'_>) -> u64 {
    if row.text("by") == "rule" {
        return row.text("factors").split('*').map(|f| f.parse::<u64>().unwrap()).product();
    }
    let buffer = row.text("buffer");
    let found = tape(row).find(buffer);
    found.unwrap_or_else(|| panic!("line {}: no buffer {buffer}", row.line)).bytes.0
}

#[test]
fn printed_sizes_are_explained_or_listed() {
    let mut wrong = Vec::new();
    for table in tables("tape-oom-sizes", &["report", "size_printed", "verdict"]) {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let (mut rows, mut by_tape) = (0, 0);
        for row in table.rows() {
            rows += 1;
            *counts.entry(row.text("verdict").to_owned()).or_default() += 1;
            let (report, printed) = (row.text("report"), row.text("size_printed"));
            if row.text("verdict") == "not explained" {
                assert!(!row.text("note").is_empty(), "{report}: no reason");
                println!("{report}: {printed} not explained: {}", row.text("note"));
                continue;
            }
            let bytes = explained(&row);
            let how = match row.text("by") {
                "rule" => row.text("factors"),
                _ => row.text("buffer"),
            };
            by_tape += usize::from(row.text("by") != "rule");
            println!("{report}: {printed} = {how} ({bytes} B), {}", row.text("verdict"));
            if !prints_as(bytes, printed) {
                wrong.push(format!("{report}: {printed}, {how} gives {bytes} B"));
            }
        }
        println!("{}: {rows} rows, {by_tape} by a tape, {counts:?}", table.name);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Numbers that a free text gives after one of `keys`: `vocab 152064`, `B=1024`, `rows 10..12`.
fn given(text: &str, keys: &[&str]) -> Vec<u64> {
    let words: Vec<&str> =
        text.split([' ', ',', '=', '(', ')']).filter(|word| !word.is_empty()).collect();
    let first = words.windows(2).find(|pair| keys.contains(&pair[0]));
    let Some(value) = first.map(|pair| pair[1]) else { return Vec::new() };
    let (low, high) = value.split_once("..").unwrap_or((value, value));
    match (low.parse::<u64>(), high.parse::<u64>()) {
        (Ok(low), Ok(high)) if high - low < 1000 => (low..=high).collect(),
        _ => Vec::new(),
    }
}

/// Tapes that the facts of a report allow.
fn candidates(facts: &str, sizes: &str) -> Vec<Tape> {
    let both = format!("{facts}, {sizes}");
    let rows = given(&both, &["B", "rows", "T"]);
    let plain = |code| setup(code, 1);
    let mut tapes = Vec::new();
    for rows in rows {
        let chunk = PrefillChunk { tokens: rows, requests: 1, prefix_tokens: 0 };
        for vocab in given(&both, &["vocab"]) {
            let (choice, logprobs) = (Choice::TorchSort, OutputLogprobs::Absent);
            tapes
                .extend(sampler(Code::Sglang0508, &SamplerBatch { rows, vocab, choice, logprobs }));
            tapes.extend(logits(&dense(64, 64, vocab), &plain(Code::Vllm019), rows));
        }
        for hidden in given(&both, &["hidden", "h"]) {
            tapes.extend(prefill_chunk(&dense(hidden, 1, 64), &plain(Code::Vllm019), &chunk));
        }
        let ratio = given(&both, &["compression"]).first().copied().unwrap_or(1);
        for context in given(&both, &["L", "context"]) {
            let form = IndexerForm::Dense;
            tapes.extend(indexer(&IndexerCall { rows, context, ratio, form }));
        }
    }
    tapes
}

/// The first buffer of the printed size among the tapes that the stated numbers allow.
fn search(facts: &str, sizes: &str, printed: &str) -> Option<(String, u64)> {
    candidates(facts, sizes).iter().find_map(|tape| {
        let live = tape.allocations().find(|live| prints_as(live.bytes.0, printed))?;
        Some((live.name.to_string(), live.bytes.0))
    })
}

#[test]
fn stated_numbers_lead_to_the_buffer() {
    let name = |facts, sizes, printed| search(facts, sizes, printed).map(|(name, _)| name);
    let sort = name("vocab 152064", "B=1024 dummy", "1.74 GiB");
    assert_eq!(sort.as_deref(), Some("sort.scratch.radix"));
    let indexer = name("dense indexer", "T=16384, L=487936", "7.45 GiB");
    assert_eq!(indexer.as_deref(), Some("indexer.mask"));
    let stream = name("hidden 8192", "T=8192", "128.00 MiB");
    assert_eq!(stream.as_deref(), Some("embed_tokens"));
    assert_eq!(name("vocab 152064", "B=1024 dummy", "1.80 GiB"), None);
    assert_eq!(name("scores", "-", "16.00 GiB"), None);
}

/// Lists the reports of another folder (`oom-sizes*.csv`): found by their stated numbers or not.
#[test]
fn sizes_of_another_folder_are_searched() {
    for table in tables("oom-sizes", &["size_printed", "geometry_facts", "T_or_B"]) {
        let (mut rows, mut found) = (0, 0);
        for row in table.rows().filter(|row| row.text("size_printed").split(' ').count() == 2) {
            rows += 1;
            let (report, printed) = (row.text("report"), row.text("size_printed"));
            match search(row.text("geometry_facts"), row.text("T_or_B"), printed) {
                Some((name, bytes)) => {
                    found += 1;
                    assert!(prints_as(bytes, printed), "{report}");
                    println!("{report}: {printed} = {name} ({bytes} B)");
                }
                None => println!("{report}: {printed} not found by its stated numbers"),
            }
        }
        println!("{}: {rows} rows, {found} found by their stated numbers", table.name);
    }
}

#[test]
fn print_rounding_rejects_neighbours() {
    // Three batch sizes round to the same segment; the ones around them do not.
    let matching: Vec<u64> =
        (1050..1070).filter(|rows| prints_as(rows * 152_064 * 4, "616.00 MiB")).collect();
    assert_eq!(matching, [1059, 1060, 1061]);
    assert!(!prints_as(1_868_562_432 + 20 * MIB, "1.74 GiB"));
}
