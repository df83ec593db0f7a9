//! No text breaks the reader of scenarios, and every complaint has a place.

use crate::scenario::KIMI;
use plimsoll_core::{engine::serving::Clients as _, sched::Finish, units::Nanos};
use plimsoll_replay::{
    path::KeyPath,
    problem::{Place, Problems},
    scenario::{Override, Scenario},
};
use proptest::prelude::*;

fn check(text: &str, overrides: &[Override]) -> Result<(), TestCaseError> {
    let problems = match Scenario::parse("fuzz.yaml", text, overrides) {
        Ok(scenario) => return check_serving(&scenario),
        Err(problems) => problems,
    };
    prop_assert!(!problems.list.is_empty());
    let lines = text.lines().count().max(1);
    for problem in &problems.list {
        match &problem.place {
            // The parser may see the end of the text one line below the last.
            Place::Text(at) => prop_assert!(at.line >= 1 && at.line <= lines + 1, "{problem:?}"),
            Place::Override(_) => prop_assert!(!overrides.is_empty()),
            Place::File => prop_assert!(false, "{problem:?}"),
        }
        prop_assert!(!problem.message.is_empty());
    }
    let _ = problems.render();
    let _ = problems.to_json();
    Ok(())
}

/// What is read can be run: its changes are in order, and so are its requests, whose tokens have ids.
fn check_serving(scenario: &Scenario) -> Result<(), TestCaseError> {
    let changes = scenario.timed_changes(scenario.machine.ranks.unwrap_or(4));
    prop_assert!(changes.is_sorted_by_key(|change| change.when));
    let Some(mut clients) = scenario.clients(&[]) else { return Ok(()) };
    let mut last = Nanos(0);
    for number in 0..50 {
        let Some(at) = clients.next_at() else { break };
        let arrival = clients.take(at);
        prop_assert!(arrival.as_ref().is_some_and(|a| a.at == at && a.at >= last), "{arrival:?}");
        last = at;
        if let Some(arrival) = arrival {
            prop_assert_eq!(arrival.request.id.0, number);
            prop_assert!(!arrival.request.prompt.is_empty() && arrival.request.output_len > 0);
            clients.finished(arrival.request.id, Finish::Stop, 1, at);
        }
    }
    Ok(())
}

/// A text with pieces replaced.
fn edited(text: &str, edits: Vec<(usize, usize, String)>) -> String {
    let mut text = text.to_owned();
    for (at, cut, new) in edits {
        let at = at.min(text.len());
        let end = (at + cut).min(text.len());
        if text.is_char_boundary(at) && text.is_char_boundary(end) {
            text.replace_range(at..end, &new);
        }
    }
    text
}

/// A scenario with every part of a running server.
const SERVING: &str = include_str!("../../fuzz/seeds/scenario/serving.yaml");

/// Pieces that YAML and the format are made of.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("\n"),
        Just("  "),
        Just("\n    "),
        Just(": "),
        Just("- "),
        Just("{"),
        Just("}"),
        Just("["),
        Just("]"),
        Just(", "),
        Just("&a "),
        Just("*a"),
        Just("\""),
        Just("'"),
        Just("|\n"),
        Just(">\n"),
        Just("# "),
        Just("!x "),
        Just("? "),
        Just("---\n"),
        Just("\t"),
        Just("<<"),
        Just("é"),
        Just("~"),
        Just("machine"),
        Just("readings"),
        Just("weights"),
        Just("value"),
        Just("engine"),
        Just("flags"),
        Just("expect"),
        Just("events"),
        Just("24.25 GiB"),
        Just("-1"),
        Just("1e999"),
        Just(".nan"),
        Just("0x10"),
        Just("any_of"),
        Just("workload"),
        Just("prompt_tokens"),
        Just("{ uniform: [1, 9] }"),
        Just("rate: 5 /s"),
        Just("12 s"),
        Just("leak"),
        Just("others_grow"),
        Just("model"),
        Just("\r\n"),
        Just("\u{feff}"),
        Just("\u{85}"),
    ]
    .prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_yaml(pieces in prop::collection::vec(piece(), 0..60)) {
        check(&pieces.concat(), &[])?;
    }

    #[test]
    fn random_text(text: String) {
        check(&text, &[])?;
    }

    #[test]
    fn mutated_scenarios(
        edits in prop::collection::vec((0usize..KIMI.len(), 0usize..12, piece()), 1..6)
    ) {
        check(&edited(KIMI, edits), &[])?;
    }

    #[test]
    fn mutated_workloads(
        edits in prop::collection::vec((0usize..SERVING.len(), 0usize..12, piece()), 1..4)
    ) {
        check(&edited(SERVING, edits), &[])?;
    }

    #[test]
    fn random_overrides(text: String, pieces in prop::collection::vec(piece(), 0..9), known in 0usize..5) {
        let _ = text.parse::<Override>();
        let path = ["machine.readings.weights", "engine.flags.tp", "events[0]", "expect", "machine"][known];
        if let Ok(change) = format!("{path}={}", pieces.concat()).parse::<Override>() {
            check(KIMI, &[change])?;
        }
    }

    #[test]
    fn paths_print_and_parse(keys in prop::collection::vec("[^\"\\\\\\pC]{1,6}", 1..4), index: usize) {
        let mut path = KeyPath::root();
        for key in &keys {
            path = path.key(key).index(index);
        }
        prop_assert_eq!(path.to_string().parse::<KeyPath>(), Ok(path));
    }
}

#[test]
fn the_seed_of_a_running_server_is_read() {
    let scenario = Scenario::parse("serving.yaml", SERVING, &[]).unwrap();
    assert_eq!(scenario.clients(&[]).map(|clients| clients.total()), Some(11));
}

/// A file's own problems never claim to come from an override.
#[test]
fn an_empty_file_is_a_problem_with_a_line() {
    for text in ["", "# nothing\n", "~\n", "[]\n", "5\n"] {
        let problems: Problems = Scenario::parse("empty.yaml", text, &[]).unwrap_err();
        assert!(matches!(problems.list[0].place, Place::Text(at) if at.line >= 1), "{text:?}");
    }
}
