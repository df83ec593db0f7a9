//! The only place that knows the YAML parser: text to a plain tree, and from a path back to its place
//! in the text. Duplicate keys, size, depth and the expansion of aliases are judged here.

use crate::{
    path::{KeyPath, Step},
    problem::{Code, Place, Position, Problem},
};
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Number, Value};
use std::{cell::RefCell, collections::BTreeMap, fmt};

/// Largest text that is read, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
/// Deepest nesting of mappings and lists.
pub const MAX_DEPTH: usize = 32;
/// Most values after aliases are expanded.
pub const MAX_NODES: usize = 100_000;

/// The key or the value at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The key, at its n-th occurrence in its mapping (from 1).
    Key(usize),
    /// The value.
    Value,
}

/// A tree, and what was wrong with it without hiding the rest (duplicate keys, `.nan`, `.inf`).
#[derive(Debug)]
pub struct Parsed {
    /// The tree; of duplicate keys the first.
    pub root: Value,
    /// Duplicate keys and numbers that are not finite.
    pub problems: Vec<Problem>,
}

/// Reads one YAML document.
///
/// # Errors
/// One problem ([`Code::Syntax`] or [`Code::TooLarge`]), always with a line, when there is no tree.
pub fn parse(text: &str) -> Result<Parsed, Box<Problem>> {
    let whole = |code, message: String| {
        Problem::new(code, Place::Text(Position::START), KeyPath::root(), message)
    };
    if text.len() > MAX_BYTES {
        let mut problem =
            whole(Code::TooLarge, format!("the file has {} bytes and is not read", text.len()));
        problem.allowed = Some(format!("up to {MAX_BYTES} bytes"));
        return Err(Box::new(problem));
    }
    if let Some(at) = flow_too_deep(text) {
        return Err(Box::new(too_deep(Place::Text(at))));
    }
    let state = RefCell::new(State::default());
    let result =
        Builder { state: &state, depth: 0 }.deserialize(serde_yaml::Deserializer::from_str(text));
    let state = state.into_inner();
    match result {
        Ok(root) => {
            let problems =
                state.remarks.into_iter().map(|remark| remark.into_problem(text)).collect();
            Ok(Parsed { root, problems })
        }
        Err(error) => Err(Box::new(syntax_problem(text, &error, state))),
    }
}

/// The text of a value, as YAML.
///
/// # Errors
///
/// A value that YAML cannot hold, in words.
pub(crate) fn write(value: &impl serde::Serialize) -> Result<String, String> {
    serde_yaml::to_string(value).map_err(|error| error.to_string())
}

/// Where the key or value of `path` stands in `text`, or the nearest place above it that exists.
#[must_use]
pub fn locate(text: &str, path: &KeyPath, part: Part) -> Position {
    let finder = Finder { path: &path.0, part };
    match finder.deserialize(serde_yaml::Deserializer::from_str(text)) {
        Ok(()) => Position::START,
        Err(error) => position(text, &error).unwrap_or(Position::START),
    }
}

fn position(text: &str, error: &serde_yaml::Error) -> Option<Position> {
    error.location().map(|at| in_editor(text, at.line(), at.column()))
}

/// Where an editor shows the parser's line and column, both from 1. The parser's lines end also at a
/// lone U+000D, at U+0085, U+2028 and U+2029; those of editors do not.
fn in_editor(text: &str, line: usize, column: usize) -> Position {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut at = Position::START;
    let (mut parser_line, mut parser_column) = (1, 1);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if (parser_line, parser_column) >= (line, column) {
            break;
        }
        let breaks = match c {
            '\r' => chars.peek() != Some(&'\n'),
            '\n' | '\u{85}' | '\u{2028}' | '\u{2029}' => true,
            _ => false,
        };
        parser_column += 1;
        if breaks {
            (parser_line, parser_column) = (parser_line + 1, 1);
        }
        at.column += 1;
        if c == '\n' {
            at = Position { line: at.line + 1, column: 1 };
        }
    }
    at
}

fn too_deep(place: Place) -> Problem {
    let message = format!("mappings and lists are nested more than {MAX_DEPTH} deep");
    let mut problem = Problem::new(Code::TooLarge, place, KeyPath::root(), message);
    problem.allowed = Some(format!("up to {MAX_DEPTH} levels"));
    problem
}

