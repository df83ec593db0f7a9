//! `diagnose` as its users run it: every form of the result, every way to give a log, and every mistake.

use super::{Shown, command, root, run, schema_check::check, shown, snapshot, transcript};
use flate2::{Compression, write::GzEncoder};
use serde_json::Value;
use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Stdio,
};

/// Logs and what becomes of them: name, file, exit code, code of the first finding.
const LOGS: [(&str, &str, i32); 5] = [
    ("founding", SAMPLE, 1),
    ("laptop", "tests/cli/logs/laptop.log", 1),
    ("vllm-no-blocks", "tests/cli/logs/vllm-no-blocks.log", 1),
    ("healthy", "tests/cli/logs/healthy.log", 0),
    ("capture", "tests/cli/logs/capture.log", 1),
];

/// The log that the README shows.
const SAMPLE: &str = "docs/samples/kimi-k2.5-0.93.log";

/// Its command.
const COMMAND: &str = "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --mem-fraction-static 0.93";

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

/// A folder of this test's own, empty.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("plimsoll-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn with_stdin(args: &[&str], input: &[u8]) -> Shown {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    // A verb that refuses its arguments reads nothing.
    let _ = child.stdin.take().expect("stdin").write_all(input);
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    Shown {
        code: output.status.code().expect("no signal"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

#[test]
fn logs_are_diagnosed_on_one_screen() {
    for (name, file, code) in LOGS {
        let args = ["diagnose", file];
        let shown = run(&args);
        assert_eq!(shown.code, code, "{name}: {}", shown.stdout);
        let lines = shown.stdout.lines().count();
        assert!(lines <= 50, "{name}: {lines} lines are no screen");
        let widest = shown.stdout.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{name}: {widest:?} columns");
        snapshot(&format!("diagnose-{name}"), &transcript(&args, &shown));
    }
}

#[test]
fn a_command_is_given_back_with_the_flag_changed() {
    let words: Vec<&str> = COMMAND.split(' ').collect();
    let behind = run(&[&["diagnose", SAMPLE, "--"], words.as_slice()].concat());
    let text = run(&["diagnose", SAMPLE, "--command", COMMAND]);
    assert_eq!(behind.stdout, text.stdout);
    let folder = folder("command");
    let file = folder.join("run.sh");
    fs::write(&file, format!("#!/bin/sh\nexec {COMMAND} > server.log 2>&1\n")).expect("written");
    let shown = run(&[
        "diagnose",
        SAMPLE,
        "--command",
        &format!("@{}", file.display()),
        "--format",
        "json",
    ]);
    let changed = parse(&shown.stdout)["command"].as_str().expect("a command").to_owned();
    assert!(
        changed.starts_with("#!/bin/sh\nexec python") && changed.contains("> server.log"),
        "{changed}"
    );
    let flag = text.stdout.lines().find(|line| line.starts_with("  python")).expect("a command");
    assert!(flag.trim() != COMMAND, "{flag}");
    fs::remove_dir_all(folder).expect("removed");
}

/// Every log of this repository.
fn all_logs() -> Vec<String> {
    fn find(folder: &Path, found: &mut Vec<String>) {
        let entries = fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
        for path in entries {
            if path.is_dir() {
                find(&path, found);
            } else if path.extension().is_some_and(|end| end == "log") {
                found.push(path.display().to_string());
            }
        }
    }
    let mut found = Vec::new();
    for folder in ["docs/samples", "tests/cli/logs", "ingest/tests", "diagnosis/tests"] {
        find(&root().join(folder), &mut found);
    }
    found.sort();
    found
}

#[test]
fn every_log_gives_what_the_schema_says() {
    let schema = parse(&run(&["schema", "diagnosis"]).stdout);
    let logs = all_logs();
    assert!(logs.len() >= 9, "{logs:?}");
    for file in &logs {
        let shown = run(&["diagnose", file, "--format", "json"]);
        if shown.code == 2 {
            assert!(shown.stderr.contains("no line of a server"), "{file}: {}", shown.stderr);
            continue;
        }
        let json = parse(&shown.stdout);
        assert_eq!(check(&schema, &json), Vec::<String>::new(), "{file}");
        let level = json["level"].as_str();
        assert_eq!(shown.code == 1, level == Some("error"), "{file}: {level:?}");
        assert_eq!(json["code"], json["findings"][0]["code"], "{file}");
        let line = run(&["diagnose", file, "--format", "jsonl"]).stdout;
        assert_eq!((line.lines().count(), parse(&line)), (1, json), "{file}");
    }
}

#[test]
fn one_log_is_kept_in_every_form() {
    for format in ["json", "sarif", "md"] {
        let shown = run(&["diagnose", "tests/cli/logs/capture.log", "--format", format]);
        let mut text = shown.stdout;
        if format == "sarif" {
            // The rules are the pages.
            let mut sarif = parse(&text);
            sarif["runs"][0]["tool"]["driver"]["rules"] = Value::Null;
            sarif["runs"][0]["tool"]["driver"]["version"] = Value::Null;
            text = format!("{sarif:#}\n");
        }
        snapshot(&format!("diagnose-capture-{format}"), &text);
    }
}

/// What SARIF 2.1.0 asks of a log file, as far as ours goes.
fn check_sarif(sarif: &Value, names: &[&str], lines: &[Vec<String>]) {
    assert_eq!(sarif["version"], "2.1.0");
    let runs = sarif["runs"].as_array().expect("runs");
    let [run] = runs.as_slice() else { panic!("{} runs", runs.len()) };
    let driver = &run["tool"]["driver"];
    assert_eq!(driver["name"], "plimsoll");
    let rules = driver["rules"].as_array().expect("rules");
    let ids: Vec<&str> = rules.iter().map(|rule| rule["id"].as_str().expect("an id")).collect();
    let mut unique = ids.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), ids.len());
    for rule in rules {
        for text in ["shortDescription", "fullDescription", "help"] {
            assert!(rule[text]["text"].as_str().is_some_and(|text| text.len() > 10), "{rule}");
        }
    }
    for result in run["results"].as_array().expect("results") {
        let index = result["ruleIndex"].as_u64().expect("an index") as usize;
        assert_eq!(Some(ids[index]), result["ruleId"].as_str());
        let (kind, level) = (result["kind"].as_str(), result["level"].as_str());
        let fails = ["note", "warning", "error"].contains(&level.expect("a level"));
        assert_eq!(fails, kind == Some("fail"), "{kind:?} {level:?}");
        assert!(result["message"]["text"].as_str().is_some_and(|text| !text.is_empty()));
        let places = ["locations", "relatedLocations"].map(|key| result[key].as_array());
        for place in places.into_iter().flatten().flatten() {
            let place = &place["physicalLocation"];
            let uri = place["artifactLocation"]["uri"].as_str().expect("a place");
            let file = place["artifactLocation"]["index"].as_u64().expect("an index") as usize;
            assert_eq!(names[file], uri);
            assert_eq!(run["artifacts"][file]["location"]["uri"], uri);
            let line = place["region"]["startLine"].as_u64().expect("a line") as usize;
            let snippet = place["region"]["snippet"]["text"].as_str().expect("a text");
            // The tag of time and rank is taken off, paths are cut.
            let head: String = snippet.trim().chars().take(20).collect();
            assert!(lines[file][line - 1].contains(&head), "{uri}:{line}: {snippet}");
        }
    }
}

