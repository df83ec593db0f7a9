//! Tables with a header: Azure, BurstGPT, vidur. Columns are found by their names, never by their place:
//! BurstGPT's second release puts new ones in the middle.

use super::{
    Format, Reading,
    error::{BadRow, ImportError},
    lines::Lines,
    trace::NewRow,
};
use plimsoll_core::units::Nanos;
use std::{borrow::Cow, io::BufRead};

/// The cells of a line; a quoted one may hold commas, and quotes written twice.
pub(super) fn cells(line: &str) -> Vec<Cow<'_, str>> {
    if !line.contains('"') {
        return line.split(',').map(Cow::Borrowed).collect();
    }
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                cell.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(Cow::Owned(std::mem::take(&mut cell))),
            c => cell.push(c),
        }
    }
    cells.push(Cow::Owned(cell));
    cells
}

/// Names of the columns of a format: time, prompt, answer.
const fn columns(format: Format) -> [&'static str; 3] {
    match format {
        Format::Azure => ["TIMESTAMP", "ContextTokens", "GeneratedTokens"],
        Format::BurstGpt => ["Timestamp", "Request tokens", "Response tokens"],
        _ => ["arrived_at", "num_prefill_tokens", "num_decode_tokens"],
    }
}

/// Where they stand in this file; vidur's file of lengths alone has no times.
struct Places {
    names: [&'static str; 3],
    time: Option<usize>,
    input: usize,
    output: usize,
}

impl Places {
    fn find(format: Format, header: &str) -> Result<Self, ImportError> {
        let names = columns(format);
        let header = cells(header);
        let place =
            |name: &str| header.iter().position(|cell| cell.trim().eq_ignore_ascii_case(name));
        let needed = |name: &str| {
            place(name).ok_or_else(|| {
                let header = super::error::shown(&header.join(","));
                let format = format.name();
                ImportError::File(format!(
                    "line 1: `{format}` needs a column `{name}`; it has `{header}`"
                ))
            })
        };
        let time = if format == Format::Vidur { place(names[0]) } else { Some(needed(names[0])?) };
        Ok(Self { names, time, input: needed(names[1])?, output: needed(names[2])? })
    }

    fn row(&self, format: Format, line: &str) -> Result<(Nanos, u64, u64), BadRow> {
        let cells = cells(line);
        let cell = |place: usize, name: &str| -> Result<&str, BadRow> {
            let cell = cells.get(place).map(|cell| cell.trim()).filter(|cell| !cell.is_empty());
            cell.ok_or_else(|| BadRow::missing(name, "a value"))
        };
        let at = |place: usize| Some(column(&cells, place));
        let tokens = |place: usize, name: &str| {
            let text = cell(place, name)?;
            let tokens =
                whole(text).ok_or_else(|| BadRow::new(name, text, "a whole number of tokens"));
            tokens.map_err(|bad| bad.at(0, at(place)))
        };
        let time = match self.time {
            None => Nanos(0),
            Some(place) => {
                let text = cell(place, self.names[0])?;
                let (time, expected) = match format {
                    Format::Azure => {
                        (date_time(text), "a time such as `2023-11-16 18:15:46.6805900`")
                    }
                    _ => (seconds(text), "seconds, such as `185` or `0.125`"),
                };
                time.ok_or_else(|| BadRow::new(self.names[0], text, expected).at(0, at(place)))?
            }
        };
        Ok((time, tokens(self.input, self.names[1])?, tokens(self.output, self.names[2])?))
    }
}

/// Column of a cell in characters, from 1, where no cell is quoted.
fn column(cells: &[Cow<'_, str>], place: usize) -> u64 {
    cells.iter().take(place).map(|cell| cell.chars().count() as u64 + 1).sum::<u64>() + 1
}

/// A whole number; tables of floats write it with `.0`.
fn whole(text: &str) -> Option<u64> {
    let (digits, rest) = text.split_once('.').unwrap_or((text, ""));
    rest.bytes().all(|b| b == b'0').then(|| digits.parse().ok()).flatten()
}

/// Decimal seconds, to the nearest nanosecond below.
pub(super) fn seconds(text: &str) -> Option<Nanos> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let whole: u64 = if whole.is_empty() { 0 } else { digits(whole)? };
    let nanos = whole.checked_mul(1_000_000_000)?.checked_add(fraction(part)?)?;
    (nanos < 1 << 63).then_some(Nanos(nanos))
}

/// Digits behind a point as nanoseconds, however many there are; Azure writes seven.
fn fraction(part: &str) -> Option<u64> {
    if part.is_empty() {
        return Some(0);
    }
    digits(part.get(..part.len().min(18))?)?;
    let nine: String = part.chars().chain(std::iter::repeat('0')).take(9).collect();
    digits(&nine)
}

fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// `2023-11-16 18:15:46.6805900`, also with `T` and a zone of `Z` or `+00:00`; since 1970.
pub(super) fn date_time(text: &str) -> Option<Nanos> {
    let text = text.trim_end_matches('Z');
    let text = text.strip_suffix("+00:00").unwrap_or(text);
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(digits);
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.splitn(3, ':');
    let (hour, minute) = (digits(time.next()?)?, digits(time.next()?)?);
    let second = seconds(time.next()?)?;
    let valid = (1970..=2400).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second.0 < 61_000_000_000;
    if !valid {
        return None;
    }
    let whole = days(year, month, day) * 86_400 + hour * 3600 + minute * 60;
    Some(Nanos(whole * 1_000_000_000 + second.0))
}

/// Days from 1970-01-01 to a day of the Gregorian calendar.
const fn days(year: u64, month: u64, day: u64) -> u64 {
    // Years that begin in March, so that the leap day is the last of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let before = year * 365 + year / 4 - year / 100 + year / 400;
    before + (153 * month + 2) / 5 + day - 1 - 719_468
}

pub(super) fn read(input: &mut dyn BufRead, reading: &mut Reading<'_>) -> Result<(), ImportError> {
    let format = reading.format;
    let mut lines = Lines::new(input);
    let header = match lines.next()? {
        Some((_, Ok(header))) => header,
        Some((line, Err(bad))) => return Err(ImportError::Row(bad.at(line, None))),
        None => return Err(ImportError::File("the file is empty".to_owned())),
    };
    let places = Places::find(format, header)?;
    if places.time.is_none() {
        reading.notes.push("the file has no times: all rows are due at once".to_owned());
    }
    while !reading.is_full()
        && let Some((line, text)) = lines.next()?
    {
        match text.and_then(|text| places.row(format, text)) {
            Err(bad) => {
                let column = bad.column;
                reading.drops.bad(bad.at(line, column))?;
            }
            Ok((at, input, output)) => {
                let Some(lengths) = reading.lengths(line, input, output)? else { continue };
                let (input, output) = (lengths.input, lengths.output);
                reading.rows.push(NewRow { at, input, output, ..NewRow::default() });
            }
        }
    }
    Ok(())
}
