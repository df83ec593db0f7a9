use crate::{both, holds, made::*};
use plimsoll_diagnosis::emit::emit;
use plimsoll_ingest::log::{Server, Sglang, System};

const KIMI: &str = "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 \
                    --mem-fraction-static 0.93 --enable-hierarchical-cache --hicache-size 48";

fn kimi() -> Made {
    let made =
        Made::of(Server::Sglang, "0.5.8").device("NVIDIA RTX PRO 6000 Blackwell Server Edition");
    let made = (0..8).fold(made.command(KIMI), |made, rank| made.loads(rank, 94.04, 21.71));
    let captured = Sglang::CaptureEnd {
        what: "cuda graph".into(),
        usage: Some(gb(3.76)),
        avail: Some(gb(0.82)),
    };
    made.sglang(0, captured).summary(231_120, 8192, 262_144, 0.82)
}

#[test]
fn a_thin_margin_dies_in_the_prefill_of_the_log() {
    let mib = |n: i64| plimsoll_ingest::log::Amount { bytes: n << 20, half: 5243 };
    let case =
        kimi().prefill(8192.0, 1.0).oom(0, mib(896), mib(420), 94.97, "forward_extend").case();
    let emitted = both(&case, &ask());
    insta::assert_snapshot!("kimi_crash", emitted.crash.text);
    insta::assert_snapshot!("kimi_fixed", emitted.fixed.unwrap().text);
}

fn mib(value: f64) -> plimsoll_ingest::log::Amount {
    plimsoll_ingest::log::Amount { bytes: (value * f64::from(1 << 20)).round() as i64, half: 5243 }
}

const QWEN: &str =
    "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --mem-fraction-static 0.75";

fn nothing_left(fraction: f64, above: f64, minimum: f64) -> Sglang {
    Sglang::WeightsLeaveNothing {
        fraction: Some(fraction),
        above: Some(above),
        minimum: Some(minimum),
    }
}

#[test]
fn a_start_that_is_refused_for_its_weights() {
    let case = Made::of(Server::Sglang, "0.5.17")
        .device("NVIDIA H100 80GB HBM3")
        .command(QWEN)
        .loads(0, 78.60, 17.20)
        .sglang(0, nothing_left(0.75, 0.782, 0.7812))
        .case();
    let emitted = both(&case, &ask());
    insta::assert_snapshot!("refused_crash", emitted.crash.text);
    insta::assert_snapshot!("refused_fixed", emitted.fixed.unwrap().text);
}

#[test]
fn one_line_with_a_floor_is_enough() {
    let case = Made::of(Server::Sglang, "0.5.17")
        .command(QWEN)
        .sglang(0, nothing_left(0.75, 0.782, 0.7812))
        .given(Some("H100 80GB"), None)
        .case();
    let emitted = both(&case, &ask());
    insta::assert_snapshot!("refused_one_line", emitted.crash.text);
}

#[test]
fn one_line_without_a_number_is_enough() {
    let case = Made::of(Server::Sglang, "0.4.6")
        .command(QWEN)
        .sglang(0, Sglang::NotEnoughMemory { fraction: None })
        .given(Some("A100 80GB"), None)
        .case();
    both(&case, &ask());
}

#[test]
fn an_unknown_model_does_not_matter_where_nothing_is_left() {
    let command =
        "python -m sglang.launch_server --model-path lab/giant --tp 8 --mem-fraction-static 0.88";
    let case = Made::of(Server::Sglang, "0.5.17")
        .device("NVIDIA H200")
        .command(command)
        .loads(0, 137.90, 12.25)
        .sglang(0, nothing_left(0.88, 0.912, 0.9112))
        .case();
    let emitted = emit(&case, &[], &ask()).unwrap();
    assert_eq!(emitted.crash.differs, Vec::<String>::new());
    holds(&emitted.crash);
    assert!(emitted.fixed.unwrap_err().contains("--model"));
}

#[test]
fn a_capture_that_finds_no_room_for_a_workspace() {
    let command = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --mem-fraction-static 0.96 \
                   --context-length 32768";
    let case = Made::of(Server::Sglang, "0.5.9")
        .device("NVIDIA GeForce RTX 3090")
        .command(command)
        .loads(0, 23.20, 7.86)
        .oom(0, mib(384.0), mib(312.5), 23.57, "init_forward_metadata_capture_cuda_graph")
        .case();
    let emitted = both(&case, &ask());
    insta::assert_snapshot!("capture_crash", emitted.crash.text);
    insta::assert_snapshot!("capture_fixed", emitted.fixed.unwrap().text);
}

