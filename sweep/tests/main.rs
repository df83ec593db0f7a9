//! Sweeps of a small scenario: the same rows whatever the threads, kills and shards.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests stand outside of test functions, where a failure is meant to stop the test"
)]

use plimsoll_replay::{
    run::run_scenario,
    scenario::{Override, Scenario},
};
use plimsoll_sweep::{
    ask::{Ask, AskError, Asking, ask},
    drive::{Drive, End, Taker},
    merge::{Completeness, MergeError, merge},
    parquet,
    points::{Checking, How, Points, Source},
    question::{
        ALIASES, Question,
        header::{Header, Shard},
    },
    row::{Cell, Fate, Row, columns},
    rows_file::{self, RowsError, RowsFile},
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

fn small() -> Source {
    Source::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/small.yaml")).unwrap()
}

fn path(path: &str, range: &str) -> Ask {
    Ask::Path { path: path.to_owned(), range: range.to_owned() }
}

fn fractions(range: &str) -> Ask {
    Ask::Alias { alias: ALIASES[0], range: range.to_owned() }
}

fn points(over: Vec<Ask>, seeds: &str) -> Points {
    let asking = Asking { set: Vec::new(), over, seeds: Some(seeds.parse().unwrap()) };
    let asked = ask(&[small()], &asking, "0.0.0").unwrap();
    Points::new(asked.question, vec![small()], How::default())
}

/// A sweep with values that refuse, live, die, and are none.
fn mixed() -> Points {
    points(vec![fractions("0.30,0.80,0.93,2"), path("workload[0].requests", "2,4")], "1..2")
}

/// Keeps the text that a file would get.
struct Text<'q> {
    question: &'q Question,
    rows: Vec<Row>,
}

impl Taker for Text<'_> {
    type Error = RowsError;

    fn finished(&mut self, _: &Row) {}

    fn waited(&mut self) {}

    fn take(&mut self, row: Row) -> Result<(), RowsError> {
        assert!(self.rows.last().is_none_or(|last| last.index < row.index));
        assert_eq!(Row::read(&row.line(self.question), self.question), Ok(row.clone()));
        self.rows.push(row);
        Ok(())
    }
}

fn rows(points: &Points, shard: Shard, threads: usize) -> Vec<Row> {
    let mut text = Text { question: &points.question, rows: Vec::new() };
    let drive = Drive { points, shard, done: 0, threads, interrupted: &|| false };
    assert_eq!(drive.run(&mut text).unwrap(), End::Whole);
    text.rows
}

/// The rows of [`mixed`], run once for all tests.
fn mixed_rows() -> &'static [Row] {
    static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
    ROWS.get_or_init(|| rows(&mixed(), Shard::WHOLE, 1))
}

fn whole(points: &Points) -> Header {
    Header { question: points.question.clone(), shard: Shard::WHOLE }
}

fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn every_fate_is_a_row() {
    let rows = mixed_rows();
    assert_eq!(rows.len(), 16);
    let outcomes: Vec<&str> = rows.iter().step_by(4).map(Row::outcome).collect();
    assert_eq!(outcomes, ["refused", "finished", "out_of_memory", "bad_input"]);
    for row in rows {
        match row.fate() {
            Fate::Lived => assert!(row.int("margin_bytes").unwrap() > 0),
            Fate::Died => assert!(row.int("margin_bytes").unwrap() < 0),
            Fate::NotStarted => assert!(row.get("reason").word().is_some()),
        }
    }
    let dead = &rows[8];
    assert_eq!(dead.get("died_in").word(), Some("prefill"));
    let short = dead.int("died_free_bytes").unwrap() - dead.int("died_segment_bytes").unwrap();
    assert_eq!(dead.int("margin_bytes"), Some(short));
}

#[test]
fn the_number_of_threads_changes_nothing() {
    for threads in [2, 4] {
        assert_eq!(rows(&mixed(), Shard::WHOLE, threads), mixed_rows());
    }
}

