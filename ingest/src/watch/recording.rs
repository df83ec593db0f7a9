//! The recording of a watch: JSON Lines, a header and then a line for each moment (docs/watch.md).
//!
//! Each line stands for itself, so that a recording which was cut off anywhere is read up to the cut.

use super::{RankFigures, RankId, ServerKind};
use plimsoll_core::units::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    io::{self, BufRead, Read as _},
};

/// Name and version of the form.
pub const SCHEMA: &str = "plimsoll.watch/1";
/// Longest line, bytes.
const LONGEST: u64 = 4 << 20;

/// The first line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// [`SCHEMA`].
    pub schema: String,
    /// Release of Plimsoll that wrote it.
    pub plimsoll: String,
    /// Which server.
    pub server: ServerKind,
    /// Its release, where it tells.
    pub version: Option<String>,
    /// The model, where its name is no path.
    pub model: Option<String>,
    /// Whether samples come from `/metrics`; else from the server's own state alone.
    pub metrics: Metrics,
    /// Time between samples, milliseconds.
    pub interval_ms: u64,
    /// The line below which free memory must not fall.
    #[serde(rename = "min_free_bytes", with = "amount")]
    pub min_free: Option<Bytes>,
    /// Where free memory is read.
    pub memory: MemoryPlace,
    /// Why it is not read, when it is not.
    pub memory_missing: Option<String>,
    /// The devices that are read.
    pub devices: Vec<Device>,
    /// What a rank holds by the server's own count, bytes by account.
    #[serde(rename = "held_bytes", with = "amounts")]
    pub held: BTreeMap<String, Bytes>,
    /// Settings by the engine's names.
    pub settings: BTreeMap<String, Value>,
}

/// Whether the server has a page of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metrics {
    /// Yes.
    On,
    /// No.
    Off,
}

/// Where free memory is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPlace {
    /// `nvidia-smi`.
    NvidiaSmi,
    /// The amdgpu driver's files.
    Amdgpu,
    /// The host's memory (unified memory, or a server on the CPU).
    Host,
    /// Nowhere.
    None,
}

/// A device whose memory is read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Device {
    /// Its index, in the order of the vendor's tool.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its capacity.
    #[serde(rename = "total_bytes", with = "amount")]
    pub total: Option<Bytes>,
}

/// Free memory of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceFree {
    /// Its index.
    pub index: u32,
    /// Free memory; of [`MemoryPlace::Host`] what the host can still give.
    #[serde(rename = "free_bytes", with = "plain")]
    pub free: Bytes,
}

/// What was read at one moment.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Milliseconds since the watch began.
    pub at_ms: u64,
    /// Figures by rank.
    pub ranks: BTreeMap<RankId, RankFigures>,
    /// Free memory by device, in the order of their indices.
    pub devices: Vec<DeviceFree>,
}

/// A moment at which the server gave no answer that can be read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Missed {
    /// Milliseconds since the watch began.
    pub at_ms: u64,
    /// What was wrong, in a word: `refused`, `timed_out`, `status_503`, ….
    pub why: String,
    /// Free memory by device, which is read all the same.
    pub devices: Vec<DeviceFree>,
}

/// How a watch ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// After the time or the one sample that was asked for.
    Done,
    /// By Ctrl-C.
    Interrupted,
    /// The server was lost.
    Lost,
}

/// The last line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct End {
    /// Milliseconds since the watch began.
    pub at_ms: u64,
    /// How.
    pub why: Ending,
}

/// Any line behind the header.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    /// A sample.
    Sample(Sample),
    /// None could be had.
    Missed(Missed),
    /// The end.
    End(End),
    /// A kind of a later version; passed over.
    #[serde(other)]
    Other,
}

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A line that is not the last, or the header.
    #[error("line {line}: {what}")]
    Line {
        /// Line, from 1.
        line: u64,
        /// What is wrong.
        what: String,
    },
}

