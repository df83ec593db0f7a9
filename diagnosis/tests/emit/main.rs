//! Files written from logs: what they say, that they hold, and what is missing where there is none.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests stand outside of test functions, where a failure is meant to stop the test"
)]

mod corpus;
mod missing;
mod sglang;
mod torn;
mod vllm;

use plimsoll_diagnosis::{
    Case,
    emit::{Ask, Emitted, File, emit},
};
use plimsoll_ingest::log::read_text;
use plimsoll_replay::{run::run_scenario, scenario::Scenario};
use std::path::Path;

/// A log with what the user says beside it.
struct Given {
    log: &'static str,
    device: Option<&'static str>,
    command: Option<&'static str>,
}

impl Given {
    const fn log(log: &'static str) -> Self {
        Self { log, device: None, command: None }
    }

    fn case(&self) -> Case {
        let mut case = Case { log: read_text(self.log), ..Case::default() };
        case.asked.device = self.device.map(str::to_owned);
        case
    }

    /// The files, without any finding: what a log alone gives.
    fn emitted(&self) -> Emitted {
        let ask = Ask { command: self.command, version: None };
        emit(&self.case(), &[], &ask).unwrap_or_else(|missing| panic!("{missing}"))
    }

    fn missing(&self) -> String {
        let ask = Ask { command: self.command, version: None };
        emit(&self.case(), &[], &ask).unwrap_err().to_string()
    }

    /// The first file, which is claimed and holds.
    fn crash(&self) -> Emitted {
        let emitted = self.emitted();
        assert_eq!(emitted.crash.differs, Vec::<String>::new(), "{}", emitted.crash.text);
        holds(&emitted.crash);
        // A log has one file, whoever asks and how often.
        assert_eq!(emitted.crash, self.emitted().crash);
        emitted
    }

    /// Both files, which are claimed and hold.
    fn both(&self) -> (String, String) {
        let emitted = self.crash();
        let fixed = emitted.fixed.unwrap_or_else(|why| panic!("{why}\n{}", emitted.crash.text));
        assert_eq!(fixed.differs, Vec::<String>::new(), "{}", fixed.text);
        holds(&fixed);
        (emitted.crash.text, fixed.text)
    }
}

/// Runs a file as a user would: every claim must hold.
fn holds(file: &File) {
    let scenario = Scenario::parse(file.name, &file.text, &[])
        .unwrap_or_else(|problems| panic!("{problems}\n{}", file.text));
    let run = run_scenario(scenario, Path::new(file.name)).unwrap();
    let failed: Vec<_> = run.claims.iter().filter(|claim| !claim.holds()).collect();
    assert!(run.passed(), "{failed:#?}\n{}", file.text);
}
