//! Results of `sweep`: the rows as they are, and what they say together.

mod answers;
mod bars;
mod machine;
mod screen;
mod svg;

pub use svg::svg;

use super::table::{Align, Table, csv_cell};
use crate::{
    args::Format,
    commands::sweep::{options::AnswerArgs, progress::signed},
    output::Output,
};
use plimsoll_sweep::{
    answer::{self, Group, Objective, Series, Survival},
    question::{Axis, Question, header::Header},
    row::{Cell, Kind, Row, columns},
    rows_file,
};
use std::fmt::Write as _;

/// What the rows of a sweep say.
pub struct Answer<'r> {
    /// Rows by their values.
    pub groups: Vec<Group<'r>>,
    /// The axis that answers are given over.
    pub axis: Option<usize>,
    /// Whether a group stands in the Pareto front; empty where that was not asked.
    pub front: Vec<bool>,
    /// What is weighed.
    pub objectives: Vec<Objective>,
}

impl<'r> Answer<'r> {
    fn of(header: &Header, rows: &'r [Row], args: &AnswerArgs) -> Self {
        let groups = answer::groups(&header.question, rows);
        let objectives = match args.objectives.is_empty() {
            true => Objective::usual(),
            false => args.objectives.clone(),
        };
        let asked = args.pareto || !args.objectives.is_empty();
        let front = if asked { answer::front(&groups, &objectives) } else { Vec::new() };
        Self { axis: answer::survive::axis(&header.question), groups, front, objectives }
    }

    /// The series over the axis, each with what survives.
    fn survivals(
        &self,
        header: &Header,
        args: &AnswerArgs,
    ) -> Vec<(Series<'_, 'r>, Survival<'_, 'r>)> {
        let Some(axis) = self.axis else { return Vec::new() };
        answer::series(&header.question, &self.groups, axis)
            .into_iter()
            .map(|one| {
                let survival = answer::survival(&one, args.survive);
                (one, survival)
            })
            .collect()
    }
}

/// The text of a value of an axis.
fn value_text(axis: &Axis, at: usize) -> &str {
    axis.values().get(at).map_or("", String::as_str)
}

/// All rows in the form that is asked for.
pub fn render(
    header: &Header,
    rows: &[Row],
    args: &AnswerArgs,
    format: Format,
    output: &Output,
) -> String {
    match format {
        Format::Jsonl | Format::Csv => self::rows(header, rows, format),
        Format::Json => {
            let answer = Answer::of(header, rows, args);
            format!("{:#}\n", machine::document(header, rows, &answer, args))
        }
        Format::Md => {
            let answer = Answer::of(header, rows, args);
            screen::table(header, &answer, output, usize::MAX).markdown()
        }
        Format::Human | Format::Sarif => {
            let answer = Answer::of(header, rows, args);
            screen::human(header, &answer, args, output)
        }
    }
}

/// The rows alone, of `run --seeds`.
pub fn rows(header: &Header, rows: &[Row], format: Format) -> String {
    match format {
        Format::Jsonl => rows_file::text(header, rows),
        Format::Json => {
            let rows: Vec<serde_json::Value> = rows
                .iter()
                .filter_map(|row| serde_json::from_str(&row.line(&header.question)).ok())
                .collect();
            format!("{:#}\n", serde_json::Value::Array(rows))
        }
        Format::Md => {
            let names = columns(&header.question);
            let names: Vec<(String, Align)> =
                names.into_iter().map(|(name, kind)| (name, align(kind))).collect();
            let mut table = table_of(&names);
            for row in rows {
                table.row(row.all_cells(&header.question).iter().map(cell).collect());
            }
            table.markdown()
        }
        Format::Human | Format::Csv | Format::Sarif => csv(header, rows),
    }
}

/// How a run ended, in a few words.
pub fn ending(row: &Row) -> String {
    let word = row.outcome().replace('_', " ");
    if let Some(reason) = row.get("reason").word() {
        return format!("{word}: {reason}");
    }
    let mut text = match (row.get("died_in").word(), row.int("died_at_ns")) {
        (Some(place), Some(at)) => {
            format!("{word} in {place} at {:.1} s", at as f64 / 1e9)
        }
        (Some(place), None) => format!("{word} in {place}"),
        _ => word,
    };
    let failed = row.int("claims_failed").unwrap_or(0);
    if failed > 0 {
        let claims = if failed == 1 { "claim does not hold" } else { "claims do not hold" };
        let _ = write!(text, ", {failed} {claims}");
    }
    if let Some(margin) = row.int("margin_bytes") {
        let _ = write!(text, ", margin {}", signed(margin));
    }
    text
}

/// The worst margin of some rows, and its seed.
pub fn worst(question: &Question, rows: &[&Row]) -> String {
    let margins = rows.iter().filter_map(|row| Some((row.int("margin_bytes")?, row.index)));
    let Some((margin, index)) = margins.min() else { return String::new() };
    let seed = question.point(index).map_or(0, |point| point.seed);
    format!("; worst margin {} at seed {seed}", signed(margin))
}

fn csv(header: &Header, rows: &[Row]) -> String {
    let names: Vec<String> =
        columns(&header.question).iter().map(|(name, _)| csv_cell(name)).collect();
    let mut out = names.join(",") + "\n";
    for row in rows {
        let cells: Vec<String> = row.all_cells(&header.question).iter().map(cell).collect();
        let _ = writeln!(out, "{}", cells.join(","));
    }
    out
}

fn cell(cell: &Cell) -> String {
    match cell {
        Cell::Null => String::new(),
        Cell::Int(n) => n.to_string(),
        Cell::Float(_) => cell.json().to_string(),
        Cell::Text(text) => csv_cell(text),
    }
}

/// How a column of a table is aligned.
const fn align(kind: Kind) -> Align {
    match kind {
        Kind::Int | Kind::Float => Align::Right,
        Kind::Text => Align::Left,
    }
}

/// A table with these columns.
fn table_of(columns: &[(String, Align)]) -> Table {
    let columns: Vec<(&str, Align)> =
        columns.iter().map(|(name, align)| (name.as_str(), *align)).collect();
    Table::new(&columns)
}
