//! Plain tables: columns aligned, text to the left, figures to the right.

use std::fmt::Write as _;

/// Alignment of one column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Align {
    /// Text.
    Left,
    /// Figures.
    Right,
}

/// Rows under a header.
pub struct Table {
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with a header; each column has its alignment.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let align = columns.iter().map(|(_, align)| *align).collect();
        let header = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        Self { align, rows: vec![header] }
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    fn widths(&self) -> Vec<usize> {
        let width = |column: usize| {
            let cell = |row: &Vec<String>| row.get(column).map_or(0, |c| c.chars().count());
            self.rows.iter().map(cell).max().unwrap_or(0)
        };
        (0..self.align.len()).map(width).collect()
    }

    /// The table as lines, indented by two spaces, without trailing blanks.
    pub fn human(&self) -> String {
        let widths = self.widths();
        let mut out = String::new();
        for row in &self.rows {
            let mut line = String::from(" ");
            for ((cell, width), align) in row.iter().zip(&widths).zip(&self.align) {
                let _ = match align {
                    Align::Left => write!(line, " {cell:<width$} "),
                    Align::Right => write!(line, " {cell:>width$} "),
                };
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
        out
    }

    /// The table in Markdown.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        for (at, row) in self.rows.iter().enumerate() {
            let cells: Vec<_> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
            let _ = writeln!(out, "| {} |", cells.join(" | "));
            if at == 0 {
                let marks = self.align.iter().map(|a| match a {
                    Align::Left => "---",
                    Align::Right => "---:",
                });
                let _ = writeln!(out, "| {} |", marks.collect::<Vec<_>>().join(" | "));
            }
        }
        out
    }
}

/// One cell of CSV, quoted where it must be.
pub fn csv_cell(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
