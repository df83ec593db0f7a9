//! Checks across keys: values that are right on their own and contradict each other.

use super::{
    Places, check_serving,
    engine::{EngineName, engine_of_command},
    events::{Happening, Ranks, Target},
    expect::Ending,
    types::{Capacity, Device, Model, Scenario},
    value::{PerRank, Reading},
};
use crate::{
    path::KeyPath,
    problem::{Code, Problem},
    yaml::Part,
};
use plimsoll_core::{figure::Tag, units::Bytes};

/// What is wrong, and the keys on which that rests; the first of them is the place.
pub(super) struct Finding {
    pub(super) code: Code,
    pub(super) paths: Vec<KeyPath>,
    pub(super) message: String,
    pub(super) allowed: Option<String>,
    pub(super) help: Option<String>,
}

impl Finding {
    pub(super) fn new(paths: &[KeyPath], message: String) -> Self {
        Self {
            code: Code::Contradiction,
            paths: paths.to_vec(),
            message,
            allowed: None,
            help: None,
        }
    }

    pub(super) fn allowed(mut self, allowed: impl Into<String>) -> Self {
        self.allowed = Some(allowed.into());
        self
    }

    pub(super) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    pub(super) fn missing(mut self) -> Self {
        self.code = Code::MissingKey;
        self
    }

    pub(super) fn bad_value(mut self) -> Self {
        self.code = Code::BadValue;
        self
    }

    pub(super) fn into_problem(self, places: &Places<'_>) -> Problem {
        let path = self.paths.first().cloned().unwrap_or_default();
        let mut problem = places.problem(self.code, &path, Part::Value, self.message);
        problem.allowed = self.allowed;
        problem.help = self.help;
        problem
    }
}

/// All contradictions of a scenario.
pub(super) fn across_keys(scenario: &Scenario) -> Vec<Finding> {
    let mut found = Vec::new();
    texts(scenario, &mut found);
    engine(scenario, &mut found);
    reading_lists(scenario, &mut found);
    reading_order(scenario, &mut found);
    capacity(scenario, &mut found);
    sources(scenario, &mut found);
    events(scenario, &mut found);
    claims(scenario, &mut found);
    check_serving::all(scenario, &mut found);
    found
}

fn reading_path(name: &str) -> KeyPath {
    KeyPath::of("machine.readings").key(name)
}

fn texts(scenario: &Scenario, found: &mut Vec<Finding>) {
    let mut blank = |path: &str, text: &str| {
        if text.trim().is_empty() {
            let message = format!("`{path}` is empty");
            found.push(Finding::new(&[KeyPath::of(path)], message).bad_value());
        }
    };
    blank("why", &scenario.why);
    if let Some(source) = &scenario.source {
        blank("source", source);
    }
    match &scenario.machine.device {
        Device::Named(name) => blank("machine.device", name),
        Device::Described(device) => {
            if let Some(name) = &device.name {
                blank("machine.device.name", name);
            } else if device.capacity.is_none() {
                let path = KeyPath::of("machine.device");
                let message = "`machine.device` has neither a name nor a capacity".to_owned();
                found.push(Finding::new(&[path], message).missing());
            }
        }
    }
}

fn engine(scenario: &Scenario, found: &mut Vec<Finding>) {
    let engine = &scenario.engine;
    let (name, command) = (KeyPath::of("engine.name"), KeyPath::of("engine.command"));
    let shown = engine.command.as_deref().and_then(engine_of_command);
    match (engine.name, &engine.command, shown) {
        (None, None, _) => {
            let message =
                "`engine.name` is missing, and there is no command that shows it".to_owned();
            let place = [KeyPath::of("engine"), name];
            found.push(Finding::new(&place, message).missing().allowed("`sglang` or `vllm`"));
        }
        (None, Some(_), None) => {
            let message = "`engine.command` does not show which engine it starts".to_owned();
            found.push(
                Finding::new(std::slice::from_ref(&command), message)
                    .help("add `name: sglang` or `name: vllm`"),
            );
        }
        (Some(given), Some(_), Some(shown)) if given != shown => {
            let (given, shown) = (given.as_str(), shown.as_str());
            let message =
                format!("`engine.name` is `{given}`, and `engine.command` starts {shown}");
            found.push(Finding::new(&[name, command.clone()], message));
        }
        _ => {}
    }
    if let Some(text) = &engine.command
        && text.trim().is_empty()
    {
        found.push(Finding::new(&[command], "`engine.command` is empty".to_owned()).bad_value());
    }
    if engine.command.is_none() && scenario.model.is_none() && !names_model(scenario) {
        let flag = match engine.engine() {
            Some(EngineName::Vllm) => "model",
            _ => "model-path",
        };
        let place = [KeyPath::of("engine.flags"), KeyPath::of("model")];
        let message = format!("no model: neither `model` nor `engine.flags.{flag}` is given");
        found.push(Finding::new(&place, message).missing());
    }
}

