//! The facts of a machine → what is in the way of a relaunch.

use super::{
    Facts, Owner, Port, ProcessFacts, SegmentFacts,
    commands::{self, Step},
    role::{Part, Role, role, segment_role},
};
use plimsoll_core::units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// A device with no more than this used is idle: drivers count up to about as much of their own as used.
const IDLE: Bytes = Bytes::gib(1);
/// Leftover segments of less than this are named, and hinder nobody.
const SMALL_SEGMENTS: Bytes = Bytes::mib(64);
/// Locked memory of less than this is not named.
const SMALL_LOCKED: Bytes = Bytes::gib(1);

/// Names of programs that look at devices and hold nothing of them.
const MONITORS: &[&str] = &[
    "nvidia-persiste",
    "nvidia-smi",
    "nv-hostengine",
    "nv-fabricmanage",
    "dcgm-exporter",
    "nvtop",
    "nvitop",
    "Xorg",
    "gnome-shell",
];

/// Whether a finding hinders a relaunch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weight {
    /// It does.
    InTheWay,
    /// It is good to know.
    Note,
}

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A process of a server that runs.
    Server,
    /// One whose front is gone.
    Orphan,
    /// One that waits in the kernel and cannot be ended.
    Stuck,
    /// One that is dead and not reaped.
    Zombie,
    /// Another program that holds a device.
    Holder,
    /// A device whose free memory is not back at its baseline.
    Device,
    /// Shared memory that nobody has open.
    Segments,
    /// The control group is nearly full.
    Cgroup,
    /// Locked or pinned memory.
    Locked,
    /// The port is taken.
    Port,
    /// Something could not be looked at.
    Unread,
}

impl Kind {
    /// Its word in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Orphan => "orphan",
            Self::Stuck => "stuck",
            Self::Zombie => "zombie",
            Self::Holder => "holder",
            Self::Device => "device",
            Self::Segments => "segments",
            Self::Cgroup => "cgroup",
            Self::Locked => "locked",
            Self::Port => "port",
            Self::Unread => "unread",
        }
    }
}

/// One finding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// Whether it hinders.
    pub weight: Weight,
    /// The device, where it is about one.
    pub device: Option<u32>,
    /// The processes.
    pub pids: Vec<u32>,
    /// The memory.
    pub bytes: Option<Bytes>,
    /// In words, without paths, arguments or names of users.
    pub text: String,
}

/// A device and its baseline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceState {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Free now.
    pub free: Bytes,
    /// Free memory to wait for: the one that was given, else all that is not the driver's.
    pub baseline: Bytes,
    /// Whether it is back. Without a given baseline: no more than 1 GiB is used.
    pub back: bool,
}

/// What stands before a relaunch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Judgement {
    /// Whether nothing is in the way.
    pub clear: bool,
    /// The verdict in one sentence.
    pub headline: String,
    /// Findings: what is in the way first.
    pub findings: Vec<Finding>,
    /// Devices that show their memory.
    pub devices: Vec<DeviceState>,
    /// Commands that look.
    pub look: Vec<Step>,
    /// Commands that free, in their order.
    pub free: Vec<Step>,
}

/// A process with its role and condition.
pub(super) struct Seen<'a> {
    pub(super) facts: &'a ProcessFacts,
    pub(super) role: Option<Role>,
    pub(super) kind: Kind,
    /// What it holds by device, by the driver's list.
    held: BTreeMap<u32, Option<Bytes>>,
}

/// Judges the facts of a machine.
#[must_use]
pub fn judge(facts: &Facts) -> Judgement {
    let seen = processes(facts);
    let devices = devices(facts);
    let leftover = leftover(facts);
    let mut findings: Vec<Finding> = seen.iter().map(of_process).collect();
    findings.extend(of_devices(facts, &devices, &seen));
    findings.extend(of_unseen_holders(facts));
    findings.extend(of_segments(&leftover));
    findings.extend(of_host(facts));
    findings.extend(of_shared_memory(facts, &devices));
    findings.extend(of_port(facts));
    findings.extend(of_unread(facts));
    findings.sort_by_key(|finding| (finding.weight == Weight::Note, finding.kind));
    let clear = findings.iter().all(|finding| finding.weight == Weight::Note);
    Judgement {
        clear,
        headline: headline(&findings, &devices),
        look: commands::look(facts, &seen),
        free: commands::free(facts, &seen, &leftover, &devices),
        findings,
        devices,
    }
}

