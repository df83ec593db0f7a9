//! From the text of a profile to its values, with every mistake at its place.

use super::{Profile, SCHEMA};
use crate::{
    digest::hex_of,
    path::{KeyPath, Step},
    problem::Problems,
    scenario::{Wrong, read_document},
};
use plimsoll_core::estimate::coefficients::{Bounds, Coefficient};
use std::path::Path;

/// Why a profile cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ProfileError {
    /// What is wrong, with its place.
    pub message: String,
}

impl From<Problems> for ProfileError {
    fn from(problems: Problems) -> Self {
        Self { message: problems.render() }
    }
}

/// Reads a profile; the second part is the SHA-256 of the file.
///
/// # Errors
///
/// [`ProfileError`]: no file, no profile, a value out of its range.
pub fn load(file: &Path) -> Result<(Profile, String), ProfileError> {
    let name = file.display().to_string();
    let text = std::fs::read(file).map_err(|error| Problems::unreadable(&name, &error))?;
    let hash = hex_of(&text);
    let text = String::from_utf8(text).map_err(|_| ProfileError {
        message: format!("error: {name}: no profile: it holds bytes that are not UTF-8"),
    })?;
    Ok((Profile::parse(&name, &text)?, hash))
}

impl Profile {
    /// Reads a profile from YAML or JSON; `file` is its name in messages.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the text.
    pub fn parse(file: &str, text: &str) -> Result<Self, Problems> {
        read_document("a profile", file, text, Self::mistakes)
    }

    /// Values that are right by their type and out of range.
    fn mistakes(&self) -> Vec<Wrong> {
        let mut found = Vec::new();
        if self.schema != SCHEMA {
            found.push(Wrong {
                path: KeyPath::of("schema"),
                message: format!("`schema` cannot be `{}`", self.schema),
                allowed: format!("`{SCHEMA}`"),
            });
        }
        let mut seen = Vec::new();
        for (at, rate) in self.time.iter().enumerate() {
            let path = |key: &str| {
                let steps = [Step::Key("time".into()), Step::Index(at), Step::Key(key.into())];
                KeyPath(steps.to_vec())
            };
            let Some(which) = Coefficient::named(&rate.name) else {
                let names = Coefficient::ALL.map(Coefficient::name).join(", ");
                let message = format!("`{}` is no coefficient", rate.name);
                found.push(Wrong { path: path("name"), message, allowed: names });
                continue;
            };
            if seen.contains(&which) {
                let message = format!("`{}` stands twice", rate.name);
                found.push(Wrong { path: path("name"), message, allowed: "each once".into() });
            }
            seen.push(which);
            let Bounds { least, most } = which.bounds();
            if !(least..=most).contains(&rate.value) {
                found.push(Wrong {
                    path: path("value"),
                    message: format!("`{}` cannot be `{}`", rate.name, rate.value),
                    allowed: format!("{least} to {most}"),
                });
            }
        }
        found
    }
}
