//! A timeline as one SVG file: no script, no font, no link; readable on light and dark ground. Coordinates
//! are integers, so that the same log gives the same text.

use super::{Column, End, Timeline, columns, gib, time};
use plimsoll_core::units::group_thousands;
use std::fmt::Write as _;

/// Left edge, width and columns of the panels.
const LEFT: u64 = 90;
const WIDE: u64 = 800;
const COLUMNS: usize = 400;
/// The memory panel: top and height; below it a band for what does not move.
const MEMORY: (u64, u64) = (70, 260);
const BAND: u64 = 34;
/// The pool panel and the queue panel.
const POOL: (u64, u64) = (430, 90);
const QUEUE: (u64, u64) = (570, 70);
const HEIGHT: u64 = 720;

/// What a layer is as high as.
type Height = fn(&Column) -> u64;

/// Plain classes: renderers without CSS variables or media queries show the light colours.
const STYLE: &str = "\
text{font:13px system-ui,sans-serif;fill:#1a1a1a}.t{font-size:16px;font-weight:600}.d{fill:#5b6472}\
.ground{fill:#fff}.live{fill:#1f6feb}.cached{fill:#9ec5fe}.leaked{fill:#8250df}.others{fill:#b08800}\
.pool{fill:#2da44e}.wait{fill:#d4762c}.fixed{fill:#e4e7ec}.g{stroke:#d5d8de;stroke-width:1}\
.asked{fill:#cf222e}.c{stroke:#cf222e;stroke-width:2}.x{fill:#cf222e;font-weight:600}\
@media (prefers-color-scheme:dark){text{fill:#e6edf3}.d{fill:#9aa4b2}.ground{fill:#0d1117}\
.live{fill:#58a6ff}.cached{fill:#1f4b82}.leaked{fill:#bc8cff}.others{fill:#d29922}.pool{fill:#3fb950}\
.wait{fill:#f0883e}.fixed{fill:#21262d}.g{stroke:#30363d}.c{stroke:#ff7b72}.asked{fill:#ff7b72}.x{fill:#ff7b72}}";

/// The document.
#[must_use]
pub fn svg(timeline: &Timeline) -> String {
    let columns = columns(timeline, COLUMNS);
    let mut out = String::new();
    let wide = LEFT + WIDE + 30;
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide} {HEIGHT}\" role=\"img\" \
         aria-label=\"{}\">\n<style>{STYLE}</style>",
        escape(&format!("memory of {} over time", timeline.name))
    );
    out.push_str(
        "<defs><pattern id=\"h\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" \
         patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" class=\"others\"/>\
         <rect width=\"2\" height=\"6\" class=\"ground\"/></pattern></defs>\n",
    );
    let _ = writeln!(out, "<rect width=\"{wide}\" height=\"{HEIGHT}\" class=\"ground\"/>");
    title(&mut out, timeline);
    memory(&mut out, timeline, &columns);
    asked(&mut out, timeline, &columns);
    pool(&mut out, timeline, &columns);
    queue(&mut out, &columns);
    time_axis(&mut out, timeline);
    crash(&mut out, timeline);
    out.push_str("</svg>\n");
    out
}

/// Text that is safe inside XML.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

fn label(out: &mut String, (x, y): (u64, u64), attributes: &str, text: &str) {
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" {attributes}>{}</text>", escape(text));
}

fn grid(out: &mut String, y: u64) {
    let right = LEFT + WIDE;
    let _ = writeln!(out, "<line class=\"g\" x1=\"{LEFT}\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\"/>");
}

fn title(out: &mut String, timeline: &Timeline) {
    label(out, (LEFT, 26), "class=\"t\"", &timeline.name);
    let end = match &timeline.end {
        End::Crash(crash) => format!("failed at {}", time(crash.at_ns)),
        End::Over(outcome) => format!("{outcome} at {}", time(timeline.end_ns)),
        End::Cut => format!("cut off at {}", time(timeline.end_ns)),
    };
    let rank = format!("rank {} of {}", timeline.rank, timeline.ranks);
    let free = gib(timeline.least_free());
    label(out, (LEFT, 46), "class=\"d\"", &format!("{rank}; least free {free} GiB; {end}"));
}

/// `value` of `most` as a height, rounded up so that what is there shows.
fn scaled(value: u64, most: u64, height: u64) -> u64 {
    let exact = (u128::from(value) * u128::from(height)).div_ceil(u128::from(most.max(1)));
    u64::try_from(exact).unwrap_or(height).min(height)
}

/// The left edge of a column.
const fn column_x(index: usize) -> u64 {
    LEFT + index as u64 * WIDE / COLUMNS as u64
}

