//! Clients of a scenario: from the parts of its workload to requests that arrive.

pub mod bench;
mod clients;
mod connections;
mod conversation;
pub mod describe;
mod draw;
mod group_sender;
mod import;
mod prefix;
pub mod presets;
mod store;
mod stream;
mod trace_sender;

pub use clients::WorkloadClients;
pub use import::{Loaded, Told, TraceError, load};
pub use store::TraceStore;
pub use stream::Stream;

use crate::scenario::{EventAt, Group, Happening, Part, Rate, Scenario, Schedule, Workload};
use plimsoll_core::units::Nanos;
use std::{path::Path, sync::Arc};

impl Workload {
    /// Clients that send this workload; `traces` are its traces, in their order. The same seed gives the
    /// same requests on every platform; another part, added or left out, moves none of them but their
    /// numbers.
    #[must_use]
    pub fn clients(&self, traces: &[Arc<Loaded>], seed: u64) -> WorkloadClients {
        WorkloadClients::new(&self.parts, traces, seed)
    }
}

impl Group {
    /// Lets its requests come at this mean rate, whatever their times were.
    pub fn set_rate(&mut self, rate: Rate) {
        use crate::scenario::{Gaps, Pacing};
        let (gaps, pacing, start) = match self.schedule {
            Schedule::Together { at } => (Gaps::Poisson, Pacing::Steady, at),
            Schedule::Rate { gaps, pacing, start, .. } => (gaps, pacing, start),
        };
        self.schedule = Schedule::Rate { rate, gaps, start, pacing };
    }
}

impl Scenario {
    /// All requests of the scenario: its workload, and those that events send. `None`: the scenario is a
    /// start and nothing else.
    #[must_use]
    pub fn requests(&self) -> Option<Workload> {
        let mut parts = self.workload.as_ref().map_or_else(Vec::new, |w| w.parts.clone());
        for (at, event) in self.events.iter().enumerate() {
            let (Happening::Request(shape), EventAt::Time(time)) = (&event.what, event.at) else {
                continue;
            };
            parts.push(Part::Group(Box::new(Group {
                name: format!("events[{at}]"),
                requests: 1,
                schedule: Schedule::Together { at: time },
                concurrency: None,
                think_time: Nanos(0),
                shape: (**shape).clone(),
                shared_prefix: None,
                turns: None,
            })));
        }
        (!parts.is_empty()).then_some(Workload { parts })
    }

    /// The traces of its workload, from their files; relative paths start at the scenario's file.
    ///
    /// # Errors
    ///
    /// [`TraceError`] of the first that cannot be read.
    pub fn traces(&self, file: &Path, strict: bool) -> Result<Vec<Arc<Loaded>>, TraceError> {
        let folder = file.parent().unwrap_or_else(|| Path::new(""));
        let sources = self.workload.iter().flat_map(Workload::traces);
        sources.map(|source| load(source, folder, self.seed, strict).map(Arc::new)).collect()
    }

    /// Clients of [`Self::requests`], with the scenario's own seed. Its traces are those of [`Self::traces`]; one
    /// that is not given sends nothing.
    #[must_use]
    pub fn clients(&self, traces: &[Arc<Loaded>]) -> Option<WorkloadClients> {
        self.requests().map(|workload| workload.clients(traces, self.seed))
    }
}