/// A point is the run of the same scenario with the same overrides.
#[test]
fn a_row_is_what_run_says() {
    let points = mixed();
    for row in mixed_rows() {
        let point = points.question.point(row.index).unwrap();
        let overrides = points.question.overrides(&point);
        let overrides: Vec<Override> = overrides.iter().map(|text| text.parse().unwrap()).collect();
        let source = small();
        let Ok(scenario) = Scenario::parse("small.yaml", &source.text, &overrides) else {
            assert_eq!(row.outcome(), "bad_input");
            continue;
        };
        let Ok(run) = run_scenario(scenario, &source.file) else {
            assert_eq!(row.outcome(), "bad_input");
            continue;
        };
        assert_eq!(row.get("decisions_digest").word(), Some(run.digests.decisions.as_str()));
        assert_eq!(*row, Row::of_run(row.index, &run));
    }
}

#[test]
fn checked_runs_give_the_same_rows() {
    let mut asked = mixed().question;
    asked.axes.pop();
    let checked = Points::new(
        asked.clone(),
        vec![small()],
        How { checking: Checking::Whole, ..How::default() },
    );
    let plain = Points::new(asked, vec![small()], How::default());
    assert_eq!(rows(&checked, Shard::WHOLE, 1), rows(&plain, Shard::WHOLE, 1));
}

#[test]
fn cut_at_any_byte_and_gone_on_it_is_the_same_file() {
    let points = mixed();
    let header = whole(&points);
    let text = rows_file::text(&header, mixed_rows());
    let file = folder("cut").join("rows.jsonl");
    let lines: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    let around = lines.iter().flat_map(|at| [*at - 1, *at, at + 1, at + 2]);
    let cuts: Vec<usize> = (0..text.len()).step_by(97).chain(around).chain([text.len()]).collect();
    for cut in cuts.into_iter().filter(|cut| *cut <= text.len()) {
        fs::write(&file, &text.as_bytes()[..cut]).unwrap();
        let (mut open, there) = RowsFile::open(&file, &header).unwrap();
        let done = text.as_bytes()[..cut].iter().filter(|byte| **byte == b'\n').count();
        assert_eq!(there.len(), done.saturating_sub(1), "cut at {cut}");
        for row in &mixed_rows()[there.len()..] {
            open.line(&row.line(&points.question)).unwrap();
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), text, "cut at {cut}");
    }
}

/// A sweep that is interrupted after some points, again and again, ends with the same rows.
#[test]
fn an_interrupted_sweep_goes_on_where_it_stopped() {
    let points = mixed();
    for threads in [1, 3] {
        let mut done: Vec<Row> = Vec::new();
        let mut rounds = 0;
        loop {
            let mut text = Text { question: &points.question, rows: Vec::new() };
            let asked = AtomicU64::new(0);
            // Ends in the middle of a run too: it is asked at every step.
            let interrupted = || asked.fetch_add(1, Ordering::Relaxed) > 40 + 60 * rounds;
            let drive = Drive {
                points: &points,
                shard: Shard::WHOLE,
                done: done.len() as u64,
                threads,
                interrupted: &interrupted,
            };
            let end = drive.run(&mut text).unwrap();
            done.extend(text.rows);
            rounds += 1;
            if end == End::Whole {
                break;
            }
            assert!(done.len() < mixed_rows().len());
        }
        assert!(rounds > 1, "it was never interrupted");
        assert_eq!(done, mixed_rows());
    }
}

#[test]
fn another_question_does_not_go_on_in_the_same_file() {
    let file = folder("other").join("rows.jsonl");
    let header = whole(&mixed());
    RowsFile::open(&file, &header).unwrap();
    let other = whole(&points(vec![fractions("0.80,0.90")], "1..2"));
    let error = RowsFile::open(&file, &other).unwrap_err().to_string();
    assert!(error.contains("what is swept"), "{error}");
    let shard = Header { shard: Shard { part: 1, of: 2 }, ..header.clone() };
    assert!(RowsFile::open(&file, &shard).unwrap_err().to_string().contains("the shard"));
    for foreign in ["no rows at all", "{}\n", "line\nline\n"] {
        fs::write(&file, foreign).unwrap();
        assert!(RowsFile::open(&file, &header).is_err(), "{foreign}");
        assert_eq!(fs::read_to_string(&file).unwrap(), foreign, "nothing is written over");
    }
}

