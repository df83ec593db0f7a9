//! Scores the rules against an answer key: `cargo bench -p plimsoll-diagnosis --bench corpus -- FOLDER [ID]`.
//! A line a report and the table; with an id, all that the rules say of that report.
#![allow(clippy::print_stdout, reason = "the table is what it is for")]

#[path = "../tests/corpus/score.rs"]
mod score;

use std::{env, path::Path, process::ExitCode};

use plimsoll_diagnosis::Finding;

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
                println!("{judged}");
                judged.findings.iter().for_each(tell);
            }
        }
    }
    ExitCode::SUCCESS
}

/// A finding as plain lines.
fn tell(finding: &Finding) {
    let Finding { code, level, cause, also, phase, confidence, weight, fraction, feasible, .. } =
        finding;
    println!(
        "\n{level} {code} {cause} ({confidence}, {weight}) in {phase}; fraction {fraction} {feasible:?}; also {also:?}"
    );
    println!("  {}\n  {}", finding.headline, finding.because);
    finding.arithmetic.iter().for_each(|line| println!("  = {line}"));
    for line in &finding.evidence {
        println!("  {}: {}", line.line, line.text);
    }
    for lever in &finding.help {
        let value = lever.value.as_deref().unwrap_or("");
        println!(
            "  + {} {} {value}: {}",
            lever.change,
            lever.flag,
            lever.gives.as_deref().unwrap_or("")
        );
    }
    for flag in &finding.no_help {
        println!(
            "  - {} {}: {}",
            flag.change.map_or("", |change| change.name()),
            flag.flag,
            flag.why
        );
    }
}
