//! Files of rows: a header line, then one line a point, in the order of the points.
//!
//! A file grows by whole lines in that order, so at every moment, and after a kill at any byte, it is a
//! beginning of the finished file. Going on means: drop a torn last line, count the rows, run the rest.

use crate::{
    question::header::{Header, Shard},
    row::Row,
};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Seek as _, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// Why a file of rows cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RowsError {
    /// The file.
    #[error("{file}: {error}")]
    Io {
        /// Which.
        file: String,
        /// Why.
        error: io::Error,
    },
    /// What stands in it.
    #[error("{file}:{line}: {why}")]
    Content {
        /// Which.
        file: String,
        /// Its line, from 1.
        line: u64,
        /// What is wrong.
        why: String,
    },
    /// It answers another question.
    #[error("{file} answers another question: {what}; write to another file, or remove this one")]
    Other {
        /// Which.
        file: String,
        /// What differs.
        what: String,
    },
}

/// What stands in a file.
#[derive(Clone, PartialEq, Debug)]
pub struct RowsRead {
    /// Its first line; `None`: the file breaks off in it.
    pub header: Option<Header>,
    /// Its rows.
    pub rows: Vec<Row>,
    /// Bytes of its whole lines.
    pub whole: u64,
    /// Bytes behind them.
    pub torn: u64,
}

/// Reads a text of rows; `file` is its name in messages. A torn last line is left out.
///
/// # Errors
///
/// [`RowsError::Content`]: a line that is no row of the header's sweep, or out of order.
pub fn read(file: &str, bytes: &[u8]) -> Result<RowsRead, RowsError> {
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let wrong = |line: usize, why: String| RowsError::Content {
        file: file.to_owned(),
        line: line as u64 + 1,
        why,
    };
    let (whole, torn) = bytes.split_at(end);
    let mut read = RowsRead {
        header: None,
        rows: Vec::new(),
        whole: whole.len() as u64,
        torn: torn.len() as u64,
    };
    let Ok(text) = std::str::from_utf8(whole) else {
        return Err(wrong(0, "the file holds bytes that are not UTF-8".to_owned()));
    };
    let mut lines = text.lines().enumerate();
    let Some((_, first)) = lines.next() else { return Ok(read) };
    let header = Header::read(first).map_err(|why| wrong(0, why))?;
    for (at, line) in lines {
        let row = Row::read(line, &header.question).map_err(|why| wrong(at, why))?;
        let expected = header.shard.index(read.rows.len() as u64);
        if row.index != expected || expected >= header.question.points() {
            return Err(wrong(
                at,
                format!("the row {} stands where {expected} belongs", row.index),
            ));
        }
        read.rows.push(row);
    }
    read.header = Some(header);
    Ok(read)
}

/// Reads a file of rows.
///
/// # Errors
///
/// [`RowsError`].
pub fn read_file(path: &Path) -> Result<RowsRead, RowsError> {
    let file = path.display().to_string();
    let bytes = fs::read(path).map_err(|error| RowsError::Io { file: file.clone(), error })?;
    read(&file, &bytes)
}

/// A file that rows are added to.
#[derive(Debug)]
pub struct RowsFile {
    file: File,
    path: PathBuf,
}

impl RowsFile {
    /// Opens a file of rows to add to it, and answers the rows that it has. A new file gets its header.
    ///
    /// # Errors
    ///
    /// [`RowsError::Other`] when it answers another question; others as in [`read_file`].
    pub fn open(path: &Path, header: &Header) -> Result<(Self, Vec<Row>), RowsError> {
        let io = |error| RowsError::Io { file: path.display().to_string(), error };
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path).map_err(io)?;
        let found = read_file(path)?;
        match &found.header {
            Some(there) => {
                if let Some(what) = there.difference(header) {
                    return Err(RowsError::Other { file: path.display().to_string(), what });
                }
            }
            // Whatever else begins so is not ours to overwrite.
            None if found.torn > 0 && !is_begun(path, header).map_err(io)? => {
                let what = "it is no file of rows".to_owned();
                return Err(RowsError::Other { file: path.display().to_string(), what });
            }
            None => {}
        }
        file.set_len(found.whole).map_err(io)?;
        file.seek(SeekFrom::End(0)).map_err(io)?;
        let mut rows = Self { file, path: path.to_path_buf() };
        if found.header.is_none() {
            rows.line(&header.line())?;
        }
        Ok((rows, found.rows))
    }

    /// Adds one line; it is handed to the system in one piece.
    ///
    /// # Errors
    ///
    /// [`RowsError::Io`].
    pub fn line(&mut self, line: &str) -> Result<(), RowsError> {
        let whole = format!("{line}\n");
        self.file
            .write_all(whole.as_bytes())
            .map_err(|error| RowsError::Io { file: self.path.display().to_string(), error })
    }
}

/// Whether the file is a beginning of the header's line.
fn is_begun(path: &Path, header: &Header) -> io::Result<bool> {
    Ok(header.line().as_bytes().starts_with(&fs::read(path)?))
}

/// The name of a file of rows in a folder.
#[must_use]
pub fn name_in_folder(shard: Shard) -> String {
    match shard {
        Shard::WHOLE => "sweep.jsonl".to_owned(),
        Shard { part, of } => format!("sweep-{part}-of-{of}.jsonl"),
    }
}

/// The whole text of a file of rows.
#[must_use]
pub fn text(header: &Header, rows: &[Row]) -> String {
    let mut out = header.line() + "\n";
    for row in rows {
        out.push_str(&row.line(&header.question));
        out.push('\n');
    }
    out
}
