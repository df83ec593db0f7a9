//! Scores the rules against an answer key: `cargo bench -p plimsoll-diagnosis --bench corpus -- FOLDER [ID]`.
//! A line a report and the table; with an id, all that the rules say of that report.
#![allow(clippy::print_stdout, reason = "the table is what it is for")]

#[path = "../tests/corpus/score.rs"]
mod score;

use std::{env, path::Path, process::ExitCode};

fn main() -> ExitCode {
    let mut words = env::args().skip(1).filter(|word| !word.starts_with("--"));
    let Some(folder) = words.next() else {
        println!("usage: cargo bench -p plimsoll-diagnosis --bench corpus -- FOLDER [ID]");
        return ExitCode::SUCCESS;
    };
    let score = match score::score(Path::new(&folder)) {
        Ok(score) => score,
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    match words.next() {
        None => println!("{score}"),
        Some(id) => {
            for judged in score.judged.iter().filter(|judged| judged.id() == id) {
                println!("{judged}\n{:#?}", judged.findings);
            }
        }
    }
    ExitCode::SUCCESS
}
