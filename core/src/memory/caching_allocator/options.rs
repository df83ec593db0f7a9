//! Options of the allocator, read from the text of `PYTORCH_CUDA_ALLOC_CONF`.
//!
//! `PYTORCH_ALLOC_CONF` has the same syntax and wins from torch 2.9 on; naming every key again
//! resets the keys that are left out.

use std::{fmt, str::FromStr};

use super::size::LARGE_SEGMENT;
use crate::{model::near::nearest, units::MIB};

/// A release of torch: what decides which options exist and how an error is worded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TorchVersion {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl TorchVersion {
    /// The newest release whose rules were read.
    pub const NEWEST: Self = Self::new(2, 15);

    /// `major.minor`.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for TorchVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for TorchVersion {
    type Err = OptionError;

    /// `2.9`, `2.9.1` or `2.9.1+cu128`; what follows the minor number is left out.
    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut parts = text.split('.').map(|part| part.parse().ok());
        match (parts.next().flatten(), parts.next().flatten()) {
            (Some(major), Some(minor)) => Ok(Self::new(major, minor)),
            _ => Err(OptionError::at(0, OptionProblem::Version(clip(text)))),
        }
    }
}

/// How the size class of a request splits its power of two; 16 intervals from 1 MiB to 64 GiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Divisions([u64; 16]);

impl Divisions {
    /// Divisions for a request; 0 and 1 mean none. Sizes under 1 MiB use the first interval, sizes
    /// from 32 GiB on the last.
    #[must_use]
    pub fn of(&self, requested: u64) -> u64 {
        self.0[requested.max(1).ilog2().saturating_sub(20).min(15) as usize]
    }

    /// The 16 values, first for 1 MiB, last for 32 GiB and above.
    #[must_use]
    pub const fn values(&self) -> &[u64; 16] {
        &self.0
    }
}

/// Whether new memory comes as ranges that grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ExpandableSegments {
    /// Plain segments.
    #[default]
    Off,
    /// One growing range a pool and stream.
    On,
}

/// What the allocator runs with. Sizes in bytes.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Blocks from this size on are not split and serve only requests of that size; `None`: no
    /// limit.
    pub max_split_size: Option<u64>,
    /// A request from `max_split_size` on takes a block at most this much larger.
    pub max_non_split_rounding: u64,
    /// Share of the limit above which old free segments are released; 0 is off. Acts only with a
    /// memory fraction.
    pub garbage_collection_threshold: f64,
    /// Finer or coarser rounding of requests.
    pub roundup_power2_divisions: Divisions,
    /// Growing ranges.
    pub expandable_segments: ExpandableSegments,
    /// Segment of the large pool for requests under 10 MiB, and the handle of its growing ranges.
    pub large_segment_size: u64,
    /// Share of the device's total that this process may reserve; `None`: all.
    pub per_process_memory_fraction: Option<f64>,
    /// Keys that were given and change nothing here, with their values, in order.
    pub without_effect: Vec<(String, String)>,
    /// The text as given, for the settings of a snapshot.
    pub text: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            max_split_size: None,
            max_non_split_rounding: LARGE_SEGMENT,
            garbage_collection_threshold: 0.0,
            roundup_power2_divisions: Divisions::default(),
            expandable_segments: ExpandableSegments::Off,
            large_segment_size: LARGE_SEGMENT,
            per_process_memory_fraction: None,
            without_effect: Vec::new(),
            text: String::new(),
        }
    }
}

/// Why an option text is refused, and where.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("allocator options, column {}: {problem}", .at + 1)]
pub struct OptionError {
    /// Byte in the text where the trouble begins.
    pub at: usize,
    /// What it is.
    pub problem: OptionProblem,
}

impl OptionError {
    const fn at(at: usize, problem: OptionProblem) -> Self {
        Self { at, problem }
    }
}

