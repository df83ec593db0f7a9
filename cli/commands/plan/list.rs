//! `--device list` and `--model list`: what the catalogs hold.

use crate::{
    args::Format,
    exit::{self, Failure},
    output::Output,
    render::table::{Align, Table, csv_cell},
};
use plimsoll_catalog::{devices, models};
use plimsoll_core::units::Bytes;
use serde_json::{Value, json};

/// Every device: its name, its key, and what programs see as its memory.
pub fn devices(format: Format, output: &Output) -> Result<u8, Failure> {
    let mut rows = Vec::new();
    for (key, names, _) in devices::all() {
        let device = devices::find(key).map_err(Failure::input)?;
        rows.push(vec![
            names.first().copied().unwrap_or(key).to_owned(),
            (*key).to_owned(),
            device.runtime_total.value.mid.0.to_string(),
        ]);
    }
    let columns =
        [("name", Align::Left), ("key", Align::Left), ("runtime_total_bytes", Align::Right)];
    write(&columns, &rows, format, output)
}

/// Every model: its hub id and its other names.
pub fn models(format: Format, output: &Output) -> Result<u8, Failure> {
    let rows = models::all().iter().map(|(key, names, _)| {
        let others = names.get(1..).unwrap_or_default().join(" ");
        vec![names.first().copied().unwrap_or(key).to_owned(), others]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    write(&[("name", Align::Left), ("aliases", Align::Left)], &rows, format, output)
}

fn write(
    columns: &[(&str, Align)],
    rows: &[Vec<String>],
    format: Format,
    output: &Output,
) -> Result<u8, Failure> {
    let text = match format {
        Format::Human | Format::Sarif => people(columns, rows).human(),
        Format::Md => people(columns, rows).markdown(),
        Format::Csv => {
            let line = |cells: Vec<String>| cells.join(",") + "\n";
            let head = line(columns.iter().map(|(name, _)| (*name).to_owned()).collect());
            let cells = |row: &Vec<String>| row.iter().map(|cell| csv_cell(cell)).collect();
            head + &rows.iter().map(|row| line(cells(row))).collect::<String>()
        }
        Format::Json => format!("{:#}\n", Value::Array(objects(columns, rows))),
        Format::Jsonl => objects(columns, rows).iter().map(|row| format!("{row}\n")).collect(),
    };
    output.write(&text)?;
    Ok(exit::OK)
}

/// The rows with amounts as people read them.
fn people(columns: &[(&str, Align)], rows: &[Vec<String>]) -> Table {
    let named = columns.iter().map(|(name, align)| match *name {
        "runtime_total_bytes" => ("memory", *align),
        name => (name, *align),
    });
    let mut table = Table::new(&named.collect::<Vec<_>>());
    for row in rows {
        let cells = row.iter().zip(columns).map(|(cell, (name, _))| match *name {
            "runtime_total_bytes" => Bytes(cell.parse().unwrap_or_default()).to_string(),
            _ => cell.clone(),
        });
        table.row(cells.collect());
    }
    table
}

fn objects(columns: &[(&str, Align)], rows: &[Vec<String>]) -> Vec<Value> {
    let object = |row: &Vec<String>| {
        let fields = columns.iter().zip(row).map(|((name, _), cell)| {
            let value = match *name {
                "runtime_total_bytes" => json!(cell.parse::<u64>().unwrap_or_default()),
                _ => json!(cell),
            };
            ((*name).to_owned(), value)
        });
        Value::Object(fields.collect())
    };
    rows.iter().map(object).collect()
}
