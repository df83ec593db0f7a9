//! What is missing, and the flag that gives it.

use crate::Given;

#[test]
fn what_is_missing_is_named_with_the_flag_that_gives_it() {
    let bare = Given::log(
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    );
    let text = bare.missing();
    assert!(text.contains("launch command") && text.contains("--command"), "{text}");

    let command = Some("python -m sglang.launch_server --model-path lab/unheard-of");
    let pasted = Given::log("[2026-02-01 10:00:00] max_total_num_tokens=100000, context_len=32768");
    let text = Given { command, ..pasted }.missing();
    assert!(text.contains("--device") && text.contains("--model"), "{text}");

    let odd = Given::log(include_str!("logs/no-number.log"));
    let text = Given { device: Some("H100 81GB"), ..odd }.missing();
    assert!(text.contains("near"), "{text}");

    let broken = Given { command: Some("vllm serve --max-model-len many"), ..bare };
    assert!(broken.missing().contains("many"), "{}", broken.missing());
}

#[test]
fn an_end_that_is_no_refusal_of_device_memory_is_not_claimed() {
    let killed = include_str!("logs/killed-by-the-host.log");
    let text = Given::log(killed).missing();
    assert!(text.contains("line 3 is no refusal of device memory"), "{text}");

    let command = Some("python -m sglang.launch_server --model-path Qwen/Qwen3-8B");
    let cut = Given::log("[2026-04-20 18:22:01] Load weight begin. avail mem=78.60 GB");
    let text = Given { command, ..cut }.missing();
    assert!(text.contains("before the server was ready"), "{text}");
}

#[test]
fn another_server_is_not_simulated() {
    let text = Given::log("llama_new_context_with_model: KV self size  = 4096.00 MiB").missing();
    assert!(text.contains("only SGLang and vLLM"), "{text}");
}
