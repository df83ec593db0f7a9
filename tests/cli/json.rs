//! Results for machines: what `schema` prints holds for what the verbs print.

use super::{plans, run, schema_check::check, snapshot};
use serde_json::Value;

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

fn schema(of: &str) -> Value {
    let shown = run(&["schema", of]);
    assert_eq!(shown.code, 0);
    parse(&shown.stdout)
}

fn with(args: &[&'static str], more: &[&'static str]) -> Vec<&'static str> {
    // Before the command: what follows `--` is not ours.
    let [verb, rest @ ..] = args else { panic!("a verb comes first") };
    [&[*verb], more, rest].concat()
}

#[test]
fn every_plan_is_as_its_schema_says() {
    let schema = schema("plan");
    for case in plans::cases() {
        let shown = run(&with(&case.args, &["--format", "json"]));
        assert_eq!(shown.code, case.code, "{}", case.name);
        assert_eq!(check(&schema, &parse(&shown.stdout)), Vec::<String>::new(), "{}", case.name);
    }
}

#[test]
fn ledgers_of_plans_close_to_the_byte() {
    for case in plans::cases() {
        let plan = parse(&run(&with(&case.args, &["--format", "json"])).stdout);
        let rows = plan["ledger"]["rows"].as_array().expect("rows");
        let held: u64 = rows.iter().map(|row| row["held_bytes"].as_u64().expect("bytes")).sum();
        assert_eq!(Some(held), plan["ledger"]["capacity_bytes"].as_u64(), "{}", case.name);
    }
}

/// What a plan says of another fraction is what a plan at that fraction says.
#[test]
fn another_fraction_gives_what_was_said_of_it() {
    // A measured end holds for its own fraction only.
    let measured =
        |args: &[&str]| args.contains(&"--free-after-graphs") || args.contains(&"--from-log");
    let mut compared = 0;
    let cases = plans::cases();
    // No flag can be put into a text that is no shell command.
    let can_change = |case: &&plans::Case| case.name != "kubernetes" && !measured(&case.args);
    for case in cases.iter().filter(can_change) {
        let plan = parse(&run(&with(&case.args, &["--format", "json"])).stdout);
        let flag = plan["window"]["flag"].as_str().expect("a flag");
        for said in [&plan["advice"]["pass"], &plan["advice"]["next_step"]] {
            // A start that ended early, or a cap, leaves nothing to compare.
            if said["pool_tokens"].is_null() || plan["window"]["floor"].is_null() {
                continue;
            }
            let fraction = said["fraction"].to_string();
            let args = with(&case.args, &["--format", "json"]);
            let args: Vec<&str> = args[..1]
                .iter()
                .copied()
                .chain([flag, &fraction])
                .chain(args[1..].iter().copied())
                .collect();
            let other = parse(&run(&args).stdout);
            if other["verdict"] == "refused" || plan["verdict"] == "refused" {
                continue;
            }
            assert_eq!(other["pool"]["tokens"], said["pool_tokens"], "{} {fraction}", case.name);
            let left = other["left_after_graphs"]["mid_bytes"].as_i64().expect("bytes");
            let apart = left - said["left_bytes"].as_i64().expect("bytes");
            // One page or block of rounding, and padding.
            assert!(apart.abs() < 64 << 20, "{} {fraction}: {apart} B apart", case.name);
            compared += 1;
        }
    }
    assert!(compared >= 8, "{compared} compared");
}

#[test]
fn amounts_have_their_unit_last() {
    fn keys(value: &Value, found: &mut Vec<(String, Value)>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| {
                found.push((key.clone(), value.clone()));
                keys(value, found);
            }),
            Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
            _ => {}
        }
    }
    let plan = parse(&run(&with(&plans::founding().args, &["--format", "json"])).stdout);
    let mut found = Vec::new();
    keys(&plan, &mut found);
    let plain =
        |key: &str| key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    // Inputs of derivations are named as the engines name them, and are text.
    let found = found.into_iter().filter(|(_, value)| !value.is_string());
    for (key, value) in found {
        assert!(plain(&key), "{key}");
        if value.as_f64().is_some_and(|n| n.abs() > 1e6) && key != "value" {
            assert!(key.ends_with("_bytes") || key.ends_with("tokens"), "{key}: {value}");
        }
    }
}

#[test]
fn every_format_says_the_same() {
    let founding = plans::founding().args;
    let json = run(&with(&founding, &["--format", "json"])).stdout;
    let jsonl = run(&with(&founding, &["--format", "jsonl"])).stdout;
    assert_eq!(jsonl.lines().count(), 1);
    assert_eq!(parse(&json), parse(&jsonl));
    let csv = run(&with(&founding, &["--format", "csv"])).stdout;
    let held = |line: &str| line.split(',').nth(1).and_then(|n| n.parse::<u64>().ok());
    let rows: Vec<u64> = csv.lines().skip(1).map(|line| held(line).expect("bytes")).collect();
    let (capacity, rows) = rows.split_last().expect("rows");
    assert_eq!(rows.iter().sum::<u64>(), *capacity);
    for format in ["json", "csv", "md"] {
        let shown = run(&with(&founding, &["--format", format])).stdout;
        snapshot(&format!("format-{format}"), &shown);
    }
    let coloured = run(&with(&founding, &["--color", "always"])).stdout;
    assert!(coloured.contains("\u{1b}["));
    let plain = run(&founding).stdout;
    assert!(!plain.contains('\u{1b}'));
}

#[test]
fn runs_and_doctor_are_as_their_schemas_say() {
    let file = "tests/cli/start.yaml";
    let shown = run(&["run", file, "--format", "json"]);
    assert_eq!(check(&schema("run"), &parse(&shown.stdout)), Vec::<String>::new());
    let lines = run(&["run", file, file, "--format", "jsonl"]);
    assert_eq!(lines.stdout.lines().count(), 2);
    for line in lines.stdout.lines() {
        assert_eq!(parse(line), parse(&shown.stdout));
    }
    let refused =
        run(&["run", file, "--format", "json", "--set", "engine.flags.mem-fraction-static=0.7"]);
    assert_eq!(refused.code, 1);
    assert_eq!(check(&schema("run"), &parse(&refused.stdout)), Vec::<String>::new());
    let doctor = run(&["doctor", "--format", "json"]);
    assert_eq!(check(&schema("doctor"), &parse(&doctor.stdout)), Vec::<String>::new());
    assert_eq!(parse(&run(&["schema", "scenario"]).stdout)["type"], "object");
}
