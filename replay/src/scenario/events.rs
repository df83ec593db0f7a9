//! Events of a scenario: what happens to the machine during the start and while the server runs.

use super::{
    form::{Form, checked},
    neighbours::Held,
    requests::Shape,
    requests_read::RequestForm,
    time::{Span, nanos, optional_span, positive_span},
    value::{Amount, Bounded, RankIndex, optional_amount, required_amount},
};
use crate::problem::near;
use plimsoll_core::units::{Bytes, Nanos};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer,
    de::{self, Unexpected, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;
use std::{borrow::Cow, fmt};

/// Phase of the start in which an event happens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum EventTime {
    /// Before free memory is read for the first time.
    BeforeLoad,
    /// After the weights are loaded, before the second reading.
    AfterLoad,
    /// Between the reading and the allocation of the pool.
    DuringSizing,
}

impl EventTime {
    /// All, in their order.
    pub const ALL: [Self; 3] = [Self::BeforeLoad, Self::AfterLoad, Self::DuringSizing];

    /// The name in files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::BeforeLoad => "before_load",
            Self::AfterLoad => "after_load",
            Self::DuringSizing => "during_sizing",
        }
    }
}

/// When an event happens.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum EventAt {
    /// During the start.
    Phase(EventTime),
    /// This long after the server is ready.
    Time(Nanos),
    /// Before the step of this number, from 0.
    Step(u64),
}

/// Ranks that an event reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ranks {
    /// Every rank.
    #[default]
    All,
    /// One, from 0.
    One(u32),
}

/// Something that happens.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// When.
    pub at: EventAt,
    /// Whose device.
    pub rank: Ranks,
    /// What.
    pub what: Happening,
}

impl Event {
    /// The phase and the amount of an event of the start; `None` for one of the running server.
    #[must_use]
    pub const fn of_start(&self) -> Option<(EventTime, Bytes)> {
        match (self.at, &self.what) {
            (EventAt::Phase(phase), Happening::OthersHold(held)) => Some((phase, *held)),
            _ => None,
        }
    }
}

/// What happens.
#[derive(Clone, PartialEq, Debug)]
pub enum Happening {
    /// Other programs hold this much of the device from then on, in all.
    OthersHold(Bytes),
    /// Other programs grow or shrink on the device.
    OthersGrow(Growth),
    /// Other programs hold this much of the host's memory from then on, in all.
    HostOthersHold(Bytes),
    /// Other programs grow or shrink on the host.
    HostOthersGrow(Growth),
    /// The server loses device memory for good.
    Leak(Leak),
    /// One more request arrives.
    Request(Box<Shape>),
}

/// A straight line from what is held to another amount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// Where it ends.
    pub target: Target,
    /// How long it takes, more than 0.
    pub over: Nanos,
}

/// Where a growth ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// At this amount, above or below what is held.
    To(Bytes),
    /// This much above what is held.
    By(Bytes),
}

/// Memory that is lost again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leak {
    /// How much each time.
    pub bytes: Bytes,
    /// Further losses after the first.
    pub repeats: u64,
    /// Time between two; 0 without repeats.
    pub every: Nanos,
}

/// Most losses of one leak.
pub const MAX_LEAKS: u64 = 4096;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct GrowthForm {
    /// What they hold at the end; or `by`.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Held>", example = &"20 GiB")]
    to: Option<Bytes>,
    /// How much more they hold at the end; or `to`.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Held>", example = &"4 GiB")]
    by: Option<Bytes>,
    /// How long it takes, in at most 64 equal steps.
    #[serde(default, deserialize_with = "positive_span")]
    #[schemars(required, with = "Span", example = &"60 s")]
    over: Option<Nanos>,
}

impl Form for GrowthForm {
    type Whole = Growth;
    const EXPECTED: &'static str = "a growth, such as `{to: 20 GiB, over: 60 s}`";

    fn build<E: de::Error>(self) -> Result<Growth, E> {
        let target = match (self.to, self.by) {
            (Some(to), None) => Target::To(to),
            (None, Some(by)) => Target::By(by),
            _ => return Err(E::custom("a growth has either `to` or `by`")),
        };
        let over = self.over.ok_or_else(|| E::missing_field("over"))?;
        Ok(Growth { target, over })
    }
}