/// The area between two curves, drawn as steps; nothing when they are the same everywhere.
fn area(out: &mut String, fill: &str, bottom: u64, curves: &[(u64, u64)]) {
    if curves.iter().all(|(low, high)| low == high) {
        return;
    }
    let mut path = String::new();
    for (index, (_, high)) in curves.iter().enumerate() {
        let (from, to) = (column_x(index), column_x(index + 1));
        let y = bottom - high;
        let start = if index == 0 { 'M' } else { 'L' };
        let _ = write!(path, "{start}{from} {y}H{to}");
    }
    for (index, (low, _)) in curves.iter().enumerate().rev() {
        let (from, to) = (column_x(index), column_x(index + 1));
        let _ = write!(path, "L{to} {}H{from}", bottom - low);
    }
    let _ = writeln!(out, "<path {fill} d=\"{path}Z\"/>");
}

fn memory(out: &mut String, timeline: &Timeline, columns: &[Column]) {
    let (top, height) = MEMORY;
    let bottom = top + height;
    let floor = timeline.floor();
    let room = timeline.capacity.saturating_sub(floor).max(1);
    for quarter in 0..=4 {
        let y = bottom - height * quarter / 4;
        grid(out, y);
        let bytes = u64::try_from(u128::from(floor) + u128::from(room) * u128::from(quarter) / 4)
            .unwrap_or(0);
        let at = (LEFT - 8, y + 4);
        label(out, at, "text-anchor=\"end\" class=\"d\"", &gib(bytes));
    }
    label(out, (LEFT - 8, top - 10), "text-anchor=\"end\" class=\"d\"", "GiB");
    let right = (LEFT + WIDE, top - 8);
    label(out, right, "text-anchor=\"end\" class=\"d\"", "capacity (water line)");
    let mut below = vec![0_u64; columns.len()];
    let layers: [(&str, Height); 4] = [
        ("fill=\"url(#h)\"", |column| column.layers.others),
        ("class=\"leaked\"", |column| column.layers.leaked),
        ("class=\"live\"", |column| column.layers.live),
        ("class=\"cached\"", |column| column.layers.cached),
    ];
    for (fill, of) in layers {
        let curves: Vec<(u64, u64)> = columns
            .iter()
            .zip(&mut below)
            .map(|(column, below)| {
                let low = scaled(*below, room, height);
                *below = below.saturating_add(of(column));
                (low, scaled(*below, room, height))
            })
            .collect();
        area(out, fill, bottom, &curves);
    }
    fixed_band(out, timeline);
    legend(out, timeline, bottom + BAND + 22);
}

/// What the request that failed asked for, over what was held then; it reaches beyond the top.
fn asked(out: &mut String, timeline: &Timeline, columns: &[Column]) {
    let End::Crash(crash) = &timeline.end else { return };
    let (top, height) = MEMORY;
    let room = timeline.capacity.saturating_sub(timeline.floor()).max(1);
    let held = columns.last().map_or(0, |column| column.layers.sum());
    let low = scaled(held, room, height);
    let high = scaled(held.saturating_add(crash.requested), room, height + 12);
    if crash.requested > 0 && high > low {
        let (x, y, tall) = (LEFT + WIDE - 4, top + height - high, high - low);
        let _ = writeln!(
            out,
            "<rect class=\"asked\" x=\"{x}\" y=\"{y}\" width=\"8\" height=\"{tall}\"><title>{} \
             GiB asked</title></rect>",
            gib(crash.requested)
        );
    }
}

/// What does not move, as one band below the broken axis.
fn fixed_band(out: &mut String, timeline: &Timeline) {
    let top = MEMORY.0 + MEMORY.1 + 4;
    let _ = writeln!(
        out,
        "<rect x=\"{LEFT}\" y=\"{top}\" width=\"{WIDE}\" height=\"{BAND}\" class=\"fixed\"/>"
    );
    let mut held = timeline.fixed.clone();
    held.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let rest = held.split_off(held.len().min(5));
    let mut parts: Vec<String> = held
        .iter()
        .map(|(account, bytes)| format!("{} {}", account.name().replace('_', " "), gib(*bytes)))
        .collect();
    if !rest.is_empty() {
        let rest = rest.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
        parts.push(format!("more {}", gib(rest)));
    }
    let text = format!("does not move: {}", parts.join(", "));
    label(out, (LEFT + 8, top + 22), "", &text);
    label(out, (LEFT - 8, top + BAND), "text-anchor=\"end\" class=\"d\"", "0.00");
}