/// Where brackets are open deeper than any scenario needs. A cheap upper bound that looks at
/// brackets outside of quotes only; it keeps the parser off texts like a megabyte of `[`.
fn flow_too_deep(text: &str) -> Option<Position> {
    const BRACKETS: usize = 1000;
    let mut open = 0_usize;
    for (line, content) in text.lines().enumerate() {
        for (column, c) in content.chars().enumerate() {
            match c {
                '[' | '{' => open += 1,
                ']' | '}' => open = open.saturating_sub(1),
                _ => {}
            }
            if open > BRACKETS {
                return Some(Position { line: line + 1, column: column + 1 });
            }
        }
    }
    None
}

fn syntax_problem(text: &str, error: &serde_yaml::Error, state: State) -> Problem {
    let at = position(text, error);
    if let Some((code, message)) = state.failure {
        let place = Place::Text(at.unwrap_or(Position::START));
        return Problem::new(code, place, KeyPath(state.path), message);
    }
    let raw = error.to_string();
    let (at, message) = if raw.contains("more than one document") {
        (second_document(text), "a scenario file holds one document".to_owned())
    } else if raw.contains("expected a key") {
        (at.unwrap_or(Position::START), "a key is a text, not a list or a mapping".to_owned())
    } else {
        (at.unwrap_or(Position::START), format!("this is not YAML: {}", without_place(&raw)))
    };
    Problem::new(Code::Syntax, Place::Text(at), KeyPath::root(), message)
}

/// The message without its first ` at line N column M`; a second place (where the mapping began) stays.
fn without_place(raw: &str) -> String {
    let Some(start) = raw.find(" at line ") else { return raw.to_owned() };
    let end = raw[start..].find(',').map_or(raw.len(), |comma| start + comma);
    format!("{}{}", &raw[..start], &raw[end..])
}

fn second_document(text: &str) -> Position {
    let mut content = false;
    for (i, line) in text.lines().enumerate() {
        let marker = line == "---" || line.starts_with("--- ");
        if marker && content {
            return Position { line: i + 1, column: 1 };
        }
        content |= !line.trim().is_empty() && !line.starts_with(['#', '%']);
    }
    Position::START
}

#[derive(Default)]
struct State {
    nodes: usize,
    path: Vec<Step>,
    remarks: Vec<Remark>,
    failure: Option<(Code, String)>,
}

struct Remark {
    path: KeyPath,
    part: Part,
    code: Code,
    message: String,
}

impl Remark {
    fn into_problem(self, text: &str) -> Problem {
        let place = Place::Text(locate(text, &self.path, self.part));
        Problem::new(self.code, place, self.path, self.message)
    }
}

/// More remarks than anyone reads; each costs a walk through the text.
const MAX_REMARKS: usize = 20;

#[derive(Clone, Copy)]
struct Builder<'s> {
    state: &'s RefCell<State>,
    depth: usize,
}

impl Builder<'_> {
    fn fail<E: serde::de::Error>(self, code: Code, message: String) -> E {
        self.state.borrow_mut().failure = Some((code, message.clone()));
        E::custom(message)
    }

    fn deeper<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.depth >= MAX_DEPTH {
            return Err(self.fail(Code::TooLarge, too_deep(Place::File).message));
        }
        Ok(Self { depth: self.depth + 1, ..self })
    }

    fn remark(self, part: Part, code: Code, message: String) {
        let mut state = self.state.borrow_mut();
        if state.remarks.len() < MAX_REMARKS {
            let path = KeyPath(state.path.clone());
            state.remarks.push(Remark { path, part, code, message });
        }
    }
}

