//! Models on disk: a folder, a `config.json`, a GGUF file, or the local Hugging Face cache; then
//! the embedded catalog. Weights are exact where an index or the files' headers are there.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use plimsoll_core::{
    model::{
        config,
        detail::Model,
        error::ConfigError,
        gguf::{self, GgufError, Lists},
        parallel::ParallelError,
        safetensors::{self, SafetensorsError},
        tensors::{self, TensorInfo},
        weights::{self, Bill, WeightOptions},
    },
    units::Bytes,
};

use crate::models::{self, CatalogError};

/// Largest `config.json` or index that is read.
const TEXT_MAX: u64 = 64 << 20;
/// First part of a GGUF file that is tried, and the largest.
const GGUF_FIRST: u64 = 16 << 20;
const GGUF_MAX: u64 = 512 << 20;
/// Most files of one checkpoint.
const FILES_MAX: usize = 4096;

/// Where the caller's environment puts the Hugging Face cache.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct HubPaths {
    /// `HF_HUB_CACHE`: the hub folder itself.
    pub hub_cache: Option<PathBuf>,
    /// `HF_HOME`: its parent.
    pub hf_home: Option<PathBuf>,
    /// The user's home folder, for the default `~/.cache/huggingface`.
    pub home: Option<PathBuf>,
}

impl HubPaths {
    /// The hub folder, by the order in which `huggingface_hub` looks for it.
    #[must_use]
    pub fn hub(&self) -> Option<PathBuf> {
        self.hub_cache
            .clone()
            .or_else(|| self.hf_home.as_ref().map(|p| p.join("hub")))
            .or_else(|| self.home.as_ref().map(|p| p.join(".cache/huggingface/hub")))
    }
}

/// Why no model was found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// A file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        error: io::Error,
    },
    /// A file is larger than what is read.
    #[error("{}: {size} bytes; allowed: up to {most}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        size: u64,
        /// What is read.
        most: u64,
    },
    /// A configuration gives no geometry.
    #[error("{}: {error}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: ConfigError,
    },
    /// A GGUF file is wrong.
    #[error("{}: {error}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: GgufError,
    },
    /// An index or a header is wrong.
    #[error("{}: {error}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: SafetensorsError,
    },
    /// A folder without a configuration or a GGUF file.
    #[error("{}: no config.json and no .gguf file in this folder", path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// Neither on disk, nor in the cache, nor in the catalog.
    #[error("{error} (no such file or folder either{})", looked.as_ref().map(|p| format!(", nor in {}", p.display())).unwrap_or_default())]
    NotFound {
        /// The catalog's answer.
        error: CatalogError,
        /// The cache folder that was looked in.
        looked: Option<PathBuf>,
    },
}

/// What is known of the weights beside the configuration.
#[derive(Clone, PartialEq, Debug)]
pub enum Weights {
    /// Only what follows from the configuration.
    Computed,
    /// The total that an index states.
    Total {
        /// Bytes of all tensors.
        bytes: Bytes,
        /// The index.
        path: PathBuf,
    },
    /// Every tensor, from the files' headers.
    Tensors(Vec<TensorInfo>),
}

/// A model and where it was found.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// Its geometry.
    pub model: Model,
    /// Its weights.
    pub weights: Weights,
    /// Where its numbers come from, as printed.
    pub source: String,
    /// Parameters as published, where the catalog has them.
    pub parameters: Option<u64>,
}

impl Found {
    /// The weights of one rank, by the firmest evidence there is. An index's total includes draft
    /// layers; they are taken out in the proportion of the configuration's bill.
    ///
    /// # Errors
    /// Where the engine would refuse the division.
    pub fn bill(&self, options: &WeightOptions) -> Result<Bill, ParallelError> {
        match &self.weights {
            Weights::Computed => weights::bill(&self.model, options),
            Weights::Tensors(tensors) => tensors::bill(tensors, &self.model, options),
            Weights::Total { bytes, path } => {
                let bill = weights::bill(&self.model, options)?;
                let draft = bill.part(weights::PartKind::Draft).map_or(Bytes::ZERO, |p| p.whole);
                // The file has the draft layers or not: whichever total is nearer to its figure.
                let with = bill.whole.saturating_add(draft);
                let apart = |a: Bytes| a.0.abs_diff(bytes.0);
                let main = if apart(with) < apart(bill.whole) {
                    bytes.saturating_sub(draft)
                } else {
                    *bytes
                };
                Ok(bill.scaled_to(main, &path.display().to_string()))
            }
        }
    }
}

