//! The embedded catalog of models (`scenarios/models/*.yaml`).

use plimsoll_core::model::{config, detail::Model, error::ConfigError};
use serde_json::Value;

use crate::table::{self, Row};

static MODELS: &[Row] = include!(concat!(env!("OUT_DIR"), "/models.rs"));

/// Why the catalog gives no model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// No entry has that name.
    #[error("no model `{name}` in the catalog{}", near_text(near))]
    Unknown {
        /// As asked for.
        name: String,
        /// Nearest names, nearest first.
        near: Vec<&'static str>,
    },
    /// An entry is not YAML, or has no `config` that is an object.
    #[error("scenarios/models/{file}.yaml: {message}")]
    Entry {
        /// File name without `.yaml`.
        file: &'static str,
        /// What is wrong, with line and column where known.
        message: String,
    },
    /// An entry's configuration gives no geometry.
    #[error("scenarios/models/{file}.yaml: {error}")]
    Config {
        /// File name without `.yaml`.
        file: &'static str,
        /// What is wrong.
        error: ConfigError,
    },
}

fn near_text(near: &[&str]) -> String {
    if near.is_empty() { String::new() } else { format!("; near: {}", near.join(", ")) }
}

/// One entry of the catalog, parsed.
#[derive(Clone, PartialEq, Debug)]
pub struct Entry {
    /// File name without `.yaml`.
    pub file: &'static str,
    /// Hub id.
    pub hub_id: String,
    /// Where its numbers come from.
    pub source: String,
    /// Parameters as published; the entry's own geometry may differ slightly.
    pub parameters: Option<u64>,
    /// Its geometry.
    pub model: Model,
}

/// Every entry, sorted by file name.
#[must_use]
pub fn all() -> &'static [Row] {
    MODELS
}

/// The entry for a hub id, an alias, or a name without its organisation; letter case is ignored.
/// Only this entry is parsed.
///
/// # Errors
/// `Unknown` with up to three near names; `Entry` and `Config` when the file itself is wrong.
pub fn find(name: &str) -> Result<Entry, CatalogError> {
    let row = table::find(MODELS, name).ok_or_else(|| CatalogError::Unknown {
        name: name.to_owned(),
        near: table::near(MODELS, name, 3),
    })?;
    read(row)
}

/// Parses one entry.
///
/// # Errors
/// `Entry` and `Config`.
pub fn read(row: &Row) -> Result<Entry, CatalogError> {
    read_text(row.0, row.2)
}

/// Parses the text of one entry; `file` is its name without `.yaml`, for errors.
///
/// # Errors
/// `Entry` and `Config`.
pub fn read_text(file: &'static str, text: &str) -> Result<Entry, CatalogError> {
    let wrong = |message: String| CatalogError::Entry { file, message };
    let value: Value = serde_yaml::from_str(text).map_err(|e| wrong(e.to_string()))?;
    let field = |key: &str| {
        let text = value.get(key).and_then(Value::as_str);
        text.map(str::to_owned).ok_or_else(|| wrong(format!("`{key}` is missing")))
    };
    let hub_id = field("hub_id")?;
    let parameters = value.get("parameters").and_then(Value::as_u64);
    let config = value.get("config").ok_or_else(|| wrong("`config` is missing".to_owned()))?;
    let model = config::from_value(&hub_id, config)
        .map_err(|error| CatalogError::Config { file, error })?;
    Ok(Entry { file, source: field("source")?, hub_id, parameters, model })
}
