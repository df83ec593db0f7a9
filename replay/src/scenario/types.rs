//! The types of a scenario file. Their doc comments are the text of the JSON schema and of
//! `docs/scenario-format.md`.

use super::{
    engine::Engine,
    events::Event,
    expect::Expect,
    machine::WeakerRanks,
    neighbours::{Drawn, Held, Neighbours},
    requests::Workload,
    time::{Span, positive_span},
    value::{
        Amount, Bounded, Count, RankCount, Reading, optional_amount, optional_count, optional_ranks,
    },
};
use plimsoll_core::{
    engine::metrics::Slo,
    policy::sglang::args::Platform,
    units::{Bytes, Nanos},
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Unexpected, Visitor, value::MapAccessDeserializer},
};
use std::{borrow::Cow, fmt, path::PathBuf};

/// A scenario: one question about one launch, and the answers that are claimed.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name, by theme: letters, digits and `._-/`.
    #[serde(deserialize_with = "name_text")]
    #[schemars(with = "NameText", example = &"dedicated-gpu/kimi-k2.5-0.93-start")]
    pub name: String,
    /// Why this file exists, in a sentence or two.
    #[schemars(length(min = 1), example = &"One start of the margin case: 231,120 tokens, 0.82 GiB left.")]
    pub why: String,
    /// Where its numbers come from.
    #[schemars(example = &"server log of 2026-01-12, back-solved inputs")]
    pub source: Option<String>,
    /// Seed of everything random in a run.
    #[serde(default = "first_seed")]
    #[schemars(example = &1)]
    pub seed: u64,
    /// The machine, and what was read on it.
    pub machine: Machine,
    /// The server that is started.
    pub engine: Engine,
    /// The model, when the launch's own model path does not name it: a catalog name, `{config: PATH}` or
    /// `{gguf: PATH}`, alone or with figures that replace the derived ones.
    pub model: Option<Model>,
    /// Requests that reach the server once it is ready: a group, or a list of groups. Left out: the
    /// scenario is a start.
    pub workload: Option<Workload>,
    /// What happens during the start and while the server runs.
    #[serde(default)]
    pub events: Vec<Event>,
    /// How distributions of what other programs hold are taken: each seed draws (`drawn`), or all are at a
    /// percentile.
    #[serde(default)]
    #[schemars(example = &"p99")]
    pub neighbours: Neighbours,
    /// What became of those distributions.
    #[serde(skip)]
    pub drawn: Vec<Drawn>,
    /// Where a run ends that does not end by itself.
    #[serde(default)]
    pub limits: Limits,
    /// Limits that a good answer keeps, for `goodput` and `slo_share`; `--slo` sets them too.
    #[serde(default)]
    pub slo: SloLimits,
    /// Claims about the result; see the figures below.
    #[serde(default)]
    pub expect: Expect,
}

/// Where a run ends that does not end by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Steps.
    #[serde(default = "max_steps", deserialize_with = "steps")]
    #[schemars(with = "StepCount", example = &20_000)]
    pub max_steps: u64,
    /// Time after the server is ready; left out: 24 h.
    #[serde(default = "max_time", deserialize_with = "longest")]
    #[schemars(with = "Option<Span>", example = &"10 min")]
    pub max_time: Nanos,
}

/// Limits of a service level objective. An answer that keeps all of those that are given is good.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SloLimits {
    /// Longest time from arrival to the first token.
    #[serde(default, deserialize_with = "positive_span")]
    #[schemars(with = "Option<Span>", example = &"2 s")]
    pub ttft: Option<Nanos>,
    /// Longest mean time per output token after the first.
    #[serde(default, deserialize_with = "positive_span")]
    #[schemars(with = "Option<Span>", example = &"50 ms")]
    pub tpot: Option<Nanos>,
    /// Longest time from arrival to the last token.
    #[serde(default, deserialize_with = "positive_span")]
    #[schemars(with = "Option<Span>", example = &"30 s")]
    pub e2e: Option<Nanos>,
}

impl From<SloLimits> for Slo {
    fn from(limits: SloLimits) -> Self {
        Self { ttft: limits.ttft, tpot: limits.tpot, e2e: limits.e2e }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_steps: max_steps(), max_time: max_time() }
    }
}