fn headline(findings: &[Finding], devices: &[DeviceState]) -> String {
    let in_the_way: Vec<&Finding> =
        findings.iter().filter(|finding| finding.weight == Weight::InTheWay).collect();
    if let Some(first) = in_the_way.first() {
        let more = match in_the_way.len() {
            1 => String::new(),
            n => format!("; {} more", n - 1),
        };
        return format!("{}{more}", first.text);
    }
    match devices.iter().map(|device| device.free).min() {
        Some(free) => format!("nothing is in the way; at least {free} free on every device"),
        None => "nothing is in the way of what can be seen".to_owned(),
    }
}

/// Processes of servers, and others that hold a device.
fn processes(facts: &Facts) -> Vec<Seen<'_>> {
    let all = facts.processes.as_deref().unwrap_or_default();
    let mut held: BTreeMap<u32, BTreeMap<u32, Option<Bytes>>> = BTreeMap::new();
    for device in facts.devices.iter().flatten() {
        for (pid, used) in &device.holders {
            held.entry(*pid).or_default().insert(device.index, *used);
        }
    }
    let roles: BTreeMap<u32, Role> =
        all.iter().filter_map(|process| Some((process.pid, role(process)?))).collect();
    let kind = |process: &ProcessFacts, role: Option<&Role>, holds: bool| match role {
        Some(_) if process.state == 'Z' => Some(Kind::Zombie),
        Some(_) if process.state == 'D' => Some(Kind::Stuck),
        Some(role) if role.part == Part::Child && !roles.contains_key(&process.parent) => {
            let adopted = process.parent <= 1 || all.iter().all(|p| p.pid != process.parent);
            Some(if adopted { Kind::Orphan } else { Kind::Server })
        }
        Some(_) => Some(Kind::Server),
        None if MONITORS.contains(&process.name.as_str()) => None,
        // CUDA opens nvidia-uvm, ROCm kfd; what only looks at a device opens neither.
        None if holds || computes(process) => Some(Kind::Holder),
        None => None,
    };
    all.iter()
        .filter_map(|process| {
            let role = roles.get(&process.pid);
            let held = held.get(&process.pid).cloned().unwrap_or_default();
            let kind = kind(process, role, !held.is_empty())?;
            Some(Seen { facts: process, role: role.cloned(), kind, held })
        })
        .collect()
}

fn computes(process: &ProcessFacts) -> bool {
    let files = process.device_files.as_ref();
    files.is_some_and(|files| files.contains("nvidia-uvm") || files.contains("kfd"))
}

impl Seen<'_> {
    /// Its name without anything private.
    pub(super) fn name(&self) -> String {
        match &self.role {
            Some(role) => role.name.clone(),
            None => commands::short(&self.facts.name),
        }
    }

    /// Devices that it holds, in words.
    fn holds(&self) -> String {
        let part = |(device, used): (&u32, &Option<Bytes>)| match used {
            Some(used) => format!("{used} of device {device}"),
            None => format!("device {device}"),
        };
        let mut parts: Vec<String> = self.held.iter().map(part).collect();
        if parts.is_empty() {
            let files = self.facts.device_files.iter().flatten();
            parts = files.filter_map(|file| numbered(file)).collect();
        }
        if self.facts.locked >= SMALL_LOCKED {
            parts.push(format!("{} of locked host memory", self.facts.locked));
        }
        if parts.is_empty() { String::new() } else { format!(", holds {}", parts.join(", ")) }
    }
}