fn names_model(scenario: &Scenario) -> bool {
    let names = ["model", "model-path"];
    scenario.engine.flags.iter().any(|(flag, _)| names.contains(&flag.as_str()))
}

/// Lists of one value per rank agree with the number of ranks, or with each other.
fn reading_lists(scenario: &Scenario, found: &mut Vec<Finding>) {
    let mut ranks =
        scenario.machine.ranks.map(|ranks| (ranks as usize, KeyPath::of("machine.ranks")));
    for (name, reading) in scenario.machine.readings.given() {
        let PerRank::Each(list) = &reading.values else { continue };
        match &ranks {
            Some((count, other)) if *count != list.len() => {
                let path = reading_path(name);
                let message = format!(
                    "`{path}` has {} values, and `{other}` makes it {count} ranks",
                    list.len()
                );
                let allowed = format!("one amount for all ranks, or {count}");
                found.push(Finding::new(&[path, other.clone()], message).allowed(allowed));
            }
            Some(_) => {}
            None => ranks = Some((list.len(), reading_path(name))),
        }
    }
}

/// An amount in two decimals where that is exact, else with its bytes.
fn exact(bytes: Bytes) -> String {
    let text = bytes.to_string();
    if text.parse() == Ok(bytes) { text } else { format!("{text} ({} B)", bytes.0) }
}

/// Two-decimal logs round each of the three figures by up to 0.005 GiB.
const PRINTED_ROUNDING: Bytes = Bytes(16 << 20);

/// Free memory only falls during a start on which nothing else happens. After graph capture it may
/// rise again, because caches are given back: those readings are not compared.
fn reading_order(scenario: &Scenario, found: &mut Vec<Finding>) {
    let readings = &scenario.machine.readings;
    let mut not_more = |small: (&str, &Option<Reading>), large: (&str, &Option<Reading>)| {
        let (Some(a), Some(b)) = (small.1, large.1) else { return };
        let ranks = a.values.values().len().max(b.values.values().len());
        let above = (0..ranks).find_map(|rank| {
            let (a, b) = (a.get(rank)?, b.get(rank)?);
            (a > b).then(|| (exact(a), exact(b)))
        });
        if let Some((x, y)) = above {
            let (low, high) = (reading_path(small.0), reading_path(large.0));
            let message = format!("`{low}` is {x}, above `{high}`, which is {y}");
            found.push(Finding::new(&[low, high], message).allowed(format!("up to {y}")));
        }
    };
    let before = ("free_before_load", &readings.free_before_load);
    let after = ("free_after_load", &readings.free_after_load);
    let total = ("total", &readings.total);
    not_more(before, total);
    not_more(("free_at_start", &readings.free_at_start), total);
    not_more(("weights", &readings.weights), before);
    if scenario.events.iter().all(|event| event.of_start().is_none()) {
        not_more(after, before);
        not_more(("free_after_pool", &readings.free_after_pool), after);
        weights_agree(scenario, found);
    }
}

fn weights_agree(scenario: &Scenario, found: &mut Vec<Finding>) {
    let readings = &scenario.machine.readings;
    let (Some(before), Some(after), Some(weights)) =
        (&readings.free_before_load, &readings.free_after_load, &readings.weights)
    else {
        return;
    };
    let ranks =
        [before, after, weights].map(|r| r.values.values().len()).into_iter().max().unwrap_or(1);
    for rank in 0..ranks {
        let (Some(b), Some(a), Some(w)) = (before.get(rank), after.get(rank), weights.get(rank))
        else {
            return;
        };
        let taken = b.saturating_sub(a);
        if Bytes(taken.0.abs_diff(w.0)) > PRINTED_ROUNDING {
            let paths = ["weights", "free_before_load", "free_after_load"].map(reading_path);
            let message =
                format!("`weights` is {w}, but free before less free after load is {taken}");
            found.push(
                Finding::new(&paths, message)
                    .allowed(format!(
                        "{taken}, give or take the {PRINTED_ROUNDING} of printed rounding"
                    ))
                    .help("give two of the three"),
            );
            return;
        }
    }
}