fn legend(out: &mut String, timeline: &Timeline, y: u64) {
    let mut x = LEFT;
    for (fill, text) in [
        ("class=\"live\"", "live buffers, at most"),
        ("class=\"cached\"", "cached by the allocator"),
        ("class=\"leaked\"", "leaked"),
        ("fill=\"url(#h)\"", "other programs"),
        ("class=\"asked\"", "asked for, and not there"),
    ] {
        if text.starts_with("asked") && !matches!(timeline.end, End::Crash(_)) {
            continue;
        }
        let top = y - 11;
        let _ = writeln!(out, "<rect x=\"{x}\" y=\"{top}\" width=\"12\" height=\"12\" {fill}/>");
        label(out, (x + 18, y), "", text);
        x += 48 + 7 * text.len() as u64;
    }
}

fn pool(out: &mut String, timeline: &Timeline, columns: &[Column]) {
    let (top, height) = POOL;
    let pool = timeline.pool_tokens;
    grid(out, top);
    grid(out, top + height);
    let most = group_thousands(timeline.peak_used());
    let text = format!("pool: at most {most} of {} tokens used", group_thousands(pool));
    label(out, (LEFT, top - 10), "", &text);
    label(out, (LEFT - 8, top + 4), "text-anchor=\"end\" class=\"d\"", &group_thousands(pool));
    label(out, (LEFT - 8, top + height + 4), "text-anchor=\"end\" class=\"d\"", "0");
    let curves: Vec<(u64, u64)> =
        columns.iter().map(|column| (0, scaled(column.used, pool, height))).collect();
    area(out, "class=\"pool\"", top + height, &curves);
}

fn queue(out: &mut String, columns: &[Column]) {
    let (top, height) = QUEUE;
    let bottom = top + height;
    let sum = |column: &Column| column.running.saturating_add(column.waiting);
    let most = columns.iter().map(sum).max().unwrap_or(0);
    grid(out, top);
    grid(out, bottom);
    let text = format!("requests: running (green), waiting above them; at most {most}");
    label(out, (LEFT, top - 10), "", &text);
    label(out, (LEFT - 8, top + 4), "text-anchor=\"end\" class=\"d\"", &most.to_string());
    let running = |column: &Column| scaled(column.running, most, height);
    let low: Vec<(u64, u64)> = columns.iter().map(|column| (0, running(column))).collect();
    area(out, "class=\"pool\"", bottom, &low);
    let high = columns
        .iter()
        .map(|column| (running(column), scaled(sum(column), most, height).max(running(column))));
    area(out, "class=\"wait\"", bottom, &high.collect::<Vec<_>>());
    for (index, column) in columns.iter().enumerate().filter(|(_, column)| column.prefills > 0) {
        let (x, y) = (column_x(index), bottom + 4);
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"2\" height=\"8\" class=\"live\"><title>{} \
             prefill passes</title></rect>",
            column.prefills
        );
    }
    label(out, (LEFT - 8, bottom + 13), "text-anchor=\"end\" class=\"d\"", "prefill");
}

fn time_axis(out: &mut String, timeline: &Timeline) {
    let y = QUEUE.0 + QUEUE.1 + 34;
    for (part, anchor) in [(0, "start"), (1, "middle"), (2, "middle"), (3, "middle"), (4, "end")] {
        let ns = u128::from(timeline.end_ns) * part / 4;
        let x = LEFT + WIDE * u64::try_from(part).unwrap_or(0) / 4;
        let text = time(u64::try_from(ns).unwrap_or(u64::MAX));
        label(out, (x, y), &format!("text-anchor=\"{anchor}\" class=\"d\""), &text);
    }
}

fn crash(out: &mut String, timeline: &Timeline) {
    let End::Crash(crash) = &timeline.end else { return };
    let x = LEFT + scaled(crash.at_ns, timeline.end_ns, WIDE);
    let bottom = QUEUE.0 + QUEUE.1;
    let top = MEMORY.0;
    let _ = writeln!(
        out,
        "<line class=\"c\" x1=\"{x}\" y1=\"{top}\" x2=\"{x}\" y2=\"{bottom}\" stroke-dasharray=\"6 3\"/>"
    );
    let text = if crash.requested > 0 {
        format!(
            "X  {}: {} GiB asked, {} GiB free",
            crash.buffer,
            gib(crash.requested),
            gib(crash.free)
        )
    } else {
        format!("X  {}: {}", crash.buffer, crash.message)
    };
    label(out, (LEFT + WIDE, HEIGHT - 12), "text-anchor=\"end\" class=\"x\"", &text);
}
