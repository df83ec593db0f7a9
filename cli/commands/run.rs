//! `run`: scenario files, their claims, their decision logs.

use super::{
    junit::{self, Fate},
    show,
    source::Source,
    views,
};
use crate::{
    args::{BackendName, Detail, Format, Observe, RunArgs},
    bodies,
    exit::{self, Failure},
    interrupt::Interrupt,
    output::Output,
    render,
};
use plimsoll_core::{backend::BackendError, engine::serving::Pace, sched::LogDetail};
use plimsoll_replay::{
    folder,
    record::Record,
    run::{Kept, Recording, RunError, RunOptions, ScenarioRun, run_with},
    scenario::Override,
    start::CaseError,
};
use std::{
    fs::{self, File},
    io::{LineWriter, Write},
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// What became of one file: a run, or what is wrong with the file.
type Ended = Result<ScenarioRun, Failure>;

/// Runs every file and says what holds.
pub fn run(args: &RunArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    supported(args)?;
    if format != Format::Human && args.engine_log.as_deref() == Some(Path::new("-")) {
        return Err(Failure::input(
            "--engine-log - and --format both write to stdout: name a file for one of them",
        ));
    }
    if let Some(seeds) = &args.seeds {
        return super::run_seeds::run(args, seeds, format, output);
    }
    let overrides = args.overrides()?;
    let (files, broken_folders) = files(&args.scenarios);
    let single = [
        ("--record", &args.record),
        ("--svg", &args.views.svg),
        ("--engine-log", &args.engine_log),
        ("--report", &args.views.report),
        ("--trace", &args.views.trace),
    ];
    for (flag, given) in single {
        if given.is_some() && files.len() != 1 {
            let message = format!("{flag} takes one scenario; {} are given", files.len());
            return Err(Failure::input(message));
        }
    }
    show::may_write(&args.views)?;
    let interrupt = Interrupt::listen(output);
    let mut results = Vec::new();
    let mut fates = broken_folders;
    let ended = all(&files, &overrides, args, &interrupt, output);
    for (file, ended) in files.into_iter().zip(ended) {
        let fate = match ended {
            Some(Ok(run)) => {
                run.imports.iter().for_each(|told| output.note(&told.to_string()));
                results.push(run);
                Fate::Ran(results.len() - 1)
            }
            Some(Err(failure)) => Fate::Failed(failure),
            None => Fate::NotRun,
        };
        fates.push((file, fate));
    }
    for (_, fate) in &fates {
        if let Fate::Failed(failure) = fate {
            output.note(failure.message.trim_end());
        }
    }
    let failed_with = |code: u8| {
        fates.iter().any(|(_, fate)| matches!(fate, Fate::Failed(failure) if failure.code == code))
    };
    let broken = failed_with(exit::BAD_INPUT);
    let lost = failed_with(exit::NO_DEVICE) || results.iter().any(ScenarioRun::lost_its_machine);
    junit::write(args.junit.as_deref(), &fates, &results)?;
    for run in &results {
        views::write_svg(&run.log, &args.views)?;
    }
    let mut text = engine_log(&results, args)?;
    render(&mut text, &results, args, format, output)?;
    output.write(&text)?;
    let failed = results.iter().any(|run| !run.passed());
    Ok(match (interrupt.is_asked(), broken, failed) {
        _ if lost => exit::NO_DEVICE,
        (true, ..) => {
            output.note("interrupted");
            exit::INTERRUPTED
        }
        (_, true, _) => exit::BAD_INPUT,
        (_, _, true) => exit::FAILED,
        _ => exit::OK,
    })
}

/// Writes the engine's log to its file; answers it where stdout was asked for.
fn engine_log(runs: &[ScenarioRun], args: &RunArgs) -> Result<String, Failure> {
    let (Some(path), [run]) = (&args.engine_log, runs) else { return Ok(String::new()) };
    let text = run.engine_log.clone().unwrap_or_default();
    if path.as_os_str() == "-" {
        return Ok(text);
    }
    let cannot = |error| Failure::input(format!("error: cannot write {}: {error}", path.display()));
    fs::write(path, text).map_err(cannot)?;
    Ok(String::new())
}

/// What a real machine can be asked for, and whether it is there.
fn supported(args: &RunArgs) -> Result<(), Failure> {
    if args.observe != Observe::Declared && args.backend == BackendName::Sim {
        let given = if args.observe == Observe::Scaled { "scaled" } else { "device" };
        return Err(Failure::input(format!(
            "--observe {given} needs a device: the simulator has only what is declared; add \
             --backend host or --backend cuda"
        )));
    }
    if args.backend != BackendName::Sim && args.threads.unwrap_or(1) > 1 {
        return Err(Failure::input(
            "a real machine runs one scenario at a time: leave out --threads",
        ));
    }
    bodies::is_there(args.backend).map_err(Failure::no_device)
}

/// Runs the files, several at a time where that was asked for; results in the order of the files, none for those
/// that an interruption left out.
fn all(
    files: &[PathBuf],
    overrides: &[Override],
    args: &RunArgs,
    interrupt: &Interrupt,
    output: &Output,
) -> Vec<Option<Ended>> {
    let next = AtomicUsize::new(0);
    let ended: Vec<Mutex<Option<Ended>>> = files.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let (Some(file), Some(slot)) = (files.get(at), ended.get(at)) else { return };
            if interrupt.is_asked() {
                return;
            }
            let run = one(file, overrides, args, interrupt, output);
            if let Ok(mut slot) = slot.lock() {
                *slot = Some(run);
            }
        }
    };
    thread::scope(|scope| {
        // This thread works too.
        for _ in 1..usize::from(args.threads.unwrap_or(1)).min(files.len()) {
            scope.spawn(work);
        }
        work();
    });
    ended.into_iter().map(|slot| slot.into_inner().ok().flatten()).collect()
}

