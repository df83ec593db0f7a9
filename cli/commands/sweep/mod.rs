//! `sweep`: one scenario at many values and seeds, and what the runs together say.

mod merge;
pub mod options;
pub mod progress;

use crate::{
    args::Format,
    commands::{junit::Fate, source::text_of},
    exit::{self, Failure},
    interrupt::Interrupt,
    output::Output,
    render,
};
use options::{AnswerArgs, DriveArgs, QuestionArgs, SweepArgs, SweepVerb};
use plimsoll_core::{engine::serving::Pace, units::group_thousands};
use plimsoll_sweep::{
    ask::{Ask, Asking, ask},
    drive::{Drive, DriveError, End, Taker},
    parquet,
    points::{BadRows, Checking, How, Points, Source},
    question::{
        ALIASES, Question, Seeds,
        header::{Header, Shard},
    },
    row::Row,
    rows_file::{RowsError, RowsFile, name_in_folder},
};
use progress::Progress;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Runs every point and says what they show.
pub fn sweep(args: &SweepArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    if let Some(SweepVerb::Merge(merge)) = &args.verb {
        args.nothing_but_merge()?;
        return merge::merge(merge, format, output);
    }
    let points = points(&args.question, &args.drive, output)?;
    let shard = args.drive.shard.unwrap_or(Shard::WHOLE);
    let header = Header { question: points.question.clone(), shard };
    let interrupt = Interrupt::listen(output);
    let threads = args.drive.threads.map_or(0, usize::from);
    let out = args.drive.out.as_deref();
    let (rows, end) = drive_rows(&points, (shard, out), threads, &interrupt, output)?;
    if end == End::Interrupted {
        let (done, total) = (rows.len() as u64, shard.count(points.question.points()));
        let (done, total) = (group_thousands(done), group_thousands(total));
        let go_on = match &args.drive.out {
            Some(_) => "run the same again to go on",
            None => "nothing was kept: --out keeps rows as they come",
        };
        output.note(&format!("interrupted: {done} of {total} points are done; {go_on}"));
        return Ok(exit::INTERRUPTED);
    }
    show(&header, &rows, &args.answer, format, output)?;
    Ok(exit::OK)
}

/// Writes what is asked for of the rows.
fn show(
    header: &Header,
    rows: &[Row],
    args: &AnswerArgs,
    format: Format,
    output: &Output,
) -> Result<(), Failure> {
    let cannot = |path: &Path, error: &dyn std::fmt::Display| {
        Failure::input(format!("cannot write {}: {error}", path.display()))
    };
    if let Some(path) = &args.parquet {
        let bytes = parquet::write(&header.question, rows).map_err(|e| cannot(path, &e))?;
        fs::write(path, bytes).map_err(|e| cannot(path, &e))?;
    }
    if let Some(path) = &args.svg {
        fs::write(path, render::sweep::svg(header, rows)).map_err(|e| cannot(path, &e))?;
    }
    output.write(&render::sweep::render(header, rows, args, format, output))
}

/// What a sweep is made of, beside its files.
pub(super) struct Asked {
    /// What is set, swept and drawn.
    pub asking: Asking,
    /// Whether logs are checked.
    pub checking: Checking,
    /// What a bad row of a recorded workload does.
    pub bad_rows: BadRows,
    /// Whether quiet stretches are skipped.
    pub pace: Pace,
}

fn points(args: &QuestionArgs, drive: &DriveArgs, output: &Output) -> Result<Points, Failure> {
    let mut set = args.changes.texts()?;
    set.extend(args.neighbours.iter().map(|how| format!("neighbours={how}")));
    let seeds = args.seeds.clone().or_else(|| args.seed.map(Seeds::one));
    let asked = Asked {
        asking: Asking { set, over: over(args)?, seeds },
        checking: if drive.checked { Checking::Whole } else { Checking::None },
        bad_rows: if args.strict_input { BadRows::Refused } else { BadRows::LeftOut },
        pace: Pace::Skipping,
    };
    points_of(&args.scenarios, asked, output)
}

