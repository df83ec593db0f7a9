//! Derivations by the name of the figure they explain.

use super::version::Version;
use crate::figure::{Tag, Why};

/// Derivations in the order in which the figures were made.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Whys(Vec<(&'static str, Why)>);

impl Whys {
    /// The derivation of `figure`, by the engine's name of it.
    #[must_use]
    pub fn get(&self, figure: &str) -> Option<&Why> {
        self.0.iter().find(|(name, _)| *name == figure).map(|(_, why)| why)
    }

    /// All of them, in order of making.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Why)> {
        self.0.iter().map(|(name, why)| (*name, why))
    }

    /// Adds one; a later figure of the same name replaces the earlier.
    pub fn put(&mut self, figure: &'static str, why: Why) {
        match self.0.iter_mut().find(|(name, _)| *name == figure) {
            Some(slot) => slot.1 = why,
            None => self.0.push((figure, why)),
        }
    }
}

/// A computed figure's derivation with its SGLang source.
pub(crate) fn computed(version: Version, function: &str, rule: impl Into<String>) -> Why {
    Why::new(Tag::Computed, rule, format!("SGLang {version} {function}"))
}

/// A figure that rests on a default that was not checked against the engine.
pub(crate) fn assumed(version: Version, function: &str, rule: impl Into<String>) -> Why {
    Why::new(Tag::Assumed, rule, format!("SGLang {version} {function}"))
}
