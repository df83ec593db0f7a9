//! The embedded catalog of models (`scenarios/models/*.yaml`).

use crate::table::{self, Row};

static MODELS: &[Row] = include!(concat!(env!("OUT_DIR"), "/models.rs"));

/// No entry has that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no model `{name}` in the catalog{}", near_text(.near))]
pub struct UnknownModel {
    /// As asked for.
    pub name: String,
    /// Nearest names, nearest first.
    pub near: Vec<&'static str>,
}

fn near_text(near: &[&str]) -> String {
    if near.is_empty() { String::new() } else { format!("; near: {}", near.join(", ")) }
}

/// Every entry, sorted by file name.
#[must_use]
pub fn all() -> &'static [Row] {
    MODELS
}

/// The entry for a hub id, an alias, or a name without its organisation; letter case is ignored.
///
/// # Errors
/// `UnknownModel` with up to three near names.
pub fn find(name: &str) -> Result<&'static Row, UnknownModel> {
    table::find(MODELS, name)
        .ok_or_else(|| UnknownModel { name: name.to_owned(), near: table::near(MODELS, name, 3) })
}
