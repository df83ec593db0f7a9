//! Claims of a scenario: which figures can be claimed, in which form.

use super::value::amount;
use crate::outcome::{Figure, FigureKind};
use plimsoll_core::units::Tokens;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Unexpected, Visitor},
};
use serde_json::{Map, json};
use std::{borrow::Cow, fmt};

/// One figure that a run can produce and a scenario can claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FigureSpec {
    /// The engine's own name.
    pub name: &'static str,
    /// What kind of value it is.
    pub kind: FigureKind,
    /// What it means.
    pub doc: &'static str,
    /// A value, as it would be written.
    pub example: &'static str,
}

const fn spec(
    name: &'static str,
    kind: FigureKind,
    example: &'static str,
    doc: &'static str,
) -> FigureSpec {
    FigureSpec { name, kind, doc, example }
}

use FigureKind::{Bytes, Count, Number};

/// Every figure that can be claimed.
pub const FIGURES: &[FigureSpec] = &[
    spec("max_total_num_tokens", Count, "231120", "Token slots of the KV pool (SGLang)."),
    spec(
        "mem_fraction_static",
        Number,
        "0.848",
        "Fraction that is used, given or automatic (SGLang).",
    ),
    spec("chunked_prefill_size", Count, "8192", "Tokens of a prefill chunk; -1: off (SGLang)."),
    spec("max_prefill_tokens", Count, "16384", "Tokens of a prefill batch (SGLang)."),
    spec("cuda_graph_max_bs", Count, "512", "Largest batch with a captured graph."),
    spec("max_running_requests", Count, "2048", "Requests that run together (SGLang)."),
    spec("req_to_token_pool_size", Count, "2048", "Rows of the request table (SGLang)."),
    spec(
        "req_to_token_bytes",
        Bytes,
        "2 GiB",
        "Request table, which the budget does not hold (SGLang).",
    ),
    spec("context_len", Count, "262144", "Longest sequence, tokens (SGLang)."),
    spec("page_size", Count, "1", "Tokens of a KV page (SGLang)."),
    spec(
        "kv_bytes_per_token",
        Bytes,
        "70272 B",
        "One KV cell on one rank: all its layers, one token.",
    ),
    spec("kv_pool_bytes", Bytes, "15.126 GiB", "The KV pool of one rank, padding included."),
    spec(
        "full_max_total_num_tokens",
        Count,
        "565446",
        "Slots of the full-attention pool of a hybrid model.",
    ),
    spec(
        "swa_max_total_num_tokens",
        Count,
        "35340",
        "Slots of the sliding-window pool of a hybrid model.",
    ),
    spec(
        "max_mamba_cache_size",
        Count,
        "180",
        "State slots of a Mamba or linear-attention hybrid.",
    ),
    spec("draft_max_total_num_tokens", Count, "231120", "Token slots of the draft model's pool."),
    spec(
        "state_pool_bytes",
        Bytes,
        "51.77 GiB",
        "State slots of a hybrid model, padding included.",
    ),
    spec(
        "suggested_mem_fraction_static",
        Number,
        "0.942",
        "Fraction that a refused start asks for (SGLang).",
    ),
    spec("reserved_memory", Bytes, "14848 MiB", "Reserve behind the automatic fraction (SGLang)."),
    spec(
        "gpu_memory_utilization",
        Number,
        "0.9",
        "Fraction of the device that is asked for (vLLM).",
    ),
    spec(
        "suggested_gpu_memory_utilization",
        Number,
        "0.83",
        "Most that a start refused for lack of free memory could ask for (vLLM).",
    ),
    spec("requested_memory", Bytes, "71.3 GiB", "Device memory that is asked for (vLLM)."),
    spec("available_kv_cache_memory", Bytes, "53.29 GiB", "What is left for KV (vLLM)."),
    spec("num_gpu_blocks", Count, "4660", "Blocks of the KV cache (vLLM)."),
    spec("num_cpu_blocks", Count, "4096", "Blocks of swap space (vLLM V0)."),
    spec("block_size", Count, "16", "Tokens of a block (vLLM)."),
    spec("kv_cache_tokens", Count, "74560", "Tokens of the KV cache, as vLLM prints them."),
    spec("max_model_len", Count, "40000", "Longest sequence, tokens (vLLM)."),
    spec(
        "estimated_max_model_len",
        Count,
        "122080",
        "Longest sequence that fits, as a refused start says (vLLM).",
    ),
    spec("max_num_seqs", Count, "256", "Sequences of a step (vLLM)."),
    spec("max_num_batched_tokens", Count, "8192", "Tokens of a step (vLLM)."),
    spec(
        "max_concurrency",
        Number,
        "1.86",
        "Longest requests that fit together; `1.86x` is read too (vLLM).",
    ),
    spec("weights", Bytes, "72.328 GiB", "What loading took on one rank."),
    spec("graph_memory", Bytes, "3.7 GiB", "What graph capture took."),
    spec("free_after_load", Bytes, "21.71 GiB", "Free device memory after the weights."),
    spec("free_after_pool", Bytes, "6.58 GiB", "Free device memory after the pool."),
    spec("free_after_graphs", Bytes, "0.82 GiB", "Free device memory after graph capture."),
    spec(
        "host_pool_tokens",
        Count,
        "683061",
        "Token slots of one rank's host pool (hierarchical cache).",
    ),
    spec("host_pool_bytes", Bytes, "44.7 GiB", "One rank's host pool (hierarchical cache)."),
    spec("host_required_bytes", Bytes, "357.6 GiB", "Host pools of all ranks on the host."),
];

