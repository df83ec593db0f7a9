//! Commands for people: what to look at, what to free. They are texts; nothing here runs them.

use super::{
    Facts, Owner, SegmentFacts,
    judge::{DeviceState, Kind, Seen},
    role::Part,
};
use crate::log::Server;
use plimsoll_core::units::Bytes;

/// Most segments that one command names.
const MOST_SEGMENTS: usize = 50;
/// What shows free memory until one stops it.
const WAIT: &str = "nvidia-smi --query-gpu=index,memory.free,memory.used --format=csv -l 2";
/// What shows who computes.
const HOLDERS: &str = "nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory --format=csv";

/// One step: why, and the command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// What it is for.
    pub text: String,
    /// The command; `None` where none helps.
    pub command: Option<String>,
}

fn step(text: impl Into<String>, command: impl Into<String>) -> Step {
    Step { text: text.into(), command: Some(command.into()) }
}

/// What a log tells of a crash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Crash {
    /// Which server.
    pub server: Server,
    /// The device that ran out, as the log numbers it.
    pub device: Option<u32>,
    /// The ranks that died, as the log names them (`TP3`).
    pub ranks: Vec<String>,
    /// Free memory of the weakest rank before loading (SGLang's `Load weight begin`).
    pub baseline: Option<Bytes>,
}

/// What to do before a relaunch, from a log alone: who still holds the device, end what is left, wait for the
/// baseline.
#[must_use]
pub fn after_crash(crash: &Crash) -> Vec<Step> {
    let titles = match crash.server {
        Server::Sglang => "sglang::|sglang.launch_server|sglang serve",
        Server::Vllm => "VLLM::|vllm serve|vllm.entrypoints|ray::",
        Server::LlamaCpp => "llama-server",
        Server::Ollama => "ollama (serve|runner)",
        Server::TensorRtLlm => "trtllm|tritonserver",
        Server::Tgi => "text-generation",
        Server::Lmdeploy => "lmdeploy",
    };
    let ranks = match crash.ranks.as_slice() {
        [] => String::new(),
        ranks => format!(" (in the log: {})", ranks.join(", ")),
    };
    let place = crash.device.map_or_else(|| "the devices".to_owned(), |n| format!("device {n}"));
    let only = crash.device.map_or_else(String::new, |n| format!(" -i {n}"));
    let mut steps = vec![
        step(format!("who still holds {place}"), format!("{HOLDERS}{only}")),
        step(
            format!(
                "processes that are left of the server{ranks}; a Z is dead, a D cannot be ended"
            ),
            format!("pgrep -f '{titles}' | xargs -r ps -o pid,ppid,stat,etime,rss,comm -p"),
        ),
        step("shared memory that is left", "ls -l /dev/shm"),
    ];
    let what = "end what is left, with the numbers from above in place of PID";
    steps.push(step(what, "kill -TERM PID …; sleep 30; kill -KILL PID …"));
    let until = match crash.baseline {
        Some(baseline) => {
            format!("wait until {place} shows at least {baseline} free, as before loading")
        }
        None => format!("wait until the free memory of {place} stops growing"),
    };
    steps.push(step(until, format!("{WAIT}{only}")));
    steps
}

