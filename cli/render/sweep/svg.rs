//! A sweep as one SVG file: throughput, p99 TTFT and the chance of a crash over the first swept number, a line a
//! combination of the other values. No script, font or link; readable on light and dark ground. Coordinates
//! are integers, so that the same rows give the same text.

use super::{screen::percent, value_text};
use plimsoll_core::units::group_thousands;
use plimsoll_replay::timeline::escape;
use plimsoll_sweep::{
    answer::{self, Group, Series, survive},
    question::{Axis, header::Header},
    row::Row,
};
use std::fmt::Write as _;

const LEFT: i64 = 90;
const WIDE: i64 = 700;
/// Top of each panel, and the height of all.
const TOPS: [i64; 3] = [70, 260, 450];
const HIGH: i64 = 140;
const HEIGHT: i64 = 680;
/// Most lines; each has a dash of its own, so that colour does not carry meaning alone.
const MOST: usize = 6;
const DASHES: [&str; MOST] = ["none", "8 3", "2 3", "8 3 2 3", "12 4", "4 4"];

const STYLE: &str = "\
text{font:13px system-ui,sans-serif;fill:#1a1a1a}.t{font-size:16px;font-weight:600}.d{fill:#5b6472}\
.ground{fill:#fff}.g{stroke:#d5d8de;stroke-width:1}path{fill:none;stroke-width:2}.b{stroke:none;opacity:.18}\
.s0{stroke:#1f6feb}.s1{stroke:#cf222e}.s2{stroke:#2da44e}.s3{stroke:#8250df}.s4{stroke:#b08800}.s5{stroke:#57606a}\
.f0{fill:#1f6feb}.f1{fill:#cf222e}.f2{fill:#2da44e}.f3{fill:#8250df}.f4{fill:#b08800}.f5{fill:#57606a}\
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.d{fill:#9aa4b2}.ground{fill:#0d1117}.g{stroke:#30363d}}";

/// One panel: its name, the value of a group, and how a value is shown.
struct Panel {
    name: &'static str,
    value: fn(&Group<'_>) -> Option<f64>,
    shown: fn(f64) -> String,
    /// The top of its scale; `None`: the largest value.
    most: Option<f64>,
}

const PANELS: [Panel; 3] = [
    Panel {
        name: "output tokens/s, median of the seeds that lived",
        value: |group| Some(group.median("throughput_output_milli_per_s")? as f64 / 1000.0),
        shown: whole,
        most: None,
    },
    Panel {
        name: "p99 TTFT, ms, median of the seeds that lived",
        value: |group| Some(group.median("ttft_p99_ns")? as f64 / 1e6),
        shown: whole,
        most: None,
    },
    Panel {
        name: "chance of a crash, with its 95 % interval",
        value: |group| group.starts().then(|| group.chance().share),
        shown: percent,
        most: Some(1.0),
    },
];

fn whole(value: f64) -> String {
    group_thousands(value.round() as u64)
}

/// The document; one that says so where no number is swept.
pub fn svg(header: &Header, rows: &[Row]) -> String {
    let question = &header.question;
    let groups = answer::groups(question, rows);
    let names: Vec<&str> = question.scenarios.iter().map(|one| one.name.as_str()).collect();
    let names = names.join(", ");
    let wide = LEFT + WIDE + 30;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide} {HEIGHT}\" role=\"img\" \
         aria-label=\"{}\">\n<style>{STYLE}</style>\n<rect width=\"{wide}\" height=\"{HEIGHT}\" \
         class=\"ground\"/>\n",
        escape(&format!("sweep of {names}"))
    );
    label(&mut out, (LEFT, 26), "class=\"t\"", &names);
    let Some((place, axis)) =
        survive::axis(question).and_then(|at| Some((at, question.axes.get(at)?)))
    else {
        label(&mut out, (LEFT, 60), "class=\"d\"", "no swept path has numbers for values");
        return out + "</svg>\n";
    };
    let series = answer::series(question, &groups, place);
    let chart = Chart::of(axis, place);
    for (panel, top) in PANELS.iter().zip(TOPS) {
        chart.panel(&mut out, panel, top, &series);
    }
    chart.scale(&mut out);
    legend(&mut out, header, &series);
    out + "</svg>\n"
}

/// Where values of the axis lie.
struct Chart<'a> {
    axis: &'a Axis,
    place: usize,
    low: f64,
    high: f64,
}

impl<'a> Chart<'a> {
    fn of(axis: &'a Axis, place: usize) -> Self {
        let numbers = || (0..axis.values().len()).filter_map(|at| axis.number(at));
        let low = numbers().fold(f64::INFINITY, f64::min);
        let high = numbers().fold(f64::NEG_INFINITY, f64::max);
        Self { axis, place, low, high }
    }

    fn x_of(&self, at: usize) -> i64 {
        let number = self.axis.number(at).unwrap_or(self.low);
        let span = self.high - self.low;
        let share = if span > 0.0 { (number - self.low) / span } else { 0.5 };
        LEFT + (share * WIDE as f64).round() as i64
    }

