//! The time model on models and devices of the catalog: against figures that anybody can check, and over
//! every entry.

use plimsoll_catalog::{device_file, devices, models};
use plimsoll_core::{
    estimate::{
        roofline::{StepShape, TimeModel},
        time_inputs::{SizedInputs, TimeBasis, TimeInputs},
    },
    figure::Tag,
    model::{
        geometry::Dtype,
        parallel::{Loader, Parallel},
        weights::WeightOptions,
    },
    units::{Bytes, GIB},
};

#[expect(clippy::unwrap_used, reason = "a failure is meant to stop the test")]
fn basis(model: &str, tp: u64, device: &str) -> TimeBasis {
    let model = models::find(model).unwrap().model;
    let mut weights = WeightOptions::new(Loader::Sglang);
    weights.parallel = Parallel::sglang(tp, 1, 1, 1).unwrap();
    let device = devices::find(device).unwrap();
    let inputs = TimeInputs { model: &model, weights, kv_dtype: Dtype::Bf16, device: &device };
    TimeModel::of(&inputs).unwrap()
}

fn decode(requests: u64, context: u64) -> StepShape {
    StepShape {
        tokens: requests,
        requests,
        context_tokens: requests * context,
        attention_pairs: requests * context,
        logits_rows: requests,
    }
}

fn prefill(tokens: u64) -> StepShape {
    StepShape {
        tokens,
        requests: 1,
        context_tokens: tokens,
        attention_pairs: tokens * tokens / 2,
        logits_rows: 1,
    }
}

fn millis(basis: &TimeBasis, shape: &StepShape) -> f64 {
    basis.model.step(shape).0 as f64 / 1e6
}

/// One token of Llama-3.1-8B on an H100: 15 GB of weights are read, at 3.35 TB/s at best in 4.5 ms.
#[test]
fn one_token_of_llama_8b_on_an_h100_is_bound_by_its_weights() {
    let basis = basis("Llama-3.1-8B", 1, "H100 SXM");
    let weights = basis.model.weight_bytes;
    assert!((14_900_000_000..15_200_000_000).contains(&weights), "{weights}");
    let time = millis(&basis, &decode(1, 500));
    assert!((4.5..7.5).contains(&time), "{time} ms");
    // Sixteen requests read the same weights.
    assert!(millis(&basis, &decode(16, 500)) < 1.2 * time);
}

#[test]
fn a_chunk_of_kimi_k2_5_on_eight_workstation_cards() {
    let basis = basis("Kimi-K2.5", 8, "RTX PRO 6000 Blackwell");
    let time = millis(&basis, &prefill(8192));
    assert!((100.0..2000.0).contains(&time), "{time} ms");
    // 32 billion parameters a token, of which the embedding's 1.2 and the head's 1.2 are not GEMMs here:
    // about 2 × 30 billion / 8.
    let flops = basis.model.flops_per_token;
    assert!((7_000_000_000..8_500_000_000).contains(&flops), "{flops}");
    // One token visits 8 of 384 experts, a chunk all of them.
    let experts = basis.model.experts;
    assert_eq!((experts.experts, experts.top_k), (384, 8));
    assert!(experts.read(1) < experts.bytes / 40 && experts.read(8192) == experts.bytes);
    // The cell of the founding case.
    assert_eq!(basis.model.kv_bytes_per_token, 70_272);
}

/// A public vLLM 0.19 run: the first prompt, 2,358 tokens in chunks of 2,048, took 170 ms to its first
/// token, alone on the card for the most of it.
#[test]
fn a_prompt_of_llama_8b_on_a_workstation_card() {
    let basis = basis("Llama-3.1-8B", 1, "RTX PRO 6000 Blackwell");
    let time = millis(&basis, &prefill(2048)) + millis(&basis, &prefill(310));
    assert!((120.0..220.0).contains(&time), "{time} ms");
}

/// Decode steps of public vLLM 0.19 runs whose time series shows no prompt in that second: requests
/// running, their tokens, running / generated tokens a second. Half a dozen rates that nobody fitted, so
/// a quarter is what a prior may be off.
#[test]
fn decode_steps_of_public_runs() {
    let rows = [
        ("Llama-3.1-8B", 1, "RTX 4090", 27, 35_263, 22.80),
        ("Llama-3.1-8B", 1, "RTX 4090", 15, 23_214, 19.46),
        ("Llama-3.1-8B", 1, "RTX PRO 6000 Blackwell", 110, 145_807, 27.00),
        ("Llama-3.1-8B", 1, "RTX PRO 6000 Blackwell", 59, 78_338, 20.72),
        ("Llama-3.1-8B", 1, "RTX PRO 6000 Blackwell", 23, 34_919, 14.22),
        ("Qwen3-32B", 2, "RTX PRO 6000 Blackwell", 123, 167_131, 61.04),
        ("Qwen3-32B", 2, "RTX PRO 6000 Blackwell", 46, 60_926, 38.75),
    ];
    for (model, tp, device, running, context, measured) in rows {
        let shape =
            StepShape { context_tokens: context, attention_pairs: context, ..decode(running, 0) };
        let ours = millis(&basis(model, tp, device), &shape);
        println!("{model} {device} {running}: {ours:.2} of {measured} ms");
        assert!((0.75..1.25).contains(&(ours / measured)), "{model} {device}: {ours} {measured}");
    }
}

