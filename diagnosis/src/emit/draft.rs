//! A scenario file while it is put together, and its text.

use plimsoll_core::{policy::sglang::version::Version, units::GIB};
use std::fmt::Write as _;

/// Bytes in one mebibyte, signed as printed amounts are.
const MIB: i64 = 1 << 20;

/// A value of the file with the place it comes from.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Reading {
    /// Key under `machine.readings`.
    pub key: &'static str,
    /// Bytes: one for all ranks, or one a rank.
    pub values: Vec<i64>,
    /// Where it is from, in words.
    pub source: String,
    /// Whether it was solved rather than printed.
    pub solved: Solved,
}

/// Whether a value was printed, or solved from what was printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Solved {
    /// As printed.
    No,
    /// Solved: the file says `calibrated`.
    Yes,
}

/// A claim, or a line of requests or events, ready to be written.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Entry {
    /// Key.
    pub key: String,
    /// YAML of its value, on one line.
    pub value: String,
    /// What stands behind it as a comment; empty for none.
    pub note: String,
}

impl Entry {
    pub(super) fn new(
        key: impl Into<String>,
        value: impl ToString,
        note: impl Into<String>,
    ) -> Self {
        Self { key: key.into(), value: value.to_string(), note: note.into() }
    }
}

/// The launch as it stands in the file.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum LaunchText {
    /// A command as typed.
    Command(String),
    /// Flags by name, from the arguments that the server printed; the value is YAML.
    Flags(&'static str, Vec<(String, String)>),
}

/// A scenario file in parts.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Draft {
    pub name: String,
    pub why: String,
    pub source: String,
    /// What the run of this text does not reproduce, a line each; the file says it at its head.
    pub differs: Vec<String>,
    pub machine: Vec<Entry>,
    pub readings: Vec<Reading>,
    pub version: Version,
    pub environment: Vec<(String, String)>,
    pub launch: LaunchText,
    /// Settings that the server printed and the command does not lead to; they win over the command.
    pub flags: Vec<Entry>,
    pub model: Option<Entry>,
    pub workload: Vec<Vec<Entry>>,
    /// Events of the start.
    pub start_events: Vec<String>,
    /// Events of the running server.
    pub events: Vec<String>,
    pub expect: Vec<Entry>,
}

impl Draft {
    /// Puts a reading in, in place of one of the same key.
    pub(super) fn set(&mut self, reading: Reading) {
        match self.readings.iter_mut().find(|old| old.key == reading.key) {
            Some(old) => *old = reading,
            None => self.readings.push(reading),
        }
    }

    /// A reading by its key.
    pub(super) fn reading(&self, key: &str) -> Option<&Reading> {
        self.readings.iter().find(|reading| reading.key == key)
    }

    /// The text of the file.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        if !self.differs.is_empty() {
            out.push_str("# This file does not reproduce what the log shows:\n");
            for line in &self.differs {
                let _ = writeln!(out, "#   {line}");
            }
        }
        let _ = writeln!(out, "name: {}", self.name);
        folded(&mut out, "", "why", &self.why);
        folded(&mut out, "", "source", &self.source);
        out.push_str("seed: 1\nmachine:\n");
        entries(&mut out, "  ", &self.machine);
        if !self.readings.is_empty() {
            out.push_str("  readings:\n");
            self.readings.iter().for_each(|reading| out.push_str(&reading.line()));
        }
        self.engine(&mut out);
        if let Some(model) = &self.model {
            entries(&mut out, "", std::slice::from_ref(model));
        }
        self.load(&mut out);
        if !self.expect.is_empty() {
            out.push_str("expect:\n");
            entries(&mut out, "  ", &self.expect);
        }
        out
    }

    fn engine(&self, out: &mut String) {
        out.push_str("engine:\n");
        if let LaunchText::Flags(engine, _) = &self.launch {
            let _ = writeln!(out, "  name: {engine}");
        }
        let _ = writeln!(out, "  version: {}", self.version);
        if !self.environment.is_empty() {
            out.push_str("  environment:\n");
            for (name, value) in &self.environment {
                let _ = writeln!(out, "    {name}: {}", quoted(value));
            }
        }
        match &self.launch {
            // Continuations and comments of a script stay: the text is one scalar.
            LaunchText::Command(text)
                if text.trim().contains(['\n', '\t']) || text.contains("  ") =>
            {
                out.push_str("  command: |\n");
                text.trim().lines().for_each(|line| {
                    let _ = writeln!(out, "    {}", line.trim_end());
                });
            }
            LaunchText::Command(text) => folded(out, "  ", "command", text.trim()),
            LaunchText::Flags(..) => {}
        }
        let given = match &self.launch {
            LaunchText::Flags(_, flags) => flags.as_slice(),
            LaunchText::Command(_) => &[],
        };
        if !given.is_empty() || !self.flags.is_empty() {
            out.push_str("  flags:\n");
        }
        let over = |name: &str| self.flags.iter().any(|entry| entry.key == name);
        for (name, value) in given.iter().filter(|(name, _)| !over(name)) {
            let _ = writeln!(out, "    {name}: {value}");
        }
        entries(out, "    ", &self.flags);
    }

    fn load(&self, out: &mut String) {
        if !self.workload.is_empty() {
            out.push_str("workload:\n");
        }
        for group in &self.workload {
            for (at, entry) in group.iter().enumerate() {
                let lead = if at == 0 { "  - " } else { "    " };
                entries(out, lead, std::slice::from_ref(entry));
            }
        }
        let events = || self.start_events.iter().chain(&self.events);
        if events().next().is_some() {
            out.push_str("events:\n");
        }
        for event in events() {
            let _ = writeln!(out, "  - {event}");
        }
    }
}