#[test]
fn a_prefill_of_which_only_the_last_line_is_there() {
    let command = "python -m sglang.launch_server --model-path NousResearch/Meta-Llama-3-8B-Instruct \
                   --mem-fraction-static 0.88 --chunked-prefill-size 8192";
    let case = Made::of(Server::Sglang, "0.5.5")
        .device("NVIDIA GeForce RTX 4090")
        .command(command)
        .oom(0, mib(448.0), mib(288.25), 23.52, "forward_extend")
        .given(None, Some("meta-llama/Meta-Llama-3-8B"))
        .case();
    let emitted = both(&case, &ask());
    insta::assert_snapshot!("prefill_one_line", emitted.crash.text);
}

#[test]
fn a_laptop_whose_pool_is_nearly_empty() {
    let pool = Sglang::MlxPool {
        available: Some(gb(31.42)),
        budget: Some(gb(27.40)),
        slots: Some(256_500),
        cell: Some(114_688),
    };
    let case = Made::of(Server::Sglang, "0.5.23")
        .command("python -m sglang.launch_server --model-path Qwen/Qwen3-0.6B --disable-cuda-graph")
        .sglang(0, pool)
        .sglang(0, Sglang::Ready)
        .running(24.0, 12_000.0)
        .system(System::MetalOom)
        .given(Some("Apple 64 GB"), None)
        .case();
    let emitted = both(&case, &ask());
    insta::assert_snapshot!("laptop_crash", emitted.crash.text);
}

#[test]
fn a_host_pool_that_does_not_fit() {
    let case = Made::of(Server::Sglang, "0.5.19")
        .device("NVIDIA H100 80GB HBM3")
        .command(
            "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --tp 4 \
             --enable-hierarchical-cache --hicache-size 60",
        )
        .sglang(
            2,
            Sglang::HostPoolRefused { requested: Some(decimal(60.0)), free: Some(decimal(41.32)) },
        )
        .case();
    let emitted = both(&case, &ask());
    insta::assert_snapshot!("host_crash", emitted.crash.text);
    insta::assert_snapshot!("host_fixed", emitted.fixed.unwrap().text);
}

fn decimal(gb: f64) -> plimsoll_ingest::log::Amount {
    plimsoll_ingest::log::Amount { bytes: (gb * 1e9).round() as i64, half: 5_000_000 }
}

#[test]
fn a_healthy_start_is_written_and_has_no_fix() {
    let case = kimi().case();
    let emitted = emit(&case, &[], &ask()).unwrap();
    assert_eq!(emitted.crash.differs, Vec::<String>::new(), "{}", emitted.crash.text);
    holds(&emitted.crash);
    assert!(emitted.fixed.is_err());
}

#[test]
fn arguments_that_the_server_prints_stand_for_a_command() {
    let args = [
        ("model_path", "Qwen/Qwen3-32B"),
        ("mem_fraction_static", "0.75"),
        ("tp_size", "1"),
        ("trust_remote_code", "True"),
        ("api_key", "secret"),
        ("chunked_prefill_size", "8192"),
        ("cuda_graph_bs", "[1, 2, 4]"),
        ("quantization", "None"),
    ];
    let case = Made::of(Server::Sglang, "0.5.17")
        .device("NVIDIA H100 80GB HBM3")
        .args(&args)
        .loads(0, 78.60, 17.20)
        .sglang(0, nothing_left(0.75, 0.782, 0.7812))
        .case();
    let emitted = both(&case, &ask());
    assert!(!emitted.crash.text.contains("secret"));
    insta::assert_snapshot!("from_arguments", emitted.crash.text);
}

#[test]
fn loading_that_needs_more_than_the_loaded_weights() {
    let command = "python -m sglang.launch_server --model-path Qwen/Qwen3-32B --quantization fp8";
    let case = Made::of(Server::Sglang, "0.5.9")
        .device("NVIDIA GeForce RTX 5090")
        .command(command)
        .sglang(0, Sglang::LoadBegin { avail: gb(30.92) })
        .oom(0, mib(250.0), mib(80.5), 31.36, "process_weights_after_loading")
        .case();
    let emitted = emit(&case, &[], &ask()).unwrap();
    assert_eq!(emitted.crash.differs, Vec::<String>::new(), "{}", emitted.crash.text);
    holds(&emitted.crash);
    insta::assert_snapshot!("load_peak_crash", emitted.crash.text);
}
