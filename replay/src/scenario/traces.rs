//! Recorded workloads in a scenario: which file, and how its requests are sent.

use super::{
    form::{Form, checked},
    lengths::{TokenCount, number_within, optional_tokens},
    requests::{MaxTokens, Pacing, Schedule},
    requests_read::{GapsForm, RequestCount, SamplingForm, burstiness, eos_rule, gaps},
    time::{Rate, Span, nanos, optional_span},
    value::Bounded,
};
use plimsoll_core::{engine::serving::Sampling, sched::EosRule, units::Nanos};
use plimsoll_ingest::workload::{Failures, Filter, Format, MAX_BLOCK_SIZE, Options};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};
use std::{borrow::Cow, fmt, path::PathBuf};

/// Requests of a file.
#[derive(Clone, PartialEq, Debug)]
pub struct TraceSource {
    /// Name; its random numbers depend on it and on the seed alone.
    pub name: String,
    /// The file; a relative path starts at the scenario file.
    pub file: PathBuf,
    /// How it is read.
    pub options: Options,
    /// How much faster than recorded its requests come; more than 0.
    pub speedup: f64,
    /// Whether requests of one time are spread until the next.
    pub smear: Smear,
    /// Whether the rows are sent in mixed order; `limit` then takes some of all.
    pub shuffle: bool,
    /// Most rows that are sent.
    pub limit: Option<u64>,
    /// Most that are under way together.
    pub concurrency: Option<u64>,
    /// When the first one is due, since the server is ready.
    pub start: Nanos,
    /// When they are due instead of at their own times.
    pub schedule: Option<Schedule>,
    /// Limit of new tokens; `None`: the row's, or the length of its answer.
    pub max_tokens: Option<MaxTokens>,
    /// Whether the model's end counts.
    pub eos: EosRule,
    /// What sampling allocates.
    pub sampling: Sampling,
    /// First prompt token whose logprob is asked for.
    pub logprob_start: Option<u64>,
    /// Priority of the rows that have none.
    pub priority: Option<i64>,
    /// Tokens that a block id stands for instead of its own number, its last one too.
    pub tokens_per_block: Option<u64>,
}

/// Whether requests of one recorded time are spread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Smear {
    /// They come together.
    #[default]
    No,
    /// Over the shortest time between two recorded times, at most up to the next one.
    Detected,
    /// Over this time, at most up to the next recorded one.
    Over(Nanos),
}

impl TraceSource {
    /// A file whose requests are sent as they were recorded.
    #[must_use]
    pub fn plain(file: PathBuf) -> Self {
        Self {
            name: "trace".to_owned(),
            file,
            options: Options::default(),
            speedup: 1.0,
            smear: Smear::No,
            shuffle: false,
            limit: None,
            concurrency: None,
            start: Nanos(0),
            schedule: None,
            max_tokens: None,
            eos: EosRule::Ends,
            sampling: Sampling::default(),
            logprob_start: None,
            priority: None,
            tokens_per_block: None,
        }
    }
}

/// Keys of a trace.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TraceForm {
    /// The file, from the folder of the scenario file.
    #[schemars(with = "String", example = &"data/chat.jsonl")]
    file: PathBuf,
    /// Name of this part; its random numbers depend on it and on `seed` alone. Left out: `trace`.
    #[schemars(length(min = 1, max = 100), example = &"chat")]
    name: Option<String>,
    /// Format of the file; left out: as its content shows.
    format: Option<FormatName>,
    /// Tokens of a block of its ids; left out: the format's, or what fits the rows.
    #[schemars(example = &16)]
    block_size: Option<Bounded<1, MAX_BLOCK_SIZE>>,
    /// How much faster than recorded the requests come: 2 halves the times, 0.5 doubles them.
    #[serde(default, deserialize_with = "speedup")]
    #[schemars(range(min = 0.000_001, max = 1_000_000), example = &2)]
    speedup: Option<f64>,
    /// Spreads requests of one recorded time, as traces with coarse clocks need it: `true` over the shortest
    /// time between two recorded ones, or over the time that is given, at most up to the next.
    #[serde(default)]
    #[schemars(example = &true)]
    smear_arrivals: Smear,
    /// Most rows that are sent, from the beginning.
    #[schemars(example = &1000)]
    limit: Option<RequestCount>,
    /// Whether the rows are sent in mixed order; `limit` then takes some of all.
    #[serde(default)]
    #[schemars(example = &true)]
    shuffle: bool,
    /// Most requests under way together: what is due waits, as with `--max-concurrency` of the benchmark
    /// clients.
    #[schemars(example = &32)]
    concurrency: Option<RequestCount>,
    /// When the first request is due; left out: `0 s`.
    #[serde(default, deserialize_with = "optional_span")]
    #[schemars(with = "Option<Span>", example = &"3 s")]
    start: Option<Nanos>,
    /// They are due at this mean rate instead of at their recorded times.
    #[schemars(example = &"5 /s")]
    rate: Option<Rate>,
    /// Law of the gaps at a `rate`, and what goes with it.
    #[schemars(example = &"poisson")]
    arrivals: Option<GapsForm>,
    /// Shape of `gamma` gaps.
    #[serde(default, deserialize_with = "burstiness")]
    #[schemars(range(min = 0.001, max = 1000), example = &0.25)]
    burstiness: Option<f64>,
    /// Limit of new tokens that the client asks for, as in a group. Left out: what the row says, or the
    /// length of its answer.
    #[schemars(example = &4096)]
    max_tokens: Option<MaxTokens>,
    /// Whether the answers run to their limit whatever the model says.
    #[serde(default)]
    #[schemars(example = &true)]
    ignore_eos: bool,
    /// How tokens are chosen; left out: the most likely one.
    #[serde(default)]
    sampling: SamplingForm,
    /// Priority of rows that have none.
    #[schemars(example = &0)]
    priority: Option<i64>,
    /// Requests that were recorded without an answer: left out, or sent and answered with one token. Left
    /// out: `drop`.
    #[serde(default)]
    #[schemars(with = "Option<FailuresName>", example = &"keep")]
    failures: FailuresName,
    /// ShareGPT: characters of a token; left out: 4. An estimate, and it is said to be one.
    #[serde(default, deserialize_with = "characters")]
    #[schemars(range(min = 0.1, max = 100), example = &3.8)]
    chars_per_token: Option<f64>,
    /// ShareGPT: which conversations count, as the benchmark clients filter them. Left out: `sglang`.
    #[serde(default)]
    #[schemars(with = "Option<FilterName>", example = &"vllm")]
    filter: FilterName,
    /// ShareGPT with SGLang's filter: most tokens of a prompt and its answer.
    #[serde(default, deserialize_with = "optional_tokens")]
    #[schemars(with = "Option<TokenCount>", example = &8192)]
    context_length: Option<u64>,
    /// Whether a row that cannot be read is an error; left out: such rows are left out and counted.
    #[serde(default)]
    #[schemars(example = &true)]
    strict: bool,
}