/// Finds a model: a path to a folder, a `config.json` or a `.gguf`; else a hub id in the cache;
/// else the catalog. `revision` is the hub's (`main` by default).
///
/// # Errors
/// `FindError` with the file and what is wrong in it; `NotFound` with near names.
pub fn find(name: &str, hub: &HubPaths, revision: &str) -> Result<Found, FindError> {
    let path = Path::new(name);
    if path.is_dir() {
        return folder(name, path);
    }
    if path.is_file() {
        return match path.extension() {
            Some(e) if e.eq_ignore_ascii_case("gguf") => gguf_file(name, path),
            _ => config_file(name, path, path.parent()),
        };
    }
    let hub = hub.hub();
    if let Some(folder_path) = hub.as_deref().and_then(|hub| snapshot(hub, name, revision))
        && let Some(found) = cached(name, &folder_path)?
    {
        return Ok(found);
    }
    match models::find(name) {
        Ok(entry) => Ok(Found {
            source: format!("catalog: {}", entry.source),
            model: entry.model,
            weights: Weights::Computed,
            parameters: entry.parameters,
        }),
        Err(error) => Err(FindError::NotFound { error, looked: hub }),
    }
}

/// A snapshot that holds a configuration or a GGUF file; `None` when it holds neither (a cache may
/// have only a tokenizer).
fn cached(name: &str, path: &Path) -> Result<Option<Found>, FindError> {
    match folder(name, path) {
        Err(FindError::EmptyFolder { .. }) => Ok(None),
        other => other.map(Some),
    }
}

fn folder(name: &str, path: &Path) -> Result<Found, FindError> {
    let config = path.join("config.json");
    if config.is_file() {
        return config_file(name, &config, Some(path));
    }
    let first = files(path, "gguf")?.into_iter().next();
    match first {
        Some(first) => gguf_file(name, &first),
        None => Err(FindError::EmptyFolder { path: path.to_owned() }),
    }
}

