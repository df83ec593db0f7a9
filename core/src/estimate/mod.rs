//! What is not the pool, before anything has been measured: free memory before loading, what
//! loading and profiling take besides the weights, activations, graphs, workspaces. Every figure
//! carries its interval and its derivation; a width is earned: exact rules have none, fits have
//! their residuals.

pub mod activation;
pub mod baseline;
pub mod coefficients;
pub mod graphs;
pub mod logits;
pub mod moe;
pub mod roofline;
pub mod shape;
pub mod time_inputs;
pub mod transients;
pub mod vllm_profile;
pub mod workspace;

use crate::figure::{Estimate, Tag, Why};
use crate::units::Bytes;

/// An estimate with its derivation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Figure {
    /// The amount and its interval.
    pub value: Estimate,
    /// How it came to be.
    pub why: Why,
}

impl Figure {
    /// A figure that follows exactly from its inputs.
    #[must_use]
    pub fn computed(bytes: u64, rule: impl Into<String>, source: impl Into<String>) -> Self {
        let value = Estimate::exact(Bytes(bytes));
        Self { value, why: Why::new(Tag::Computed, rule, source) }
    }

    /// Nothing, and why there is nothing.
    #[must_use]
    pub fn none(rule: impl Into<String>, source: impl Into<String>) -> Self {
        Self::computed(0, rule, source)
    }

    /// Adds one input to the derivation.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.why = self.why.with(name, value);
        self
    }
}

/// A server engine; its release is a [`crate::policy::sglang::version::Version`] in both cases.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Engine {
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
}

/// Amount of a sum of figures: ends added.
#[must_use]
pub fn total<'a>(figures: impl IntoIterator<Item = &'a Figure>) -> Estimate {
    figures.into_iter().fold(Estimate::ZERO, |sum, figure| sum.plus(figure.value))
}

/// Low, mid and high in GiB.
pub(crate) fn gib(low: f64, mid: f64, high: f64) -> Estimate {
    Estimate::new(Bytes::from_gib_f64(low), Bytes::from_gib_f64(mid), Bytes::from_gib_f64(high))
}

/// Low, mid and high in MiB.
pub(crate) fn mib(low: f64, mid: f64, high: f64) -> Estimate {
    gib(low / 1024.0, mid / 1024.0, high / 1024.0)
}

/// The interval that covers both; the mid of `a`.
pub(crate) fn hull(a: Estimate, b: Estimate) -> Estimate {
    Estimate { low: a.low.min(b.low), mid: a.mid, high: a.high.max(b.high) }
}
