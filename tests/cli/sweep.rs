//! `sweep`: its screens, its files, its shards, and what it says to a slip of the pen.

use super::{command, run, schema_check::check, shown, snapshot, transcript, verbs::folder};
use serde_json::Value;
use std::fs;

const SMALL: &str = "sweep/tests/small.yaml";
const TAIL: &str = "scenarios/shared-host/neighbour-with-a-long-tail.yaml";

/// A sweep with values that refuse, live, die, and are none.
const MIXED: [&str; 6] =
    ["sweep", SMALL, "--fraction", "0.30,0.86..0.94:0.02,2", "--seeds", "1..3"];

const USUAL: &str = "engine.flags.mem-fraction-static=0.8";
const WORDS: &str = "workload[0].arrivals=poisson,constant";

fn with<'a>(args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [args, more].concat()
}

#[test]
fn a_sweep_answers_on_one_screen() {
    let grid = ["sweep", SMALL, "--fraction", "0.84,0.90", "--chunk", "2048,8192"];
    for (name, args) in [
        ("fraction", MIXED.to_vec()),
        ("pareto", with(&grid, &["--pareto", "--ascii"])),
        ("objectives", with(&grid, &["--objectives", "margin,requests,-steps", "--ascii"])),
        ("neighbours", vec!["sweep", TAIL, "--fraction", "0.74,0.80", "--neighbours", "p99"]),
        ("no-number", with(&["sweep", SMALL, "--set"], &[USUAL, "--over", WORDS])),
        ("no-start", with(&["sweep", SMALL, "--over", WORDS], &[])),
        ("md", with(&MIXED, &["--format", "md"])),
    ] {
        let shown = run(&args);
        assert_eq!(shown.code, 0, "{}", shown.stderr);
        for line in shown.stdout.lines().filter(|_| name != "md") {
            assert!(line.chars().count() <= 100, "{name}: {line}");
        }
        snapshot(&format!("sweep-{name}"), &transcript(&args, &shown));
    }
}

#[test]
fn machines_get_what_the_schemas_say() {
    let schema =
        |of: &str| -> Value { serde_json::from_str(&run(&["schema", of]).stdout).expect("JSON") };
    let (whole, line) = (schema("sweep"), schema("sweep-rows"));
    for more in [&["--pareto"][..], &[], &["--neighbours", "p50"]] {
        let shown = run(&with(&with(&MIXED, &["--format", "json"]), more));
        let value: Value = serde_json::from_str(&shown.stdout).expect("JSON");
        assert_eq!(check(&whole, &value), Vec::<String>::new());
        assert_eq!(value["answers"][0]["highest"], 0.9);
        assert_eq!(value["answers"][0]["one_step_below"], 0.88);
        assert_eq!(value["rows"].as_array().map(Vec::len), Some(21));
    }
    let jsonl = run(&with(&MIXED, &["--format", "jsonl"])).stdout;
    assert_eq!(jsonl.lines().count(), 22);
    for text in jsonl.lines() {
        let value: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(check(&line, &value), Vec::<String>::new());
    }
    let csv = run(&with(&MIXED, &["--format", "csv"])).stdout;
    let mut reader = csv::Reader::from_reader(csv.as_bytes());
    let header: Vec<String> =
        reader.headers().expect("a header").iter().map(str::to_owned).collect();
    for (record, text) in reader.records().zip(jsonl.lines().skip(1)) {
        let record = record.expect("a record");
        let row: Value = serde_json::from_str(text).expect("JSON");
        for (name, cell) in header.iter().zip(record.iter()) {
            let same = match &row[name] {
                Value::Null => cell.is_empty(),
                Value::String(text) => text == cell,
                other => format!("{other}") == cell,
            };
            assert!(same, "{name}: {cell}, not {}", row[name]);
        }
    }
}

#[test]
fn shards_merge_to_the_file_of_the_whole() {
    let folder = folder("sweep-shards");
    let path = |name: &str| folder.join(name).display().to_string();
    let (rows, whole, merged) = (path("rows/"), path("whole.jsonl"), path("merged.jsonl"));
    let first = run(&with(&MIXED, &["--out", &whole]));
    let mut files = Vec::new();
    for part in ["1/3", "2/3", "3/3"] {
        let shown = run(&with(&MIXED, &["--out", &rows, "--shard", part, "--threads", "1"]));
        assert_eq!(shown.code, 0, "{}", shown.stderr);
        files.push(format!("{rows}sweep-{}-of-3.jsonl", &part[..1]));
    }
    let files: Vec<&str> = files.iter().rev().map(String::as_str).collect();
    let (parquet, svg) = (path("rows.parquet"), path("sweep.svg"));
    let more = ["--out", &merged, "--parquet", &parquet, "--svg", &svg];
    let shown = run(&with(&with(&["sweep", "merge"], &files), &more));
    assert_eq!((shown.code, &shown.stdout), (0, &first.stdout), "{}", shown.stderr);
    assert_eq!(fs::read(&merged).expect("rows"), fs::read(&whole).expect("rows"));
    assert!(fs::read(&parquet).expect("a file").starts_with(b"PAR1"));
    let svg = fs::read_to_string(&svg).expect("a file");
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
    // Without one of them, it says which points are missing.
    let shown = run(&with(&["sweep", "merge"], &files[1..]));
    assert_eq!(shown.code, 2);
    assert!(shown.stderr.contains("7 of 21 points are missing: 2, 5, 8"), "{}", shown.stderr);
    let shown = run(&with(&with(&["sweep", "merge"], &files[1..]), &["--partial"]));
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(shown.stderr.contains("7 points are missing"), "{}", shown.stderr);
    // A file that is whole is not run again; one that is cut goes on.
    let text = fs::read(&whole).expect("rows");
    fs::write(&whole, &text[..text.len() / 2]).expect("written");
    let shown = run(&with(&MIXED, &["--out", &whole]));
    assert!(shown.stderr.contains("of 21 points are there already"), "{}", shown.stderr);
    assert_eq!((fs::read(&whole).expect("rows"), &shown.stdout), (text, &first.stdout));
}

