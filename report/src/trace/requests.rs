//! The lives of requests: waiting, running, waiting again, over.

use super::event::{Event, SERVER};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Requests whose lives are told, by their numbers; more would bury the rest.
pub(super) const TOLD: u64 = 20_000;

/// Where a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Where {
    Waits,
    Runs,
}

impl Where {
    const fn name(self) -> &'static str {
        match self {
            Self::Waits => "waits",
            Self::Runs => "runs",
        }
    }
}

/// The requests that are alive.
#[derive(Default)]
pub(super) struct Requests {
    alive: BTreeMap<u64, (Where, u64)>,
}

fn event(phase: char, request: u64, name: &str, at_ns: u64, args: &Value) -> String {
    let more = format!(",\"id\":\"{request}\"");
    let event =
        Event { phase, name, category: "request", process: SERVER, track: 0, at_ns, more: &more };
    event.line(args)
}

impl Requests {
    /// A request comes and waits.
    pub(super) fn arrive(&mut self, out: &mut Vec<String>, request: u64, at: u64, args: &Value) {
        if request >= TOLD {
            return;
        }
        out.push(event('b', request, &format!("request {request}"), at, args));
        out.push(event('b', request, Where::Waits.name(), at, &Value::Null));
        self.alive.insert(request, (Where::Waits, at));
    }

    /// It joins a batch, or waits again; nothing when it is there already.
    fn moves(&mut self, out: &mut Vec<String>, request: u64, to: Where, at: u64, args: &Value) {
        let Some((now, since)) = self.alive.get_mut(&request) else { return };
        if *now == to {
            return;
        }
        let at = at.max(*since);
        out.push(event('e', request, now.name(), at, &Value::Null));
        out.push(event('b', request, to.name(), at, args));
        (*now, *since) = (to, at);
    }

    pub(super) fn runs(&mut self, out: &mut Vec<String>, request: u64, at: u64, args: &Value) {
        self.moves(out, request, Where::Runs, at, args);
    }

    pub(super) fn waits(&mut self, out: &mut Vec<String>, request: u64, at: u64, args: &Value) {
        self.moves(out, request, Where::Waits, at, args);
    }

    /// It is over.
    pub(super) fn ends(&mut self, out: &mut Vec<String>, request: u64, at: u64, args: &Value) {
        let Some((now, since)) = self.alive.remove(&request) else { return };
        let at = at.max(since);
        out.push(event('e', request, now.name(), at, &Value::Null));
        out.push(event('e', request, &format!("request {request}"), at, args));
    }

    /// All that live end with the server.
    pub(super) fn end_all(&mut self, out: &mut Vec<String>, at: u64) {
        let alive: Vec<u64> = self.alive.keys().copied().collect();
        for request in alive {
            self.ends(out, request, at, &json!({ "finish": "the run ended" }));
        }
    }
}