impl<'de> DeserializeSeed<'de> for Builder<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        let nodes = {
            let mut state = self.state.borrow_mut();
            state.nodes += 1;
            state.nodes
        };
        if nodes > MAX_NODES {
            let message = format!("the file holds more than {MAX_NODES} values, aliases expanded");
            return Err(self.fail(Code::TooLarge, message));
        }
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Builder<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_i128<E: serde::de::Error>(self, v: i128) -> Result<Value, E> {
        self.visit_f64(v as f64)
    }

    fn visit_u128<E: serde::de::Error>(self, v: u128) -> Result<Value, E> {
        self.visit_f64(v as f64)
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or_else(
            || {
                let message = format!("`{v}` is not a finite number");
                self.remark(Part::Value, Code::BadValue, message);
                Value::from(0)
            },
            Value::Number,
        ))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let child = self.deeper()?;
        let mut list = Vec::new();
        loop {
            self.state.borrow_mut().path.push(Step::Index(list.len()));
            match access.next_element_seed(child)? {
                Some(value) => list.push(value),
                None => break,
            }
            self.state.borrow_mut().path.pop();
        }
        self.state.borrow_mut().path.pop();
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let child = self.deeper()?;
        let mut map = Map::new();
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        while let Some(key) = access.next_key_seed(KeyText)? {
            self.state.borrow_mut().path.push(Step::Key(key.clone()));
            let times = seen.entry(key.clone()).or_insert(0);
            *times += 1;
            if *times > 1 {
                let message = format!("`{key}` stands twice in one mapping");
                self.remark(Part::Key(*times), Code::DuplicateKey, message);
            }
            let value = access.next_value_seed(child)?;
            if *times == 1 {
                map.insert(key, value);
            }
            self.state.borrow_mut().path.pop();
        }
        Ok(Value::Object(map))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<Value, A::Error> {
        Err(self.fail(Code::Syntax, "YAML tags (`!name`) have no meaning in a scenario".to_owned()))
    }
}

/// A key as it is written; numbers and words are text here.
struct KeyText;

impl<'de> DeserializeSeed<'de> for KeyText {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<String, D::Error> {
        d.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyText {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key, which is a text")
    }

    fn visit_str<E>(self, v: &str) -> Result<String, E> {
        Ok(v.to_owned())
    }
}

/// Walks to a path and stops there with an error: the parser adds the place to errors, and has no
/// other way to tell it. So quotes, flow style and anchors are read by the parser itself.
struct Finder<'p> {
    path: &'p [Step],
    part: Part,
}

const FOUND: &str = "found";

impl<'de> DeserializeSeed<'de> for Finder<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

macro_rules! stop_at_scalars {
    ($($method:ident($kind:ty))*) => {
        $(fn $method<E: serde::de::Error>(self, _: $kind) -> Result<(), E> {
            Err(E::custom(FOUND))
        })*
    };
}

impl<'de> Visitor<'de> for Finder<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    stop_at_scalars! {
        visit_bool(bool) visit_i64(i64) visit_u64(u64) visit_i128(i128) visit_u128(u128)
        visit_f64(f64) visit_str(&str)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        Err(E::custom(FOUND))
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<(), E> {
        Err(E::custom(FOUND))
    }

    fn visit_enum<A: EnumAccess<'de>>(self, _: A) -> Result<(), A::Error> {
        Err(A::Error::custom(FOUND))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        if let [Step::Index(wanted), rest @ ..] = self.path {
            for _ in 0..*wanted {
                if access.next_element::<serde::de::IgnoredAny>()?.is_none() {
                    break;
                }
            }
            access.next_element_seed(Finder { path: rest, part: self.part })?;
        }
        Err(A::Error::custom(FOUND))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        if let [Step::Key(wanted), rest @ ..] = self.path {
            let mut stop_at = match self.part {
                Part::Key(times) if rest.is_empty() => Some(times),
                _ => None,
            };
            while let Some(hit) = access.next_key_seed(KeyFinder { wanted, stop_at })? {
                if !hit || stop_at.is_some() {
                    stop_at = stop_at.map(|times| if hit { times - 1 } else { times });
                    access.next_value::<serde::de::IgnoredAny>()?;
                } else {
                    access.next_value_seed(Finder { path: rest, part: self.part })?;
                }
            }
        }
        Err(A::Error::custom(FOUND))
    }
}

/// Compares a key; stops on it when it is the occurrence that is sought.
struct KeyFinder<'p> {
    wanted: &'p str,
    stop_at: Option<usize>,
}

