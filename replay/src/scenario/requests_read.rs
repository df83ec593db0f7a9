//! How the workload of a scenario is read: the keys of a group, of sampling, of one request.

use super::{
    form::{Form, checked},
    lengths::{Lengths, MAX_TOKENS, TokenCount, number_within, optional_tokens},
    requests::{
        Gaps, Group, MAX_TURNS, MaxTokens, Pacing, PrefixChoice, Schedule, Shape, SharedPrefix,
        Turns,
    },
    time::{Rate, Span, optional_span, positive_span},
    value::Bounded,
};
use plimsoll_core::{
    engine::serving::{Sampling, SamplingChoice},
    sched::EosRule,
    units::Nanos,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, SeqAccess, Visitor, value::MapAccessDeserializer, value::SeqAccessDeserializer},
};
use std::{borrow::Cow, fmt};

/// Requests of a group.
pub(super) type RequestCount = Bounded<1, 10_000_000>;
/// Prefixes that the requests of a group share.
type PrefixCount = Bounded<1, 1_000_000>;

/// Keys of one group.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupForm {
    /// Name of the group; its random numbers depend on it and on `seed` alone. Left out: `requests`.
    #[serde(default = "default_name")]
    #[schemars(length(min = 1, max = 100), example = &"chat")]
    name: String,
    /// How many requests; beside `turns`, how many conversations.
    #[schemars(example = &150)]
    requests: RequestCount,
    /// Most requests under way together: the next is sent when one ends. Alone it is a closed loop; beside
    /// `at` or `rate` it holds back what is due, as `--max-concurrency` of the benchmark clients does.
    #[schemars(example = &32)]
    concurrency: Option<RequestCount>,
    /// From the end of a request, or of a conversation, to the next one of the same client; needs
    /// `concurrency`.
    #[serde(default, deserialize_with = "optional_span")]
    #[schemars(with = "Option<Span>", example = &"500 ms")]
    think_time: Option<Nanos>,
    /// All are due at this time after the server is ready.
    #[serde(default, deserialize_with = "optional_span")]
    #[schemars(with = "Option<Span>", example = &"12 s")]
    at: Option<Nanos>,
    /// They are due at this mean rate.
    #[schemars(example = &"5 /s")]
    rate: Option<Rate>,
    /// Law of the gaps at a `rate`; left out: `poisson`.
    #[schemars(example = &"poisson")]
    arrivals: Option<GapsForm>,
    /// Shape of `gamma` gaps, as vLLM's `--burstiness`: 1 is Poisson, less is burstier.
    #[serde(default, deserialize_with = "burstiness")]
    #[schemars(range(min = 0.001, max = 1000), example = &0.25)]
    burstiness: Option<f64>,
    /// Bursts: the `rate` holds for a time, and then it does not.
    bursts: Option<Bursts>,
    /// When the first request of a closed loop or of a `rate` is due; left out: `0 s`.
    #[serde(default, deserialize_with = "optional_span")]
    #[schemars(with = "Option<Span>", example = &"3 s")]
    start: Option<Nanos>,
    /// The prompt's own tokens: a number, a list that is gone through again and again, `{uniform: …}` or
    /// `{lognormal: …}`.
    #[schemars(example = &512)]
    prompt_tokens: Lengths,
    /// Tokens after which the model ends its answer by itself, in the same forms.
    #[schemars(example = &128)]
    output_tokens: Lengths,
    /// Limit of new tokens that the client asks for, in the same forms, or `engine`: it asks for none.
    /// Left out: the length of the answer.
    #[schemars(example = &4096)]
    max_tokens: Option<MaxTokens>,
    /// Whether the answer runs to `max_tokens` whatever the model says.
    #[serde(default)]
    #[schemars(example = &true)]
    ignore_eos: bool,
    /// Prefixes before the prompts' own tokens.
    shared_prefix: Option<SharedPrefix>,
    /// Conversations: the prompt of a turn is the one before, its answer, and new tokens.
    turns: Option<TurnsForm>,
    /// How tokens are chosen; left out: the most likely one.
    #[serde(default)]
    sampling: SamplingForm,
    /// Priority, where the engine schedules by it.
    #[schemars(example = &0)]
    priority: Option<i64>,
}

fn default_name() -> String {
    "requests".to_owned()
}

