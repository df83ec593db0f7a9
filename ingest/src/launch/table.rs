//! The flags of both engines as data: names, arity, kind, releases, range, effect on memory.
//! Source: the argument parsers of the releases named in the first line of each table.

use std::sync::OnceLock;

use plimsoll_core::policy::sglang::version::Version;

use super::Engine;

/// How many words a flag takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arity {
    None,
    One,
    Optional,
    AtLeastOne,
    Any,
}

/// What its words are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Bool,
    Int,
    Float,
    Str,
    Json,
}

/// What a flag or variable does to memory, as far as Plimsoll is concerned.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Effect {
    /// Read into the engine's arguments.
    Modelled,
    /// May move memory, and the plan does not follow it.
    MemoryNotModelled,
    /// Does not move device memory.
    NoMemoryEffect,
}

/// Releases that know a name: from the first to the last one seen, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Span {
    pub first: Option<Version>,
    pub last: Option<Version>,
}

/// Whether a release knows a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Presence {
    Known,
    /// The release lies between one that knows the name and one that does not.
    Unsure,
    /// Not there; first seen in the release named.
    NotYet(Version),
    /// Not there; last seen in the release named.
    Gone(Version),
}

/// Bounds of a number.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Range {
    pub text: &'static str,
    low: f64,
    low_open: bool,
    high: f64,
    high_open: bool,
}

impl Range {
    fn parse(text: &'static str) -> Option<Self> {
        let mut range = Self {
            text,
            low: f64::NEG_INFINITY,
            low_open: false,
            high: f64::INFINITY,
            high_open: false,
        };
        let cut = text.find('<').unwrap_or(text.len());
        let (low, high) = text.split_at(cut);
        if let Some(rest) = low.strip_prefix('>') {
            range.low_open = !rest.starts_with('=');
            range.low = rest.trim_start_matches('=').parse().ok()?;
        }
        if let Some(rest) = high.strip_prefix('<') {
            range.high_open = !rest.starts_with('=');
            range.high = rest.trim_start_matches('=').parse().ok()?;
        }
        Some(range)
    }

    pub(crate) fn contains(&self, x: f64) -> bool {
        let above = if self.low_open { x > self.low } else { x >= self.low };
        let below = if self.high_open { x < self.high } else { x <= self.high };
        above && below && !x.is_nan()
    }

    /// In words: `above 0 and at most 1`.
    pub(crate) fn describe(&self) -> String {
        let mut parts = Vec::new();
        if self.low.is_finite() {
            let word = if self.low_open { "above" } else { "at least" };
            parts.push(format!("{word} {}", self.low));
        }
        if self.high.is_finite() {
            let word = if self.high_open { "below" } else { "at most" };
            parts.push(format!("{word} {}", self.high));
        }
        parts.join(" and ")
    }
}

/// A spelling of a flag and the releases that accept it.
#[derive(Clone, Debug)]
pub(crate) struct Spelling {
    pub name: &'static str,
    pub span: Span,
}

/// One flag.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub name: &'static str,
    pub spellings: Vec<Spelling>,
    pub arity: Arity,
    pub kind: Kind,
    pub negatable: bool,
    /// First release that reads `32k` here.
    pub suffix_from: Option<Version>,
    pub range: Option<Range>,
    pub choices: Vec<&'static str>,
    /// More values than `choices` may be registered by plug-ins.
    pub open_choices: bool,
    pub effect: Effect,
}

/// The flags of one engine.
#[derive(Debug)]
pub(crate) struct Table {
    /// Releases whose parsers were read, ascending.
    pub sampled: Vec<Version>,
    pub rows: Vec<Row>,
}

