//! What is seen while watching, on stderr: a few lines that stay in place on a terminal, a plain line a
//! sample otherwise.

use crate::output::Output;
use plimsoll_core::units::{Bytes, group_thousands};
use plimsoll_ingest::watch::{
    DeviceFree, Header, Line, MemoryPlace, RankFigures, RankId, Reading, Sample, ServerKind,
    Summary,
};
use std::io::{self, IsTerminal as _, Write as _};

/// Most ranks that the block on a terminal shows.
const MOST_RANKS: usize = 8;

/// Columns of a terminal that does not tell.
const NARROW: usize = 79;

/// The view.
pub struct View<'a> {
    place: MemoryPlace,
    server: ServerKind,
    width: usize,
    /// Lines of the block that stands on the terminal.
    drawn: Option<usize>,
    output: &'a Output,
}

impl<'a> View<'a> {
    /// Says what is watched, and why something cannot be seen.
    pub fn new(header: &Header, output: &'a Output) -> Self {
        let terminal = output.host().is_none() && io::stderr().is_terminal();
        let columns = terminal_size::terminal_size_of(io::stderr()).map(|(width, _)| width.0);
        let view = Self {
            place: header.memory,
            server: header.server,
            width: columns.map_or(NARROW, |columns| usize::from(columns).saturating_sub(1)),
            drawn: terminal.then_some(0),
            output,
        };
        let version = header.version.as_deref().map_or_else(String::new, |v| format!(" {v}"));
        let model = header.model.as_deref().map_or_else(String::new, |m| format!(", {m}"));
        output.note(&format!("watching {}{version}{model}", header.server.name()));
        if let Some(missing) = &header.memory_missing {
            output.note(&format!("note: free memory cannot be seen from here: {missing}"));
        }
        if header.metrics == plimsoll_ingest::watch::recording::Metrics::Off {
            output.note(
                "note: no /metrics: pool, queue and retractions are not told; start the server with \
                 --enable-metrics",
            );
        }
        view
    }

    /// Shows a line and where the watch stands.
    pub fn show(&mut self, line: &Line, summary: &Summary) {
        let Some(drawn) = self.drawn else {
            if let Some(text) = self.plain(line, summary) {
                self.output.note(&text);
            }
            return;
        };
        let block = self.block(line, summary);
        let mut text = back(drawn);
        for line in &block {
            // A line that wraps would spoil the count.
            text.extend(line.chars().take(self.width));
            text.push_str("\u{1b}[K\n");
        }
        // The block before may have been longer.
        text.push_str("\u{1b}[J");
        let mut err = io::stderr().lock();
        let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
        self.drawn = Some(block.len());
    }

    /// Takes the block away.
    pub fn clear(&mut self) {
        if let Some(drawn) = self.drawn.replace(0) {
            let text = format!("{}\u{1b}[J", back(drawn));
            let _ = io::stderr().lock().write_all(text.as_bytes());
        }
    }

    /// One line: time, free memory, then each rank.
    fn plain(&self, line: &Line, summary: &Summary) -> Option<String> {
        match line {
            Line::Sample(sample) => {
                let mut parts = vec![seconds(sample.at_ms)];
                parts.extend(self.free(&sample.devices, summary));
                for (id, figures) in told(sample) {
                    parts.push(format!("{id} {}", self.figures(figures)));
                }
                Some(parts.join("  "))
            }
            Line::Missed(missed) => {
                Some(format!("{}  no answer: {}", seconds(missed.at_ms), missed.why))
            }
            Line::End(_) | Line::Other => None,
        }
    }

    fn block(&self, line: &Line, summary: &Summary) -> Vec<String> {
        let mut block = Vec::new();
        match line {
            Line::Sample(sample) => {
                block.push(format!("  time     {}", seconds(sample.at_ms).trim_start()));
                if let Some(free) = self.free(&sample.devices, summary) {
                    block.push(format!("  memory   {free}"));
                }
                if let Some(heaviest) = summary.heaviest
                    && let Some(least) = heaviest.least
                {
                    let tokens = group_thousands(heaviest.tokens);
                    let free = least.free;
                    block.push(format!(
                        "  prefill  {free} free around the heaviest: {tokens} tokens"
                    ));
                }
                let ranks: Vec<_> = told(sample).collect();
                for (id, figures) in ranks.iter().take(MOST_RANKS) {
                    block.push(format!("  {:<8} {}", id.to_string(), self.figures(figures)));
                }
                if ranks.len() > MOST_RANKS {
                    block.push(format!("  and {} ranks more", ranks.len() - MOST_RANKS));
                }
                if let Some(retractions) = summary.retractions() {
                    let name = retracted(self.server);
                    block.push(format!("  {name} {retractions} since the watch began"));
                }
            }
            Line::Missed(missed) => {
                block.push(format!("  time     {}", seconds(missed.at_ms).trim_start()));
                block.push(format!("  no answer: {}", missed.why));
            }
            Line::End(_) | Line::Other => {}
        }
        block
    }

    fn free(&self, devices: &[DeviceFree], summary: &Summary) -> Option<String> {
        let now = devices.iter().min_by_key(|device| device.free)?;
        let least = summary.least()?;
        let place = |index: u32| match self.place {
            MemoryPlace::Host => String::new(),
            _ => format!(" (device {index})"),
        };
        let Reading { device, free, .. } = least;
        let mut text =
            format!("free {}{}  least {free}{}", now.free, place(now.index), place(device));
        if let Some(line) = summary.min_free {
            text.push_str(&format!("  margin {}", margin(free, line)));
        }
        Some(text)
    }

    fn figures(&self, figures: &RankFigures) -> String {
        let mut parts = Vec::new();
        let number = |n: Option<u64>| n.map_or_else(|| "?".to_owned(), group_thousands);
        if figures.pool_held_tokens.is_some() || figures.pool_usage.is_some() {
            let usage = figures
                .pool_usage
                .map_or_else(String::new, |usage| format!(" ({:.0} %)", usage * 100.0));
            let (held, of) = (figures.pool_held_tokens, figures.pool_capacity_tokens);
            parts.push(format!("pool {} of {}{usage}", number(held), number(of)));
        }
        let named = [
            ("running", figures.running_requests),
            ("queue", figures.queued_requests),
            (retracted(self.server), figures.retractions_total),
        ];
        for (name, value) in named {
            if let Some(value) = value {
                parts.push(format!("{name} {}", group_thousands(value)));
            }
        }
        if let Some(rate) = figures.output_tokens_per_s {
            parts.push(format!("{rate:.0} tokens/s"));
        }
        parts.join(", ")
    }
}

/// Ranks with something to say on a screen.
fn told(sample: &Sample) -> impl Iterator<Item = (&RankId, &RankFigures)> {
    sample.ranks.iter().filter(|(_, figures)| {
        figures.pool_usage.is_some()
            || figures.running_requests.is_some()
            || figures.output_tokens_per_s.is_some()
    })
}

const fn retracted(server: ServerKind) -> &'static str {
    match server {
        ServerKind::Sglang => "retracted",
        ServerKind::Vllm => "preempted",
    }
}

/// What is left above the line, or missing below it.
pub fn margin(free: Bytes, line: Bytes) -> String {
    match free.checked_sub(line) {
        Some(left) => left.to_string(),
        None => format!("-{}", line.saturating_sub(free)),
    }
}

fn seconds(ms: u64) -> String {
    format!("{:>7}.{} s", ms / 1000, ms % 1000 / 100)
}

/// Moves the cursor back over the block.
fn back(lines: usize) -> String {
    if lines == 0 { String::new() } else { format!("\r\u{1b}[{lines}A") }
}
