//! `--report` and `--trace`: what they write, and what they do not write over.

use super::{root, run};
use std::{fs, path::PathBuf};

const FOUNDING: &str = "scenarios/founding/margin-0.93.yaml";

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn a_run_and_its_recording_look_the_same() {
    let folder = folder("show-both");
    let file = |name: &str| folder.join(name).display().to_string();
    let (log, page, trace) = (file("log.jsonl"), file("run.html"), file("run.json"));
    let first = run(&["run", FOUNDING, "--record", &log, "--report", &page, "--trace", &trace]);
    assert_eq!((first.code, first.stderr.as_str()), (0, ""));
    let second = (file("again.html"), file("again.json"));
    let again = run(&["replay", &log, "--report", &second.0, "--trace", &second.1]);
    assert_eq!((again.code, again.stderr.as_str()), (0, ""));
    let read = |path: &str| fs::read_to_string(path).expect(path);
    let (page, again) = (read(&page), read(&second.0));
    // The recording's digest has the scenario file in it, which `full` covers.
    let data = |page: &str| page.split_once("id=\"data\">").map(|(_, rest)| rest.to_owned());
    assert_eq!(data(&page), data(&again));
    assert_eq!(read(&trace), read(&second.1));
}

#[test]
fn without_a_log_in_memory_too() {
    let folder = folder("show-unlogged");
    let file = |name: &str| folder.join(name).display().to_string();
    let (logged, unlogged) = (file("a.html"), file("b.html"));
    assert_eq!(run(&["run", FOUNDING, "--report", &logged]).code, 0);
    assert_eq!(run(&["run", FOUNDING, "--report", &unlogged, "--unlogged"]).code, 0);
    let read = |path: &str| fs::read_to_string(path).expect(path);
    assert_eq!(read(&logged), read(&unlogged));
}

#[test]
fn nothing_else_is_written_over() {
    let folder = folder("show-guard");
    let file = |name: &str| folder.join(name).display().to_string();
    let requests = file("requests.csv");
    fs::write(&requests, "arrived_at,num_prefill_tokens,num_decode_tokens\n").expect("written");
    let scenario = file("mine.yaml");
    fs::copy(root().join(FOUNDING), &scenario).expect("copied");
    for (flag, path, way) in [
        ("--trace", &requests, "to send its requests, pass --workload"),
        ("--report", &requests, "name another file, or remove it"),
        ("--trace", &scenario, "is there and is not a trace"),
        ("--report", &scenario, "is there and is not a page"),
    ] {
        let before = fs::read(path).expect("there");
        let shown = run(&["run", &scenario, flag, path]);
        assert_eq!((shown.code, shown.stdout.as_str()), (2, ""), "{flag}");
        assert!(shown.stderr.contains(way), "{}", shown.stderr);
        assert_eq!(fs::read(path).expect("there"), before, "{flag} wrote over {path}");
    }
    // Its own it does, and what is empty.
    let (page, trace) = (file("run.html"), file("run.json"));
    fs::write(&page, "").expect("written");
    for _ in 0..2 {
        let shown = run(&["run", &scenario, "--report", &page, "--trace", &trace]);
        assert_eq!(shown.code, 0, "{}", shown.stderr);
    }
    let same = run(&["run", &scenario, "--report", &page, "--trace", &page]);
    assert!(same.code == 2 && same.stderr.contains("the same file"), "{}", same.stderr);
    let crossed = run(&["run", &scenario, "--trace", &page]);
    assert_eq!(crossed.code, 2, "a page is no trace");
    let two = run(&["run", &scenario, FOUNDING, "--report", &page]);
    assert!(two.code == 2 && two.stderr.contains("--report takes one scenario"), "{}", two.stderr);
}
