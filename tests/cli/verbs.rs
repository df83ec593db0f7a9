//! The other verbs: `run`, `diff`, `doctor`, `completions`, `man`, and the help texts.

use super::{command, root, run, shown, snapshot, transcript};
use std::{fs, io::Read as _, path::PathBuf, process::Stdio};

const START: &str = "tests/cli/start.yaml";
const LOWER: &str = "engine.flags.mem-fraction-static=0.85";

/// A folder of this test, empty.
pub(super) fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{name}"));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("a folder for the test");
    path
}

#[test]
fn a_run_shows_its_claims() {
    for (name, code, args) in [
        ("holds", 0, vec!["run", START]),
        ("fails", 1, vec!["run", START, "--set", LOWER]),
        ("several", 0, vec!["run", START, START]),
        ("md", 0, vec!["run", START, "--format", "md"]),
    ] {
        let shown = run(&args);
        snapshot(&format!("run-{name}"), &transcript(&args, &shown));
        assert_eq!(shown.code, code, "{name}");
    }
}

#[test]
fn one_broken_file_does_not_hide_the_others() {
    let shown = run(&["run", "tests/cli/none.yaml", START, "tests/vectors"]);
    assert_eq!(shown.code, 2);
    assert!(shown.stdout.contains("231,120 tokens"), "{}", shown.stdout);
    assert!(shown.stderr.contains("none.yaml"), "{}", shown.stderr);
    assert!(shown.stderr.contains("no scenario (*.yaml) below the folder tests/vectors"));
}

#[test]
fn logs_of_equal_runs_are_equal_and_the_first_difference_is_found() {
    let folder = folder("diff");
    let path = |name: &str| folder.join(name).display().to_string();
    let (a, b, c) = (path("a.jsonl"), path("b.jsonl"), path("c.jsonl"));
    for (log, more) in [(&a, &[][..]), (&b, &[][..]), (&c, &["--set", LOWER][..])] {
        let args = [&["run", START, "--log", log][..], more].concat();
        assert!(run(&args).code < 2);
    }
    assert_eq!(fs::read(&a).expect("a log"), fs::read(&b).expect("a log"));
    let same = run(&["diff", &a, &b]);
    assert_eq!((same.code, same.stdout.as_str()), (0, "same decisions; everything else too\n"));
    let other = run(&["diff", &a, &c]);
    assert_eq!(other.code, 1);
    assert!(other.stdout.contains("mem_fraction_static"), "{}", other.stdout);
    let schema = serde_json::from_str(&run(&["schema", "diff"]).stdout).expect("JSON");
    for (b, code) in [(&b, 0), (&c, 1)] {
        let shown = run(&["diff", &a, b, "--format", "json"]);
        assert_eq!(shown.code, code);
        let value = serde_json::from_str(&shown.stdout).expect("JSON");
        assert_eq!(super::schema_check::check(&schema, &value), Vec::<String>::new());
    }
    let two = run(&["run", START, START, "--log", &a]);
    assert_eq!(
        (two.code, two.stderr.as_str()),
        (2, "error: --record takes one scenario; 2 are given\n")
    );
}

#[test]
fn a_result_can_be_written_to_a_file() {
    let file = folder("output").join("plan.json").display().to_string();
    let args = ["plan", "--device", "H100", "--model", "Qwen/Qwen3-8B", "--format", "json"];
    let direct = run(&args);
    let shown = run(&[&args[..], &["-o", &file]].concat());
    assert_eq!((shown.code, shown.stdout.as_str()), (0, ""));
    assert_eq!(fs::read_to_string(&file).expect("written"), direct.stdout);
    let lost = run(&[&args[..], &["-o", "tests/no-such-folder/x"]].concat());
    assert_eq!(lost.code, 2);
    assert!(
        lost.stderr.starts_with("error: cannot write tests/no-such-folder/x: "),
        "{}",
        lost.stderr
    );
}

#[test]
fn the_doctor_says_what_is_missing() {
    let plain = run(&["doctor"]);
    assert_eq!(plain.code, 0);
    assert!(plain.stdout.contains("nvidia-smi is not found"), "{}", plain.stdout);
    let cuda = run(&["doctor", "--cuda"]);
    // 1 exactly where serving lacks a piece.
    assert_eq!(cuda.code == 1, cuda.stdout.contains("cannot serve"), "{}", cuda.stdout);
    assert!([0, 1].contains(&cuda.code));
}