/// What is wrong with an option.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OptionProblem {
    /// No such option in any release.
    #[error("no option `{key}`{}", near.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    Unknown {
        /// As written.
        key: String,
        /// The option whose name is close.
        near: Option<&'static str>,
    },
    /// An option of a later release.
    #[error("`{key}` exists from torch {since} on; this is torch {version}")]
    TooNew {
        /// As written.
        key: &'static str,
        /// First release that has it.
        since: TorchVersion,
        /// Release that was asked for.
        version: TorchVersion,
    },
    /// A value outside its range.
    #[error("`{key}` is `{value}`; allowed: {allowed}")]
    Value {
        /// Option.
        key: &'static str,
        /// As written.
        value: String,
        /// Range or list.
        allowed: &'static str,
    },
    /// A key without a value.
    #[error("`{0}` has no value; write `{0}:value`")]
    NoValue(String),
    /// An option that changes what this allocator does, and is not built.
    #[error("`{key}:{value}` is not modelled: {why}")]
    NotModelled {
        /// Option.
        key: &'static str,
        /// As written.
        value: String,
        /// What is missing.
        why: &'static str,
    },
    /// Not a torch version.
    #[error("`{0}` is not a version of torch; write for example `2.9`")]
    Version(String),
}

/// Every option with the release that brought it. Releases after 2.4 are estimates from the source
/// states read; 2.1 stands for "all".
const KEYS: &[(&str, TorchVersion)] = &[
    ("backend", TorchVersion::new(2, 1)),
    ("max_split_size_mb", TorchVersion::new(2, 1)),
    ("max_non_split_rounding_mb", TorchVersion::new(2, 7)),
    ("garbage_collection_threshold", TorchVersion::new(2, 1)),
    ("roundup_power2_divisions", TorchVersion::new(2, 1)),
    ("expandable_segments", TorchVersion::new(2, 1)),
    ("large_segment_size_mb", TorchVersion::new(2, 11)),
    ("release_lock_on_cudamalloc", TorchVersion::new(2, 1)),
    ("per_process_memory_fraction", TorchVersion::new(2, 10)),
    ("graph_capture_record_stream_reuse", TorchVersion::new(2, 10)),
    ("throw_on_cudamalloc_oom", TorchVersion::new(2, 15)),
    ("expandable_segments_reserve", TorchVersion::new(2, 15)),
    ("expandable_segments_reserve_by_class", TorchVersion::new(2, 15)),
    ("pinned_use_cuda_host_register", TorchVersion::new(2, 1)),
    ("pinned_num_register_threads", TorchVersion::new(2, 1)),
    ("pinned_use_background_threads", TorchVersion::new(2, 7)),
    ("pinned_reserve_segment_size_mb", TorchVersion::new(2, 10)),
];

fn clip(text: &str) -> String {
    let mut out: String =
        text.chars().take(60).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().nth(60).is_some() {
        out.push('…');
    }
    out
}

/// The option whose name is close.
fn near(key: &str) -> Option<&'static str> {
    let found = nearest(key, KEYS.iter().map(|(name, _)| *name), 60)?;
    KEYS.iter().map(|(name, _)| *name).find(|name| *name == found)
}

/// One `key:value` of the text.
struct Entry<'a> {
    key: &'static str,
    value_at: usize,
    value: &'a str,
}

