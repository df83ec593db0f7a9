//! The server of a scenario: release, launch command, flags, environment.

use plimsoll_core::policy::sglang::version::Version;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Unexpected, Visitor},
};
use serde_json::Value;
use std::{borrow::Cow, collections::BTreeMap, fmt};

/// The two engines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum EngineName {
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
}

impl EngineName {
    /// The name in files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sglang => "sglang",
            Self::Vllm => "vllm",
        }
    }
}

/// The server that is started: release and launch.
#[derive(Clone, PartialEq, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Engine {
    /// Which engine; may be left out when `command` shows it.
    #[schemars(example = &"sglang")]
    pub name: Option<EngineName>,
    /// Release whose rules apply.
    #[serde(deserialize_with = "version")]
    #[schemars(with = "VersionText", example = &"0.5.8")]
    pub version: Version,
    /// The launch as typed, with whatever stands before it.
    #[schemars(example = &"python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8")]
    pub command: Option<String>,
    /// Flags by the engine's own names, with or without `--`; beside `command` they replace its flags.
    /// Values: a number, a text, `true`, `false`, a list, or a mapping (passed as JSON).
    #[serde(default, deserialize_with = "flags")]
    #[schemars(with = "BTreeMap<String, Value>")]
    pub flags: Vec<(String, FlagValue)>,
    /// Environment variables of the server.
    #[serde(default, deserialize_with = "environment")]
    #[schemars(with = "BTreeMap<String, EnvText>")]
    pub environment: BTreeMap<String, String>,
}

impl Engine {
    /// The engine: `name`, or what `command` shows. Checked files always have one.
    #[must_use]
    pub fn engine(&self) -> Option<EngineName> {
        self.name.or_else(|| self.command.as_deref().and_then(engine_of_command))
    }

    /// `flags` as tokens of a command line, in the order of the file; they win over those of `command`.
    #[must_use]
    pub fn flag_tokens(&self) -> Vec<String> {
        self.flags.iter().flat_map(|(name, value)| value.tokens(name)).collect()
    }

    /// Names of the flags that are `false`: what `command` says of them does not count.
    #[must_use]
    pub fn switched_off(&self) -> Vec<&str> {
        let off = |value: &FlagValue| *value == FlagValue::Switch(false);
        self.flags.iter().filter(|(_, value)| off(value)).map(|(name, _)| name.as_str()).collect()
    }
}

/// Which engine a command starts, by the first word that names a launcher or an image of one.
#[must_use]
pub fn engine_of_command(command: &str) -> Option<EngineName> {
    let words = command.split(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ';' | '('));
    for word in words {
        let name = word.rsplit('/').next().unwrap_or(word);
        let name = name.split([':', '@']).next().unwrap_or(name);
        let is = |engine: &str| {
            name == engine
                || name.strip_prefix(engine).is_some_and(|rest| rest.starts_with(['.', '-', '=']))
        };
        if is("sglang") {
            return Some(EngineName::Sglang);
        }
        if is("vllm") {
            return Some(EngineName::Vllm);
        }
    }
    None
}

/// Value of one flag.
#[derive(Clone, PartialEq, Debug)]
pub enum FlagValue {
    /// Present without a value, or absent.
    Switch(bool),
    /// One value, as it would be typed.
    One(String),
    /// Several values.
    Many(Vec<String>),
    /// JSON text.
    Json(String),
}

impl FlagValue {
    /// The tokens of `--name value`; empty for a switch that is off.
    #[must_use]
    pub fn tokens(&self, name: &str) -> Vec<String> {
        let mut tokens = vec![format!("--{name}")];
        match self {
            Self::Switch(true) => {}
            Self::Switch(false) => tokens.clear(),
            Self::One(value) | Self::Json(value) => tokens.push(value.clone()),
            Self::Many(values) => tokens.extend(values.iter().cloned()),
        }
        tokens
    }
}

/// The text of a release, for the schema.
struct VersionText;

impl JsonSchema for VersionText {
    fn schema_name() -> Cow<'static, str> {
        "VersionText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let pattern = r"^[vV]?[0-9]+\.[0-9]+\.[0-9]+.*$";
        json_schema!({ "title": "release", "type": "string", "pattern": pattern })
    }
}

fn version<'de, D: Deserializer<'de>>(d: D) -> Result<Version, D::Error> {
    let text = String::deserialize(d)?;
    text.parse().map_err(|_| {
        let allowed = "a release of three numbers, such as `0.5.8` or `0.4.9.post3`";
        de::Error::invalid_value(Unexpected::Str(&text), &allowed)
    })
}

fn flags<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<(String, FlagValue)>, D::Error> {
    struct Flags;
    impl<'de> Visitor<'de> for Flags {
        type Value = Vec<(String, FlagValue)>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a mapping of flags, such as `{tp: 8, mem-fraction-static: 0.93}`")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut flags: Self::Value = Vec::new();
            while let Some((key, value)) = map.next_entry::<String, FlagValue>()? {
                let name = key.trim_start_matches('-').replace('_', "-");
                if flags.iter().any(|(other, _)| *other == name) {
                    return Err(de::Error::custom(format!("the flag `--{name}` is given twice")));
                }
                flags.push((name, value));
            }
            Ok(flags)
        }
    }
    d.deserialize_map(Flags)
}

impl<'de> Deserialize<'de> for FlagValue {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let scalar = |value: &Value| match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(n) => Some(number_text(n)),
            _ => None,
        };
        match Value::deserialize(d)? {
            Value::Null => Ok(Self::Switch(true)),
            Value::Bool(on) => Ok(Self::Switch(on)),
            value @ Value::Object(_) => Ok(Self::Json(value.to_string())),
            Value::Array(list) => {
                let items: Option<Vec<String>> = list.iter().map(scalar).collect();
                let expected = "a list of numbers or texts";
                items
                    .map(Self::Many)
                    .ok_or_else(|| de::Error::invalid_type(Unexpected::Seq, &expected))
            }
            value => scalar(&value).map(Self::One).ok_or_else(|| {
                de::Error::custom("a flag's value is a number, text, list or mapping")
            }),
        }
    }
}

/// The number as it would be typed after a flag.
fn number_text(n: &serde_json::Number) -> String {
    match (n.is_f64(), n.as_f64()) {
        (true, Some(x)) => plimsoll_core::pyfloat::repr(x),
        _ => n.to_string(),
    }
}

/// Value of an environment variable: a text, an integer or a truth value, kept as text.
struct EnvText(String);

impl<'de> Deserialize<'de> for EnvText {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match Value::deserialize(d)? {
            Value::String(text) => Ok(Self(text)),
            Value::Bool(on) => Ok(Self(on.to_string())),
            Value::Number(n) => Ok(Self(number_text(&n))),
            _ => Err(de::Error::invalid_type(Unexpected::Other("value"), &"a text or a number")),
        }
    }
}

impl JsonSchema for EnvText {
    fn schema_name() -> Cow<'static, str> {
        "EnvText".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "title": "text", "type": ["string", "number", "boolean"],
            "description": "Value of one variable.", "examples": ["1"] })
    }
}

fn environment<'de, D: Deserializer<'de>>(d: D) -> Result<BTreeMap<String, String>, D::Error> {
    let map = BTreeMap::<String, EnvText>::deserialize(d)?;
    Ok(map.into_iter().map(|(name, value)| (name, value.0)).collect())
}
