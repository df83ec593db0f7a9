//! Checks across keys of a running server: groups, events in time, claims about what they do.

use super::{
    changes::Place,
    check::Finding,
    events::{Event, EventAt, Happening, Ranks},
    expect::Ending,
    types::Scenario,
};
use crate::path::KeyPath;
use std::collections::BTreeSet;

/// All that is wrong among these keys.
pub(super) fn all(scenario: &Scenario, found: &mut Vec<Finding>) {
    names(scenario, found);
    needs_requests(scenario, found);
    too_many(scenario, found);
    overlaps(scenario, found);
    host(scenario, found);
    host_growth(scenario, found);
}

fn event_path(at: usize) -> KeyPath {
    KeyPath::of("events").index(at)
}

/// Random numbers go by the group's name.
fn names(scenario: &Scenario, found: &mut Vec<Finding>) {
    let mut seen = BTreeSet::new();
    let parts = scenario.workload.iter().flat_map(|workload| &workload.parts);
    for (at, part) in parts.enumerate() {
        let name = part.name();
        if !seen.insert(name) {
            let path = KeyPath::of("workload").index(at);
            let message = format!("two groups of requests have the name `{name}`");
            found.push(Finding::new(&[path], message).help("give each group a `name` of its own"));
        }
    }
}

/// Without requests nothing runs after the start.
fn needs_requests(scenario: &Scenario, found: &mut Vec<Finding>) {
    if scenario.requests().is_some() {
        return;
    }
    let help = "add a `workload`, such as `{requests: 32, concurrency: 8, prompt_tokens: 512, \
                output_tokens: 128}`";
    let mut later = scenario.events.iter().enumerate();
    if let Some((at, _)) = later.find(|(_, event)| event.of_start().is_none()) {
        let path = event_path(at).key("at");
        let message =
            format!("`{path}` lies after the start, and no request keeps the server running");
        let paths = [path, KeyPath::of("workload")];
        found.push(Finding::new(&paths, message).help(help));
    }
    let serving = scenario.expect.outcome.filter(|ending| !Ending::OF_A_START.contains(ending));
    if let Some(ending) = serving {
        let ending = ending.as_str();
        let message = format!("`expect.outcome` is `{ending}`, and no request reaches the server");
        let paths = [KeyPath::of("expect.outcome"), KeyPath::of("workload")];
        found.push(Finding::new(&paths, message).help(help));
    }
}

/// Most single changes of all events together.
const MAX_CHANGES: u64 = 200_000;
/// Ranks that count where the file does not say how many there are.
const SOME_RANKS: u64 = 8;

/// Most events of a file.
const MAX_EVENTS: usize = 1000;

fn too_many(scenario: &Scenario, found: &mut Vec<Finding>) {
    let events = scenario.events.len();
    if events > MAX_EVENTS {
        let message = format!("the file has {events} events");
        let paths = [KeyPath::of("events")];
        found.push(Finding::new(&paths, message).allowed(format!("up to {MAX_EVENTS}")));
    }
    let ranks = scenario.machine.ranks.map_or(SOME_RANKS, u64::from);
    let changes: u64 = scenario.events.iter().map(|event| event.count(ranks)).sum();
    if changes > MAX_CHANGES {
        let message = format!("the events stand for {changes} single changes of the machine");
        let paths = [KeyPath::of("events"), KeyPath::of("machine.ranks")];
        found.push(Finding::new(&paths, message).allowed(format!("up to {MAX_CHANGES}")));
    }
}

/// Whether both change what others hold at one place.
fn meet(a: &Event, b: &Event) -> bool {
    let on_host = |event: &Event| {
        matches!(event.what, Happening::HostOthersHold(_) | Happening::HostOthersGrow(_))
    };
    let on_device =
        |event: &Event| matches!(event.what, Happening::OthersHold(_) | Happening::OthersGrow(_));
    let same_rank = match (a.rank, b.rank) {
        (Ranks::One(a), Ranks::One(b)) => a == b,
        _ => true,
    };
    (on_host(a) && on_host(b)) || (on_device(a) && on_device(b) && same_rank)
}

/// While a growth goes on, nothing else may say what is held there.
fn overlaps(scenario: &Scenario, found: &mut Vec<Finding>) {
    if scenario.events.len() > MAX_EVENTS {
        return;
    }
    for (i, growth) in scenario.events.iter().enumerate() {
        let (Some(end), EventAt::Time(begin)) = (growth.growth_end(), growth.at) else { continue };
        let during = scenario.events.iter().enumerate().find(|(j, other)| {
            let inside = match other.at {
                EventAt::Time(at) => (begin < at && at < end) || (at == begin && *j > i),
                EventAt::Step(_) => true,
                EventAt::Phase(_) => false,
            };
            *j != i && inside && meet(growth, other)
        });
        if let Some((j, _)) = during {
            let (path, other) = (event_path(i), event_path(j));
            let message = format!("`{other}` sets what others hold while `{path}` lets them grow");
            let help = "let the growth end first; a change at a step may come at any time";
            found.push(Finding::new(&[other, path], message).help(help));
            return;
        }
    }
}

/// A growth by an amount on the host begins at what others hold there, which must be known.
fn host_growth(scenario: &Scenario, found: &mut Vec<Finding>) {
    if scenario.machine.others_on_host.is_some() {
        return;
    }
    let mut events: Vec<(usize, &Event)> = scenario.events.iter().enumerate().collect();
    events.sort_by_key(|(_, event)| event.at);
    let first = events.into_iter().find(|(_, event)| event.reaches(Place::Host));
    if let Some((at, Event { what: Happening::HostOthersGrow(_), .. })) = first {
        let path = event_path(at).key("host_others_grow");
        let message =
            format!("`{path}` begins at what others hold of the host, which is not known");
        let paths = [path, KeyPath::of("machine.others_on_host")];
        found.push(Finding::new(&paths, message).missing().help("add `machine.others_on_host`"));
    }
}

/// What is on the host fits into it.
fn host(scenario: &Scenario, found: &mut Vec<Finding>) {
    let machine = &scenario.machine;
    let Some(ram) = machine.ram else { return };
    let amounts = [
        ("host_available", machine.host_available),
        ("page_cache", machine.page_cache),
        ("others_on_host", machine.others_on_host),
    ];
    for (name, amount) in amounts {
        if let Some(amount) = amount.filter(|amount| *amount > ram) {
            let path = KeyPath::of("machine").key(name);
            let message = format!("`{path}` is {amount}, above `machine.ram`, which is {ram}");
            let paths = [path, KeyPath::of("machine.ram")];
            found.push(Finding::new(&paths, message).allowed(format!("up to {ram}")));
        }
    }
    if let (Some(available), Some(others)) = (machine.host_available, machine.others_on_host)
        && available.saturating_add(others) > ram
        && available <= ram
        && others <= ram
    {
        let path = KeyPath::of("machine.others_on_host");
        let message = format!(
            "`{path}` is {others}, and `machine.host_available` is {available}: together above \
             `machine.ram`, which is {ram}"
        );
        let paths = [path, KeyPath::of("machine.host_available"), KeyPath::of("machine.ram")];
        let rest = ram.saturating_sub(available);
        found.push(Finding::new(&paths, message).allowed(format!("up to {rest}")));
    }
}
