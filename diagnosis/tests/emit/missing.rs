use crate::made::*;
use plimsoll_diagnosis::emit::{Ask, emit};
use plimsoll_ingest::log::{Server, Sglang, System};

fn says(case: &plimsoll_diagnosis::Case, ask: &Ask<'_>) -> String {
    emit(case, &[], ask).unwrap_err().to_string()
}

#[test]
fn what_is_missing_is_named_with_the_flag_that_gives_it() {
    let refused = || Sglang::NotEnoughMemory { fraction: Some(0.8) };
    let bare = Made::of(Server::Sglang, "0.5.5").sglang(0, refused()).case();
    let text = says(&bare, &ask());
    assert!(text.contains("launch command") && text.contains("--command"), "{text}");

    let command = "python -m sglang.launch_server --model-path lab/unheard-of";
    let pasted = |device| {
        Made::of(Server::Sglang, "0.5.5")
            .command(command)
            .summary(100_000, 8192, 32_768, 4.0)
            .given(device, None)
            .case()
    };
    let text = says(&pasted(None), &ask());
    assert!(text.contains("--device") && text.contains("--model"), "{text}");

    let text = says(&pasted(Some("H100 81GB")), &ask());
    assert!(text.contains("near"), "{text}");
}

#[test]
fn an_end_that_is_no_refusal_of_device_memory_is_not_claimed() {
    let command = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B";
    let made =
        || Made::of(Server::Sglang, "0.5.5").device("NVIDIA H100 80GB HBM3").command(command);
    let killed = System::HostOom { text: "OOMKilled".into(), peak: None };
    let text = says(&made().loads(0, 78.6, 63.2).system(killed).case(), &ask());
    assert!(text.contains("no refusal of device memory"), "{text}");
    let text = says(&made().loads(0, 78.6, 63.2).case(), &ask());
    assert!(text.contains("before the server was ready"), "{text}");
}

#[test]
fn another_server_is_not_simulated() {
    let case = Made::of(Server::LlamaCpp, "b4000").case();
    assert!(says(&case, &ask()).contains("only SGLang and vLLM"));
}