/// `device 0` for `nvidia0`; `/dev/kfd` for itself.
fn numbered(file: &str) -> Option<String> {
    match file.strip_prefix("nvidia") {
        Some(number) => number.parse::<u32>().ok().map(|number| format!("device {number}")),
        None => (file == "kfd").then(|| "an AMD device".to_owned()),
    }
}

fn of_process(seen: &Seen<'_>) -> Finding {
    let (pid, name, holds) = (seen.facts.pid, seen.name(), seen.holds());
    let what = match seen.kind {
        Kind::Orphan => "still runs without the server that started it",
        Kind::Stuck => "waits in the kernel, where no signal ends it",
        Kind::Zombie => "is dead, and its parent has not taken notice",
        Kind::Holder => "is another program",
        _ => "still runs",
    };
    let sum = seen.held.values().flatten().copied().sum::<Bytes>();
    Finding {
        kind: seen.kind,
        weight: Weight::InTheWay,
        device: seen.held.keys().next().copied(),
        pids: vec![pid],
        bytes: Some(sum).filter(|sum| *sum > Bytes::ZERO),
        text: format!("{name} (pid {pid}) {what}{holds}"),
    }
}

fn devices(facts: &Facts) -> Vec<DeviceState> {
    let state = |device: &super::DeviceFacts| {
        let free = device.free?;
        let whole = device.used.map(|used| used.saturating_add(free)).or(device.total)?;
        let baseline = facts.baseline.unwrap_or(whole);
        let back = match facts.baseline {
            Some(baseline) => free >= baseline,
            None => whole.saturating_sub(free) <= IDLE,
        };
        Some(DeviceState { index: device.index, name: device.name.clone(), free, baseline, back })
    };
    facts.devices.iter().flatten().filter_map(state).collect()
}

fn of_devices(facts: &Facts, states: &[DeviceState], seen: &[Seen<'_>]) -> Vec<Finding> {
    let not_back = states.iter().filter(|state| !state.back);
    not_back
        .map(|state| {
            let missing = state.baseline.saturating_sub(state.free);
            let listed = facts.devices.iter().flatten().find(|device| device.index == state.index);
            let known: Bytes =
                listed.iter().flat_map(|device| &device.holders).filter_map(|(_, used)| *used).sum();
            // What nobody who can be seen explains. Contexts of known holders take some.
            let unseen = missing.saturating_sub(known);
            let open = |process: &Seen<'_>| {
                let files = process.facts.device_files.iter().flatten();
                let name = format!("nvidia{}", state.index);
                process.held.contains_key(&state.index) || files.into_iter().any(|f| *f == name)
            };
            let holders: Vec<u32> =
                seen.iter().filter(|process| open(process)).map(|p| p.facts.pid).collect();
            let by = if unseen > IDLE && holders.is_empty() {
                ", by nobody who can be seen from here: another container, another user, or a driver that \
                 has not let go yet"
            } else {
                ""
            };
            Finding {
                kind: Kind::Device,
                weight: Weight::InTheWay,
                device: Some(state.index),
                pids: holders,
                bytes: Some(missing),
                text: format!(
                    "device {} has {} free of the {} to wait for: {missing} are held{by}",
                    state.index, state.free, state.baseline
                ),
            }
        })
        .collect()
}

/// Holders by the driver's list that are no process here: the driver counts them in its own process space.
fn of_unseen_holders(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in facts.devices.iter().flatten() {
        for (pid, used) in &device.holders {
            if facts.processes.iter().flatten().any(|process| process.pid == *pid) {
                continue;
            }
            let amount = used.map_or_else(String::new, |used| format!("{used} of "));
            findings.push(Finding {
                kind: Kind::Holder,
                weight: Weight::InTheWay,
                device: Some(device.index),
                pids: vec![*pid],
                bytes: *used,
                text: format!(
                    "pid {pid} of the host holds {amount}device {}: it is no process that can be seen from here",
                    device.index
                ),
            });
        }
    }
    findings
}

