//! `run`: scenario files, their claims, their decision logs.

use crate::{
    args::{Format, RunArgs},
    exit::{self, Failure},
    output::{self, Output},
    render,
};
use plimsoll_replay::{
    folder,
    problem::{Problem, Problems},
    run::{ScenarioRun, run_scenario},
    scenario::{Override, Scenario},
};
use std::{
    fs::File,
    io::BufWriter,
    path::{Path, PathBuf},
};

/// Runs every file and says what holds.
pub fn run(args: &RunArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    let overrides = overrides(&args.set)?;
    let (files, mut broken) = files(&args.scenarios);
    if args.log.is_some() && files.len() != 1 {
        let message = format!("--log takes one scenario; {} are given", files.len());
        return Err(Failure::input(message));
    }
    let mut text = String::new();
    let mut code = exit::OK;
    let mut results = Vec::new();
    for file in &files {
        match one(file, &overrides) {
            Ok(run) => {
                if !run.passed() {
                    code = exit::FAILED;
                }
                if let Some(path) = &args.log {
                    write_log(&run, path)?;
                }
                results.push(run);
            }
            Err(message) => {
                broken = true;
                output::note(message.trim_end());
            }
        }
    }
    render(&mut text, &results, args, format, output);
    output.write(&text)?;
    Ok(if broken { exit::BAD_INPUT } else { code })
}

fn one(file: &Path, overrides: &[Override]) -> Result<ScenarioRun, String> {
    let scenario = Scenario::load(file, overrides).map_err(|problems| problems.render())?;
    run_scenario(scenario, file).map_err(|error| format!("error: {}: {error}", file.display()))
}

fn overrides(set: &[String]) -> Result<Vec<Override>, Failure> {
    set.iter()
        .map(|text| {
            text.parse().map_err(|problem: Box<Problem>| {
                Failure::input(Problems::new("--set", text, vec![*problem]).render())
            })
        })
        .collect()
}

/// The files, and whether something was not found; what is wrong is said at once.
fn files(paths: &[PathBuf]) -> (Vec<PathBuf>, bool) {
    let (mut files, mut broken) = (Vec::new(), false);
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let message = match folder::scenario_files(path) {
            Ok(found) if found.is_empty() => {
                format!("error: no scenario (*.yaml) below the folder {}", path.display())
            }
            Ok(found) => {
                files.extend(found);
                continue;
            }
            Err(problems) => problems.render(),
        };
        broken = true;
        output::note(message.trim_end());
    }
    (files, broken)
}

fn write_log(run: &ScenarioRun, path: &Path) -> Result<(), Failure> {
    let place = |error: &dyn std::fmt::Display| {
        Failure::input(format!("cannot write {}: {error}", path.display()))
    };
    let file = File::create(path).map_err(|error| place(&error))?;
    run.write_log(BufWriter::new(file)).map_err(|error| place(&error))?;
    Ok(())
}

fn render(
    text: &mut String,
    runs: &[ScenarioRun],
    args: &RunArgs,
    format: Format,
    output: &Output,
) {
    match format {
        Format::Human => {
            for run in runs {
                // Of many, one line each says enough, unless something is wrong.
                let brief = runs.len() > 1 && run.passed() && !args.why;
                text.push_str(&if brief {
                    render::run::brief(run, output)
                } else {
                    render::run::human(run, args.why, output)
                });
            }
            if runs.len() > 1 {
                let held = runs.iter().filter(|run| run.passed()).count();
                text.push_str(&format!("{held} of {} scenarios hold\n", runs.len()));
            }
        }
        Format::Json => {
            let all: Vec<_> = runs.iter().map(render::run::machine).collect();
            let value = match <[_; 1]>::try_from(all) {
                Ok([one]) => one,
                Err(all) => serde_json::Value::Array(all),
            };
            text.push_str(&format!("{value:#}\n"));
        }
        Format::Jsonl => {
            for run in runs {
                text.push_str(&format!("{}\n", render::run::machine(run)));
            }
        }
        Format::Csv | Format::Md => text.push_str(&render::run::table(runs, format)),
    }
}
