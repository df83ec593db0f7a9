//! Reads values from a JSON object, each with its key path, its type and its range.

use serde_json::{Map, Value};

use super::{error::ConfigError, near};

/// Widths, vocabularies, head sizes: 1 to 2^24.
pub(crate) const WIDTH: (u64, u64) = (1, 1 << 24);
/// The same, and 0 for none.
pub(crate) const WIDTH_OR_NONE: (u64, u64) = (0, 1 << 24);
/// Layers: 1 to 1,024.
pub(crate) const LAYERS: (u64, u64) = (1, 1024);
/// Layers, and 0 for none.
pub(crate) const LAYERS_OR_NONE: (u64, u64) = (0, 1024);
/// Heads: 1 to 65,536.
pub(crate) const HEADS: (u64, u64) = (1, 1 << 16);
/// Experts: 0 to 65,536.
pub(crate) const EXPERTS: (u64, u64) = (0, 1 << 16);
/// Positions: 1 to 2^32.
pub(crate) const POSITIONS: (u64, u64) = (1, 1 << 32);

/// One object of the configuration and where it is.
#[derive(Clone)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    pub(crate) fn root(map: &'a Map<String, Value>) -> Self {
        Self { map, path: String::new() }
    }

    /// `key` with the path of this object before it.
    pub(crate) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The value, `null` counted as absent.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    /// A value error at `key`.
    pub(crate) fn wrong(&self, key: &str, value: &Value, allowed: &str) -> ConfigError {
        ConfigError::Value {
            path: self.path_of(key),
            value: shorten(value),
            allowed: allowed.to_owned(),
        }
    }

    /// A whole number in `range` (ends included); a float counts when it is whole.
    pub(crate) fn number(&self, key: &str, range: (u64, u64)) -> Result<Option<u64>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let whole = whole(value).filter(|n| (range.0..=range.1).contains(n));
        let allowed = || format!("a whole number from {} to {}", range.0, range.1);
        whole.map(Some).ok_or_else(|| self.wrong(key, value, &allowed()))
    }

    /// The first of `keys` that is there.
    pub(crate) fn first(
        &self,
        keys: &[&str],
        range: (u64, u64),
    ) -> Result<Option<u64>, ConfigError> {
        for key in keys {
            if let Some(n) = self.number(key, range)? {
                return Ok(Some(n));
            }
        }
        Ok(None)
    }

    /// The first of `keys`; an error that names the first of them when none is there.
    pub(crate) fn need(&self, keys: &[&str], range: (u64, u64)) -> Result<u64, ConfigError> {
        self.first(keys, range)?.ok_or_else(|| self.missing(keys.first().copied().unwrap_or("")))
    }

    /// The error for an absent key.
    pub(crate) fn missing(&self, key: &str) -> ConfigError {
        let there = self.map.keys().map(String::as_str);
        let near = near::nearest(key, there.filter(|k| *k != key), 75).map(|k| self.path_of(k));
        ConfigError::Missing { path: self.path_of(key), near }
    }

    /// A real number.
    pub(crate) fn real(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().filter(|f| f.is_finite() && f.abs() <= 1e12) {
            Some(f) => Ok(Some(f)),
            None => Err(self.wrong(key, value, "a number up to 1e12")),
        }
    }

    /// true or false.
    pub(crate) fn flag(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    /// The first of `keys` that is there.
    pub(crate) fn first_flag(&self, keys: &[&str]) -> Result<Option<bool>, ConfigError> {
        for key in keys {
            if let Some(flag) = self.flag(key)? {
                return Ok(Some(flag));
            }
        }
        Ok(None)
    }

    /// A text.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => Err(self.wrong(key, other, "a text")),
        }
    }

    /// An object.
    pub(crate) fn object(&self, key: &str) -> Result<Option<Fields<'a>>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields { map, path: self.path_of(key) })),
            Some(other) => Err(self.wrong(key, other, "an object")),
        }
    }

    /// A list.
    pub(crate) fn list(&self, key: &str) -> Result<Option<&'a [Value]>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(self.wrong(key, other, "a list")),
        }
    }

    /// A list of texts; an element of another type is an error.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, ConfigError> {
        let Some(items) = self.list(key)? else { return Ok(None) };
        let texts = items.iter().enumerate().map(|(i, item)| {
            item.as_str().ok_or_else(|| self.wrong(&format!("{key}[{i}]"), item, "a text"))
        });
        texts.collect::<Result<_, _>>().map(Some)
    }

    /// A list of whole numbers in `range`.
    pub(crate) fn numbers(
        &self,
        key: &str,
        range: (u64, u64),
    ) -> Result<Option<Vec<u64>>, ConfigError> {
        let Some(items) = self.list(key)? else { return Ok(None) };
        let allowed = format!("a whole number from {} to {}", range.0, range.1);
        let numbers = items.iter().enumerate().map(|(i, item)| {
            whole(item)
                .filter(|n| (range.0..=range.1).contains(n))
                .ok_or_else(|| self.wrong(&format!("{key}[{i}]"), item, &allowed))
        });
        numbers.collect::<Result<_, _>>().map(Some)
    }

    /// The object's keys and values.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.map.iter()
    }
}

fn whole(value: &Value) -> Option<u64> {
    match value.as_u64() {
        Some(n) => Some(n),
        None => value
            .as_f64()
            .filter(|f| f.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(f))
            .map(|f| f as u64),
    }
}

/// A value as text, at most 60 characters.
fn shorten(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 {
        return text;
    }
    text.chars().take(57).chain("...".chars()).collect()
}

/// Python writes `Infinity`, `-Infinity` and `NaN` into JSON; they become `null` here.
pub(crate) fn without_non_finite(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut quoted = false;
    while let Some(c) = rest.chars().next() {
        if !quoted {
            let word = ["-Infinity", "Infinity", "NaN"].iter().find(|w| rest.starts_with(**w));
            if let Some(word) = word {
                out.push_str("null");
                rest = &rest[word.len()..];
                continue;
            }
        }
        let mut step = c.len_utf8();
        if c == '"' {
            quoted = !quoted;
        } else if quoted && c == '\\' {
            step += rest[step..].chars().next().map_or(0, char::len_utf8);
        }
        out.push_str(&rest[..step]);
        rest = &rest[step..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_finite_numbers_become_null_outside_texts_only() {
        let text = r#"{"a": [0.0, Infinity, -Infinity], "b": "say \"NaN\" Infinity", "c": NaN}"#;
        let value: Value = serde_json::from_str(&without_non_finite(text)).unwrap();
        assert_eq!(value["a"][2], Value::Null);
        assert_eq!(value["b"], "say \"NaN\" Infinity");
        assert_eq!(value["c"], Value::Null);
    }
}
