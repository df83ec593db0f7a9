//! The embedded catalog of devices (`scenarios/devices/*.yaml`) and how a name finds one: letter
//! case, punctuation and vendor words do not count, and words may be left out as long as one device
//! remains.

use crate::device_file::{self, DeviceFileError};
use crate::table::Row;
use plimsoll_core::device::DeviceProfile;

static DEVICES: &[Row] = include!(concat!(env!("OUT_DIR"), "/devices.rs"));

/// Why no device was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// No device has that name.
    #[error("no device `{name}` in the catalog{}", near_text(.near))]
    Unknown {
        /// As asked for.
        name: String,
        /// Nearest names, nearest first.
        near: Vec<&'static str>,
    },
    /// The name fits several devices.
    #[error("`{name}` could be any of: {}", .candidates.join(", "))]
    Ambiguous {
        /// As asked for.
        name: String,
        /// Names of the devices it fits, in catalog order.
        candidates: Vec<&'static str>,
    },
    /// The embedded file is not right.
    #[error(transparent)]
    File(#[from] DeviceFileError),
}

fn near_text(near: &[&str]) -> String {
    if near.is_empty() { String::new() } else { format!("; near: {}", near.join(", ")) }
}

/// Every entry, sorted by key: (key, names, text).
#[must_use]
pub fn all() -> &'static [Row] {
    DEVICES
}

/// The profile of the device that a name means: a driver's name, an alias, a key, or enough words
/// of one.
///
/// # Errors
/// `Unknown` with up to three near names, `Ambiguous` with the candidates.
///
/// ```
/// let device = plimsoll_catalog::devices::find("rtx-pro-6000").unwrap();
/// assert_eq!(device.smi_total_mib.unwrap().value, 97_887);
/// ```
pub fn find(name: &str) -> Result<DeviceProfile, DeviceError> {
    let (key, _, text) = lookup(name)?;
    Ok(device_file::read(key, text)?)
}

fn lookup(name: &str) -> Result<&'static Row, DeviceError> {
    let wanted = words(name);
    if wanted.is_empty() {
        return Err(unknown(name));
    }
    let joined = wanted.concat();
    let exact: Vec<&'static Row> =
        DEVICES.iter().filter(|row| names(row).any(|n| words(n).concat() == joined)).collect();
    if let [row] = exact[..] {
        return Ok(row);
    }
    let fits: Vec<&'static Row> =
        DEVICES.iter().filter(|row| names(row).any(|n| covers(&known(row, n), &wanted))).collect();
    match fits[..] {
        [] => Err(unknown(name)),
        [row] => Ok(row),
        // A slice is meant only when it is named: `A100` is not any of its slices.
        _ => match whole(&fits)[..] {
            [row] => Ok(row),
            [] => Err(ambiguous(name, &fits)),
            ref whole => Err(ambiguous(name, whole)),
        },
    }
}

/// The rows that are not MIG slices.
fn whole(rows: &[&'static Row]) -> Vec<&'static Row> {
    rows.iter().filter(|(key, ..)| !key.contains("-mig-")).copied().collect()
}

fn names(row: &'static Row) -> impl Iterator<Item = &'static str> {
    std::iter::once(row.0).chain(row.1.iter().copied())
}

/// Words of one name of a row; Apple's own names need not say whose they are.
fn known(row: &Row, name: &str) -> Vec<String> {
    let mut words = words(name);
    if row.0.starts_with("apple") {
        words.push("apple".to_owned());
    }
    words
}

/// Whether every wanted word is one of `have`; a number needs its unit only where it was written.
fn covers(have: &[String], wanted: &[String]) -> bool {
    wanted.iter().all(|w| {
        have.iter()
            .any(|h| h == w || h.strip_suffix('g') == Some(w) || h.strip_suffix("gb") == Some(w))
    })
}

/// Lower-case words without punctuation and vendor words; `80 GB` and `80G` become `80gb`.
fn words(name: &str) -> Vec<String> {
    // Apple's name is not dropped: its machines have no other word that sets them apart.
    const VENDOR: [&str; 9] =
        ["nvidia", "geforce", "amd", "instinct", "radeon", "intel", "tesla", "quadro", "graphics"];
    let lower = name.to_lowercase();
    let mut words: Vec<String> = Vec::new();
    for word in lower.split(|c: char| !c.is_alphanumeric()).filter(|w| !w.is_empty()) {
        if VENDOR.contains(&word) {
            continue;
        }
        match words.last_mut() {
            Some(last) if ["gb", "g", "gib"].contains(&word) && is_number(last) => {
                last.push_str("gb")
            }
            _ if word.strip_suffix('g').is_some_and(is_number) => words.push(format!("{word}b")),
            _ if word.strip_suffix("gib").is_some_and(is_number) => {
                words.push(word.replace("gib", "gb"));
            }
            _ => words.push(word.to_owned()),
        }
    }
    words
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit())
}

fn ambiguous(name: &str, rows: &[&'static Row]) -> DeviceError {
    let candidates = rows.iter().map(|row| row.1.first().copied().unwrap_or(row.0)).collect();
    DeviceError::Ambiguous { name: name.to_owned(), candidates }
}

fn unknown(name: &str) -> DeviceError {
    let wanted: String = words(name).concat().chars().take(100).collect();
    let mut scored: Vec<(f64, &'static str)> = DEVICES
        .iter()
        .filter(|row| !row.0.contains("-mig-"))
        .filter_map(|row| {
            names(row)
                .map(|n| (strsim::jaro_winkler(&wanted, &words(n).concat()), n))
                .max_by(|a, b| a.0.total_cmp(&b.0))
        })
        .filter(|(score, _)| *score > 0.7)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    let near = scored.into_iter().take(3).map(|(_, name)| name).collect();
    DeviceError::Unknown { name: name.to_owned(), near }
}
