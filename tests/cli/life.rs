//! Whole runs: the verdict, plots, accounts, recordings and what becomes of them, Ctrl-C.

use super::{command, run, schema_check::check, snapshot, transcript, verbs::folder};
use plimsoll_replay::wire::{Closing, Log};
use serde_json::Value;
use std::{fs, io::BufReader, path::Path, process::Command, process::Stdio};

const CRASH: &str = "scenarios/founding/margin-0.93.yaml";
const QUICK: &str = "scenarios/founding/empty-pool-0.4.yaml";
const START: &str = "tests/cli/start.yaml";

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

fn read(path: &str) -> Log {
    Log::read(BufReader::new(fs::File::open(path).expect("a log"))).expect("a log")
}

#[test]
fn a_crash_shows_what_when_the_number_and_the_way_out() {
    let args = ["run", CRASH, "--timeline", "--at", "crash"];
    let shown = run(&args);
    snapshot("run-crash", &transcript(&args, &shown));
    assert_eq!(shown.code, 0, "an expected crash holds");
    assert!(shown.stdout.is_ascii(), "no locale, so no blocks");
    let lines: Vec<&str> = shown.stdout.lines().collect();
    assert!(lines[0].starts_with("holds") && lines[0].contains("out of memory at"));
    assert!(lines[1].contains("short") && lines[1].contains("896.00 MiB"));
    assert!(lines.iter().all(|line| line.chars().count() <= 100));
}

#[test]
fn blocks_are_drawn_where_the_locale_has_them() {
    let with = |name: &str, value: &str, more: &[&str]| {
        let mut command = command(&[&["run", QUICK, "--timeline"][..], more].concat());
        command.env("LANG", "C.UTF-8").env(name, value);
        super::shown(command).stdout
    };
    assert!(with("LC_ALL", "", &[]).contains('█'));
    assert!(with("LC_ALL", "C", &[]).is_ascii());
    assert!(with("NO_COLOR", "1", &[]).is_ascii());
    assert!(with("LC_ALL", "", &["--ascii"]).is_ascii());
}

#[test]
fn a_recording_is_run_again_whole_cut_and_changed() {
    let folder = folder("replay");
    let path = |name: &str| folder.join(name).display().to_string();
    let whole = path("whole.jsonl");
    let overridden = ["--set", "limits.max_steps=300"];
    let args = [&["run", QUICK, "--record", &whole][..], &overridden].concat();
    let first = run(&args);
    assert_eq!((first.code, first.stderr.as_str()), (1, ""), "it stops before its end");
    let text = fs::read_to_string(&whole).expect("a recording");
    let again = run(&["replay", &whole]);
    assert_eq!(again.code, 0, "{}", again.stdout);
    assert!(again.stdout.starts_with("same  founding/empty-pool-0.4"), "{}", again.stdout);
    // Cut in the middle of a line.
    let cut = path("cut.jsonl");
    fs::write(&cut, &text[..text.len() / 2]).expect("written");
    let again = run(&["replay", &cut, "--at", "end", "--timeline"]);
    assert_eq!(again.code, 0, "{}", again.stdout);
    assert!(again.stdout.contains("up to the cut") && again.stdout.contains("(cut off)"));
    assert!(again.stderr.contains("is cut off at byte"), "{}", again.stderr);
    // One admitted token more.
    let changed = path("changed.jsonl");
    let other = text.replacen("\"prefix_tokens\":0", "\"prefix_tokens\":1", 1);
    assert_ne!(other, text);
    fs::write(&changed, other).expect("written");
    let again = run(&["replay", &changed]);
    assert_eq!(again.code, 1);
    assert!(again.stdout.contains("prefix_tokens: 1 against 0"), "{}", again.stdout);
    let schema = parse(&run(&["schema", "replay"]).stdout);
    for file in [&whole, &cut, &changed] {
        let more = ["--format", "json", "--timeline", "--at", "end"];
        let value = parse(&run(&[&["replay", file][..], &more].concat()).stdout);
        assert_eq!(check(&schema, &value), Vec::<String>::new());
    }
    // A log without its scenario.
    let bare = path("bare.jsonl");
    fs::write(&bare, text.replacen("\"scenario_text\"", "\"scenario_words\"", 1)).expect("written");
    let again = run(&["replay", &bare]);
    assert_eq!(again.code, 2);
    assert!(again.stderr.contains("holds no scenario"), "{}", again.stderr);
}

