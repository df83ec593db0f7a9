//! The lines of a diagnosis, without colour: for people and for Markdown.

use super::View;
use plimsoll_core::{pyfloat, units::group_thousands};
use plimsoll_diagnosis::{Capacity, Finding, Level, Phase, Raising, codes};
use std::fmt::Write as _;

/// Server and release, model, devices; as far as the facts tell.
pub(super) fn subject(view: &View<'_>) -> Option<String> {
    let fact = |name: &str| {
        let found = view.report.facts.iter().find(|fact| fact.name == name);
        found.map(|fact| fact.value.as_str())
    };
    let server = fact("server").map(|server| match fact("version") {
        Some(version) => format!("{server} {version}"),
        None => server.to_owned(),
    });
    // Several devices have this much memory: no name to print.
    let device = fact("device").filter(|device| !device.contains(", or "));
    let device = match (device, fact("ranks")) {
        (Some(device), Some(ranks)) => Some(format!("{ranks} x {device}")),
        (Some(device), None) => Some(device.to_owned()),
        (None, ranks) => ranks.filter(|ranks| *ranks != "1").map(|ranks| format!("{ranks} ranks")),
    };
    let parts: Vec<String> =
        [server, fact("model").map(str::to_owned), device].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// What stands below the ledger; each line starts with a word of eight columns.
pub(super) fn lines(view: &View<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(first) = view.first() {
        lines.extend(reasons(view, first));
    }
    if let Some(capacity) = &view.report.capacity {
        lines.extend(of_capacity(capacity));
    }
    lines
}

/// Why, the arithmetic, and what it is called.
fn reasons(view: &View<'_>, first: &Finding) -> Vec<String> {
    let mut lines = Vec::new();
    if !first.because.is_empty() {
        lines.push(format!("why     {}", first.because));
    }
    let mut word = "sum";
    for line in view.shown(&first.arithmetic, 5) {
        lines.push(format!("{word:<7} {line}"));
        word = "";
    }
    lines.push(cause(first));
    if let Some((above, below)) = first.feasible {
        let (above, below) = (short(above), short(below));
        lines.push(format!("window  fractions above {above} and below {below} work"));
    }
    lines
}

fn cause(finding: &Finding) -> String {
    let mut text = format!("cause   {}", finding.cause);
    if !matches!(finding.phase, Phase::None | Phase::Unknown) {
        let _ = write!(text, ", phase {}", finding.phase);
    }
    let _ = write!(text, ", {}", finding.confidence);
    if !finding.also.is_empty() {
        let also: Vec<&str> = finding.also.iter().map(|cause| cause.name()).collect();
        let _ = write!(text, "; also possible: {}", also.join(", "));
    }
    text
}

/// Held against used, what is left, what another fraction would give.
fn of_capacity(capacity: &Capacity) -> Vec<String> {
    let lines = [used(capacity), left(capacity), window(capacity), raising(capacity)];
    lines.into_iter().flatten().collect()
}

fn used(capacity: &Capacity) -> Option<String> {
    let tokens = |n: u64| format!("{} tokens", group_thousands(n));
    let parts = [
        capacity.pool_tokens.map(tokens),
        capacity.pool.map(|bytes| match bytes.bytes {
            ..=0 => format!("none: {bytes} for it"),
            _ => bytes.to_string(),
        }),
        capacity.peak_usage.map(|share| format!("at most {:.0} % used", share * 100.0)),
        capacity.peak_tokens.map(|n| format!("at most {} held", tokens(n))),
        capacity.peak_running.map(|n| format!("at most {} requests at once", group_thousands(n))),
        capacity.largest_prefill.map(|n| format!("largest prefill {}", tokens(n))),
        (capacity.retractions > 0)
            .then(|| format!("{} thrown out", group_thousands(capacity.retractions))),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("pool    {}", parts.join(", ")))
}

fn left(capacity: &Capacity) -> Option<String> {
    let left = capacity.left?;
    let need = capacity.need.map_or_else(String::new, |need| {
        format!("; the heaviest pass of plain requests needs {need}")
    });
    Some(format!("left    {left} when the server was ready{need}"))
}

fn window(capacity: &Capacity) -> Option<String> {
    let flag = capacity.flag?;
    let fraction = |f: f64| format!("{f:.3}");
    let ends = match (capacity.floor, capacity.ceiling) {
        (Some(floor), Some(ceiling)) if ceiling <= floor => format!(
            "empty: a pool starts above {}, the heaviest pass fits below {}",
            fraction(floor),
            fraction(ceiling)
        ),
        (Some(floor), Some(ceiling)) => format!("{} to {}", fraction(floor), fraction(ceiling)),
        (Some(floor), None) => format!("no pool below {}", fraction(floor)),
        (None, Some(ceiling)) => format!("the heaviest pass fits below {}", fraction(ceiling)),
        (None, None) => return None,
    };
    let used = capacity.fraction.map_or_else(String::new, |f| format!(", used {}", short(f)));
    Some(format!("window  {flag} {ends}{used}"))
}

/// A fraction that was set, as it was typed; one that was solved, with three decimals.
fn short(fraction: f64) -> String {
    let typed = pyfloat::repr(fraction);
    if typed.len() <= 6 { typed } else { format!("{fraction:.3}") }
}

fn raising(capacity: &Capacity) -> Option<String> {
    // What leaves nothing is no step.
    let next = capacity.next.as_ref().filter(|at| at.left.is_none_or(|left| left.bytes > 0));
    let next = next.map_or_else(String::new, |at| {
        format!("; {} would give {}", short(at.fraction), at.words())
    });
    let text = match capacity.raising {
        Raising::Unknown => return None,
        Raising::NoReason => "no reason: the pool was never full, a larger one buys nothing",
        Raising::FullOnly => "no reason: the pool was full, but no request was thrown out of it",
        Raising::Allowed => "by 0.02 at a time: the pool was full and requests were thrown out",
    };
    Some(format!("raise   {text}{next}"))
}

/// What the reader should know besides: what is missing, what is odd, how to go on.
pub(super) fn remarks(view: &View<'_>) -> Vec<(&'static str, String)> {
    let report = view.report;
    let mut out: Vec<(&str, String)> = Vec::new();
    if !report.missing.is_empty() {
        out.push(("note", format!("not in the log: {}", report.missing.join("; "))));
    }
    out.extend(view.case.log.oddities.iter().map(|line| ("note", line.clone())));
    if view.case.log.events_left_out > 0 {
        let n = group_thousands(view.case.log.events_left_out);
        out.push(("note", format!("{n} lines in the middle of the log are not kept")));
    }
    // Who lives is not started again.
    let relaunch = report.relaunch.as_ref().filter(|_| report.level() == Some(Level::Error));
    out.extend(relaunch.map(|relaunch| {
        let baseline = relaunch.baseline;
        let see = format!("plimsoll doctor --before-relaunch --baseline \"{baseline}\"");
        ("before relaunch", format!("{relaunch}: {see}"))
    }));
    if let Some(first) = view.first().filter(|first| codes::find(first.code).is_some()) {
        out.push(("more", format!("plimsoll explain {}", first.code)));
    }
    out
}
