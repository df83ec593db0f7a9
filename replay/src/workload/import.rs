//! Recorded workloads from their files: read, put on the clock of the run, and told about.

use super::{prefix::mix, stream::Stream};
use crate::scenario::{Smear, TraceSource, time};
use plimsoll_core::units::Nanos;
use plimsoll_ingest::workload::{Dropped, ImportError, Summary, Trace, import};
use sha2::{Digest as _, Sha256};
use std::{
    fmt,
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
};

/// A trace that can be sent.
#[derive(Clone, PartialEq, Debug)]
pub struct Loaded {
    /// What was read.
    pub trace: Trace,
    /// When each row is due, since the server is ready, whatever it waits for.
    pub times: Vec<Nanos>,
    /// The rows that are sent, in the order in which they come.
    pub order: Vec<u32>,
    /// What became of the file.
    pub told: Told,
    speedup: f64,
}

/// What an import says of itself.
#[derive(Clone, PartialEq, Debug)]
pub struct Told {
    /// The file, as the scenario names it.
    pub file: String,
    /// SHA-256 of the file, 64 hexadecimal digits.
    pub sha256: String,
    /// Name of its format.
    pub format: &'static str,
    /// Tokens of a block; 0 without ids.
    pub block_size: u64,
    /// Its figures, at the times at which it is sent.
    pub summary: Summary,
    /// Rows that were left out.
    pub dropped: Vec<Dropped>,
    /// What was done or assumed, a sentence each.
    pub notes: Vec<String>,
}

/// A trace that cannot be sent.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {why}")]
pub struct TraceError {
    /// The file.
    pub file: String,
    /// Why.
    pub why: ImportError,
}

impl Loaded {
    /// A time between two things that were recorded, at the speed of the run.
    #[must_use]
    pub fn scaled(&self, time: Nanos) -> Nanos {
        scaled(time, self.speedup)
    }
}

/// Rounded to the nearest nanosecond; untouched at the recorded speed.
fn scaled(time: Nanos, speedup: f64) -> Nanos {
    if speedup == 1.0 { time } else { Nanos((time.0 as f64 / speedup + 0.5).floor() as u64) }
}

/// Reads the file of a trace; a relative path starts in `folder`. `strict`: a row that cannot be read is an
/// error, whatever the scenario says.
///
/// # Errors
///
/// [`TraceError`] with the place in the file where there is one.
pub fn load(
    source: &TraceSource,
    folder: &Path,
    seed: u64,
    strict: bool,
) -> Result<Loaded, TraceError> {
    let path = folder.join(&source.file);
    let failed = |why: ImportError| TraceError { file: path.display().to_string(), why };
    let mut options = source.options.clone();
    options.strict |= strict;
    let (read, sha256) = hashed(&path, &options).map_err(failed)?;
    if source.shuffle && !read.trace.links.is_empty() {
        let message = "`shuffle` cannot mix rows that wait for each other".to_owned();
        return Err(failed(ImportError::File(message)));
    }
    let mut notes = read.notes;
    let trace = read.trace;
    let order = order(source, &trace, seed, &mut notes);
    let mut times: Vec<Nanos> = trace.rows.iter().map(|row| row.at).collect();
    smear(source, &mut times, seed, &mut notes);
    for time in &mut times {
        *time = Nanos(source.start.0.saturating_add(scaled(*time, source.speedup).0));
    }
    if source.speedup != 1.0 {
        notes.push(format!("times are divided by {}", source.speedup));
    }
    let mut order = order;
    if !source.shuffle {
        // Rows of one time keep the order of the file.
        order.sort_by_key(|row| (times.get(*row as usize).copied(), *row));
    }
    if source.schedule.is_some() {
        notes.push("the recorded times are replaced by a rate".to_owned());
    }
    let rows: Vec<usize> = order.iter().map(|row| *row as usize).collect();
    let summary = Summary::of_rows(&trace, &rows, &times);
    let told = Told {
        file: source.file.display().to_string(),
        sha256,
        format: trace.format.name(),
        block_size: trace.block_size,
        summary,
        dropped: read.dropped,
        notes,
    };
    Ok(Loaded { trace, times, order, told, speedup: source.speedup })
}

