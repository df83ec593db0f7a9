//! JSON schema of scenario files, for editors, and the table of keys that the docs carry.

use super::types::Scenario;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};
use std::fmt::Write as _;

/// JSON schema (draft 2020-12) of a scenario file. It says what one key may hold; checks across keys
/// are made when a file is read.
#[must_use]
pub fn json_schema() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<Scenario>().to_value();
    if let Some(map) = schema.as_object_mut() {
        map.insert("title".to_owned(), "Plimsoll scenario".into());
    }
    schema
}

/// One key of the format, as the schema describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyDoc {
    /// Path; list elements as `[]`, free keys as `*`.
    pub path: String,
    /// Type and range.
    pub kind: String,
    /// Whether it must be there when its mapping is.
    pub required: bool,
    /// The value that stands in when it is absent.
    pub default: Option<String>,
    /// An example.
    pub example: Option<String>,
    /// What it means.
    pub doc: String,
}

/// Every key, parents first, in the order of the format.
#[must_use]
pub fn keys() -> Vec<KeyDoc> {
    let mut keys = Vec::new();
    walk(&json_schema(), "", &mut keys);
    keys
}

/// The table of keys in Markdown, as it stands in `docs/scenario-format.md`.
#[must_use]
pub fn markdown_table() -> String {
    let mut out = String::from("| key | type and range | default | meaning | example |\n");
    out.push_str("|---|---|---|---|---|\n");
    for key in keys() {
        let default = match (&key.default, key.required) {
            (Some(value), _) => format!("`{value}`"),
            (None, true) => "required".to_owned(),
            (None, false) => String::new(),
        };
        let example = key.example.map(|e| format!("`{e}`")).unwrap_or_default();
        let kind = key.kind.replace('|', "\\|");
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| `{}` | {kind} | {default} | {} | {example} |", key.path, key.doc);
    }
    out
}

fn walk(schema: &Value, prefix: &str, keys: &mut Vec<KeyDoc>) {
    let required: Vec<&str> = list(schema, "required").iter().filter_map(Value::as_str).collect();
    for (name, property) in object(schema, "properties") {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        // The forms of a claim, a reading, a length or of sampling are the same at each key; the docs
        // tell them once.
        let told = |last: &str| keys.iter().any(|key| key.path.ends_with(last));
        let once = prefix == "expect"
            || (prefix == "machine.readings" && told(".calibrated"))
            || ((name.ends_with("_tokens") || kind(property) == "length") && told(".lognormal"))
            || (kind(property) == "amount or distribution" && told(".samples"))
            || (name == "sampling" && told(".temperature"));
        keys.push(describe(property, &path, required.contains(&name.as_str())));
        if !once {
            descend(property, &path, keys);
        }
    }
}

fn descend(schema: &Value, path: &str, keys: &mut Vec<KeyDoc>) {
    walk(schema, path, keys);
    let forms = list(schema, "anyOf");
    for form in forms {
        // A list of what may also stand alone has the same keys.
        if form.get("items").is_none_or(|items| !forms.contains(items)) {
            descend(form, path, keys);
        }
    }
    if let Some(items) = schema.get("items").filter(|items| items.get("properties").is_some()) {
        descend(items, &format!("{path}[]"), keys);
    }
    if let Some(free) = schema.get("additionalProperties").filter(|free| !free.is_boolean()) {
        keys.push(describe(free, &format!("{path}.*"), false));
    }
}

fn describe(schema: &Value, path: &str, required: bool) -> KeyDoc {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let doc = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    KeyDoc {
        path: path.to_owned(),
        kind: kind(schema),
        required,
        default: schema.get("default").filter(|d| !d.is_null()).map(text),
        example: list(schema, "examples").first().map(text),
        doc: doc.split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

/// Type and range in words.
fn kind(schema: &Value) -> String {
    if let Some(value) = schema.get("const") {
        return format!("`{}`", value.as_str().unwrap_or_default());
    }
    if let Some(title) = schema.get("title").and_then(Value::as_str) {
        return title.to_owned();
    }
    let words = list(schema, "enum");
    if !words.is_empty() {
        let words: Vec<String> =
            words.iter().filter_map(Value::as_str).map(|w| format!("`{w}`")).collect();
        return words.join(", ");
    }
    let mut forms: Vec<String> = Vec::new();
    for form in list(schema, "anyOf").iter().chain(list(schema, "oneOf")) {
        let form = kind(form);
        if form != "null" && !forms.contains(&form) {
            forms.push(form);
        }
    }
    if !forms.is_empty() {
        return forms.join(" or ");
    }
    let name = match schema.get("type") {
        Some(Value::String(name)) => name.as_str(),
        Some(Value::Array(names)) => names
            .iter()
            .filter_map(Value::as_str)
            .find(|name| *name != "null")
            .unwrap_or("any value"),
        _ => "any value",
    };
    match name {
        "string" => "text".to_owned(),
        "boolean" => "`true` or `false`".to_owned(),
        "object" => "mapping".to_owned(),
        "array" => {
            format!("list of {}", schema.get("items").map_or_else(|| "values".to_owned(), kind))
        }
        number => format!("{number}{}", range(schema)),
    }
}

fn range(schema: &Value) -> String {
    match (schema.get("minimum"), schema.get("maximum")) {
        (Some(min), Some(max)) => format!(" from {min} to {max}"),
        (Some(min), None) => format!(" of {min} or more"),
        (None, Some(max)) => format!(" up to {max}"),
        (None, None) => String::new(),
    }
}

fn list<'v>(schema: &'v Value, key: &str) -> &'v [Value] {
    schema.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn object<'v>(schema: &'v Value, key: &str) -> impl Iterator<Item = (&'v String, &'v Value)> {
    schema.get(key).and_then(Value::as_object).into_iter().flat_map(Map::iter)
}
