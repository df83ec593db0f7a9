//! Logs of vLLM.

use crate::Given;

#[test]
fn no_block_is_left() {
    let log = Given::log(include_str!("logs/vllm-no-blocks.log"));
    let command = Some("vllm serve openai/gpt-oss-120b");
    let (crash, fixed) = Given { device: Some("H100 80GB"), command, ..log }.both();
    insta::assert_snapshot!("no_blocks", crash);
    insta::assert_snapshot!("no_blocks_fixed", fixed);
}

#[test]
fn one_request_is_too_long() {
    let log = Given::log(include_str!("logs/vllm-too-long.log"));
    let command = Some("vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 131072");
    let (crash, _) = Given { device: Some("RTX 4090"), command, ..log }.both();
    insta::assert_snapshot!("too_long", crash);
}

#[test]
fn a_capture_of_v0_outside_its_budget() {
    let log = Given::log(include_str!("logs/vllm-v0-capture.log"));
    let command = "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2 \
                   --gpu-memory-utilization 0.95 --max-model-len 40000 --dtype half";
    let (crash, fixed) = Given { command: Some(command), ..log }.both();
    insta::assert_snapshot!("v0_capture", crash);
    insta::assert_snapshot!("v0_capture_fixed", fixed);
}

#[test]
fn less_is_free_than_is_asked_for() {
    let log = Given::log(include_str!("logs/vllm-free-below.log"));
    let (crash, fixed) = Given { command: Some("vllm serve Qwen/Qwen3-8B"), ..log }.both();
    insta::assert_snapshot!("free_below", crash);
    insta::assert_snapshot!("free_below_fixed", fixed);
}

#[test]
fn a_v0_pool_below_the_longest_request() {
    let log = Given::log(include_str!("logs/vllm-v0-longer-than-pool.log"));
    let command = "VLLM_USE_V1=0 vllm serve meta-llama/Llama-3.1-8B-Instruct";
    let (crash, _) = Given { command: Some(command), ..log }.both();
    insta::assert_snapshot!("longer_than_pool", crash);
}
