//! Ground truth made by running the engines' own functions, compared row by row.
//! `PLIMSOLL_VECTORS=<folder>` reads files of the same columns from that folder instead.

mod quiet;
mod requests;
mod sched;
mod sglang_auto;
mod sglang_pool;
mod sglang_seed;
mod sglang_small;
mod sglang_startup;
mod tape;
mod tape_sizes;
mod torch_alloc;
mod vllm;
mod vllm_sched;
mod vllm_startup;

use std::{
    ffi::OsStr,
    io::Read,
    path::{Path, PathBuf},
};

/// The folder that holds vectors: `PLIMSOLL_VECTORS`, else the project's own.
pub(crate) fn vector_folder() -> PathBuf {
    match std::env::var_os("PLIMSOLL_VECTORS") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder),
        _ => Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors"),
    }
}

/// Whether `PLIMSOLL_VECTORS` names another folder.
pub(crate) fn is_elsewhere() -> bool {
    std::env::var_os("PLIMSOLL_VECTORS").is_some_and(|folder| !folder.is_empty())
}

/// Contents of a file; `.gz` is unpacked.
pub(crate) fn read_text(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    if path.extension() == Some(OsStr::new("gz")) {
        let mut text = String::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap();
        return text;
    }
    String::from_utf8(bytes).unwrap()
}

/// The traces of a file of the project, with their names.
pub(crate) fn packed(file: &str) -> Vec<(String, serde_json::Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors");
    let line = |line: &str| {
        let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
        (line["name"].as_str().unwrap().to_owned(), line["trace"].take())
    };
    read_text(&folder.join(file)).lines().map(line).collect()
}

/// The traces of a release with their names, in the order of the names: lines of `<kind>-<release>.jsonl.gz`,
/// or files `<kind>/<release>/*.json` of another folder.
pub(crate) fn traces(kind: &str, release: &str) -> Vec<(String, serde_json::Value)> {
    if !is_elsewhere() {
        return packed(&format!("{kind}-{release}.jsonl.gz"));
    }
    let folder = vector_folder().join(kind).join(release);
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: no folder {}", folder.display());
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .filter(|path| path.file_stem().is_some_and(|stem| stem != "index"))
        .collect();
    files.sort();
    let read = |path: &PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        (name, serde_json::from_str(&read_text(path)).unwrap())
    };
    files.iter().map(read).collect()
}

/// A CSV file with its header.
pub(crate) struct Table {
    /// File name.
    pub(crate) name: String,
    header: Vec<String>,
    rows: Vec<(u64, csv::StringRecord)>,
}

/// One row; columns by name.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    /// Line in the (unpacked) file; the header is line 1, no cell holds a line break.
    pub(crate) line: u64,
    table: &'a Table,
    record: &'a csv::StringRecord,
}

impl<'a> Row<'a> {
    /// The text of a column; empty when the file lacks the column.
    pub(crate) fn text(&self, column: &str) -> &'a str {
        let index = self.table.header.iter().position(|name| name == column);
        index.and_then(|i| self.record.get(i)).unwrap_or_default()
    }

    /// A number; `None` for an empty cell or `auto`.
    pub(crate) fn number<T: std::str::FromStr>(&self, column: &str) -> Option<T> {
        match self.text(column) {
            "" | "auto" => None,
            text => match text.parse() {
                Ok(value) => Some(value),
                Err(_) => panic!("{} line {}: {column}: `{text}`", self.table.name, self.line),
            },
        }
    }

    /// A number that has to be there.
    pub(crate) fn needed<T: std::str::FromStr>(&self, column: &str) -> T {
        self.number(column)
            .unwrap_or_else(|| panic!("{} line {}: {column} is empty", self.table.name, self.line))
    }
}

impl Table {
    fn open(path: &Path) -> Self {
        let text = read_text(path);
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let header = reader.headers().unwrap().iter().map(str::to_owned).collect();
        let rows =
            reader.records().zip(2..).map(|(record, line)| (line, record.unwrap())).collect();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self { name, header, rows }
    }

    /// Its rows in order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|(line, record)| Row { line: *line, table: self, record })
    }
}

/// Every `.csv` or `.csv.gz` file of the vector folder whose name starts with `prefix` and whose
/// header has all of `columns`, by name. Says so when there is none.
pub(crate) fn tables(prefix: &str, columns: &[&str]) -> Vec<Table> {
    let folder = vector_folder();
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with(prefix) && (name.ends_with(".csv") || name.ends_with(".csv.gz"))
        })
        .collect();
    paths.sort();
    let found: Vec<Table> = paths
        .iter()
        .map(|path| Table::open(path))
        .filter(|table| columns.iter().all(|c| table.header.iter().any(|name| name == c)))
        .collect();
    if found.is_empty() {
        println!(
            "skipped: no {prefix}*.csv with the column {} in {}",
            columns[0],
            folder.display()
        );
    }
    found
}

/// Rows of one file, how many agree, and the first difference.
#[derive(Default)]
pub(crate) struct Tally {
    rows: u64,
    unequal: u64,
    first: Option<String>,
    bad_row: bool,
}

impl Tally {
    /// Starts a row.
    pub(crate) fn row(&mut self) {
        self.rows += 1;
        self.unequal += u64::from(std::mem::take(&mut self.bad_row));
    }

    /// Compares one column of a row as text.
    pub(crate) fn check(&mut self, row: &Row<'_>, column: &str, got: &str) {
        let expected = row.text(column);
        if expected != got {
            self.differs(row, column, expected, got);
        }
    }

    /// Notes a difference in one column.
    pub(crate) fn differs(&mut self, row: &Row<'_>, column: &str, expected: &str, got: &str) {
        self.bad_row = true;
        if self.first.is_none() {
            self.first =
                Some(format!("line {}, {column}: expected {expected}, got {got}", row.line));
        }
    }

    /// Prints the file's line and returns the number of rows that differ.
    pub(crate) fn close(mut self, table: &Table) -> u64 {
        self.unequal += u64::from(self.bad_row);
        let first = self.first.as_deref().unwrap_or("none");
        let equal = self.rows - self.unequal;
        println!("{}: {} rows, {equal} equal, first difference: {first}", table.name, self.rows);
        self.unequal
    }
}
