//! Where the tensors lie, and reading one by its range.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use plimsoll_catalog::files;
use plimsoll_core::{
    model::{
        encoding::{ENCODINGS, Encoding},
        gguf::Gguf,
        near,
    },
    tape::own::{DecoderShape, Extent, Matrix, Role, WeightId, WeightSource},
};

use crate::{error::CheckpointError, names::Style};

/// One tensor in a file.
#[derive(Clone, Debug)]
struct Place {
    file: usize,
    /// Storage as the header names it.
    kind: String,
    shape: Vec<u64>,
    start: u64,
    bytes: u64,
}

/// All tensors of a checkpoint by name.
#[derive(Debug)]
pub(crate) struct TensorIndex {
    /// File or folder, for messages.
    root: PathBuf,
    files: Vec<PathBuf>,
    tensors: BTreeMap<String, Place>,
}

impl TensorIndex {
    pub(crate) fn safetensors(folder: &Path) -> Result<Self, CheckpointError> {
        let paths = files::safetensors_files(folder)?;
        let mut index =
            Self { root: folder.to_owned(), files: Vec::new(), tensors: BTreeMap::new() };
        for path in paths {
            let layout = files::safetensors_layout(&path)?;
            let size = index.file(&path)?;
            for tensor in layout.tensors {
                let place = Place {
                    file: index.files.len() - 1,
                    kind: tensor.dtype,
                    shape: tensor.info.shape,
                    start: layout.data_start.saturating_add(tensor.start),
                    bytes: tensor.info.bytes,
                };
                index.put(tensor.info.name, place, size)?;
            }
        }
        Ok(index)
    }

    pub(crate) fn gguf(parts: &[(PathBuf, Gguf)]) -> Result<Self, CheckpointError> {
        let root = parts.first().map(|p| p.0.clone()).unwrap_or_default();
        let mut index = Self { root, files: Vec::new(), tensors: BTreeMap::new() };
        for (path, header) in parts {
            let size = index.file(path)?;
            for (tensor, placed) in header.tensors.iter().zip(&header.placed) {
                let place = Place {
                    file: index.files.len() - 1,
                    kind: placed.kind.to_owned(),
                    shape: tensor.shape.clone(),
                    start: header.data_start().saturating_add(placed.start),
                    bytes: tensor.bytes,
                };
                index.put(tensor.name.clone(), place, size)?;
            }
        }
        Ok(index)
    }

    /// Adds a file; its size.
    fn file(&mut self, path: &Path) -> Result<u64, CheckpointError> {
        let wrong = |error| CheckpointError::Read { path: path.to_owned(), error };
        let size = std::fs::metadata(path).map_err(wrong)?.len();
        self.files.push(path.to_owned());
        Ok(size)
    }

    fn put(&mut self, name: String, place: Place, size: u64) -> Result<(), CheckpointError> {
        let path = self.files[place.file].clone();
        let end = place.start.saturating_add(place.bytes);
        if end > size {
            return Err(CheckpointError::Truncated { path, name, end, size });
        }
        if let Some(first) = self.tensors.get(&name) {
            let other = self.files[first.file].clone();
            return Err(CheckpointError::Twice { path, name, other });
        }
        self.tensors.insert(name, place);
        Ok(())
    }

    /// Whether there is a tensor of that name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// A small tensor as float32; `None` when it is not there.
    pub(crate) fn vector(&self, name: &str) -> Result<Option<Vec<f32>>, CheckpointError> {
        let Some(place) = self.tensors.get(name) else { return Ok(None) };
        let columns = place.shape.iter().fold(1_u64, |a, b| a.saturating_mul(*b));
        let matrix = self.checked(name, Extent { rows: 1, columns })?;
        let bytes = self.read(place)?;
        let mut out = vec![0.0; columns as usize];
        matrix.decode(&bytes, &mut out);
        Ok(Some(out))
    }

    /// A missing tensor's error with the nearest name of a tensor that no other weight is.
    fn hint(&self, error: CheckpointError, style: Style, shape: &DecoderShape) -> CheckpointError {
        let CheckpointError::MissingTensor { path, name, .. } = error else { return error };
        let known: BTreeSet<String> = shape.weights().map(|id| style.name(id)).collect();
        let names = self.tensors.keys().filter(|name| !known.contains(*name));
        let near = near::nearest(&name, names.map(String::as_str), 80).map(str::to_owned);
        CheckpointError::MissingTensor { path, name, near }
    }

