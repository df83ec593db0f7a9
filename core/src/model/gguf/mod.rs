//! GGUF files, versions 2 and 3: metadata and tensor list; the data itself is not read.
//!
//! Every length is checked against the bytes that are there before anything is allocated.

mod geometry;
mod types;

pub use geometry::model;

use super::tensors::TensorInfo;

/// Most dimensions of a tensor; ggml's own limit.
const DIMENSIONS_MAX: u32 = 4;
/// Longest list of numbers that is kept; of longer ones and of texts only the length is.
const LIST_MAX: u64 = 4096;
/// Deepest list of lists.
const DEPTH_MAX: u32 = 2;

/// Why bytes are not a GGUF header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GgufError {
    /// The file does not start with `GGUF`.
    #[error("not a GGUF file: it starts with {found:02x?}, not \"GGUF\"")]
    Magic {
        /// First bytes.
        found: Vec<u8>,
    },
    /// A version without a rule.
    #[error("GGUF version {found} at offset 4; allowed: 2, 3 (little endian)")]
    Version {
        /// As read.
        found: u32,
    },
    /// The file ends before something that it announces.
    #[error("truncated at offset {offset}: {what} needs {needed} bytes, {left} are left")]
    Truncated {
        /// Where it was read.
        offset: u64,
        /// What was read.
        what: &'static str,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// A value out of range.
    #[error("offset {offset}: {what} is {value}; allowed: {allowed}")]
    Value {
        /// Where it was read.
        offset: u64,
        /// What was read.
        what: &'static str,
        /// As read.
        value: u64,
        /// What would be right.
        allowed: &'static str,
    },
    /// A name or text is not UTF-8.
    #[error("offset {offset}: {what} is not UTF-8")]
    Text {
        /// Where it was read.
        offset: u64,
        /// What was read.
        what: &'static str,
    },
}

/// A metadata value.
#[derive(Clone, PartialEq, Debug)]
pub enum MetaValue {
    /// Any unsigned integer, and signed ones that are not negative.
    Unsigned(u64),
    /// A negative integer.
    Negative(i64),
    /// A float.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    Text(String),
    /// A list of numbers of at most 4,096.
    Numbers(Vec<u64>),
    /// Any other list: its length.
    List(u64),
    /// A list of texts; only where lists are kept.
    Texts(Vec<String>),
    /// A list of whole numbers of any length and sign; only where lists are kept.
    Integers(Vec<i64>),
}

/// What becomes of long lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lists {
    /// Their length is kept.
    Count,
    /// Texts and whole numbers are kept: a vocabulary and its merges.
    Keep,
}

/// Where a tensor's data lies, and how it is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placed {
    /// ggml's name of the type.
    pub kind: &'static str,
    /// First byte, counted from [`Gguf::data_start`].
    pub start: u64,
}

/// What a GGUF header says.
#[derive(Clone, PartialEq, Debug)]
pub struct Gguf {
    /// 2 or 3.
    pub version: u32,
    /// Keys and values in file order.
    pub metadata: Vec<(String, MetaValue)>,
    /// Tensors in file order, rows first.
    pub tensors: Vec<TensorInfo>,
    /// Type and place of each tensor, in the same order.
    pub placed: Vec<Placed>,
    /// Names of the ggml types in use, in the order in which they first occur.
    pub types: Vec<&'static str>,
    /// Offset of the end of the header, before alignment.
    pub header_end: u64,
}

impl Gguf {
    /// The value of a key; the first of equal ones.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&MetaValue> {
        self.metadata.iter().find(|(k, _)| k == key).map(|(_, v)| v)
    }

    /// Offset of the first tensor's data: the header's end, aligned as `general.alignment` says (32).
    #[must_use]
    pub fn data_start(&self) -> u64 {
        let unit = match self.get("general.alignment") {
            Some(MetaValue::Unsigned(n)) if (1..=1 << 20).contains(n) => *n,
            _ => 32,
        };
        self.header_end.div_ceil(unit) * unit
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().fold(0, |a, t| a.saturating_add(t.bytes))
    }
}

/// Reads the header at the start of `bytes`; the tensor data need not be there. A caller that reads
/// a part of the file reads more when the answer is `Truncated`.
///
/// # Errors
/// `GgufError` with the offset.
pub fn parse(bytes: &[u8]) -> Result<Gguf, GgufError> {
    parse_lists(bytes, Lists::Count)
}

