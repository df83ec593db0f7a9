//! Clients of a scenario: from its groups of requests to requests that arrive.

mod clients;
mod draw;
mod stream;

pub use clients::WorkloadClients;
pub use stream::Stream;

use crate::scenario::{EventAt, Group, Happening, Scenario, Schedule, Workload};
use plimsoll_core::units::Nanos;

impl Workload {
    /// Clients that send this workload. The same seed gives the same requests on every platform; another
    /// group, added or left out, moves none of them but their numbers.
    #[must_use]
    pub fn clients(&self, seed: u64) -> WorkloadClients {
        WorkloadClients::new(&self.groups, seed)
    }
}

impl Scenario {
    /// All requests of the scenario: its workload, and those that events send. `None`: the scenario is a
    /// start and nothing else.
    #[must_use]
    pub fn requests(&self) -> Option<Workload> {
        let mut groups = self.workload.as_ref().map_or_else(Vec::new, |w| w.groups.clone());
        for (at, event) in self.events.iter().enumerate() {
            let (Happening::Request(shape), EventAt::Time(time)) = (&event.what, event.at) else {
                continue;
            };
            groups.push(Group {
                name: format!("events[{at}]"),
                requests: 1,
                schedule: Schedule::Together { at: time },
                concurrency: None,
                think_time: Nanos(0),
                shape: (**shape).clone(),
                shared_prefix: None,
            });
        }
        (!groups.is_empty()).then_some(Workload { groups })
    }

    /// Clients of [`Self::requests`], with the scenario's own seed.
    #[must_use]
    pub fn clients(&self) -> Option<WorkloadClients> {
        self.requests().map(|workload| workload.clients(self.seed))
    }
}