const fn max_steps() -> u64 {
    1_000_000
}

const fn max_time() -> Nanos {
    Nanos(24 * 3_600_000_000_000)
}

/// Steps of a run, 1 to a billion.
type StepCount = Bounded<1, 1_000_000_000>;

fn steps<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    Ok(Option::<StepCount>::deserialize(d)?.map_or_else(max_steps, |steps| steps.0))
}

fn longest<'de, D: Deserializer<'de>>(d: D) -> Result<Nanos, D::Error> {
    Ok(positive_span(d)?.unwrap_or_else(max_time))
}

const fn first_seed() -> u64 {
    1
}

/// The machine.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Name in the device catalog, or the properties of a device.
    #[schemars(example = &"RTX PRO 6000 Blackwell")]
    pub device: Device,
    /// GPUs that the server uses; left out: tp × pp of the launch.
    #[serde(default, deserialize_with = "optional_ranks")]
    #[schemars(with = "Option<RankCount>", example = &8)]
    pub ranks: Option<u32>,
    /// Host memory that is available before the start.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Amount>", example = &"1007 GiB")]
    pub host_available: Option<Bytes>,
    /// Memory limit of the control group, where there is one.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Amount>", example = &"512 GiB")]
    pub cgroup_limit: Option<Bytes>,
    /// Memory of the host in all.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Amount>", example = &"64 GiB")]
    pub ram: Option<Bytes>,
    /// Memory of the host that is page cache: it is given back under pressure.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Amount>", example = &"6 GiB")]
    pub page_cache: Option<Bytes>,
    /// What other programs hold of the host's memory at first.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Held>", example = &"12 GiB")]
    pub others_on_host: Option<Bytes>,
    /// Ranks whose device has less than the others, one or a list.
    #[serde(default)]
    pub weaker: WeakerRanks,
    /// What the engine reads, in the order in which it reads it; each an amount, a list with one per
    /// rank, or `{value, source, calibrated}`.
    #[serde(default)]
    pub readings: Readings,
}

/// Declared readings. What is absent is computed.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Readings {
    /// Free device memory before the weights are loaded.
    #[schemars(example = &"94.0367 GiB")]
    pub free_before_load: Option<Reading>,
    /// Free device memory after the weights are loaded.
    #[schemars(example = &"21.71 GiB")]
    pub free_after_load: Option<Reading>,
    /// What loading took on each rank: free before less free after.
    #[schemars(example = &"72.328 GiB")]
    pub weights: Option<Reading>,
    /// Free device memory after the KV pool is allocated.
    #[schemars(example = &"6.58 GiB")]
    pub free_after_pool: Option<Reading>,
    /// Free device memory after graph capture.
    #[schemars(example = &"0.82 GiB")]
    pub free_after_graphs: Option<Reading>,
    /// What loading holds beside the weights at its peak.
    #[schemars(example = &"2.5 GiB")]
    pub load_peak: Option<Reading>,
    /// What kernels take while they are tuned, before graphs are captured.
    #[schemars(example = &"30 GiB")]
    pub autotune_scratch: Option<Reading>,
    /// What graph capture took.
    #[schemars(example = &"3.7 GiB")]
    pub graph_memory: Option<Reading>,
    /// MLX: bytes that the framework holds when the pool is sized.
    #[schemars(example = &"1.2 GiB")]
    pub mlx_active: Option<Reading>,
    /// Metal: recommended largest working set.
    #[schemars(example = &"53084 MiB")]
    pub working_set: Option<Reading>,
    /// Memory of the host that is available when the pool is sized (unified-memory devices).
    #[schemars(example = &"27.808 GiB")]
    pub host_available_at_sizing: Option<Reading>,
    /// vLLM: total device memory as the driver tells the process.
    #[schemars(example = &"79.22 GiB")]
    pub total: Option<Reading>,
    /// vLLM: free device memory at its first snapshot.
    #[schemars(example = &"78.7 GiB")]
    pub free_at_start: Option<Reading>,
    /// vLLM: growth of memory outside of PyTorch during profiling.
    #[schemars(example = &"0.39 GiB")]
    pub non_torch: Option<Reading>,
    /// vLLM: peak of activations during the profile run.
    #[schemars(example = &"1.26 GiB")]
    pub activation_peak: Option<Reading>,
    /// vLLM: graph memory as the profile estimates it.
    #[schemars(example = &"0.55 GiB")]
    pub graph_estimate: Option<Reading>,
}