/// As [`parse`]; with [`Lists::Keep`] the vocabulary is kept too.
///
/// # Errors
/// As [`parse`].
pub fn parse_lists(bytes: &[u8], lists: Lists) -> Result<Gguf, GgufError> {
    let mut reader = Reader { bytes, at: 0, lists };
    let magic = bytes.get(..4).unwrap_or(bytes);
    if magic != b"GGUF" {
        return Err(GgufError::Magic { found: magic.to_vec() });
    }
    reader.at = 4;
    let version = reader.u32("version")?;
    if !matches!(version, 2 | 3) {
        return Err(GgufError::Version { found: version });
    }
    // The smallest tensor entry: name length, dimension count, type, offset; the smallest pair: key
    // length, type, one byte.
    let tensor_count = reader.count("tensor count", 24)?;
    let pair_count = reader.count("metadata count", 13)?;
    let mut metadata = Vec::new();
    for _ in 0..pair_count {
        let key = reader.text("metadata key")?;
        let kind = reader.u32("metadata type")?;
        metadata.push((key, reader.value(kind, 0)?));
    }
    let mut tensors = Vec::new();
    let mut placed = Vec::new();
    let mut types = Vec::new();
    for _ in 0..tensor_count {
        let (tensor, place) = reader.tensor()?;
        if !types.contains(&place.kind) {
            types.push(place.kind);
        }
        tensors.push(tensor);
        placed.push(place);
    }
    Ok(Gguf { version, metadata, tensors, placed, types, header_end: reader.at as u64 })
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    lists: Lists,
}

impl<'a> Reader<'a> {
    fn left(&self) -> u64 {
        self.bytes.len().saturating_sub(self.at) as u64
    }

    fn take(&mut self, what: &'static str, needed: u64) -> Result<&'a [u8], GgufError> {
        let end = usize::try_from(needed).ok().and_then(|n| self.at.checked_add(n));
        let slice = end.and_then(|end| self.bytes.get(self.at..end));
        let Some(slice) = slice else {
            let (offset, left) = (self.at as u64, self.left());
            return Err(GgufError::Truncated { offset, what, needed, left });
        };
        self.at += slice.len();
        Ok(slice)
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        let bytes = self.take(what, 4)?;
        Ok(u32::from_le_bytes(bytes.try_into().unwrap_or_default()))
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        let bytes = self.take(what, 8)?;
        Ok(u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
    }

    /// A count of things of at least `least` bytes, which must all be there.
    fn count(&mut self, what: &'static str, least: u64) -> Result<u64, GgufError> {
        let offset = self.at as u64;
        let count = self.u64(what)?;
        let needed = count.checked_mul(least).filter(|n| *n < 1 << 48);
        let Some(needed) = needed else {
            let allowed = "what a file of 2^48 bytes can hold";
            return Err(GgufError::Value { offset, what, value: count, allowed });
        };
        if needed > self.left() {
            let left = self.left();
            return Err(GgufError::Truncated { offset, what, needed, left });
        }
        Ok(count)
    }

    fn text(&mut self, what: &'static str) -> Result<String, GgufError> {
        let offset = self.at as u64;
        let length = self.u64(what)?;
        let bytes = self.take(what, length)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(GgufError::Text { offset, what }),
        }
    }

    fn value(&mut self, kind: u32, depth: u32) -> Result<MetaValue, GgufError> {
        let what = "metadata value";
        Ok(match kind {
            0..=5 | 10 | 11 => self.integer(kind)?,
            6 => {
                let bits = self.u32(what)?;
                MetaValue::Float(f64::from(f32::from_bits(bits)))
            }
            7 => MetaValue::Bool(self.take(what, 1)?.first().is_some_and(|b| *b != 0)),
            8 => MetaValue::Text(self.text(what)?),
            9 => self.list(depth)?,
            12 => MetaValue::Float(f64::from_bits(self.u64(what)?)),
            other => {
                let offset = (self.at as u64).saturating_sub(4);
                let what = "metadata type";
                let allowed = "0 to 12";
                return Err(GgufError::Value { offset, what, value: u64::from(other), allowed });
            }
        })
    }

    fn integer(&mut self, kind: u32) -> Result<MetaValue, GgufError> {
        let size = match kind {
            0 | 1 => 1,
            2 | 3 => 2,
            4 | 5 => 4,
            _ => 8,
        };
        let signed = matches!(kind, 1 | 3 | 5 | 11);
        let bytes = self.take("metadata value", size)?;
        let mut wide = [0; 8];
        for (to, from) in wide.iter_mut().zip(bytes) {
            *to = *from;
        }
        let raw = u64::from_le_bytes(wide);
        let spare = 64 - size as u32 * 8;
        let extended = ((raw << spare) as i64) >> spare;
        Ok(if signed && extended < 0 {
            MetaValue::Negative(extended)
        } else {
            MetaValue::Unsigned(raw)
        })
    }

    fn list(&mut self, depth: u32) -> Result<MetaValue, GgufError> {
        let offset = self.at as u64;
        let kind = self.u32("list type")?;
        if kind == 9 && depth >= DEPTH_MAX {
            let (what, allowed) = ("depth of lists", "at most 2");
            return Err(GgufError::Value { offset, what, value: u64::from(depth), allowed });
        }
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            8 | 10 | 11 => 8,
            9 => 12,
            _ => 4,
        };
        let count = self.count("list length", least)?;
        if self.lists == Lists::Keep && matches!(kind, 0..=5 | 8 | 10 | 11) && depth == 0 {
            return self.kept(kind, count);
        }
        let keep = count <= LIST_MAX && matches!(kind, 0..=5 | 10 | 11);
        let mut numbers = Vec::new();
        for _ in 0..count {
            match self.value(kind, depth + 1)? {
                MetaValue::Unsigned(n) if keep => numbers.push(n),
                _ => {}
            }
        }
        // A list with negative numbers is kept as its length, like lists of texts.
        Ok(if keep && numbers.len() as u64 == count {
            MetaValue::Numbers(numbers)
        } else {
            MetaValue::List(count)
        })
    }

