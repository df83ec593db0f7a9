//! What was measured, from files: each is told by its content.

use crate::passes;
use plimsoll_core::{estimate::roofline::StepShape, units::Nanos};
use plimsoll_ingest::{
    log::{self, LogFigures},
    measured::{self, Form, Request, Window},
    watch::recording,
};
use plimsoll_replay::{
    digest::hex_of,
    profile::{Source, SourceKind},
    wire::Log,
};

/// A file of measurements.
#[derive(Clone, Copy, Debug)]
pub struct File<'a> {
    /// Its name as given; of its path only the last part goes into a profile.
    pub name: &'a str,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// A file that is no evidence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {what}")]
pub struct EvidenceError {
    /// The file.
    pub file: String,
    /// What is wrong with it.
    pub what: String,
}

/// A pass that was recorded, or equal ones in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PassTime {
    /// Its work; of several that of the middle one.
    pub shape: StepShape,
    /// Its time, of several the mean.
    pub elapsed: Nanos,
}

/// Requests of one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sample {
    /// The file.
    pub file: String,
    /// In the order of their arrival.
    pub requests: Vec<Request>,
    /// Those that are fitted; the rest is held out.
    pub fitted: usize,
}

/// What was measured.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Evidence {
    /// Requests with their times.
    pub samples: Vec<Sample>,
    /// Passes; the second half is held out.
    pub passes: Vec<PassTime>,
    /// Windows of logs.
    pub windows: Vec<Window>,
    /// Figures of starts, with the log's name.
    pub starts: Vec<(String, LogFigures)>,
    /// The files.
    pub sources: Vec<Source>,
    /// What was left out or assumed.
    pub notes: Vec<String>,
}

impl Evidence {
    /// Reads files; of requests the first `fit_first` of each are fitted, or half.
    ///
    /// # Errors
    ///
    /// [`EvidenceError`] of the first file that says nothing.
    pub fn read(files: &[File<'_>], fit_first: Option<usize>) -> Result<Self, EvidenceError> {
        let mut evidence = Self::default();
        for file in files {
            evidence.add(file, fit_first)?;
        }
        Ok(evidence)
    }

    /// Whether anything says how long something took.
    #[must_use]
    pub fn has_times(&self) -> bool {
        !self.samples.is_empty() || !self.passes.is_empty() || !self.windows.is_empty()
    }

    /// Of how many figures one says something new: requests that run side by side share their passes.
    #[must_use]
    pub fn alike(&self) -> f64 {
        if self.samples.is_empty() { 1.0 } else { 10.0 }
    }

    fn add(&mut self, file: &File<'_>, fit_first: Option<usize>) -> Result<(), EvidenceError> {
        let wrong = |what: String| EvidenceError { file: file.name.to_owned(), what };
        let text = String::from_utf8_lossy(file.bytes);
        let head = text.lines().next().unwrap_or_default();
        let (kind, measured, fitted) = if head.contains("\"plimsoll.log/") {
            let log = Log::read(file.bytes).map_err(|error| wrong(error.to_string()))?;
            let found = passes::of(&log);
            let count = found.len();
            if count == 0 {
                return Err(wrong("the recording has no pass whose work is known".to_owned()));
            }
            self.passes.extend(found);
            (SourceKind::Recording, count, count.div_ceil(2))
        } else if head.contains(&format!("\"{}\"", recording::SCHEMA)) {
            let found = passes::of_watch(file.bytes).map_err(wrong)?;
            let count = found.len();
            if count == 0 {
                return Err(wrong("no two samples in a row with the same load".to_owned()));
            }
            self.windows.extend(found);
            (SourceKind::Watch, count, count)
        } else if measured::is_requests(&text) {
            self.add_requests(file, &text, fit_first)?
        } else {
            self.add_log(file, &text)?
        };
        self.sources.push(Source {
            file: last_part(file.name).to_owned(),
            sha256: hex_of(file.bytes),
            kind,
            measured: measured as u64,
            fitted: fitted as u64,
        });
        Ok(())
    }

    fn add_requests(
        &mut self,
        file: &File<'_>,
        text: &str,
        fit_first: Option<usize>,
    ) -> Result<(SourceKind, usize, usize), EvidenceError> {
        let read = measured::requests(text).map_err(|error| EvidenceError {
            file: file.name.to_owned(),
            what: error.to_string(),
        })?;
        let count = read.list.len();
        let fitted = fit_first.unwrap_or(count.div_ceil(2)).min(count);
        let name = last_part(file.name);
        self.notes.extend(read.notes.iter().map(|note| format!("{name}: {note}")));
        let kind = match read.form {
            Form::Rows => SourceKind::Requests,
            Form::VllmBench => SourceKind::VllmBench,
            Form::SglangBench => SourceKind::SglangBench,
        };
        self.samples.push(Sample { file: name.to_owned(), requests: read.list, fitted });
        Ok((kind, count, fitted))
    }

    fn add_log(
        &mut self,
        file: &File<'_>,
        text: &str,
    ) -> Result<(SourceKind, usize, usize), EvidenceError> {
        let name = last_part(file.name);
        let windows = measured::windows(text);
        // Of a window with prompts the log does not say which passes had them.
        let (with_prompts, plain): (Vec<Window>, Vec<Window>) =
            windows.into_iter().partition(|window| window.prompt_per_second > 0.0);
        if !with_prompts.is_empty() {
            let count = with_prompts.len();
            self.notes
                .push(format!("{name}: {count} statistics with prompts in them are left out"));
        }
        let figures = log::start_figures(text);
        if plain.is_empty() && figures.is_empty() {
            let what = "no times of requests, no recording, and no line of SGLang or vLLM that says memory or \
                        throughput";
            return Err(EvidenceError { file: file.name.to_owned(), what: what.to_owned() });
        }
        let count = plain.len();
        self.windows.extend(plain);
        if !figures.is_empty() {
            self.starts.push((name.to_owned(), figures));
        }
        Ok((SourceKind::Log, count, count))
    }
}

/// The last part of a path: what a profile says of a file must not hold folders of a machine.
fn last_part(name: &str) -> &str {
    name.rsplit(['/', '\\']).next().unwrap_or(name)
}
