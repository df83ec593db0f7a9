//! Servers in container descriptions: Compose services and Kubernetes containers.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::env::listed_devices;
use super::error::LaunchErrors;
use super::place::{Lines, Place, Word};
use super::program::{Found, TEXT_LIMIT, search_container};
use super::shell::{Lexer, Vars};

/// Deepest nesting that is looked into.
const DEPTH_LIMIT: usize = 24;

/// The servers of a YAML text, or `None` when it is no YAML or describes no container.
pub(crate) fn search(text: &str) -> Result<Option<Found>, LaunchErrors> {
    let key = |line: &str| {
        let line = line.trim_start_matches([' ', '-']);
        ["image:", "command:", "args:"].iter().any(|key| line.starts_with(key))
    };
    if text.len() > TEXT_LIMIT || !text.lines().any(key) {
        return Ok(None);
    }
    let mut found = Found::default();
    for document in serde_yaml::Deserializer::from_str(text) {
        let Ok(value) = Value::deserialize(document) else { return Ok(None) };
        let mut reader = Reader { text, lines: Lines::new(text), cursor: 0 };
        reader.walk(&value, &mut found, 0)?;
    }
    Ok((!found.servers.is_empty()).then_some(found))
}

struct Reader<'a> {
    text: &'a str,
    lines: Lines<'a>,
    /// Where the next word is looked for, so that words are found in their order.
    cursor: usize,
}

impl Reader<'_> {
    fn walk(&mut self, value: &Value, found: &mut Found, depth: usize) -> Result<(), LaunchErrors> {
        if depth > DEPTH_LIMIT {
            return Ok(());
        }
        match value {
            Value::Object(map) => {
                if ["image", "command", "args"].iter().any(|key| map.contains_key(*key)) {
                    self.container(map, found)?;
                }
                for inner in map.values() {
                    self.walk(inner, found, depth + 1)?;
                }
            }
            Value::Array(items) => {
                for inner in items {
                    self.walk(inner, found, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Variables and image as a prefix, then entry point, command and arguments.
    fn container(
        &mut self,
        map: &Map<String, Value>,
        found: &mut Found,
    ) -> Result<(), LaunchErrors> {
        let mut words = Vec::new();
        let listed = map.get("environment").or_else(|| map.get("env"));
        for (name, value) in listed.map(variables).unwrap_or_default() {
            self.cursor = 0;
            let place = self.place(&name);
            words.push(Word::new(format!("{name}={value}"), place));
        }
        if let Some(image) = map.get("image").and_then(Value::as_str) {
            self.cursor = 0;
            let place = self.place(image);
            words.push(Word::new(image, place));
        }
        self.cursor = 0;
        for key in ["entrypoint", "command", "args"] {
            if let Some(value) = map.get(key) {
                let from = self.text.find(&format!("{key}:"));
                self.cursor = self.cursor.max(from.unwrap_or(0));
                words.append(&mut self.words(value));
            }
        }
        let devices = devices(&Value::Object(map.clone()), 0);
        let before = found.servers.len();
        search_container(&words, found)?;
        if found.servers.len() > before && found.devices.is_none() {
            found.devices = devices;
        }
        Ok(())
    }

    /// A list word by word, a text as a shell splits it.
    fn words(&mut self, value: &Value) -> Vec<Word> {
        match value {
            Value::Array(items) => items
                .iter()
                .map(|item| match item {
                    Value::String(text) => text.clone(),
                    other => other.to_string(),
                })
                .map(|text| {
                    let place = self.place(text.split_whitespace().next().unwrap_or(&text));
                    Word::new(text, place)
                })
                .collect(),
            Value::String(text) => {
                let nowhere = |_| Place::Whole;
                let mut lexer = Lexer::new(text, &nowhere);
                let words = lexer.next_command(&Vars::new()).ok().flatten().unwrap_or_default();
                words
                    .into_iter()
                    .map(|word| Word::new(word.text.clone(), self.place(&word.text)))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    fn place(&mut self, text: &str) -> Place {
        let rest = self.text.get(self.cursor..).unwrap_or_default();
        match rest.find(text).filter(|_| !text.is_empty()) {
            Some(at) => {
                let at = self.cursor + at;
                self.cursor = at + text.len();
                self.lines.place(at)
            }
            None => Place::Whole,
        }
    }
}

/// `{A: b}`, `["A=b"]` or `[{name: A, value: b}]`.
fn variables(value: &Value) -> Vec<(String, String)> {
    let plain = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    match value {
        Value::Object(map) => map.iter().map(|(name, v)| (name.clone(), plain(v))).collect(),
        Value::Array(items) => items
            .iter()
            .filter_map(|item| match item {
                Value::String(text) => {
                    text.split_once('=').map(|(n, v)| (n.to_owned(), v.to_owned()))
                }
                Value::Object(map) => {
                    Some((map.get("name")?.as_str()?.to_owned(), plain(map.get("value")?)))
                }
                _ => None,
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// `nvidia.com/gpu: 8`, or `count` and `device_ids` of a Compose device reservation.
fn devices(value: &Value, depth: usize) -> Option<u32> {
    if depth > DEPTH_LIMIT {
        return None;
    }
    let count = |v: &Value| match v {
        Value::Number(n) => n.as_u64().and_then(|n| u32::try_from(n).ok()),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    match value {
        Value::Object(map) => {
            let gpu = map.get("nvidia.com/gpu").or_else(|| map.get("amd.com/gpu"));
            if let Some(n) = gpu.and_then(count) {
                return Some(n);
            }
            if map.contains_key("capabilities") {
                let ids = map.get("device_ids").and_then(Value::as_array);
                let ids = ids.and_then(|ids| u32::try_from(ids.len()).ok());
                if let Some(n) = ids.or_else(|| map.get("count").and_then(count)) {
                    return Some(n);
                }
            }
            let listed = map.get("NVIDIA_VISIBLE_DEVICES").and_then(Value::as_str);
            listed
                .and_then(listed_devices)
                .or_else(|| map.values().find_map(|v| devices(v, depth + 1)))
        }
        Value::Array(items) => items.iter().find_map(|v| devices(v, depth + 1)),
        _ => None,
    }
}