#[test]
fn sarif_points_at_the_lines() {
    for (_, file, code) in LOGS {
        let shown = run(&["diagnose", file, "--format", "sarif"]);
        assert_eq!(shown.code, code);
        let text = fs::read_to_string(root().join(file)).expect(file);
        let lines = vec![text.lines().map(str::to_owned).collect()];
        let sarif = parse(&shown.stdout);
        check_sarif(&sarif, &[file], &lines);
        assert!(!sarif["runs"][0]["results"].as_array().expect("results").is_empty(), "{file}");
    }
}

#[test]
fn a_pipe_a_compressed_file_and_parts_say_the_same() {
    let text = fs::read(root().join(SAMPLE)).expect("a log");
    let finding = |shown: &Shown| parse(&shown.stdout)["findings"][0]["code"].clone();
    let of = |args: &[&str]| run(&[&["diagnose", "--format", "json"], args].concat());
    let whole = of(&[SAMPLE]);
    for args in [&["diagnose", "--format", "json"][..], &["diagnose", "-", "--format", "json"]] {
        let piped = with_stdin(args, &text);
        assert_eq!((piped.code, finding(&piped)), (1, finding(&whole)));
        assert_eq!(parse(&piped.stdout)["files"][0], "<stdin>");
    }
    let folder = folder("parts");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).expect("written");
        path.display().to_string()
    };
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&text).expect("packed");
    let packed = packed.finish().expect("packed");
    let zipped = of(&[&file("server.log.gz", &packed)]);
    assert_eq!((zipped.code, finding(&zipped)), (1, finding(&whole)));
    let cut = of(&[&file("cut.log.gz", &packed[..packed.len() * 3 / 4])]);
    assert!(!parse(&cut.stdout)["log"]["oddities"].as_array().expect("a list").is_empty());
    // A rotation in the middle of the start.
    let at = text.iter().enumerate().filter(|(_, b)| **b == b'\n').nth(6).expect("lines").0 + 1;
    let (first, second) = (file("server.log.1", &text[..at]), file("server.log", &text[at..]));
    let parts = of(&[&first, &second]);
    assert_eq!((parts.code, finding(&parts)), (1, finding(&whole)));
    let evidence = parse(&parts.stdout)["findings"][0]["evidence"].clone();
    assert!(evidence.as_array().expect("lines").iter().any(|line| line["file"] == 1), "{evidence}");
    fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn mistakes_are_named() {
    let folder = folder("mistakes");
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).expect("written");
        path.display().to_string()
    };
    let (empty, binary) =
        (file("empty.log", b""), file("program.log", b"\x7fELF\x02\0\0\0\xff\xfe\0\n"));
    let page = file("page.log", b"<!DOCTYPE html>\n<html><body>Load</body></html>\n");
    let place = folder.display().to_string();
    let cases: [(&[&str], &str); 13] = [
        (&["diagnose", "no-such.log"], "no-such.log: No such file"),
        (&["diagnose", &place], "a folder; name its files"),
        (&["diagnose", &empty], "empty.log: empty"),
        (&["diagnose", &binary], "bytes of binary data"),
        (&["diagnose", &page], "bytes of a web page"),
        (&["diagnose", "tests/cli/logs/letter.txt"], "seen: 3 lines, 56 bytes of text"),
        (&["diagnose"], "give a log"),
        (&["diagnose", "--command", COMMAND], "`plimsoll plan` says what a command alone will do"),
        (&["diagnose", SAMPLE, "--command", "@no-such.sh"], "--command @no-such.sh: No such file"),
        (&["diagnose", SAMPLE, "--", "ls", "-l"], "no server"),
        (&["diagnose", SAMPLE, "--engine-version", "latest"], "--engine-version"),
        (
            &["diagnose", SAMPLE, "--format", "csv"],
            "diagnose writes human, json, jsonl, md and sarif",
        ),
        (&["diagnose", SAMPLE, "--against", "no-such.json"], "--against no-such.json"),
    ];
    for (args, want) in cases {
        let shown = run(args);
        assert_eq!(shown.code, 2, "{args:?}: {}", shown.stdout);
        assert!(shown.stderr.contains(want), "{args:?}: {}", shown.stderr);
        assert!(shown.stderr.starts_with("error: "), "{}", shown.stderr);
    }
    let shown = run(&["plan", "--device", "H100", "--model", "Qwen/Qwen3-8B", "--format", "sarif"]);
    assert!(shown.code == 2 && shown.stderr.contains("--format sarif"), "{}", shown.stderr);
    let missing = run(&["diagnose", SAMPLE, "--device", "H10"]);
    assert!(missing.code == 2 && missing.stderr.contains("near: H100"), "{}", missing.stderr);
    fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn what_a_log_says_of_people_is_cut_unless_asked_for() {
    let line = "[2026-01-02 03:04:05] server_args=ServerArgs(model_path='/home/jane/models/m', api_key='sk-1234567890abcdef')\n";
    let fatal = "[2026-01-02 03:05:05 TP0] Scheduler hit an exception: Traceback (most recent call last):\n  File \"/home/jane/src/serve.py\", line 3, in main\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.00 GiB is free.\n";
    let text = format!("{line}{fatal}");
    for format in ["human", "json", "md", "sarif"] {
        let shown = with_stdin(&["diagnose", "--format", format, "--all"], text.as_bytes());
        for secret in ["jane", "sk-1234567890abcdef"] {
            assert!(!shown.stdout.contains(secret), "{format}: {}", shown.stdout);
        }
    }
}

