//! `--report` and `--trace`: a run as a page, and as a trace.

use crate::{args::ViewArgs, exit::Failure, render};
use plimsoll_replay::{record::Record, run::ScenarioRun};
use plimsoll_report::{Collector, REPORT_MARK, TRACE_MARK, Told, TraceWriter, page};
use std::{
    fs::{self, File},
    io::{self, BufWriter, Read as _},
    path::Path,
};

/// Bytes at the beginning of a file in which its mark must stand.
const BEGINNING: u64 = 512;

/// Whether the files that are asked for may be written: nothing but our own is written over.
///
/// # Errors
///
/// A file is there that is something else.
pub fn may_write(views: &ViewArgs) -> Result<(), Failure> {
    if views.report.is_some() && views.report == views.trace {
        return Err(Failure::input("--report and --trace name the same file"));
    }
    if let Some(path) = &views.report {
        let what = "a page that --report wrote";
        ours(path, REPORT_MARK, what, "name another file, or remove it")?;
    }
    if let Some(path) = &views.trace {
        let what = "a trace that --trace wrote";
        ours(path, TRACE_MARK, what, "to send its requests, pass --workload")?;
    }
    Ok(())
}

fn ours(path: &Path, mark: &str, what: &str, way: &str) -> Result<(), Failure> {
    let Ok(about) = fs::metadata(path) else { return Ok(()) };
    // Pipes and the like hold nothing that could be lost.
    if about.is_dir() || (about.is_file() && about.len() > 0 && !begins_with(path, mark)) {
        let path = path.display();
        return Err(Failure::input(format!("{path} is there and is not {what}: {way}")));
    }
    Ok(())
}

fn begins_with(path: &Path, mark: &str) -> bool {
    let mut beginning = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BEGINNING).read_to_end(&mut beginning));
    read.is_ok() && beginning.windows(mark.len()).any(|part| part == mark.as_bytes())
}

/// Runs a scenario of that name under the eyes of what is asked for.
///
/// # Errors
///
/// The run's, and files that cannot be written.
pub fn watched(
    views: &ViewArgs,
    name: &str,
    run: impl FnOnce(&mut Viewers) -> Result<ScenarioRun, Failure>,
) -> Result<ScenarioRun, Failure> {
    let mut viewers = Viewers::new(views, name)?;
    match run(&mut viewers) {
        Ok(run) => viewers.finish(&run, Vec::new(), views).map(|()| run),
        Err(failure) => {
            // A trace of what there was is whole all the same; the failure of the run is what counts.
            let _ = viewers.trace.map(TraceWriter::finish);
            Err(failure)
        }
    }
}

/// What looks at the records of a run as they come.
pub struct Viewers {
    collector: Option<Collector>,
    trace: Option<TraceWriter<BufWriter<File>>>,
}

impl Viewers {
    /// Those that are asked for; `name` is that of the scenario.
    ///
    /// # Errors
    ///
    /// The trace cannot be written.
    pub fn new(views: &ViewArgs, name: &str) -> Result<Self, Failure> {
        let open = |path: &std::path::PathBuf| {
            let file = File::create(path).map_err(|error| cannot(path, &error))?;
            Ok(TraceWriter::new(BufWriter::new(file), name))
        };
        let trace = views.trace.as_ref().map(open).transpose()?;
        Ok(Self { collector: views.report.is_some().then(Collector::default), trace })
    }

    /// Whether anything looks.
    pub const fn see(&self) -> bool {
        self.collector.is_some() || self.trace.is_some()
    }

    /// The next record.
    pub fn take(&mut self, record: &Record) {
        if let Some(collector) = &mut self.collector {
            collector.take(record);
        }
        if let Some(trace) = &mut self.trace {
            trace.take(record);
        }
    }

    /// Writes the page and ends the trace.
    ///
    /// # Errors
    ///
    /// A file cannot be written.
    pub fn finish(
        self,
        run: &ScenarioRun,
        notes: Vec<String>,
        views: &ViewArgs,
    ) -> Result<(), Failure> {
        if let Some((trace, path)) = self.trace.zip(views.trace.as_ref()) {
            trace.finish().map_err(|error| cannot(path, &error))?;
        }
        if let Some((collector, path)) = self.collector.zip(views.report.as_ref()) {
            let told = Told {
                word: render::run::word(run).to_owned(),
                ending: render::run::ending(run),
                start: render::run::start_ending(run),
                notes,
            };
            let text = page(run, &collector.finish(), &told);
            fs::write(path, text).map_err(|error| cannot(path, &error))?;
        }
        Ok(())
    }
}

fn cannot(path: &Path, error: &io::Error) -> Failure {
    Failure::input(format!("cannot write {}: {error}", path.display()))
}
