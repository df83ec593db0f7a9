//! Slots that change hands between two records: joined by request, so that a quiet run of decode passes has
//! one record a request and not one a pass.

use crate::{
    decision::{DecisionSink, Record, Value},
    kv::Runs,
    sched::RequestId,
};
use std::collections::BTreeMap;

enum Change {
    Taken(RequestId, Runs),
    Freed(Runs),
}

/// Changes that are not written yet. Their order is kept as far as it matters: what is taken is never told
/// before the free that made it possible, nor after one that gives it back.
#[derive(Default)]
pub(super) struct SlotChanges {
    changes: Vec<Change>,
    /// Where in `changes` a request's slots stand that were taken since the last free.
    open: BTreeMap<RequestId, usize>,
}

impl SlotChanges {
    pub(super) fn taken(&mut self, request: RequestId, slots: &Runs) {
        let at = self.open.get(&request).copied().and_then(|at| self.changes.get_mut(at));
        if let Some(Change::Taken(_, before)) = at {
            before.extend(slots);
            return;
        }
        self.open.insert(request, self.changes.len());
        self.changes.push(Change::Taken(request, slots.clone()));
    }

    pub(super) fn freed(&mut self, slots: &Runs) {
        self.open.clear();
        match self.changes.last_mut() {
            Some(Change::Freed(before)) => before.extend(slots),
            _ => self.changes.push(Change::Freed(slots.clone())),
        }
    }

    /// Moves all of `later` behind these.
    pub(super) fn append(&mut self, later: &mut Self) {
        for change in later.drain() {
            match change {
                Change::Taken(request, slots) => self.taken(request, &slots),
                Change::Freed(slots) => self.freed(&slots),
            }
        }
    }

    pub(super) fn write(&mut self, sink: &mut dyn DecisionSink) {
        for change in self.drain() {
            sink.record(match change {
                Change::Taken(request, slots) => {
                    Record::new("slots_taken").with("request", request.0).with("runs", flat(&slots))
                }
                Change::Freed(slots) => Record::new("slots_freed").with("runs", flat(&slots)),
            });
        }
    }

    fn drain(&mut self) -> std::vec::Drain<'_, Change> {
        self.open.clear();
        self.changes.drain(..)
    }
}

/// First, length, first, length, …
pub(in crate::engine) fn flat(slots: &Runs) -> Value {
    Value::Ints(slots.runs().iter().flat_map(|run| [run.first, run.len]).collect())
}