#[test]
fn shards_merge_to_the_bytes_of_the_whole() {
    let points = mixed();
    let text = rows_file::text(&whole(&points), mixed_rows());
    for of in [1, 2, 3, 5, 16, 20] {
        let mut shards: Vec<(String, rows_file::RowsRead)> = (1..=of)
            .map(|part| {
                let shard = Shard { part, of };
                let header = Header { shard, ..whole(&points) };
                let mine: Vec<Row> =
                    mixed_rows().iter().filter(|row| shard.has(row.index)).cloned().collect();
                let text = rows_file::text(&header, &mine);
                (shard.to_string(), rows_file::read("shard", text.as_bytes()).unwrap())
            })
            .collect();
        shards.reverse();
        let merged = merge(shards, Completeness::Whole).unwrap();
        assert_eq!(rows_file::text(&merged.header, &merged.rows), text);
    }
    // And a shard that really ran has those rows.
    let shard = Shard { part: 2, of: 5 };
    let mine: Vec<Row> = mixed_rows().iter().filter(|row| shard.has(row.index)).cloned().collect();
    assert_eq!(rows(&points, shard, 2), mine);
}

#[test]
fn what_is_no_whole_sweep_does_not_merge() {
    let points = mixed();
    let shard = |part, rows: &[Row]| {
        let shard = Shard { part, of: 2 };
        let mine: Vec<Row> = rows.iter().filter(|row| shard.has(row.index)).cloned().collect();
        let text = rows_file::text(&Header { shard, ..whole(&points) }, &mine);
        (format!("part{part}"), rows_file::read("part", text.as_bytes()).unwrap())
    };
    let all = mixed_rows();
    let error = |shards, completeness| merge(shards, completeness).unwrap_err();
    let missing = error(vec![shard(1, all)], Completeness::Whole).to_string();
    assert!(missing.contains("8 of 16 points are missing: 1, 3, 5"), "{missing}");
    let partial = merge(vec![shard(1, all)], Completeness::Partial).unwrap();
    assert_eq!((partial.rows.len(), partial.missing), (8, 8));
    let twice = error(vec![shard(1, all), shard(1, all)], Completeness::Whole);
    assert!(matches!(twice, MergeError::Twice { index: 0, .. }));
    let mut changed = all.to_vec();
    changed[0].cells[20] = Cell::Int(77);
    let conflict = error(vec![shard(1, all), shard(1, &changed)], Completeness::Whole);
    assert!(matches!(conflict, MergeError::Conflict { index: 0, .. }));
    let other = whole(&self::points(vec![fractions("0.80,0.90")], "1..2"));
    let other = rows_file::read("o", rows_file::text(&other, &[]).as_bytes()).unwrap();
    let other = error(vec![shard(1, all), ("o".to_owned(), other)], Completeness::Whole);
    assert!(matches!(other, MergeError::Other { .. }));
    let torn = rows_file::read("t", b"{\"schema\"").unwrap();
    let torn = error(vec![("t".to_owned(), torn)], Completeness::Partial);
    assert!(matches!(torn, MergeError::NoHeader(_)));
    assert!(matches!(error(Vec::new(), Completeness::Whole), MergeError::Nothing));
}

