//! Server logs as people have them, to facts: SGLang, vLLM and, by their figures only, other servers.
//!
//! A log is foreign text. Lines are read one at a time in bounded memory; rare lines become [`Event`]s,
//! frequent ones are counted into [`Activity`]; nothing that identifies a person or machine is kept.

mod activity;
mod amount;
mod event;
mod rank;
mod read;
mod start_figures;

use std::collections::BTreeMap;

use plimsoll_core::policy::sglang::{rules::newest_before, version::Version};

pub use activity::{Activities, Activity, Spread};
pub use amount::Amount;
pub use event::{
    Event, ExceptionText, Frame, Kind, LlamaCpp, Lmdeploy, Ollama, Reached, Refused, Sglang,
    System, TensorRtLlm, Tgi, TorchOom, TorchOomForm, Vllm,
};
pub use rank::Rank;
pub use read::{Input, Redact, read, read_text};
pub use start_figures::{LogFigures, Seen, start_figures};

/// Whose log it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Server {
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
    /// llama.cpp.
    LlamaCpp,
    /// ollama.
    Ollama,
    /// TensorRT-LLM.
    TensorRtLlm,
    /// Text Generation Inference.
    Tgi,
    /// LMDeploy.
    Lmdeploy,
}

/// Releases of SGLang between two: from the wording of its lines, where a log does not name its release.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Releases {
    /// The first that writes so.
    pub since: Option<Version>,
    /// The first after it that does not any more.
    pub before: Option<Version>,
}

impl Releases {
    /// Takes in one more clue. Lines that people shorten look older than they are: of two clues that contradict
    /// each other the newer wording counts.
    pub(crate) fn narrow(&mut self, since: Option<Version>, before: Option<Version>) {
        self.since = self.since.max(since);
        self.before = match (self.before, before) {
            (Some(old), Some(new)) => Some(old.min(new)),
            (old, new) => old.or(new),
        };
        if self.before.is_some_and(|before| self.since.is_some_and(|since| since >= before)) {
            self.before = None;
        }
    }

    /// The newest of them, where the wording ends somewhere: what to assume for a log that names no release.
    #[must_use]
    pub fn newest(self) -> Option<Version> {
        let newest = newest_before(self.before?)?;
        Some(self.since.map_or(newest, |since| since.max(newest)))
    }

    /// Whether all of them are `0.minor.patch` or newer (`Some(true)`), all older (`Some(false)`), or some of each.
    #[must_use]
    pub fn since(self, minor: u16, patch: u16) -> Option<bool> {
        let asked = Version::new(0, minor, patch);
        if self.since.is_some_and(|since| since >= asked) {
            return Some(true);
        }
        self.before.is_some_and(|before| before <= asked).then_some(false)
    }
}

/// What a log holds.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Log {
    /// Whose log it is: the server with most telling lines; `None` when no line tells.
    pub server: Option<Server>,
    /// The release as printed (`0.5.8`, `0.0.0.dev1+g…`), with file and line.
    pub version: Option<(Box<str>, u16, u64)>,
    /// The releases of SGLang that print such lines and have such arguments, whether or not the log names its own.
    pub releases: Releases,
    /// Arguments printed by the server itself, of its last start: names with underscores, values as printed
    /// without quotes. They win over a command that is given beside the log.
    pub args: BTreeMap<Box<str>, Box<str>>,
    /// A launch command found in the text itself (a pasted `python -m sglang.launch_server …` line), whole.
    pub command: Option<Box<str>>,
    /// Names of devices that the log prints (`NVIDIA H100 80GB HBM3`), in order of appearance, at most 16.
    pub devices: Vec<Box<str>>,
    /// Rare lines in order, at most [`Log::EVENTS`]: the first half and the last half.
    pub events: Vec<Event>,
    /// Events between the two halves that were left out.
    pub events_left_out: u64,
    /// Frequent lines, counted.
    pub activity: Activities,
    /// Every rank that wrote a line.
    pub ranks: Vec<Rank>,
    /// Starts of a server in the log.
    pub starts: u32,
    /// Lines read, over all files.
    pub lines: u64,
    /// Bytes read, over all files, after decompression.
    pub bytes: u64,
    /// What was odd about the text itself, each once with its place: a line cut at the limit, bytes that are no
    /// UTF-8, a compressed file that ends early, a log that stops in the middle of a traceback.
    pub oddities: Vec<String>,
}

impl Log {
    /// Events that are kept at most.
    pub const EVENTS: usize = 8192;
}
