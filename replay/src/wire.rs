//! The decision log on disk: JSON Lines with a header, one record a line, and a footer with digests.
//! A log that was cut off reads up to the cut and says so.

use crate::{
    digest::{Digester, Digests},
    record::{DigestScope, FieldValue, Fields, RESERVED, Record, write_text},
};
use plimsoll_core::decision;
use serde_json::{Map, Value};
use std::io::{self, BufRead, Write};

/// Name and version of the format; the first key of the first line.
pub const SCHEMA: &str = "plimsoll.log/1";
/// Longest line that is read, in bytes.
pub const MAX_LINE: usize = 16 << 20;

/// How a run ended, as the footer says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closing {
    /// The run came to its end.
    Complete,
    /// The run was interrupted; what stands before is right as far as it goes.
    Interrupted,
}

impl Closing {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Why a log cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The file cannot be written or read.
    #[error("the log cannot be written or read: {0}")]
    Io(#[from] io::Error),
    /// A field has the name of a part of the line, or the name of a field before it.
    #[error("record {kind:?} has a field {field:?} whose name is taken")]
    FieldName {
        /// Kind of the record.
        kind: String,
        /// The name.
        field: String,
    },
    /// A whole line that is no line of a log.
    #[error("line {line} (byte {offset}) is no line of a decision log: {why}")]
    Line {
        /// From 1.
        line: usize,
        /// Where the line begins.
        offset: u64,
        /// What is wrong.
        why: String,
    },
    /// The file is something else, or a log of another version.
    #[error("this is no `{SCHEMA}` log: {0}")]
    Schema(String),
}

/// Writes a log. [`LogWriter::finish`] adds the footer; without it the log reads as incomplete.
#[derive(Debug)]
pub struct LogWriter<W: Write> {
    out: W,
    next: u64,
    digester: Digester,
}

impl<W: Write> LogWriter<W> {
    /// Begins a log. Scenario and seed belong to the decided fields of `header`; the tool's version, the
    /// backend and the host to the measured ones.
    ///
    /// # Errors
    /// When `out` fails, or a field's name is taken.
    pub fn new(mut out: W, header: &Fields) -> Result<Self, WireError> {
        check_names("header", header)?;
        let line = header_line(header);
        let mut digester = Digester::default();
        digester.header(header, &line);
        writeln!(out, "{line}")?;
        Ok(Self { out, next: 0, digester })
    }

    /// Adds one record and numbers it; its own `seq` is ignored. Returns the number.
    ///
    /// # Errors
    /// When the file fails, or a field's name is taken.
    pub fn push(&mut self, mut record: Record) -> Result<u64, WireError> {
        check_names(&record.kind, &record.fields)?;
        record.seq = self.next;
        let line = record.line();
        self.digester.record(&record, &line);
        writeln!(self.out, "{line}")?;
        self.next += 1;
        Ok(record.seq)
    }

    /// Adds a decision as the engine made it: the line of [`crate::run::wire_record`], without a detour.
    ///
    /// # Errors
    /// When the file fails.
    pub fn push_decision(&mut self, record: &decision::Record) -> Result<(), WireError> {
        self.out.write_all(self.digester.decision(self.next, record))?;
        self.next += 1;
        Ok(())
    }

    /// The digests so far.
    #[must_use]
    pub fn digests(&self) -> Digests {
        self.digester.digests()
    }

