//! What stands before a relaunch, for people and for machines. Command lines are never shown: only what a
//! process is.

use super::text::wrap;
use crate::output::{Output, Tone};
use plimsoll_core::units::Bytes;
use plimsoll_ingest::relaunch::{
    DeviceState, Facts, Finding, Judgement, Step, Weight, role, segment_role,
};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Verdict, findings, devices, host, commands.
pub fn human(facts: &Facts, judgement: &Judgement, output: &Output) -> String {
    let verdict = match judgement.clear {
        true => output.paint(Tone::Good, "clear"),
        false => output.paint(Tone::Bad, "in the way"),
    };
    let head = format!("{verdict}: {}", judgement.headline);
    let mut out = format!("{}\n\n", wrap(&head, output.width(), 2));
    for finding in &judgement.findings {
        let mark = match finding.weight {
            Weight::InTheWay => output.paint(Tone::Bad, "in the way"),
            Weight::Note => output.paint(Tone::Dim, "note      "),
        };
        let line = format!("  {mark}  {}", finding.text);
        let _ = writeln!(out, "{}", wrap(&line, output.width(), 14));
    }
    for device in &judgement.devices {
        let _ = writeln!(out, "{}", wrap(&of_device(device, output), output.width(), 14));
    }
    let _ = writeln!(out, "{}", wrap(&of_host(facts), output.width(), 14));
    steps(&mut out, "to look", &judgement.look);
    steps(&mut out, "to free, in this order (nothing was run)", &judgement.free);
    out
}

fn of_device(device: &DeviceState, output: &Output) -> String {
    let state = match device.back {
        true => output.paint(Tone::Good, "ready"),
        false => output.paint(Tone::Close, "wait"),
    };
    format!(
        "  device {:<4} {} free, {} to wait for: {state}  {}",
        device.index, device.free, device.baseline, device.name
    )
}

fn of_host(facts: &Facts) -> String {
    let Some(host) = &facts.host else { return "  host        not read".to_owned() };
    let known = |bytes: Option<Bytes>| bytes.map_or_else(|| "?".to_owned(), |b| b.to_string());
    let segments: Bytes = facts.segments.iter().map(|segment| segment.bytes).sum();
    let group = host
        .cgroup
        .map_or_else(String::new, |(used, limit)| format!(", control group {used} of {limit}"));
    format!(
        "  host        {} for a new program of {}, /dev/shm {segments}, locked {}{group}",
        known(host.headroom),
        host.total,
        known(host.locked.max(host.unevictable))
    )
}

/// Commands stand on lines of their own, unwrapped, so that they can be copied.
fn steps(out: &mut String, title: &str, steps: &[Step]) {
    if steps.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{title}");
    for step in steps {
        let _ = writeln!(out, "  # {}", step.text);
        if let Some(command) = &step.command {
            let _ = writeln!(out, "  {command}");
        }
    }
}

/// All keys are always there.
pub fn json(facts: &Facts, judgement: &Judgement) -> Value {
    json!({
        "schema": "plimsoll.before_relaunch/1",
        "clear": judgement.clear,
        "headline": judgement.headline,
        "findings": judgement.findings.iter().map(finding).collect::<Value>(),
        "devices": judgement.devices.iter().map(|device| json!({
            "index": device.index,
            "name": device.name,
            "free_bytes": device.free.0,
            "baseline_bytes": device.baseline.0,
            "back": device.back,
        })).collect::<Value>(),
        "processes": processes(facts),
        "segments": segments(facts),
        "host": host(facts),
        "port": facts.port.map(|(port, state)| json!({
            "number": port,
            "taken": state == plimsoll_ingest::relaunch::Port::Taken,
        })),
        "look": list(&judgement.look),
        "free": list(&judgement.free),
    })
}

fn finding(finding: &Finding) -> Value {
    json!({
        "kind": finding.kind.word(),
        "in_the_way": finding.weight == Weight::InTheWay,
        "device": finding.device,
        "pids": finding.pids,
        "bytes": finding.bytes.map(|b| b.0),
        "text": finding.text,
    })
}

/// Processes of servers.
fn processes(facts: &Facts) -> Value {
    let process = |process: &plimsoll_ingest::relaunch::ProcessFacts| {
        let role = role(process)?;
        Some(json!({
            "pid": process.pid,
            "parent": process.parent,
            "state": process.state.to_string(),
            "role": role.name,
            "resident_bytes": process.resident.0,
            "locked_bytes": process.locked.0,
            "device_files": process.device_files,
        }))
    };
    facts.processes.iter().flatten().filter_map(process).collect()
}

/// Segments that servers and their libraries leave, and what all others take.
fn segments(facts: &Facts) -> Value {
    let is_held = |name: &String| {
        facts.processes.iter().flatten().any(|process| process.segments.contains(name))
    };
    let of_server = facts.segments.iter().filter_map(|segment| {
        Some(json!({
            "name": segment.name,
            "of": segment_role(&segment.name)?,
            "bytes": segment.bytes.0,
            "held": is_held(&segment.name),
        }))
    });
    let others = facts.segments.iter().filter(|segment| segment_role(&segment.name).is_none());
    json!({
        "of_servers": of_server.collect::<Value>(),
        "others_bytes": others.map(|segment| segment.bytes.0).sum::<u64>(),
    })
}

fn host(facts: &Facts) -> Value {
    facts.host.map_or(Value::Null, |host| {
        json!({
            "total_bytes": host.total.0,
            "headroom_bytes": host.headroom.map(|b| b.0),
            "locked_bytes": host.locked.map(|b| b.0),
            "unevictable_bytes": host.unevictable.map(|b| b.0),
            "cgroup_used_bytes": host.cgroup.map(|(used, _)| used.0),
            "cgroup_limit_bytes": host.cgroup.map(|(_, limit)| limit.0),
        })
    })
}

fn list(steps: &[Step]) -> Value {
    steps.iter().map(|step| json!({ "text": step.text, "command": step.command })).collect()
}
