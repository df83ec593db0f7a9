//! Safetensors files: the index of a sharded checkpoint and the header of one file.
//!
//! Format: 8 bytes of header length (little endian), the header as JSON, then the data.

use serde_json::{Map, Value};

use super::{error::shown, tensors::TensorInfo};

/// Longest header that is read; the format's own limit.
pub const HEADER_MAX: u64 = 100_000_000;
/// Most dimensions of a tensor.
const DIMENSIONS_MAX: usize = 16;

/// Why a file gives no tensors.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SafetensorsError {
    /// Fewer bytes than the header says.
    #[error("truncated: the header needs {needed} bytes, {found} are there")]
    Truncated {
        /// Bytes of length and header.
        needed: u64,
        /// Bytes given.
        found: u64,
    },
    /// The header length is out of range.
    #[error("header length at offset 0 is {length}; allowed: 2 to {HEADER_MAX}")]
    Length {
        /// As read.
        length: u64,
    },
    /// Not JSON, or not an object of objects.
    #[error("not a safetensors header or index: {message}")]
    Json {
        /// What is wrong and where.
        message: String,
    },
    /// A tensor's entry is wrong.
    #[error("tensor `{}`: `{key}` is {}; allowed: {allowed}", shown(name), shown(value))]
    Tensor {
        /// Its name.
        name: String,
        /// The key.
        key: &'static str,
        /// As written, shortened.
        value: String,
        /// What would be right.
        allowed: &'static str,
    },
}

/// A tensor and where its data lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placed {
    /// Name, shape, bytes.
    pub info: TensorInfo,
    /// As the header names it: `F32`, `BF16`, …
    pub dtype: String,
    /// First byte, counted from the end of the header.
    pub start: u64,
}

/// The index of a checkpoint in several files.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Index {
    /// `metadata.total_size`: bytes of all tensors. Some checkpoints leave it out.
    pub total_size: Option<u64>,
    /// Tensors.
    pub tensors: u64,
    /// Files, sorted, each once.
    pub files: Vec<String>,
}

/// Reads `model.safetensors.index.json`.
///
/// # Errors
/// `Json` when it is not an object with a `weight_map` of texts; `Tensor` on a bad entry.
pub fn parse_index(text: &str) -> Result<Index, SafetensorsError> {
    let root = json(text.as_bytes())?;
    let total_size = match root.get("metadata").and_then(|m| m.get("total_size")) {
        None | Some(Value::Null) => None,
        Some(value) => Some(size_of(value).ok_or_else(|| SafetensorsError::Tensor {
            name: "metadata".to_owned(),
            key: "total_size",
            value: shorten(value),
            allowed: "a whole number of bytes below 2^60",
        })?),
    };
    let Some(Value::Object(map)) = root.get("weight_map") else {
        let message = "`weight_map` is missing or not an object".to_owned();
        return Err(SafetensorsError::Json { message });
    };
    let mut files = Vec::new();
    for (name, file) in map {
        let Some(file) = file.as_str() else {
            return Err(SafetensorsError::Tensor {
                name: name.clone(),
                key: "weight_map",
                value: shorten(file),
                allowed: "a file name",
            });
        };
        files.push(file.to_owned());
    }
    files.sort_unstable();
    files.dedup();
    Ok(Index { total_size, tensors: map.len() as u64, files })
}

/// A float is accepted: some tools write the total as one.
fn size_of(value: &Value) -> Option<u64> {
    let whole = value.as_u64().or_else(|| {
        value.as_f64().filter(|f| (0.0..1.15e18).contains(f)).map(|f| f.round() as u64)
    });
    whole.filter(|n| *n < 1 << 60)
}

/// Bytes that must be read to have the whole header: 8 plus its length.
///
/// # Errors
/// `Length` out of range.
pub fn header_end(first: [u8; 8]) -> Result<u64, SafetensorsError> {
    let length = u64::from_le_bytes(first);
    if (2..=HEADER_MAX).contains(&length) {
        Ok(8 + length)
    } else {
        Err(SafetensorsError::Length { length })
    }
}

/// Reads the header at the start of `bytes`; the data after it need not be there.
///
/// # Errors
/// `Truncated`, `Length`, `Json`, and `Tensor` for an unknown dtype, a shape that is too large, or
/// offsets that do not fit the shape.
pub fn parse(bytes: &[u8]) -> Result<Vec<TensorInfo>, SafetensorsError> {
    Ok(parse_placed(bytes)?.into_iter().map(|tensor| tensor.info).collect())
}

/// As [`parse`], with where the data of each tensor lies and its dtype.
///
/// # Errors
/// As [`parse`].
pub fn parse_placed(bytes: &[u8]) -> Result<Vec<Placed>, SafetensorsError> {
    let found = bytes.len() as u64;
    let Some(first) = bytes.first_chunk::<8>() else {
        return Err(SafetensorsError::Truncated { needed: 8, found });
    };
    let needed = header_end(*first)?;
    let header = usize::try_from(needed).ok().and_then(|end| bytes.get(8..end));
    let header = header.ok_or(SafetensorsError::Truncated { needed, found })?;
    let root = json(header)?;
    let entries = root.iter().filter(|(name, _)| *name != "__metadata__");
    entries.map(|(name, value)| tensor(name, value)).collect()
}

