//! A file line by line, in one buffer that is used again.

use super::error::{BadRow, ImportError, shown};
use std::io::{BufRead, Read as _};

/// Longest line: a prompt of 2^30 tokens in blocks of 16 has no more ids.
const MAX_LINE: usize = 64 << 20;

/// Number of a line from 1, and its text; `Err` where it is none.
pub(super) type Line<'t> = (u64, Result<&'t str, BadRow>);

/// Lines of a file.
pub(super) struct Lines<'a> {
    input: &'a mut dyn BufRead,
    buffer: Vec<u8>,
    number: u64,
}

impl<'a> Lines<'a> {
    pub(super) const fn new(input: &'a mut dyn BufRead) -> Self {
        Self { input, buffer: Vec::new(), number: 0 }
    }

    /// The next line that is not blank, without its end.
    pub(super) fn next(&mut self) -> Result<Option<Line<'_>>, ImportError> {
        loop {
            self.buffer.clear();
            let limit = MAX_LINE as u64 + 1;
            let read = (&mut *self.input).take(limit).read_until(b'\n', &mut self.buffer)?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            if read > MAX_LINE {
                let place = self.number;
                return Err(ImportError::File(format!(
                    "line {place} is longer than {MAX_LINE} bytes"
                )));
            }
            if !self.buffer.iter().all(u8::is_ascii_whitespace) {
                break;
            }
        }
        let bytes = self.buffer.as_slice();
        // A byte order mark, as spreadsheets write it.
        let bytes = match self.number {
            1 => bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes),
            _ => bytes,
        };
        let text = std::str::from_utf8(bytes).map(|text| text.trim_end_matches(['\r', '\n']));
        let text = text.map_err(|error| {
            let valid = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            let column = valid.chars().count() as u64 + 1;
            BadRow::new("line", shown(&valid), "UTF-8 text").at(self.number, Some(column))
        });
        Ok(Some((self.number, text)))
    }
}
