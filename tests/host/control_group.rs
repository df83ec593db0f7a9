//! The kernel's own end, in a real control group: a server that nobody stops is killed, and its log on disk
//! reads up to the cut. The same server under a broker answers instead.
//!
//! Needs the right to make a control group with a memory limit (v1 or v2); says so and skips where it has
//! not.

use super::child;
use plimsoll_backend_host::{
    CgroupVersion, HostBackend, HostSpec, Limit, RankSpec, TotalReading, TouchPolicy,
};
use plimsoll_core::{
    backend::{Backend, BackendError, Place, Rank},
    memory::ledger::Account,
    units::Bytes,
};
use plimsoll_replay::{
    again::{Extent, again},
    record::{DigestScope, FieldValue, Fields, Record},
    wire::{Closing, Log, LogWriter},
};
use std::{
    fs::{self, File},
    io::{BufReader, LineWriter},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
};

const VICTIM: &str = "host::control_group::victim";
const LOG: &str = "PLIMSOLL_TEST_LOG";
/// The group's limit; the test's own program takes some 20 MiB of it.
const GROUP: Bytes = Bytes::mib(160);
/// What the device declares: more than the group has.
const DEVICE: Bytes = Bytes::mib(512);
/// What one prefill takes.
const STEP: Bytes = Bytes::mib(8);

/// A memory group of this test; removed when it is dropped.
struct Group {
    folder: PathBuf,
    version: CgroupVersion,
}

impl Group {
    /// Makes a group below this process's own, or below one of its parents, with a limit; `Err` says why
    /// there is none.
    fn new(name: &str, limit: Bytes) -> Result<Self, String> {
        let membership = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
        let mut tried = Vec::new();
        for (version, mount, path) in hierarchies(&membership) {
            for parent in Path::new(path.trim_start_matches('/')).ancestors() {
                let folder = Path::new(mount).join(parent).join(name);
                match Self::at(&folder, version, limit) {
                    Ok(group) => return Ok(group),
                    Err(error) => tried.push(format!("{}: {error}", folder.display())),
                }
            }
        }
        Err(tried.join("; "))
    }

    fn at(folder: &Path, version: CgroupVersion, limit: Bytes) -> Result<Self, String> {
        fs::create_dir(folder).map_err(|e| e.to_string())?;
        let group = Self { folder: folder.to_owned(), version };
        let (file, swap) = match version {
            CgroupVersion::V1 => ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
            CgroupVersion::V2 => ("memory.max", "memory.swap.max"),
        };
        // A hierarchy without a memory controller has no such file.
        if !group.folder.join(file).exists() {
            return Err("no memory controller".to_owned());
        }
        fs::write(group.folder.join(file), limit.0.to_string()).map_err(|e| e.to_string())?;
        // Swap would only put the end off; a kernel without it has no such file.
        let none = if version == CgroupVersion::V1 { limit.0 } else { 0 };
        let _ = fs::write(group.folder.join(swap), none.to_string());
        Ok(group)
    }

    /// Runs a command as a member of the group from its first instruction.
    fn run(&self, inner: &Command) -> ExitStatus {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.folder.join("cgroup.procs"))
            .arg(inner.get_program())
            .args(inner.get_args());
        for (name, value) in inner.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        shell.output().unwrap().status
    }

    /// How often the kernel killed in this group for want of memory.
    fn kills(&self) -> u64 {
        let file = match self.version {
            CgroupVersion::V1 => "memory.oom_control",
            CgroupVersion::V2 => "memory.events",
        };
        let text = fs::read_to_string(self.folder.join(file)).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        line.unwrap_or("0").trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel may still be taking the last member away.
        for _ in 0..50 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        eprintln!("{} could not be removed", self.folder.display());
    }
}

/// Where this process stands in each hierarchy that may limit memory.
fn hierarchies(membership: &str) -> Vec<(CgroupVersion, &'static str, String)> {
    let mut found = Vec::new();
    for line in membership.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        if controllers.split(',').any(|c| c == "memory") {
            found.push((CgroupVersion::V1, "/sys/fs/cgroup/memory", path.to_owned()));
        } else if controllers.is_empty() {
            found.push((CgroupVersion::V2, "/sys/fs/cgroup", path.to_owned()));
        }
    }
    found
}

/// How the victim ends, and what it leaves.
struct End {
    status: ExitStatus,
    kills: u64,
    log: Log,
    bytes: u64,
}

