//! Rows that stand alone, a JSON object each: Mooncake, Alibaba's Qwen-Bailian, LLMServingSim.

use super::{
    Format, Reading,
    error::{BadRow, ImportError},
    ids::BlockIds,
    json::{self, MILLIS, SECONDS},
    lines::Lines,
    trace::NewRow,
};
use plimsoll_core::units::Nanos;
use serde::Deserialize;
use std::io::BufRead;

/// Mooncake's row, with the names that other writers give its fields.
#[derive(Deserialize)]
struct Hashed {
    #[serde(alias = "created_time", default)]
    timestamp: f64,
    #[serde(alias = "input_tokens")]
    input_length: u64,
    #[serde(alias = "output_tokens")]
    output_length: u64,
    #[serde(default)]
    hash_ids: BlockIds,
}

/// LLMServingSim's row.
#[derive(Deserialize)]
struct Timed {
    input_toks: u64,
    output_toks: u64,
    arrival_time_ns: u64,
}

/// A row of any of them.
struct Plain {
    at: Nanos,
    input: u64,
    output: u64,
    blocks: Vec<u64>,
}

fn plain(format: Format, text: &str) -> Result<Plain, BadRow> {
    if format == Format::LlmServingSim {
        let row: Timed = json::row(text)?;
        let at = Nanos(row.arrival_time_ns);
        return Ok(Plain {
            at,
            input: row.input_toks,
            output: row.output_toks,
            blocks: Vec::new(),
        });
    }
    let row: Hashed = json::row(text)?;
    // Mooncake counts milliseconds, Bailian seconds.
    let unit = if format == Format::Alibaba { SECONDS } else { MILLIS };
    let at = json::nanos("timestamp", row.timestamp, unit)?;
    Ok(Plain { at, input: row.input_length, output: row.output_length, blocks: row.hash_ids.0 })
}

pub(super) fn read(input: &mut dyn BufRead, reading: &mut Reading<'_>) -> Result<(), ImportError> {
    let format = reading.format;
    let mut lines = Lines::new(input);
    while !reading.is_full()
        && let Some((line, text)) = lines.next()?
    {
        let row = match text.and_then(|text| plain(format, text)) {
            Ok(row) => row,
            Err(bad) => {
                let column = bad.column;
                reading.drops.bad(bad.at(line, column))?;
                continue;
            }
        };
        let Some(lengths) = reading.lengths(line, row.input, row.output)? else { continue };
        reading.blocks.see(row.input, row.blocks.len());
        reading.rows.push(NewRow {
            at: row.at,
            input: lengths.input,
            output: lengths.output,
            blocks: &row.blocks,
            ..NewRow::default()
        });
    }
    if format == Format::Alibaba {
        let note = "a row has the whole context of its turn; turns come at their recorded times";
        reading.notes.push(note.to_owned());
    }
    Ok(())
}