/// Commands that look.
pub(super) fn look(facts: &Facts, seen: &[Seen<'_>]) -> Vec<Step> {
    let mut steps = Vec::new();
    if facts.devices.as_ref().is_some_and(|devices| !devices.is_empty()) {
        steps.push(step("who computes on the devices", HOLDERS));
        steps.push(step("who has them open, of other users too", "sudo fuser -v /dev/nvidia*"));
    }
    let pids: Vec<u32> = seen.iter().map(|process| process.facts.pid).collect();
    if !pids.is_empty() {
        let command = format!("ps -o pid,ppid,stat,etime,rss,comm -p {}", joined(&pids, ","));
        steps.push(step("the processes found here", command));
    }
    if !facts.segments.is_empty() {
        steps.push(step("shared memory", "ls -l /dev/shm"));
    }
    if let Some((port, super::Port::Taken)) = facts.port {
        steps.push(step("who listens", format!("ss -ltnp 'sport = :{port}'")));
    }
    steps
}

/// Commands that free, in their order.
pub(super) fn free(
    facts: &Facts,
    seen: &[Seen<'_>],
    leftover: &[&SegmentFacts],
    devices: &[DeviceState],
) -> Vec<Step> {
    let mut steps = Vec::new();
    let of = |test: &dyn Fn(&Seen<'_>) -> bool| -> Vec<&Seen<'_>> {
        seen.iter().filter(|process| test(process)).collect()
    };
    let is_front = |p: &Seen<'_>| p.role.as_ref().is_some_and(|role| role.part == Part::Front);
    let fronts = of(&|p| p.kind == Kind::Server && is_front(p));
    if !fronts.is_empty() {
        let text = "end the servers; their workers end with them, within half a minute";
        steps.push(step(text, kill("TERM", &fronts)));
    }
    // Without a front that can be seen, workers are left too.
    let left = of(&|p| p.kind == Kind::Orphan || p.kind == Kind::Server && fronts.is_empty());
    if !left.is_empty() {
        steps.push(step("end what is left of a server", kill("TERM", &left)));
    }
    let all = of(&|p| matches!(p.kind, Kind::Server | Kind::Orphan));
    if !all.is_empty() {
        steps.push(step("those of them that are still there then", kill("KILL", &all)));
    }
    let holders = of(&|p| p.kind == Kind::Holder);
    if !holders.is_empty() {
        let names: Vec<String> =
            holders.iter().map(|p| format!("{} (pid {})", p.name(), p.facts.pid)).collect();
        let text = format!("other programs, if they may go: {}", names.join(", "));
        steps.push(step(text, kill("TERM", &holders)));
    }
    steps.extend(zombies(facts, &of(&|p| p.kind == Kind::Zombie)));
    if seen.iter().any(|p| p.kind == Kind::Stuck) {
        let text = "a process in state D ends when the driver answers; if it never does, the machine has to \
                    be started anew";
        steps.push(Step { text: text.to_owned(), command: None });
    }
    steps.extend(segments(leftover));
    if devices.iter().any(|device| !device.back) {
        let least = devices.iter().map(|device| device.baseline).min().unwrap_or(Bytes::ZERO);
        let text = format!("then wait until every device has its baseline free, at least {least}");
        steps.push(step(text, WAIT));
    }
    steps
}

/// A zombie goes when its parent takes notice, or when the parent ends.
fn zombies(facts: &Facts, zombies: &[&Seen<'_>]) -> Option<Step> {
    if zombies.is_empty() {
        return None;
    }
    let mut parents: Vec<u32> = zombies.iter().map(|zombie| zombie.facts.parent).collect();
    parents.sort_unstable();
    parents.dedup();
    let (first, others): (Vec<u32>, Vec<u32>) = parents.into_iter().partition(|pid| *pid <= 1);
    if others.is_empty() && !first.is_empty() {
        let text = "zombies go with their parent, which is the first process here: start the container anew, \
                    with --init";
        return Some(Step { text: text.to_owned(), command: None });
    }
    let named = |pid: &u32| {
        let parent = facts.processes.iter().flatten().find(|process| process.pid == *pid)?;
        Some(format!("{} (pid {pid})", short(&parent.name)))
    };
    let names: Vec<String> = others.iter().filter_map(named).collect();
    let text = format!("zombies cannot be killed: their parents have to end: {}", names.join(", "));
    Some(step(text, format!("kill -TERM {}", joined(&others, " "))))
}

fn segments(leftover: &[&SegmentFacts]) -> Option<Step> {
    let names = leftover.iter().take(MOST_SEGMENTS);
    let paths: Vec<String> = names
        .filter_map(|segment| shlex::try_quote(&segment.name).ok().map(|n| format!("/dev/shm/{n}")))
        .collect();
    let more = match leftover.len().saturating_sub(MOST_SEGMENTS) {
        0 => String::new(),
        n => format!("; {n} more are left out here"),
    };
    let text = format!("segments that nobody has open, once no server is meant to run{more}");
    (!paths.is_empty()).then(|| step(text, format!("rm -- {}", paths.join(" "))))
}

/// `kill` for these processes, with `sudo` where one is somebody else's.
fn kill(signal: &str, processes: &[&Seen<'_>]) -> String {
    let pids: Vec<u32> = processes.iter().map(|process| process.facts.pid).collect();
    let sudo = match processes.iter().any(|process| process.facts.owner == Owner::Other) {
        true => "sudo ",
        false => "",
    };
    format!("{sudo}kill -{signal} {}", joined(&pids, " "))
}

/// The kernel's short name of a process, without what could be a path or move a cursor.
pub(super) fn short(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_graphic() && *c != '/').collect()
}

/// Numbers for people.
pub(super) fn list(pids: &[u32]) -> String {
    joined(pids, ", ")
}

fn joined(pids: &[u32], by: &str) -> String {
    let words: Vec<String> = pids.iter().map(u32::to_string).collect();
    words.join(by)
}
