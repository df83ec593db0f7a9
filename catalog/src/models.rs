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
    /// The name is that of an entry and a way of storing weights: the weights are not the entry's.
    #[error(
        "no model `{name}` in the catalog; without `{format}` the name is that of {base}, which has an entry: \
         layers and KV are then the same, weights are not. Plan {base} with --weights (bytes of one rank), or \
         give the folder with this model's config.json"
    )]
    Quantised {
        /// As asked for.
        name: String,
        /// Hub id of the entry.
        base: &'static str,
        /// The part of the name that says how weights are stored.
        format: String,
    },
    /// A family that has no rules here.
    #[error("`{name}` is not modelled: {why}")]
    NotModelled {
        /// As asked for.
        name: String,
        /// What stands in the way.
        why: &'static str,
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
/// `NotModelled` for a family without rules, `Quantised` for another storage of an entry, else
/// `Unknown` with up to three near names; `Entry` and `Config` when the file itself is wrong.
pub fn find(name: &str) -> Result<Entry, CatalogError> {
    match table::find(MODELS, name) {
        Some(row) => read(row),
        None => Err(not_found(name)),
    }
}

/// Families by the beginning of their names, and why they have no entries.
const NOT_MODELLED: [(&str, &str); 2] = [
    ("deepseek-v4", "DeepSeek-V4 keeps compressed KV in several pools with sizes of their own"),
    ("minimax-m3", "MiniMax-M3 keeps indexes of sparse attention beside its KV"),
];

fn not_found(name: &str) -> CatalogError {
    let short = name.trim().rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    let family = NOT_MODELLED.iter().find(|(start, _)| short.starts_with(start));
    if let Some((_, why)) = family {
        return CatalogError::NotModelled { name: name.to_owned(), why };
    }
    match quantised(name.trim()) {
        Some((base, format)) => CatalogError::Quantised { name: name.to_owned(), base, format },
        None => CatalogError::Unknown { name: name.to_owned(), near: table::near(MODELS, name, 3) },
    }
}

/// Words of a name that say how weights are stored.
const FORMATS: [&str; 31] = [
    "awq",
    "gptq",
    "int4",
    "int8",
    "fp8",
    "fp4",
    "nvfp4",
    "mxfp4",
    "mxfp8",
    "w4a16",
    "w4a8",
    "w8a8",
    "w8a16",
    "3bit",
    "4bit",
    "5bit",
    "6bit",
    "8bit",
    "bnb",
    "gguf",
    "mlx",
    "exl2",
    "exl3",
    "hqq",
    "autoround",
    "quarot",
    "marlin",
    "dynamic",
    "static",
    "block",
    "bf16",
];

/// The entry whose name remains when trailing words of storage are taken off, and those words.
fn quantised(name: &str) -> Option<(&'static str, String)> {
    let mut base = name;
    while let Some((rest, word)) = base.rsplit_once('-') {
        let format = |w: &str| FORMATS.iter().any(|f| w.eq_ignore_ascii_case(f));
        if rest.is_empty() || !(format(word) || word.starts_with("quantized")) {
            break;
        }
        base = rest;
        let short = base.rsplit('/').next().unwrap_or(base);
        let row = table::find(MODELS, base).or_else(|| table::find(MODELS, short));
        if let Some((_, names, _)) = row {
            let format = name.get(base.len()..)?.trim_start_matches('-');
            return Some((names.first()?, format.to_owned()));
        }
    }
    None
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
