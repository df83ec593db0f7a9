//! Shared by both engines: typed access to what was given, and the list of what is not modelled.

use serde_json::{Map, Value as Json};

use super::argv::{Given, Parsed};
use super::env::{HIDDEN, is_secret};
use super::error::{ErrorCode, LaunchError};
use super::place::Place;
use super::table::Effect;
use super::value::Value;
use super::{Launch, NamedFlag};

/// The flags given, by their first name.
pub(crate) struct Flags<'a> {
    given: &'a [Given],
    /// Mistakes found while filling.
    pub errors: Vec<LaunchError>,
    /// Parts of flags that are not modelled.
    pub parts: Vec<NamedFlag>,
}

impl<'a> Flags<'a> {
    pub(crate) fn new(given: &'a [Given]) -> Self {
        Self { given, errors: Vec::new(), parts: Vec::new() }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a Given> {
        self.given.iter().find(|g| g.row.name == name)
    }

    /// The last given of several flags that set the same thing.
    fn last_of(&self, names: &[&str]) -> Option<&'a Given> {
        self.given.iter().rev().find(|g| names.contains(&g.row.name))
    }

    pub(crate) fn on(&self, name: &str) -> bool {
        self.switch(name) == Some(true)
    }

    pub(crate) fn switch(&self, name: &str) -> Option<bool> {
        match self.get(name)?.values.first()? {
            Value::Bool(on) => Some(*on),
            _ => None,
        }
    }

    pub(crate) fn text(&self, names: &[&str]) -> Option<String> {
        match self.last_of(names)?.values.first()? {
            Value::Str(text) => Some(text.clone()),
            _ => None,
        }
    }

    pub(crate) fn float(&self, name: &str) -> Option<f64> {
        match self.get(name)?.values.first()? {
            Value::Float(x) => Some(*x),
            Value::Int(n) => Some(*n as f64),
            _ => None,
        }
    }

    pub(crate) fn signed(&self, names: &[&str]) -> Option<i64> {
        match self.last_of(names)?.values.first()? {
            Value::Int(n) => Some(*n),
            _ => None,
        }
    }

    /// A count; the tables bound the flags read this way to what is not negative.
    pub(crate) fn count(&self, names: &[&str]) -> Option<u64> {
        self.signed(names).and_then(|n| u64::try_from(n).ok())
    }

    pub(crate) fn size(&self, name: &str) -> Option<u32> {
        self.signed(&[name]).and_then(|n| u32::try_from(n).ok())
    }

    pub(crate) fn list(&self, names: &[&str]) -> Option<Vec<u64>> {
        let given = self.last_of(names)?;
        let number = |value: &Value| match value {
            Value::Int(n) => u64::try_from(*n).ok(),
            _ => None,
        };
        given.values.iter().map(number).collect()
    }

    pub(crate) fn json(&self, name: &str) -> Option<(&'a Given, &'a Json)> {
        let given = self.get(name)?;
        match given.values.first()? {
            Value::Json(json) => Some((given, json)),
            _ => None,
        }
    }

    pub(crate) fn object(&self, name: &str) -> Option<(&'a Given, &'a Map<String, Json>)> {
        self.json(name).and_then(|(given, json)| Some((given, json.as_object()?)))
    }

    pub(crate) fn error(&mut self, code: ErrorCode, given: &Given, allowed: impl Into<String>) {
        let error = LaunchError::new(code, allowed, given.place.clone());
        self.errors.push(error.flag(given.typed.clone()).value(given.words.join(" ")));
    }

    /// Names `key` of the JSON value of `given` as not modelled.
    pub(crate) fn part(&mut self, given: &Given, key: &str, value: &Json) {
        self.parts.push(NamedFlag {
            name: format!("{}.{key}", given.row.name),
            values: vec![value.to_string()],
            effect: Effect::MemoryNotModelled,
            place: given.place.clone(),
        });
    }

    /// A list of whole numbers from 1 in JSON.
    pub(crate) fn json_sizes(
        &mut self,
        given: &Given,
        key: &str,
        value: &Json,
    ) -> Option<Vec<u64>> {
        let sizes: Option<Vec<u64>> = value
            .as_array()
            .and_then(|a| a.iter().map(|v| v.as_u64().filter(|n| *n > 0)).collect());
        if sizes.is_none() && !value.is_null() {
            let allowed = format!("`{key}` must be a list of whole numbers from 1, not {value}");
            self.error(ErrorCode::WrongType, given, allowed);
        }
        sizes
    }

    /// A whole number from 1 in JSON.
    pub(crate) fn json_count(&mut self, given: &Given, key: &str, value: &Json) -> Option<u64> {
        let count = value.as_u64().filter(|n| *n > 0);
        if count.is_none() && !value.is_null() {
            let allowed = format!("`{key}` must be a whole number from 1, not {value}");
            self.error(ErrorCode::WrongType, given, allowed);
        }
        count
    }
}

/// Every flag given whose effect is not modelled, in the order given.
pub(crate) fn not_modelled(parsed: &Parsed) -> Vec<NamedFlag> {
    let named = |g: &Given| NamedFlag {
        name: g.row.name.to_owned(),
        values: match is_secret(g.row.name) {
            true => vec![HIDDEN.to_owned(); g.words.len()],
            false => g.words.clone(),
        },
        effect: g.row.effect,
        place: g.place.clone(),
    };
    parsed.given.iter().filter(|g| g.row.effect != Effect::Modelled).map(named).collect()
}

/// The devices that a server of `world` ranks on `nodes` nodes needs per node, against those it sees.
pub(crate) fn check_devices(
    launch: &Launch,
    world: u64,
    nodes: u64,
    how: &str,
) -> Option<LaunchError> {
    let devices = u64::from(launch.devices?);
    let needed = world.div_ceil(nodes.max(1));
    if needed <= devices {
        return None;
    }
    let place = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"]
        .iter()
        .find_map(|name| launch.env.iter().find(|v| v.name == *name))
        .map_or(Place::Whole, |v| v.place.clone());
    let nodes = if nodes > 1 { " on each node" } else { "" };
    let allowed = format!("{how} needs {needed} devices{nodes}, and the server sees {devices}");
    Some(LaunchError::new(ErrorCode::Inconsistent, allowed, place))
}