impl Reading {
    fn line(&self) -> String {
        let values: Vec<String> = self.values.iter().map(|value| amount(*value)).collect();
        let value = match &values[..] {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let calibrated = match self.solved {
            Solved::Yes => " calibrated: true,",
            Solved::No => "",
        };
        let (key, source) = (self.key, quoted(&self.source));
        format!("    {key}: {{ value: {value},{calibrated} source: {source} }}\n")
    }

    /// The smallest value.
    pub(super) fn least(&self) -> i64 {
        self.values.iter().copied().min().unwrap_or_default()
    }
}

fn entries(out: &mut String, lead: &str, entries: &[Entry]) {
    for Entry { key, value, note } in entries {
        let _ = match note.is_empty() {
            true => writeln!(out, "{lead}{key}: {value}"),
            false => writeln!(out, "{lead}{key}: {value} # {note}"),
        };
    }
}

/// Longest line of a folded text.
const WIDTH: usize = 110;

/// A text over several lines. A scalar that folds needs no quotes, whatever stands in it.
fn folded(out: &mut String, lead: &str, key: &str, text: &str) {
    let _ = writeln!(out, "{lead}{key}: >-");
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.len() + word.len() + 1 > WIDTH {
            let _ = writeln!(out, "{lead}  {line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    let _ = writeln!(out, "{lead}  {line}");
}

/// A text between double quotes, with YAML's escapes.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' | '\r' | '\t' => out.push(' '),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// An amount as it is written: GiB with up to six decimals, from below one GiB on MiB, so that a printed
/// figure stays as printed. Nothing is below zero in a file.
pub(super) fn amount(bytes: i64) -> String {
    let bytes = bytes.max(0);
    if bytes < MIB {
        return format!("{bytes} B");
    }
    match bytes < GIB as i64 && bytes % (MIB / 128) == 0 {
        true => format!("{} MiB", decimals(bytes as f64 / MIB as f64)),
        false => format!("{} GiB", decimals(bytes as f64 / GIB as f64)),
    }
}

/// Bytes as they are read back from [`amount`].
pub(super) fn as_written(bytes: i64) -> i64 {
    let text = amount(bytes);
    let number = |unit: &str| text.strip_suffix(unit).and_then(|n| n.trim().parse::<f64>().ok());
    let gib = number("GiB").map(|n| n * GIB as f64);
    let mib = || number("MiB").map(|n| n * MIB as f64);
    gib.or_else(mib).map_or(0, |bytes| bytes.round() as i64)
}

fn decimals(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_amounts_stay_as_printed() {
        let gib = |n: f64| (n * GIB as f64).round() as i64;
        assert_eq!(amount(gib(94.04)), "94.04 GiB");
        assert_eq!(amount(gib(0.82)), "0.82 GiB");
        assert_eq!(amount(896 * MIB), "896 MiB");
        assert_eq!(amount(-5), "0 B");
        assert_eq!(as_written(gib(94.036_712_3)), gib(94.036_712));
    }

    #[test]
    fn texts_with_quotes_are_escaped() {
        assert_eq!(quoted("a \"b\" \\ c\nd"), r#""a \"b\" \\ c d""#);
    }
}
