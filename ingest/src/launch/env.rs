//! Environment variables around a launch: which are read, which may move memory, which do not.
//! Source of the names: `srt/environ.py` of SGLang and `envs.py` of vLLM in the releases of the
//! flag tables; the effect of a variable is judged by what its name says it sizes or switches.

use std::sync::OnceLock;

use super::place::Place;
use super::table::{Effect, nearest, read_effect};

/// A variable set for the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// Its value as typed; `***` where the name says that it is a secret.
    pub value: String,
    /// What it does to memory; `None` for a name that is not known.
    pub effect: Option<Effect>,
    /// For an unknown `SGLANG_*` or `VLLM_*` name: a known one near it.
    pub near: Option<String>,
    /// Where it was set.
    pub place: Place,
}

fn table() -> &'static [(&'static str, Effect)] {
    static TABLE: OnceLock<Vec<(&'static str, Effect)>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let lines = include_str!("../../data/env-vars.csv").lines().skip(1);
        let read = |line: &'static str| {
            let (name, effect) = line.split_once(',')?;
            Some((name, read_effect(effect)?))
        };
        lines.filter_map(read).collect()
    })
}

/// Whether a name is in the table.
pub(crate) fn known(name: &str) -> bool {
    table().iter().any(|(known, _)| *known == name)
}

impl EnvVar {
    pub(crate) fn new(name: &str, value: &str, place: Place) -> Self {
        let found = table().iter().find(|(known, _)| *known == name).map(|(_, effect)| *effect);
        let value = if is_secret(name) { HIDDEN } else { value };
        let (name, value) = (name.to_owned(), value.to_owned());
        Self { name, value, effect: found, near: None, place }
    }

    /// Looks for the name that an unknown one may have meant.
    pub(crate) fn find_near(&mut self) {
        let ours = ["SGLANG_", "SGL_", "VLLM_"].iter().any(|p| self.name.starts_with(p));
        if self.effect.is_none() && ours {
            let near = nearest(&self.name, table().iter().map(|(n, _)| *n));
            self.near = near.first().map(|n| (*n).to_owned());
        }
    }

    /// The value as the engines read a switch: `1`, `true`, `yes`, `y`, `on` or their opposites.
    pub(crate) fn switch(&self) -> Option<bool> {
        match self.value.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "y" | "on" | "t" => Some(true),
            "0" | "false" | "no" | "n" | "off" | "f" | "" => Some(false),
            _ => None,
        }
    }
}

/// Stands for the value of a secret, so that no report repeats it.
pub(crate) const HIDDEN: &str = "***";

/// Whether the name of a variable or a flag says that its value is a secret.
pub(crate) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase().replace('-', "_");
    let ends = ["_TOKEN", "_KEY", "_SECRET", "_PASSWORD", "_ACCESS_KEY_ID"];
    ends.iter().any(|end| name.ends_with(end))
}

/// Splits `NAME=value` where `NAME` is a variable name.
pub(crate) fn assignment(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    is_name(name).then_some((name, value))
}

/// Letters, digits and underscores, not starting with a digit.
pub(crate) fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Devices that a list such as `0,1,3` names. As CUDA does, a negative entry ends the list.
/// `None` for `all` and for nothing that can be counted.
pub(crate) fn listed_devices(list: &str) -> Option<u32> {
    let list = list.trim().trim_matches(['"', '\'']);
    let list = list.strip_prefix("device=").unwrap_or(list);
    if list.eq_ignore_ascii_case("all") || list.starts_with('$') {
        return None;
    }
    let entries = list.split(',').map(str::trim).filter(|e| !e.is_empty());
    u32::try_from(entries.take_while(|e| !e.starts_with('-')).count()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_table_reads() {
        let lines = include_str!("../../data/env-vars.csv").lines().count();
        assert_eq!(table().len(), lines - 1);
    }

    #[test]
    fn a_mistyped_variable_has_a_near_name() {
        let mut var = EnvVar::new("SGLANG_ENABLE_POST_CAPTURE_KV_SIZNG", "1", Place::Whole);
        var.find_near();
        assert_eq!(var.near.as_deref(), Some("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING"));
        let mut home = EnvVar::new("HOME", "/", Place::Whole);
        home.find_near();
        assert_eq!((home.near, home.effect), (None, None));
    }

    #[test]
    fn device_lists_count_as_cuda_counts() {
        assert_eq!(listed_devices("0,1, 2"), Some(3));
        assert_eq!(listed_devices("GPU-aa,MIG-bb"), Some(2));
        assert_eq!(listed_devices("0,-1,2"), Some(1));
        assert_eq!(listed_devices(""), Some(0));
        assert_eq!(listed_devices("\"device=0,3\""), Some(2));
        assert_eq!(listed_devices("all"), None);
    }
}