pub(super) fn burstiness<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    number_within(d, 0.001, 1000.0)
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum GapsForm {
    /// Exponential gaps.
    Poisson,
    /// Equal gaps.
    Constant,
    /// Gamma gaps.
    Gamma,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BurstsForm {
    /// How long the rate holds.
    #[serde(default, deserialize_with = "positive_span")]
    #[schemars(required, with = "Span", example = &"10 s")]
    on: Option<Nanos>,
    /// How long it does not, then it holds again.
    #[serde(default, deserialize_with = "optional_span")]
    #[schemars(required, with = "Span", example = &"50 s")]
    off: Option<Nanos>,
    /// Rate between the bursts; left out: nothing comes.
    #[schemars(example = &"0.5 /s")]
    quiet_rate: Option<Rate>,
}

/// Bursts as a pacing.
struct Bursts(Pacing);

impl Form for BurstsForm {
    type Whole = Bursts;
    const EXPECTED: &'static str = "bursts, such as `{on: 10 s, off: 50 s}`";

    fn build<E: de::Error>(self) -> Result<Bursts, E> {
        let on = self.on.ok_or_else(|| E::missing_field("on"))?;
        let off = self.off.ok_or_else(|| E::missing_field("off"))?;
        Ok(Bursts(Pacing::Bursts { on, off, quiet: self.quiet_rate }))
    }
}

impl<'de> Deserialize<'de> for Bursts {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        checked::<BurstsForm, D>(d)
    }
}

impl JsonSchema for Bursts {
    fn schema_name() -> Cow<'static, str> {
        "Bursts".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        BurstsForm::json_schema(g)
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct TurnsForm {
    /// Turns of a conversation, the first included, in the forms of lengths; at most 1000.
    #[schemars(example = &5)]
    count: Lengths,
    /// From an answer to the next turn of its conversation.
    #[serde(default, deserialize_with = "optional_span")]
    #[schemars(with = "Option<Span>", example = &"3 s")]
    think_time: Option<Nanos>,
    /// New tokens of each turn but the first; a list is gone through in each conversation. Left out: as in
    /// `prompt_tokens`.
    #[schemars(example = &64)]
    prompt_tokens: Option<Lengths>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PrefixForm {
    /// Length of a prefix, tokens, in the forms of lengths; each prefix keeps its own.
    #[schemars(example = &2048)]
    tokens: Lengths,
    /// How many different prefixes; left out: 1.
    #[serde(default = "one_prefix")]
    #[schemars(example = &64)]
    groups: PrefixCount,
    /// Which of them a request has: any, all as likely (`random`, also when left out); each as often as the
    /// others, mixed (`even`) or one after the other (`in_order`); or the first ones more often (`zipf`).
    #[schemars(example = &"even")]
    choice: Option<ChoiceForm>,
    /// Exponent of `zipf`: the n-th prefix has a likelihood of n to the power of minus this.
    #[serde(default, deserialize_with = "exponent")]
    #[schemars(range(min = 0, max = 10), example = &1.1)]
    alpha: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum ChoiceForm {
    /// Any.
    Random,
    /// Each as often, mixed.
    Even,
    /// Each as often, one after the other.
    InOrder,
    /// The first ones more often.
    Zipf,
}

fn exponent<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    number_within(d, 0.0, 10.0)
}

impl Form for PrefixForm {
    type Whole = SharedPrefix;
    const EXPECTED: &'static str = "shared prefixes, such as `{tokens: 2048, groups: 64}`";

    fn build<E: de::Error>(self) -> Result<SharedPrefix, E> {
        let choice = match (self.choice.unwrap_or(ChoiceForm::Random), self.alpha) {
            (ChoiceForm::Random, None) => PrefixChoice::Random,
            (ChoiceForm::Even, None) => PrefixChoice::Even,
            (ChoiceForm::InOrder, None) => PrefixChoice::InOrder,
            (ChoiceForm::Zipf, Some(alpha)) => PrefixChoice::Zipf { alpha },
            (ChoiceForm::Zipf, None) => return Err(E::missing_field("alpha")),
            (_, Some(_)) => return Err(E::custom("`alpha` needs `choice: zipf`")),
        };
        Ok(SharedPrefix { tokens: self.tokens, groups: self.groups.0, choice })
    }
}

impl<'de> Deserialize<'de> for SharedPrefix {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        checked::<PrefixForm, D>(d)
    }
}

impl JsonSchema for SharedPrefix {
    fn schema_name() -> Cow<'static, str> {
        "SharedPrefix".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        PrefixForm::json_schema(g)
    }
}

const fn one_prefix() -> PrefixCount {
    Bounded(1)
}