/// A last line that was cut off, and is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    /// Line, from 1.
    pub line: u64,
    /// Byte of the file at which it begins.
    pub byte: u64,
}

/// Reads the header, then gives each line to `each`; answers the header's and the cut's place.
///
/// # Errors
///
/// The file cannot be read; the first line is no header of this form; a line before the last is broken.
pub fn read(
    mut from: impl BufRead,
    mut each: impl FnMut(&Header, &Line),
) -> Result<(Header, Option<Cut>), RecordingError> {
    let mut lines = Lines { line: 0, byte: 0, buffer: Vec::new() };
    let wrong = |line, what: String| RecordingError::Line { line, what };
    if !lines.next(&mut from)? {
        return Err(wrong(1, format!("the file is empty; expected a header of {SCHEMA}")));
    }
    let header = header(&lines.buffer).map_err(|what| wrong(1, what))?;
    while lines.next(&mut from)? {
        match serde_json::from_slice::<Line>(&lines.buffer) {
            Ok(line) => each(&header, &line),
            // Only the last line of a file can lack its end.
            Err(_) if lines.is_cut() => {
                return Ok((header, Some(Cut { line: lines.line, byte: lines.byte })));
            }
            Err(error) => return Err(wrong(lines.line, message(&error))),
        }
    }
    Ok((header, None))
}

fn header(line: &[u8]) -> Result<Header, String> {
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| format!("not a header of {SCHEMA}: {}", message(&error)))?;
    match value.get("schema").and_then(Value::as_str) {
        Some(SCHEMA) => serde_json::from_value(value).map_err(|error| message(&error)),
        Some(other) if other.len() <= 40 && !other.contains(char::is_control) => {
            Err(format!("schema `{other}`; expected `{SCHEMA}`"))
        }
        _ => Err(format!("no schema; expected `{SCHEMA}`")),
    }
}

/// The reader's message without control characters, which a broken file may bring along.
fn message(error: &serde_json::Error) -> String {
    error.to_string().chars().filter(|c| !c.is_control()).take(200).collect()
}

struct Lines {
    line: u64,
    /// Where the line begins.
    byte: u64,
    buffer: Vec<u8>,
}

impl Lines {
    /// Takes the next line that is not blank; `false` at the end.
    fn next(&mut self, from: &mut impl BufRead) -> Result<bool, RecordingError> {
        loop {
            self.byte += self.buffer.len() as u64;
            self.line += 1;
            self.buffer.clear();
            let read = from.by_ref().take(LONGEST).read_until(b'\n', &mut self.buffer)?;
            if read == 0 {
                return Ok(false);
            }
            if read as u64 == LONGEST && self.is_cut() {
                let what = format!("longer than {LONGEST} bytes");
                return Err(RecordingError::Line { line: self.line, what });
            }
            if !self.buffer.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    /// Whether the line lacks its end.
    fn is_cut(&self) -> bool {
        self.buffer.last() != Some(&b'\n')
    }
}

/// Bytes as a plain integer.
mod plain {
    use super::{Bytes, Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &Bytes, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(bytes.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
        u64::deserialize(d).map(Bytes)
    }
}

/// Bytes as a plain integer or null.
mod amount {
    use super::{Bytes, Deserialize, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &Option<Bytes>, s: S) -> Result<S::Ok, S::Error> {
        bytes.map(|bytes| bytes.0).serialize(s)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Bytes>, D::Error> {
        Ok(Option::deserialize(d)?.map(Bytes))
    }
}

/// Bytes by name as plain integers.
mod amounts {
    use super::{BTreeMap, Bytes, Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        map: &BTreeMap<String, Bytes>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        s.collect_map(map.iter().map(|(name, bytes)| (name, bytes.0)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        d: D,
    ) -> Result<BTreeMap<String, Bytes>, D::Error> {
        let map = BTreeMap::<String, u64>::deserialize(d)?;
        Ok(map.into_iter().map(|(name, bytes)| (name, Bytes(bytes))).collect())
    }
}
