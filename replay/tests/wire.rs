//! The decision log: round trips, cuts, digests, differences.

use plimsoll_replay::{
    diff::diff,
    digest::Digests,
    record::{DigestScope, FieldValue, Fields, Record},
    wire::{Closing, Log, LogWriter, WireError},
};
use proptest::prelude::*;

fn header() -> Fields {
    let mut header = Fields::default();
    header.push(DigestScope::Decisions, "scenario", "dedicated-gpu/kimi");
    header.push(DigestScope::Decisions, "seed", 1_u64);
    header.push(DigestScope::Measured, "tool", "0.1.0");
    header
}

fn records() -> Vec<Record> {
    vec![
        Record::new("reading")
            .on_rank(0)
            .with("name", "free_before_load")
            .with("bytes", 100_971_137_781_u64),
        Record::new("settings")
            .with("mem_fraction_static", 0.93)
            .with("why", "given \"0.93\"\n")
            .with("off", -1_i64),
        Record::measured("timing").with_measured("load_ns", 5_u64),
        Record::new("pool_sized")
            .on_rank(3)
            .with("max_total_num_tokens", 231_120_u64)
            .with_measured("took_ns", 9_u64),
        Record::new("graphs").with("batch_sizes", vec![1_u64, 2, 4]).with("captured", true),
        Record::new("end").with("tiny", 1e-7).with("huge", 1e22).with("third", 1.0 / 3.0),
    ]
}

fn write(header: &Fields, records: &[Record], closing: Closing) -> (String, Digests) {
    let mut writer = LogWriter::new(Vec::new(), header).unwrap();
    for record in records {
        writer.push(record.clone()).unwrap();
    }
    let (bytes, digests) = writer.finish(closing).unwrap();
    (String::from_utf8(bytes).unwrap(), digests)
}

fn read(text: &str) -> Log {
    Log::read(text.as_bytes()).unwrap()
}

#[test]
fn a_log_reads_back_as_it_was_written() {
    let (text, digests) = write(&header(), &records(), Closing::Complete);
    insta::assert_snapshot!(text);
    let log = read(&text);
    let mut expected = records();
    for (seq, record) in (0..).zip(&mut expected) {
        record.seq = seq;
    }
    assert_eq!((log.header.clone(), log.records.clone()), (header(), expected));
    assert!(log.complete && log.cut_at.is_none() && log.digests == digests);
    assert_eq!(log.digests_agree(), Some(true));
    let (text, _) = write(&header(), &records(), Closing::Interrupted);
    let log = read(&text);
    assert!(!log.complete && log.cut_at.is_none() && log.footer.is_some());
}

#[test]
fn a_cut_at_any_byte_keeps_the_records_before_it() {
    let (text, _) = write(&header(), &records(), Closing::Complete);
    let ends: Vec<usize> = text.match_indices('\n').map(|(i, _)| i).collect();
    for cut in ends[0]..text.len() - 1 {
        let log = read(&text[..cut]);
        // A line counts when its closing brace is there.
        let lines = ends.iter().filter(|end| **end <= cut).count();
        assert_eq!(log.records.len(), lines - 1, "cut at {cut}");
        assert!(!log.complete && log.footer.is_none());
        let at = log.cut_at.unwrap() as usize;
        assert!(at <= cut && (at == cut || ends.contains(&(at - 1))), "cut at {cut}: {at}");
        assert_eq!(log.digests_agree(), None);
    }
    assert!(read(text.trim_end()).complete);
    for cut in 0..ends[0] {
        assert!(matches!(Log::read(&text.as_bytes()[..cut]), Err(WireError::Schema(_))), "{cut}");
    }
}

#[test]
fn each_digest_covers_its_own_fields() {
    let (_, digests) = write(&header(), &records(), Closing::Complete);
    let with = |change: fn(&mut Fields, &mut Vec<Record>)| {
        let (mut header, mut records) = (header(), records());
        change(&mut header, &mut records);
        let (_, changed) = write(&header, &records, Closing::Complete);
        (changed.decisions == digests.decisions, changed.full == digests.full)
    };
    assert_eq!(with(|_, _| {}), (true, true));
    assert_eq!(with(|h, _| h.measured[0].1 = "0.2.0".into()), (true, false));
    assert_eq!(with(|h, _| h.decided[1].1 = 2_u64.into()), (false, false));
    assert_eq!(with(|_, r| drop(r.remove(2))), (true, false));
    assert_eq!(with(|_, r| r[3].fields.measured[0].1 = 10_u64.into()), (true, false));
    assert_eq!(with(|_, r| r[3].fields.decided[0].1 = 231_121_u64.into()), (false, false));
    assert_eq!(with(|_, r| r[3].rank = None), (false, false));
    assert_eq!(with(|_, r| r.swap(3, 4)), (false, false));
}