/// How tokens are chosen, and what is asked for besides.
#[derive(Deserialize, JsonSchema, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct SamplingForm {
    /// Temperature; left out: 0 (the most likely token), or 1 beside `top_p`, `top_k` or `min_p`.
    #[serde(default, deserialize_with = "temperature")]
    #[schemars(range(min = 0, max = 100), example = &0.6)]
    temperature: Option<f64>,
    /// Most likely tokens up to this share; 1 cuts nothing.
    #[serde(default, deserialize_with = "share")]
    #[schemars(range(min = 0, max = 1), example = &0.95)]
    top_p: Option<f64>,
    /// This many most likely tokens.
    #[serde(default, deserialize_with = "optional_tokens")]
    #[schemars(with = "Option<TokenCount>", example = &20)]
    top_k: Option<u64>,
    /// Tokens at least this likely beside the most likely one; 0 cuts nothing.
    #[serde(default, deserialize_with = "share")]
    #[schemars(range(min = 0, max = 1), example = &0.05)]
    min_p: Option<f64>,
    /// Whether logprobs of the answer are asked for.
    #[serde(default)]
    #[schemars(example = &true)]
    logprobs: bool,
    /// First prompt token whose logprob is asked for, from 0, a shared prefix counted; those of the answer
    /// come with them.
    #[schemars(example = &0)]
    input_logprobs: Option<Bounded<0, MAX_TOKENS>>,
    /// Whether presence or frequency penalties are asked for.
    #[serde(default)]
    #[schemars(example = &true)]
    penalties: bool,
}

fn temperature<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    number_within(d, 0.0, 100.0)
}

fn share<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    number_within(d, 0.0, 1.0)
}

/// How tokens are chosen under these parameters.
pub(crate) fn choice(
    temperature: Option<f64>,
    (top_p, top_k, min_p): (Option<f64>, Option<u64>, Option<f64>),
) -> SamplingChoice {
    let top = top_p.is_some_and(|p| p < 1.0) || top_k.is_some();
    let min = min_p.is_some_and(|p| p > 0.0);
    let temperature = temperature.unwrap_or(if top || min { 1.0 } else { 0.0 });
    match (temperature > 0.0, min, top) {
        (false, _, _) => SamplingChoice::Greedy,
        (true, true, _) => SamplingChoice::MinP,
        (true, false, true) => SamplingChoice::TopKTopP,
        (true, false, false) => SamplingChoice::Temperature,
    }
}

impl SamplingForm {
    pub(crate) fn sampling(&self) -> (Sampling, Option<u64>) {
        let choice = choice(self.temperature, (self.top_p, self.top_k, self.min_p));
        let start = self.input_logprobs.map(|start| start.0);
        let output_logprobs = self.logprobs || start.is_some();
        (Sampling { choice, output_logprobs, penalties: self.penalties }, start)
    }
}

impl Form for GroupForm {
    type Whole = Group;
    const EXPECTED: &'static str =
        "a group of requests, such as `{requests: 32, concurrency: 8, …}`";

    fn build<E: de::Error>(self) -> Result<Group, E> {
        if self.name.trim().is_empty() || self.name.len() > 100 {
            return Err(E::custom("the `name` of a group has 1 to 100 characters"));
        }
        let schedule = self.schedule()?;
        if self.think_time.is_some() && self.concurrency.is_none() {
            return Err(E::custom("`think_time` needs `concurrency`: who would wait?"));
        }
        let turns = self.turns.map(|turns| turns.turns(&self.prompt_tokens)).transpose()?;
        let (sampling, logprob_start) = self.sampling.sampling();
        Ok(Group {
            turns,
            name: self.name,
            requests: self.requests.0,
            schedule,
            concurrency: self.concurrency.map(|count| count.0),
            think_time: self.think_time.unwrap_or_default(),
            shape: Shape {
                prompt_tokens: self.prompt_tokens,
                output_tokens: self.output_tokens,
                max_tokens: self.max_tokens.unwrap_or(MaxTokens::Output),
                eos: eos_rule(self.ignore_eos),
                sampling,
                logprob_start,
                priority: self.priority,
            },
            shared_prefix: self.shared_prefix,
        })
    }
}

impl TurnsForm {
    fn turns<E: de::Error>(self, prompt_tokens: &Lengths) -> Result<Turns, E> {
        if self.count.longest() > MAX_TURNS {
            return Err(E::custom(format!("a conversation has at most {MAX_TURNS} turns")));
        }
        Ok(Turns {
            count: self.count,
            think_time: self.think_time.unwrap_or_default(),
            prompt_tokens: self.prompt_tokens.unwrap_or_else(|| prompt_tokens.clone()),
        })
    }
}

