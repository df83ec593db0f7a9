//! Events of the running server as a list of single changes.

use super::{
    Scenario,
    events::{Event, EventAt, Growth, Happening, Leak, Ranks, Target},
};
use plimsoll_core::{
    backend::Rank,
    engine::serving::{Change, TimedChange, When},
    units::{Bytes, Nanos},
};

/// Most changes that stand for one growth.
pub const GROWTH_STEPS: u64 = 64;

/// Where other programs hold memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// A rank's device.
    Device(Rank),
    /// The host.
    Host,
}

impl Place {
    const fn change(self, held: Bytes) -> Change {
        match self {
            Self::Device(rank) => Change::DeviceOthers { rank, held },
            Self::Host => Change::HostOthers { held },
        }
    }
}

impl Scenario {
    /// What happens to the machine while the server runs, on a machine of `ranks` ranks: by time, then by
    /// step; two of one device at one time in the order of the file. A growth is a straight line of at
    /// most [`GROWTH_STEPS`] changes, amounts and times rounded towards its begin.
    #[must_use]
    pub fn timed_changes(&self, ranks: u32) -> Vec<TimedChange> {
        let mut changes = Vec::new();
        for rank in 0..ranks {
            self.at_place(Place::Device(Rank(rank)), &mut changes);
        }
        self.at_place(Place::Host, &mut changes);
        for event in &self.events {
            if let Happening::Leak(leak) = &event.what {
                lose(event, *leak, ranks, &mut changes);
            }
        }
        changes.sort_by_key(|change| change.when);
        changes
    }

    /// What others do at one place. A growth begins at what was last held there; events at a step do not
    /// count for that, because no one knows when they are.
    fn at_place(&self, place: Place, changes: &mut Vec<TimedChange>) {
        let mut events: Vec<&Event> =
            self.events.iter().filter(|event| event.reaches(place)).collect();
        events.sort_by_key(|event| event.at);
        let at_first = match place {
            Place::Device(rank) => self.machine.others_at_start(rank.0),
            Place::Host => self.machine.others_on_host,
        };
        let mut held = at_first.unwrap_or_default();
        for event in events {
            match (&event.what, event.at) {
                (Happening::OthersHold(new) | Happening::HostOthersHold(new), at) => {
                    let when = match at {
                        EventAt::Phase(_) => None,
                        EventAt::Time(at) => Some(When::At(at)),
                        EventAt::Step(step) => Some(When::Step(step)),
                    };
                    let change = place.change(*new);
                    changes.extend(when.map(|when| TimedChange { when, change }));
                    held = *new;
                }
                (
                    Happening::OthersGrow(growth) | Happening::HostOthersGrow(growth),
                    EventAt::Time(at),
                ) => {
                    let to = end_of(*growth, held);
                    let line = line(at, *growth, held, to);
                    changes.extend(
                        line.map(|(when, held)| TimedChange { when, change: place.change(held) }),
                    );
                    held = to;
                }
                _ => {}
            }
        }
    }
}

/// The steps of one growth.
fn line(
    at: Nanos,
    growth: Growth,
    from: Bytes,
    to: Bytes,
) -> impl Iterator<Item = (When, Bytes)> + use<> {
    let steps = GROWTH_STEPS.min(growth.over.0).max(1);
    (1..=steps).map(move |step| {
        let part = |whole: u64| (u128::from(whole) * u128::from(step) / u128::from(steps)) as u64;
        let held =
            if to >= from { from.0 + part(to.0 - from.0) } else { from.0 - part(from.0 - to.0) };
        (When::At(Nanos(at.0.saturating_add(part(growth.over.0)))), Bytes(held))
    })
}

/// The single losses of a leak.
fn lose(event: &Event, leak: Leak, ranks: u32, changes: &mut Vec<TimedChange>) {
    let on = match event.rank {
        Ranks::All => 0..ranks,
        Ranks::One(rank) => rank..rank.saturating_add(1),
    };
    for rank in on {
        let change = Change::Leak { rank: Rank(rank), bytes: leak.bytes };
        for n in 0..=leak.repeats {
            let when = match event.at {
                EventAt::Phase(_) => return,
                EventAt::Time(at) => When::At(Nanos(at.0.saturating_add(n * leak.every.0))),
                EventAt::Step(step) => When::Step(step),
            };
            changes.push(TimedChange { when, change });
        }
    }
}

/// What is held at the end of a growth that begins at `from`.
const fn end_of(growth: Growth, from: Bytes) -> Bytes {
    match growth.target {
        Target::To(to) => to,
        Target::By(by) => from.saturating_add(by),
    }
}

impl Event {
    /// Whether it changes what others hold there.
    pub(super) fn reaches(&self, place: Place) -> bool {
        match (&self.what, place) {
            (Happening::OthersHold(_) | Happening::OthersGrow(_), Place::Device(rank)) => {
                self.rank == Ranks::All || self.rank == Ranks::One(rank.0)
            }
            (Happening::HostOthersHold(_) | Happening::HostOthersGrow(_), Place::Host) => true,
            _ => false,
        }
    }

    /// When a growth ends; `None` for anything else.
    pub(super) const fn growth_end(&self) -> Option<Nanos> {
        match (&self.what, self.at) {
            (
                Happening::OthersGrow(growth) | Happening::HostOthersGrow(growth),
                EventAt::Time(at),
            ) => Some(Nanos(at.0.saturating_add(growth.over.0))),
            _ => None,
        }
    }

    /// Single changes that it stands for, on `ranks` ranks.
    pub(super) fn count(&self, ranks: u64) -> u64 {
        let on = if self.rank == Ranks::All { ranks } else { 1 };
        match &self.what {
            Happening::OthersGrow(_) => on * GROWTH_STEPS,
            Happening::HostOthersGrow(_) => GROWTH_STEPS,
            Happening::Leak(leak) => on * (leak.repeats + 1),
            _ => on,
        }
    }
}
