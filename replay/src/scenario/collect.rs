//! Tree → [`Scenario`], with every fault on the way: a refused value is reported, taken out, and the rest
//! is read again.

use super::{
    Places, Scenario, check,
    de::{self, Fault, FaultKind, Node, one_of},
};
use crate::{
    path::{KeyPath, Step},
    problem::{Code, Place, Problem, near},
    yaml::Part,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Most faults of types that are collected from one file.
const MAX_FAULTS: usize = 50;

/// Reads `tree`; adds what is wrong to `problems`. The result is whole only if nothing was added.
pub(super) fn read(
    tree: Value,
    places: &Places<'_>,
    problems: &mut Vec<Problem>,
) -> Option<Scenario> {
    if !tree.is_object() {
        problems.push(no_mapping(&tree, places));
        return None;
    }
    let mut reader = Reader { tree, places, removed: Vec::new(), gaps: BTreeMap::new() };
    reader.stand_in_for_missing(problems);
    for _ in 0..MAX_FAULTS {
        let root = Node { value: &reader.tree, path: KeyPath::root() };
        match Scenario::deserialize(root) {
            Ok(scenario) => {
                let found = check::across_keys(&scenario);
                let seen = found.into_iter().filter(|c| !reader.rests_on_removed(&c.paths));
                problems.extend(seen.map(|c| c.into_problem(places)));
                return Some(scenario);
            }
            Err(fault) => reader.set_aside(fault, problems),
        }
    }
    None
}

fn no_mapping(tree: &Value, places: &Places<'_>) -> Problem {
    let message = match tree {
        Value::Null => "the file is empty",
        _ => "a scenario is a mapping of keys",
    };
    let mut problem =
        places.problem(Code::WrongType, &KeyPath::root(), Part::Value, message.to_owned());
    problem.help = Some("start with `name: ...` and `why: ...`".to_owned());
    problem
}

struct Reader<'a> {
    tree: Value,
    places: &'a Places<'a>,
    /// Paths in the file whose values were taken out.
    removed: Vec<KeyPath>,
    /// For each list of the file, the places that were taken out, ascending.
    gaps: BTreeMap<KeyPath, Vec<usize>>,
}

/// A value that lets the rest of the file be read in place of a required one.
fn stand_in(key: &str) -> Option<Value> {
    match key {
        "name" | "why" => Some(json!("stand-in")),
        "machine" => Some(json!({ "device": "stand-in" })),
        "engine" => Some(json!({ "name": "sglang", "version": "0.0.0", "command": "stand-in" })),
        _ => None,
    }
}

impl Reader<'_> {
    fn stand_in_for_missing(&mut self, problems: &mut Vec<Problem>) {
        for key in ["name", "why", "machine", "engine"] {
            if self.tree.get(key).is_none_or(Value::is_null) {
                let place = self.places.problem(
                    Code::MissingKey,
                    &KeyPath::root(),
                    Part::Value,
                    format!("`{key}` is missing"),
                );
                problems.push(place);
                self.removed.push(KeyPath::of(key));
                self.put_stand_in(key);
            }
        }
    }

    fn put_stand_in(&mut self, key: &str) {
        if let (Some(map), Some(value)) = (self.tree.as_object_mut(), stand_in(key)) {
            map.insert(key.to_owned(), value);
        }
    }

    /// Whether a finding rests on a value that was taken out, and so may be no finding at all.
    fn rests_on_removed(&self, paths: &[KeyPath]) -> bool {
        paths.iter().any(|path| {
            self.removed.iter().any(|gone| path.starts_with(gone) || gone.starts_with(path))
        })
    }

    /// Path in the file of a path in the tree, from which list elements may be gone.
    fn in_file(&self, path: &KeyPath) -> KeyPath {
        let mut file = KeyPath::root();
        for step in &path.0 {
            let step = match (step, self.gaps.get(&file)) {
                (Step::Index(index), Some(gaps)) => Step::Index(
                    gaps.iter().fold(*index, |index, gap| index + usize::from(*gap <= index)),
                ),
                _ => step.clone(),
            };
            file.0.push(step);
        }
        file
    }

    /// A number is shown as it is written: `0.10` is a number to YAML and a release to its writer.
    fn shown(&self, value: &Value, file: &KeyPath) -> String {
        match (value, self.places.of(file, Part::Value)) {
            (Value::Number(_), Place::Text(at)) => {
                self.places.word_at(at).map_or_else(|| shown(value), |word| cut(&word))
            }
            _ => shown(value),
        }
    }

    fn set_aside(&mut self, fault: Fault, problems: &mut Vec<Problem>) {
        let path = fault.path.unwrap_or_default();
        let file = self.in_file(&path);
        // What a mapping lacks after a part of it was taken out is no finding of its own.
        let follows_from_removal =
            matches!(&fault.kind, FaultKind::MissingKey(_) | FaultKind::Rule(_))
                && self.removed.iter().any(|gone| *gone != file && gone.starts_with(&file));
        if !follows_from_removal || file.0.is_empty() {
            let value = match fault.part {
                Part::Key(_) => None,
                Part::Value => de::get(&self.tree, &path).map(|value| self.shown(value, &file)),
            };
            problems.push(describe(&fault.kind, &file, fault.part, value, self.places));
        }
        de::remove(&mut self.tree, &path);
        if let (Some(Step::Index(index)), Some(list)) = (file.0.last(), file.parent()) {
            let gaps = self.gaps.entry(list).or_default();
            gaps.push(*index);
            gaps.sort_unstable();
        }
        self.removed.push(file);
        if let [Step::Key(key)] = path.0.as_slice() {
            self.put_stand_in(&key.clone());
        }
    }
}