impl GroupForm {
    fn schedule<E: de::Error>(&self) -> Result<Schedule, E> {
        if self.rate.is_none() && (self.arrivals.is_some() || self.burstiness.is_some()) {
            return Err(E::custom("`arrivals` and `burstiness` need a `rate`"));
        }
        if self.rate.is_none() && self.bursts.is_some() {
            return Err(E::custom("`bursts` need a `rate`: the one that holds in a burst"));
        }
        match (self.at, self.rate, self.concurrency) {
            (Some(_), Some(_), _) => Err(E::custom(
                "`at` and `rate` exclude each other: a group is due at one time or at a rate",
            )),
            (Some(_), None, _) if self.start.is_some() => {
                Err(E::custom("`at` and `start` exclude each other"))
            }
            (Some(at), None, _) => Ok(Schedule::Together { at }),
            (None, Some(rate), _) => {
                let start = self.start.unwrap_or_default();
                let gaps = gaps(self.arrivals, self.burstiness)?;
                let pacing = self.bursts.as_ref().map_or(Pacing::Steady, |bursts| bursts.0);
                Ok(Schedule::Rate { rate, gaps, start, pacing })
            }
            (None, None, Some(_)) => Ok(Schedule::Together { at: self.start.unwrap_or_default() }),
            (None, None, None) => Err(E::custom(
                "when its requests arrive is not said: `concurrency: 32`, `at: 12 s` or `rate: 5 /s`",
            )),
        }
    }
}

pub(super) fn gaps<E: de::Error>(
    law: Option<GapsForm>,
    burstiness: Option<f64>,
) -> Result<Gaps, E> {
    match (law.unwrap_or(GapsForm::Poisson), burstiness) {
        (GapsForm::Poisson, None) => Ok(Gaps::Poisson),
        (GapsForm::Constant, None) => Ok(Gaps::Constant),
        (GapsForm::Gamma, Some(burstiness)) => Ok(Gaps::Gamma { burstiness }),
        (GapsForm::Gamma, None) => Err(E::missing_field("burstiness")),
        (_, Some(_)) => Err(E::custom("`burstiness` needs `arrivals: gamma`")),
    }
}

pub(super) const fn eos_rule(ignore_eos: bool) -> EosRule {
    if ignore_eos { EosRule::Ignored } else { EosRule::Ends }
}

/// A single request, as an event sends it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestForm {
    /// Tokens of the prompt.
    #[schemars(example = &65536)]
    prompt_tokens: TokenCount,
    /// Tokens of the answer.
    #[schemars(example = &128)]
    output_tokens: TokenCount,
    /// Limit of new tokens that the client asks for. Left out: the length of the answer.
    max_tokens: Option<MaxTokens>,
    /// Whether the answer runs to `max_tokens` whatever the model says.
    #[serde(default)]
    #[schemars(example = &true)]
    ignore_eos: bool,
    /// How tokens are chosen; left out: the most likely one.
    #[serde(default)]
    sampling: SamplingForm,
    /// Priority, where the engine schedules by it.
    #[schemars(example = &0)]
    priority: Option<i64>,
}

impl RequestForm {
    pub(crate) fn into_shape(self) -> Shape {
        let (sampling, logprob_start) = self.sampling.sampling();
        Shape {
            prompt_tokens: Lengths::Fixed(self.prompt_tokens.0),
            output_tokens: Lengths::Fixed(self.output_tokens.0),
            max_tokens: self.max_tokens.unwrap_or(MaxTokens::Output),
            eos: eos_rule(self.ignore_eos),
            sampling,
            logprob_start,
            priority: self.priority,
        }
    }
}

impl<'de> Deserialize<'de> for Group {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        checked::<GroupForm, D>(d)
    }
}

impl JsonSchema for Group {
    fn schema_name() -> Cow<'static, str> {
        "Group".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        GroupForm::json_schema(g)
    }
}

impl<'de> Deserialize<'de> for MaxTokens {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct LimitForm;
        impl<'de> Visitor<'de> for LimitForm {
            type Value = MaxTokens;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("lengths as for `output_tokens`, or `engine`")
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<MaxTokens, E> {
                let lengths: de::value::U64Deserializer<E> =
                    de::IntoDeserializer::into_deserializer(v);
                Lengths::deserialize(lengths).map(MaxTokens::Lengths)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<MaxTokens, E> {
                if text == "engine" {
                    return Ok(MaxTokens::Engine);
                }
                let lengths: de::value::StrDeserializer<'_, E> =
                    de::IntoDeserializer::into_deserializer(text);
                Lengths::deserialize(lengths).map(MaxTokens::Lengths)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<MaxTokens, A::Error> {
                Lengths::deserialize(SeqAccessDeserializer::new(list)).map(MaxTokens::Lengths)
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<MaxTokens, A::Error> {
                Lengths::deserialize(MapAccessDeserializer::new(map)).map(MaxTokens::Lengths)
            }
        }
        d.deserialize_any(LimitForm)
    }
}

impl JsonSchema for MaxTokens {
    fn schema_name() -> Cow<'static, str> {
        "MaxTokens".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [g.subschema_for::<Lengths>(), { "const": "engine" }] })
    }
}
