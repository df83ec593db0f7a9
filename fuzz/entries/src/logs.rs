//! Server logs, `nvidia-smi`, decision logs.

use crate::{assert_message, in_time, line_count, text};
use plimsoll_backend_host::nvidia_smi::{self as smi, SmiError, SmiGpu};
use plimsoll_ingest::log;
use plimsoll_replay::{
    diff::diff,
    live,
    record::DigestScope,
    wire::{Closing, Log, LogWriter, WireError},
};

/// A server log. Any bytes are read, and what is kept is bounded; events stand on lines that are there, in order;
/// a line that says nothing changes nothing.
pub fn server_log(data: &[u8]) {
    let mut bytes = data;
    let mut inputs = [log::Input { name: "log", text: &mut bytes }];
    let read = in_time(|| log::read(&mut inputs, log::Redact::Yes));
    let facts = match read {
        Ok(facts) => facts,
        Err(error) => return assert!(error.to_string().is_empty(), "reading memory: {error}"),
    };
    assert!(facts.events.len() <= log::Log::EVENTS, "{} events", facts.events.len());
    let mut last = 1;
    for event in &facts.events {
        assert!((last..=facts.lines).contains(&event.line), "line {}", event.line);
        last = event.line;
        assert!(event.text.len() <= log::Event::TEXT, "{} bytes of a line", event.text.len());
        assert!(event.start < facts.starts, "start {} of {}", event.start, facts.starts);
    }
    let Some(text) = text(data) else { return };
    let figures = in_time(|| log::start_figures(text));
    let bytes = [
        figures.free_before_load,
        figures.free_after_load,
        figures.weights,
        figures.free_after_pool,
        figures.free_after_graphs,
        figures.available_kv,
        figures.graphs,
    ];
    let lines = bytes.iter().flatten().map(|seen| seen.line);
    for line in lines.chain(figures.pool_tokens.map(|seen| seen.line)) {
        assert!((1..=line_count(text)).contains(&line), "line {line}");
    }
    let longer = format!("{text}\nnothing of interest\n");
    assert_eq!(log::start_figures(&longer), figures, "a line that says nothing counts");
}

/// The table of `nvidia-smi`. Lines in errors are there; a table that was read, written plainly, reads
/// the same.
pub fn nvidia_smi(data: &[u8]) {
    let Some(text) = text(data) else { return };
    match in_time(|| smi::parse(text)) {
        Ok(gpus) => {
            assert!(!gpus.is_empty(), "a table without a card");
            let table: String = gpus.iter().map(row).collect();
            assert_eq!(smi::parse(&table), Ok(gpus), "written as {table:?}");
        }
        Err(error) => {
            if let SmiError::Form { line, expected, .. } = &error {
                assert!((1..=line_count(text)).contains(line), "line {line}");
                assert!(!expected.is_empty(), "nothing is said to be expected");
            }
            assert!(!error.to_string().is_empty(), "an error without words");
        }
    }
}

fn row(gpu: &SmiGpu) -> String {
    let cell = |mib: Option<u64>| mib.map_or_else(|| "[N/A]".to_owned(), |n| format!("{n} MiB"));
    let SmiGpu { index, name, total_mib, free_mib, used_mib } = gpu;
    format!("{index}, {name}, {}, {}, {}\n", cell(*total_mib), cell(*free_mib), cell(*used_mib))
}

/// A decision log. A broken line is named by number and byte; what was read writes to a log that reads
/// the same, with the same digests.
pub fn decision_log(data: &[u8]) {
    let log = match in_time(|| Log::read(data)) {
        Ok(log) => log,
        Err(error) => {
            if let WireError::Line { line, offset, .. } = &error {
                let lines = data.split(|b| *b == b'\n').count();
                assert!((1..=lines).contains(line), "line {line} of {lines}");
                assert!(*offset < data.len() as u64, "byte {offset} of {}", data.len());
            }
            return assert_message(&error.to_string());
        }
    };
    assert!(log.cut_at.is_none_or(|at| at <= data.len() as u64), "cut behind the end");
    if live::is_live(&log)
        && let Err(error) = in_time(|| live::again(&log))
    {
        assert_message(&error.to_string());
    }
    let written = in_time(|| rewrite(&log));
    let bytes = match written {
        Ok(bytes) => bytes,
        Err(error) => return assert!(error.to_string().is_empty(), "writing anew: {error}"),
    };
    match Log::read(bytes.as_slice()) {
        Ok(again) => {
            let difference = diff(&log, &again, DigestScope::Measured);
            assert!(
                difference.is_none(),
                "{}",
                difference.map(|d| d.to_string()).unwrap_or_default()
            );
            assert_eq!(again.digests, log.digests, "other digests");
            assert_eq!(again.digests_agree(), Some(true), "its own digests");
        }
        Err(error) => assert!(error.to_string().is_empty(), "reading anew: {error}"),
    }
}

fn rewrite(log: &Log) -> Result<Vec<u8>, WireError> {
    let mut writer = LogWriter::new(Vec::new(), &log.header)?;
    for record in &log.records {
        writer.push(record.clone())?;
    }
    Ok(writer.finish(Closing::Complete)?.0)
}