    /// The encoding of a tensor that must be there with that extent.
    fn checked(&self, name: &str, expected: Extent) -> Result<Encoding, CheckpointError> {
        let Some(place) = self.tensors.get(name) else {
            let (path, name) = (self.root.clone(), name.to_owned());
            return Err(CheckpointError::MissingTensor { path, name, near: None });
        };
        let path = || self.files[place.file].clone();
        let same = match place.shape.as_slice() {
            [columns] => expected.rows == 1 && *columns == expected.columns,
            [rows, columns] => *rows == expected.rows && *columns == expected.columns,
            _ => false,
        };
        if !same {
            let (name, found) = (name.to_owned(), place.shape.clone());
            return Err(CheckpointError::TensorShape { path: path(), name, expected, found });
        }
        let encoding = Encoding::named(&place.kind);
        let row = |e: Encoding| e.row_bytes(usize::try_from(expected.columns).ok()?);
        let fits = |e: &Encoding| {
            row(*e).and_then(|b| (b as u64).checked_mul(expected.rows)) == Some(place.bytes)
        };
        encoding.filter(fits).ok_or_else(|| CheckpointError::TensorType {
            path: path(),
            name: name.to_owned(),
            found: place.kind.clone(),
            allowed: ENCODINGS.map(Encoding::name).join(", "),
        })
    }

    fn read(&self, place: &Place) -> Result<Vec<u8>, CheckpointError> {
        let path = &self.files[place.file];
        let wrong = |error| CheckpointError::Read { path: path.clone(), error };
        let mut file = File::open(path).map_err(wrong)?;
        file.seek(SeekFrom::Start(place.start)).map_err(wrong)?;
        let mut bytes = vec![0; place.bytes as usize];
        file.read_exact(&mut bytes).map_err(wrong)?;
        Ok(bytes)
    }
}

/// The weights of a checkpoint, checked against its shape; read one by one.
#[derive(Debug)]
pub struct WeightFiles {
    index: TensorIndex,
    style: Style,
    shape: DecoderShape,
}

impl WeightFiles {
    /// Checks that every weight of the shape is there, with its extent and in a known encoding.
    pub(crate) fn check(
        index: TensorIndex,
        style: Style,
        shape: &DecoderShape,
    ) -> Result<Self, CheckpointError> {
        for id in shape.weights() {
            if let Some(extent) = shape.extent(id) {
                index.checked(&style.name(id), extent).map_err(|e| index.hint(e, style, shape))?;
            }
        }
        Ok(Self { index, style, shape: shape.clone() })
    }

    /// Bytes of all weights as stored.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        let places = self
            .shape
            .weights()
            .filter_map(|id| self.index.tensors.get(&self.style.name(id)).map(|place| place.bytes));
        places.fold(0, u64::saturating_add)
    }

    /// The encoding of a weight; `None` for one that the model does not have.
    #[must_use]
    pub fn encoding(&self, id: WeightId) -> Option<Encoding> {
        let extent = self.shape.extent(id)?;
        self.index.checked(&self.style.name(id), extent).ok()
    }
}

impl WeightSource for WeightFiles {
    type Error = CheckpointError;

    fn weight(&mut self, id: WeightId) -> Result<Matrix, CheckpointError> {
        let extent = self.shape.extent(id).ok_or(CheckpointError::NoWeight(id))?;
        let name = self.style.name(id);
        let encoding = self.index.checked(&name, extent)?;
        let place = self.index.tensors.get(&name).ok_or(CheckpointError::NoWeight(id))?;
        let bytes = self.index.read(place)?;
        let rotated = matches!(id.role, Role::Query | Role::Key | Role::QueryBias | Role::KeyBias);
        let bytes = match self.style {
            Style::GgmlInterleaved if rotated => {
                let head = self.shape.head_dim as usize;
                let rows = extent.rows.max(if extent.rows == 1 { extent.columns } else { 1 });
                halves(&bytes, bytes.len() / rows as usize, head)
            }
            _ => bytes,
        };
        Ok(Matrix { extent, encoding, bytes })
    }
}

/// Rows of heads of `head` rows each, whose halves were interleaved, as they were before.
fn halves(bytes: &[u8], row: usize, head: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for rows in bytes.chunks(row * head) {
        for half in 0..2 {
            for i in 0..head / 2 {
                let at = (2 * i + half) * row;
                out.extend_from_slice(rows.get(at..at + row).unwrap_or_default());
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_undo_the_converter() {
        // The converter on one head of six rows: (2, 3) becomes (3, 2).
        let interleaved = [0, 3, 1, 4, 2, 5];
        assert_eq!(halves(&interleaved, 1, 6), [0, 1, 2, 3, 4, 5]);
        assert_eq!(halves(&[0, 9, 1, 8, 2, 7, 3, 6], 2, 2), [0, 9, 1, 8, 2, 7, 3, 6]);
    }
}
