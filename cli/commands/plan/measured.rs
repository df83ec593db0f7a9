//! Measured values that replace estimates: from flags, else from a server log.

use crate::{args::MeasuredArgs, exit::Failure};
use plimsoll_core::{device::DeviceProfile, figure::Tag, units::Bytes};
use plimsoll_ingest::log::{self, LogFigures, Seen};
use plimsoll_replay::start::{Fact, Facts};

/// The facts of a start, and what the log says of its pool.
pub struct Measured {
    /// Facts.
    pub facts: Facts,
    /// Tokens of the pool in the log, with their line.
    pub pool_tokens: Option<Seen<u64>>,
}

/// Reads the measurements and checks them against the device. Flags win over a log.
pub fn read(args: &MeasuredArgs, device: &DeviceProfile) -> Result<Measured, Failure> {
    check(args, device)?;
    let (from_log, pool_tokens) = match &args.from_log {
        None => (Facts::default(), None),
        Some(path) => {
            let place = path.display().to_string();
            let text = std::fs::read(path)
                .map_err(|error| Failure::input(format!("--from-log {place}: {error}")))?;
            let figures = log::start_figures(&String::from_utf8_lossy(&text));
            if figures.is_empty() {
                return Err(Failure::input(format!(
                    "--from-log {place}: no start-up line of SGLang or vLLM says memory; expected \
                     for example `Load weight begin. avail mem=` or `Model loading took`"
                )));
            }
            (log_facts(&figures, &place), figures.pool_tokens)
        }
    };
    let given =
        |bytes: Option<Bytes>, flag: &str| bytes.map(|bytes| Fact::all(bytes, Tag::Measured, flag));
    let facts = Facts {
        free_before_load: given(args.free_before_load, "--free-before-load")
            .or(from_log.free_before_load),
        used_by_load: given(args.weights, "--weights").or(from_log.used_by_load),
        free_after_load: from_log.free_after_load.filter(|_| args.weights.is_none()),
        free_after_graphs: given(args.free_after_graphs, "--free-after-graphs")
            .or(from_log.free_after_graphs),
        graph_memory: from_log.graph_memory,
        others: given(args.others, "--others"),
        host_available: given(args.host_available, "--host-available"),
        ..Facts::default()
    };
    Ok(Measured { facts, pool_tokens })
}

/// Amounts that no start on this device can have.
fn check(args: &MeasuredArgs, device: &DeviceProfile) -> Result<(), Failure> {
    let tool = device.smi_total_mib.as_ref().map(|mib| Bytes::mib(mib.value));
    let most = device.runtime_total.value.high.max(tool.unwrap_or_default());
    let name = &device.name;
    let on_device = [
        ("--free-before-load", args.free_before_load),
        ("--free-after-graphs", args.free_after_graphs),
        ("--others", args.others),
    ];
    for (flag, given) in on_device {
        if let Some(given) = given
            && given > most
        {
            let what = format!("{flag} {given}: at most {most}, the memory of one {name}");
            return Err(Failure::input(what));
        }
    }
    if let (Some(before), Some(after)) = (args.free_before_load, args.free_after_graphs)
        && after > before
    {
        return Err(Failure::input(format!(
            "--free-after-graphs {after}: at most --free-before-load, {before}"
        )));
    }
    for (flag, given) in
        [("--weights", args.weights), ("--kv-bytes-per-token", args.kv_bytes_per_token)]
    {
        if given == Some(Bytes::ZERO) {
            return Err(Failure::input(format!("{flag} 0 B: must be above 0 B")));
        }
    }
    Ok(())
}

fn log_facts(figures: &LogFigures, path: &str) -> Facts {
    let fact = |seen: Option<Seen<Bytes>>| {
        seen.map(|seen| Fact::all(seen.value, Tag::Measured, format!("{path}:{}", seen.line)))
    };
    // Free memory before minus after is what the budget sees; the printed usage is one rank's.
    let both = figures.free_before_load.is_some() && figures.free_after_load.is_some();
    Facts {
        free_before_load: fact(figures.free_before_load),
        free_after_load: fact(figures.free_after_load),
        used_by_load: fact(figures.weights).filter(|_| !both),
        free_after_graphs: fact(figures.free_after_graphs),
        graph_memory: fact(figures.graphs),
        ..Facts::default()
    }
}