fn json(bytes: &[u8]) -> Result<Map<String, Value>, SafetensorsError> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(SafetensorsError::Json { message: "not an object".to_owned() }),
        Err(error) => Err(SafetensorsError::Json { message: error.to_string() }),
    }
}

fn shorten(value: &Value) -> String {
    value.to_string().chars().take(60).collect()
}

/// Bits of one element.
fn bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F64" | "I64" | "U64" | "C64" => 64,
        "F32" | "I32" | "U32" => 32,
        "F16" | "BF16" | "I16" | "U16" => 16,
        "I8" | "U8" | "BOOL" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => 8,
        "F6_E2M3" | "F6_E3M2" => 6,
        "F4" => 4,
        _ => return None,
    })
}

fn tensor(name: &str, value: &Value) -> Result<Placed, SafetensorsError> {
    let wrong = |key: &'static str, allowed: &'static str| SafetensorsError::Tensor {
        name: name.chars().take(200).collect(),
        key,
        value: value.get(key).map_or_else(|| "missing".to_owned(), shorten),
        allowed,
    };
    let dtype = value.get("dtype").and_then(Value::as_str);
    let each = dtype.and_then(bits).ok_or_else(|| wrong("dtype", "a safetensors dtype"))?;
    let dims = value.get("shape").and_then(Value::as_array);
    let dims = dims.filter(|d| d.len() <= DIMENSIONS_MAX);
    let shape: Option<Vec<u64>> = dims.and_then(|d| d.iter().map(Value::as_u64).collect());
    let shape = shape.ok_or_else(|| wrong("shape", "a list of at most 16 whole numbers"))?;
    let elements = shape.iter().try_fold(1_u64, |a, b| a.checked_mul(*b));
    let bytes = elements.and_then(|n| n.checked_mul(each)).map(|bits| bits.div_ceil(8));
    let bytes = bytes.filter(|b| *b < 1 << 60);
    let bytes = bytes.ok_or_else(|| wrong("shape", "below 2^60 bytes"))?;
    let offsets = value.get("data_offsets").and_then(Value::as_array);
    let ends = offsets.and_then(|o| match o.as_slice() {
        [a, b] => Some((a.as_u64()?, b.as_u64()?)),
        _ => None,
    });
    let start = match ends {
        Some((start, end)) if end.checked_sub(start) == Some(bytes) => start,
        _ => return Err(wrong("data_offsets", "start and end, apart by the shape's bytes")),
    };
    let float32 = dtype == Some("F32");
    let info = TensorInfo { name: name.to_owned(), shape, bytes, float32 };
    Ok(Placed { info, dtype: dtype.unwrap_or_default().to_owned(), start })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes
    }

    #[test]
    fn a_header_gives_names_shapes_and_bytes() {
        let header = r#"{"__metadata__": {"format": "pt"},
            "a": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [0, 30]},
            "b": {"dtype": "F4", "shape": [3], "data_offsets": [30, 32]}}"#;
        let tensors = parse(&file(header)).unwrap();
        assert_eq!(tensors.iter().map(|t| t.bytes).collect::<Vec<_>>(), [30, 2]);
        assert_eq!(tensors[0].shape, [3, 5]);
    }

    #[test]
    fn bad_headers_say_where() {
        assert_eq!(parse(b"abc"), Err(SafetensorsError::Truncated { needed: 8, found: 3 }));
        let short = &file("{\"a\": 1}")[..10];
        assert!(matches!(parse(short), Err(SafetensorsError::Truncated { needed: 16, found: 10 })));
        assert!(matches!(parse(&[255; 8]), Err(SafetensorsError::Length { .. })));
        for (entry, key) in [
            (r#"{"dtype": "BF17", "shape": [1], "data_offsets": [0, 2]}"#, "dtype"),
            (
                r#"{"dtype": "F32", "shape": [9223372036854775807, 9], "data_offsets": [0, 2]}"#,
                "shape",
            ),
            (r#"{"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}"#, "data_offsets"),
        ] {
            let error = parse(&file(&format!("{{\"t\": {entry}}}"))).unwrap_err();
            let SafetensorsError::Tensor { name, key: found, .. } = error else {
                panic!("{error}")
            };
            assert_eq!((name.as_str(), found), ("t", key));
        }
    }

    #[test]
    fn an_index_gives_its_total() {
        let text = r#"{"metadata": {"total_size": 16060522496.0},
            "weight_map": {"a": "m-2.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors"}}"#;
        let index = parse_index(text).unwrap();
        assert_eq!(index.total_size, Some(16_060_522_496));
        assert_eq!(index.files, ["m-1.safetensors", "m-2.safetensors"]);
        assert!(parse_index("{}").is_err());
        assert!(parse_index(r#"{"weight_map": {"a": 3}}"#).is_err());
    }
}