impl Readings {
    /// The readings that are given, by name, in the order of the format.
    #[must_use]
    pub fn given(&self) -> Vec<(&'static str, &Reading)> {
        let all = [
            ("free_before_load", &self.free_before_load),
            ("free_after_load", &self.free_after_load),
            ("weights", &self.weights),
            ("free_after_pool", &self.free_after_pool),
            ("free_after_graphs", &self.free_after_graphs),
            ("load_peak", &self.load_peak),
            ("autotune_scratch", &self.autotune_scratch),
            ("graph_memory", &self.graph_memory),
            ("mlx_active", &self.mlx_active),
            ("working_set", &self.working_set),
            ("host_available_at_sizing", &self.host_available_at_sizing),
            ("total", &self.total),
            ("free_at_start", &self.free_at_start),
            ("non_torch", &self.non_torch),
            ("activation_peak", &self.activation_peak),
            ("graph_estimate", &self.graph_estimate),
        ];
        all.into_iter().filter_map(|(name, reading)| Some((name, reading.as_ref()?))).collect()
    }
}

/// A device by name or by its properties.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Device {
    /// A name of the device catalog.
    Named(String),
    /// Properties.
    Described(DeviceProperties),
}

/// Properties of a device that is not (or not so) in the catalog.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceProperties {
    /// A name for reports; a name of the catalog supplies what is absent here.
    #[schemars(example = &"RTX PRO 6000 Blackwell")]
    pub name: Option<String>,
    /// Capacity as the engine reads it, or `unknown`.
    #[schemars(example = &"97887 MiB")]
    pub capacity: Option<Capacity>,
    /// Platform of the server.
    #[serde(default, deserialize_with = "platform")]
    #[schemars(with = "Option<PlatformName>", example = &"cuda")]
    pub platform: Option<Platform>,
    /// Whether the device shares the host's memory.
    #[schemars(example = &true)]
    pub integrated: Option<bool>,
}

/// Capacity of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Capacity {
    /// Bytes, more than 0.
    Known(Bytes),
    /// The engine cannot read it.
    Unknown,
}

/// Names of [`Platform`] in files.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum PlatformName {
    Cuda,
    Rocm,
    Npu,
    Hpu,
    Xpu,
    Musa,
    Cpu,
    Mps,
    Mlx,
}

fn platform<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Platform>, D::Error> {
    Ok(Option::<PlatformName>::deserialize(d)?.map(|name| match name {
        PlatformName::Cuda => Platform::Cuda,
        PlatformName::Rocm => Platform::Rocm,
        PlatformName::Npu => Platform::Npu,
        PlatformName::Hpu => Platform::Hpu,
        PlatformName::Xpu => Platform::Xpu,
        PlatformName::Musa => Platform::Musa,
        PlatformName::Cpu => Platform::Cpu,
        PlatformName::Mps => Platform::Mps,
        PlatformName::Mlx => Platform::Mlx,
    }))
}

/// The model.
#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    /// What names it; `None` when its figures alone do.
    pub source: Option<ModelSource>,
    /// Figures that replace what the source says, or stand alone.
    pub figures: ModelFigures,
}

/// What names a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ModelSource {
    /// A name of the model catalog, or a hub id.
    Catalog(String),
    /// A Hugging Face `config.json`; a relative path starts at the scenario file.
    Config(PathBuf),
    /// A GGUF file; a relative path starts at the scenario file.
    Gguf(PathBuf),
}