impl<'de> Deserialize<'de> for Growth {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        checked::<GrowthForm, D>(d)
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LeakForm {
    /// How much is lost each time.
    #[serde(deserialize_with = "required_amount")]
    #[schemars(with = "Amount", example = &"100 MiB")]
    bytes: Bytes,
    /// Time from one loss to the next; left out: it is lost once.
    #[serde(default, deserialize_with = "positive_span")]
    #[schemars(with = "Option<Span>", example = &"1 s")]
    every: Option<Nanos>,
    /// Time after the server is ready at which it ends; needs `every`.
    #[serde(default, deserialize_with = "optional_span")]
    #[schemars(with = "Option<Span>", example = &"60 s")]
    until: Option<Nanos>,
}

impl LeakForm {
    fn into_leak<E: de::Error>(self, at: EventAt) -> Result<Leak, E> {
        let once = Leak { bytes: self.bytes, repeats: 0, every: Nanos(0) };
        let (every, until) = match (self.every, self.until) {
            (None, None) => return Ok(once),
            (Some(every), Some(until)) => (every, until),
            _ => return Err(E::custom("a leak that goes on has both `every` and `until`")),
        };
        let EventAt::Time(at) = at else {
            return Err(E::custom("a leak that goes on begins at a time, such as `at: 12 s`"));
        };
        let Some(span) = until.0.checked_sub(at.0) else {
            return Err(E::custom("the leak ends before it begins: `until` is below `at`"));
        };
        let repeats = span / every.0;
        if repeats >= MAX_LEAKS {
            let message = format!(
                "the leak is {} losses, and at most {MAX_LEAKS} are run: lose more less often",
                repeats + 1
            );
            return Err(E::custom(message));
        }
        Ok(Leak { bytes: self.bytes, repeats, every })
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EventForm {
    /// When: in a phase of the start, at a time after the server is ready, or before a step.
    #[schemars(example = &"after_load")]
    at: EventAt,
    /// The rank whose device is meant, or `all`.
    #[serde(default)]
    #[schemars(example = &3)]
    rank: Ranks,
    /// What other programs hold on the device from then on, in all.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Held>", example = &"4 GiB")]
    others_hold: Option<Bytes>,
    /// Other programs grow (or shrink) on the device from then on, along a straight line.
    #[schemars(with = "Option<GrowthForm>")]
    others_grow: Option<Growth>,
    /// What other programs hold of the host's memory from then on, in all.
    #[serde(default, deserialize_with = "optional_amount")]
    #[schemars(with = "Option<Held>", example = &"12 GiB")]
    host_others_hold: Option<Bytes>,
    /// Other programs grow (or shrink) in the host's memory from then on, along a straight line.
    #[schemars(with = "Option<GrowthForm>")]
    host_others_grow: Option<Growth>,
    /// The server loses device memory for good.
    leak: Option<LeakForm>,
    /// One more request arrives.
    request: Option<RequestForm>,
}

/// The keys of which an event has one.
const KINDS: &str = "`others_hold`, `others_grow`, `host_others_hold`, `host_others_grow`, `leak` or \
                     `request`";

impl Form for EventForm {
    type Whole = Event;
    const EXPECTED: &'static str = "an event, such as `{at: 12 s, others_hold: 4 GiB}`";

    fn build<E: de::Error>(self) -> Result<Event, E> {
        let (at, rank) = (self.at, self.rank);
        let mut all = Vec::new();
        all.extend(self.others_hold.map(Happening::OthersHold));
        all.extend(self.others_grow.map(Happening::OthersGrow));
        all.extend(self.host_others_hold.map(Happening::HostOthersHold));
        all.extend(self.host_others_grow.map(Happening::HostOthersGrow));
        if let Some(leak) = self.leak {
            all.push(Happening::Leak(leak.into_leak(at)?));
        }
        all.extend(self.request.map(|form| Happening::Request(Box::new(form.into_shape()))));
        let (Some(what), true) = (all.pop(), all.is_empty()) else {
            return Err(E::custom(format!("an event has one of {KINDS}")));
        };
        let event = Event { at, rank, what };
        event.fits().map(|()| event).map_err(E::custom)
    }
}

impl Event {
    /// Whether what happens can happen then and there.
    fn fits(&self) -> Result<(), &'static str> {
        match (&self.what, self.at) {
            (Happening::OthersHold(_), _) => Ok(()),
            (_, EventAt::Phase(_)) => {
                Err("during the start only `others_hold` happens; give a time, such as `at: 12 s`")
            }
            (Happening::OthersGrow(_) | Happening::HostOthersGrow(_), EventAt::Step(_)) => {
                Err("a growth begins at a time, such as `at: 12 s`, not at a step")
            }
            (Happening::Request(_), EventAt::Step(_)) => {
                Err("a request arrives at a time, such as `at: 12 s`, not at a step")
            }
            _ => Ok(()),
        }?;
        match (&self.what, self.rank) {
            (Happening::OthersHold(_) | Happening::OthersGrow(_) | Happening::Leak(_), _)
            | (_, Ranks::All) => Ok(()),
            _ => Err("`rank` means a device: the host and requests have none"),
        }
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        checked::<EventForm, D>(d)
    }
}

impl JsonSchema for Event {
    fn schema_name() -> Cow<'static, str> {
        "Event".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        EventForm::json_schema(g)
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StepForm {
    /// Number of the step, from 0.
    #[schemars(example = &40)]
    step: Bounded<0, { 1 << 40 }>,
}

fn phase_or_time<E: de::Error>(text: &str) -> Result<EventAt, E> {
    if let Some(phase) = EventTime::ALL.into_iter().find(|phase| phase.as_str() == text) {
        return Ok(EventAt::Phase(phase));
    }
    match nanos(text) {
        Ok(time) => Ok(EventAt::Time(time)),
        Err(expected) if text.starts_with(|c: char| c.is_ascii_digit()) => {
            Err(E::invalid_value(Unexpected::Str(text), &expected.as_str()))
        }
        Err(_) => {
            let help = near(text, EventTime::ALL.map(EventTime::as_str))
                .map(|name| format!("; did you mean `{name}`?"))
                .unwrap_or_default();
            let expected = format!(
                "`before_load`, `after_load`, `during_sizing`, a time such as `12 s`, or \
                 `{{step: 40}}`{help}"
            );
            Err(E::invalid_value(Unexpected::Str(text), &expected.as_str()))
        }
    }
}

impl<'de> Deserialize<'de> for EventAt {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct AtForm;
        impl<'de> Visitor<'de> for AtForm {
            type Value = EventAt;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "`before_load`, `after_load`, `during_sizing`, a time such as `12 s`, or \
                     `{step: 40}`",
                )
            }
            fn visit_u64<E: de::Error>(self, v: u64) -> Result<EventAt, E> {
                phase_or_time(&v.to_string())
            }
            fn visit_f64<E: de::Error>(self, v: f64) -> Result<EventAt, E> {
                phase_or_time(&v.to_string())
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<EventAt, E> {
                phase_or_time(text)
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<EventAt, A::Error> {
                let form = StepForm::deserialize(MapAccessDeserializer::new(map))?;
                Ok(EventAt::Step(form.step.0))
            }
        }
        d.deserialize_any(AtForm)
    }
}

impl JsonSchema for EventAt {
    fn schema_name() -> Cow<'static, str> {
        "EventAt".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [
            { "const": "before_load" }, { "const": "after_load" }, { "const": "during_sizing" },
            g.subschema_for::<Span>(), g.subschema_for::<StepForm>(),
        ]})
    }
}

impl<'de> Deserialize<'de> for Ranks {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let expected = "`all` or a rank from 0 to 1023";
        match Value::deserialize(d)? {
            Value::String(text) if text == "all" => Ok(Self::All),
            Value::String(text) => Err(de::Error::invalid_value(Unexpected::Str(&text), &expected)),
            value => RankIndex::deserialize(value)
                .ok()
                .and_then(|rank| u32::try_from(rank.0).ok())
                .map(Self::One)
                .ok_or_else(|| de::Error::invalid_value(Unexpected::Other("value"), &expected)),
        }
    }
}

impl JsonSchema for Ranks {
    fn schema_name() -> Cow<'static, str> {
        "Ranks".into()
    }

    fn json_schema(g: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [g.subschema_for::<RankIndex>(), { "const": "all" }], "default": "all" })
    }
}
