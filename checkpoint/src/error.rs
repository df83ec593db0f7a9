//! Why a checkpoint cannot be used. Every message names the file.

use std::{io, path::PathBuf};

use plimsoll_catalog::files::FindError;
use plimsoll_core::tape::own::{Extent, ShapeError, WeightId};

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Configuration, index or header.
    #[error(transparent)]
    Files(#[from] FindError),
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        error: io::Error,
    },
    /// An architecture that is sized but not executed.
    #[error(
        "{}: architecture `{}` is not executed (nearest that is: {}); executed: {known}",
        path.display(), shown(architecture), nearest.unwrap_or("none")
    )]
    Architecture {
        /// The file.
        path: PathBuf,
        /// As named there.
        architecture: String,
        /// The nearest name that is executed.
        nearest: Option<&'static str>,
        /// All names that are executed.
        known: String,
    },
    /// A value that execution does not know.
    #[error("{}: `{key}` is {}; allowed: {allowed}", path.display(), shown(value))]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// As written, shortened.
        value: String,
        /// What would be right.
        allowed: String,
    },
    /// The numbers do not make a decoder.
    #[error("{}: {error}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: ShapeError,
    },
    /// A tensor that the shape needs is not there.
    #[error(
        "{}: tensor `{name}` is missing{}", path.display(),
        near.as_ref().map(|n| format!("; `{}` is there, is it meant?", shown(n))).unwrap_or_default()
    )]
    MissingTensor {
        /// File or folder.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The nearest name that is there and means nothing else.
        near: Option<String>,
    },
    /// A tensor of another shape than the configuration gives it.
    #[error("{}: tensor `{name}` has shape {found:?}; the configuration gives it {expected}", path.display())]
    TensorShape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// By the configuration.
        expected: Extent,
        /// By the header, rows first.
        found: Vec<u64>,
    },
    /// A tensor stored in a way that is not read.
    #[error("{}: tensor `{name}` is stored as {}; read are: {allowed}", path.display(), shown(found))]
    TensorType {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// By the header.
        found: String,
        /// What is read.
        allowed: String,
    },
    /// The file ends before the tensor does.
    #[error("{}: truncated: tensor `{}` ends at byte {end}, the file at {size}", path.display(), shown(name))]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its end in the file.
        end: u64,
        /// The file's size.
        size: u64,
    },
    /// Two files hold a tensor of one name.
    #[error("{}: tensor `{}` is in {} too", path.display(), shown(name), other.display())]
    Twice {
        /// The second file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The first file.
        other: PathBuf,
    },
    /// A weight that the model does not have was asked for: a mistake of the caller.
    #[error("the model has no {0}")]
    NoWeight(WeightId),
    /// No tokenizer.
    #[error("{}: no tokenizer: {needed} is missing", path.display())]
    NoTokenizer {
        /// File or folder.
        path: PathBuf,
        /// What was looked for.
        needed: &'static str,
    },
    /// A tokenizer that cannot be used.
    #[error("{}: {}", path.display(), shown(message))]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// A text cannot be encoded, or ids not decoded.
    #[error("tokenizer: {}", shown(.0))]
    Encode(String),
    /// A chat template that cannot be read or rendered.
    #[error("chat template: {}", shown(.0))]
    Template(String),
}

/// A piece of a file for a message: shortened, control characters escaped.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(200) {
        if c.is_control() {
            out.extend(c.escape_debug());
        } else {
            out.push(c);
        }
    }
    out
}