/// Figures of a model, as one rank sees them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModelFigures {
    /// Bytes of one KV cell: all layers of the rank, one token.
    pub kv_bytes_per_token: Option<Bytes>,
    /// Weights of one rank.
    pub weights: Option<Bytes>,
    /// Longest sequence, tokens.
    pub context_length: Option<u64>,
    /// Layers of the whole model.
    pub layers: Option<u64>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ModelForm {
    /// A name of the model catalog, or a hub id.
    #[schemars(example = &"moonshotai/Kimi-K2.5")]
    name: Option<String>,
    /// A Hugging Face `config.json`, from the folder of the scenario file.
    #[schemars(with = "Option<String>", example = &"models/kimi/config.json")]
    config: Option<PathBuf>,
    /// A GGUF file, from the folder of the scenario file.
    #[schemars(with = "Option<String>", example = &"models/qwen3.gguf")]
    gguf: Option<PathBuf>,
    /// Bytes of one KV cell: all layers of a rank, one token.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Amount>", example = &"114688 B")]
    kv_bytes_per_token: Option<Bytes>,
    /// Weights of one rank.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Amount>", example = &"1.1 GiB")]
    weights: Option<Bytes>,
    /// Longest sequence, tokens.
    #[serde(default, deserialize_with = "optional_count")]
    #[schemars(with = "Option<Count>", example = &40960)]
    context_length: Option<u64>,
    /// Layers of the whole model.
    #[serde(default, deserialize_with = "optional_count")]
    #[schemars(with = "Option<Count>", example = &28)]
    layers: Option<u64>,
}

/// The text of a scenario's name, for the schema.
struct NameText;

impl JsonSchema for NameText {
    fn schema_name() -> Cow<'static, str> {
        "NameText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "title": "name", "type": "string", "pattern": "^[A-Za-z0-9._/-]{1,200}$" })
    }
}

fn name_text<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    let text = String::deserialize(d)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/');
    if (1..=200).contains(&text.len()) && text.chars().all(plain) {
        return Ok(text);
    }
    Err(de::Error::invalid_value(Unexpected::Str(&text), &"1 to 200 letters, digits and `._-/`"))
}

impl<'de> Deserialize<'de> for Device {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = Device;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a device name, or {name, capacity, platform, integrated}")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Device, E> {
                Ok(Device::Named(text.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Device, A::Error> {
                DeviceProperties::deserialize(MapAccessDeserializer::new(map))
                    .map(Device::Described)
            }
        }
        d.deserialize_any(Form)
    }
}

impl JsonSchema for Device {
    fn schema_name() -> Cow<'static, str> {
        "Device".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "string" }, g.subschema_for::<DeviceProperties>()] })
    }
}

impl<'de> Deserialize<'de> for Capacity {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        if text.trim() == "unknown" {
            return Ok(Self::Unknown);
        }
        match super::value::amount(&text)? {
            Bytes::ZERO => Err(de::Error::invalid_value(
                Unexpected::Str(&text),
                &"more than 0 B, or `unknown` when the engine cannot read it",
            )),
            capacity => Ok(Self::Known(capacity)),
        }
    }
}

impl JsonSchema for Capacity {
    fn schema_name() -> Cow<'static, str> {
        "Capacity".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [g.subschema_for::<Amount>(), { "const": "unknown" }] })
    }
}

impl<'de> Deserialize<'de> for Model {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = Model;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a model name, or {name | config | gguf, kv_bytes_per_token, …}")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Model, E> {
                let source = Some(ModelSource::Catalog(text.to_owned()));
                Ok(Model { source, figures: ModelFigures::default() })
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Model, A::Error> {
                ModelForm::deserialize(MapAccessDeserializer::new(map))?.into_model()
            }
        }
        d.deserialize_any(Form)
    }
}

impl ModelForm {
    fn into_model<E: de::Error>(self) -> Result<Model, E> {
        let source = match (self.name, self.config, self.gguf) {
            (Some(name), None, None) => Some(ModelSource::Catalog(name)),
            (None, Some(path), None) => Some(ModelSource::Config(path)),
            (None, None, Some(path)) => Some(ModelSource::Gguf(path)),
            (None, None, None) => None,
            _ => {
                return Err(E::custom(
                    "only one of `name`, `config` and `gguf` can name the model",
                ));
            }
        };
        if source.is_none() && self.kv_bytes_per_token.is_none() {
            return Err(E::custom(
                "the model has no name, config, gguf or kv_bytes_per_token, so its KV cell is unknown",
            ));
        }
        let figures = ModelFigures {
            kv_bytes_per_token: self.kv_bytes_per_token,
            weights: self.weights,
            context_length: self.context_length,
            layers: self.layers,
        };
        Ok(Model { source, figures })
    }
}

impl JsonSchema for Model {
    fn schema_name() -> Cow<'static, str> {
        "Model".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "string" }, g.subschema_for::<ModelForm>()] })
    }
}
