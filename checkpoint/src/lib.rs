//! A model's files as the engine needs them: the shape of a dense decoder, its weights by their part, the
//! tokenizer and the chat template.
//!
//! A folder from the hub (`config.json`, safetensors, `tokenizer.json`) or one GGUF file. Headers are read
//! by `core` and `catalog`; here the data is read, by range, and everything is checked before the first
//! weight is loaded.

mod error;
mod names;
mod shape;
mod stop;
mod template;
mod tensors;
mod tokenizer;

pub use error::CheckpointError;
pub use stop::{Certain, StopStrings};
pub use template::{ChatTemplate, Today, Turn};
pub use tensors::WeightFiles;
pub use tokenizer::{Around, TextStream, Tokenizer};

use std::path::{Path, PathBuf};

use plimsoll_catalog::files::{self, FindError};
use plimsoll_core::{model::config, tape::own::DecoderShape};

/// A model ready to be loaded.
#[derive(Debug)]
pub struct Checkpoint {
    /// Its shape.
    pub shape: DecoderShape,
    /// Where its weights lie; all are there and have the shape's extents.
    pub weights: WeightFiles,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template, where it has one.
    pub template: Option<ChatTemplate>,
    /// Ids that end a text, sorted.
    pub eos: Vec<u32>,
}

impl Checkpoint {
    /// Opens a folder from the hub or a `.gguf` file.
    ///
    /// # Errors
    /// [`CheckpointError`] with the file and what is wrong in it.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let (shape, weights, texts) = open_parts(path)?;
        let tokenizer = Tokenizer::open(&texts)?;
        let template = ChatTemplate::open(&texts, &tokenizer)?;
        let eos = tokenizer::end_ids(&texts, &tokenizer)?;
        Ok(Self { shape, weights, tokenizer, template, eos })
    }
}

/// Shape and weights alone: a model whose tokenizer is not needed.
///
/// # Errors
/// As [`Checkpoint::open`], but for tokenizer and template.
pub fn open_weights(path: &Path) -> Result<(DecoderShape, WeightFiles), CheckpointError> {
    let (shape, weights, _) = open_parts(path)?;
    Ok((shape, weights))
}

/// Where tokenizer and template come from.
pub(crate) enum Texts {
    /// A folder.
    Folder(PathBuf),
    /// The header of a GGUF file.
    Gguf(PathBuf, Box<plimsoll_core::model::gguf::Gguf>),
}

impl Texts {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Folder(path) | Self::Gguf(path, _) => path,
        }
    }
}

fn open_parts(path: &Path) -> Result<(DecoderShape, WeightFiles, Texts), CheckpointError> {
    if path.is_dir() {
        return open_folder(path);
    }
    let mut parts = files::gguf_layout(path)?;
    let weights = tensors::TensorIndex::gguf(&parts)?;
    let header = parts.swap_remove(0).1;
    let shape = shape::of_gguf(path, &header, &weights)?;
    let style = names::Style::gguf(&header);
    let weights = WeightFiles::check(weights, style, &shape)?;
    Ok((shape, weights, Texts::Gguf(path.to_owned(), Box::new(header))))
}

fn open_folder(path: &Path) -> Result<(DecoderShape, WeightFiles, Texts), CheckpointError> {
    let file = path.join("config.json");
    if !file.is_file() {
        return Err(FindError::EmptyFolder { path: path.to_owned() }.into());
    }
    let text = files::read_text(&file)?;
    let model = config::parse(&path.display().to_string(), &text, None)
        .map_err(|error| FindError::Config { path: file.clone(), error })?;
    let shape = shape::of_config(&file, &text, &model)?;
    let index = tensors::TensorIndex::safetensors(path)?;
    let weights = WeightFiles::check(index, names::Style::HuggingFace, &shape)?;
    Ok((shape, weights, Texts::Folder(path.to_owned())))
}