fn speedup<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    number_within(d, 0.000_001, 1_000_000.0)
}

fn characters<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    number_within(d, 0.1, 100.0)
}

#[derive(Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum FailuresName {
    /// Left out.
    #[default]
    Drop,
    /// Sent.
    Keep,
}

#[derive(Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum FilterName {
    /// SGLang's.
    #[default]
    Sglang,
    /// vLLM's.
    Vllm,
    /// None.
    All,
}

/// Name of a format.
struct FormatName(Format);

impl<'de> Deserialize<'de> for FormatName {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let name = String::deserialize(d)?;
        let unknown = || de::Error::unknown_variant(&name, &Format::NAMES);
        Format::named(&name).map(Self).ok_or_else(unknown)
    }
}

impl JsonSchema for FormatName {
    fn schema_name() -> Cow<'static, str> {
        "FormatName".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": Format::NAMES, "examples": ["mooncake"] })
    }
}

impl<'de> Deserialize<'de> for Smear {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Word;
        impl Visitor<'_> for Word {
            type Value = Smear;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`true`, `false`, or a time such as `3 s`")
            }
            fn visit_bool<E: de::Error>(self, smear: bool) -> Result<Smear, E> {
                Ok(if smear { Smear::Detected } else { Smear::No })
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Smear, E> {
                match nanos(text) {
                    Ok(span) if span > Nanos(0) => Ok(Smear::Over(span)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        d.deserialize_any(Word)
    }
}

impl JsonSchema for Smear {
    fn schema_name() -> Cow<'static, str> {
        "Smear".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "boolean" }, g.subschema_for::<Span>()] })
    }
}

impl Form for TraceForm {
    type Whole = TraceSource;
    const EXPECTED: &'static str = "a recorded workload, such as `{file: data/chat.jsonl}`";

    fn build<E: de::Error>(self) -> Result<TraceSource, E> {
        let schedule = match self.rate {
            None if self.arrivals.is_some() || self.burstiness.is_some() => {
                return Err(E::custom("`arrivals` and `burstiness` need a `rate`"));
            }
            None => None,
            Some(rate) => {
                let gaps = gaps(self.arrivals, self.burstiness)?;
                let start = self.start.unwrap_or_default();
                Some(Schedule::Rate { rate, gaps, start, pacing: Pacing::Steady })
            }
        };
        if schedule.is_some() && (self.speedup.is_some() || self.smear_arrivals != Smear::No) {
            return Err(E::custom(
                "`rate` replaces the recorded times, which `speedup` and `smear_arrivals` change",
            ));
        }
        let name = self.name.unwrap_or_else(|| "trace".to_owned());
        if name.trim().is_empty() || name.len() > 100 {
            return Err(E::custom("the `name` of a trace has 1 to 100 characters"));
        }
        let (sampling, logprob_start) = self.sampling.sampling();
        let limit = self.limit.map(|limit| limit.0);
        let options = Options {
            format: self.format.map(|format| format.0),
            block_size: self.block_size.map(|size| size.0),
            limit: limit.filter(|_| !self.shuffle),
            failures: match self.failures {
                FailuresName::Drop => Failures::Drop,
                FailuresName::Keep => Failures::Keep,
            },
            chars_per_token: self.chars_per_token.unwrap_or(4.0),
            filter: match self.filter {
                FilterName::Sglang => Filter::Sglang,
                FilterName::Vllm => Filter::Vllm,
                FilterName::All => Filter::All,
            },
            context_length: self.context_length,
            strict: self.strict,
        };
        Ok(TraceSource {
            name,
            options,
            speedup: self.speedup.unwrap_or(1.0),
            smear: self.smear_arrivals,
            shuffle: self.shuffle,
            limit,
            concurrency: self.concurrency.map(|most| most.0),
            start: self.start.unwrap_or_default(),
            schedule,
            max_tokens: self.max_tokens,
            eos: eos_rule(self.ignore_eos),
            sampling,
            logprob_start,
            priority: self.priority,
            ..TraceSource::plain(self.file)
        })
    }
}

impl<'de> Deserialize<'de> for TraceSource {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        checked::<TraceForm, D>(d)
    }
}

impl JsonSchema for TraceSource {
    fn schema_name() -> Cow<'static, str> {
        "TraceSource".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        TraceForm::json_schema(g)
    }
}
