//! The two digests that close a decision log.

use crate::{
    line::Line,
    record::{Fields, Record},
};
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
    decisions: Sha256,
    full: Sha256,
}

impl Digester {
    /// Adds the header.
    pub fn header(&mut self, fields: &Fields, line: &str) {
        let mut decided = String::new();
        fields.write_decided(&mut decided);
        add(&mut self.decisions, &decided);
        add(&mut self.full, line);
    }

    /// Adds one record, whose line is `line`.
    pub fn record(&mut self, record: &Record, line: &str) {
        if let Some(decision) = record.decision_line() {
            add(&mut self.decisions, &decision);
        }
        add(&mut self.full, line);
    }

    /// Adds a decision at position `seq`.
    pub(crate) fn decision(&mut self, seq: u64, line: &Line) {
        self.decisions.update(line.decision());
        line.parts(seq, |part| self.full.update(part));
    }

    /// The digests so far.
    #[must_use]
    pub fn digests(&self) -> Digests {
        Digests { decisions: hex(self.decisions.clone()), full: hex(self.full.clone()) }
    }
}

fn add(hash: &mut Sha256, line: &str) {
    hash.update(line.as_bytes());
    hash.update(b"\n");
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
