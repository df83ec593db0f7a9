//! `doctor --before-relaunch`: reads what still holds devices and host, and prints what to do. Runs nothing
//! but `nvidia-smi`, and changes nothing.

use super::SMI_LIMIT;
use crate::{
    args::{DoctorArgs, Format},
    exit::{self, Failure},
    output::Output,
    render,
};
use plimsoll_backend_host::{
    amdgpu,
    linux::{self, Roots},
    nvidia_smi::{self, SmiError},
    processes,
};
use plimsoll_core::units::Bytes;
use plimsoll_ingest::relaunch::{
    DeviceFacts, Facts, HostFacts, Owner, Port, ProcessFacts, SegmentFacts, judge,
};

/// Exit 0 when nothing is in the way, 1 when something is, 3 when nothing can be read.
pub fn before_relaunch(args: &DoctorArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    let facts = facts(args);
    if facts.devices.is_none() && facts.processes.is_none() {
        let why = facts.unread.join("; ");
        return Err(Failure::no_device(format!("nothing can be read here: {why}")));
    }
    let largest = facts.devices.iter().flatten().filter_map(|device| device.total).max();
    if let (Some(baseline), Some(largest)) = (facts.baseline, largest)
        && baseline > largest
    {
        return Err(Failure::input(format!(
            "--baseline {baseline}: the largest device has {largest}; allowed: at most that"
        )));
    }
    let judgement = judge(&facts);
    let text = match format {
        Format::Human | Format::Md | Format::Csv | Format::Sarif => {
            render::relaunch::human(&facts, &judgement, output)
        }
        Format::Json => format!("{:#}\n", render::relaunch::json(&facts, &judgement)),
        Format::Jsonl => format!("{}\n", render::relaunch::json(&facts, &judgement)),
    };
    output.write(&text)?;
    Ok(if judgement.clear { exit::OK } else { exit::FAILED })
}

fn facts(args: &DoctorArgs) -> Facts {
    let roots = Roots {
        proc: args.root.join("proc"),
        sys: args.root.join("sys"),
        shm: args.root.join("dev/shm"),
    };
    let mut unread = Vec::new();
    let devices = devices(&roots, &mut unread);
    let processes = match processes::read(&roots, args.port) {
        Ok(all) => Some(all.into_iter().filter(is_another).map(process).collect()),
        Err(error) => {
            unread.push(format!("processes cannot be listed: {error}"));
            None
        }
    };
    let segments = processes::segments(&roots).unwrap_or_default();
    let port = |port| match processes::is_taken(&roots, port) {
        true => (port, Port::Taken),
        false => (port, Port::Free),
    };
    Facts {
        devices,
        processes,
        segments: segments
            .into_iter()
            .map(|segment| SegmentFacts { name: segment.name, bytes: segment.bytes })
            .collect(),
        host: host(&roots),
        port: args.port.map(port),
        baseline: args.baseline,
        unread,
    }
}

/// This program looks at the machine, and does not hold it.
fn is_another(process: &processes::Process) -> bool {
    process.pid != std::process::id()
}

/// Devices by `nvidia-smi`, else by the amdgpu driver.
fn devices(roots: &Roots, unread: &mut Vec<String>) -> Option<Vec<DeviceFacts>> {
    let cards = match nvidia_smi::run(SMI_LIMIT) {
        Ok(cards) => cards,
        Err(error) => {
            let amd = amd(roots);
            // A machine without NVIDIA is none that lacks its tool.
            let absent = matches!(error, SmiError::NotFound | SmiError::NoDevices);
            if amd.is_empty() || !absent {
                unread.push(error.to_string());
            }
            return (!amd.is_empty()).then_some(amd);
        }
    };
    let holders = nvidia_smi::processes("nvidia-smi", SMI_LIMIT).unwrap_or_else(|error| {
        unread.push(format!("who computes on the devices is not told: {error}"));
        Vec::new()
    });
    let mib = |n: u64| Bytes(n.saturating_mul(1 << 20));
    let device = |card: nvidia_smi::SmiGpu| DeviceFacts {
        index: card.index,
        name: card.name,
        total: card.total_mib.map(mib),
        free: card.free_mib.map(mib),
        used: card.used_mib.map(mib),
        holders: holders
            .iter()
            .filter(|holder| holder.index == Some(card.index))
            .map(|holder| (holder.pid, holder.used_mib.map(mib)))
            .collect(),
    };
    Some(cards.into_iter().map(device).collect())
}

fn amd(roots: &Roots) -> Vec<DeviceFacts> {
    let device = |card: amdgpu::AmdGpu| DeviceFacts {
        index: card.index,
        name: "AMD GPU".to_owned(),
        total: Some(card.total),
        free: Some(card.total.saturating_sub(card.used)),
        used: Some(card.used),
        holders: Vec::new(),
    };
    amdgpu::read(roots).into_iter().map(device).collect()
}

fn process(process: processes::Process) -> ProcessFacts {
    let listens = process.open.as_ref().is_some_and(|open| open.listens > 0);
    let (files, segments) = match process.open {
        Some(open) => (Some(open.devices), open.segments),
        None => (None, Default::default()),
    };
    ProcessFacts {
        pid: process.pid,
        parent: process.parent,
        state: process.state,
        name: process.name,
        command: process.command,
        owner: match process.owner {
            processes::Owner::Own => Owner::Own,
            processes::Owner::Other => Owner::Other,
        },
        resident: process.resident,
        locked: process.locked.max(process.pinned),
        device_files: files,
        segments,
        port: if listens { Port::Taken } else { Port::Free },
    }
}

fn host(roots: &Roots) -> Option<HostFacts> {
    let host = linux::read(roots).ok()?;
    let locked = processes::locked_memory(roots);
    let cgroup = host
        .cgroup
        .as_ref()
        .and_then(|group| Some((group.usage.saturating_sub(group.reclaimable), group.limit?)));
    Some(HostFacts {
        total: host.total,
        headroom: host.headroom(),
        locked: locked.locked,
        unevictable: locked.unevictable,
        cgroup,
    })
}