/// The command that is put into the group: it lives on host memory and writes its decisions to `log`.
///
/// `task` is `<who grows> <who refuses>`.
fn server(task: &str, log: &Path) -> Command {
    let mut command = child::command(VICTIM, task);
    command.env(LOG, log);
    command
}

/// Runs the victim in a fresh group; `None`, with a word about it, where no group can be made.
fn life(task: &str) -> Option<End> {
    let name = format!("plimsoll-{}-{}", std::process::id(), task.replace(' ', "-"));
    let group = match Group::new(&name, GROUP) {
        Ok(group) => group,
        Err(why) => {
            eprintln!("skipped: no control group with a memory limit can be made here: {why}");
            return None;
        }
    };
    eprintln!("{task}: control group {:?} at {}", group.version, group.folder.display());
    let log = std::env::temp_dir().join(format!("{name}.jsonl"));
    let status = group.run(&server(task, &log));
    let bytes = fs::metadata(&log).unwrap().len();
    let read = Log::read(BufReader::new(File::open(&log).unwrap())).unwrap();
    let _ = fs::remove_file(&log);
    Some(End { status, kills: group.kills(), log: read, bytes })
}

fn bytes_of(record: &Record, name: &str) -> Bytes {
    match record.fields.get(name) {
        Some(FieldValue::Unsigned(bytes)) => Bytes(*bytes),
        other => panic!("{} has {name} = {other:?}", record.kind),
    }
}

/// The kernel ends who takes too much; the log tells how far it came.
#[track_caller]
fn killed(end: &End) {
    assert_eq!(end.status.signal(), Some(9), "{}", end.status);
    assert_eq!(end.kills, 1);
    let log = &end.log;
    assert_eq!((log.complete, log.footer.is_some()), (false, false));
    // Each record was on disk before its step: the cut falls between lines, and nothing is lost.
    assert_eq!(log.cut_at, Some(end.bytes));
    let last = log.records.last().unwrap();
    // Nearly always inside a step; a page of the log itself may have been the last straw.
    assert!(["step_began", "step_done"].contains(&last.kind.as_str()), "{}", last.kind);
    let taken = bytes_of(last, "taken_bytes");
    assert!(taken < GROUP, "{taken} taken in a group of {GROUP}");
    assert!(taken > GROUP.saturating_sub(Bytes::mib(80)), "died early, at {taken}");
    // What it read of its free memory shrank to nothing: the last reading is the kernel's own.
    let readings: Vec<Bytes> = log
        .records
        .iter()
        .filter(|r| r.kind == "step_began")
        .map(|r| bytes_of(r, "free_bytes"))
        .collect();
    assert!(readings[0] < GROUP, "{} free in a group of {GROUP}", readings[0]);
    assert!(readings.last() < readings.first());
    assert!(*readings.last().unwrap() < STEP + STEP, "{readings:?}");
}

/// The broker answers; the process lives and closes its log.
#[track_caller]
fn answered(end: &End) {
    assert!(end.status.success(), "{}", end.status);
    assert_eq!(end.kills, 0);
    assert!(end.log.complete);
    assert_eq!((end.log.digests_agree(), end.log.cut_at), (Some(true), None));
    let last = end.log.records.last().unwrap();
    assert_eq!(last.kind, "out_of_memory");
    assert!(bytes_of(last, "free_bytes") < bytes_of(last, "requested_bytes"));
}

#[test]
fn a_server_that_nobody_stops_is_killed_and_its_log_reads_up_to_the_cut() {
    if let Some(end) = life("server kernel") {
        killed(&end);
    }
}

#[test]
fn a_neighbour_that_grows_kills_a_server_that_stands_still() {
    if let Some(end) = life("neighbour kernel") {
        killed(&end);
    }
}

#[test]
fn under_a_broker_too_little_memory_is_an_answer() {
    for task in ["server broker", "neighbour broker"] {
        if let Some(end) = life(task) {
            answered(&end);
        }
    }
}

