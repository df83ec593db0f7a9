//! Scenario files, with overrides.

use crate::{PART, in_time, line_count, parts, text};
use plimsoll_replay::{
    problem::{Place, Problems},
    run::run_scenario,
    scenario::{Override, Part, Scenario},
    wire::Log,
    yaml,
};
use std::path::Path;

/// A scenario file; lines behind a line `%%` are overrides. Every problem has its place, and the
/// excerpts render. A tree reads back from its own text. What is read is run twice with one result, and
/// its decision log reads back with its digests.
pub fn scenario(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let (file, set) = parts(text);
    let overrides: Vec<Override> = set.lines().filter_map(|line| line.parse().ok()).collect();
    in_time(|| tree(file));
    match in_time(|| Scenario::parse("fuzz.yaml", file, &overrides)) {
        Ok(scenario) => {
            let again = Scenario::parse("fuzz.yaml", file, &overrides);
            assert_eq!(again.as_ref(), Ok(&scenario), "reads otherwise a second time");
            if !names_a_file(text) {
                in_time(|| run(&scenario));
            }
        }
        Err(problems) => assert_problems(&problems, file),
    }
}

/// Scenarios that would read this machine's files are not run.
fn names_a_file(text: &str) -> bool {
    ["config", "gguf", "..", "path: /", "model: /", "-path /", "dataset-path", "file"]
        .iter()
        .any(|word| text.contains(word))
}

fn tree(file: &str) {
    let Ok(parsed) = yaml::parse(file) else { return };
    // JSON is YAML, except where YAML has no such character, or where keys are too long for it.
    let json = parsed.root.to_string();
    let plain = |c: char| c == '\t' || (' '..='\u{7e}').contains(&c);
    let numbers = json.contains(['e', 'E']) || json.len() > 1000;
    if !json.chars().all(plain) || numbers {
        return;
    }
    match yaml::parse(&json) {
        Ok(again) => assert_eq!(again.root, parsed.root, "written as {json}"),
        Err(problem) => assert!(problem.message.is_empty(), "{json}: {}", problem.message),
    }
}

fn assert_problems(problems: &Problems, file: &str) {
    assert!(!problems.list.is_empty(), "refused without a problem");
    for problem in &problems.list {
        assert!(!problem.message.is_empty(), "a problem without a message: {problem:?}");
        if let Place::Text(at) = problem.place {
            let lines = line_count(file);
            assert!((1..=lines).contains(&at.line), "line {} of {lines}: {problem:?}", at.line);
            let width = file.split('\n').nth(at.line - 1).map_or(0, |l| l.chars().count());
            assert!((1..=width + 1).contains(&at.column), "{at:?} in {width}: {problem:?}");
        }
    }
    let shown = problems.render();
    assert!(shown.contains("error[PLM1"), "no code is shown: {shown}");
    let listed = problems.to_json()["problems"].as_array().map(Vec::len);
    assert_eq!(listed, Some(problems.list.len()));
}

/// Requests and steps that are enough to find a mistake; a scenario may ask for millions.
const MOST_REQUESTS: u64 = 500;
const MOST_STEPS: u64 = 500;

fn run(scenario: &Scenario) {
    let file = Path::new(PART);
    let mut scenario = scenario.clone();
    scenario.limits.max_steps = scenario.limits.max_steps.min(MOST_STEPS);
    for part in scenario.workload.iter_mut().flat_map(|workload| &mut workload.parts) {
        if let Part::Group(group) = part {
            group.requests = group.requests.min(MOST_REQUESTS);
        }
    }
    let run = match run_scenario(scenario.clone(), file) {
        Ok(run) => run,
        Err(error) => return assert!(!error.to_string().is_empty(), "an error without words"),
    };
    let (bytes, digests) = match run.write_log(Vec::new()) {
        Ok(written) => written,
        Err(error) => return assert!(error.to_string().is_empty(), "the log: {error}"),
    };
    match Log::read(bytes.as_slice()) {
        Ok(log) => {
            assert!(log.complete, "the log is not complete");
            assert_eq!(log.digests_agree(), Some(true), "the log's digests");
        }
        Err(error) => assert!(error.to_string().is_empty(), "reading the log: {error}"),
    }
    let again = run_scenario(scenario.clone(), file).map(|run| run.digests).ok();
    assert_eq!(again, Some(digests), "another result the second time");
}