/// The result of looking a spelling up.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// A spelling in full.
    Exact(&'static Row, Presence),
    /// An abbreviation of exactly one flag.
    Prefix(&'static Row, &'static str, Presence),
    /// An abbreviation of several.
    Ambiguous(Vec<&'static str>),
    Unknown,
}

impl Table {
    /// The table of an engine.
    pub(crate) fn of(engine: Engine) -> &'static Self {
        static SGLANG: OnceLock<Table> = OnceLock::new();
        static VLLM: OnceLock<Table> = OnceLock::new();
        match engine {
            Engine::Sglang => {
                SGLANG.get_or_init(|| Self::read(include_str!("../../data/sglang-flags.csv")))
            }
            Engine::Vllm => {
                VLLM.get_or_init(|| Self::read(include_str!("../../data/vllm-flags.csv")))
            }
        }
    }

    fn read(text: &'static str) -> Self {
        let mut lines = text.lines();
        let head = lines.next().unwrap_or_default().trim_start_matches("# releases read:");
        let sampled = head.split_whitespace().filter_map(|v| v.parse().ok()).collect();
        // A line that does not read is left out; a test counts them.
        Self { sampled, rows: lines.skip(1).filter_map(read_row).collect() }
    }

    /// Newest release whose parser was read.
    pub(crate) fn newest(&self) -> Option<Version> {
        self.sampled.last().copied()
    }

    /// Whether `version` knows a name with this span. Post-releases count as their release.
    pub(crate) fn presence(&self, span: Span, version: Version) -> Presence {
        let version = Version { post: 0, ..version };
        if let Some(first) = span.first.filter(|first| version < *first) {
            let absent = self.sampled.iter().rev().find(|v| **v < first);
            let sure = absent.is_some_and(|v| version <= *v);
            return if sure { Presence::NotYet(first) } else { Presence::Unsure };
        }
        if let Some(last) = span.last.filter(|last| version > *last) {
            let absent = self.sampled.iter().find(|v| **v > last);
            let sure = absent.is_some_and(|v| version >= *v);
            return if sure { Presence::Gone(last) } else { Presence::Unsure };
        }
        Presence::Known
    }

    /// The first release that may know a name with this span, and the first after it that surely does not.
    pub(crate) fn bounds(&self, span: Span) -> (Option<Version>, Option<Version>) {
        let absent = span.first.and_then(|first| self.sampled.iter().rev().find(|v| **v < first));
        let gone = span.last.and_then(|last| self.sampled.iter().find(|v| **v > last));
        (absent.map(|v| Version { patch: v.patch + 1, ..*v }), gone.copied())
    }

    fn spellings(&'static self) -> impl Iterator<Item = (&'static Row, &'static Spelling)> {
        self.rows.iter().flat_map(|row| row.spellings.iter().map(move |s| (row, s)))
    }

    /// Finds `name` as the parser of `version` would: in full, else as an abbreviation of one flag
    /// of that version, else in full or abbreviated in another version.
    pub(crate) fn look_up(&'static self, name: &str, version: Version) -> Lookup {
        let exact = self
            .spellings()
            .filter(|(_, s)| s.name == name)
            .map(|(row, s)| (row, self.presence(s.span, version)))
            .min_by_key(|(_, p)| !matches!(p, Presence::Known | Presence::Unsure));
        if let Some((row, p @ (Presence::Known | Presence::Unsure))) = exact {
            return Lookup::Exact(row, p);
        }
        let known =
            self.abbreviated(name, |s| matches!(self.presence(s.span, version), Presence::Known));
        match (exact, known) {
            (Some((row, p)), Lookup::Ambiguous(_) | Lookup::Unknown) => Lookup::Exact(row, p),
            (_, Lookup::Unknown) => match self.abbreviated(name, |_| true) {
                Lookup::Prefix(row, full, _) => {
                    let span = row.spellings.iter().find(|s| s.name == full).map(|s| s.span);
                    let presence = self.presence(span.unwrap_or_default(), version);
                    Lookup::Prefix(row, full, presence)
                }
                _ => Lookup::Unknown,
            },
            (_, known) => known,
        }
    }

    fn abbreviated(&'static self, name: &str, keep: impl Fn(&Spelling) -> bool) -> Lookup {
        if !name.starts_with("--") || name.len() < 3 {
            return Lookup::Unknown;
        }
        let hits: Vec<_> =
            self.spellings().filter(|(_, s)| s.name.starts_with(name) && keep(s)).collect();
        match hits.as_slice() {
            [] => Lookup::Unknown,
            // Two spellings of one flag are ambiguous to argparse too, but mean the same.
            [(row, s), rest @ ..] if rest.iter().all(|(r, _)| r.name == row.name) => {
                Lookup::Prefix(row, s.name, Presence::Known)
            }
            _ => Lookup::Ambiguous(hits.iter().map(|(_, s)| s.name).collect()),
        }
    }

    /// The row of a flag's first name.
    pub(crate) fn row(&'static self, name: &str) -> Option<&'static Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Known spellings near `name`, nearest first, at most three.
    pub(crate) fn near(&'static self, name: &str) -> Vec<&'static str> {
        nearest(name, self.spellings().map(|(_, s)| s.name))
    }
}

/// The releases that have all of these arguments (`mem_fraction_static`), as far as the releases read tell: the first,
/// and the first after it that lacks one. Names that no release knows say nothing.
pub(crate) fn arguments_known<'a>(
    engine: Engine,
    names: impl Iterator<Item = &'a str>,
) -> (Option<Version>, Option<Version>) {
    let table = Table::of(engine);
    let (mut since, mut before): (Option<Version>, Option<Version>) = (None, None);
    for name in names {
        let flag = format!("--{}", name.replace('_', "-"));
        let Some((_, spelling)) = table.spellings().find(|(_, s)| s.name == flag) else { continue };
        let (first, gone) = table.bounds(spelling.span);
        since = since.max(first);
        before = before.into_iter().chain(gone).min();
    }
    (since, before)
}

/// Longest name, in bytes, for which near ones are looked for.
const NEAR_LIMIT: usize = 100;

/// The candidates that a mistyped `name` may have meant, nearest first, at most three.
pub(crate) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    if name.len() > NEAR_LIMIT {
        return Vec::new();
    }
    let mut scored: Vec<(f64, &str)> = names
        .map(|n| {
            let same_words = if shares_words(name, n) { 0.08 } else { 0.0 };
            (strsim::jaro_winkler(name, n) + same_words, n)
        })
        .filter(|(score, _)| *score > 0.86)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.dedup_by_key(|(_, n)| *n);
    scored.into_iter().take(3).map(|(_, n)| n).collect()
}