impl Entry<'_> {
    fn refused(&self, allowed: &'static str) -> OptionError {
        let value = clip(self.value);
        OptionError::at(self.value_at, OptionProblem::Value { key: self.key, value, allowed })
    }

    fn not_modelled(&self, why: &'static str) -> OptionError {
        let value = clip(self.value);
        OptionError::at(self.value_at, OptionProblem::NotModelled { key: self.key, value, why })
    }

    fn whole(&self, allowed: &'static str) -> Result<u64, OptionError> {
        self.value.parse().map_err(|_| self.refused(allowed))
    }

    /// Mebibytes to bytes; from `least` on.
    fn mib(&self, least: u64, allowed: &'static str) -> Result<u64, OptionError> {
        let mib = self.whole(allowed)?;
        let bytes = mib.checked_mul(MIB).filter(|b| mib >= least && *b <= i64::MAX as u64);
        bytes.ok_or_else(|| self.refused(allowed))
    }

    fn switch(&self) -> Result<ExpandableSegments, OptionError> {
        match self.value {
            "True" => Ok(ExpandableSegments::On),
            "False" => Ok(ExpandableSegments::Off),
            _ => Err(self.refused("`True` or `False`")),
        }
    }

    fn divisions(&self) -> Result<Divisions, OptionError> {
        const ALLOWED: &str = "0 or a power of two, or a list such as \
             `[256:1,512:2,1024:4,>:8]` with keys in MiB that are powers of two";
        let refused = || self.refused(ALLOWED);
        let number = |text: &str| -> Result<u64, OptionError> {
            let n: u64 = text.trim().parse().map_err(|_| refused())?;
            if n == 0 || n.is_power_of_two() { Ok(n) } else { Err(refused()) }
        };
        let Some(list) = self.value.strip_prefix('[').and_then(|v| v.strip_suffix(']')) else {
            return Ok(Divisions([number(self.value)?; 16]));
        };
        let mut table = [0; 16];
        let mut last = 0;
        for (nth, pair) in list.split(',').enumerate() {
            let (key, value) = pair.split_once(':').ok_or_else(refused)?;
            let value = number(value)?;
            if key.trim() == ">" {
                table[last..].fill(value);
                continue;
            }
            let mib = number(key)?;
            let index = mib.checked_ilog2().ok_or_else(refused)?.min(15) as usize;
            if nth == 0 {
                table[..index].fill(value);
            }
            table[index] = value;
            last = index;
        }
        Ok(Divisions(table))
    }
}

impl Options {
    /// Reads `key:value,key:value`. Blanks are ignored; a key that stands twice takes its last value.
    ///
    /// # Errors
    ///
    /// [`OptionError`] with the column: unknown key (with a near name), a key of a later release, a
    /// value out of range, an option that would change the result and is not modelled.
    pub fn parse(text: &str, version: TorchVersion) -> Result<Self, OptionError> {
        let mut options = Self { text: text.to_owned(), ..Self::default() };
        let mut at = 0;
        for part in split_outside_brackets(text) {
            if !part.trim().is_empty() {
                options.apply(&entry(part, at, version)?, version)?;
            }
            at += part.len() + 1;
        }
        Ok(options)
    }

    fn apply(&mut self, e: &Entry<'_>, version: TorchVersion) -> Result<(), OptionError> {
        match e.key {
            "backend" => match e.value {
                "native" => {}
                "cudaMallocAsync" => {
                    return Err(e.not_modelled("the driver's own pool decides, not this allocator"));
                }
                _ => return Err(e.refused("`native` or `cudaMallocAsync`")),
            },
            "max_split_size_mb" => {
                // Above 20 MiB in older releases, from 20 MiB on in newer ones.
                let newer = version >= TorchVersion::new(2, 9);
                let least = if newer { 20 } else { 21 };
                let allowed = if newer { "20 or more (MiB)" } else { "more than 20 (MiB)" };
                self.max_split_size = Some(e.mib(least, allowed)?);
            }
            "max_non_split_rounding_mb" => {
                self.max_non_split_rounding = e.mib(21, "more than 20 (MiB)")?;
            }
            "garbage_collection_threshold" => {
                let share = e.value.parse().ok().filter(|s| 0.0 < *s && *s < 1.0);
                self.garbage_collection_threshold =
                    share.ok_or_else(|| e.refused("between 0 and 1, both excluded"))?;
            }
            "roundup_power2_divisions" => self.roundup_power2_divisions = e.divisions()?,
            "expandable_segments" => self.expandable_segments = e.switch()?,
            "large_segment_size_mb" => {
                self.large_segment_size = e.mib(10, "an even number from 10 on (MiB)")?;
                if !self.large_segment_size.is_multiple_of(2 * MIB) {
                    return Err(e.refused("an even number from 10 on (MiB)"));
                }
            }
            "per_process_memory_fraction" => {
                let share = e.value.parse().ok().filter(|s| (0.0..=1.0).contains(s));
                self.per_process_memory_fraction =
                    Some(share.ok_or_else(|| e.refused("from 0 to 1"))?);
            }
            "expandable_segments_reserve" | "expandable_segments_reserve_by_class" => {
                return Err(e.not_modelled("the size of the virtual range is always 9/8 of total"));
            }
            "graph_capture_record_stream_reuse" if e.value == "True" => {
                return Err(e.not_modelled("frees during a capture wait for its end"));
            }
            _ => self.without_effect.push((e.key.to_owned(), e.value.to_owned())),
        }
        Ok(())
    }
}