#[test]
fn narrow_weights_are_read_and_multiplied_faster() {
    let plain = basis("Qwen/Qwen3-32B", 1, "H100 SXM").model;
    let fp8 = basis("Qwen/Qwen3-32B-FP8", 1, "H100 SXM").model;
    assert!(fp8.weight_bytes < plain.weight_bytes * 6 / 10);
    assert!(fp8.flops_per_token < plain.flops_per_token * 6 / 10);
    // An A100 multiplies no FP8: weights are narrower, arithmetic is not faster.
    let old = basis("Qwen/Qwen3-32B-FP8", 1, "A100 SXM4 80GB").model;
    assert_eq!(old.flops_per_token, plain.flops_per_token);
}

#[test]
fn every_number_says_what_it_rests_on() {
    let several = basis("Kimi-K2.5", 8, "RTX PRO 6000 Blackwell");
    let names: Vec<_> = several.figures.iter().map(|figure| figure.name).collect();
    assert_eq!(
        names,
        [
            "step_weight_bytes",
            "routed_experts_bytes",
            "flops_per_token",
            "bandwidth_bytes_per_second",
            "flops_per_second",
            "link_sent_per_token_bytes",
            "link_bytes_per_second",
            "step_overhead_ns",
        ]
    );
    assert_eq!(several.tag(), Tag::Assumed);
    assert!(several.figures.iter().all(|figure| !figure.why.rule.is_empty()));
}

#[test]
fn every_model_has_a_time_on_every_device() {
    let devices: Vec<_> =
        devices::all().iter().map(|(key, _, text)| device_file::read(key, text).unwrap()).collect();
    // One device of each kind for every model, every device for one model.
    let some = ["h100-sxm-80gb", "mi300x", "apple-64gb", "gb10", "h200-sxm-141gb-mig-1g-18gb"];
    let few: Vec<_> = devices.iter().filter(|d| some.contains(&d.key.as_str())).collect();
    assert_eq!(few.len(), some.len());
    let weights = WeightOptions::new(Loader::Vllm);
    for row in models::all() {
        let model = models::read(row).unwrap().model;
        for device in &few {
            let inputs = TimeInputs { model: &model, weights, kv_dtype: Dtype::Fp8E4m3, device };
            holds(&TimeModel::of(&inputs).unwrap(), &model.geometry.name);
        }
    }
    let model = models::find("Llama-3.1-8B").unwrap().model;
    for device in &devices {
        let inputs = TimeInputs { model: &model, weights, kv_dtype: Dtype::Bf16, device };
        holds(&TimeModel::of(&inputs).unwrap(), &device.key);
    }
}

/// A token takes 0.5 ms to 100 s, a chunk at least as long, a long context longer than a short one.
fn holds(basis: &TimeBasis, name: &str) {
    let one = millis(basis, &decode(1, 100));
    assert!((0.5..100_000.0).contains(&one), "{name}: {one} ms");
    assert!(millis(basis, &prefill(4096)) > one, "{name}");
    assert!(millis(basis, &decode(64, 100_000)) > one, "{name}");
    assert!(basis.model.flops_per_token > 0 && basis.model.weight_bytes > 0, "{name}");
}

#[test]
fn sizes_alone_give_a_time_too() {
    let device = devices::find("H100 SXM").unwrap();
    let sized = SizedInputs {
        weights: Bytes(15 * GIB),
        kv_bytes_per_token: Bytes(131_072),
        layers: 32,
        device: &device,
    };
    let sized = TimeModel::of_sizes(&sized);
    let known = basis("Llama-3.1-8B", 1, "H100 SXM");
    let (a, b) = (millis(&sized, &decode(8, 1000)), millis(&known, &decode(8, 1000)));
    assert!((0.8..1.25).contains(&(a / b)), "{a} {b}");
    assert_eq!(sized.tag(), Tag::Assumed);
}
