//! Properties of reading launch commands: no text panics, long inputs end, edits read back.
#![expect(clippy::panic, reason = "helpers of tests fail by panicking")]

use plimsoll_core::policy::sglang::args::ServerArgs;
use plimsoll_ingest::launch::{
    Context, EngineLaunch, Launch, LaunchErrors, LaunchInput, parse_command, render,
    text_with_flag, with_flag,
};
use proptest::prelude::*;

fn text(command: &str) -> Result<Launch, LaunchErrors> {
    parse_command(LaunchInput::Text(command), &Context::default())
}

fn sglang(command: &str) -> ServerArgs {
    match text(command).unwrap_or_else(|e| panic!("{command}\n{e}")).engine {
        EngineLaunch::Sglang(args) => *args,
        EngineLaunch::Vllm(_) => panic!("{command}: read as vLLM"),
    }
}

#[test]
fn long_and_deep_inputs_end_quickly() {
    let start = std::time::Instant::now();
    let commands = [
        format!("vllm serve m --{}", "a".repeat(200_000)),
        format!("vllm serve m {}", "--zz ".repeat(4000)),
        format!("vllm serve m --compilation-config{} 1", ".a".repeat(100_000)),
        format!("vllm serve m --hf-overrides '{}'", "[".repeat(100_000)),
        "A+=(x)\n".repeat(30_000) + "vllm serve \"${A[@]}\"",
        "A=xxxxxxxx\n".to_owned() + &"A=$A$A\n".repeat(64) + "vllm serve $A",
        "export SGLANG_X=1\n".repeat(10_000) + "sglang serve m",
        "bash -c '".repeat(1000) + "vllm serve m",
        "(".repeat(200_000),
        "image: [\n".repeat(20_000),
        "a: ".repeat(50_000) + "image:",
    ];
    for command in &commands {
        let _ = text(command);
        let _ = text_with_flag(command, "--tp", Some("2"));
    }
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

/// Pieces of real commands, in any order and mutilated.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "python -m sglang.launch_server",
        "vllm serve m",
        "docker run",
        "bash -c",
        "\"",
        "'",
        "\\\n",
        "\n",
        "--tp",
        "8",
        "--mem-fraction-static",
        "0.9",
        "=",
        "$A",
        "${A:-b}",
        "A=(",
        ")",
        "A=",
        "export ",
        "--cuda-graph-config",
        "{\"decode\":{\"bs\":[1]}}",
        "--compilation-config.a.b+",
        "1,2",
        "-O3",
        "-",
        "--",
        "--cuda-graph-bs 1 2",
        "\u{201c}",
        "\u{2014}tp",
        "<x>",
        "> f",
        "2>&1",
        "<<EOF",
        "#",
        "```",
        "&&",
        "|",
        "`a`",
        "$(b)",
        "lmsysorg/sglang:v0.5.8",
        "vllm/vllm-openai:v0.11.0",
        "sglang==0.5.8",
        "CUDA_VISIBLE_DEVICES=0,1",
        "--config",
        "c.yaml",
        "--limit-mm-per-prompt image=0",
        "--max-model-len 25.6k",
        "99999999999999999999",
        "é",
        "\u{1f}",
    ]);
    let separated = (piece, prop::sample::select(vec![" ", "", "=", "\n"]));
    prop::collection::vec(separated, 0..40)
        .prop_map(|parts| parts.into_iter().map(|(a, b)| format!("{a}{b}")).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics(text in "\\PC{0,200}") {
        let _ = parse_command(LaunchInput::Text(&text), &Context::default());
    }

    #[test]
    fn no_mutilated_command_panics(text in pieces()) {
        let file = |_: &str| Ok("tp: 2\nx: [1, {a: b}]\n".to_owned());
        let ctx = Context { read_file: Some(&file), ..Context::default() };
        if let Err(errors) = parse_command(LaunchInput::Text(&text), &ctx) {
            prop_assert!(!errors.errors.is_empty());
            prop_assert!(!errors.to_string().is_empty());
        }
        let _ = text_with_flag(&text, "--tp", Some("2"));
        let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
        let _ = parse_command(LaunchInput::Argv(&words), &ctx);
        let _ = with_flag(&words, "--tp", Some("2"));
    }

    #[test]
    fn a_flag_set_in_a_text_is_read_back(words in pieces()) {
        let text = format!("{words}\nsglang serve m --tp 4 --page-size 16");
        let read = |t: &str| parse_command(LaunchInput::Text(t), &Context::default());
        let Ok(before) = read(&text) else { return Ok(()) };
        let Some(changed) = text_with_flag(&text, "--page-size", Some("64")) else {
            return Ok(());
        };
        if let (EngineLaunch::Sglang(before), Ok(after)) = (before.engine, read(&changed)) {
            let EngineLaunch::Sglang(after) = after.engine else { panic!("{changed}") };
            prop_assert_eq!(*after, ServerArgs { page_size: Some(64), ..*before }, "{}", changed);
        }
    }

    #[test]
    fn no_config_file_panics(content in "(\\PC|\n){0,200}") {
        let file = |_: &str| Ok(content.clone());
        let ctx = Context { read_file: Some(&file), ..Context::default() };
        let _ = parse_command(LaunchInput::Text("vllm serve m --config c.yaml"), &ctx);
        let _ = parse_command(LaunchInput::Text("sglang serve m --config c.yaml"), &ctx);
    }

    #[test]
    fn rendered_words_read_back(words in prop::collection::vec("\\PC{0,12}", 1..8)) {
        let words: Vec<String> = words;
        let line = render(&words);
        prop_assert_eq!(shlex::split(&line), Some(words));
    }

    #[test]
    fn numbers_in_range_arrive_as_typed(tp in 1u32..64, fraction in 1u32..=1000, max in 1u64..1 << 40) {
        let fraction = f64::from(fraction) / 1000.0;
        let args = sglang(&format!(
            "python -m sglang.launch_server --model-path m --tp {tp} --mem-fraction-static {fraction} --max-total-tokens {max}"
        ));
        prop_assert_eq!((args.tp_size, args.mem_fraction_static, args.max_total_tokens), (tp, Some(fraction), Some(max)));
    }
}