#[test]
fn scenario_files_are_written_run_and_laid_beside_the_log() {
    let folder = folder("emit");
    let place = folder.join("scenarios").display().to_string();
    let device = "RTX PRO 6000 Blackwell";
    let args = [
        "diagnose",
        SAMPLE,
        "--device",
        device,
        "--engine-version",
        "0.5.8",
        "--emit-scenario",
        &place,
        "--format",
        "json",
    ];
    let shown = run(&args);
    assert_eq!(shown.code, 1, "{}", shown.stderr);
    let emitted = parse(&shown.stdout)["emitted"].clone();
    let files = emitted["files"].as_array().expect("files");
    let [crash, _fixed] = files.as_slice() else { panic!("{emitted}") };
    for file in files {
        assert_eq!(file["claimed"], true, "{emitted}");
        let path = file["path"].as_str().expect("a path");
        let held = run(&["run", path]);
        assert_eq!(held.code, 0, "{path}: {}", held.stdout);
    }
    let path = crash["path"].as_str().expect("a path");
    let beside = run(&["diagnose", SAMPLE, "--against", path, "--format", "json"]);
    let against = parse(&beside.stdout)["against"].clone();
    assert_eq!(against["kind"], "scenario");
    assert!(against["rows"].as_array().is_some_and(|rows| rows.len() >= 5), "{against}");
    // What a scenario needs and nobody says: the diagnosis is shown, the flag is named.
    let lacking = run(&["diagnose", "tests/cli/logs/capture.log", "--emit-scenario", &place]);
    assert_eq!(lacking.code, 2);
    assert!(lacking.stderr.contains("--emit-scenario: no file is written"), "{}", lacking.stderr);
    assert!(lacking.stdout.contains("attention-workspace"));
    fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn a_plan_is_laid_beside_the_log() {
    let folder = folder("against");
    let plan = folder.join("plan.json").display().to_string();
    let words: Vec<&str> = COMMAND.split(' ').collect();
    let asked =
        ["plan", "--device", "RTX PRO 6000 Blackwell", "--format", "json", "--output", &plan, "--"];
    assert_eq!(run(&[&asked[..], words.as_slice()].concat()).code, 0);
    let shown = run(&["diagnose", SAMPLE, "--against", &plan]);
    assert_eq!(shown.code, 1, "{}", shown.stderr);
    let wanted = ["figure", "pool_tokens", "free_after_graphs"];
    assert!(wanted.iter().all(|word| shown.stdout.contains(word)), "{}", shown.stdout);
    fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn colours_are_on_when_asked_for() {
    let shown = run(&["diagnose", SAMPLE, "--color", "always"]);
    assert!(shown.stdout.contains("\u{1b}["));
    let mut plain = command(&["diagnose", SAMPLE]);
    plain.env("NO_COLOR", "1");
    assert_eq!(shown_of(plain).stdout, run(&["diagnose", SAMPLE]).stdout);
}

fn shown_of(command: std::process::Command) -> Shown {
    shown(command)
}
