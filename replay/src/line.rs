//! The line of a decision, written straight from the engine's record: a run makes several a request.

use crate::record::write_text;
use plimsoll_core::{
    decision::{Digest, Record, Value},
    pyfloat,
};
use std::io::{self, Write};

/// How a line ends.
const END: &[u8] = b"}\n";

/// A line in its parts: what both digests cover, and what is measured.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// As the `decisions` digest covers it: rank, kind and the decided fields, with the line's end.
    decided: Vec<u8>,
    /// The measured fields, each after a comma.
    measured: Vec<u8>,
}

impl Line {
    /// Takes the form of `record`.
    pub(crate) fn set(&mut self, record: &Record) {
        self.decided.clear();
        self.measured.clear();
        self.decided.push(b'{');
        if let Some(rank) = record.rank {
            self.decided.extend_from_slice(b"\"rank\":");
            integer(&mut self.decided, i64::from(rank.0));
            self.decided.push(b',');
        }
        self.decided.extend_from_slice(b"\"kind\":\"");
        self.decided.extend_from_slice(record.kind.as_bytes());
        self.decided.push(b'"');
        for field in &record.fields {
            let out = match field.digest {
                Digest::Decisions => &mut self.decided,
                Digest::Full => &mut self.measured,
            };
            // Names of kinds and fields are plain words.
            out.extend_from_slice(b",\"");
            out.extend_from_slice(field.name.as_bytes());
            out.extend_from_slice(b"\":");
            value(out, &field.value);
        }
        self.decided.extend_from_slice(END);
    }

    /// What the `decisions` digest covers.
    pub(crate) fn decision(&self) -> &[u8] {
        &self.decided
    }

    /// The line with its end, part by part.
    pub(crate) fn parts(&self, seq: u64, mut take: impl FnMut(&[u8])) {
        const SEQ: &[u8] = b"{\"seq\":";
        let mut head = [0; SEQ.len() + DIGITS + 1];
        let mut digits = [0; DIGITS];
        let digits = decimal(seq, &mut digits);
        let len = SEQ.len() + digits.len();
        head[..SEQ.len()].copy_from_slice(SEQ);
        head[SEQ.len()..len].copy_from_slice(digits);
        head[len] = b',';
        take(&head[..=len]);
        let fields = self.decided.get(1..).unwrap_or_default();
        match self.measured.get(1..) {
            None => take(fields),
            Some(measured) => {
                take(fields.strip_suffix(END).unwrap_or(fields));
                take(b",\"measured\":{");
                take(measured);
                take(b"}");
                take(END);
            }
        }
    }

    /// Writes the line.
    pub(crate) fn write(&self, seq: u64, out: &mut impl Write) -> io::Result<()> {
        let mut written = Ok(());
        self.parts(seq, |part| {
            if written.is_ok() {
                written = out.write_all(part);
            }
        });
        written
    }
}

/// Digits of the largest `u64`.
const DIGITS: usize = 20;

/// `n` in decimal, at the end of `digits`.
fn decimal(mut n: u64, digits: &mut [u8; DIGITS]) -> &[u8] {
    let mut at = DIGITS;
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return &digits[at..];
        }
    }
}

fn integer(out: &mut Vec<u8>, n: i64) {
    if n < 0 {
        out.push(b'-');
    }
    let mut digits = [0; DIGITS];
    out.extend_from_slice(decimal(n.unsigned_abs(), &mut digits));
}

fn text(out: &mut Vec<u8>, text: &str) {
    let plain = |byte: u8| byte >= 0x20 && byte != b'"' && byte != b'\\';
    if text.bytes().all(plain) {
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
        return;
    }
    let mut escaped = String::new();
    write_text(&mut escaped, text);
    out.extend_from_slice(escaped.as_bytes());
}

fn value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Int(n) => integer(out, *n),
        Value::Float(x) if x.is_finite() => out.extend_from_slice(pyfloat::repr(*x).as_bytes()),
        Value::Float(x) => text(out, &format!("float:{x}")),
        Value::Flag(flag) => {
            out.extend_from_slice(if *flag { b"true".as_slice() } else { b"false" })
        }
        Value::Text(words) => text(out, words),
        Value::Null => text(out, "unknown"),
        Value::Ints(list) => {
            out.push(b'[');
            for (at, n) in list.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                let mut digits = [0; DIGITS];
                out.extend_from_slice(decimal(*n, &mut digits));
            }
            out.push(b']');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{record::Fields, run::wire_record, wire::LogWriter};
    use plimsoll_core::backend::Rank;
    use proptest::prelude::*;

    fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<bool>().prop_map(Value::from),
            ".{0,12}".prop_map(|text: String| Value::from(text.as_str())),
            Just(Value::Null),
            proptest::collection::vec(any::<u64>(), 0..4).prop_map(Value::Ints),
        ]
    }

    proptest! {
        /// The straight way and the detour write the same lines and the same digests.
        #[test]
        fn lines_are_those_of_the_records(
            rank in proptest::option::of(0_u32..9),
            values in proptest::collection::vec((any_value(), any::<bool>()), 0..6),
        ) {
            const NAMES: [&str; 6] = ["a", "b_ns", "c_bytes", "d", "e", "f"];
            let mut record = Record::new("kind_of_it");
            record.rank = rank.map(Rank);
            for ((value, measured), name) in values.into_iter().zip(NAMES) {
                record = if measured { record.measured(name, value) } else { record.with(name, value) };
            }
            let mut straight = LogWriter::new(Vec::new(), &Fields::default()).unwrap();
            let mut detour = LogWriter::new(Vec::new(), &Fields::default()).unwrap();
            for _ in 0..2 {
                straight.push_decision(&record).unwrap();
                detour.push(wire_record(&record)).unwrap();
            }
            let (straight, detour) = (
                straight.finish(crate::wire::Closing::Complete).unwrap(),
                detour.finish(crate::wire::Closing::Complete).unwrap(),
            );
            prop_assert_eq!(String::from_utf8(straight.0).unwrap(), String::from_utf8(detour.0).unwrap());
            prop_assert_eq!(straight.1, detour.1);
        }
    }
}