fn one(
    file: &Path,
    overrides: &[Override],
    args: &RunArgs,
    interrupt: &Interrupt,
    output: &Output,
) -> Ended {
    let source = Source::read(file, overrides, output)?;
    let file = source.path;
    let place = |error: &dyn std::fmt::Display| format!("error: {}: {error}", file.display());
    let ended = |error: RunError| match error {
        RunError::Case(CaseError::Machine(BackendError::DeviceLost(_))) => {
            Failure::no_device(place(&error))
        }
        other => Failure::input(place(&other)),
    };
    let interrupted = || interrupt.is_asked();
    let machine = bodies::machine(args.backend, args.observe);
    let readings = bodies::readings(args.observe);
    let detail = match args.detail {
        Detail::Decisions => LogDetail::Decisions,
        Detail::Slots => LogDetail::Slots,
    };
    let (interrupted, machine): (&dyn Fn() -> bool, _) = (&interrupted, &machine);
    let engine_log = args.engine_log.is_some();
    let pace = if args.step_by_step { Pace::Stepped } else { Pace::Skipping };
    let kept = if args.unlogged { Kept::Ends } else { Kept::Whole };
    let text = source.text().map_err(|error| Failure::input(place(&error)))?;
    let mut out = args.record.as_deref().map(create).transpose()?;
    let name = source.scenario.name.clone();
    show::watched(&args.views, &name, |viewers| {
        let see = viewers.see();
        let mut tap = |record: &Record| viewers.take(record);
        let record = out.as_mut().map(|out| Recording {
            out: out as &mut dyn Write,
            scenario_text: &text,
            scenario_file: file.display().to_string(),
            overrides: overrides.iter().map(ToString::to_string).collect(),
        });
        let options = RunOptions {
            machine,
            readings,
            record,
            detail,
            kept,
            pace,
            engine_log,
            strict_input: args.strict_input,
            traces: None,
            tap: if see { Some(&mut tap) } else { None },
            interrupted,
        };
        run_with(source.scenario, file, options).map_err(ended)
    })
}

/// A recording, written line by line: what stands in the file is whole when the process is killed.
fn create(path: &Path) -> Result<LineWriter<File>, Failure> {
    let cannot = |error| Failure::input(format!("error: cannot write {}: {error}", path.display()));
    Ok(LineWriter::new(File::create(path).map_err(cannot)?))
}

/// The files, and the folders that hold none.
pub(super) fn files(paths: &[PathBuf]) -> (Vec<PathBuf>, Vec<(PathBuf, Fate)>) {
    let (mut files, mut broken) = (Vec::new(), Vec::new());
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
        broken.push((path.clone(), Fate::Failed(Failure::input(message))));
    }
    (files, broken)
}

fn render(
    text: &mut String,
    runs: &[ScenarioRun],
    args: &RunArgs,
    format: Format,
    output: &Output,
) -> Result<(), Failure> {
    let machine = |run| render::run::machine(run, &args.views);
    match format {
        Format::Human | Format::Sarif => {
            for run in runs {
                // Of many, one line each says enough, unless something is wrong.
                let brief = runs.len() > 1 && run.passed() && !args.why;
                if brief {
                    text.push_str(&render::run::brief(run, output));
                    continue;
                }
                let views = views::human(&run.log, &args.views, output)?;
                text.push_str(&render::run::human(run, args, &views, output));
            }
            if runs.len() > 1 {
                let held = runs.iter().filter(|run| run.passed()).count();
                text.push_str(&format!("{held} of {} scenarios hold\n", runs.len()));
            }
        }
        Format::Json => {
            let all: Vec<serde_json::Value> = runs.iter().map(machine).collect::<Result<_, _>>()?;
            let value = match <[_; 1]>::try_from(all) {
                Ok([one]) => one,
                Err(all) => serde_json::Value::Array(all),
            };
            text.push_str(&format!("{value:#}\n"));
        }
        Format::Jsonl => {
            for run in runs {
                text.push_str(&format!("{}\n", machine(run)?));
            }
        }
        Format::Csv | Format::Md => text.push_str(&render::run::table(runs, format)),
    }
    Ok(())
}