#[test]
fn a_slip_of_the_pen_ends_with_2() {
    let folder = folder("sweep-errors");
    let out = folder.join("rows.jsonl").display().to_string();
    assert_eq!(run(&["sweep", SMALL, "--fraction", "0.8", "--out", &out]).code, 0);
    for (args, part) in [
        (
            vec!["--over", "engine.flags.mem-fraction-statc=1,2"],
            "did you mean `--mem-fraction-static`",
        ),
        (vec!["--over", "workload[0].requets=1,2"], "did you mean `requests`"),
        (vec!["--over", "nothing"], "PATH=RANGE"),
        (vec!["--fraction", "0.9..0.8:0.1"], "below its begin"),
        (vec!["--fraction", "0.8,0.9", "--out", &out], "the values of fraction"),
        (vec!["--shard", "4/3"], "i/n"),
        (vec!["--seeds", "9..1"], "ends below"),
        (vec!["--survive", "101%"], "up to 100 %"),
        (vec!["--objectives", "ttft_p98"], "did you mean"),
        (vec!["--neighbours", "p100"], "percentile"),
        (vec!["--over", "seed=1,2"], "--seeds"),
        (vec!["--fraction", "2,3"], "--mem-fraction-static"),
    ] {
        let args = with(&["sweep", SMALL], &args);
        let shown = run(&args);
        assert_eq!(shown.code, 2, "{args:?}: {}", shown.stdout);
        assert!(shown.stderr.contains(part), "{args:?}: {}", shown.stderr);
    }
    assert_eq!(run(&["sweep", "--fraction", "0.8", "merge", &out]).code, 2);
    assert_eq!(run(&["sweep", "--format=csv", "merge", &out]).code, 0);
    assert_eq!(run(&["sweep"]).code, 2);
    assert_eq!(run(&["sweep", "merge"]).code, 2);
    assert_eq!(run(&["sweep", "merge", SMALL]).code, 2);
}

#[test]
fn many_seeds_of_a_run_name_those_that_fail() {
    let args = ["run", SMALL, "--set", "engine.flags.mem-fraction-static=0.914", "--seeds", "6"];
    let some = run(&args);
    snapshot("run-seeds", &transcript(&args, &some));
    let held = run(&["run", TAIL, "--seeds", "2..3"]);
    assert_eq!(held.code, 0, "{}", held.stdout);
    assert!(held.stdout.starts_with("holds"), "{}", held.stdout);
    // One seed is that row.
    let one = run(&["run", TAIL, "--seed", "3", "--format", "json"]).stdout;
    let one: Value = serde_json::from_str(&one).expect("JSON");
    let rows = run(&["run", TAIL, "--seeds", "3..3", "--format", "jsonl"]).stdout;
    let row: Value = serde_json::from_str(rows.lines().nth(1).expect("a row")).expect("JSON");
    assert_eq!(row["decisions_digest"], one["digests"]["decisions"]);
    assert_eq!(run(&["run", TAIL, "--seeds", "2", "--backend", "host"]).code, 2);
}

/// Ctrl-C closes the file, and the same command goes on.
#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_is_done() {
    use std::{process::Stdio, thread::sleep, time::Duration};
    let folder = folder("sweep-interrupted");
    let out = folder.join("rows.jsonl").display().to_string();
    let args = ["sweep", TAIL, "--fraction", "0.80,0.84", "--seeds", "150", "--out", &out];
    let args = with(&args, &["--threads", "2"]);
    let mut child = command(&args);
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let lines = || fs::read_to_string(&out).unwrap_or_default().lines().count();
    while lines() < 5 {
        sleep(Duration::from_millis(2));
    }
    let pid = child.id().to_string();
    std::process::Command::new("kill").args(["-INT", &pid]).status().expect("kill runs");
    let ended = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(130), "{stderr}");
    assert!(
        stderr.contains("interrupted") && stderr.contains("of 300 points are done"),
        "{stderr}"
    );
    let text = fs::read_to_string(&out).expect("rows");
    assert!(text.ends_with('\n') && lines() < 301);
    let whole = shown(command(&args));
    assert_eq!(whole.code, 0, "{}", whole.stderr);
    assert_eq!(lines(), 301);
}
