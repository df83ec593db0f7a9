//! Progress of a sweep on a terminal: how far, how fast, how long yet, the worst margin so far.

use crate::output::Output;
use plimsoll_core::units::{Bytes, group_thousands};
use plimsoll_replay::scenario::time;
use plimsoll_sweep::{question::Question, row::Row};
use std::{
    io::{self, IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

/// Shorter sweeps show nothing.
const SILENT: Duration = Duration::from_millis(500);
/// Time between two lines.
const EVERY: Duration = Duration::from_millis(100);

/// A line on stderr that is written over.
pub struct Progress<'q> {
    question: &'q Question,
    begun: Instant,
    shown: Option<Instant>,
    /// Points that are done, and those of them that this run did.
    done: u64,
    new: u64,
    total: u64,
    worst: Option<(i64, u64)>,
    is_terminal: bool,
}

impl<'q> Progress<'q> {
    /// Of `total` points, of which these rows are there.
    pub fn new(question: &'q Question, total: u64, rows: &[Row], output: &Output) -> Self {
        let quiet = std::env::var_os("PLIMSOLL_NO_PROGRESS").is_some();
        let mut progress = Self {
            question,
            begun: Instant::now(),
            shown: None,
            done: rows.len() as u64,
            new: 0,
            total,
            worst: None,
            is_terminal: output.host().is_none() && io::stderr().is_terminal() && !quiet,
        };
        rows.iter().for_each(|row| progress.see(row));
        progress
    }

    fn see(&mut self, row: &Row) {
        if let Some(margin) = row.int("margin_bytes") {
            let one = (margin, row.index);
            self.worst = Some(self.worst.map_or(one, |worst| worst.min(one)));
        }
    }

    /// One more point is done.
    pub fn finished(&mut self, row: &Row) {
        self.see(row);
        self.done += 1;
        self.new += 1;
        self.show();
    }

    /// Shows the line, where it is due.
    pub fn show(&mut self) {
        let due = self.shown.is_none_or(|shown| shown.elapsed() >= EVERY);
        if !self.is_terminal || self.begun.elapsed() < SILENT || !due {
            return;
        }
        self.shown = Some(Instant::now());
        let line = self.line(self.begun.elapsed());
        // To the line's begin, and clear what stood there.
        let _ = write!(io::stderr().lock(), "\r\u{1b}[2K{line}");
    }

    fn line(&self, elapsed: Duration) -> String {
        let share = self.done as f64 * 100.0 / self.total.max(1) as f64;
        let rate = self.new as f64 / elapsed.as_secs_f64().max(1e-3);
        let (done, total) = (group_thousands(self.done), group_thousands(self.total));
        let mut line = format!("{done} of {total} points ({share:.0} %), {rate:.1}/s");
        if self.new > 0 {
            let left = (self.total.saturating_sub(self.done)) as f64 / rate;
            line.push_str(&format!(", {} left", clock(left)));
        }
        if let Some((margin, index)) = self.worst {
            line.push_str(&format!("; worst margin {} at {}", signed(margin), self.place(index)));
        }
        line
    }

    fn place(&self, index: u64) -> String {
        let Some(point) = self.question.point(index) else { return String::new() };
        let mut parts: Vec<String> = self
            .question
            .axes
            .iter()
            .zip(&point.at)
            .filter_map(|(axis, at)| Some(format!("{} {}", axis.name, axis.values().get(*at)?)))
            .collect();
        parts.push(format!("seed {}", point.seed));
        parts.join(", ")
    }

    /// Clears the line.
    pub fn close(&mut self) {
        if self.shown.is_some() {
            let _ = write!(io::stderr().lock(), "\r\u{1b}[2K");
        }
    }
}

/// `1:23:45`, or seconds below a minute.
fn clock(seconds: f64) -> String {
    let whole = seconds.ceil() as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, s) => time::show(plimsoll_core::units::Nanos(s * 1_000_000_000)),
        (0, m, s) => format!("{m}:{s:02}"),
        (h, m, s) => format!("{h}:{m:02}:{s:02}"),
    }
}

/// An amount that may be below zero.
pub fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "" };
    format!("{sign}{}", Bytes(bytes.unsigned_abs()))
}