#[test]
fn results_for_machines_hold_to_their_schema() {
    let schema = parse(&run(&["schema", "run"]).stdout);
    for more in [&[][..], &["--timeline", "--at", "end"], &["--at", "3"]] {
        let args = [&["run", QUICK, "--format", "json"][..], more].concat();
        let value = parse(&run(&args).stdout);
        assert_eq!(check(&schema, &value), Vec::<String>::new(), "{more:?}");
        assert_eq!(value["measures"]["finished_requests"], 128);
        let said = value["measures"]["least_free_bytes"].as_u64().expect("bytes");
        if let Some(points) = value["timeline"]["points"].as_array() {
            let free = points.iter().filter_map(|point| point["free_bytes"].as_u64());
            assert!(free.min().expect("points") <= said);
        }
        for rank in value["moment"]["ranks"].as_array().into_iter().flatten() {
            let held = rank["held_bytes"].as_object().expect("accounts");
            let sum: u64 = held.values().filter_map(Value::as_u64).sum();
            assert_eq!(Some(sum), rank["capacity_bytes"].as_u64());
        }
    }
    let csv = run(&["run", QUICK, START, "--format", "csv"]).stdout;
    let columns = |line: &str| line.split(',').count();
    assert!(csv.lines().all(|line| columns(line) == columns(csv.lines().next().unwrap())));
}

#[test]
fn threads_change_nothing() {
    let files = [QUICK, START, "scenarios/founding/empty-pool-0.872-alone.yaml", START];
    let with = |threads: &str| {
        let args = [&["run"][..], &files, &["--format", "jsonl", "--threads", threads]].concat();
        run(&args).stdout
    };
    let one = with("1");
    assert_eq!(one.lines().count(), 4);
    assert_eq!(one, with("2"));
    assert_eq!(one, with("9"));
}

#[test]
fn an_svg_is_written_and_the_same_twice() {
    let folder = folder("svg");
    let path = |name: &str| folder.join(name).display().to_string();
    let (a, b) = (path("a.svg"), path("b.svg"));
    for file in [&a, &b] {
        assert_eq!(run(&["run", QUICK, "--svg", file]).code, 0);
    }
    let text = fs::read_to_string(&a).expect("an SVG");
    assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
    assert_eq!(text, fs::read_to_string(&b).expect("an SVG"));
}

#[test]
fn why_says_what_the_times_rest_on() {
    let shown = run(&["run", QUICK, "--why"]);
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    for name in ["step_weight_bytes", "flops_per_token", "bandwidth_bytes_per_second"] {
        let line = shown.stdout.lines().find(|line| line.trim_start().starts_with(name));
        assert!(line.is_some_and(|line| line.ends_with(']')), "{name}: {}", shown.stdout);
    }
    assert!(!run(&["run", QUICK]).stdout.contains("step_weight_bytes"));
}

#[test]
fn what_is_not_there_is_said() {
    let cases = [
        (vec!["run", START, "--svg", "x.svg"], "nothing was served"),
        (vec!["run", QUICK, "--at", "crash"], "nothing failed in this run"),
        (vec!["run", QUICK, "--at", "999999"], "there is no step 999999"),
        (vec!["run", QUICK, "--at", "noon"], "`noon` is no moment"),
        (vec!["run", QUICK, "--observe", "device"], "--observe device"),
        (vec!["run", QUICK, "--record", "tests/no-such-folder/x"], "cannot write"),
        (vec!["replay", "tests/cli/start.yaml"], "is no `plimsoll.log/1` log"),
    ];
    for (args, part) in cases {
        let shown = run(&args);
        assert_eq!(shown.code, 2, "{args:?}: {}", shown.stdout);
        assert!(shown.stderr.contains(part), "{args:?}: {}", shown.stderr);
    }
}

/// A run that takes long enough to be interrupted, whatever the machine.
fn long_scenario(folder: &Path) -> String {
    let text = fs::read_to_string(QUICK).expect("the scenario");
    let text = text.replace("requests: 128", "requests: 4000000");
    let (before, _) = text.split_once("expect:").expect("claims");
    let path = folder.join("long.yaml");
    fs::write(&path, before).expect("written");
    path.display().to_string()
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_leaves_a_recording_that_can_be_run_again() {
    let folder = folder("interrupt");
    let recording = folder.join("long.jsonl").display().to_string();
    let scenario = long_scenario(&folder);
    let mut command = command(&["run", &scenario, "--record", &recording]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    // The server serves when passes are in the recording.
    let serves = || fs::read_to_string(&recording).is_ok_and(|text| text.contains("decode_run"));
    while !serves() {
        assert_eq!(child.try_wait().expect("a child"), None, "it ended by itself");
        std::thread::yield_now();
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().expect("kill").success());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "interrupted\n");
    let log = read(&recording);
    assert_eq!(log.footer.as_ref().map(|footer| footer.closing), Some(Closing::Interrupted));
    assert!(!log.complete && log.cut_at.is_none());
    assert_eq!(plimsoll_replay::checker::check(&log), []);
    // Run again as far as the recording goes, and not to an end that is hours away.
    let again = run(&["replay", &recording]);
    assert_eq!(again.code, 0, "{}", again.stdout);
    assert!(again.stdout.contains("up to the interruption"), "{}", again.stdout);
}