    /// Adds the footer and flushes.
    ///
    /// # Errors
    /// When the file fails.
    pub fn finish(mut self, closing: Closing) -> Result<(W, Digests), WireError> {
        let digests = self.digester.digests();
        writeln!(
            self.out,
            "{{\"footer\":\"{}\",\"records\":{},\"decisions\":\"{}\",\"full\":\"{}\"}}",
            closing.as_str(),
            self.next,
            digests.decisions,
            digests.full
        )?;
        self.out.flush()?;
        Ok((self.out, digests))
    }
}

fn header_line(fields: &Fields) -> String {
    let mut line = String::from("{\"schema\":");
    write_text(&mut line, SCHEMA);
    fields.write_decided(&mut line);
    fields.write_measured(&mut line);
    line.push('}');
    line
}

fn check_names(kind: &str, fields: &Fields) -> Result<(), WireError> {
    let taken = |group: &[(String, FieldValue)]| {
        group.iter().enumerate().find_map(|(i, (name, _))| {
            let twice = group[..i].iter().any(|(before, _)| before == name);
            (twice || RESERVED.contains(&name.as_str())).then(|| name.clone())
        })
    };
    match taken(&fields.decided).or_else(|| taken(&fields.measured)) {
        Some(field) => Err(WireError::FieldName { kind: kind.to_owned(), field }),
        None => Ok(()),
    }
}

/// The last line of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Footer {
    /// How the run ended.
    pub closing: Closing,
    /// How many records stand before.
    pub records: u64,
    /// Digests that the writer computed.
    pub digests: Digests,
}

/// A log that was read.
#[derive(Clone, PartialEq, Debug)]
pub struct Log {
    /// Fields of the header.
    pub header: Fields,
    /// The records, in order.
    pub records: Vec<Record>,
    /// The footer, unless the log was cut off before it.
    pub footer: Option<Footer>,
    /// Whether the footer is there and says that the run came to its end.
    pub complete: bool,
    /// Where the line begins that was cut off, in bytes; the length of the file when the cut fell between
    /// lines; `None` when nothing is missing.
    pub cut_at: Option<u64>,
    /// Digests over what was read.
    pub digests: Digests,
}

impl Log {
    /// Whether the digests of the footer are those of the records; `None` without a footer.
    #[must_use]
    pub fn digests_agree(&self) -> Option<bool> {
        self.footer.as_ref().map(|footer| footer.digests == self.digests)
    }

    /// Reads a log, as far as it goes.
    ///
    /// # Errors
    /// When the file cannot be read, is no log, or has a broken line that another line follows. A broken
    /// last line is a cut, and no error.
    pub fn read(mut input: impl BufRead) -> Result<Self, WireError> {
        let mut reader = Reader::default();
        loop {
            let offset = reader.offset;
            let Some((text, ended)) = next_line(&mut input)? else { break };
            reader.line += 1;
            reader.offset += text.len() as u64 + u64::from(ended);
            let line = reader.line;
            match reader.take(&text) {
                Ok(()) => {}
                Err(Refused::Json(_)) if !ended && reader.header.is_some() => {
                    reader.cut_at = Some(offset);
                    break;
                }
                Err(Refused::Json(why) | Refused::Content(why)) => {
                    return Err(match reader.header {
                        None => WireError::Schema(why),
                        Some(_) => WireError::Line { line, offset, why },
                    });
                }
            }
        }
        reader.into_log()
    }
}