#[test]
fn a_closed_pipe_is_no_error() {
    let mut child = command(&["plan", "--device", "list"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
    assert_eq!(child.wait().expect("ends").code(), Some(0));
    assert_eq!(stderr, "");
}

#[test]
fn help_texts_are_as_recorded() {
    let verbs =
        ["plan", "run", "replay", "diff", "watch", "doctor", "schema", "completions", "man"];
    let mut text = run(&["--help"]).stdout;
    for verb in verbs {
        let shown = run(&[verb, "--help"]);
        assert_eq!(shown.code, 0, "{verb}");
        text.push_str(&format!("\n== {verb} ==\n{}", shown.stdout));
    }
    snapshot("help", &text);
    let short = run(&["plan", "-h"]).stdout;
    assert!(short.lines().count() < 70, "{short}");
    assert_eq!(run(&["--version"]).stdout, format!("plimsoll {}\n", env!("CARGO_PKG_VERSION")));
    assert_eq!(run(&["man", "--version"]).code, 0);
}

#[test]
fn completions_and_the_manual_page_know_every_verb_and_flag() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = run(&["completions", shell]).stdout;
        for word in ["plan", "doctor", "free-before-load", "engine-lines"] {
            assert!(text.contains(word), "{shell}: {word}");
        }
    }
    let man = run(&["man"]).stdout;
    assert!(man.contains(".TH plimsoll"));
    assert!(man.contains("free\\-before\\-load"));
}

#[test]
fn colour_follows_the_flag_and_the_variables() {
    let args = ["plan", "--device", "H100", "--model", "Qwen/Qwen3-8B"];
    let with = |name: &str, value: &str, more: &[&str]| {
        let mut command = command(&[&args[..], more].concat());
        command.env(name, value);
        shown(command).stdout.contains('\u{1b}')
    };
    assert!(with("CLICOLOR_FORCE", "1", &[]));
    assert!(!with("CLICOLOR_FORCE", "1", &["--color", "never"]));
    assert!(!with("NO_COLOR", "1", &[]));
    assert!(with("NO_COLOR", "1", &["--color", "always"]));
    let mut json = command(&args);
    json.env("PLIMSOLL_FORMAT", "jsonl");
    assert!(shown(json).stdout.starts_with('{'));
}

/// A machine whose `nvidia-smi` prints this.
#[cfg(unix)]
fn on_a_machine(name: &str, script: &str) -> super::Shown {
    use std::os::unix::fs::PermissionsExt as _;
    let bin = folder(name);
    let tool = bin.join("nvidia-smi");
    fs::write(&tool, format!("#!/bin/sh\n{script}\n")).expect("written");
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).expect("executable");
    let mut command = command(&["plan", "--model", "Qwen/Qwen3-8B"]);
    command.env("PATH", &bin);
    shown(command)
}

#[cfg(all(unix, not(target_os = "macos")))]
#[test]
fn without_a_device_the_one_of_this_machine_is_asked() {
    let line = |name: &str| format!("echo '0, {name}, 143771 MiB, 142771 MiB, 1000 MiB'");
    let found = on_a_machine("smi", &line("NVIDIA H200"));
    assert_eq!(found.code, 0, "{}", found.stderr);
    assert!(found.stdout.contains("1 x NVIDIA H200\n"), "{}", found.stdout);
    assert!(found.stdout.contains("1000 MiB are in use now"), "{}", found.stdout);
    let failing = on_a_machine("smi-fails", "echo 'Failed to initialize NVML'; exit 9");
    assert_eq!(failing.code, 3, "{}", failing.stderr);
    let unknown = on_a_machine("smi-unknown", &line("NVIDIA Z999"));
    assert!(unknown.code == 3 || unknown.stdout.contains("x NVIDIA"), "{}", unknown.stderr);
    assert!(unknown.code == 0 || unknown.stderr.contains("no device `NVIDIA Z999`"));
}

#[test]
fn the_hub_cache_is_looked_in() {
    let hub = folder("hub");
    let snapshot = hub.join("models--me--mine/snapshots/abc");
    fs::create_dir_all(&snapshot).expect("a folder");
    fs::create_dir_all(hub.join("models--me--mine/refs")).expect("a folder");
    fs::write(hub.join("models--me--mine/refs/main"), "abc").expect("written");
    fs::copy(root().join("tests/cli/model/config.json"), snapshot.join("config.json"))
        .expect("copied");
    let mut found = command(&["plan", "--device", "L4", "--model", "me/mine"]);
    found.env("HF_HUB_CACHE", &hub);
    let found = shown(found);
    assert_eq!(found.code, 0, "{}", found.stderr);
    assert!(found.stdout.contains("me/mine, 1 x NVIDIA L4"), "{}", found.stdout);
}
