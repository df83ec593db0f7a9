//! A plot of a sweep in text: for each value of the first swept number a bar of throughput, of p99 TTFT and of
//! the chance of a crash.

use super::{Answer, screen::percent, value_text};
use plimsoll_core::units::group_thousands;
use plimsoll_sweep::{
    answer::{Group, Series},
    question::{Axis, Question},
};
use std::fmt::Write as _;

/// Cells of a bar.
const WIDE: usize = 16;
/// Most rows of a plot.
const MOST_ROWS: usize = 60;
/// Most series that are plotted.
const MOST_SERIES: usize = 4;

/// The plots of the first series.
pub fn plot(question: &Question, answer: &Answer<'_>, ascii: bool) -> String {
    let Some((place, axis)) = answer.axis.and_then(|at| Some((at, question.axes.get(at)?))) else {
        return String::new();
    };
    let series = plimsoll_sweep::answer::series(question, &answer.groups, place);
    let plotted = |one: &&Series<'_, '_>| one.groups.len() > 1;
    let mut out = String::new();
    for one in series.iter().filter(plotted).take(MOST_SERIES) {
        out.push_str(&one_plot(question, (place, axis), one, ascii));
    }
    let more = series.iter().filter(plotted).count().saturating_sub(MOST_SERIES);
    if more > 0 {
        let _ = writeln!(out, "  {more} more combinations are not plotted");
    }
    out
}

fn one_plot(
    question: &Question,
    (place, axis): (usize, &Axis),
    series: &Series<'_, '_>,
    ascii: bool,
) -> String {
    let mut title = Vec::new();
    if question.scenarios.len() > 1 {
        title.extend(question.scenarios.get(series.scenario).map(|one| one.name.clone()));
    }
    title.extend(Some(series.others.clone()).filter(|others| !others.is_empty()));
    let mut out = String::new();
    if !title.is_empty() {
        let _ = writeln!(out, "  {}", title.join(", "));
    }
    let value = |group: &Group<'_>| {
        value_text(axis, group.at.get(place).copied().unwrap_or_default()).to_owned()
    };
    let rate = |group: &Group<'_>| group.median("throughput_output_milli_per_s");
    let ttft = |group: &Group<'_>| group.median("ttft_p99_ns");
    let most = |of: &dyn Fn(&Group<'_>) -> Option<i64>| {
        series.groups.iter().filter_map(|group| of(group)).max().unwrap_or(0)
    };
    let (most_rate, most_ttft) = (most(&rate), most(&ttft));
    let every = series.groups.len().div_ceil(MOST_ROWS).max(1);
    let shown: Vec<_> = series.groups.iter().step_by(every).collect();
    let wide = shown.iter().map(|group| value(group).chars().count()).max().unwrap_or(0);
    let wide = wide.max(axis.name.chars().count());
    let _ = writeln!(
        out,
        "  {:<wide$}  {:<27} {:<27} chance of a crash",
        axis.name, "tokens/s", "TTFT p99, ms"
    );
    for group in shown {
        let text = |value: Option<i64>, unit: i64| {
            let rounded = value.map(|value| (value + unit / 2) / unit);
            rounded.and_then(|n| u64::try_from(n).ok()).map_or("-".to_owned(), group_thousands)
        };
        let (rate, ttft) = (rate(group), ttft(group));
        let share = group.chance().share;
        let chance = if group.starts() { percent(share) } else { "no start".to_owned() };
        let crash = if group.starts() { (share * 1e6) as i64 } else { 0 };
        let line = format!(
            "  {:<wide$}  {} {:<9}  {} {:<9}  {} {chance}",
            value(group),
            bar(rate, most_rate, ascii),
            text(rate, 1000),
            bar(ttft, most_ttft, ascii),
            text(ttft, 1_000_000),
            bar(Some(crash), 1_000_000, ascii),
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// A bar of as many cells as the value is of the most, in eighths where the characters are there.
fn bar(value: Option<i64>, most: i64, ascii: bool) -> String {
    const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let value = value.unwrap_or(0).max(0);
    let eighths = i128::from(value) * (WIDE as i128) * 8 / i128::from(most.max(1));
    let mut eighths = usize::try_from(eighths).unwrap_or(0).min(WIDE * 8);
    if value > 0 {
        // What is there shows.
        eighths = eighths.max(1);
    }
    let (whole, rest) = (eighths / 8, eighths % 8);
    let mut out = String::new();
    if ascii {
        out.push_str(&"#".repeat(whole + usize::from(rest >= 4 || (whole == 0 && rest > 0))));
    } else {
        out.push_str(&"█".repeat(whole));
        if rest > 0 {
            out.push(EIGHTHS[rest]);
        }
    }
    let length = out.chars().count();
    out + &" ".repeat(WIDE.saturating_sub(length))
}