fn order(source: &TraceSource, trace: &Trace, seed: u64, notes: &mut Vec<String>) -> Vec<u32> {
    let count = u32::try_from(trace.rows.len()).unwrap_or(u32::MAX);
    let mut order: Vec<u32> = (0..count).collect();
    if source.shuffle {
        mix(&mut order, &mut Stream::named(seed, &source.name, "shuffle"));
        notes.push(format!("rows are in mixed order (seed {seed})"));
    }
    if let Some(limit) = source.limit.filter(|limit| *limit < u64::from(count)) {
        order.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    order
}

/// Spreads rows of one time: uniformly over the bin, in the order of the file.
fn smear(source: &TraceSource, times: &mut [Nanos], seed: u64, notes: &mut Vec<String>) {
    if source.smear == Smear::No {
        return;
    }
    let mut distinct = times.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let shortest = distinct.windows(2).map(|pair| pair[1].0 - pair[0].0).min();
    let bin = match source.smear {
        Smear::Over(bin) => bin.0,
        Smear::Detected | Smear::No => shortest.unwrap_or(0),
    };
    let mut stream = Stream::named(seed, &source.name, "smear_arrivals");
    let mut rows: Vec<(Nanos, usize)> =
        times.iter().enumerate().map(|(row, time)| (*time, row)).collect();
    rows.sort_unstable();
    for tied in rows.chunk_by(|a, b| a.0 == b.0) {
        let Some((from, _)) = tied.first().copied() else { continue };
        let next = distinct.partition_point(|time| *time <= from);
        let room = distinct.get(next).map_or(bin, |next| bin.min(next.0 - from.0));
        let mut offsets: Vec<u64> = tied.iter().map(|_| stream.below(room)).collect();
        offsets.sort_unstable();
        for ((_, row), offset) in tied.iter().zip(offsets) {
            times[*row] = Nanos(from.0.saturating_add(offset));
        }
    }
    let shown = time::show(Nanos(bin));
    notes.push(format!("rows of one time are spread uniformly over {shown} (seed {seed})"));
}

/// Reads a file and its hash in one go.
fn hashed(
    path: &Path,
    options: &plimsoll_ingest::workload::Options,
) -> Result<(plimsoll_ingest::workload::Import, String), ImportError> {
    let mut file = Hashing { file: File::open(path)?, hash: Sha256::new() };
    let read = import(BufReader::with_capacity(1 << 18, &mut file), options)?;
    // What was not looked at belongs to the file all the same.
    io::copy(&mut file, &mut io::sink())?;
    Ok((read, crate::digest::hex(file.hash)))
}

struct Hashing {
    file: File,
    hash: Sha256,
}

impl Read for Hashing {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let len = self.file.read(into)?;
        self.hash.update(&into[..len]);
        Ok(len)
    }
}

impl fmt::Display for Told {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let summary = &self.summary;
        write!(f, "{} ({}): {} requests", self.file, self.format, summary.requests)?;
        if summary.span > Nanos(0) {
            write!(f, " in {:.1} s", summary.span.0 as f64 / 1e9)?;
        }
        if let Some(rate) = summary.rate {
            write!(f, ", {rate:.2}/s")?;
        }
        if let Some(cv) = summary.gap_cv {
            write!(f, ", gap CV {cv:.2}")?;
        }
        if summary.waiting > 0 {
            write!(f, " ({} wait for others)", summary.waiting)?;
        }
        write!(f, ", {:.0} in / {:.0} out on average", summary.input.mean, summary.output.mean)?;
        if let Some(share) = summary.prefix_share {
            write!(f, ", {:.1} % of blocks shared", share * 100.0)?;
        }
        let dropped: u64 = self.dropped.iter().map(|dropped| dropped.count).sum();
        if dropped > 0 {
            let rows = if dropped == 1 { "row" } else { "rows" };
            write!(f, ", {dropped} {rows} left out")?;
        }
        write!(f, "; sha256 {}", self.sha256.get(..12).unwrap_or_default())
    }
}
