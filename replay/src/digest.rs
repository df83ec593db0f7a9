//! The two digests that close a decision log.

use crate::{
    line,
    record::{Fields, Record},
};
use plimsoll_core::decision;
use sha2::{Digest as _, Sha256};

/// SHA-256 digests of a log, as 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Digests {
    /// Over what must agree across backends: kinds, ranks, decided fields.
    pub decisions: String,
    /// Over the lines as they are written, measured values and positions included.
    pub full: String,
}

/// Digests of a log that is being written or read.
#[derive(Clone, Debug, Default)]
pub struct Digester {
    decisions: Stream,
    full: Stream,
    /// Measured fields of a line under construction; kept for its room.
    measured: Vec<u8>,
}

impl Digester {
    /// Adds the header.
    pub fn header(&mut self, fields: &Fields, line: &str) {
        let mut decided = String::new();
        fields.write_decided(&mut decided);
        self.decisions.add(&decided);
        self.full.add(line);
    }

    /// Adds one record, whose line is `line`.
    pub fn record(&mut self, record: &Record, line: &str) {
        if let Some(decision) = record.decision_line() {
            self.decisions.add(&decision);
        }
        self.full.add(line);
    }

    /// Adds a decision at position `seq`, and answers its line, with the line's end.
    pub(crate) fn decision(&mut self, seq: u64, record: &decision::Record) -> &[u8] {
        let decided = self.decisions.begin();
        line::decided(&mut self.decisions.waiting, &mut self.measured, record);
        let decided = &self.decisions.waiting[decided..];
        let whole = self.full.begin();
        line::whole(&mut self.full.waiting, seq, decided, &self.measured);
        &self.full.waiting[whole..]
    }

    /// The digests so far.
    #[must_use]
    pub fn digests(&self) -> Digests {
        Digests { decisions: self.decisions.digest(), full: self.full.digest() }
    }
}

/// A digest that takes its text in large pieces: a line alone costs more to hand over than to hash.
#[derive(Clone, Debug, Default)]
struct Stream {
    hash: Sha256,
    /// Text that the hash has not seen.
    waiting: Vec<u8>,
}

/// Bytes of a piece, about.
const PIECE: usize = 1 << 14;

impl Stream {
    /// Hands a whole piece over. Answers where in `waiting` the next line begins.
    fn begin(&mut self) -> usize {
        if self.waiting.len() >= PIECE {
            self.hash.update(&self.waiting);
            self.waiting.clear();
        }
        self.waiting.len()
    }

    fn add(&mut self, line: &str) {
        self.begin();
        self.waiting.extend_from_slice(line.as_bytes());
        self.waiting.push(b'\n');
    }

    fn digest(&self) -> String {
        hex(self.hash.clone().chain_update(&self.waiting))
    }
}

/// SHA-256 of some bytes, as hex digits.
#[must_use]
pub fn hex_of(bytes: &[u8]) -> String {
    hex(Sha256::new().chain_update(bytes))
}

pub(crate) fn hex(hash: Sha256) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let bytes = hash.finalize();
    bytes
        .iter()
        .flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]])
        .map(char::from)
        .collect()
}
