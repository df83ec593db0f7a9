//! A timeline in characters. Each layer has a character of its own, so that no colour is needed.

use super::{Column, End, Timeline, columns, gib, time};
use plimsoll_core::units::group_thousands;

/// Which characters may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Glyphs {
    /// Blocks and lines.
    Blocks,
    /// ASCII alone.
    Ascii,
}

/// What a piece of a line shows; a terminal may colour it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ink {
    /// Words, axes.
    Plain,
    /// Other programs.
    Others,
    /// Lost memory.
    Leaked,
    /// Live buffers.
    Live,
    /// Cached by the allocator.
    Cached,
    /// Slots and queues.
    Pool,
    /// What failed.
    Crash,
}

/// Pieces of one line.
pub type Line = Vec<(Ink, String)>;

/// Rows of the memory plot, and of the pool plot.
const MEMORY_ROWS: u64 = 10;
const POOL_ROWS: u64 = 3;
/// Columns left of the plot.
const LEFT: usize = 12;

struct Set {
    others: char,
    leaked: char,
    live: char,
    cached: char,
    crash: char,
    axis: char,
    corner: char,
    rule: char,
    prefill: char,
    levels: &'static [char],
}

const BLOCKS: Set = Set {
    others: '░',
    leaked: '╳',
    live: '█',
    cached: '▒',
    crash: 'X',
    axis: '│',
    corner: '└',
    rule: '─',
    prefill: '▲',
    levels: &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
};

const ASCII: Set = Set {
    others: ':',
    leaked: '%',
    live: '#',
    cached: '=',
    crash: 'X',
    axis: '|',
    corner: '+',
    rule: '-',
    prefill: '^',
    levels: &['.', '-', '=', '#'],
};

/// The plot, `width` columns wide (at least 40): memory that moves, the pool, the queues, the time.
#[must_use]
pub fn plot(timeline: &Timeline, width: usize, glyphs: Glyphs) -> Vec<Line> {
    let set = match glyphs {
        Glyphs::Blocks => &BLOCKS,
        Glyphs::Ascii => &ASCII,
    };
    let count = width.max(40) - LEFT - 2;
    let columns = columns(timeline, count);
    let mut lines = vec![heading(timeline)];
    lines.extend(memory(timeline, &columns, set));
    lines.push(legend(timeline, &columns, set));
    lines.extend(pool(timeline, &columns, set));
    for (name, value) in [
        ("running", (|column| column.running) as fn(&Column) -> u64),
        ("waiting", |column| column.waiting),
    ] {
        lines.extend(queue(name, &columns, set, value));
    }
    lines.push(prefills(&columns, set));
    lines.extend(axis(timeline, count, set));
    lines
}

fn plain(text: impl Into<String>) -> (Ink, String) {
    (Ink::Plain, text.into())
}

fn heading(timeline: &Timeline) -> Line {
    let (capacity, floor) = (gib(timeline.capacity), gib(timeline.floor()));
    let rank = match timeline.ranks {
        1 => String::new(),
        ranks => format!(" of rank {} (of {ranks})", timeline.rank),
    };
    vec![plain(format!("memory{rank}, GiB: {floor} of {capacity} do not move, above them"))]
}

/// What fills the cell whose middle is at `height` above the floor.
fn cell(column: &Column, height: u64, set: &Set) -> (Ink, char) {
    let layers = &column.layers;
    let mut top = 0_u64;
    for (bytes, ink, glyph) in [
        (layers.others, Ink::Others, set.others),
        (layers.leaked, Ink::Leaked, set.leaked),
        (layers.live, Ink::Live, set.live),
        (layers.cached, Ink::Cached, set.cached),
    ] {
        top = top.saturating_add(bytes);
        if height < top {
            return (ink, glyph);
        }
    }
    (Ink::Plain, ' ')
}

fn memory(timeline: &Timeline, columns: &[Column], set: &Set) -> Vec<Line> {
    let floor = timeline.floor();
    let room = timeline.capacity.saturating_sub(floor).max(1);
    let asked = match &timeline.end {
        End::Crash(crash) => crash.requested,
        _ => 0,
    };
    let height = |half_rows: u64| -> u64 {
        let exact = u128::from(room) * u128::from(half_rows) / u128::from(2 * MEMORY_ROWS);
        u64::try_from(exact).unwrap_or(u64::MAX)
    };
    (0..MEMORY_ROWS)
        .rev()
        .map(|row| {
            // The middle of the row decides; its upper edge is labelled.
            let middle = height(2 * row + 1);
            let label = match row + 1 {
                MEMORY_ROWS => gib(timeline.capacity),
                _ if row % 3 == 0 => gib(floor.saturating_add(height(2 * row + 2))),
                _ => String::new(),
            };
            let mut cells: Vec<(Ink, char)> =
                columns.iter().map(|column| cell(column, middle, set)).collect();
            let last = columns.last().map_or(0, |column| column.layers.sum());
            let missing = middle >= last && middle < last.saturating_add(asked);
            if let Some(cell) = cells.last_mut().filter(|_| missing) {
                *cell = (Ink::Crash, set.crash);
            }
            labelled(&label, cells, set)
        })
        .collect()
}