#[test]
fn broken_logs_are_refused_with_their_line() {
    let (text, _) = write(&header(), &records(), Closing::Complete);
    let lines: Vec<&str> = text.lines().collect();
    let edited = |line: usize, new: &str| {
        let mut lines = lines.clone();
        lines[line - 1] = new;
        lines.join("\n") + "\n"
    };
    let cases = [
        (edited(3, "{\"seq\":1,"), 3),
        (edited(3, "[]"), 3),
        (edited(3, "{\"seq\":2,\"kind\":\"x\"}"), 3),
        (edited(3, "{\"seq\":1}"), 3),
        (edited(3, "{\"seq\":1,\"kind\":\"x\",\"rank\":-1}"), 3),
        (edited(3, "{\"seq\":1,\"kind\":\"x\",\"a\":null}"), 3),
        (edited(3, "{\"seq\":1,\"kind\":\"x\",\"scope\":\"full\"}"), 3),
        (edited(7, ""), 7),
        (format!("{text}{}\n", lines[1]), 9),
        (edited(8, "{\"footer\":\"complete\",\"records\":5}"), 8),
    ];
    for (text, expected) in cases {
        match Log::read(text.as_bytes()) {
            Err(WireError::Line { line, offset, .. }) => {
                assert_eq!(line, expected, "{text}");
                let before: usize = text.lines().take(line - 1).map(|l| l.len() + 1).sum();
                assert_eq!(offset, before as u64);
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    let changed = text.replace("231120", "231121");
    assert_eq!(read(&changed).digests_agree(), Some(false));
    let other = edited(1, "{\"schema\":\"plimsoll.log/2\"}");
    assert!(matches!(Log::read(other.as_bytes()), Err(WireError::Schema(_))));
    let mut writer = LogWriter::new(Vec::new(), &header()).unwrap();
    for record in
        [Record::new("x").with("kind", 1_u64), Record::new("x").with("a", 1_u64).with("a", 2_u64)]
    {
        assert!(matches!(writer.push(record), Err(WireError::FieldName { .. })));
    }
}

#[test]
fn the_first_difference_is_shown_with_its_surroundings() {
    let (a, _) = write(&header(), &records(), Closing::Complete);
    let mut changed = records();
    changed.remove(2);
    changed[2] = changed[2].clone().with("page_size", 1_u64);
    changed[2].fields.decided[0].1 = 231_121_u64.into();
    let (b, _) = write(&header(), &changed, Closing::Complete);
    let (a, b) = (read(&a), read(&b));
    assert_eq!(diff(&a, &a, DigestScope::Measured), None);
    insta::assert_snapshot!(diff(&a, &b, DigestScope::Decisions).unwrap().to_string());
    let full = diff(&a, &b, DigestScope::Measured).unwrap();
    assert_eq!((full.index, full.fields[0].name.as_str()), (Some(2), "kind"));
    let (short, _) = write(&header(), &records()[..4], Closing::Complete);
    let end = diff(&a, &read(&short), DigestScope::Decisions).unwrap();
    assert_eq!((end.index, end.a.len(), end.b.len(), end.before.len()), (Some(3), 2, 0, 3));
    let mut header = header();
    header.decided[1].1 = 2_u64.into();
    let (other, _) = write(&header, &records(), Closing::Complete);
    assert_eq!(diff(&a, &read(&other), DigestScope::Decisions).unwrap().index, None);
    let nan = [Record::new("x").with("a", f64::NAN).with("b", "float:1.5")];
    let (nan, _) = write(&header, &nan, Closing::Complete);
    assert_eq!(diff(&read(&nan), &read(&nan), DigestScope::Measured), None);
    assert_eq!(read(&nan).digests_agree(), Some(true));
}

fn any_value() -> impl Strategy<Value = FieldValue> {
    prop_oneof![
        any::<u64>().prop_map(FieldValue::from),
        any::<i64>().prop_map(FieldValue::from),
        any::<f64>().prop_filter("finite", |v| v.is_finite()).prop_map(FieldValue::from),
        any::<bool>().prop_map(FieldValue::from),
        any::<String>().prop_map(FieldValue::from),
        prop::collection::vec(any::<u64>(), 0..4).prop_map(FieldValue::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_values_read_back(values in prop::collection::vec(any_value(), 0..6), kind: String) {
        let mut record = Record::new(&kind);
        for (i, value) in values.into_iter().enumerate() {
            let scope = if i % 3 == 2 { DigestScope::Measured } else { DigestScope::Decisions };
            record.fields.push(scope, &format!("f{i}"), value);
        }
        let (text, _) = write(&header(), &[record.clone()], Closing::Complete);
        let log = read(&text);
        prop_assert_eq!(&log.records[0], &record);
        prop_assert_eq!(log.digests_agree(), Some(true));
    }

    #[test]
    fn no_bytes_break_the_reader(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0usize..400) {
        let (text, _) = write(&header(), &records(), Closing::Complete);
        let mut mutated = text.into_bytes();
        let at = at.min(mutated.len());
        mutated.splice(at..(at + bytes.len() / 2).min(mutated.len()), bytes.iter().copied());
        let _ = Log::read(mutated.as_slice());
        let _ = Log::read(bytes.as_slice());
    }
}
