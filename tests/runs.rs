//! Runs of every scenario, once for all tests of this process.

use plimsoll_replay::{
    folder::load_folder,
    run::{RunOptions, ScenarioRun, run_with},
    scenario::Scenario,
};
use std::{
    path::{Path, PathBuf},
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// A scenario that was run, and its file.
pub(crate) type Run = (PathBuf, ScenarioRun);

/// Every scenario with its file, in the order of the files.
pub(crate) fn scenarios() -> Vec<(PathBuf, Scenario)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let entries = load_folder(&folder).unwrap();
    let read = entries.into_iter().map(|entry| match entry.scenario {
        Ok(scenario) => (entry.path, scenario),
        Err(problems) => panic!("{}", problems.render()),
    });
    read.collect()
}

/// All of them run one after the other, as `run` runs them without options.
pub(crate) fn runs() -> &'static [Run] {
    static RUNS: OnceLock<Vec<Run>> = OnceLock::new();
    RUNS.get_or_init(|| scenarios().into_iter().map(|it| one(it, RunOptions::default())).collect())
}

/// Runs one scenario.
pub(crate) fn one((file, scenario): (PathBuf, Scenario), options: RunOptions<'_>) -> Run {
    match run_with(scenario, &file, options) {
        Ok(run) => (file, run),
        Err(error) => panic!("{}: {error}", file.display()),
    }
}

/// What `of` makes of each item, several threads at a time; in the order of the items.
pub(crate) fn on_threads<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    of: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((item, slot)) = {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    items.get(at).zip(done.get(at))
                } {
                    *slot.lock().unwrap() = Some(of(item));
                }
            });
        }
    });
    done.into_iter().map(|slot| slot.into_inner().unwrap().unwrap()).collect()
}

/// The decision log as it is written.
pub(crate) fn log(run: &ScenarioRun) -> String {
    let (bytes, digests) = run.write_log(Vec::new()).unwrap();
    assert_eq!(digests, run.digests);
    String::from_utf8(bytes).unwrap()
}
