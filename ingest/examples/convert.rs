//! A table of times and lengths as vidur writes it, turned into Mooncake's rows and into Plimsoll's own, and all
//! three read back.
//!
//! `cargo run --release -p plimsoll-ingest --example convert -- ROWS [FOLDER]` makes ROWS up (short chats at 8
//! a second), reads them in each form, says how long that took, and keeps the files where a folder is given.
#![allow(clippy::print_stdout, reason = "an example speaks on stdout")]

use plimsoll_ingest::workload::{Import, ImportError, Options, Summary, Trace, import};
use std::{env, fmt::Write as _, fs, path::Path, time::Instant};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = env::args().skip(1);
    let rows: u64 = args.next().map_or(Ok(100_000), |rows| rows.parse())?;
    let folder = args.next();
    let table = table(rows);
    let first = timed("vidur", &table)?;
    let mooncake = mooncake(&first.trace);
    let own = own(&first.trace);
    let second = timed("mooncake", &mooncake)?;
    let third = timed("plimsoll", &own)?;
    let same = |a: &Trace, b: &Trace| {
        a.rows.iter().zip(&b.rows).all(|(a, b)| (a.input, a.output) == (b.input, b.output))
    };
    let all = same(&first.trace, &second.trace) && same(&first.trace, &third.trace);
    println!("the same lengths in all three: {all}");
    let summary = Summary::of(&first.trace);
    println!("{:.1} in, {:.1} out on average", summary.input.mean, summary.output.mean);
    if let Some(folder) = folder {
        for (name, text) in
            [("rows.csv", &table), ("rows.mooncake.jsonl", &mooncake), ("rows.jsonl", &own)]
        {
            fs::write(Path::new(&folder).join(name), text)?;
        }
    }
    Ok(())
}

fn timed(name: &str, text: &str) -> Result<Import, ImportError> {
    let begin = Instant::now();
    let read = import(text.as_bytes(), &Options::default())?;
    let (took, size) = (begin.elapsed(), read.trace.size());
    println!(
        "{name}: {} rows of {} bytes in {took:?}, kept in {size} bytes",
        read.trace.rows.len(),
        text.len()
    );
    Ok(read)
}

/// Made-up rows: an even rhythm, lengths by a small generator.
fn table(rows: u64) -> String {
    let mut text = String::from("arrived_at,num_prefill_tokens,num_decode_tokens\n");
    let mut state = 7_u64;
    let mut next = |most: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        4 + (state >> 33) % most
    };
    for row in 0..rows {
        let _ = writeln!(text, "{}.{:06},{},{}", row / 8, row % 8 * 125_000, next(330), next(670));
    }
    text
}

/// Blocks of 512 tokens that no two rows share; milliseconds.
fn mooncake(trace: &Trace) -> String {
    let (mut text, mut block) = (String::new(), 0);
    for row in &trace.rows {
        let count = u64::from(row.input).div_ceil(512);
        let ids: Vec<String> = (block..block + count).map(|id| id.to_string()).collect();
        block += count;
        let (at, input, output, ids) =
            (row.at.0 / 1_000_000, row.input, row.output, ids.join(", "));
        let _ = writeln!(
            text,
            "{{\"timestamp\": {at}, \"input_length\": {input}, \"output_length\": {output}, \"hash_ids\": [{ids}]}}"
        );
    }
    text
}

fn own(trace: &Trace) -> String {
    let mut text = String::new();
    for row in &trace.rows {
        let (at, input, output) = (row.at.0, row.input, row.output);
        let _ = writeln!(text, "{{\"t_ns\":{at},\"in\":{input},\"out\":{output}}}");
    }
    text
}