/// Whether every word of `typed` is a word of `name`.
fn shares_words(typed: &str, name: &str) -> bool {
    let words: Vec<&str> = name.split(['-', '_']).collect();
    typed.split(['-', '_']).all(|word| words.contains(&word))
}

fn read_span(text: &str) -> Option<Span> {
    let (first, last) = text.split_once("..")?;
    Some(Span { first: read_version(first)?, last: read_version(last)? })
}

/// `Some(None)` for an empty field.
fn read_version(text: &str) -> Option<Option<Version>> {
    if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) }
}

fn read_row(line: &'static str) -> Option<Row> {
    let fields: Vec<&'static str> = line.split(',').collect();
    let [name, aliases, arity, kind, negatable, first, last, suffix, range, choices, effect] =
        fields.as_slice().try_into().ok()?;
    let span = Span { first: read_version(first)?, last: read_version(last)? };
    let mut spellings = Vec::new();
    for alias in aliases.split_whitespace() {
        let (alias, span) = match alias.split_once('@') {
            Some((alias, own)) => (alias, read_span(own)?),
            None => (alias, span),
        };
        spellings.push(Spelling { name: alias, span });
    }
    if !spellings.iter().any(|s| s.name == name) {
        spellings.insert(0, Spelling { name, span });
    }
    let mut choices: Vec<&'static str> = choices.split_whitespace().collect();
    let open_choices = choices.last() == Some(&"...");
    choices.retain(|c| *c != "...");
    Some(Row {
        name,
        spellings,
        arity: match arity {
            "0" => Arity::None,
            "1" => Arity::One,
            "?" => Arity::Optional,
            "+" => Arity::AtLeastOne,
            "*" => Arity::Any,
            _ => return None,
        },
        kind: match kind {
            "bool" => Kind::Bool,
            "int" => Kind::Int,
            "float" => Kind::Float,
            "str" => Kind::Str,
            "json" => Kind::Json,
            _ => return None,
        },
        negatable: negatable == "yes",
        suffix_from: read_version(suffix)?,
        range: if range.is_empty() { None } else { Some(Range::parse(range)?) },
        choices,
        open_choices,
        effect: read_effect(effect)?,
    })
}

