//! A small checker of JSON schemas: as much of the language as the schemas of results use.

use serde_json::Value;

/// Every place where `value` is not what `schema` says; a keyword that is not known here is one too.
pub(crate) fn check(schema: &Value, value: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    walk(schema, value, "$", &mut wrong);
    wrong
}

fn walk(schema: &Value, value: &Value, at: &str, wrong: &mut Vec<String>) {
    let Some(keywords) = schema.as_object() else {
        wrong.push(format!("{at}: the schema is {schema}"));
        return;
    };
    for (keyword, wanted) in keywords {
        let holds = match keyword.as_str() {
            "$schema" => true,
            "type" => is_type(wanted, value),
            "const" => wanted == value,
            "enum" => wanted.as_array().is_some_and(|all| all.contains(value)),
            "minimum" => {
                value.as_f64().is_none_or(|n| wanted.as_f64().is_some_and(|least| n >= least))
            }
            "anyOf" => {
                wanted.as_array().is_some_and(|all| all.iter().any(|s| check(s, value).is_empty()))
            }
            "required" => has_all(wanted, value),
            "properties" | "additionalProperties" | "items" => {
                parts(keyword, keywords, value, at, wrong);
                true
            }
            other => panic!("{at}: the checker does not know `{other}`"),
        };
        if !holds {
            wrong.push(format!("{at}: {keyword} {wanted} does not hold for {value}"));
        }
    }
}

fn is_type(wanted: &Value, value: &Value) -> bool {
    match wanted.as_str().expect("one type") {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type {other}"),
    }
}

fn has_all(wanted: &Value, value: &Value) -> bool {
    let keys = wanted.as_array().expect("a list of keys");
    keys.iter().all(|key| value.get(key.as_str().expect("a key")).is_some())
}

fn parts(
    keyword: &str,
    schema: &serde_json::Map<String, Value>,
    value: &Value,
    at: &str,
    wrong: &mut Vec<String>,
) {
    let properties = schema.get("properties").and_then(Value::as_object);
    let named = |key: &String| properties.and_then(|p| p.get(key));
    match (keyword, value) {
        ("properties", Value::Object(map)) => {
            for (key, value) in map {
                if let Some(schema) = named(key) {
                    walk(schema, value, &format!("{at}.{key}"), wrong);
                }
            }
        }
        ("additionalProperties", Value::Object(map)) => {
            for (key, value) in map.iter().filter(|(key, _)| named(key).is_none()) {
                match &schema["additionalProperties"] {
                    Value::Bool(false) => wrong.push(format!("{at}: no key `{key}` in the schema")),
                    schema => walk(schema, value, &format!("{at}.{key}"), wrong),
                }
            }
        }
        ("items", Value::Array(items)) => {
            for (index, value) in items.iter().enumerate() {
                walk(&schema["items"], value, &format!("{at}[{index}]"), wrong);
            }
        }
        _ => {}
    }
}

#[test]
fn the_checker_finds_what_is_wrong() {
    let schema = serde_json::json!({
        "type": "object",
        "properties": { "n": { "type": "integer", "minimum": 0 }, "s": { "enum": ["a", "b"] } },
        "required": ["n"],
        "additionalProperties": false,
    });
    let wrong = |text: &str| check(&schema, &serde_json::from_str(text).unwrap()).len();
    assert_eq!(wrong(r#"{"n": 1, "s": "a"}"#), 0);
    for text in [
        "[]",
        "{}",
        r#"{"n": -1}"#,
        r#"{"n": 1.5}"#,
        r#"{"n": 1, "s": "c"}"#,
        r#"{"n": 1, "x": 2}"#,
    ] {
        assert!(wrong(text) > 0, "{text}");
    }
}
