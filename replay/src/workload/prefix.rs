//! Shared prefixes: which one a request has, and how long it is.

use super::{draw::Drawer, stream::Stream};
use crate::scenario::{Lengths, PrefixChoice, SharedPrefix};
use plimsoll_core::kv::Run;

/// Token ids of shared prefixes have this bit, which no request's own ids reach.
const PREFIX_IDS: u64 = 1 << 63;
/// Distance between the ids of two prefixes.
const PREFIX_BITS: u32 = 32;

/// Prefixes of a group on its way.
#[derive(Clone, Debug)]
pub(super) struct Prefixes {
    prefix: SharedPrefix,
    /// Number of the first one among those of all groups.
    first: u64,
    name: String,
    seed: u64,
    stream: Stream,
    /// Order of the prefixes, where each is as often as the others and they are mixed.
    mixed: Vec<u32>,
    /// Likelihood of the n-th prefix and all before it, where they differ.
    weights: Vec<f64>,
    /// Requests of one prefix, where they come one after the other.
    each: u64,
    taken: u64,
}

impl Prefixes {
    pub(super) fn new(
        prefix: SharedPrefix,
        requests: u64,
        first: u64,
        seed: u64,
        name: &str,
    ) -> Self {
        let mut stream = Stream::named(seed, name, "shared_prefix");
        let (mut mixed, mut weights) = (Vec::new(), Vec::new());
        match prefix.choice {
            PrefixChoice::Even => mixed = mixed_order(requests, prefix.groups, &mut stream),
            PrefixChoice::Zipf { alpha } => weights = summed_weights(prefix.groups, alpha),
            PrefixChoice::Random | PrefixChoice::InOrder => {}
        }
        let each = (requests / prefix.groups).max(1);
        Self { prefix, first, name: name.to_owned(), seed, stream, mixed, weights, each, taken: 0 }
    }

    /// The prefix of the next request.
    pub(super) fn next(&mut self) -> Run {
        let n = self.taken;
        self.taken += 1;
        let last = self.prefix.groups - 1;
        let which = match self.prefix.choice {
            PrefixChoice::Random => self.stream.below(self.prefix.groups),
            PrefixChoice::Even => self.mixed.get(n as usize).map_or(0, |which| u64::from(*which)),
            // What does not divide goes to the last one.
            PrefixChoice::InOrder => (n / self.each).min(last),
            PrefixChoice::Zipf { .. } => {
                let all = self.weights.last().copied().unwrap_or(1.0);
                let at = self.stream.unit() * all;
                (self.weights.partition_point(|sum| *sum <= at) as u64).min(last)
            }
        };
        let len = self.len_of(which);
        Run { first: PREFIX_IDS | ((self.first + which) << PREFIX_BITS), len }
    }

    /// A prefix keeps its length, whenever it comes.
    fn len_of(&self, which: u64) -> u64 {
        match &self.prefix.tokens {
            Lengths::Fixed(len) => *len,
            Lengths::List(list) => {
                let at = (which % list.len().max(1) as u64) as usize;
                list.get(at).copied().unwrap_or(1)
            }
            law @ (Lengths::Uniform { .. } | Lengths::Lognormal(_)) => {
                let purpose = format!("shared_prefix.tokens/{which}");
                Drawer::new(law.clone(), Stream::named(self.seed, &self.name, &purpose)).next()
            }
        }
    }
}

/// 0, 0, …, 1, 1, … mixed: Fisher and Yates.
fn mixed_order(requests: u64, groups: u64, stream: &mut Stream) -> Vec<u32> {
    let each = (requests / groups).max(1);
    let which = |n: u64| u32::try_from((n / each).min(groups - 1)).unwrap_or(u32::MAX);
    let mut order: Vec<u32> = (0..requests).map(which).collect();
    mix(&mut order, stream);
    order
}

/// Mixes a list; every order is as likely.
pub(super) fn mix<T>(list: &mut [T], stream: &mut Stream) {
    for at in (1..list.len()).rev() {
        let other = stream.below(at as u64 + 1) as usize;
        list.swap(at, other);
    }
}

fn summed_weights(groups: u64, alpha: f64) -> Vec<f64> {
    let weight = |n: u64| libm::exp(-alpha * libm::log(n as f64));
    (1..=groups)
        .scan(0.0, |sum, n| {
            *sum += weight(n);
            Some(*sum)
        })
        .collect()
}