/// Files of a folder by extension, sorted.
fn files(folder: &Path, extension: &str) -> Result<Vec<PathBuf>, FindError> {
    let wrong = |error| FindError::Read { path: folder.to_owned(), error };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if path.extension().is_some_and(|e| e == extension) && paths.len() < FILES_MAX {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// A text file of the checkpoint, bounded.
///
/// # Errors
/// `Read` and `TooLarge`.
pub fn read_text(path: &Path) -> Result<String, FindError> {
    let wrong = |error| FindError::Read { path: path.to_owned(), error };
    let size = std::fs::metadata(path).map_err(wrong)?.len();
    if size > TEXT_MAX {
        return Err(FindError::TooLarge { path: path.to_owned(), size, most: TEXT_MAX });
    }
    std::fs::read_to_string(path).map_err(wrong)
}

fn config_file(name: &str, path: &Path, folder: Option<&Path>) -> Result<Found, FindError> {
    let text = read_text(path)?;
    let second = folder.map(|f| f.join("hf_quant_config.json")).filter(|p| p.is_file());
    let second = second.map(|p| read_text(&p)).transpose()?;
    let model = config::parse(name, &text, second.as_deref())
        .map_err(|error| FindError::Config { path: path.to_owned(), error })?;
    let weights = match folder {
        Some(folder) => checkpoint(folder)?,
        None => Weights::Computed,
    };
    let source = path.display().to_string();
    Ok(Found { model, weights, source, parameters: None })
}

/// The checkpoint's tensors when all its files are there (an index names them); else the index's
/// total; else nothing.
fn checkpoint(folder: &Path) -> Result<Weights, FindError> {
    let path = folder.join("model.safetensors.index.json");
    let index = match path.is_file() {
        true => {
            let index = safetensors::parse_index(&read_text(&path)?);
            Some(index.map_err(|error| FindError::Safetensors { path: path.clone(), error })?)
        }
        false => None,
    };
    let plain = |name: &String| !name.contains(['/', '\\']) && !name.starts_with('.');
    let paths: Vec<PathBuf> = match &index {
        Some(index) => index.files.iter().filter(|f| plain(f)).map(|f| folder.join(f)).collect(),
        None => files(folder, "safetensors")?,
    };
    if !paths.is_empty() && paths.len() <= FILES_MAX && paths.iter().all(|p| p.is_file()) {
        let mut tensors = Vec::new();
        for path in &paths {
            tensors.append(&mut header(path)?);
        }
        return Ok(Weights::Tensors(tensors));
    }
    Ok(match index.and_then(|i| i.total_size) {
        Some(bytes) => Weights::Total { bytes: Bytes(bytes), path },
        None => Weights::Computed,
    })
}

/// The tensors of one safetensors file; only its header is read.
fn header(path: &Path) -> Result<Vec<TensorInfo>, FindError> {
    Ok(safetensors_layout(path)?.tensors.into_iter().map(|tensor| tensor.info).collect())
}

/// Tensors of one safetensors file, and where they lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SafetensorsLayout {
    /// In the order of the header.
    pub tensors: Vec<safetensors::Placed>,
    /// Offset of the first byte of data in the file.
    pub data_start: u64,
}

/// The tensors of one safetensors file and their places; only its header is read.
///
/// # Errors
/// `Read` and `Safetensors` with the file.
pub fn safetensors_layout(path: &Path) -> Result<SafetensorsLayout, FindError> {
    let wrong = |error| FindError::Read { path: path.to_owned(), error };
    let bad = |error| FindError::Safetensors { path: path.to_owned(), error };
    let mut file = File::open(path).map_err(wrong)?;
    let mut bytes = Vec::new();
    (&mut file).take(8).read_to_end(&mut bytes).map_err(wrong)?;
    if let Some(first) = bytes.first_chunk::<8>() {
        let end = safetensors::header_end(*first).map_err(bad)?;
        file.take(end - 8).read_to_end(&mut bytes).map_err(wrong)?;
    }
    let tensors = safetensors::parse_placed(&bytes).map_err(bad)?;
    Ok(SafetensorsLayout { tensors, data_start: bytes.len() as u64 })
}

/// The safetensors files of a checkpoint: those that its index names, else all of the folder, sorted.
///
/// # Errors
/// `Read`, `TooLarge` and `Safetensors` of folder and index.
pub fn safetensors_files(folder: &Path) -> Result<Vec<PathBuf>, FindError> {
    let path = folder.join("model.safetensors.index.json");
    if !path.is_file() {
        return files(folder, "safetensors");
    }
    let index = safetensors::parse_index(&read_text(&path)?);
    let index = index.map_err(|error| FindError::Safetensors { path, error })?;
    let plain = |name: &&String| !name.contains(['/', '\\']) && !name.starts_with('.');
    Ok(index.files.iter().filter(plain).take(FILES_MAX).map(|f| folder.join(f)).collect())
}

/// A GGUF file, or all parts of a split one (`-00001-of-00003.gguf`).
fn gguf_file(name: &str, path: &Path) -> Result<Found, FindError> {
    let mut file = gguf_header(path, Lists::Count)?;
    for part in other_parts(path) {
        file.tensors.append(&mut gguf_header(&part, Lists::Count)?.tensors);
    }
    let model = gguf::model(name, &file)
        .map_err(|error| FindError::Config { path: path.to_owned(), error })?;
    let source = path.display().to_string();
    Ok(Found { model, weights: Weights::Tensors(file.tensors), source, parameters: None })
}

fn other_parts(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(at) = name.find("-00001-of-") else { return Vec::new() };
    let count = name.get(at + 10..at + 15).and_then(|n| n.parse::<usize>().ok()).unwrap_or(1);
    let part =
        |n: usize| path.with_file_name(name.replacen("-00001-of-", &format!("-{n:05}-of-"), 1));
    (2..=count.min(FILES_MAX)).map(part).collect()
}

/// The headers of a GGUF file and, of a split one, of its other parts: vocabulary and merges are kept.
///
/// # Errors
/// `Read` and `Gguf` with the file.
pub fn gguf_layout(path: &Path) -> Result<Vec<(PathBuf, gguf::Gguf)>, FindError> {
    let mut parts = vec![(path.to_owned(), gguf_header(path, Lists::Keep)?)];
    for part in other_parts(path) {
        let header = gguf_header(&part, Lists::Count)?;
        parts.push((part, header));
    }
    Ok(parts)
}

/// Reads as much of the file as its header needs.
fn gguf_header(path: &Path, lists: Lists) -> Result<gguf::Gguf, FindError> {
    let wrong = |error| FindError::Read { path: path.to_owned(), error };
    let mut size = GGUF_FIRST;
    loop {
        let mut bytes = Vec::new();
        File::open(path).map_err(wrong)?.take(size).read_to_end(&mut bytes).map_err(wrong)?;
        match gguf::parse_lists(&bytes, lists) {
            Err(GgufError::Truncated { .. }) if bytes.len() as u64 == size && size < GGUF_MAX => {
                size *= 4;
            }
            other => {
                return other.map_err(|error| FindError::Gguf { path: path.to_owned(), error });
            }
        }
    }
}

/// The snapshot folder of `hub_id` in the cache: the one that `refs/<revision>` names, else the
/// revision's own folder. `None` when it is not there or the id is not `org/name` (or `name`).
#[must_use]
pub fn snapshot(hub: &Path, hub_id: &str, revision: &str) -> Option<PathBuf> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let parts: Vec<&str> = hub_id.split('/').collect();
    let named = |p: &&str| !p.is_empty() && !p.starts_with('.') && p.chars().all(plain);
    if parts.len() > 2 || !parts.iter().all(named) || revision.contains("..") {
        return None;
    }
    let model = hub.join(format!("models--{}", parts.join("--")));
    let commit = std::fs::read_to_string(model.join("refs").join(revision));
    let commit = commit.map_or_else(|_| revision.to_owned(), |text| text.trim().to_owned());
    if commit.is_empty() || commit.contains("..") {
        return None;
    }
    let folder = model.join("snapshots").join(commit);
    folder.is_dir().then_some(folder)
}
