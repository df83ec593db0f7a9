//! The founding case with real memory: a neighbour grows under one limit with a server. A pool that is a
//! fraction of what was free at the start is killed by the kernel; the plan lends its pages, and finishes.
//!
//! Needs the right to make a control group with a memory limit (v1 or v2); says so and skips where it has
//! not.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests")]
#![cfg(target_os = "linux")]

mod common;

use std::{
    env,
    fs::{self, File},
    io::{LineWriter, Write as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use memmap2::MmapMut;
use plimsoll_backend_host::{
    audit::Audit,
    model::{HostModel, ModelMemory, Outputs, Sequence},
    pressure::{Pressure, plan_readings},
};
use plimsoll_core::{
    policy::plimsoll::{
        Budgets, Engine, KvCell, KvFormat, Lending, Move, Part, PlanArgs, PoolPages, plan,
    },
    units::Bytes,
};

/// The limit of the group.
const GROUP: Bytes = Bytes::mib(192);
/// What the neighbour takes.
const NEIGHBOUR: Bytes = Bytes::mib(96);
const MARGIN: Bytes = Bytes::mib(24);
/// Tokens of the text, one every [`PAUSE`].
const TOKENS: usize = 600;
const PAUSE: Duration = Duration::from_millis(4);
const ROLE: &str = "PLIMSOLL_TEST_ROLE";
const LOG: &str = "PLIMSOLL_TEST_LOG";

/// A memory group; removed when it is dropped.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Result<Self, String> {
        let membership = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
        let mut tried = Vec::new();
        for line in membership.lines() {
            let mut fields = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
            let (mount, limit, swap) = if controllers.split(',').any(|c| c == "memory") {
                let swap = "memory.memsw.limit_in_bytes";
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", (swap, GROUP.0))
            } else if controllers.is_empty() {
                ("/sys/fs/cgroup", "memory.max", ("memory.swap.max", 0))
            } else {
                continue;
            };
            for parent in Path::new(path.trim_start_matches('/')).ancestors() {
                let folder = Path::new(mount).join(parent).join(name);
                match Self::at(&folder, limit, swap) {
                    Ok(group) => return Ok(group),
                    Err(error) => tried.push(format!("{}: {error}", folder.display())),
                }
            }
        }
        Err(tried.join("; "))
    }

    fn at(folder: &Path, limit: &str, (swap, none): (&str, u64)) -> Result<Self, String> {
        fs::create_dir(folder).map_err(|e| e.to_string())?;
        let group = Self(folder.to_owned());
        if !folder.join(limit).exists() {
            return Err("no memory controller".to_owned());
        }
        fs::write(folder.join(limit), GROUP.0.to_string()).map_err(|e| e.to_string())?;
        // A kernel without swap has no such file.
        let _ = fs::write(folder.join(swap), none.to_string());
        Ok(group)
    }

    /// This program again, in the group from its first instruction.
    fn start(&self, role: &str, log: &Path) -> Child {
        Command::new("sh")
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.0.join("cgroup.procs"))
            .arg(env::current_exe().unwrap())
            .args(["child", "--exact", "--ignored", "--nocapture"])
            .envs([(ROLE, role.as_ref()), (LOG, log.as_os_str())])
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel may still be taking the last member away.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            sleep(Duration::from_millis(20));
        }
        eprintln!("{} could not be removed", self.0.display());
    }
}

/// How a server ends, and the lines that it wrote.
struct End {
    status: ExitStatus,
    lines: Vec<String>,
}

impl End {
    fn tokens(&self) -> Vec<&str> {
        self.lines.iter().filter_map(|line| line.strip_prefix("token ")).collect()
    }

    /// Values of the lines that begin with a word.
    fn values(&self, word: &str) -> Vec<u64> {
        let rest = self.lines.iter().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
        rest.map(|value| value.parse().unwrap()).collect()
    }
}

/// A server, and a neighbour that comes when it is ready, grows, stays a while and goes.
fn life(role: &str, neighbour: bool) -> Option<End> {
    let name = format!("plimsoll-{}-{role}-{neighbour}", std::process::id());
    let group = match Group::new(&name) {
        Ok(group) => group,
        Err(why) => {
            eprintln!("skipped: no control group with a memory limit can be made here: {why}");
            return None;
        }
    };
    let log = env::temp_dir().join(format!("{name}.log"));
    let mut server = group.start(role, &log);
    let end = Instant::now() + Duration::from_secs(60);
    let read = || fs::read_to_string(&log).unwrap_or_default();
    while !read().contains("ready") && server.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "never ready: {}", read());
        sleep(Duration::from_millis(5));
    }
    let other = neighbour.then(|| group.start("neighbour", &log));
    let status = server.wait().unwrap();
    if let Some(mut other) = other {
        let _ = other.kill();
        other.wait().unwrap();
    }
    let lines = read().lines().map(str::to_owned).collect();
    let _ = fs::remove_file(&log);
    Some(End { status, lines })
}

