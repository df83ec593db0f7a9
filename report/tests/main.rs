//! Pages and traces: what is reduced keeps its least and most, what is shown at a failure is exact, and no text of
//! a scenario is more than text.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this crate is tests only; a panic is how a test fails"
)]

#[cfg(test)]
mod columns;
#[cfg(test)]
mod page;
#[cfg(test)]
mod thin;
#[cfg(test)]
mod trace;

#[cfg(test)]
mod runs {
    use plimsoll_replay::{
        record::Record,
        run::{RunOptions, ScenarioRun, run_with},
        scenario::Scenario,
    };
    use std::path::{Path, PathBuf};

    /// A scenario file of the repository.
    pub(crate) fn file(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios").join(name)
    }

    /// Runs it with values changed; every record goes to `tap`.
    pub(crate) fn run(name: &str, set: &[&str], tap: &mut dyn FnMut(&Record)) -> ScenarioRun {
        let file = file(name);
        let set: Vec<_> = set.iter().map(|text| text.parse().unwrap()).collect();
        let scenario = Scenario::load(&file, &set).unwrap_or_else(|e| panic!("{}", e.render()));
        run_with(scenario, &file, RunOptions { tap: Some(tap), ..RunOptions::default() }).unwrap()
    }
}
