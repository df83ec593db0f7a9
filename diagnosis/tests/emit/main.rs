//! Files written from logs: what they say, that they hold, and what is missing where there is none.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stand outside of test functions, where a failure is meant to stop the test"
)]

mod corpus;
mod made;
mod missing;
mod sglang;
mod vllm;

use plimsoll_diagnosis::emit::{Emitted, File, emit};
use plimsoll_diagnosis::{Case, emit::Ask};
use plimsoll_replay::{run::run_scenario, scenario::Scenario};
use std::path::Path;

/// Runs a file as a user would: every claim must hold.
fn holds(file: &File) {
    let scenario = Scenario::parse(file.name, &file.text, &[])
        .unwrap_or_else(|problems| panic!("{problems}\n{}", file.text));
    let run = run_scenario(scenario, Path::new(file.name)).unwrap();
    let failed: Vec<_> = run.claims.iter().filter(|claim| !claim.holds()).collect();
    assert!(run.passed(), "{failed:#?}\n{}", file.text);
}

/// Both files are there, are claimed, and hold.
fn both(case: &Case, ask: &Ask<'_>) -> Emitted {
    let emitted = emit(case, &[], ask).unwrap_or_else(|missing| panic!("{missing}"));
    assert_eq!(emitted.crash.differs, Vec::<String>::new(), "{}", emitted.crash.text);
    holds(&emitted.crash);
    let fixed =
        emitted.fixed.as_ref().unwrap_or_else(|why| panic!("{why}\n{}", emitted.crash.text));
    assert_eq!(fixed.differs, Vec::<String>::new(), "{}", fixed.text);
    holds(fixed);
    emitted
}