    fn x(&self, group: &Group<'_>) -> i64 {
        self.x_of(group.at.get(self.place).copied().unwrap_or_default())
    }

    fn panel(&self, out: &mut String, panel: &Panel, top: i64, series: &[Series<'_, '_>]) {
        let values = series.iter().flat_map(|one| one.groups.iter());
        let largest = values.filter_map(|group| (panel.value)(group)).fold(0.0, f64::max);
        let most = panel.most.unwrap_or(largest);
        let y = |value: f64| {
            let share = if most > 0.0 { value / most } else { 0.0 };
            top + HIGH - (share * HIGH as f64).round() as i64
        };
        label(out, (LEFT, top - 8), "class=\"d\"", panel.name);
        for (value, at) in [(0.0, top + HIGH), (most / 2.0, top + HIGH / 2), (most, top)] {
            let right = LEFT + WIDE;
            let _ = writeln!(
                out,
                "<line class=\"g\" x1=\"{LEFT}\" y1=\"{at}\" x2=\"{right}\" y2=\"{at}\"/>"
            );
            let shown = (panel.shown)(value);
            label(out, (LEFT - 8, at + 4), "class=\"d\" text-anchor=\"end\"", &shown);
        }
        for (n, one) in series.iter().enumerate().take(MOST) {
            if panel.most.is_some() {
                self.band(out, n, one, &y);
            }
            self.line(out, (n, one), panel.value, &y);
        }
    }

    /// Straight lines between values; a value without a figure breaks them, and one alone is a dot.
    fn line(
        &self,
        out: &mut String,
        (n, series): (usize, &Series<'_, '_>),
        value: fn(&Group<'_>) -> Option<f64>,
        y: &dyn Fn(f64) -> i64,
    ) {
        let mut path = String::new();
        let mut down = false;
        for group in &series.groups {
            let Some(value) = value(group) else {
                down = false;
                continue;
            };
            let (x, y) = (self.x(group), y(value));
            let _ = write!(path, "{}{x} {y}", if down { 'L' } else { 'M' });
            down = true;
            let _ = writeln!(out, "<circle class=\"f{n}\" cx=\"{x}\" cy=\"{y}\" r=\"3\"/>");
        }
        let dash = DASHES[n];
        let _ = writeln!(out, "<path class=\"s{n}\" stroke-dasharray=\"{dash}\" d=\"{path}\"/>");
    }

    /// The interval of the chance of a crash.
    fn band(&self, out: &mut String, n: usize, series: &Series<'_, '_>, y: &dyn Fn(f64) -> i64) {
        let there: Vec<_> = series.groups.iter().filter(|group| group.starts()).collect();
        let upper = there.iter().map(|group| (self.x(group), y(group.chance().high)));
        let lower = there.iter().rev().map(|group| (self.x(group), y(group.chance().low)));
        let points: Vec<String> = upper.chain(lower).map(|(x, y)| format!("{x},{y}")).collect();
        let _ = writeln!(out, "<polygon class=\"b f{n}\" points=\"{}\"/>", points.join(" "));
    }

    /// The values under the last panel, as many as there is room for.
    fn scale(&self, out: &mut String) {
        let y = TOPS[2] + HIGH + 20;
        let count = self.axis.values().len();
        let every = count.div_ceil(12).max(1);
        for at in (0..count).step_by(every) {
            let text = value_text(self.axis, at);
            label(out, (self.x_of(at), y), "class=\"d\" text-anchor=\"middle\"", text);
        }
        label(out, (LEFT, y + 20), "", &self.axis.name);
    }
}

/// Which line is which; left out where there is one.
fn legend(out: &mut String, header: &Header, series: &[Series<'_, '_>]) {
    if series.len() < 2 {
        return;
    }
    let several = header.question.scenarios.len() > 1;
    for (n, one) in series.iter().enumerate().take(MOST) {
        let name = header.question.scenarios.get(one.scenario).map_or("", |one| one.name.as_str());
        let mut words = if several { vec![name.to_owned()] } else { Vec::new() };
        words.extend(Some(one.others.clone()).filter(|others| !others.is_empty()));
        let (x, y) = (LEFT + 250 * (n as i64 % 3), HEIGHT - 34 + 20 * (n as i64 / 3));
        let _ = writeln!(
            out,
            "<path class=\"s{n}\" stroke-dasharray=\"{}\" d=\"M{x} {y}H{}\"/>",
            DASHES[n],
            x + 30
        );
        label(out, (x + 36, y + 4), "class=\"d\"", &words.join(", "));
    }
    if series.len() > MOST {
        let more = format!("{} more combinations are not drawn", series.len() - MOST);
        label(out, (LEFT + 250, 46), "class=\"d\"", &more);
    }
}

fn label(out: &mut String, (x, y): (i64, i64), attributes: &str, text: &str) {
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" {attributes}>{}</text>", escape(text));
}