fn entry(part: &str, at: usize, version: TorchVersion) -> Result<Entry<'_>, OptionError> {
    let at = at + (part.len() - part.trim_start().len());
    let part = part.trim();
    let (name, value) = part.split_once(':').unwrap_or((part, ""));
    let name = name.trim_end();
    let Some((key, since)) = KEYS.iter().find(|(key, _)| *key == name) else {
        let problem = OptionProblem::Unknown { key: clip(name), near: near(name) };
        return Err(OptionError::at(at, problem));
    };
    if version < *since {
        return Err(OptionError::at(at, OptionProblem::TooNew { key, since: *since, version }));
    }
    if value.trim().is_empty() {
        return Err(OptionError::at(at, OptionProblem::NoValue(clip(name))));
    }
    let blank = value.len() - value.trim_start().len();
    let value_at = at + part.len() - value.len() + blank;
    Ok(Entry { key, value_at, value: value.trim() })
}

fn split_outside_brackets(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |c| {
        match c {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, OptionError> {
        Options::parse(text, TorchVersion::NEWEST)
    }

    #[test]
    fn every_modelled_key_is_read() {
        let o = parse(
            "max_split_size_mb:100, garbage_collection_threshold:0.8,expandable_segments:True,\
             large_segment_size_mb:32,per_process_memory_fraction:0.5,max_non_split_rounding_mb:64,\
             release_lock_on_cudamalloc:True",
        )
        .unwrap();
        assert_eq!(o.max_split_size, Some(100 * MIB));
        assert_eq!(o.garbage_collection_threshold, 0.8);
        assert_eq!(o.expandable_segments, ExpandableSegments::On);
        assert_eq!(o.large_segment_size, 32 * MIB);
        assert_eq!(o.per_process_memory_fraction, Some(0.5));
        assert_eq!(o.max_non_split_rounding, 64 * MIB);
        assert_eq!(o.without_effect, [("release_lock_on_cudamalloc".into(), "True".into())]);
        let reset = parse("").unwrap();
        assert_eq!(reset.max_split_size, None, "keys that are left out go back");
    }

    #[test]
    fn errors_name_column_value_range_and_a_near_name() {
        let text = |t: &str, v| Options::parse(t, v).unwrap_err().to_string();
        let newest = TorchVersion::NEWEST;
        assert_eq!(
            text("expandable_segment:True", newest),
            "allocator options, column 1: no option `expandable_segment`; did you mean `expandable_segments`?"
        );
        assert_eq!(
            text("backend:native, max_split_size_mb:19", newest),
            "allocator options, column 35: `max_split_size_mb` is `19`; allowed: 20 or more (MiB)"
        );
        assert_eq!(
            text("max_split_size_mb:20", TorchVersion::new(2, 4)),
            "allocator options, column 19: `max_split_size_mb` is `20`; allowed: more than 20 (MiB)"
        );
        assert_eq!(
            text("large_segment_size_mb:32", TorchVersion::new(2, 6)),
            "allocator options, column 1: `large_segment_size_mb` exists from torch 2.11 on; this is torch 2.6"
        );
        assert_eq!(
            text("roundup_power2_divisions:[256:3]", newest),
            "allocator options, column 26: `roundup_power2_divisions` is `[256:3]`; allowed: 0 or a power of two, \
             or a list such as `[256:1,512:2,1024:4,>:8]` with keys in MiB that are powers of two"
        );
        for bad in [
            "x",
            ":",
            "backend",
            "backend:cudaMallocAsync",
            "expandable_segments:true",
            "garbage_collection_threshold:1",
            "garbage_collection_threshold:NaN",
            "per_process_memory_fraction:-0.1",
            "max_split_size_mb:99999999999999999999",
            "max_split_size_mb:18446744073709551615",
            "roundup_power2_divisions:[",
            "roundup_power2_divisions:[0:1]",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_version_is_read_with_its_build_suffix() {
        assert_eq!("2.9.1+cu128".parse(), Ok(TorchVersion::new(2, 9)));
        assert!("two".parse::<TorchVersion>().is_err());
    }
}
