//! Other files of keys than scenarios, with problems of the same form.

use super::{
    Places, collect,
    de::{Fault, FaultKind, Node, get},
};
use crate::{
    path::KeyPath,
    problem::{Code, Problems},
    yaml::{self, Part},
};
use serde::Deserialize;
use serde_json::Value;

/// A value out of its range.
pub(crate) struct Wrong {
    pub(crate) path: KeyPath,
    pub(crate) message: String,
    pub(crate) allowed: String,
}

/// Reads a file that `what` names, as in "a profile"; the first fault of a type ends it, for the rest may
/// follow from it. `mistakes` are looked for in what was read.
pub(crate) fn read_document<T: for<'de> Deserialize<'de>>(
    what: &str,
    file: &str,
    text: &str,
    mistakes: impl Fn(&T) -> Vec<Wrong>,
) -> Result<T, Problems> {
    let parsed = yaml::parse(text).map_err(|problem| Problems::new(file, text, vec![*problem]))?;
    let places = Places { text, overrides: &[] };
    let mut problems = parsed.problems;
    if !parsed.root.is_object() {
        let message = match parsed.root {
            Value::Null => "the file is empty".to_owned(),
            _ => format!("{what} is a mapping of keys"),
        };
        let root = KeyPath::root();
        problems.push(places.problem(Code::WrongType, &root, Part::Value, message));
        return Err(Problems::new(file, text, problems));
    }
    match T::deserialize(Node { value: &parsed.root, path: KeyPath::root() }) {
        Ok(read) => {
            for wrong in mistakes(&read) {
                let Wrong { path, message, allowed } = wrong;
                let mut problem = places.problem(Code::BadValue, &path, Part::Value, message);
                problem.allowed = Some(allowed);
                problems.push(problem);
            }
            match problems.is_empty() {
                true => Ok(read),
                false => Err(Problems::new(file, text, problems)),
            }
        }
        Err(Fault { path, part, kind }) => {
            let path = path.unwrap_or_default();
            let value = match part {
                Part::Key(_) => None,
                Part::Value => get(&parsed.root, &path).map(collect::shown),
            };
            let mut problem = collect::describe(&kind, &path, part, value, &places);
            if matches!(kind, FaultKind::UnknownKey { .. }) {
                problem.message = problem.message.replacen("a scenario", what, 1);
            }
            problems.push(problem);
            Err(Problems::new(file, text, problems))
        }
    }
}