impl<'de> DeserializeSeed<'de> for KeyFinder<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<bool, D::Error> {
        d.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyFinder<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key, which is a text")
    }

    fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<bool, E> {
        if v == self.wanted && self.stop_at.is_some_and(|times| times <= 1) {
            return Err(E::custom(FOUND));
        }
        Ok(v == self.wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str, path: &str, part: Part) -> (usize, usize) {
        let found = locate(text, &path.parse().unwrap(), part);
        (found.line, found.column)
    }

    #[test]
    fn places_are_right_in_block_flow_quoted_and_anchored_yaml() {
        let text = "a: 1\n\"b c\":\n  - x\n  - { y: 2, 'z': [3, 4] }\nd: &anchor\n  e:\n\n    f: |\n      \
                    long\ng: *anchor\nh: é: no\n";
        let text = &text[..text.find("h:").unwrap()];
        assert_eq!(at(text, "a", Part::Value), (1, 4));
        assert_eq!(at(text, "\"b c\"", Part::Key(1)), (2, 1));
        assert_eq!(at(text, "\"b c\"[0]", Part::Value), (3, 5));
        assert_eq!(at(text, "\"b c\"[1].y", Part::Value), (4, 10));
        assert_eq!(at(text, "\"b c\"[1].z", Part::Key(1)), (4, 13));
        assert_eq!(at(text, "\"b c\"[1].z[1]", Part::Value), (4, 22));
        assert_eq!(at(text, "d.e.f", Part::Key(1)), (8, 5));
        assert_eq!(at(text, "g", Part::Key(1)), (10, 1));
        assert_eq!(at("ключ: { й: 5, z: 6 }", "ключ.z", Part::Value), (1, 18));
    }

    #[test]
    fn lines_are_those_of_editors() {
        let text = "\u{feff}# a \u{85}# b\u{2028}# c\r\nb: 1\nc: [2, }\n";
        let problem = parse(text).unwrap_err();
        assert_eq!(problem.place, Place::Text(Position { line: 3, column: 8 }), "{problem:?}");
        assert_eq!(at("a: 1\r\nb: 2\r\n", "b", Part::Value), (2, 4));
    }

    #[test]
    fn duplicate_keys_are_found_at_their_second_place() {
        let parsed = parse("a: 1\nb: { c: 1, c: 2, c: 3 }\na: 2\n").unwrap();
        let places: Vec<_> = parsed.problems.iter().map(|p| p.place.clone()).collect();
        let text = |line, column| Place::Text(Position { line, column });
        assert_eq!(places, [text(2, 12), text(2, 18), text(3, 1)]);
        assert_eq!(parsed.root["b"]["c"], 1);
    }

    #[test]
    fn bombs_and_deep_texts_are_refused_with_a_line() {
        let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for (new, old) in "bcdefgh".chars().zip("abcdefg".chars()) {
            bomb += &format!("{new}: &{new} [{}]\n", vec![format!("*{old}"); 10].join(", "));
        }
        let deep = format!("a: {}", "[".repeat(MAX_DEPTH + 1) + &"]".repeat(MAX_DEPTH + 1));
        for text in [bomb, "[".repeat(MAX_BYTES), "[".repeat(900), deep, " ".repeat(MAX_BYTES + 1)]
        {
            let problem = parse(&text).unwrap_err();
            assert!(matches!(problem.place, Place::Text(_)), "{problem:?}");
            assert!(matches!(problem.code, Code::TooLarge | Code::Syntax), "{problem:?}");
        }
        let selfish = parse("a: &a [*a]").unwrap_err();
        assert!(matches!(selfish.place, Place::Text(_)), "{selfish:?}");
    }

    #[test]
    fn syntax_errors_say_where() {
        let cases = [
            ("a: [1, 2\nb: 3\n", 2),
            ("a: 1\n\tb: 2\n", 2),
            ("a: 1\n---\nb: 2\n", 2),
            ("a: *missing\n", 1),
            ("a:\n  x: !tag 1\n", 2),
            ("? [a, b]\n: 1\n", 1),
        ];
        for (text, line) in cases {
            let problem = parse(text).unwrap_err();
            assert_eq!(problem.code, Code::Syntax, "{text:?}");
            assert!(
                matches!(problem.place, Place::Text(at) if at.line == line),
                "{text:?}: {problem:?}"
            );
        }
    }
}
