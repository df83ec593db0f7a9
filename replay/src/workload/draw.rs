//! Lengths and gaps, drawn one at a time from a group's streams.

use super::stream::Stream;
use crate::scenario::{Gaps, Lengths, Lognormal, Middle, Pacing, RampLaw, Rate, Schedule};
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
    /// Requests in all.
    requests: u64,
    taken: u64,
    /// Of the next request, on the clock of its law: nanoseconds that count.
    clock: Nanos,
    /// The same in mean gaps, where the law is stretched afterwards.
    gaps: f64,
    /// Nanoseconds of a mean gap after stretching.
    stretch: f64,
}

impl Due {
    pub(super) fn new(schedule: Schedule, stream: Stream, requests: u64) -> Self {
        let (clock, gaps) = (Nanos(0), 0.0);
        let mut due = Self { schedule, stream, requests, taken: 0, clock, gaps, stretch: 0.0 };
        let Schedule::Rate { rate, gaps, pacing, .. } = schedule else { return due };
        match pacing {
            Pacing::Steady | Pacing::Bursts { .. } => {}
            Pacing::Ramp { .. } => due.step(rate, gaps, pacing),
            Pacing::Stretched => {
                let mut ahead = due.stream.clone();
                let sum: f64 = (0..requests).map(|_| drawn(gaps, &mut ahead)).sum();
                due.stretch = rate.mean_gap() * requests as f64 / sum;
                due.step(rate, gaps, pacing);
            }
        }
        due
    }

    /// When the next request is due.
    pub(super) fn next(&self) -> Nanos {
        match self.schedule {
            Schedule::Together { at } => at,
            Schedule::Rate { rate, start, pacing, .. } => {
                let since = match pacing {
                    Pacing::Steady | Pacing::Ramp { .. } => self.clock,
                    Pacing::Bursts { on, off, quiet } => {
                        in_bursts(self.clock, (on, off), (rate, quiet))
                    }
                    Pacing::Stretched => nearest(self.gaps * self.stretch),
                };
                Nanos(start.0.saturating_add(since.0))
            }
        }
    }

    /// That request is sent; draws the gap to the one after it.
    pub(super) fn advance(&mut self) {
        self.taken += 1;
        if let Schedule::Rate { rate, gaps, pacing, .. } = self.schedule {
            self.step(rate, gaps, pacing);
        }
    }

    fn step(&mut self, rate: Rate, gaps: Gaps, pacing: Pacing) {
        match pacing {
            // From the start, so that no rounding adds up.
            Pacing::Steady | Pacing::Bursts { .. } if gaps == Gaps::Constant => {
                self.clock = rate.even(self.taken);
            }
            Pacing::Steady | Pacing::Bursts { .. } => {
                let gap = rate.mean_gap() * drawn(gaps, &mut self.stream);
                self.clock = Nanos(self.clock.0.saturating_add(nearest(gap).0));
            }
            Pacing::Ramp { from, to, law } => {
                let progress = self.taken as f64 / self.requests.saturating_sub(1).max(1) as f64;
                let now = match law {
                    RampLaw::Linear => from + (to - from) * progress,
                    RampLaw::Exponential => from * libm::exp(libm::log(to / from) * progress),
                };
                let gap = 1e9 / now * drawn(gaps, &mut self.stream);
                self.clock = Nanos(self.clock.0.saturating_add(nearest(gap).0));
            }
            Pacing::Stretched => self.gaps += drawn(gaps, &mut self.stream),
        }
    }
}

/// A gap in mean gaps.
fn drawn(gaps: Gaps, stream: &mut Stream) -> f64 {
    match gaps {
        Gaps::Constant => 1.0,
        Gaps::Poisson => stream.exponential(),
        Gaps::Gamma { burstiness } => stream.gamma(burstiness) / burstiness,
    }
}

/// Rounded to the nearest nanosecond.
fn nearest(nanos: f64) -> Nanos {
    Nanos((nanos + 0.5).floor() as u64)
}

/// The time at which the clock of a burst's rate stands so: between bursts it goes slower by the ratio of
/// the rates, or it stands still.
fn in_bursts(
    clock: Nanos,
    (on, off): (Nanos, Nanos),
    (rate, quiet): (Rate, Option<Rate>),
) -> Nanos {
    // quiet / rate as a fraction.
    let (up, down) = quiet.map_or((0, 1), |quiet| {
        (
            u128::from(quiet.count) * u128::from(rate.per),
            u128::from(quiet.per) * u128::from(rate.count),
        )
    });
    let (clock, on, off) = (u128::from(clock.0), u128::from(on.0), u128::from(off.0));
    let between = off.saturating_mul(up) / down.max(1);
    let round = on.saturating_add(between).max(1);
    let (rounds, rest) = (clock / round, clock % round);
    let inside =
        if rest < on { rest } else { on + ((rest - on) * down).checked_div(up).unwrap_or(off) };
    let time = rounds.saturating_mul(on + off).saturating_add(inside);
    Nanos(u64::try_from(time).unwrap_or(u64::MAX))
}
