//! Words after the program, read as argparse reads them: `--flag value`, `--flag=value`, lists,
//! abbreviations, `--no-flag`, vLLM's dotted JSON and underscores.

use plimsoll_core::policy::sglang::version::Version;

use super::error::{ErrorCode, LaunchError};
use super::place::{Place, Warning, Word};
use super::table::{Arity, Kind, Lookup, Presence, Row, Table};
use super::value::{Judge, Value, python_bool, suffixed_int};
use super::{Engine, UnknownFlag};

/// A flag with its values.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub row: &'static Row,
    /// As typed, without its value.
    pub typed: String,
    /// The words as typed.
    pub words: Vec<String>,
    pub values: Vec<Value>,
    pub place: Place,
}

/// Everything after the program.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub given: Vec<Given>,
    pub positional: Vec<Word>,
    pub unknown: Vec<UnknownFlag>,
    pub errors: Vec<LaunchError>,
    pub warnings: Vec<Warning>,
}

/// First vLLM release in which `-O` names an optimisation level instead of a compilation config.
const OPTIMIZATION_LEVEL_FROM: Version = Version::new(0, 12, 0);

/// Unknown flags for which near names are looked for; a command with more has another problem.
pub(crate) const NEAR_LIMIT: usize = 64;

/// Deepest key of a dotted flag.
const DOTTED_LIMIT: usize = 32;

/// Reads `words`; every value is checked against the table.
pub(crate) fn parse(engine: Engine, version: Version, words: &[Word]) -> Parsed {
    let table = Table::of(engine);
    let mut reader = Reader { engine, version, table, out: Parsed::default(), dotted: Vec::new() };
    let words = reader.normalised(words);
    let mut at = 0;
    while let Some(word) = words.get(at) {
        at += 1;
        if !is_flag(&word.text) {
            reader.out.positional.push(word.clone());
        } else if word.text != "--" {
            at += reader.flag(word, words.get(at..).unwrap_or_default());
        }
    }
    reader.merge_dotted();
    reader.out
}

/// Whether argparse takes a word for a flag: a dash that is no negative number and no sentence.
pub(crate) fn is_flag(text: &str) -> bool {
    let Some(rest) = text.strip_prefix('-') else { return false };
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let negative = match rest.split_once('.') {
        Some((whole, part)) => digits(whole) && !part.is_empty() && digits(part),
        None => digits(rest) && !rest.is_empty(),
    };
    let name = text.split('=').next().unwrap_or(text);
    !rest.is_empty() && !negative && !name.contains(char::is_whitespace)
}

/// A dotted flag: `--compilation-config.level 3`.
struct Dotted {
    base: String,
    path: Vec<String>,
    value: serde_json::Value,
    word: Word,
}

struct Reader {
    engine: Engine,
    version: Version,
    table: &'static Table,
    out: Parsed,
    dotted: Vec<Dotted>,
}

impl Reader {
    fn warn(&mut self, message: String, place: &Place) {
        self.out.warnings.push(Warning::new(message, place.clone()));
    }

    /// Dashes that a word processor changed, and vLLM's `-O3`.
    fn normalised(&mut self, words: &[Word]) -> Vec<Word> {
        let mut out = Vec::with_capacity(words.len());
        for word in words {
            let mut word = word.clone();
            let plain = word.text.trim_start_matches(['\u{2013}', '\u{2014}', '\u{2212}']);
            if plain.len() < word.text.len() && plain.starts_with(|c: char| c.is_alphabetic()) {
                let fixed = format!("--{plain}");
                self.warn(format!("`{}` is read as `{fixed}`", word.text), &word.place);
                word.text = fixed;
            }
            let level = word.text.strip_prefix("-O").map(|l| l.trim_start_matches('='));
            match level {
                Some(level) if self.engine == Engine::Vllm && !level.starts_with('.') => {
                    let late = self.version >= OPTIMIZATION_LEVEL_FROM;
                    let name = if late { "--optimization-level" } else { "--compilation-config" };
                    let attached = level.to_owned();
                    out.push(Word { text: name.to_owned(), ..word.clone() });
                    if !attached.is_empty() {
                        out.push(Word { text: attached, ..word });
                    }
                }
                Some(path) if self.engine == Engine::Vllm => {
                    word.text = format!("--compilation-config{path}");
                    out.push(word);
                }
                _ => out.push(word),
            }
        }
        out
    }

