//! Profiles: what `calibrate` fitted on measurements of one device and engine, with what each value rests
//! on, and how well it does. `plan`, `run` and `sweep` put them in the place of what is assumed.

mod apply;
mod read;
#[cfg(test)]
mod tests;

pub use apply::{AppliedProfile, Mismatch};
pub use read::{ProfileError, load};

use crate::yaml;
use plimsoll_core::{
    estimate::coefficients::{Coefficient, Coefficients},
    units::Bytes,
};
use serde::{Deserialize, Serialize};

/// Name and version of the form.
pub const SCHEMA: &str = "plimsoll.profile/1";

/// A profile.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// [`SCHEMA`].
    pub schema: String,
    /// Release of Plimsoll that wrote it.
    pub plimsoll: String,
    /// What was measured.
    pub holds_for: HoldsFor,
    /// The coefficients of the time model, each once.
    pub time: Vec<Rate>,
    /// Memory that a log showed, for the same model and launch only.
    pub memory: Vec<Remainder>,
    /// The files that it was fitted on.
    pub sources: Vec<Source>,
    /// How far the times that it gives lie from those that were measured.
    pub residual: Vec<Residual>,
}

/// What a profile was measured on. The rates hold for its device and engine, whatever the model is; the
/// memory holds where all of it is the same.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldsFor {
    /// Engine.
    pub engine: EngineWord,
    /// Its release.
    pub release: String,
    /// Device, by the catalog's name.
    pub device: String,
    /// Model, by the name of its launch.
    pub model: String,
    /// Layers of the model; 0 where they are not known.
    pub layers: u64,
    /// Weights of one rank.
    pub weights_bytes: u64,
    /// Ranks of a replica.
    pub ranks: u64,
    /// Data-parallel ranks.
    pub data_parallel: u64,
    /// Element type of activations.
    pub dtype: String,
    /// Element type of KV, as the launch says it.
    pub kv_cache_dtype: String,
}

/// Which engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineWord {
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
}

/// A coefficient of the time model: a share of a peak in parts per million, or nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: u64,
    /// Where it is from.
    pub basis: Basis,
    /// How well the data fix it: one deviation in parts per million of the value; of an assumed one that of
    /// the assumption.
    pub deviation_ppm: u64,
}

/// Where a coefficient is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Fitted on the sources.
    Fitted,
    /// The data do not move it: it keeps its assumed value.
    Assumed,
}

/// An amount of memory that the rules do not predict.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remainder {
    /// What it is.
    pub name: RemainderName,
    /// As measured.
    pub measured_bytes: u64,
    /// What the rules say without it.
    pub predicted_bytes: u64,
    /// Where it was read: file and line.
    pub place: String,
}

impl Remainder {
    /// As measured.
    #[must_use]
    pub const fn measured(&self) -> Bytes {
        Bytes(self.measured_bytes)
    }
}

/// Names of amounts, those of a scenario's readings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RemainderName {
    /// Free before the weights load.
    FreeBeforeLoad,
    /// What loading took.
    Weights,
    /// What graph capture took.
    GraphMemory,
    /// vLLM: growth outside torch.
    NonTorch,
    /// vLLM: activation peak of the profile run.
    ActivationPeak,
    /// vLLM: estimate of the graphs.
    GraphEstimate,
}

impl RemainderName {
    /// Every name.
    pub const ALL: [Self; 6] = [
        Self::FreeBeforeLoad,
        Self::Weights,
        Self::GraphMemory,
        Self::NonTorch,
        Self::ActivationPeak,
        Self::GraphEstimate,
    ];

    /// As in a profile.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FreeBeforeLoad => "free_before_load",
            Self::Weights => "weights",
            Self::GraphMemory => "graph_memory",
            Self::NonTorch => "non_torch",
            Self::ActivationPeak => "activation_peak",
            Self::GraphEstimate => "graph_estimate",
        }
    }
}

/// A file that a profile rests on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Its name, without its folder.
    pub file: String,
    /// SHA-256 of its bytes.
    pub sha256: String,
    /// What it is.
    pub kind: SourceKind,
    /// Requests, passes or lines with a figure that it has.
    pub measured: u64,
    /// Those of them that were fitted; the rest was held out.
    pub fitted: u64,
}

/// Kinds of measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceKind {
    /// Rows with times, a request each.
    Requests,
    /// A result of vLLM's `bench serve`.
    VllmBench,
    /// A result of SGLang's `bench_serving`.
    SglangBench,
    /// A server's log.
    Log,
    /// What `watch --record` wrote.
    Watch,
    /// What `run --record` wrote.
    Recording,
}

impl SourceKind {
    /// For people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Requests => "requests with times",
            Self::VllmBench => "vllm bench serve",
            Self::SglangBench => "sglang.bench_serving",
            Self::Log => "server log",
            Self::Watch => "watch --record",
            Self::Recording => "run --record",
        }
    }
}

/// How far predicted times lie from measured ones, in parts per million of the measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Residual {
    /// Which part of the data.
    pub part: Part,
    /// What is compared: `ttft`, `tpot` of requests, `pass` of passes, `throughput` of lines.
    pub metric: Metric,
    /// Values.
    pub count: u64,
    /// Error of the mean, above 0 where the prediction is larger.
    pub mean_error_ppm: i64,
    /// Mean of the single errors' amounts.
    pub typical_error_ppm: u64,
    /// Largest amount of a single error.
    pub worst_error_ppm: u64,
}

/// Which part of the data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// That on which it was fitted.
    Fitted,
    /// That which the fit did not see.
    HeldOut,
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Time to the first token.
    Ttft,
    /// Time of a token after the first.
    Tpot,
    /// Time of a pass.
    Pass,
    /// Tokens made in a second.
    Throughput,
}

impl Metric {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ttft => "ttft",
            Self::Tpot => "tpot",
            Self::Pass => "pass",
            Self::Throughput => "throughput",
        }
    }
}

impl Profile {
    /// The coefficients.
    #[must_use]
    pub fn coefficients(&self, assumed: Coefficients) -> Coefficients {
        self.time.iter().fold(assumed, |all, rate| match Coefficient::named(&rate.name) {
            Some(which) => all.with(which, rate.value),
            None => all,
        })
    }

    /// The text of the file, YAML.
    ///
    /// # Errors
    ///
    /// A value that YAML cannot hold; none of a profile is one.
    pub fn to_text(&self) -> Result<String, String> {
        yaml::write(self)
    }
}