/// Reads the scenarios and tries every value.
pub(super) fn points_of(
    paths: &[PathBuf],
    asked: Asked,
    output: &Output,
) -> Result<Points, Failure> {
    let (files, broken) = super::run::files(paths);
    if let Some((_, Fate::Failed(failure))) = broken.into_iter().next() {
        return Err(failure);
    }
    let read = |file: &PathBuf| {
        let (file, text) = text_of(file, output)?;
        Ok(Source { file, text })
    };
    let sources: Vec<Source> = files.iter().map(read).collect::<Result<_, Failure>>()?;
    let found = ask(&sources, &asked.asking, env!("CARGO_PKG_VERSION")).map_err(Failure::input)?;
    found.notes.iter().for_each(|note| output.note(&format!("note: {note}")));
    let Asked { checking, bad_rows, pace, .. } = asked;
    Ok(Points::new(found.question, sources, How { checking, bad_rows, pace }))
}

/// What is swept: the short names in their order, then the paths as typed.
fn over(args: &QuestionArgs) -> Result<Vec<Ask>, Failure> {
    let ranges = [&args.fraction, &args.chunk, &args.max_running, &args.tp];
    let aliases = ALIASES.into_iter().zip(ranges);
    let mut all: Vec<Ask> = aliases
        .filter_map(|(alias, range)| Some(Ask::Alias { alias, range: range.clone()? }))
        .collect();
    for text in &args.over {
        let Some((path, range)) = text.split_once('=') else {
            let message = format!("--over: `{text}` has no `=`; allowed: PATH=RANGE");
            return Err(Failure::input(message));
        };
        let (path, range) = (path.trim().to_owned(), range.to_owned());
        all.push(Ask::Path { path, range });
    }
    Ok(all)
}

/// Runs what is left to run, and keeps rows in a file where one is given.
pub(super) fn drive_rows(
    points: &Points,
    (shard, out): (Shard, Option<&Path>),
    threads: usize,
    interrupt: &Interrupt,
    output: &Output,
) -> Result<(Vec<Row>, End), Failure> {
    let (file, rows) = match out {
        None => (None, Vec::new()),
        Some(path) => {
            let header = Header { question: points.question.clone(), shard };
            let path = rows_path(path, shard)?;
            let (file, rows) = RowsFile::open(&path, &header).map_err(Failure::input)?;
            (Some(file), rows)
        }
    };
    let total = shard.count(points.question.points());
    let progress = Progress::new(&points.question, total, &rows, output);
    let done = rows.len() as u64;
    if done > 0 {
        let (done, total) = (group_thousands(done), group_thousands(total));
        output.note(&format!("{done} of {total} points are there already"));
    }
    let interrupted = || interrupt.is_asked();
    let drive = Drive { points, shard, done, threads, interrupted: &interrupted };
    let mut taker = Rows { file, question: &points.question, rows, progress };
    let ended = drive.run(&mut taker);
    taker.progress.close();
    match ended {
        Ok(end) => Ok((taker.rows, end)),
        Err(DriveError::Taker(error)) => Err(Failure::input(error)),
        Err(error) => Err(Failure::input(format!("error: {error}"))),
    }
}

/// The file of rows: itself, or one in a folder. A name that ends with `/` is a folder to be made.
fn rows_path(path: &Path, shard: Shard) -> Result<PathBuf, Failure> {
    let is_folder = path.is_dir() || path.as_os_str().to_string_lossy().ends_with('/');
    if !is_folder {
        return Ok(path.to_path_buf());
    }
    fs::create_dir_all(path)
        .map_err(|error| Failure::input(format!("cannot write {}: {error}", path.display())))?;
    Ok(path.join(name_in_folder(shard)))
}

/// Takes rows as they come: into the file, and kept for the answer.
struct Rows<'q> {
    file: Option<RowsFile>,
    question: &'q Question,
    rows: Vec<Row>,
    progress: Progress<'q>,
}

impl Taker for Rows<'_> {
    type Error = RowsError;

    fn finished(&mut self, row: &Row) {
        self.progress.finished(row);
    }

    fn waited(&mut self) {
        self.progress.show();
    }

    fn take(&mut self, row: Row) -> Result<(), RowsError> {
        if let Some(file) = &mut self.file {
            file.line(&row.line(self.question))?;
        }
        self.rows.push(row);
        Ok(())
    }
}
