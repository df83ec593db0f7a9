//! Every entry of the model catalog, against published parameter counts and public logs.

use plimsoll_catalog::models::{self, CatalogError};
use plimsoll_core::{
    model::{
        geometry::Dtype,
        kv,
        parallel::{ExpertSplit, Loader, Parallel},
        weights::{WeightOptions, bill},
    },
    units::{Bytes, GIB},
};

#[test]
fn every_entry_loads_and_names_its_source() {
    let mut count = 0;
    for row in models::all() {
        let entry = models::read(row).unwrap_or_else(|e| panic!("{e}"));
        assert!(!entry.source.is_empty());
        assert_eq!(entry.file, entry.hub_id.to_lowercase().replace('/', "--"), "file name");
        assert!(bill(&entry.model, &WeightOptions::new(Loader::Sglang)).is_ok(), "{}", entry.file);
        count += 1;
    }
    assert!(count >= 200, "{count} entries");
}

#[test]
fn parameter_counts_are_the_published_ones() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for row in models::all() {
        let entry = models::read(row).unwrap();
        let Some(published) = entry.parameters else { continue };
        let ours = bill(&entry.model, &WeightOptions::new(Loader::Vllm)).unwrap().parameters;
        let error = ours as f64 / published as f64 - 1.0;
        println!("{:60} {ours:>16} {published:>16} {:+.4} %", entry.hub_id, error * 100.0);
        checked += 1;
        if error.abs() > 0.005 {
            wrong.push(format!("{} {:+.3} %", entry.hub_id, error * 100.0));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(checked >= 20, "{checked} models");
}

/// Weights of one GPU as a public log printed them, in GiB, and how they were loaded.
struct Logged {
    model: &'static str,
    loader: Loader,
    tp: u64,
    gib: f64,
    source: &'static str,
}

const fn logged(
    model: &'static str,
    loader: Loader,
    tp: u64,
    gib: f64,
    source: &'static str,
) -> Logged {
    Logged { model, loader, tp, gib, source }
}

/// From the start-up tables of public logs (`sglang-startup.csv`, `vllm-startup.csv`).
const LOGGED: &[Logged] = &[
    logged("Meta-Llama-3-8B", Loader::Vllm, 1, 14.96, "vllm-project/vllm#10511"),
    logged("Meta-Llama-3-8B", Loader::Vllm, 2, 7.48, "vllm-project/vllm#10511"),
    logged("Llama-3.1-8B-Instruct", Loader::Vllm, 1, 14.99, "vLLM 0.6.x, H100"),
    logged("Llama-3.3-70B-Instruct", Loader::Vllm, 4, 32.95, "vLLM 0.8, 4 x 80 GB, with LoRA"),
    logged("gpt-oss-120b", Loader::Vllm, 1, 65.97, "vLLM 0.10.1, H100"),
    logged("Qwen3-8B-FP8", Loader::Vllm, 1, 8.8, "vLLM 0.10.2, 24 GB"),
    logged("Qwen2.5-1.5B-Instruct", Loader::Vllm, 1, 2.89, "vLLM 0.2x"),
    logged("Qwen3-Next-80B-A3B-Instruct", Loader::Vllm, 2, 74.28, "vLLM 0.11.0, 2 x H200"),
    logged("DeepSeek-R1-0528-Qwen3-8B", Loader::Vllm, 4, 3.85, "vLLM 0.8.5, 4 x 2080 Ti"),
    logged("Qwen3-4B", Loader::Vllm, 1, 7.56, "vLLM 0.8.x, RTX 2060"),
    logged("DeepSeek-R1-AWQ", Loader::Vllm, 16, 21.21, "vLLM 0.8.4, 16 x RTX 3090"),
    logged("Kimi-K2.5", Loader::Sglang, 8, 72.33, "SGLang, 8 x RTX PRO 6000"),
    logged("Qwen3-30B-A3B-FP8", Loader::Sglang, 1, 29.15, "SGLang, H100"),
    logged("Qwen3-30B-A3B", Loader::Sglang, 1, 56.98, "SGLang PR 18263, MI355X"),
    logged("DeepSeek-R1-Distill-Qwen-7B", Loader::Sglang, 1, 14.39, "SGLang 0.4.2, RTX 3090"),
    logged("Qwen3-32B", Loader::Sglang, 4, 15.5, "SGLang PR 22537, B200"),
];

#[test]
fn weights_are_those_of_public_logs() {
    let (mut inside, mut close) = (0, 0);
    for row in LOGGED {
        let model = models::find(row.model).unwrap().model;
        let parallel = match row.loader {
            Loader::Sglang => Parallel::sglang(row.tp, 1, 1, 1).unwrap(),
            Loader::Vllm => Parallel::vllm(row.tp, 1, 1, ExpertSplit::Width).unwrap(),
        };
        let options = WeightOptions { parallel, ..WeightOptions::new(row.loader) };
        let bill = bill(&model, &options).unwrap();
        let truth = Bytes::from_gib_f64(row.gib);
        let error = i128::from(bill.per_rank.mid.0) - i128::from(truth.0);
        let percent = error as f64 * 100.0 / truth.0 as f64;
        // A printed figure is good to half of its last digit.
        let slack = Bytes(GIB / 200);
        let holds = bill.per_rank.low.saturating_sub(slack) <= truth
            && truth <= bill.per_rank.high.saturating_add(slack);
        inside += usize::from(holds);
        close += usize::from(percent.abs() < 0.5);
        println!(
            "{:32} tp {:2} logged {:>9} ours {:>9} [{} .. {}] error {error:>12} B {percent:+.2} % {} ({})",
            row.model,
            row.tp,
            truth.to_string(),
            bill.per_rank.mid.to_string(),
            bill.per_rank.low,
            bill.per_rank.high,
            if holds { "inside" } else { "OUTSIDE" },
            row.source,
        );
    }
    println!("{inside} of {} inside, {close} within 0.5 %", LOGGED.len());
    assert!(inside * 10 >= LOGGED.len() * 9, "{inside} of {} inside", LOGGED.len());
    assert!(close * 10 >= LOGGED.len() * 7, "{close} of {} within 0.5 %", LOGGED.len());
}

/// Bytes of KV for one token on one rank in bfloat16, as public logs and the engines' own vectors
/// have them.
#[test]
fn kv_cells_are_those_of_public_logs() {
    for (name, tp, expected) in [
        ("Kimi-K2.5", 8, 70_272),
        ("DeepSeek-V3", 8, 70_272),
        ("Qwen3-1.7B", 1, 114_688),
        ("Qwen3-0.6B", 1, 114_688),
        ("Meta-Llama-3-8B", 1, 131_072),
        ("Llama-3.3-70B-Instruct", 4, 81_920),
        ("Qwen3-235B-A22B-FP8", 4, 48_128),
        ("Qwen2.5-1.5B-Instruct", 1, 28_672),
        ("Qwen2.5-0.5B-Instruct", 1, 12_288),
        ("Qwen3-8B-FP8", 1, 147_456),
        ("DeepSeek-R1-Distill-Qwen-32B", 4, 65_536),
        ("Qwen3-Next-80B-A3B-Instruct", 2, 12_288),
        ("Qwen3.6-35B-A3B-NVFP4", 1, 20_480),
        ("DeepSeek-V3.2", 8, 70_272 + 61 * 132),
        ("GLM-4.7-Flash", 1, 54_144),
        ("Devstral-Small-2-24B-FP8", 2, 81_920),
        ("Qwen3.8-27B-FP8", 2, 32_768),
    ] {
        let model = models::find(name).unwrap().model;
        let all = 0..model.geometry.layers.len();
        let cell = kv::cell(&model, all, Dtype::Bf16, tp);
        assert_eq!(cell.total(), Bytes(expected), "{name}");
    }
}

#[test]
fn another_storage_of_an_entry_is_named_and_not_guessed() {
    let error = |name: &str| models::find(name).map(|entry| entry.hub_id).unwrap_err();
    for (name, base, format) in [
        ("someone/Qwen3-32B-GPTQ-Int4", "Qwen/Qwen3-32B", "GPTQ-Int4"),
        ("RedHatAI/Qwen3-14B-quantized.w4a16", "Qwen/Qwen3-14B", "quantized.w4a16"),
        ("RedHatAI/Phi-4-FP8-dynamic", "microsoft/phi-4", "FP8-dynamic"),
        ("unsloth/Llama-3.1-8B-Instruct-bnb-4bit", "meta-llama/Llama-3.1-8B-Instruct", "bnb-4bit"),
        ("DeepSeek-V3.2-w8a8-QuaRot", "deepseek-ai/DeepSeek-V3.2", "w8a8-QuaRot"),
        ("GLM-4.5-Air-REAP-82B-A12B-AWQ-4bit", "", ""),
        ("Qwen3-32B-", "", ""),
        ("-AWQ", "", ""),
        ("AWQ", "", ""),
    ] {
        match error(name) {
            CatalogError::Quantised { base: found, format: words, .. } => {
                assert_eq!((found, &*words), (base, format), "{name}");
            }
            CatalogError::Unknown { .. } => assert_eq!(base, "", "{name}"),
            other => panic!("{name}: {other}"),
        }
    }
    let text = error("x/Qwen3-32B-NVFP4").to_string();
    assert!(text.contains("without `NVFP4` the name is that of Qwen/Qwen3-32B"), "{text}");
    assert!(text.contains("weights are not"), "{text}");
}

#[test]
fn families_without_rules_say_so() {
    for name in
        ["deepseek-ai/DeepSeek-V4-Flash", "DeepSeek-V4.1-Flash", "sgl-project/DeepSeek-V4-Pro-FP8"]
    {
        let error = models::find(name).map(|entry| entry.hub_id).unwrap_err();
        assert!(matches!(error, CatalogError::NotModelled { .. }), "{error}");
    }
}
