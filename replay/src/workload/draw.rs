//! Lengths and gaps, drawn one at a time from a group's streams.

use super::stream::Stream;
use crate::scenario::{Gaps, Lengths, Lognormal, Middle, Rate, Schedule};
use plimsoll_core::units::Nanos;

/// Lengths in the order of a group's requests.
#[derive(Clone, Debug)]
pub(super) struct Drawer {
    lengths: Lengths,
    stream: Stream,
    drawn: u64,
}

impl Drawer {
    pub(super) const fn new(lengths: Lengths, stream: Stream) -> Self {
        Self { lengths, stream, drawn: 0 }
    }

    /// The next length, tokens.
    pub(super) fn next(&mut self) -> u64 {
        let n = self.drawn;
        self.drawn += 1;
        match &self.lengths {
            Lengths::Fixed(length) => *length,
            Lengths::List(list) => {
                let at = (n % list.len().max(1) as u64) as usize;
                list.get(at).copied().unwrap_or(1)
            }
            Lengths::Uniform { low, high } => low + self.stream.below(high - low + 1),
            Lengths::Lognormal(law) => lognormal(*law, &mut self.stream),
        }
    }
}

fn lognormal(law: Lognormal, stream: &mut Stream) -> u64 {
    let log_mean = match law.middle {
        Middle::Mean(mean) => libm::log(mean) - law.sigma * law.sigma / 2.0,
        Middle::Median(median) => libm::log(median),
    };
    let length = libm::exp(log_mean + law.sigma * stream.normal());
    // Nearest token, half up; infinity is cut by the cast.
    ((length + 0.5).floor() as u64).clamp(law.min, law.max)
}

/// When the requests of a group are due, one after the other.
#[derive(Clone, Debug)]
pub(super) struct Due {
    schedule: Schedule,
    stream: Stream,
    taken: u64,
    /// Of the next request.
    next: Nanos,
}

impl Due {
    pub(super) const fn new(schedule: Schedule, stream: Stream) -> Self {
        let next = match schedule {
            Schedule::Together { at } => at,
            Schedule::Rate { start, .. } => start,
        };
        Self { schedule, stream, taken: 0, next }
    }

    /// When the next request is due.
    pub(super) const fn next(&self) -> Nanos {
        self.next
    }

    /// That request is sent; draws the gap to the one after it.
    pub(super) fn advance(&mut self) {
        self.taken += 1;
        let Schedule::Rate { rate, gaps, start } = self.schedule else { return };
        self.next = match gaps {
            // From the start, so that no rounding adds up.
            Gaps::Constant => Nanos(start.0.saturating_add(rate.even(self.taken).0)),
            Gaps::Poisson => self.after(rate, Stream::exponential),
            Gaps::Gamma { burstiness } => {
                self.after(rate, |stream| stream.gamma(burstiness) / burstiness)
            }
        };
    }

    /// A gap of `draw` mean gaps, rounded to the nearest nanosecond.
    fn after(&mut self, rate: Rate, draw: impl Fn(&mut Stream) -> f64) -> Nanos {
        let gap = (rate.mean_gap() * draw(&mut self.stream) + 0.5).floor() as u64;
        Nanos(self.next.0.saturating_add(gap))
    }
}
