//! The line of a decision, written straight from the engine's record: a run makes several a request.

use crate::record::write_text;
use plimsoll_core::{
    decision::{Digest, Record, Value},
    pyfloat,
};

/// How a line ends.
const END: &[u8] = b"}\n";

/// Adds the line of `record` as the `decisions` digest covers it: rank, kind and the decided fields, with
/// the line's end. The measured fields, each after a comma, take the place of what `measured` held.
pub(crate) fn decided(out: &mut Vec<u8>, measured: &mut Vec<u8>, record: &Record) {
    measured.clear();
    out.push(b'{');
    if let Some(rank) = record.rank {
        out.extend_from_slice(b"\"rank\":");
        integer(out, i64::from(rank.0));
        out.push(b',');
    }
    out.extend_from_slice(b"\"kind\":\"");
    out.extend_from_slice(record.kind.as_bytes());
    out.push(b'"');
    for field in &record.fields {
        let out = match field.digest {
            Digest::Decisions => &mut *out,
            Digest::Full => &mut *measured,
        };
        // Names of kinds and fields are plain words.
        out.extend_from_slice(b",\"");
        out.extend_from_slice(field.name.as_bytes());
        out.extend_from_slice(b"\":");
        value(out, &field.value);
    }
    out.extend_from_slice(END);
}

/// Adds the whole line of a record at position `seq`, made of the two parts that [`decided`] wrote.
pub(crate) fn whole(out: &mut Vec<u8>, seq: u64, decided: &[u8], measured: &[u8]) {
    out.extend_from_slice(b"{\"seq\":");
    natural(out, seq);
    out.push(b',');
    let fields = decided.get(1..).unwrap_or_default();
    match measured.get(1..) {
        None => out.extend_from_slice(fields),
        Some(measured) => {
            out.extend_from_slice(fields.strip_suffix(END).unwrap_or(fields));
            out.extend_from_slice(b",\"measured\":{");
            out.extend_from_slice(measured);
            out.push(b'}');
            out.extend_from_slice(END);
        }
    }
}

/// Digits of the largest `u64`.
const DIGITS: usize = 20;

/// `00` to `99`.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut n = 0;
    while n < 100 {
        pairs[n as usize] = [b'0' + n / 10, b'0' + n % 10];
        n += 1;
    }
    pairs
};

/// Adds `n` in decimal.
fn natural(out: &mut Vec<u8>, mut n: u64) {
    let mut digits = [0; DIGITS];
    let mut at = DIGITS;
    while n >= 10 {
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[(n % 100) as usize]);
        n /= 100;
    }
    // What is left is one digit, or nothing after the first two.
    if n > 0 || at == DIGITS {
        at -= 1;
        digits[at] = b'0' + n as u8;
    }
    out.extend_from_slice(&digits[at..]);
}

fn integer(out: &mut Vec<u8>, n: i64) {
    if n < 0 {
        out.push(b'-');
    }
    natural(out, n.unsigned_abs());
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
                natural(out, *n);
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
