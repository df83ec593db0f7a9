//! How a workload is read: groups, traces, benchmark commands, presets, one of them or a list.

use super::{
    de::Node,
    requests::{Group, MAX_GROUPS, Part, Workload},
    requests_read::{GroupForm, RequestCount},
    time::Rate,
    traces::TraceSource,
};
use crate::{path::KeyPath, workload::bench, workload::presets};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{
        self, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor,
        value::MapAccessDeserializer,
    },
};
use std::{borrow::Cow, fmt};

/// Keys that make a part by themselves.
const WHOLE: [&str; 3] = ["trace", "bench", "preset"];

/// Keys with which a part may begin.
const KEYS: &[&str] = &[
    "trace",
    "bench",
    "preset",
    "name",
    "requests",
    "concurrency",
    "think_time",
    "at",
    "rate",
    "arrivals",
    "burstiness",
    "bursts",
    "start",
    "prompt_tokens",
    "output_tokens",
    "max_tokens",
    "ignore_eos",
    "shared_prefix",
    "turns",
    "sampling",
    "priority",
];

/// The first key of a mapping, which says what it is.
struct FirstKey;

impl<'de> DeserializeSeed<'de> for FirstKey {
    type Value = &'static str;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<&'static str, D::Error> {
        d.deserialize_identifier(self)
    }
}

impl Visitor<'_> for FirstKey {
    type Value = &'static str;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key of a group of requests, or `trace`, `bench`, `preset`")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<&'static str, E> {
        let known = KEYS.iter().find(|key| **key == name).copied();
        known.ok_or_else(|| E::unknown_field(name, KEYS))
    }
}

/// A mapping whose first key was read already.
struct Behind<A> {
    first: Option<&'static str>,
    rest: A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Behind<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        match self.first.take() {
            Some(first) => seed.deserialize(first.into_deserializer()).map(Some),
            None => self.rest.next_key_seed(seed),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.rest.next_value_seed(seed)
    }
}

fn part<'de, A: MapAccess<'de>>(mut map: A) -> Result<Part, A::Error> {
    let Some(first) = map.next_key_seed(FirstKey)? else {
        return Err(de::Error::missing_field("requests"));
    };
    if !WHOLE.contains(&first) {
        let group = Group::deserialize(MapAccessDeserializer::new(Behind {
            first: Some(first),
            rest: map,
        }))?;
        return Ok(Part::Group(Box::new(group)));
    }
    let part = match first {
        "trace" => Part::Trace(Box::new(map.next_value::<TraceSource>()?)),
        "bench" => map.next_value::<BenchText>()?.0,
        _ => map.next_value::<Preset>()?.0,
    };
    match map.next_key::<Cow<'_, str>>()? {
        None => Ok(part),
        Some(other) => {
            let message =
                format!("`{first}` stands alone, or as one of a list; `{other}` stands beside it");
            Err(de::Error::custom(message))
        }
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Part;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a group of requests, such as `{requests: 32, concurrency: 8, …}`, or `{trace: …}`, \
                     `{bench: …}`, `{preset: …}`",
                )
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Part, A::Error> {
                part(map)
            }
        }
        d.deserialize_map(Keys)
    }
}

impl JsonSchema for Part {
    fn schema_name() -> Cow<'static, str> {
        "Part".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        let trace = g.subschema_for::<TraceSource>();
        let preset = g.subschema_for::<PresetForm>();
        let names: Vec<&str> = presets::names().collect();
        let alone = |key: &str, value: serde_json::Value| {
            json_schema!({ "type": "object", "additionalProperties": false, "minProperties": 1,
                "properties": { key: value } })
        };
        json_schema!({ "title": "part", "anyOf": [
            GroupForm::json_schema(g),
            alone("trace", serde_json::json!({ "anyOf": [trace],
                "description": "A recorded workload." })),
            alone("bench", serde_json::json!({ "type": "string",
                "description": "A command of SGLang's `bench_serving` or vLLM's `bench serve`, as typed, with its \
                    own defaults.",
                "examples": ["vllm bench serve --random-input-len 512 --max-concurrency 32"] })),
            alone("preset", serde_json::json!({ "anyOf": [
                { "type": "string", "enum": names }, preset],
                "description": "A workload by name.", "examples": ["chat-short"] })),
        ]})
    }
}

/// A benchmark command.
struct BenchText(Part);

impl<'de> Deserialize<'de> for BenchText {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        bench::part(&text).map(Self).map_err(de::Error::custom)
    }
}

/// A preset with what is changed of it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PresetForm {
    /// Its name.
    #[schemars(example = &"chat-short")]
    name: String,
    /// How many requests, instead of the preset's.
    #[schemars(example = &200)]
    requests: Option<RequestCount>,
    /// Mean rate, instead of the preset's times.
    #[schemars(example = &"4 /s")]
    rate: Option<Rate>,
    /// Most requests under way together.
    #[schemars(example = &32)]
    concurrency: Option<RequestCount>,
}

struct Preset(Part);

impl<'de> Deserialize<'de> for Preset {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Name;
        impl<'de> Visitor<'de> for Name {
            type Value = PresetForm;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a preset, or `{name, requests, rate, concurrency}`")
            }
            fn visit_str<E: de::Error>(self, name: &str) -> Result<PresetForm, E> {
                let name = name.to_owned();
                Ok(PresetForm { name, requests: None, rate: None, concurrency: None })
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PresetForm, A::Error> {
                PresetForm::deserialize(MapAccessDeserializer::new(map))
            }
        }
        let form = d.deserialize_any(Name)?;
        let Some(preset) = presets::named(&form.name) else {
            return Err(de::Error::unknown_variant(&form.name, presets::NAMES));
        };
        let mut group = preset.group;
        if let Some(requests) = form.requests {
            group.requests = requests.0;
        }
        if let Some(rate) = form.rate {
            group.set_rate(rate);
        }
        group.concurrency = form.concurrency.map(|most| most.0).or(group.concurrency);
        Ok(Self(Part::Group(Box::new(group))))
    }
}

/// A group from the text of a preset.
pub(crate) fn group_of(text: &str) -> Option<Group> {
    let parsed = crate::yaml::parse(text).ok()?;
    let node = Node { value: &parsed.root, path: KeyPath::root() };
    Group::deserialize(node).ok()
}

impl<'de> Deserialize<'de> for Workload {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Parts;
        impl<'de> Visitor<'de> for Parts {
            type Value = Workload;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a group of requests such as `{requests: 32, concurrency: 8, …}`, `{trace: …}`, \
                     `{bench: …}`, `{preset: …}`, or a list of such",
                )
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Workload, A::Error> {
                let mut parts = Vec::new();
                while let Some(part) = list.next_element()? {
                    parts.push(part);
                }
                if parts.is_empty() || parts.len() > MAX_GROUPS {
                    let message = format!("a workload has 1 to {MAX_GROUPS} groups of requests");
                    return Err(de::Error::custom(message));
                }
                Ok(Workload { parts })
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Workload, A::Error> {
                Ok(Workload { parts: vec![part(map)?] })
            }
        }
        d.deserialize_any(Parts)
    }
}

impl JsonSchema for Workload {
    fn schema_name() -> Cow<'static, str> {
        "Workload".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        let part = g.subschema_for::<Part>();
        json_schema!({ "anyOf": [
            part, { "type": "array", "items": part, "minItems": 1, "maxItems": MAX_GROUPS }
        ]})
    }
}