/// The command lowers what it touches to half of what its group leaves, and lives through the founding crash.
#[test]
fn the_command_runs_the_founding_crash_in_a_small_group() {
    let name = format!("plimsoll-{}-command", std::process::id());
    let group = match Group::new(&name, Bytes::mib(320)) {
        Ok(group) => group,
        Err(why) => {
            eprintln!("skipped: no control group with a memory limit can be made here: {why}");
            return;
        }
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let log = std::env::temp_dir().join(format!("{name}.jsonl"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(["run", "--backend", "host", "--record"]).arg(&log);
    command.arg(root.join("scenarios/founding/margin-0.93.yaml"));
    let status = group.run(&command);
    assert_eq!((status.code(), group.kills()), (Some(0), 0));
    let read = Log::read(BufReader::new(File::open(&log).unwrap())).unwrap();
    let _ = fs::remove_file(&log);
    assert!(read.complete);
    assert_eq!(read.digests_agree(), Some(true));
}

/// The command where nothing refuses before the kernel: it is killed, and its recording makes every decision
/// again up to the cut.
#[test]
fn the_command_is_killed_and_its_recording_replays_up_to_the_cut() {
    let name = format!("plimsoll-{}-live", std::process::id());
    let group = match Group::new(&name, GROUP) {
        Ok(group) => group,
        Err(why) => {
            eprintln!("skipped: no control group with a memory limit can be made here: {why}");
            return;
        }
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = std::env::temp_dir().join(format!("{name}.jsonl"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(["run", "--backend", "host", "--observe", "device", "--record"]).arg(&file);
    command.arg(root.join("scenarios/unified-memory/gb10-host-programs-grow.yaml"));
    let status = group.run(&command);
    assert_eq!((status.signal(), group.kills()), (Some(9), 1), "{status}");
    let log = Log::read(BufReader::new(File::open(&file).unwrap())).unwrap();
    let _ = fs::remove_file(&file);
    assert_eq!((log.complete, log.footer.is_some()), (false, false));
    let observed = log.records.iter().filter(|record| record.kind == "observed").count();
    assert!(observed >= 1, "{} records", log.records.len());
    let again = again(&log).unwrap();
    assert!(matches!(again.extent, Extent::Cut(_)), "{:?}", again.extent);
    assert!(again.compared >= 3, "{} decisions", again.compared);
    assert!(again.difference.is_none());
}

#[test]
#[ignore = "run by its parents in a control group"]
fn victim() {
    let Some(task) = child::task() else { return };
    let (who, limit) = task.split_once(' ').unwrap();
    let limit = if limit == "kernel" { Limit::Kernel } else { Limit::Broker };
    let touch = match limit {
        Limit::Kernel => Bytes(u64::MAX),
        // What a broker in this group may touch; the machine lowers it to half of the group.
        Limit::Broker => DEVICE,
    };
    let rank = RankSpec {
        capacity: DEVICE,
        tool_capacity: None,
        total: TotalReading::Works,
        driver_reserve: Bytes::ZERO,
        others: Bytes::ZERO,
        granularity: Bytes::mib(2),
    };
    let spec = HostSpec {
        ranks: vec![rank],
        host_available: DEVICE,
        limit,
        touch: TouchPolicy { total: touch, neighbours: touch, ..TouchPolicy::default() },
    };
    live(who, &mut HostBackend::new(&spec).unwrap());
}

/// Takes more at each step, and writes down what it does before it does it.
fn live(who: &str, machine: &mut HostBackend) {
    let file = LineWriter::new(File::create(std::env::var_os(LOG).unwrap()).unwrap());
    let mut header = Fields::default();
    header.push(DigestScope::Decisions, "scenario", who);
    let mut log = LogWriter::new(file, &header).unwrap();
    let rank = Rank(0);
    let mut taken = Bytes::ZERO;
    let end = loop {
        let free = machine.memory(rank).unwrap().free;
        let began = Record::new("step_began").with("taken_bytes", taken);
        log.push(began.with_measured("free_bytes", free)).unwrap();
        let done = match who {
            "server" => {
                machine.allocate(rank, Account::Activations, Place::Device, STEP).map(|_| ())
            }
            _ => machine.set_others(rank, taken + STEP),
        };
        match done {
            Ok(()) => taken += STEP,
            Err(error) => break error,
        }
        log.push(Record::new("step_done").with("taken_bytes", taken)).unwrap();
    };
    let BackendError::OutOfMemory { requested, free, .. } = end else { panic!("{end}") };
    let record = Record::new("out_of_memory").with("requested_bytes", requested);
    log.push(record.with("free_bytes", free)).unwrap();
    log.finish(Closing::Complete).unwrap();
}
