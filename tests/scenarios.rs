//! Every scenario of the project holds, says why it exists and where its numbers are from, and claims
//! something that can fail. Its report and its whole decision log are kept as a snapshot.
//! `PLIMSOLL_WRITE_DOCS=1` writes the index in docs/scenarios.md anew.

use crate::runs::{Run, log, runs, scenarios};
use plimsoll_core::units::Nanos;
use plimsoll_replay::{
    outcome::{Figure, Verdict, evaluate},
    run::ScenarioRun,
    scenario::{
        FIGURES,
        expect::{Ending, Expect, Test},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn folder_of_scenarios() -> PathBuf {
    root().join("scenarios")
}

#[test]
fn every_scenario_holds() {
    let begin = std::time::Instant::now();
    let runs = runs();
    let mut broken = String::new();
    for (_, run) in runs {
        for claim in run.claims.iter().filter(|claim| !claim.holds()) {
            let _ = writeln!(
                broken,
                "{}: {} expected {}, got {}",
                run.scenario.name, claim.path, claim.expected, claim.got
            );
        }
        assert!(run.passed() || !broken.is_empty(), "{} fails without a claim", run.scenario.name);
    }
    assert!(broken.is_empty(), "\n{broken}");
    assert!(runs.len() >= 32, "{} scenarios", runs.len());
    let claims: usize = runs.iter().map(|(_, run)| run.claims.len()).sum();
    println!("{} scenarios, {claims} claims, {:?}", runs.len(), begin.elapsed());
}

#[test]
fn every_file_says_why_and_from_where_and_claims_a_figure() {
    for (file, run) in runs() {
        let scenario = &run.scenario;
        let name = &scenario.name;
        assert_eq!(
            *file,
            folder_of_scenarios().join(format!("{name}.yaml")),
            "name and path differ"
        );
        assert!(scenario.why.trim().len() > 40, "{name}: `why` says nothing");
        assert!(scenario.source.is_some(), "{name}: `source` is missing");
        let expect = &scenario.expect;
        assert!(expect.outcome.is_some(), "{name}: no outcome is claimed");
        let refused = expect.outcome == Some(Ending::Refused);
        assert_eq!(expect.refusal.is_some(), refused, "{name}: a refusal has a code");
        // A start that ends before anything is computed has only its code.
        let none_to_claim = refused && run.outcome.figures().next().is_none();
        assert!(!expect.figures.is_empty() || none_to_claim, "{name}: no figure is claimed");
    }
}

#[test]
fn every_claim_can_fail() {
    for (_, run) in runs() {
        let (name, expect) = (&run.scenario.name, &run.scenario.expect);
        let flips = expect.figures.len()
            + usize::from(expect.outcome.is_some())
            + usize::from(expect.refusal.is_some());
        for at in 0..flips {
            let (flipped, path) = flip(expect, at);
            let claims = evaluate(&flipped, &run.outcome);
            let fails: Vec<_> = claims.iter().filter(|claim| !claim.holds()).collect();
            assert_eq!(fails.len(), 1, "{name}: another value of {path} fails it alone");
            assert_eq!(fails[0].path.to_string(), format!("expect.{path}"), "{name}");
            assert_eq!(fails[0].verdict, Verdict::Fails, "{name}: {path}");
        }
    }
}

/// The claims with the one at position `at` changed to something that this run did not produce, and its
/// name.
fn flip(expect: &Expect, at: usize) -> (Expect, String) {
    let mut flipped = expect.clone();
    let words = usize::from(expect.outcome.is_some());
    if at < words {
        let other = match expect.outcome {
            Some(Ending::Started) => Ending::Refused,
            _ => Ending::Started,
        };
        flipped.outcome = Some(other);
        return (flipped, "outcome".to_owned());
    }
    let at = at - words;
    if let Some(code) = &expect.refusal {
        if at == 0 {
            flipped.refusal = Some(format!("{code}_not"));
            return (flipped, "refusal".to_owned());
        }
        return flip_figure(flipped, at - 1);
    }
    flip_figure(flipped, at)
}

fn flip_figure(mut expect: Expect, at: usize) -> (Expect, String) {
    let (spec, test) = &mut expect.figures[at];
    *test = match test {
        Test::Is(value) => Test::Is(moved(value, 0.0)),
        Test::AnyOf(values) => {
            let ends = values.iter().map(|v| v.as_f64());
            let width = ends.clone().fold(f64::MIN, f64::max) - ends.fold(f64::MAX, f64::min);
            Test::AnyOf(values.iter().map(|v| moved(v, width)).collect())
        }
        Test::Contains(part) => Test::Contains(format!("{part}, and not this")),
        Test::Within { value, within } => {
            Test::Within { value: moved(value, 2.0 * within.as_f64()), within: within.clone() }
        }
        Test::Between { at_most: Some(high), .. } => {
            Test::Between { at_least: Some(moved(high, 0.0)), at_most: None }
        }
        Test::Between { at_least: Some(low), .. } => {
            Test::Between { at_least: None, at_most: Some(below(low)) }
        }
        Test::Between { at_least: None, at_most: None } => panic!("a claim without ends"),
    };
    let name = spec.name.to_owned();
    (expect, name)
}

/// The figure moved up by `by` and the least step more.
fn moved(figure: &Figure, by: f64) -> Figure {
    match figure {
        Figure::Bytes(v) => Figure::Bytes(v + by as u64 + 1),
        Figure::Count(v) => Figure::Count(v + by as i64 + 1),
        Figure::Number(v) if by > 0.0 => Figure::Number((v + by) * (1.0 + 1e-9)),
        Figure::Number(v) => Figure::Number(v.next_up()),
        Figure::Duration(v) => Figure::Duration(Nanos(v.0 + by as u64 + 1)),
        Figure::Text(v) => Figure::Text(format!("{v}, and not this")),
    }
}

fn below(figure: &Figure) -> Figure {
    match figure {
        Figure::Bytes(v) => Figure::Bytes(v - 1),
        Figure::Count(v) => Figure::Count(v - 1),
        Figure::Number(v) => Figure::Number(v.next_down()),
        Figure::Duration(v) => Figure::Duration(Nanos(v.0 - 1)),
        Figure::Text(_) => panic!("a text has no order that is claimed"),
    }
}

/// Whether the figure is of a run under load: what a model of time and passes gives, not of a log's
/// rounding.
fn of_the_run(name: &str) -> bool {
    let at = |name| FIGURES.iter().position(|spec| spec.name == name);
    at(name) >= at("died_in")
}

/// Tolerances stand for the rounding of printed inputs: never more than 1.5 % of the value.
#[test]
fn no_tolerance_is_wide() {
    for (_, scenario) in scenarios() {
        for (spec, test) in &scenario.expect.figures {
            if of_the_run(spec.name) {
                continue;
            }
            let (width, value) = match test {
                Test::Is(_) | Test::AnyOf(_) | Test::Contains(_) => continue,
                Test::Within { value, within } => (within.as_f64(), value.as_f64()),
                Test::Between { at_least: Some(low), at_most: Some(high) } => {
                    (high.as_f64() - low.as_f64(), high.as_f64())
                }
                // One end is a bound, and no tolerance.
                Test::Between { .. } => continue,
            };
            let share = width / value;
            assert!(share <= 0.015, "{}: {} within {share:.4}", scenario.name, spec.name);
        }
    }
}

/// Reports of all scenarios as the command prints them, by name.
fn reports(runs: &[Run]) -> BTreeMap<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(["run", "--color", "never"]).args(runs.iter().map(|(file, _)| file));
    let output = command.current_dir(root()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    let mut starts: Vec<(usize, String)> = Vec::new();
    for (_, run) in runs {
        let name = &run.scenario.name;
        let head = format!("holds  {name}  ");
        let at = text
            .match_indices(&head)
            .find(|(at, _)| text[..*at].is_empty() || text[..*at].ends_with('\n'));
        starts.push((at.unwrap_or_else(|| panic!("no report of {name}")).0, name.clone()));
    }
    let end = text.rfind(&format!("{0} of {0} scenarios hold", runs.len())).unwrap();
    let ends = starts.iter().skip(1).map(|(at, _)| *at).chain([end]);
    let cut = starts.iter().zip(ends);
    cut.map(|((at, name), end)| (name.clone(), text[*at..end].to_owned())).collect()
}

#[test]
fn reports_and_logs_are_as_recorded() {
    let runs = runs();
    let reports = reports(runs);
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(root().join("tests/snapshots"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    let mut names = BTreeSet::new();
    settings.bind(|| {
        for (_, run) in runs {
            let name = run.scenario.name.replace('/', "--");
            let text = format!("{}\n{}", reports[&run.scenario.name], log(run));
            insta::assert_snapshot!(name.as_str(), text);
            names.insert(format!("{name}.snap"));
        }
    });
    let kept = fs::read_dir(root().join("tests/snapshots")).unwrap();
    let themes: BTreeSet<String> = runs.iter().map(|(_, run)| theme(&run.scenario.name)).collect();
    for entry in kept.flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        let ours = file.split_once("--").is_some_and(|(first, _)| themes.contains(first));
        let recorded = names.contains(&file) || !file.ends_with(".snap");
        assert!(recorded || !ours, "tests/snapshots/{file} belongs to no scenario");
    }
}

fn theme(name: &str) -> String {
    name.split_once('/').unwrap_or_else(|| panic!("{name} has no theme")).0.to_owned()
}

/// What a theme asks; the order is that of the page.
const THEMES: &[(&str, &str)] = &[
    ("founding", "The two cases that the project began with, whole: start, load, and end."),
    ("dedicated-gpu", "One server that has its devices for itself: how its memory splits."),
    (
        "shared-host",
        "Other programs on the same memory: before, while and after the pool is sized.",
    ),
    ("unknown-capacity", "No reading of the capacity works: what each release then does."),
    ("hierarchical-cache", "Host pools behind the device pool: what the host has to hold."),
    (
        "hybrid-models",
        "Sliding windows and states beside full attention: several pools, one budget.",
    ),
    ("refused", "Starts that the engine ends by itself, and what it asks for."),
    ("vllm", "vLLM's budget, V0 and V1, term by term."),
    ("versions", "The same launch under another release or role."),
    (
        "crash-prefill",
        "A prefill pass needs more than what is left outside the pool: the pass decides, not the pool.",
    ),
    (
        "long-context",
        "What one long prompt asks for: room in the pool, and memory that grows with its prefix.",
    ),
    (
        "sampling",
        "Logits, their float32 copies, sorts and logprobs: rows times vocabulary, outside the pool.",
    ),
    ("fragmentation", "Memory that is there and cannot be used, against memory that is not there."),
    ("retraction", "Pools that fill: who waits, and who is taken back."),
    (
        "draft-copies",
        "A draft model beside its target: weights and pool that the fraction does not see.",
    ),
    ("capture", "Starts that die between the pool and the first request."),
    ("faults", "Remains of a dead server, leaks, and processes that grow."),
    ("unified-memory", "One memory for the device and everything else."),
    ("healthy", "Servers that keep what they need, under load."),
    (
        "workloads",
        "What reaches a server: recorded workloads, benchmark commands, conversations, agents, bursts.",
    ),
];

fn index(runs: &[Run]) -> String {
    let mut by_theme: BTreeMap<String, Vec<&ScenarioRun>> = BTreeMap::new();
    for (_, run) in runs {
        by_theme.entry(theme(&run.scenario.name)).or_default().push(run);
    }
    let mut out = String::from(
        "# Scenarios\n\n\
         Every file below is one question with an answer that is claimed by hand; `plimsoll run scenarios` \
         checks them all.\nThis page is written from the files: \
         `PLIMSOLL_WRITE_DOCS=1 cargo test --test all scenarios`.\nThe format: \
         [scenario-format.md](scenario-format.md). *Calibrated* marks a file with an input that was solved \
         or fitted\nfrom printed figures; its `source` says from which.\n",
    );
    for (name, what) in THEMES {
        let runs = by_theme.remove(*name).unwrap_or_else(|| panic!("no scenario of {name}"));
        let _ = write!(
            out,
            "\n## {name}\n\n{what}\n\n| scenario | ends | tokens | why |\n|---|---|---|---|\n"
        );
        for run in runs {
            out.push_str(&row(run));
        }
    }
    assert!(by_theme.is_empty(), "themes without a place in the index: {:?}", by_theme.keys());
    out
}

fn row(run: &ScenarioRun) -> String {
    let scenario = &run.scenario;
    let file = scenario.name.split_once('/').map_or("", |(_, file)| file);
    let ends = match (&run.outcome.ending, &run.outcome.refusal) {
        (_, Some(code)) => format!("`{code}`"),
        (ending, None) => ending.as_str().replace('_', " "),
    };
    let names = ["max_total_num_tokens", "kv_cache_tokens"];
    let tokens = names.iter().find_map(|name| run.outcome.get(name)).map(|figure| match figure {
        Figure::Count(n) => plimsoll_core::units::Tokens(n.unsigned_abs()).to_string(),
        other => other.to_string(),
    });
    let tokens = tokens.unwrap_or_default();
    let tokens = tokens.strip_suffix(" tokens").unwrap_or(&tokens);
    let why = scenario.why.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    let calibrated = scenario
        .machine
        .readings
        .given()
        .iter()
        .any(|(_, reading)| reading.tag == plimsoll_core::figure::Tag::Calibrated);
    let mark = if calibrated { " *Calibrated.*" } else { "" };
    format!("| [{file}](../scenarios/{}.yaml) | {ends} | {tokens} | {why}{mark} |\n", scenario.name)
}

#[test]
fn the_index_is_that_of_the_files() {
    let path = root().join("docs/scenarios.md");
    let expected = index(runs());
    if std::env::var_os("PLIMSOLL_WRITE_DOCS").is_some() {
        fs::write(&path, &expected).unwrap();
        return;
    }
    let page = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(page, expected, "run this test with PLIMSOLL_WRITE_DOCS=1 to write the page anew");
}