/// serde's names of types, in the words of the format.
fn in_words(expected: &str) -> String {
    match expected {
        "a boolean" => "`true` or `false`".to_owned(),
        "a string" => "a text".to_owned(),
        "a sequence" => "a list".to_owned(),
        "u64" => "an integer of 0 or more".to_owned(),
        "a map" => "a mapping of keys".to_owned(),
        _ if expected.starts_with("struct ") => "a mapping of keys".to_owned(),
        _ => expected.to_owned(),
    }
}

/// A value as it is shown in a message: one line, not too long.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => cut(text),
        Value::Null => "nothing".to_owned(),
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "a mapping".to_owned(),
        other => cut(&other.to_string()),
    }
}

/// At most 60 characters, without line ends.
fn cut(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match line.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

pub(super) fn describe(
    kind: &FaultKind,
    path: &KeyPath,
    part: Part,
    value: Option<String>,
    places: &Places<'_>,
) -> Problem {
    let quoted = value.as_deref().unwrap_or("nothing");
    let (code, message, allowed, help) = match kind {
        FaultKind::Rule(rule) => (Code::BadValue, format!("`{path}`: {rule}"), None, None),
        FaultKind::Type { expected } => {
            let message = match value.as_deref() {
                Some(v) if v.starts_with("a list") || v == "a mapping" || v == "nothing" => {
                    format!("`{path}` is {v}, which it cannot be")
                }
                _ => format!("`{path}` cannot be `{quoted}`"),
            };
            (Code::WrongType, message, Some(in_words(expected)), None)
        }
        FaultKind::Value { expected } => {
            let message = format!("`{path}` cannot be `{quoted}`");
            let (allowed, help) = match expected.split_once("; did you mean") {
                Some((allowed, near)) => (allowed, Some(format!("did you mean{near}"))),
                None => (expected.as_str(), None),
            };
            (Code::BadValue, message, Some(in_words(allowed)), help)
        }
        FaultKind::Word { found, allowed } => {
            let help = near(found, allowed.iter().copied()).map(|n| format!("did you mean `{n}`?"));
            (
                Code::BadValue,
                format!("`{path}` cannot be `{}`", cut(found)),
                Some(one_of(allowed)),
                help,
            )
        }
        FaultKind::UnknownKey { found, allowed } => {
            let parent = path.parent().filter(|parent| !parent.0.is_empty());
            let message = match &parent {
                Some(parent) => format!("`{parent}` has no key `{}`", cut(found)),
                None => format!("a scenario has no key `{}`", cut(found)),
            };
            let allowed_text = match allowed {
                [] => "no keys".to_owned(),
                _ => one_of(allowed),
            };
            (Code::UnknownKey, message, Some(allowed_text), unknown_key_help(found, allowed))
        }
        FaultKind::MissingKey(key) => {
            (Code::MissingKey, format!("`{}` is missing", path.key(key)), None, None)
        }
    };
    let mut problem = places.problem(code, path, part, message);
    problem.allowed = allowed;
    problem.help = help;
    problem.value = value;
    problem
}

fn unknown_key_help(found: &str, allowed: &'static [&'static str]) -> Option<String> {
    if found == "<<" {
        return Some("merge keys are not read; anchors and aliases are".to_owned());
    }
    near(found, allowed.iter().copied()).map(|name| format!("did you mean `{name}`?"))
}