/// Names of [`FIGURES`] and of the two words, for messages.
static NAMES: [&str; FIGURES.len() + 2] = names();

const fn names() -> [&'static str; FIGURES.len() + 2] {
    let mut all = ["outcome"; FIGURES.len() + 2];
    all[1] = "refusal";
    let mut i = 0;
    while i < FIGURES.len() {
        all[i + 2] = FIGURES[i].name;
        i += 1;
    }
    all
}

/// How a start ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The server is up.
    Started,
    /// The engine gave up with a message of its own.
    Refused,
    /// The machine had no memory for what the engine asked.
    OutOfMemory,
}

impl Ending {
    /// The word in files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Refused => "refused",
            Self::OutOfMemory => "out_of_memory",
        }
    }
}

/// What a figure is claimed to be.
#[derive(Clone, PartialEq, Debug)]
pub enum Test {
    /// Exactly this.
    Is(Figure),
    /// One of these.
    AnyOf(Vec<Figure>),
    /// At most `within` away from `value`, ends included.
    Within {
        /// Middle.
        value: Figure,
        /// Tolerance.
        within: Figure,
    },
    /// Between the ends, ends included; at least one is given.
    Between {
        /// Lower end.
        at_least: Option<Figure>,
        /// Upper end.
        at_most: Option<Figure>,
    },
}

/// The claims of a scenario.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Expect {
    /// How the start ends.
    pub outcome: Option<Ending>,
    /// Stable code of the refusal, such as `not_enough_memory`.
    pub refusal: Option<String>,
    /// Claims about figures, in the order of the file.
    pub figures: Vec<(&'static FigureSpec, Test)>,
}

impl Expect {
    /// Whether nothing is claimed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.outcome.is_none() && self.refusal.is_none() && self.figures.is_empty()
    }
}

impl<'de> Deserialize<'de> for Expect {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_map(ExpectVisitor)
    }
}

struct ExpectVisitor;

impl<'de> Visitor<'de> for ExpectVisitor {
    type Value = Expect;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a mapping of claims, such as `{outcome: started, max_total_num_tokens: 231120}`",
        )
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Expect, A::Error> {
        let mut expect = Expect::default();
        while let Some(key) = map.next_key_seed(ClaimName)? {
            match key {
                ClaimKey::Outcome => expect.outcome = map.next_value()?,
                ClaimKey::Refusal => expect.refusal = map.next_value_seed(RefusalCode)?,
                ClaimKey::Figure(spec) => {
                    if let Some(test) = map.next_value_seed(TestSeed(spec.kind))? {
                        expect.figures.push((spec, test));
                    }
                }
            }
        }
        Ok(expect)
    }
}

enum ClaimKey {
    Outcome,
    Refusal,
    Figure(&'static FigureSpec),
}

struct ClaimName;

impl<'de> DeserializeSeed<'de> for ClaimName {
    type Value = ClaimKey;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<ClaimKey, D::Error> {
        d.deserialize_identifier(self)
    }
}

impl Visitor<'_> for ClaimName {
    type Value = ClaimKey;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a figure")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<ClaimKey, E> {
        match name {
            "outcome" => Ok(ClaimKey::Outcome),
            "refusal" => Ok(ClaimKey::Refusal),
            _ => FIGURES
                .iter()
                .find(|spec| spec.name == name)
                .map(ClaimKey::Figure)
                .ok_or_else(|| E::unknown_field(name, &NAMES)),
        }
    }
}

