//! Claims of a scenario: in which forms figures can be claimed.

pub use super::figures::{FIGURES, FigureSpec};

use super::{figures::NAMES, time::nanos, value::amount};
use crate::outcome::{
    Figure,
    FigureKind::{self, Bytes, Count, Duration, Number, Text},
};
use plimsoll_core::units::Tokens;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Unexpected, Visitor},
};
use serde_json::{Map, json};
use std::{borrow::Cow, fmt};

/// How a run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The server is up; nothing was sent to it.
    Started,
    /// The engine gave up with a message of its own.
    Refused,
    /// The device had no memory for what the engine asked, at the start or while it served.
    OutOfMemory,
    /// All requests are done.
    Finished,
    /// The kernel or the control group killed the server for the host's memory.
    HostOutOfMemory,
    /// Requests wait, and nothing will ever run.
    Hung,
    /// `limits.max_steps` was reached.
    MaxSteps,
    /// `limits.max_time` was reached.
    MaxTime,
    /// The scheduler ended its own process, for example for lack of slots.
    Fatal,
}

impl Ending {
    /// The word in files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Refused => "refused",
            Self::OutOfMemory => "out_of_memory",
            Self::Finished => "finished",
            Self::HostOutOfMemory => "host_out_of_memory",
            Self::Hung => "hung",
            Self::MaxSteps => "max_steps",
            Self::MaxTime => "max_time",
            Self::Fatal => "fatal",
        }
    }

    /// Those that a scenario without requests can have.
    pub const OF_A_START: [Self; 4] =
        [Self::Started, Self::Refused, Self::OutOfMemory, Self::HostOutOfMemory];
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
    /// A text with this in it.
    Contains(String),
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
    /// How the run ends.
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
        Duration => "a time with its unit, such as `48.2 s`",
        Text => "a text, such as `decode`",
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
            (Bytes | Duration | Text, _) => self.visit_str(&v.to_string()),
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
            Bytes | Duration | Text => self.visit_str(&v.to_string()),
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
            Duration => nanos(text)
                .map(Figure::Duration)
                .map_err(|expected| E::invalid_value(Unexpected::Str(text), &expected.as_str())),
            Text if text.is_empty() => Err(bad()),
            Text => Ok(Figure::Text(text.to_owned())),
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
    Contains,
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
        match self.0 {
            Text => write!(f, "{}, {{any_of: [...]}} or {{contains: ...}}", form(self.0)),
            kind => write!(
                f,
                "{}, {{any_of: [...]}}, {{value, within}} or {{at_least, at_most}}",
                form(kind)
            ),
        }
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
        let mut parts = TestParts::default();
        while let Some(key) = map.next_key()? {
            match key {
                TestKey::AnyOf => parts.any_of = Some(map.next_value_seed(ListSeed(scalar))?),
                TestKey::Contains => parts.contains = Some(map.next_value_seed(scalar)?),
                TestKey::Value => parts.value = Some(map.next_value_seed(scalar)?),
                TestKey::Within => parts.within = Some(map.next_value_seed(scalar)?),
                TestKey::AtLeast => parts.at_least = Some(map.next_value_seed(scalar)?),
                TestKey::AtMost => parts.at_most = Some(map.next_value_seed(scalar)?),
            }
        }
        parts.into_test(self.0).map(Some).map_err(de::Error::custom)
    }
}

/// What a claim in the form of a mapping holds.
#[derive(Default)]
struct TestParts {
    any_of: Option<Vec<Figure>>,
    contains: Option<Figure>,
    value: Option<Figure>,
    within: Option<Figure>,
    at_least: Option<Figure>,
    at_most: Option<Figure>,
}

impl TestParts {
    fn into_test(self, kind: FigureKind) -> Result<Test, &'static str> {
        let Self { any_of, contains, value, within, at_least, at_most } = self;
        let ends = at_least.is_some() || at_most.is_some();
        match (any_of, contains, value, within) {
            (Some(list), None, None, None) if !ends => Ok(Test::AnyOf(list)),
            (None, Some(Figure::Text(part)), None, None) if !ends => Ok(Test::Contains(part)),
            (None, None, Some(value), None) if !ends => Ok(Test::Is(value)),
            _ if kind == Text => Err("a claim about a text is one of {any_of} and {contains}"),
            (None, None, Some(value), Some(within)) if !ends => {
                if within.as_f64() < 0.0 {
                    return Err("`within` is below 0");
                }
                Ok(Test::Within { value, within })
            }
            (None, None, None, None) if ends => match (&at_least, &at_most) {
                (Some(low), Some(high)) if low.as_f64() > high.as_f64() => {
                    Err("`at_least` is above `at_most`, so nothing can hold")
                }
                _ => Ok(Test::Between { at_least, at_most }),
            },
            _ => Err("a claim is one of {any_of}, {value, within} and {at_least, at_most}"),
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
        Duration => g.subschema_for::<super::time::Span>(),
        Text => json_schema!({ "title": "text", "type": "string", "minLength": 1 }),
    }
}

fn test_schema(spec: &FigureSpec, g: &mut SchemaGenerator) -> Schema {
    let scalar = scalar_schema(spec.kind, g).to_value();
    let object = |required: &[&str], keys: &[&str]| {
        let properties: Map<String, serde_json::Value> =
            keys.iter().map(|key| ((*key).to_owned(), scalar.clone())).collect();
        json!({ "type": "object", "properties": properties, "required": required,
                "additionalProperties": false, "minProperties": 1 })
    };
    let any_of = json!({ "type": "object", "required": ["any_of"], "additionalProperties": false,
        "properties": { "any_of": { "type": "array", "items": scalar, "minItems": 1 } } });
    let contains = json!({ "type": "object", "required": ["contains"],
        "additionalProperties": false, "properties": { "contains": scalar } });
    let forms = match spec.kind {
        Text => vec![scalar.clone(), any_of, object(&["value"], &["value"]), contains],
        _ => vec![
            scalar.clone(),
            any_of,
            object(&["value"], &["value", "within"]),
            object(&[], &["at_least", "at_most"]),
        ],
    };
    json_schema!({
        "title": match spec.kind {
            Bytes => "amount", Count => "count", Number => "number", Duration => "time", Text => "text",
        },
        "description": spec.doc,
        "examples": [serde_json::from_str(spec.example).unwrap_or_else(|_| json!(spec.example))],
        "anyOf": forms,
    })
}

impl JsonSchema for Expect {
    fn schema_name() -> Cow<'static, str> {
        "Expect".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        let mut properties = Map::new();
        let mut outcome = g.subschema_for::<Ending>();
        outcome.insert("description".into(), "How the run ends.".into());
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
