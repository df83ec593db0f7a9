//! `run --seeds`: the same files with many seeds; what fails is named, the rest is counted.

use crate::{
    args::{BackendName, Detail, Format, RunArgs},
    commands::sweep::{Asked, drive_rows, points_of},
    exit::{self, Failure},
    interrupt::Interrupt,
    output::{Output, Tone},
    render::sweep as shown,
};
use plimsoll_core::{engine::serving::Pace, units::group_thousands};
use plimsoll_sweep::{
    ask::Asking,
    drive::End,
    points::{BadRows, Checking},
    question::{
        Question, Seeds,
        header::{Header, Shard},
    },
    row::{Fate, Row},
};
use std::fmt::Write as _;

/// Runs every file with every seed.
pub fn run(args: &RunArgs, seeds: &Seeds, format: Format, output: &Output) -> Result<u8, Failure> {
    if args.backend != BackendName::Sim || args.detail != Detail::Decisions {
        return Err(Failure::input("--seeds runs on the simulator, with --detail decisions"));
    }
    let asked = Asked {
        asking: Asking { set: args.texts()?, over: Vec::new(), seeds: Some(seeds.clone()) },
        checking: if args.unlogged { Checking::None } else { Checking::Whole },
        bad_rows: if args.strict_input { BadRows::Refused } else { BadRows::LeftOut },
        pace: if args.step_by_step { Pace::Stepped } else { Pace::Skipping },
    };
    let points = points_of(&args.scenarios, asked, output)?;
    let claims = points.have_claims();
    let interrupt = Interrupt::listen(output);
    let threads = args.threads.map_or(0, usize::from);
    let (rows, end) = drive_rows(&points, (Shard::WHOLE, None), threads, &interrupt, output)?;
    let question = &points.question;
    let passed = |row: &Row| {
        let scenario = question.point(row.index).map_or(0, |point| point.scenario);
        match claims.get(scenario) {
            Some(true) => row.int("claims_failed") == Some(0),
            _ => row.fate() == Fate::Lived,
        }
    };
    let failed = rows.iter().filter(|row| !passed(row)).count();
    let text = match format {
        Format::Human | Format::Sarif => human(question, &rows, &passed, output),
        Format::Csv | Format::Json | Format::Jsonl | Format::Md => {
            let header = Header { question: question.clone(), shard: Shard::WHOLE };
            shown::rows(&header, &rows, format)
        }
    };
    output.write(&text)?;
    Ok(match (end, failed) {
        (End::Interrupted, _) => {
            output.note("interrupted");
            exit::INTERRUPTED
        }
        (End::Whole, 0) => exit::OK,
        (End::Whole, _) => exit::FAILED,
    })
}

/// A line for each seed that fails, and one for each file.
fn human(
    question: &Question,
    rows: &[Row],
    passed: &dyn Fn(&Row) -> bool,
    output: &Output,
) -> String {
    let mut out = String::new();
    for (at, asked) in question.scenarios.iter().enumerate() {
        let mine = |row: &&Row| question.point(row.index).is_some_and(|p| p.scenario == at);
        let mine: Vec<&Row> = rows.iter().filter(mine).collect();
        let mut held = 0;
        for row in &mine {
            if passed(row) {
                held += 1;
                continue;
            }
            let seed = question.point(row.index).map_or(0, |point| point.seed);
            let word = output.paint(Tone::Bad, "FAILS");
            let _ = writeln!(out, "{word}  {}  seed {seed}: {}", asked.name, shown::ending(row));
        }
        let died = mine.iter().filter(|row| row.fate() == Fate::Died).count();
        let word = match held == mine.len() {
            true => output.paint(Tone::Good, "holds"),
            false => output.paint(Tone::Bad, "FAILS"),
        };
        let count = |n: usize| group_thousands(n as u64);
        let _ = writeln!(
            out,
            "{word}  {}  {} of {} seeds hold, {} die{}",
            asked.name,
            count(held),
            count(mine.len()),
            count(died),
            shown::worst(question, &mine),
        );
    }
    out
}
