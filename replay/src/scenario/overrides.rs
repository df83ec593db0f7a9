//! `path=value` overrides: a value of the tree is replaced before the file is checked, so that an
//! override passes every check that the file passes.

use super::de;
use crate::{
    path::{KeyPath, Step},
    problem::{Code, Place, Problem},
    yaml,
};
use serde_json::{Map, Value};
use std::{fmt, str::FromStr};

/// One override, as typed: `machine.readings.free_before_load=90 GiB`.
#[derive(Clone, PartialEq, Debug)]
pub struct Override {
    /// The key that is set.
    pub path: KeyPath,
    text: String,
    value: Value,
}

impl fmt::Display for Override {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Override {
    type Err = Box<Problem>;

    /// `path=value`, the value in YAML.
    fn from_str(text: &str) -> Result<Self, Box<Problem>> {
        let problem = |message: String| {
            let place = Place::Override(text.to_owned());
            Box::new(Problem::new(Code::Override, place, KeyPath::root(), message))
        };
        let Some((path, value)) = split(text) else {
            let mut problem = problem(format!("`{text}` has no `=`"));
            problem.allowed = Some("path=value, such as `engine.flags.tp=4`".to_owned());
            return Err(problem);
        };
        let path: KeyPath =
            path.trim().parse().map_err(|e: crate::path::PathError| problem(e.to_string()))?;
        let parsed = yaml::parse(value)
            .map_err(|e| problem(format!("the value of `{path}`: {}", e.message)))?;
        if let Some(first) = parsed.problems.first() {
            return Err(problem(format!("the value of `{path}`: {}", first.message)));
        }
        Ok(Self { path, text: text.to_owned(), value: parsed.root })
    }
}

/// At the first `=` outside of quotes.
fn split(text: &str) -> Option<(&str, &str)> {
    let mut quoted = false;
    let at = text.char_indices().find_map(|(i, c)| {
        quoted ^= c == '"';
        (c == '=' && !quoted).then_some(i)
    })?;
    Some((&text[..at], &text[at + 1..]))
}

impl Override {
    /// Sets the value. Mappings on the way that are absent are made: whether the format has such keys is
    /// judged with the rest of the file, with near names. A null value removes the key.
    pub(super) fn apply(&self, tree: &mut Value) -> Result<(), Box<Problem>> {
        if self.value.is_null() {
            if de::get(tree, &self.path).is_none() {
                return Err(
                    self.problem(format!("`{}` is not there, so it cannot be removed", self.path))
                );
            }
            de::remove(tree, &self.path);
            return Ok(());
        }
        let mut here = tree;
        let mut walked = KeyPath::root();
        for step in &self.path.0 {
            here = match step {
                Step::Key(key) => self.enter_key(here, &walked, key)?,
                Step::Index(index) => self.enter_list(here, &walked, *index)?,
            };
            walked.0.push(step.clone());
        }
        *here = self.value.clone();
        Ok(())
    }

    fn enter_key<'v>(
        &self,
        here: &'v mut Value,
        walked: &KeyPath,
        key: &str,
    ) -> Result<&'v mut Value, Box<Problem>> {
        if here.is_null() {
            *here = Value::Object(Map::new());
        }
        let Value::Object(map) = here else {
            let message = format!("`{walked}` is no mapping, so it has no key `{key}`");
            let mut problem = self.problem(message);
            problem.help = Some(format!("set all of it: `{walked}={{{key}: ...}}`"));
            return Err(problem);
        };
        Ok(map.entry(key).or_insert(Value::Null))
    }

    fn enter_list<'v>(
        &self,
        here: &'v mut Value,
        walked: &KeyPath,
        index: usize,
    ) -> Result<&'v mut Value, Box<Problem>> {
        let Value::Array(list) = here else {
            return Err(self.problem(format!("`{walked}` is no list, so it has no [{index}]")));
        };
        let len = list.len();
        list.get_mut(index).ok_or_else(|| {
            let mut problem =
                self.problem(format!("`{walked}` has {len} values, so there is no [{index}]"));
            problem.allowed = len.checked_sub(1).map(|last| format!("[0] to [{last}]"));
            problem
        })
    }

    fn problem(&self, message: String) -> Box<Problem> {
        let place = Place::Override(self.text.clone());
        Box::new(Problem::new(Code::Override, place, self.path.clone(), message))
    }
}
