//! `diff`: the first difference between two decision logs.

use crate::{
    args::{DiffArgs, Format},
    exit::{self, Failure},
    output::Output,
};
use plimsoll_replay::{
    diff::{self, Difference},
    record::{DigestScope, Record},
    wire::Log,
};
use serde_json::{Value, json};
use std::{fs::File, io::BufReader, path::Path};

/// Compares what must agree everywhere, then says whether the rest agrees too.
pub fn diff(args: &DiffArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    let (a, b) = (read(&args.a, output)?, read(&args.b, output)?);
    let found = diff::diff(&a, &b, DigestScope::Decisions);
    let same_measured = a.digests.full == b.digests.full;
    let text = match format {
        Format::Json => format!("{:#}\n", machine(found.as_ref(), same_measured)),
        Format::Jsonl => format!("{}\n", machine(found.as_ref(), same_measured)),
        Format::Human | Format::Csv | Format::Md | Format::Sarif => match &found {
            Some(found) => format!("{found}\n"),
            None if same_measured => "same decisions; everything else too\n".to_owned(),
            None => "same decisions; measured values differ\n".to_owned(),
        },
    };
    output.write(&text)?;
    Ok(if found.is_some() { exit::FAILED } else { exit::OK })
}

fn machine(found: Option<&Difference>, same_measured: bool) -> Value {
    json!({
        "schema": "plimsoll.diff/1",
        "same_decisions": found.is_none(),
        "same_measured": found.is_none() && same_measured,
        "first": first(found),
    })
}

/// Where two logs part, for machines.
pub fn first(found: Option<&Difference>) -> Value {
    let records = |records: &[Record]| records.iter().map(Record::line).collect::<Vec<_>>();
    found.map_or(Value::Null, |found| {
        let fields = found.fields.iter().map(|field| {
            let side = |value: &Option<_>| value.as_ref().map(ToString::to_string);
            json!({ "name": field.name, "a": side(&field.a), "b": side(&field.b) })
        });
        json!({
            "record": found.index,
            "fields": fields.collect::<Vec<_>>(),
            "before": records(&found.before),
            "a": records(&found.a),
            "b": records(&found.b),
        })
    })
}

/// Reads a log; where it breaks off is said.
pub fn read(path: &Path, output: &Output) -> Result<Log, Failure> {
    let place = |error: &dyn std::fmt::Display| {
        Failure::input(format!("cannot read {}: {error}", path.display()))
    };
    let file = File::open(path).map_err(|error| place(&error))?;
    let log = Log::read(BufReader::new(file)).map_err(|error| place(&error))?;
    let name = path.display();
    match log.cut_at {
        Some(at) => {
            let count = log.records.len();
            let text =
                format!("{name} is cut off at byte {at}; its {count} whole records are read");
            output.note(&text);
        }
        None if !log.complete => {
            output.note(&format!("{name} is of a run that was interrupted"));
        }
        None => {}
    }
    Ok(log)
}