    /// The flag `word` with the words that follow it; returns how many of these it takes.
    fn flag(&mut self, word: &Word, rest: &[Word]) -> usize {
        let (typed, attached) = match word.text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word.text.as_str(), None),
        };
        if self.engine == Engine::Vllm && typed.contains('.') {
            return self.dotted(word, typed, attached, rest);
        }
        let name = self.dashed(typed, &word.place);
        let Some((row, negated)) = self.resolve(&name, typed, word) else {
            return self.unknown(typed, attached, word, rest);
        };
        let values = rest.iter().take_while(|w| !is_flag(&w.text)).count();
        let own = Word { text: attached.unwrap_or_default().to_owned(), ..word.clone() };
        let (taken, words): (usize, Vec<&Word>) = match (row.arity, attached) {
            (Arity::None, Some(value)) => {
                let error = LaunchError::new(
                    ErrorCode::UnexpectedValue,
                    "takes no value; write the flag alone",
                    word.place.clone(),
                );
                self.out.errors.push(error.flag(typed).value(value));
                return 0;
            }
            (_, Some(_)) => (0, vec![&own]),
            (Arity::None, None) => (0, Vec::new()),
            (Arity::One, None) if values == 0 => return self.missing(row, typed, word),
            (Arity::One, None) => (1, rest.iter().take(1).collect()),
            (Arity::Optional, None) => {
                let takes = |w: &&Word| row.kind != Kind::Bool || python_bool(&w.text).is_some();
                let n = usize::from(values > 0 && rest.first().as_ref().is_some_and(takes));
                (n, rest.iter().take(n).collect())
            }
            (Arity::AtLeastOne, None) if values == 0 => return self.missing(row, typed, word),
            (Arity::AtLeastOne | Arity::Any, None) => (values, rest.iter().take(values).collect()),
        };
        self.give(row, typed, &words, negated, &word.place);
        taken
    }

    fn missing(&mut self, row: &Row, typed: &str, word: &Word) -> usize {
        let what = match row.kind {
            Kind::Int => "a whole number",
            Kind::Float => "a number",
            Kind::Json => "JSON",
            Kind::Bool | Kind::Str => "a value",
        };
        let range = row.range.map(|r| format!(" {}", r.describe())).unwrap_or_default();
        let error = LaunchError::new(
            ErrorCode::MissingValue,
            format!("needs {what}{range} after it"),
            word.place.clone(),
        );
        self.out.errors.push(error.flag(typed));
        0
    }

    /// Underscores in a name: vLLM reads them as dashes, SGLang does not know them.
    fn dashed(&mut self, typed: &str, place: &Place) -> String {
        let name = if typed.starts_with("--") { typed.replace('_', "-") } else { typed.to_owned() };
        let file = matches!(place, Place::File { .. } | Place::Key { .. });
        if name != typed && self.engine == Engine::Sglang && !file {
            self.warn(format!("`{typed}` is read as `{name}`; SGLang itself refuses it"), place);
        }
        name
    }

    /// The row of `name`, and whether the spelling negates it.
    fn resolve(&mut self, name: &str, typed: &str, word: &Word) -> Option<(&'static Row, bool)> {
        match self.table.look_up(name, self.version) {
            Lookup::Exact(row, presence) => {
                self.check_presence(typed, presence, &word.place);
                Some((row, false))
            }
            Lookup::Prefix(row, full, presence) => {
                if full != name {
                    self.check_presence(full, presence, &word.place);
                }
                Some((row, false))
            }
            Lookup::Ambiguous(names) => {
                let shown: Vec<_> = names.iter().take(6).map(|n| format!("`{n}`")).collect();
                let allowed = format!("is the beginning of several flags: {}", shown.join(", "));
                let error = LaunchError::new(ErrorCode::Ambiguous, allowed, word.place.clone());
                self.out.errors.push(error.flag(typed));
                None
            }
            Lookup::Unknown => self.negation(name).map(|row| (row, true)),
        }
    }

    /// `--no-flag`, and vLLM's pairs `--enable-x` and `--disable-x`.
    fn negation(&self, name: &str) -> Option<&'static Row> {
        let negatable = |full: String| match self.table.look_up(&full, self.version) {
            Lookup::Exact(row, _) | Lookup::Prefix(row, ..) if row.negatable => Some(row),
            _ => None,
        };
        if let Some(rest) = name.strip_prefix("--no-") {
            return negatable(format!("--{rest}"));
        }
        if self.engine == Engine::Sglang {
            return None;
        }
        let inverse = match (name.strip_prefix("--disable-"), name.strip_prefix("--enable-")) {
            (Some(rest), _) => format!("--enable-{rest}"),
            (_, Some(rest)) => format!("--disable-{rest}"),
            _ => return None,
        };
        self.table.row(&inverse).filter(|row| row.negatable)
    }

    fn check_presence(&mut self, name: &str, presence: Presence, place: &Place) {
        let (engine, version) = (self.engine, self.version);
        match presence {
            Presence::Known | Presence::Unsure => {}
            Presence::NotYet(first) => self.warn(
                format!("{engine} {version} does not know {name} (first seen in {first})"),
                place,
            ),
            Presence::Gone(last) => self.warn(
                format!("{engine} {version} no longer knows {name} (last seen in {last})"),
                place,
            ),
        }
    }

    /// A flag that no release read here knows keeps its words.
    fn unknown(
        &mut self,
        typed: &str,
        attached: Option<&str>,
        word: &Word,
        rest: &[Word],
    ) -> usize {
        if self.out.errors.last().is_some_and(|e| e.place == word.place) {
            // Ambiguous: said already; its value is no positional word.
            return usize::from(
                attached.is_none() && rest.first().is_some_and(|w| !is_flag(&w.text)),
            );
        }
        let after: Vec<String> =
            rest.iter().take_while(|w| !is_flag(&w.text)).map(|w| w.text.clone()).collect();
        let taken = if attached.is_some() { 0 } else { after.len() };
        let values = attached.map_or(after, |value| vec![value.to_owned()]);
        let few = self.out.unknown.len() < NEAR_LIMIT;
        let near = if few { self.table.near(&typed.replace('_', "-")) } else { Vec::new() };
        self.out.unknown.push(UnknownFlag {
            name: typed.to_owned(),
            values,
            near: near.into_iter().map(str::to_owned).collect(),
            place: word.place.clone(),
        });
        taken
    }

    fn give(
        &mut self,
        row: &'static Row,
        typed: &str,
        words: &[&Word],
        negated: bool,
        place: &Place,
    ) {
        let mut values = Vec::new();
        for word in words {
            // vLLM takes an empty word and `None` for "not given".
            let unset = word.text.is_empty() || word.text == "None";
            if self.engine == Engine::Vllm && unset && row.kind != Kind::Bool {
                self.out.given.retain(|g| g.row.name != row.name);
                return;
            }
            let mut judge = Judge {
                engine: self.engine,
                version: self.version,
                table: self.table,
                errors: &mut self.out.errors,
                warnings: &mut self.out.warnings,
            };
            match judge.read(row, typed, &word.text, &word.place) {
                Some(value) => values.push(value),
                None => return,
            }
        }
        if row.kind == Kind::Bool && values.is_empty() {
            values.push(Value::Bool(!negated));
        }
        self.repeated(row, typed, place);
        let words = words.iter().map(|w| w.text.clone()).collect();
        self.out.given.retain(|g| g.row.name != row.name);
        self.out.given.push(Given {
            row,
            typed: typed.to_owned(),
            words,
            values,
            place: place.clone(),
        });
    }

    fn repeated(&mut self, row: &Row, typed: &str, place: &Place) {
        let from_file = |p: &Place| matches!(p, Place::File { .. });
        let earlier = self.out.given.iter().find(|g| g.row.name == row.name);
        if let Some(earlier) = earlier.filter(|g| from_file(&g.place) == from_file(place)) {
            let was = [&[earlier.typed.clone()][..], &earlier.words].concat().join(" ");
            self.warn(format!("{typed} stands twice; this one counts, not `{was}`"), place);
        }
    }

    /// `--name.key.key value`, `--name.key+ a,b`. Source: vLLM `FlexibleArgumentParser.parse_args`.
    fn dotted(&mut self, word: &Word, typed: &str, attached: Option<&str>, rest: &[Word]) -> usize {
        let (text, taken) = match (attached, rest.first()) {
            (Some(value), _) => (value.to_owned(), 0),
            (None, Some(next)) => (next.text.clone(), 1),
            (None, None) => {
                let what = "needs a value after it";
                let error = LaunchError::new(ErrorCode::MissingValue, what, word.place.clone());
                self.out.errors.push(error.flag(typed));
                return 0;
            }
        };
        let list = typed.ends_with('+');
        let mut keys = typed.trim_end_matches('+').split('.');
        let base = keys.next().unwrap_or_default().replace('_', "-");
        let value = if list {
            let items = text.split(',').map(|item| json_or_text(item.trim()));
            serde_json::Value::Array(items.collect())
        } else {
            json_or_text(&text)
        };
        let path: Vec<String> = keys.map(str::to_owned).collect();
        if path.len() > DOTTED_LIMIT {
            let what = format!("must have at most {DOTTED_LIMIT} dots");
            let error = LaunchError::new(ErrorCode::TooLong, what, word.place.clone());
            self.out.errors.push(error.flag(typed));
            return taken;
        }
        self.dotted.push(Dotted { base, path, value, word: word.clone() });
        taken
    }

    /// All dotted parts of one flag become one JSON value, which replaces an earlier one.
    fn merge_dotted(&mut self) {
        let mut merged: Vec<(String, serde_json::Value, Word)> = Vec::new();
        for part in std::mem::take(&mut self.dotted) {
            let found = merged.iter().position(|(base, ..)| *base == part.base);
            let index = found.unwrap_or_else(|| {
                let empty = serde_json::Value::Object(serde_json::Map::new());
                merged.push((part.base.clone(), empty, part.word.clone()));
                merged.len() - 1
            });
            if let Some((_, root, _)) = merged.get_mut(index) {
                insert(root, &part.path, part.value);
            }
        }
        for (base, value, word) in merged {
            let Some((row, false)) = self.resolve(&base, &base, &word) else {
                self.unknown(&word.text, None, &word, &[]);
                continue;
            };
            let own = Word { text: value.to_string(), ..word.clone() };
            self.give(row, &base, &[&own], false, &word.place);
        }
    }
}

/// JSON where it is JSON, a number with a suffix, else the text itself.
fn json_or_text(text: &str) -> serde_json::Value {
    serde_json::from_str(text)
        .ok()
        .or_else(|| suffixed_int(Engine::Vllm, text).map(serde_json::Value::from))
        .unwrap_or_else(|| serde_json::Value::String(text.to_owned()))
}

fn insert(root: &mut serde_json::Value, path: &[String], value: serde_json::Value) {
    let Some((key, rest)) = path.split_first() else {
        *root = value;
        return;
    };
    if !root.is_object() {
        *root = serde_json::Value::Object(serde_json::Map::new());
    }
    let Some(map) = root.as_object_mut() else { return };
    let slot = map.entry(key.clone()).or_insert(serde_json::Value::Null);
    match (rest.is_empty(), slot, value) {
        (true, serde_json::Value::Array(old), serde_json::Value::Array(new)) => old.extend(new),
        (true, slot, value) => *slot = value,
        (false, slot, value) => insert(slot, rest, value),
    }
}