struct RefusalCode;

impl<'de> DeserializeSeed<'de> for RefusalCode {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Option<String>, D::Error> {
        let Some(code) = Option::<String>::deserialize(d)? else { return Ok(None) };
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if !code.is_empty() && code.chars().all(plain) {
            return Ok(Some(code));
        }
        let expected = "a code of lower-case letters, digits and `_`, such as `not_enough_memory`";
        Err(de::Error::invalid_value(Unexpected::Str(&code), &expected))
    }
}

/// One scalar of a claim, read as its figure's kind.
#[derive(Clone, Copy)]
struct ScalarSeed(FigureKind);

fn form(kind: FigureKind) -> &'static str {
    match kind {
        Bytes => "an amount of memory with its unit, such as `0.82 GiB`",
        Count => "an integer of -1 or more, such as `231120`",
        Number => "a number of 0 or more, such as `0.848`",
    }
}

impl<'de> DeserializeSeed<'de> for ScalarSeed {
    type Value = Figure;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Figure, D::Error> {
        d.deserialize_any(self)
    }
}

impl Visitor<'_> for ScalarSeed {
    type Value = Figure;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(form(self.0))
    }

    fn visit_u64<E: de::Error>(self, v: u64) -> Result<Figure, E> {
        match (self.0, i64::try_from(v)) {
            (Bytes, _) => self.visit_str(&v.to_string()),
            (Number, _) => Ok(Figure::Number(v as f64)),
            (Count, Ok(v)) => Ok(Figure::Count(v)),
            (Count, Err(_)) => Err(E::invalid_value(Unexpected::Unsigned(v), &self)),
        }
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Figure, E> {
        match self.0 {
            Count if v >= -1 => Ok(Figure::Count(v)),
            _ => Err(E::invalid_value(Unexpected::Signed(v), &self)),
        }
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Figure, E> {
        match self.0 {
            Number if v >= 0.0 => Ok(Figure::Number(v)),
            Bytes => self.visit_str(&v.to_string()),
            _ => Err(E::invalid_value(Unexpected::Float(v), &self)),
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Figure, E> {
        let bad = || E::invalid_value(Unexpected::Str(text), &self);
        match self.0 {
            Bytes => amount(text).map(|bytes| Figure::Bytes(bytes.0)),
            Count => {
                let tokens: Tokens = text.parse().map_err(|_| bad())?;
                i64::try_from(tokens.0).map(Figure::Count).map_err(|_| bad())
            }
            Number => match text.strip_suffix('x').map(str::parse::<f64>) {
                Some(Ok(v)) if v.is_finite() && v >= 0.0 => Ok(Figure::Number(v)),
                _ => Err(bad()),
            },
        }
    }
}

/// A claim: a scalar, or one of the mappings.
#[derive(Clone, Copy)]
struct TestSeed(FigureKind);

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum TestKey {
    AnyOf,
    Value,
    Within,
    AtLeast,
    AtMost,
}

impl<'de> DeserializeSeed<'de> for TestSeed {
    type Value = Option<Test>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Option<Test>, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TestSeed {
    type Value = Option<Test>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {{any_of: [...]}}, {{value, within}} or {{at_least, at_most}}", form(self.0))
    }

    fn visit_unit<E>(self) -> Result<Option<Test>, E> {
        Ok(None)
    }

    fn visit_u64<E: de::Error>(self, v: u64) -> Result<Option<Test>, E> {
        ScalarSeed(self.0).visit_u64(v).map(|v| Some(Test::Is(v)))
    }

    fn visit_i64<E: de::Error>(self, v: i64) -> Result<Option<Test>, E> {
        ScalarSeed(self.0).visit_i64(v).map(|v| Some(Test::Is(v)))
    }

    fn visit_f64<E: de::Error>(self, v: f64) -> Result<Option<Test>, E> {
        ScalarSeed(self.0).visit_f64(v).map(|v| Some(Test::Is(v)))
    }

    fn visit_str<E: de::Error>(self, v: &str) -> Result<Option<Test>, E> {
        ScalarSeed(self.0).visit_str(v).map(|v| Some(Test::Is(v)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<Test>, A::Error> {
        let scalar = ScalarSeed(self.0);
        let (mut any_of, mut value, mut within, mut at_least, mut at_most) =
            (None, None, None, None, None);
        while let Some(key) = map.next_key()? {
            match key {
                TestKey::AnyOf => any_of = Some(map.next_value_seed(ListSeed(scalar))?),
                TestKey::Value => value = Some(map.next_value_seed(scalar)?),
                TestKey::Within => within = Some(map.next_value_seed(scalar)?),
                TestKey::AtLeast => at_least = Some(map.next_value_seed(scalar)?),
                TestKey::AtMost => at_most = Some(map.next_value_seed(scalar)?),
            }
        }
        match (any_of, value, within, at_least, at_most) {
            (Some(list), None, None, None, None) => Ok(Some(Test::AnyOf(list))),
            (None, Some(value), None, None, None) => Ok(Some(Test::Is(value))),
            (None, Some(value), Some(within), None, None) => {
                if within.as_f64() < 0.0 {
                    return Err(de::Error::custom("`within` is below 0"));
                }
                Ok(Some(Test::Within { value, within }))
            }
            (None, None, None, at_least, at_most) if at_least.is_some() || at_most.is_some() => {
                match (&at_least, &at_most) {
                    (Some(low), Some(high)) if low.as_f64() > high.as_f64() => {
                        Err(de::Error::custom("`at_least` is above `at_most`, so nothing can hold"))
                    }
                    _ => Ok(Some(Test::Between { at_least, at_most })),
                }
            }
            _ => Err(de::Error::custom(
                "a claim is one of {any_of}, {value, within} and {at_least, at_most}",
            )),
        }
    }
}

struct ListSeed(ScalarSeed);

impl<'de> DeserializeSeed<'de> for ListSeed {
    type Value = Vec<Figure>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Vec<Figure>, D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ListSeed {
    type Value = Vec<Figure>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list, each {}", form(self.0.0))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Figure>, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self.0)? {
            values.push(value);
        }
        if values.is_empty() {
            return Err(de::Error::custom("`any_of` is empty, so nothing can hold"));
        }
        Ok(values)
    }
}

fn scalar_schema(kind: FigureKind, g: &mut SchemaGenerator) -> Schema {
    match kind {
        Bytes => g.subschema_for::<super::value::Amount>(),
        Count => json_schema!({ "title": "count", "anyOf": [
            { "type": "integer", "minimum": -1 },
            { "type": "string", "pattern": r"^[0-9][0-9_, ]*tokens?$" },
        ]}),
        Number => json_schema!({ "title": "number", "anyOf": [
            { "type": "number", "minimum": 0 },
            { "type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?x$" },
        ]}),
    }
}

fn test_schema(spec: &FigureSpec, g: &mut SchemaGenerator) -> Schema {
    let scalar = scalar_schema(spec.kind, g);
    let object = |required: &[&str], keys: &[&str]| {
        let properties: Map<String, serde_json::Value> =
            keys.iter().map(|key| ((*key).to_owned(), scalar.clone().to_value())).collect();
        json!({ "type": "object", "properties": properties, "required": required,
                "additionalProperties": false, "minProperties": 1 })
    };
    let any_of = json!({ "type": "object", "required": ["any_of"], "additionalProperties": false,
        "properties": { "any_of": { "type": "array", "items": scalar, "minItems": 1 } } });
    json_schema!({
        "title": match spec.kind { Bytes => "amount", Count => "count", Number => "number" },
        "description": spec.doc,
        "examples": [serde_json::from_str(spec.example).unwrap_or_else(|_| json!(spec.example))],
        "anyOf": [scalar, any_of, object(&["value"], &["value", "within"]),
                  object(&[], &["at_least", "at_most"])],
    })
}

impl JsonSchema for Expect {
    fn schema_name() -> Cow<'static, str> {
        "Expect".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        let mut properties = Map::new();
        let mut outcome = g.subschema_for::<Ending>();
        outcome.insert("description".into(), "How the start ends.".into());
        outcome.insert("examples".into(), json!(["started"]));
        properties.insert("outcome".into(), outcome.to_value());
        properties.insert(
            "refusal".into(),
            json!({ "title": "code", "type": "string", "pattern": "^[a-z0-9_]+$",
                    "description": "Stable code of the refusal; needs `outcome: refused`.",
                    "examples": ["not_enough_memory"] }),
        );
        for spec in FIGURES {
            properties.insert(spec.name.into(), test_schema(spec, g).to_value());
        }
        json_schema!({ "type": "object", "properties": properties, "additionalProperties": false })
    }
}
