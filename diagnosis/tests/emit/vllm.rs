use crate::{both, made::*};
use plimsoll_diagnosis::emit::Ask;
use plimsoll_ingest::log::{Amount, Refused, Server, Vllm};

fn h100() -> Made {
    Made::of(Server::Vllm, "0.10.1").device("NVIDIA H100 80GB HBM3")
}

#[test]
fn no_block_is_left() {
    let case = h100()
        .command("vllm serve openai/gpt-oss-120b")
        .vllm(Vllm::LoadEnd { weights: Amount::gib(65.9651, 4) })
        .vllm(Vllm::AvailableKv { amount: gb(-2.14) })
        .vllm(Vllm::NoBlocks)
        .case();
    let emitted = both(&case, &ask());
    insta::assert_snapshot!("vllm_no_blocks", emitted.crash.text);
    insta::assert_snapshot!("vllm_no_blocks_fixed", emitted.fixed.unwrap().text);
}

#[test]
fn one_request_is_too_long() {
    let too_long = Vllm::OneRequestTooLong {
        max_model_len: Some(131_072),
        needed: Some(gb(16.00)),
        available: Some(gb(5.38)),
        estimated: Some(44_064),
    };
    let case = Made::of(Server::Vllm, "0.11.0")
        .device("NVIDIA GeForce RTX 4090")
        .command("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 131072")
        .vllm(Vllm::LoadEnd { weights: Amount::gib(14.9889, 4) })
        .vllm(Vllm::AvailableKv { amount: gb(5.38) })
        .vllm(too_long)
        .case();
    let emitted = both(&case, &ask());
    insta::assert_snapshot!("vllm_too_long", emitted.crash.text);
}

#[test]
fn a_capture_of_v0_outside_its_budget() {
    let profile = Vllm::Profile {
        weights: Some(gb(7.51)),
        non_torch: Some(gb(0.39)),
        activation_peak: Some(gb(2.53)),
        kv: Some(gb(4.55)),
        peak_torch: None,
        initial: None,
        total: None,
        utilization: None,
    };
    let mib = |n: f64| Amount { bytes: (n * 1048576.0) as i64, half: 5243 };
    let case = Made::of(Server::Vllm, "0.6.4.post1")
        .device("Tesla V100-SXM2-16GB")
        .command(
            "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2 --gpu-memory-utilization 0.95 \
             --max-model-len 40000 --dtype half",
        )
        .vllm(Vllm::Budget { total: gb(15.77), utilization: 0.95, budget: gb(14.98) })
        .vllm(profile)
        .vllm(Vllm::Blocks { gpu: 4660, cpu: Some(4096) })
        .vllm(Vllm::Capturing { progress: None, mode: None })
        .oom(0, mib(20.0), mib(12.5), 15.77, "")
        .case();
    let emitted = both(&case, &ask());
    insta::assert_snapshot!("vllm_v0_capture", emitted.crash.text);
    insta::assert_snapshot!("vllm_v0_capture_fixed", emitted.fixed.unwrap().text);
}

#[test]
fn less_is_free_than_is_asked_for() {
    let free = Vllm::FreeAtStart {
        free: gb(70.11),
        total: gb(79.19),
        utilization: Some(0.9),
        wanted: Some(gb(71.27)),
        refused: Refused::Yes,
    };
    let case = h100().command("vllm serve Qwen/Qwen3-8B").vllm(free).case();
    let emitted = both(&case, &ask());
    insta::assert_snapshot!("vllm_free_below", emitted.crash.text);
    insta::assert_snapshot!("vllm_free_below_fixed", emitted.fixed.unwrap().text);
}

#[test]
fn a_v0_pool_below_the_longest_request() {
    let profile = Vllm::Profile {
        weights: Some(gb(14.99)),
        non_torch: Some(gb(0.05)),
        activation_peak: Some(gb(0.22)),
        kv: Some(gb(4.60)),
        peak_torch: None,
        initial: None,
        total: None,
        utilization: None,
    };
    let command =
        "VLLM_USE_V1=0 vllm serve meta-llama/Llama-3.1-8B-Instruct --gpu-memory-utilization 0.9";
    let case = Made::of(Server::Vllm, "0.8.5")
        .device("NVIDIA A10G")
        .vllm(Vllm::Budget { total: gb(22.07), utilization: 0.9, budget: gb(19.86) })
        .vllm(profile)
        .vllm(Vllm::Blocks { gpu: 2356, cpu: Some(2048) })
        .vllm(Vllm::LongerThanPool { max_model_len: 131_072, tokens: 37_696 })
        .case();
    let emitted = both(&case, &Ask { command: Some(command), ..ask() });
    insta::assert_snapshot!("vllm_longer_than_pool", emitted.crash.text);
}
