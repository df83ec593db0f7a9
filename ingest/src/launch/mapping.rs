//! Flags given as a mapping: a `--config` file of either engine, or the flags of a scenario file.

use std::io;

use serde_json::Value;

use super::Engine;
use super::error::{ErrorCode, LaunchError};
use super::place::{Place, Warning, Word};
use super::table::{Arity, Kind, Lookup, Row, Table};
use plimsoll_core::policy::sglang::version::Version;

/// Largest config file, bytes.
const FILE_LIMIT: usize = 1 << 20;

/// The words that one key and its value stand for: `null` none, `true` the flag alone, `false` its
/// negation where there is one, a list its items, an object JSON.
pub(crate) fn words(
    engine: Engine,
    version: Version,
    key: &str,
    value: &Value,
    place: &Place,
) -> Vec<Word> {
    let table = Table::of(engine);
    let name =
        if key.starts_with('-') { key.to_owned() } else { format!("--{}", key.replace('_', "-")) };
    let row = match table.look_up(&name, version) {
        Lookup::Exact(row, _) | Lookup::Prefix(row, ..) => Some(row),
        Lookup::Ambiguous(_) | Lookup::Unknown => None,
    };
    let word = |text: String| Word::new(text, place.clone());
    match value {
        Value::Null => Vec::new(),
        Value::Bool(on) => boolean(&name, row, *on).into_iter().map(word).collect(),
        Value::Array(items) if !takes_json(row) => {
            let texts = items.iter().map(scalar);
            if items.is_empty() {
                return Vec::new();
            }
            std::iter::once(name.clone()).chain(texts).map(word).collect()
        }
        Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            vec![word(format!("{name}={}", scalar(value)))]
        }
    }
}

fn takes_json(row: Option<&Row>) -> bool {
    row.is_some_and(|row| {
        row.kind == Kind::Json || !matches!(row.arity, Arity::AtLeastOne | Arity::Any)
    })
}

fn boolean(name: &str, row: Option<&Row>, on: bool) -> Option<String> {
    let valued = row.is_some_and(|row| row.kind != Kind::Bool);
    match (on, row) {
        _ if valued => Some(format!("{name}={on}")),
        (true, _) => Some(name.to_owned()),
        (false, Some(row)) if row.negatable => Some(name.replacen("--", "--no-", 1)),
        (false, _) => None,
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The words of a `--config` file, in its order. They go before the command line, which therefore
/// wins. Source: `ConfigArgumentMerger` of SGLang, `_pull_args_from_config` of vLLM.
pub(crate) fn file_words(
    engine: Engine,
    version: Version,
    path: &str,
    read: &dyn Fn(&str) -> io::Result<String>,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Word>, Box<LaunchError>> {
    let whole = |line| Place::File { path: path.to_owned(), key: String::new(), line };
    let bad = |allowed: String, line| {
        let error = LaunchError::new(ErrorCode::ConfigFile, allowed, whole(line));
        Box::new(error.flag("--config").value(path))
    };
    let text = read(path).map_err(|error| bad(format!("cannot be read: {error}"), None))?;
    if text.len() > FILE_LIMIT {
        return Err(bad(format!("must be at most {FILE_LIMIT} bytes, not {}", text.len()), None));
    }
    if !path.ends_with(".yaml") && !path.ends_with(".yml") {
        let message = format!("{engine} refuses a config file that does not end in .yaml or .yml");
        warnings.push(Warning::new(message, whole(None)));
    }
    let value: Value = serde_yaml::from_str(&text).map_err(|error| {
        // The parser counts a line behind the last one when the text ends too early.
        let last = text.split('\n').count();
        let line = error.location().map(|l| l.line().min(last));
        bad(format!("must be YAML: {error}"), line)
    })?;
    let map = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Object(map) => map,
        other => {
            let what = format!("must be a mapping of flags, not {}", type_name(&other));
            return Err(bad(what, Some(1)));
        }
    };
    let mut out = Vec::new();
    for (key, value) in &map {
        let line = key_line(&text, key);
        let place = Place::File { path: path.to_owned(), key: key.clone(), line };
        out.extend(words(engine, version, key, value, &place));
    }
    Ok(out)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

/// The line, from 1, on which a top-level key stands.
fn key_line(text: &str, key: &str) -> Option<usize> {
    let at = |line: &str| {
        let line = line.trim_start_matches(['"', '\'']);
        let rest = line.strip_prefix(key).map(|r| r.trim_start_matches(['"', '\'', ' ']));
        rest.is_some_and(|rest| rest.starts_with(':'))
    };
    text.lines().position(at).map(|index| index + 1)
}