/// The effect column of the tables.
pub(crate) fn read_effect(text: &str) -> Option<Effect> {
    match text {
        "modelled" => Some(Effect::Modelled),
        "memory-not-modelled" => Some(Effect::MemoryNotModelled),
        "no-memory-effect" => Some(Effect::NoMemoryEffect),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn every_line_of_the_tables_reads() {
        for (engine, text, rows) in [
            (Engine::Sglang, include_str!("../../data/sglang-flags.csv"), 603),
            (Engine::Vllm, include_str!("../../data/vllm-flags.csv"), 377),
        ] {
            let table = Table::of(engine);
            assert_eq!(table.rows.len(), text.lines().count() - 2);
            assert_eq!(table.rows.len(), rows);
            let mut names: Vec<_> = table.rows.iter().map(|r| r.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), rows, "a flag stands twice");
            assert!(table.sampled.is_sorted() && table.sampled.len() >= 5);
        }
    }

    #[test]
    fn presence_follows_the_releases_read() {
        let table = Table::of(Engine::Sglang);
        let span = Span { first: Some(v("0.5.5")), last: Some(v("0.5.17")) };
        assert_eq!(table.presence(span, v("0.5.2")), Presence::NotYet(v("0.5.5")));
        assert_eq!(table.presence(span, v("0.5.3")), Presence::Unsure);
        assert_eq!(table.presence(span, v("0.5.5")), Presence::Known);
        assert_eq!(table.presence(span, v("0.5.17.post2")), Presence::Known);
        assert_eq!(table.presence(span, v("0.5.18")), Presence::Unsure);
        assert_eq!(table.presence(span, v("0.5.20")), Presence::Gone(v("0.5.17")));
    }

    #[test]
    fn abbreviations_depend_on_the_version() {
        let table = Table::of(Engine::Sglang);
        let name = |lookup| match lookup {
            Lookup::Exact(row, _) | Lookup::Prefix(row, ..) => row.name,
            other => panic!("{other:?}"),
        };
        assert_eq!(name(table.look_up("--tp", v("0.5.8"))), "--tensor-parallel-size");
        assert_eq!(name(table.look_up("--mem-frac", v("0.4.6"))), "--mem-fraction-static");
        assert_eq!(
            name(table.look_up("--speculative-algo", v("0.5.23"))),
            "--speculative-algorithm"
        );
        assert!(matches!(table.look_up("--enable-d", v("0.5.8")), Lookup::Ambiguous(_)));
        // In 0.5.23 this is the beginning of two flags, and a flag in full up to 0.5.17.
        let late = table.look_up("--cuda-graph-max-bs", v("0.5.23"));
        assert!(matches!(late, Lookup::Exact(_, Presence::Gone(_))), "{late:?}");
        assert!(matches!(table.look_up("--nope", v("0.5.8")), Lookup::Unknown));
    }

    #[test]
    fn near_names_are_found() {
        let near = Table::of(Engine::Sglang).near("--mem-fraction-statc");
        assert_eq!(near.first(), Some(&"--mem-fraction-static"));
        let near = Table::of(Engine::Vllm).near("--gpu-memory-utilisation");
        assert_eq!(near.first(), Some(&"--gpu-memory-utilization"));
        let near = Table::of(Engine::Vllm).near("--max-model-length");
        assert_eq!(near.first(), Some(&"--max-model-len"));
        assert!(Table::of(Engine::Vllm).near("--zzzz").is_empty());
    }

    #[test]
    fn ranges_read_and_hold() {
        let range = Range::parse(">0<=1").unwrap();
        assert!(range.contains(1.0) && !range.contains(0.0) && !range.contains(f64::NAN));
        assert_eq!(range.describe(), "above 0 and at most 1");
        assert!(Range::parse(">=-1").unwrap().contains(-1.0));
    }
}