/// The bytes of a line and whether its end was there; `None` at the end of the file.
fn next_line(input: &mut impl BufRead) -> io::Result<Option<(Vec<u8>, bool)>> {
    let mut bytes = Vec::new();
    let mut limited = io::Read::take(&mut *input, MAX_LINE as u64);
    limited.read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    let ended = bytes.last() == Some(&b'\n');
    if ended {
        bytes.pop();
    } else if bytes.len() == MAX_LINE {
        let message = format!("a line is longer than {MAX_LINE} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(Some((bytes, ended)))
}

/// Why a line is refused: JSON that does not parse may be a cut, the rest may not.
enum Refused {
    Json(String),
    Content(String),
}

#[derive(Default)]
struct Reader {
    header: Option<Fields>,
    records: Vec<Record>,
    footer: Option<Footer>,
    digester: Digester,
    line: usize,
    offset: u64,
    cut_at: Option<u64>,
}

impl Reader {
    fn take(&mut self, text: &[u8]) -> Result<(), Refused> {
        let value: Value =
            serde_json::from_slice(text).map_err(|error| Refused::Json(error.to_string()))?;
        let Value::Object(map) = value else {
            return Err(Refused::Content("it is no JSON object".to_owned()));
        };
        self.take_line(&map).map_err(Refused::Content)
    }

    fn take_line(&mut self, map: &Map<String, Value>) -> Result<(), String> {
        if self.footer.is_some() {
            return Err("it stands after the footer".to_owned());
        }
        if self.header.is_none() {
            let header = read_header(map)?;
            self.digester.header(&header, &header_line(&header));
            self.header = Some(header);
        } else if map.contains_key("footer") {
            let footer = read_footer(map)?;
            if footer.records != self.records.len() as u64 {
                let (said, there) = (footer.records, self.records.len());
                return Err(format!(
                    "the footer counts {said} records, and {there} stand before it"
                ));
            }
            self.footer = Some(footer);
        } else {
            let record = read_record(map)?;
            if record.seq != self.records.len() as u64 {
                let (seq, due) = (record.seq, self.records.len());
                return Err(format!("`seq` is {seq}, and {due} is due"));
            }
            // The line is written anew: digests are over values, not over blanks in a file.
            self.digester.record(&record, &record.line());
            self.records.push(record);
        }
        Ok(())
    }

    fn into_log(self) -> Result<Log, WireError> {
        let Some(header) = self.header else {
            return Err(WireError::Schema("the file is empty".to_owned()));
        };
        let complete = self.footer.as_ref().is_some_and(|f| f.closing == Closing::Complete);
        let cut_at = self.cut_at.or_else(|| self.footer.is_none().then_some(self.offset));
        let digests = self.digester.digests();
        Ok(Log { header, records: self.records, footer: self.footer, complete, cut_at, digests })
    }
}

fn read_header(map: &Map<String, Value>) -> Result<Fields, String> {
    match map.get("schema") {
        Some(Value::String(schema)) if schema == SCHEMA => read_fields(map),
        Some(Value::String(other)) => Err(format!("its schema is {other:?}")),
        Some(_) => Err("its schema is no text".to_owned()),
        None => Err("its first line has no `schema`".to_owned()),
    }
}

fn read_record(map: &Map<String, Value>) -> Result<Record, String> {
    let seq = map.get("seq").and_then(Value::as_u64).ok_or("it has no `seq`")?;
    let kind = map.get("kind").and_then(Value::as_str).ok_or("it has no `kind`")?.to_owned();
    let rank = match map.get("rank") {
        None => None,
        Some(rank) => {
            let rank = rank.as_u64().and_then(|rank| u32::try_from(rank).ok());
            Some(rank.ok_or("its `rank` is no rank")?)
        }
    };
    let scope = match map.get("scope").map(Value::as_str) {
        None => DigestScope::Decisions,
        Some(Some("measured")) => DigestScope::Measured,
        Some(_) => return Err("its `scope` is not `measured`".to_owned()),
    };
    Ok(Record { seq, rank, kind, scope, fields: read_fields(map)? })
}

fn read_fields(map: &Map<String, Value>) -> Result<Fields, String> {
    let group = |map: &Map<String, Value>| {
        map.iter()
            .filter(|(name, _)| !RESERVED.contains(&name.as_str()))
            .map(|(name, value)| {
                let value =
                    FieldValue::read(value).ok_or(format!("field {name:?} has no value"))?;
                Ok((name.clone(), value))
            })
            .collect::<Result<Vec<_>, String>>()
    };
    let measured = match map.get("measured") {
        None => Vec::new(),
        Some(Value::Object(inner)) => group(inner)?,
        Some(_) => return Err("its `measured` is no object".to_owned()),
    };
    Ok(Fields { decided: group(map)?, measured })
}

fn read_footer(map: &Map<String, Value>) -> Result<Footer, String> {
    let closing = match map.get("footer").and_then(Value::as_str) {
        Some("complete") => Closing::Complete,
        Some("interrupted") => Closing::Interrupted,
        _ => return Err("its `footer` is neither complete nor interrupted".to_owned()),
    };
    let records = map.get("records").and_then(Value::as_u64).ok_or("it has no `records`")?;
    let digest = |name: &str| -> Result<String, String> {
        map.get(name)
            .and_then(Value::as_str)
            .filter(|text| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()))
            .map(str::to_owned)
            .ok_or(format!("its `{name}` is no SHA-256 digest"))
    };
    let digests = Digests { decisions: digest("decisions")?, full: digest("full")? };
    Ok(Footer { closing, records, digests })
}