#[test]
fn a_slip_of_the_pen_is_told_before_anything_runs() {
    let error = |over: Vec<Ask>| {
        let asking = Asking { set: Vec::new(), over, seeds: None };
        ask(&[small()], &asking, "0.0.0").unwrap_err()
    };
    let near = error(vec![path("engine.flags.mem-fraction-statc", "0.8,0.9")]);
    assert!(matches!(near, AskError::UnknownFlag { .. }));
    assert!(near.to_string().contains("did you mean `--mem-fraction-static`"), "{near}");
    let near = error(vec![path("workload[0].request", "1,2")]).to_string();
    assert!(near.contains("did you mean `requests`"), "{near}");
    let near = error(vec![path("enginee.version", "1,2")]).to_string();
    assert!(near.contains("did you mean `engine`"), "{near}");
    let none = error(vec![path("workload[3].requests", "1,2")]).to_string();
    assert!(none.contains("no [3]"), "{none}");
    assert!(matches!(error(vec![fractions("0.9..0.8:0.1")]), AskError::Range { .. }));
    assert!(matches!(error(vec![path("seed", "1,2")]), AskError::Question(_)));
    let asking = Asking::default();
    let twice = ask(&[small(), small()], &asking, "0.0.0").unwrap_err();
    assert!(matches!(twice, AskError::SameName(_)));
}

/// A value that is none is a row as long as another one is right.
#[test]
fn a_wrong_value_among_right_ones_is_no_error() {
    let points = points(vec![fractions("0.8"), path("workload[0].requests", "0,2")], "1..1");
    let rows = rows(&points, Shard::WHOLE, 1);
    assert_eq!(rows[0].outcome(), "bad_input");
    assert!(rows[0].get("reason").word().unwrap().contains("workload[0].requests"));
    assert_eq!(rows[1].outcome(), "finished");
}

#[test]
fn parquet_reads_back_cell_by_cell() {
    use ::parquet::{
        file::reader::{FileReader as _, SerializedFileReader},
        record::Field,
    };
    let points = mixed();
    let bytes = parquet::write(&points.question, mixed_rows()).unwrap();
    assert_eq!(parquet::write(&points.question, mixed_rows()).unwrap(), bytes);
    let file = folder("parquet").join("rows.parquet");
    fs::write(&file, bytes).unwrap();
    let reader = SerializedFileReader::new(fs::File::open(&file).unwrap()).unwrap();
    let names: Vec<String> = columns(&points.question).into_iter().map(|(name, _)| name).collect();
    let mut count = 0;
    for (read, row) in reader.get_row_iter(None).unwrap().zip(mixed_rows()) {
        let read = read.unwrap();
        let cells = row.all_cells(&points.question);
        for (((name, field), cell), expected) in read.get_column_iter().zip(&cells).zip(&names) {
            assert_eq!(name, expected);
            let same = match (field, cell) {
                (Field::Null, Cell::Null) => true,
                (Field::Long(a), Cell::Int(b)) => a == b,
                (Field::Double(a), Cell::Float(b)) => a == b,
                (Field::Str(a), Cell::Text(b)) => a == b,
                _ => false,
            };
            assert!(same, "{name}: {field:?}, not {cell:?}");
        }
        count += 1;
    }
    assert_eq!(count, mixed_rows().len());
}

/// `docs/sweep.md` lists the columns. `PLIMSOLL_WRITE_DOCS=1` writes them anew.
#[test]
fn the_table_of_columns_is_that_of_the_rows() {
    use plimsoll_sweep::row::{Kind, RESULTS, WHICH};
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/sweep.md");
    let text = fs::read_to_string(&page).unwrap();
    let (begin, end) = ("<!-- columns: begin -->\n", "<!-- columns: end -->\n");
    let (before, rest) = text.split_once(begin).unwrap();
    let (table, after) = rest.split_once(end).unwrap();
    let line = |column: &plimsoll_sweep::row::Column| {
        let kind = match column.kind {
            Kind::Int => "integer",
            Kind::Float => "double",
            Kind::Text => "text",
        };
        format!("| `{}` | {kind} | {} |\n", column.name, column.doc)
    };
    let expected: String = WHICH.iter().chain(&RESULTS).map(line).collect();
    let expected = format!("| column | type | meaning |\n|---|---|---|\n{expected}");
    if std::env::var_os("PLIMSOLL_WRITE_DOCS").is_some() {
        fs::write(&page, format!("{before}{begin}{expected}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(table, expected, "run this test with PLIMSOLL_WRITE_DOCS=1 to write the table anew");
}