/// Segments of servers that no process has open.
fn leftover(facts: &Facts) -> Vec<&SegmentFacts> {
    let processes = facts.processes.as_deref().unwrap_or_default();
    let held: BTreeSet<&String> = processes.iter().flat_map(|p| &p.segments).collect();
    facts
        .segments
        .iter()
        .filter(|segment| segment_role(&segment.name).is_some() && !held.contains(&segment.name))
        .collect()
}

fn of_segments(leftover: &[&SegmentFacts]) -> Option<Finding> {
    let bytes: Bytes = leftover.iter().map(|segment| segment.bytes).sum();
    let whose: BTreeSet<&str> = leftover.iter().filter_map(|s| segment_role(&s.name)).collect();
    let whose: Vec<&str> = whose.into_iter().collect();
    (!leftover.is_empty()).then(|| Finding {
        kind: Kind::Segments,
        weight: if bytes >= SMALL_SEGMENTS { Weight::InTheWay } else { Weight::Note },
        device: None,
        pids: Vec::new(),
        bytes: Some(bytes),
        text: format!(
            "/dev/shm holds {} segments that nobody has open, {bytes} ({})",
            leftover.len(),
            whose.join(", ")
        ),
    })
}

fn of_host(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(host) = &facts.host else { return findings };
    if let Some((used, limit)) = host.cgroup
        && u128::from(used.0) * 10 > u128::from(limit.0) * 9
    {
        findings.push(Finding {
            kind: Kind::Cgroup,
            weight: Weight::InTheWay,
            device: None,
            pids: Vec::new(),
            bytes: Some(limit.saturating_sub(used)),
            text: format!(
                "the control group uses {used} of its {limit}: a server that loads here is killed"
            ),
        });
    }
    let locked = [host.locked, host.unevictable].into_iter().flatten().max();
    if let Some(locked) = locked.filter(|locked| *locked >= SMALL_LOCKED) {
        findings.push(Finding {
            kind: Kind::Locked,
            weight: Weight::Note,
            device: None,
            pids: Vec::new(),
            bytes: Some(locked),
            text: format!("{locked} of host memory are locked or cannot be evicted"),
        });
    }
    findings
}

/// The baseline of a device whose memory is the host's.
fn of_shared_memory(facts: &Facts, devices: &[DeviceState]) -> Option<Finding> {
    let baseline = facts.baseline.filter(|_| devices.is_empty())?;
    let free = facts.host?.headroom?;
    (free < baseline).then(|| Finding {
        kind: Kind::Device,
        weight: Weight::InTheWay,
        device: None,
        pids: Vec::new(),
        bytes: Some(baseline.saturating_sub(free)),
        text: format!("the host can give {free} of the {baseline} to wait for"),
    })
}

fn of_port(facts: &Facts) -> Option<Finding> {
    let (port, Port::Taken) = facts.port? else { return None };
    let processes = facts.processes.iter().flatten();
    let pids: Vec<u32> = processes.filter(|p| p.port == Port::Taken).map(|p| p.pid).collect();
    let whose = match pids.as_slice() {
        [] => "by somebody who cannot be seen from here".to_owned(),
        pids => format!("by pid {}", commands::list(pids)),
    };
    Some(Finding {
        kind: Kind::Port,
        weight: Weight::InTheWay,
        device: None,
        pids,
        bytes: None,
        text: format!("port {port} is taken, {whose}"),
    })
}

fn of_unread(facts: &Facts) -> Vec<Finding> {
    let hidden =
        facts.processes.iter().flatten().filter(|p| {
            p.device_files.is_none() && !p.command.is_empty() && p.owner == Owner::Other
        });
    let hidden = hidden.count();
    let mut texts = facts.unread.clone();
    if hidden > 0 {
        texts.push(format!(
            "{hidden} processes of other users do not show what they have open: run this with sudo to see it"
        ));
    }
    let note = |text| Finding {
        kind: Kind::Unread,
        weight: Weight::Note,
        device: None,
        pids: Vec::new(),
        bytes: None,
        text,
    };
    texts.into_iter().map(note).collect()
}