    /// All elements of a list of texts or whole numbers.
    fn kept(&mut self, kind: u32, count: u64) -> Result<MetaValue, GgufError> {
        let (mut texts, mut integers) = (Vec::new(), Vec::new());
        for _ in 0..count {
            match self.value(kind, 1)? {
                MetaValue::Text(text) => texts.push(text),
                MetaValue::Unsigned(n) => integers.push(i64::try_from(n).unwrap_or(i64::MAX)),
                MetaValue::Negative(n) => integers.push(n),
                _ => {}
            }
        }
        Ok(if kind == 8 {
            MetaValue::Texts(texts)
        } else if integers.len() as u64 <= LIST_MAX && integers.iter().all(|n| *n >= 0) {
            MetaValue::Numbers(integers.into_iter().map(i64::unsigned_abs).collect())
        } else {
            MetaValue::Integers(integers)
        })
    }

    fn tensor(&mut self) -> Result<(TensorInfo, Placed), GgufError> {
        let name = self.text("tensor name")?;
        let offset = self.at as u64;
        let count = self.u32("dimension count")?;
        if count > DIMENSIONS_MAX {
            let (what, allowed) = ("dimension count", "0 to 4");
            return Err(GgufError::Value { offset, what, value: u64::from(count), allowed });
        }
        let mut shape = Vec::new();
        for _ in 0..count {
            shape.push(self.u64("dimension")?);
        }
        let offset = self.at as u64;
        let id = self.u32("tensor type")?;
        let kind = types::find(id).ok_or(GgufError::Value {
            offset,
            what: "tensor type",
            value: u64::from(id),
            allowed: "a ggml type: 0-3, 6-30, 34, 35, 39, 40",
        })?;
        let start = self.u64("tensor offset")?;
        let columns = shape.first().copied().unwrap_or(1);
        let rows = shape.iter().skip(1).try_fold(1_u64, |a, b| a.checked_mul(*b));
        let blocks = rows.and_then(|rows| rows.checked_mul(columns.div_ceil(kind.block)));
        let bytes = blocks.and_then(|b| b.checked_mul(kind.bytes)).filter(|b| *b < 1 << 60);
        let bytes = bytes.ok_or(GgufError::Value {
            offset,
            what: "tensor columns",
            value: columns,
            allowed: "a tensor below 2^60 bytes",
        })?;
        shape.reverse();
        // Quantised and float32 tensors are used as they are.
        let placed = Placed { kind: kind.name, start };
        Ok((TensorInfo { name, shape, bytes, float32: false }, placed))
    }
}

#[cfg(test)]
mod tests;
