//! Plans as people see them: a dozen launches, and what holds for every one of them.

use super::{run, snapshot, transcript};

pub(super) const KIMI: [&str; 7] =
    ["python", "-m", "sglang.launch_server", "--model-path", "moonshotai/Kimi-K2.5", "--tp", "8"];

/// A plan by name.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) code: i32,
    pub(super) args: Vec<&'static str>,
}

fn case(name: &'static str, code: i32, args: &[&'static str], command: &[&'static str]) -> Case {
    let mut all = vec!["plan"];
    all.extend(args);
    if !command.is_empty() {
        all.push("--");
        all.extend(command);
    }
    Case { name, code, args: all }
}

fn kimi(more: &[&'static str]) -> Vec<&'static str> {
    [&KIMI, more].concat()
}

const RTX: [&str; 2] = ["--device", "RTX PRO 6000 Blackwell"];
const MEASURED: [&str; 6] =
    ["--engine-version", "0.5.8", "--free-before-load", "94.037 GiB", "--weights", "72.33 GiB"];

fn measured(after: &'static str) -> Vec<&'static str> {
    [&RTX[..], &MEASURED, &["--free-after-graphs", after]].concat()
}

pub(super) fn founding() -> Case {
    let at = ["--mem-fraction-static", "0.93"];
    case("founding-measured", 1, &measured("0.82 GiB"), &kimi(&at))
}

/// Every plan whose text is kept.
pub(super) fn cases() -> Vec<Case> {
    let mut all = sglang();
    all.extend(others());
    all
}

fn sglang() -> Vec<Case> {
    let hicache =
        ["--mem-fraction-static", "0.93", "--enable-hierarchical-cache", "--hicache-size", "48"];
    let serve = |model| ["python", "-m", "sglang.launch_server", "--model-path", model];
    vec![
        case("founding", 0, &RTX, &kimi(&hicache)),
        founding(),
        case("founding-088", 0, &measured("5.52 GiB"), &kimi(&["--mem-fraction-static", "0.88"])),
        case(
            "founding-why",
            1,
            &[&measured("0.82 GiB")[..], &["--why"]].concat(),
            &kimi(&["--mem-fraction-static", "0.93"]),
        ),
        case("founding-refused", 1, &RTX, &kimi(&["--mem-fraction-static", "0.7"])),
        case(
            "from-log",
            1,
            &[&RTX[..], &["--engine-version", "0.5.8", "--from-log", "tests/cli/start.log"]]
                .concat(),
            &kimi(&["--mem-fraction-static", "0.93"]),
        ),
        case("more-ranks", 1, &["--device", "H200"], &serve("deepseek-ai/DeepSeek-R1")),
        case(
            "hybrid",
            0,
            &["--device", "H100", "--tp", "4", "--engine-lines"],
            &serve("Qwen/Qwen3-Next-80B-A3B-Instruct"),
        ),
        case("swa", 0, &["--device", "H100", "--engine-lines"], &serve("openai/gpt-oss-20b")),
        case(
            "laptop",
            0,
            &["--device", "Apple 64GB", "--engine-lines"],
            &[
                "env",
                "SGLANG_USE_MLX=1",
                "python",
                "-m",
                "sglang.launch_server",
                "--model",
                "Qwen/Qwen3-0.6B",
            ],
        ),
        case(
            "min-margin",
            1,
            &["--device", "H100", "--model", "Qwen/Qwen3-8B", "--min-margin", "20GiB"],
            &[],
        ),
        case(
            "host-refused",
            1,
            &[&RTX[..], &["--host-available", "256GiB"]].concat(),
            &kimi(&hicache),
        ),
        case(
            "shared",
            0,
            &["--device", "H100", "--others", "30GiB", "--model", "Qwen/Qwen3-8B"],
            &[],
        ),
    ]
}

fn others() -> Vec<Case> {
    let llama = "meta-llama/Llama-3.1-8B-Instruct";
    let docker = [
        "docker",
        "run",
        "--gpus",
        "all",
        "-e",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "-e",
        "SGLANG_NO_SUCH_VARIABLE=1",
        "lmsysorg/sglang:v0.5.8-cu126",
        "python3",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "Qwen/Qwen3-32B",
        "--tp=2",
        "--mem-fraction-statc=0.9",
    ];
    vec![
        case("vllm", 0, &["--device", "H100", "--engine-lines"], &["vllm", "serve", llama]),
        case(
            "kubernetes",
            0,
            &["--device", "L40S"],
            &["kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.11.0\n    \
               command: [vllm, serve, Qwen/Qwen3-8B]\n    args: [--max-model-len, \"8192\"]\n"],
        ),
        case("vllm-unified", 1, &["--device", "GB10"], &["vllm", "serve", "openai/gpt-oss-120b"]),
        case("vllm-refused", 1, &["--device", "L4"], &["vllm", "serve", llama]),
        case(
            "vllm-v0",
            0,
            &["--device", "A100 80GB", "--engine-version", "0.6.6", "--engine-lines"],
            &["vllm", "serve", llama, "--max-model-len", "8192"],
        ),
        case(
            "unknown-model",
            0,
            &[
                "--device",
                "L40S",
                "--model",
                "mine",
                "--kv-bytes-per-token",
                "128KiB",
                "--weights",
                "14.9GiB",
            ],
            &[],
        ),
        case(
            "folder",
            0,
            &["--device", "L4", "--model", "tests/cli/model", "--engine", "vllm"],
            &[],
        ),
        case("docker", 0, &["--device", "H100"], &docker),
    ]
}

#[test]
fn plans_are_as_recorded() {
    for case in cases() {
        let shown = run(&case.args);
        snapshot(&format!("plan-{}", case.name), &transcript(&case.args, &shown));
        assert_eq!(shown.code, case.code, "{}", case.name);
        assert_eq!(shown.stderr, "", "{}", case.name);
    }
}

/// The rows of the ledger on screen, in hundredths of a GiB; the capacity is the last.
fn ledger(stdout: &str) -> Vec<i64> {
    let lines = stdout.lines().skip_while(|line| !line.starts_with("  held by")).skip(1);
    let rows = lines.take_while(|line| !line.is_empty());
    let figure = |line: &str| {
        let cell = line.split("  ").map(str::trim).filter(|c| !c.is_empty()).nth(1)?;
        cell.replace('.', "").parse().ok()
    };
    rows.map(|line| figure(line).unwrap_or_else(|| panic!("no figure in {line:?}"))).collect()
}

#[test]
fn every_ledger_adds_up_on_screen() {
    for case in cases() {
        let rows = ledger(&run(&case.args).stdout);
        let (capacity, rows) = rows.split_last().expect("a ledger has rows");
        assert!(rows.len() >= 2, "{}", case.name);
        assert_eq!(rows.iter().sum::<i64>(), *capacity, "{}", case.name);
    }
}

/// Facts of the founding case, said by its server's log; its printed figures are rounded.
#[test]
fn the_founding_case_agrees_with_its_log() {
    let shown = run(&founding().args).stdout;
    assert!(shown.starts_with("OOM: 0.82 GiB left after graphs"), "{shown}");
    assert!(shown.contains("pass --mem-fraction-static 0.88:"), "{shown}");
    assert!(shown.contains("5.52 GiB left"), "{shown}");
    let from_log = cases().into_iter().find(|case| case.name == "from-log").expect("there");
    let shown = run(&from_log.args).stdout;
    // 0.01 GiB of rounding is 153 tokens of 70,272 B.
    let line = shown.lines().find(|line| line.starts_with("  log ")).expect("a line for the log");
    let apart: i64 =
        line.split(": ").nth(1).and_then(|t| t.split(' ').next()).unwrap().parse().unwrap();
    assert!(apart.abs() < 400, "{line}");
}

/// With the figures that two starts of the founding case back-solve to, the lines of every start are
/// the engine's own to the token.
#[test]
fn the_founding_lines_are_those_of_the_log() {
    let limits = "chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, \
                  context_len=262144, available_gpu_mem=";
    for (fraction, left, tokens) in [
        ("0.85", "8.34", &["116171"][..]),
        ("0.88", "5.52", &["159276", "159277"]),
        ("0.93", "0.82", &["231120"]),
    ] {
        let left_arg = format!("{left} GiB");
        let mut args =
            vec!["plan", "--device", RTX[1], "--engine-version", "0.5.8", "--engine-lines"];
        args.extend(["--free-before-load", "94.0367 GiB", "--weights", "72.32827 GiB"]);
        args.extend(["--free-after-graphs", &left_arg, "--mem-fraction-static", fraction, "--"]);
        args.extend(KIMI);
        let shown = run(&args).stdout;
        let says = |line: String| shown.lines().any(|shown| shown.trim() == line);
        let found = tokens.iter().any(|tokens| {
            says(format!("max_total_num_tokens={tokens}, {limits}{left} GB"))
                && shown.contains(&format!("KV Cache is allocated. #tokens: {tokens}, KV size: "))
        });
        assert!(found, "{shown}");
        assert!(says("Load weight begin. avail mem=94.04 GB".to_owned()), "{shown}");
    }
}

/// The laptop's three starts. What was available after loading is back-solved from the printed slots;
/// the weights (1.2 GiB) only stand between the two readings.
#[test]
fn the_laptop_starts_are_those_of_the_log() {
    for (before, fraction, available, budget, tokens) in [
        ("29.00805 GiB", None, "27.81", "24.25", 227_022),
        ("39.488195 GiB", None, "38.29", "33.39", 312_581),
        ("49.68562 GiB", Some("0.4"), "48.49", "19.39", 181_574),
    ] {
        let mut args = vec!["plan", "--device", "Apple 64GB", "--engine-lines"];
        args.extend(["--free-before-load", before, "--weights", "1.2 GiB"]);
        args.extend(fraction.iter().flat_map(|f| ["--mem-fraction-static", f]));
        args.extend(["--", "env", "SGLANG_USE_MLX=1", "python", "-m", "sglang.launch_server"]);
        args.extend(["--model", "Qwen/Qwen3-0.6B", "--disable-cuda-graph"]);
        let shown = run(&args).stdout;
        let line = format!(
            "sys_available={available} GB, … kv_budget={budget} GB, bytes_per_slot=114688, \
             pool_size={tokens}"
        );
        assert!(shown.contains(&line), "{line} is missing in\n{shown}");
    }
}

#[test]
fn no_line_but_commands_and_logs_is_wider_than_100_columns() {
    for case in cases() {
        let shown = run(&case.args).stdout;
        let text = shown.split("\nthe engine's log").next().expect("one part at least");
        for line in text.lines().filter(|line| !is_command(line)) {
            assert!(line.chars().count() <= 100, "{}: {line}", case.name);
        }
    }
}

/// A command stands alone, indented, so that it can be copied whole.
fn is_command(line: &str) -> bool {
    ["  python ", "  vllm ", "  docker ", "  env "].iter().any(|start| line.starts_with(start))
}

#[test]
fn why_gives_every_figure_a_tag_a_rule_and_a_source() {
    let case = cases().into_iter().find(|case| case.name == "founding-why").expect("there");
    let shown = run(&case.args).stdout;
    let why = shown.split("\nwhy\n").nth(1).expect("derivations at the end");
    let tags = ["[measured]", "[computed]", "[calibrated]", "[assumed]"];
    let heads: Vec<&str> =
        why.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   ")).collect();
    assert!(heads.len() > 15, "{} figures", heads.len());
    assert!(heads.iter().all(|line| tags.iter().any(|tag| line.ends_with(tag))), "{heads:#?}");
    let count = |word: &str| why.matches(&format!("\n      {word}")).count();
    assert_eq!(count("rule"), heads.len());
    assert_eq!(count("source"), heads.len());
}
