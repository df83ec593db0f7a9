//! `calibrate`: what it says and writes, and what a profile does to `run` and `plan`.

use super::{run, schema_check::check, transcript};
use serde_json::Value;
use std::{fs, path::PathBuf};

const ROWS: &str = "tests/vectors/measured-requests.jsonl";

fn calibrate<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut args =
        vec!["calibrate", ROWS, "--device", "RTX PRO 6000", "--engine-version", "0.19.0"];
    args.extend(["--fit-first", "40"]);
    args.extend(more);
    args.extend(["--", "vllm", "serve", "meta-llama/Llama-3.1-8B", "--max-num-seqs", "48"]);
    args.extend(["--max-model-len", "8192"]);
    args
}

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn one_screen_says_what_was_fitted_and_how_well() {
    let args = calibrate(&[]);
    let shown = run(&args);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    insta::assert_snapshot!("calibrate-requests", transcript(&args, &shown));
}

#[test]
fn its_json_is_the_profile() {
    let schema: Value = serde_json::from_str(&run(&["schema", "profile"]).stdout).expect("JSON");
    let shown = run(&calibrate(&["--format", "json"]));
    let profile: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!(check(&schema, &profile), Vec::<String>::new());
    let csv = run(&calibrate(&["--format", "csv"])).stdout;
    assert_eq!(csv.lines().count(), 61, "{csv}");
    assert_eq!(csv.matches(",held_out,").count(), 20);
    let md = run(&calibrate(&["--format", "md"])).stdout;
    assert!(md.contains("| constant of a step |"), "{md}");
}

/// A scenario of the device of the profile, or of another.
fn scenario(folder: &std::path::Path, device: &str) -> String {
    let path = folder.join("scenario.yaml");
    let text = format!(
        "name: test/profile\nwhy: a run with a profile\nmachine: {{ device: {device} }}\nengine:\n  version: 0.19.0\n  \
         command: vllm serve Qwen/Qwen3-8B --max-num-seqs 48\nworkload: {{ requests: 20, rate: 5 /s, prompt_tokens: \
         500, output_tokens: 50 }}\n"
    );
    fs::write(&path, text).expect("written");
    path.display().to_string()
}

#[test]
fn a_profile_is_used_named_and_recorded() {
    let folder = folder("calibrate-used");
    let profile = folder.join("profile.yaml").display().to_string();
    let saved = run(&calibrate(&["--save", &profile]));
    assert_eq!(saved.code, 0, "{}", saved.stderr);
    let file = scenario(&folder, "RTX PRO 6000");
    let log = folder.join("run.jsonl").display().to_string();
    let plain = run(&["run", &file, "--why"]);
    let with = run(&["run", &file, "--why", "--profile", &profile, "--record", &log]);
    assert_eq!((plain.code, with.code), (0, 0), "{}", with.stderr);
    assert!(!plain.stdout.contains("kv_bandwidth_ppm"), "{}", plain.stdout);
    assert!(with.stdout.contains("kv_bandwidth_ppm"), "{}", with.stdout);
    assert!(
        with.stdout.contains("calibrated") && with.stdout.contains("profile.yaml"),
        "{}",
        with.stdout
    );
    // Another model of the same device: said, and used.
    assert!(with.stdout.contains("the profile is of another launch"), "{}", with.stdout);
    let header = fs::read_to_string(&log).expect("a log");
    assert!(header.lines().next().is_some_and(|line| line.contains("\"profile_sha256\":\"")));
    assert_eq!(run(&["replay", &log]).code, 0);
    let text = fs::read_to_string(&profile).expect("a profile");
    fs::write(&profile, text.replace("plimsoll: ", "plimsoll: x")).expect("written");
    let again = run(&["replay", &log]);
    assert_eq!(again.code, 2);
    assert!(again.stderr.contains("the profile is not what it was"), "{}", again.stderr);
    let set = format!("machine.profile={profile}");
    assert_eq!(run(&["run", &file, "--set", &set]).code, 0);
}

#[test]
fn a_profile_of_something_else_is_refused() {
    let folder = folder("calibrate-other");
    let profile = folder.join("profile.yaml").display().to_string();
    run(&calibrate(&["--save", &profile]));
    let other = run(&["run", &scenario(&folder, "H100 80GB"), "--profile", &profile]);
    assert_eq!(other.code, 2);
    assert!(
        other.stderr.contains("the rates of one device say nothing of another"),
        "{}",
        other.stderr
    );
    let plan = |device: &str, command: &[&str]| {
        let mut args = vec!["plan", "--device", device, "--profile", &profile, "--"];
        args.extend(command);
        run(&args)
    };
    let sglang = ["python", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3-8B"];
    let other = plan("RTX PRO 6000", &sglang);
    assert_eq!(other.code, 2);
    assert!(other.stderr.contains("say nothing of another's"), "{}", other.stderr);
    let same = plan("RTX PRO 6000", &["vllm", "serve", "Qwen/Qwen3-8B"]);
    assert_eq!(same.code, 0, "{}", same.stderr);
    assert!(same.stdout.contains("another launch"), "{}", same.stdout);
    fs::write(&profile, "schema: plimsoll.profile/1\n").expect("written");
    let broken = plan("RTX PRO 6000", &["vllm", "serve", "Qwen/Qwen3-8B"]);
    assert_eq!(broken.code, 2);
    assert!(broken.stderr.contains("is missing"), "{}", broken.stderr);
}

#[test]
fn what_is_missing_is_said() {
    let launch = run(&["calibrate", ROWS]);
    assert_eq!(launch.code, 2);
    assert!(launch.stderr.contains("--scenario FILE, or --device NAME"), "{}", launch.stderr);
    let mut args = calibrate(&[]);
    args[1] = "Cargo.toml";
    let nothing = run(&args);
    assert_eq!(nothing.code, 2);
    assert!(nothing.stderr.contains("Cargo.toml: no times of requests"), "{}", nothing.stderr);
    args[1] = "no-such-file";
    let absent = run(&args);
    assert!(absent.code == 2 && absent.stderr.contains("no-such-file"), "{}", absent.stderr);
}