#[test]
fn a_fraction_is_killed_and_the_plan_finishes() {
    let Some(alone) = life("plan", false) else { return };
    assert!(alone.status.success(), "{}: {:?}", alone.status, alone.lines.last());
    assert_eq!(alone.tokens().len(), TOKENS);

    let killed = life("fraction", true).unwrap();
    assert_eq!(killed.status.signal(), Some(9), "{}", killed.status);
    // What it wrote before is there, and right.
    let tokens = killed.tokens();
    eprintln!("the fraction: killed after {} of {TOKENS} tokens", tokens.len());
    assert!(tokens.len() < TOKENS);
    assert_eq!(tokens, alone.tokens()[..tokens.len()]);

    let lived = life("plan", true).unwrap();
    assert!(lived.status.success(), "{}: {:?}", lived.status, lived.lines.last());
    assert_eq!(lived.tokens(), alone.tokens());
    let (given, taken) = (lived.values("give"), lived.values("take"));
    let page = lived.values("page")[0];
    let bytes = |pages: &[u64]| Bytes(pages.iter().sum::<u64>() * page);
    eprintln!(
        "the plan: {} lent in {} moves, {} taken again in {}",
        bytes(&given),
        given.len(),
        bytes(&taken),
        taken.len()
    );
    assert!(bytes(&given) + MARGIN + MARGIN > NEIGHBOUR, "{}", bytes(&given));
    // When the neighbour has gone, all comes back.
    assert_eq!(bytes(&given), bytes(&taken));
    assert!(alone.values("give").is_empty());
}

#[test]
#[ignore = "run by its parent in a control group"]
fn child() {
    match env::var(ROLE).as_deref() {
        Ok("neighbour") => grow(),
        Ok(role) => serve(role == "plan"),
        Err(_) => {}
    }
}

/// A mebibyte at a time, then still for a while, then gone.
fn grow() {
    let mut held = Vec::new();
    for _ in 0..NEIGHBOUR.0 >> 20 {
        let mut piece = MmapMut::map_anon(1 << 20).unwrap();
        piece.chunks_mut(4096).for_each(|page| page[0] = 1);
        held.push(piece);
        sleep(Duration::from_millis(5));
    }
    sleep(Duration::from_millis(300));
}

fn serve(planned: bool) {
    let mut log = LineWriter::new(File::create(env::var_os(LOG).unwrap()).unwrap());
    let shape = common::shape(8);
    let args = PlanArgs {
        mem_margin: Some(MARGIN),
        max_running_requests: Some(1),
        chunked_prefill_size: Some(8),
        context_length: Some(TOKENS as u64 + 1),
        ..PlanArgs::default()
    };
    let readings = plan_readings().unwrap();
    let cell = KvCell::new(&shape, KvFormat::F32, 16).unwrap();
    let none = common::options(
        plimsoll_core::tape::own::StepLimits { tokens: 9, outputs: 1 },
        1,
        TOKENS as u64 + 1,
    );
    let scratch = Bytes(ModelMemory::planned(&shape, &none).unwrap().scratch);
    let weights: u64 =
        shape.weights().filter_map(|id| shape.extent(id)).map(|e| e.rows * e.columns * 4).sum();
    let small = Bytes::mib(1);
    let budgets = Budgets { tokenizer: small, http: small, recording: small, ..Budgets::default() };
    let (weights, threads) = (Bytes(weights), 3);
    let workspace = none.keep.workspace();
    let engine = Engine { shape: &shape, cell, weights, workspace, scratch, threads, budgets };
    let plan = plan(&readings, &args, &engine).unwrap();
    // A server that takes nine tenths of what it finds free, once.
    let snapshot = readings.group.as_ref().unwrap().room;
    let pages = if planned { plan.pages } else { snapshot.0 / 10 * 9 / plan.page.0 };
    let options = common::options(plan.settings.limits, pages as usize, TOKENS as u64 + 1);
    let mut model = common::load(&shape, &options);
    let table: Vec<u32> = (0..cell.pages_for(TOKENS as u64 + 1) as u32).collect();
    let lending = Lending { margin: plan.of(Part::Margin), page: plan.page };
    let pressure = Pressure::new(None);
    let mut lent: Vec<u32> = Vec::new();
    writeln!(log, "page {}\nready", plan.page.0).unwrap();
    let mut token = 5;
    for before in 0..TOKENS {
        if planned {
            watch((&mut model, &mut lent), &table, (lending, pressure.room().unwrap()), &mut log);
        }
        let tokens = [token];
        let sequence = Sequence { tokens: &tokens, table: &table, before, outputs: Outputs::Last };
        let logits = model.step(&[sequence]).unwrap();
        let row = logits.row(0).unwrap();
        token = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
        writeln!(log, "token {token}").unwrap();
        if before == 3 && planned {
            let now = plan_readings().unwrap().resident;
            let audit = Audit::new(&plan, &model.memory(), now);
            assert_eq!(audit.beyond(), Bytes::ZERO, "{audit:?}");
        }
        sleep(PAUSE);
    }
}

/// What a scheduler does between two steps: the last of the pages that no request has go first.
fn watch(
    (model, lent): (&mut HostModel, &mut Vec<u32>),
    table: &[u32],
    (lending, room): (Lending, plimsoll_core::policy::plimsoll::Room),
    log: &mut impl std::io::Write,
) {
    let pages = model.pool().pages();
    let spare = (pages - table.len() - lent.len()) as u64;
    match lending.decide(room, PoolPages { spare, lent: lent.len() as u64 }) {
        Move::Stay => {}
        Move::Give(count) => {
            for _ in 0..count {
                let page = (pages - 1 - lent.len()) as u32;
                model.lend(page).unwrap();
                lent.push(page);
            }
            writeln!(log, "give {count}").unwrap();
        }
        Move::Take(count) => {
            for _ in 0..count {
                model.take_back(lent.pop().unwrap()).unwrap();
            }
            writeln!(log, "take {count}").unwrap();
        }
    }
}