/// A line of cells behind its label, neighbours of one ink joined.
fn labelled(label: &str, cells: Vec<(Ink, char)>, set: &Set) -> Line {
    let mut line = vec![plain(format!("{label:>LEFT$} {}", set.axis))];
    for (ink, glyph) in cells {
        match line.last_mut() {
            Some((before, text)) if *before == ink => text.push(glyph),
            _ => line.push((ink, glyph.to_string())),
        }
    }
    while let Some((_, text)) = line.last_mut() {
        text.truncate(text.trim_end().len());
        if !text.is_empty() {
            break;
        }
        let _ = line.pop();
    }
    line
}

fn legend(timeline: &Timeline, columns: &[Column], set: &Set) -> Line {
    let used = |of: fn(&Column) -> u64| columns.iter().any(|column| of(column) > 0);
    let mut line = vec![plain(format!("{:>LEFT$} {}", "", set.corner))];
    let parts = [
        (used(|c| c.layers.live), Ink::Live, set.live, "live at most"),
        (used(|c| c.layers.cached), Ink::Cached, set.cached, "cached"),
        (used(|c| c.layers.leaked), Ink::Leaked, set.leaked, "leaked"),
        (used(|c| c.layers.others), Ink::Others, set.others, "other programs"),
        (matches!(timeline.end, End::Crash(_)), Ink::Crash, set.crash, "asked for"),
    ];
    for (_, ink, glyph, name) in parts.into_iter().filter(|(used, ..)| *used) {
        line.push(plain(" "));
        line.push((ink, glyph.to_string()));
        line.push(plain(format!(" {name} ")));
    }
    let free = gib(timeline.least_free());
    line.push(plain(format!(" least free {free}")));
    line
}

fn pool(timeline: &Timeline, columns: &[Column], set: &Set) -> Vec<Line> {
    let pool = timeline.pool_tokens.max(1);
    let levels = set.levels.len() as u64;
    let most = group_thousands(timeline.peak_used());
    let mut lines = vec![vec![plain(format!(
        "pool, tokens: at most {most} of {} used",
        group_thousands(timeline.pool_tokens)
    ))]];
    lines.extend((0..POOL_ROWS).rev().map(|row| {
        let label = if row + 1 == POOL_ROWS { short(pool) } else { String::new() };
        let cells = columns.iter().map(|column| {
            // In levels of the whole plot, rounded up: what is used shows.
            let filled = (u128::from(column.used) * u128::from(levels * POOL_ROWS))
                .div_ceil(u128::from(pool));
            let filled = u64::try_from(filled).unwrap_or(u64::MAX);
            (Ink::Pool, level(filled.saturating_sub(row * levels), set))
        });
        labelled(&label, cells.collect(), set)
    }));
    lines
}

/// The glyph of a level: blank for 0, full from the last on.
fn level(level: u64, set: &Set) -> char {
    let Some(index) = level.checked_sub(1) else { return ' ' };
    let index = usize::try_from(index).unwrap_or(usize::MAX).min(set.levels.len() - 1);
    set.levels.get(index).copied().unwrap_or(' ')
}

/// A line of a queue, scaled to its most; none when the queue was always empty.
fn queue(name: &str, columns: &[Column], set: &Set, of: fn(&Column) -> u64) -> Option<Line> {
    let most = columns.iter().map(of).max().filter(|most| *most > 0)?;
    let levels = set.levels.len() as u64;
    let cells = columns.iter().map(|column| {
        let scaled = of(column).saturating_mul(levels).div_ceil(most);
        (Ink::Pool, level(scaled, set))
    });
    Some(labelled(&format!("{name} {}", short(most)), cells.collect(), set))
}

fn prefills(columns: &[Column], set: &Set) -> Line {
    let mark = |column: &Column| if column.prefills > 0 { set.prefill } else { ' ' };
    let cells = columns.iter().map(|column| (Ink::Plain, mark(column)));
    labelled("prefill", cells.collect(), set)
}

/// A count in at most five characters.
fn short(count: u64) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..1_000_000 => format!("{}k", count / 1000),
        _ => format!("{}M", count / 1_000_000),
    }
}

fn axis(timeline: &Timeline, count: usize, set: &Set) -> Vec<Line> {
    let rule: String = std::iter::repeat_n(set.rule, count).collect();
    let end = time(timeline.end_ns);
    let end = match &timeline.end {
        End::Crash(_) => format!("{} {end}", set.crash),
        End::Over(_) => end,
        End::Cut => format!("{end} (cut off)"),
    };
    let gap = count.saturating_sub(1 + end.chars().count());
    vec![
        vec![plain(format!("{:>LEFT$} {}{rule}", "", set.corner))],
        vec![plain(format!("{:>LEFT$}  0{:gap$}{end}", "time", ""))],
    ]
}