fn capacity(scenario: &Scenario, found: &mut Vec<Finding>) {
    let Device::Described(device) = &scenario.machine.device else { return };
    let Some(Capacity::Known(capacity)) = device.capacity else { return };
    let place = KeyPath::of("machine.device.capacity");
    // Host readings are not bounded by the device.
    let on_device = |name: &str| name != "host_available_at_sizing";
    for (name, reading) in scenario.machine.readings.given() {
        let largest = reading.values.values().iter().max();
        if let Some(value) = largest.filter(|v| **v > capacity && on_device(name)) {
            let path = reading_path(name);
            let message =
                format!("`{path}` is {value}, above the capacity of the device, {capacity}");
            found.push(
                Finding::new(&[path, place.clone()], message).allowed(format!("up to {capacity}")),
            );
        }
    }
    let others = scenario.events.iter().enumerate().filter_map(|(i, event)| {
        let path = KeyPath::of("events").index(i);
        match &event.what {
            Happening::OthersHold(held) => Some((path.key("others_hold"), *held)),
            Happening::OthersGrow(growth) => match growth.target {
                Target::To(held) => Some((path.key("others_grow").key("to"), held)),
                Target::By(_) => None,
            },
            _ => None,
        }
    });
    for (path, held) in others.filter(|(_, held)| *held > capacity) {
        let (held, capacity) = (exact(held), exact(capacity));
        let message = format!("`{path}` is {held}, above the capacity of the device, {capacity}");
        let paths = [path, place.clone()];
        found.push(Finding::new(&paths, message).allowed(format!("up to {capacity}")));
    }
}

/// A calibrated number says where it comes from: itself, or by the scenario's own `source`.
fn sources(scenario: &Scenario, found: &mut Vec<Finding>) {
    for (name, reading) in scenario.machine.readings.given() {
        if reading.tag == Tag::Calibrated && reading.source.is_none() && scenario.source.is_none() {
            let path = reading_path(name);
            let message = format!("`{path}` is calibrated, and nothing says from what");
            let help = format!("add `{}`", path.key("source"));
            found.push(Finding::new(&[path], message).missing().help(help));
        }
    }
    if let Some(Model { source: None, figures }) = &scenario.model
        && figures.context_length.is_none()
        && !scenario
            .engine
            .flags
            .iter()
            .any(|(f, _)| matches!(f.as_str(), "context-length" | "max-model-len"))
        && scenario.engine.command.is_none()
    {
        let message =
            "a model of figures alone needs a `context_length`, or the launch a flag for it";
        found.push(Finding::new(&[KeyPath::of("model")], message.to_owned()).missing());
    }
}

fn events(scenario: &Scenario, found: &mut Vec<Finding>) {
    let Some(ranks) = scenario.machine.ranks else { return };
    let events = scenario.events.iter().enumerate().filter_map(|(i, event)| match event.rank {
        Ranks::One(rank) => Some((KeyPath::of("events").index(i).key("rank"), rank)),
        Ranks::All => None,
    });
    let weaker =
        scenario.machine.weaker.0.iter().map(|weaker| (KeyPath::of("machine.weaker"), weaker.rank));
    for (path, rank) in events.chain(weaker).filter(|(_, rank)| *rank >= ranks) {
        let message = format!("`{path}` is {rank}, and the machine has {ranks} ranks");
        let (paths, last) = ([path, KeyPath::of("machine.ranks")], ranks - 1);
        let allowed = match paths[0].starts_with(&KeyPath::of("events")) {
            true => format!("0 to {last}, or `all`"),
            false => format!("0 to {last}"),
        };
        found.push(Finding::new(&paths, message).allowed(allowed));
    }
}

fn claims(scenario: &Scenario, found: &mut Vec<Finding>) {
    let expect = &scenario.expect;
    if expect.refusal.is_some() && expect.outcome != Some(Ending::Refused) {
        let paths = [KeyPath::of("expect.refusal"), KeyPath::of("expect.outcome")];
        let message = "`expect.refusal` is claimed without `outcome: refused`".to_owned();
        found.push(Finding::new(&paths, message));
    }
}
