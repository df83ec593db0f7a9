//! What every backend must do alike: one body of checks, run on each of them by its tests.
//!
//! A check drives a machine at rest through the calls of [`Backend`] and compares what it answers with
//! what its documentation promises. Sizes are multiples of [`Bench::unit`], so that rounding of a
//! device does not enter. Nothing here belongs to a run; it stands in `core` because backends do not
//! know each other.

mod parts;
mod work;

use super::{Backend, BackendError, HostLimit, MemoryReading, Place, RangeId, Rank, SegmentId};
use crate::{memory::ledger::Account, units::Bytes};

/// What a check needs to know of the machine under test.
///
/// On each rank at least 16 units must be free, on the host 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bench {
    /// A multiple of the granularity of segments, of parts of ranges, and of what other programs hold.
    pub unit: Bytes,
    /// By how much a reading of a device may miss; zero where memory is counted. A real driver keeps pages
    /// of its own after a call.
    pub device_slack: Bytes,
    /// The same for the host; a real one is used by other programs meanwhile.
    pub host_slack: Bytes,
}

impl Bench {
    /// A machine whose memory is counted to the byte.
    #[must_use]
    pub const fn exact(unit: Bytes) -> Self {
        Self { unit, device_slack: Bytes::ZERO, host_slack: Bytes::ZERO }
    }

    pub(crate) const fn units(&self, n: u64) -> Bytes {
        Bytes(self.unit.0 * n)
    }
}

/// The answer of a check: what is wrong, with the numbers.
pub type Verdict = Result<(), String>;

/// One check, on a machine at rest.
pub type Check<B> = fn(&mut B, &Bench) -> Verdict;

/// Every check, by name.
#[must_use]
pub fn checks<B: Backend>() -> Vec<(&'static str, Check<B>)> {
    vec![
        ("accounts_close", accounts_close),
        ("readings_follow_segments", readings_follow_segments),
        ("segments_end_once", segments_end_once),
        ("not_now_and_never", not_now_and_never),
        ("unknown_names", unknown_names),
        ("other_programs", other_programs),
        ("host_is_shared", host_is_shared),
        ("ranges", parts::ranges),
        ("refused_ranges", parts::refused_ranges),
        ("parts_of_ranges", parts::parts_of_ranges),
        ("graphs", work::graphs),
        ("passes_and_moves", work::passes_and_moves),
        ("all_comes_back", work::all_comes_back),
    ]
}

/// Runs every check, each on a machine that `fresh` makes.
///
/// # Errors
///
/// The first check that fails, by name, with what it saw; or why `fresh` made no machine.
pub fn conformance<B: Backend>(
    mut fresh: impl FnMut() -> Result<B, BackendError>,
    bench: &Bench,
) -> Verdict {
    for (name, check) in checks::<B>() {
        let mut machine = fresh().map_err(|error| format!("{name}: no machine: {error}"))?;
        check(&mut machine, bench).map_err(|what| format!("{name}: {what}"))?;
    }
    Ok(())
}

/// Everything that a machine says of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    readings: Vec<MemoryReading>,
    held: Vec<Vec<(Account, Bytes)>>,
    host: Bytes,
}

pub(crate) fn ranks<B: Backend>(machine: &B) -> impl Iterator<Item = Rank> + use<B> {
    (0..machine.ranks()).map(Rank)
}

pub(crate) fn see<B: Backend>(machine: &mut B) -> Result<Seen, String> {
    let mut seen = Seen { readings: Vec::new(), held: Vec::new(), host: Bytes::ZERO };
    for rank in ranks(machine) {
        seen.readings.push(did("memory", machine.memory(rank))?);
        seen.held.push(did("held", machine.held(rank))?);
    }
    seen.host = did("host_available", machine.host_available())?;
    Ok(seen)
}

/// Whether two views agree, but for what the bench forgives. Measured readings are not compared.
pub(crate) fn unchanged(what: &str, before: &Seen, after: &Seen, bench: &Bench) -> Verdict {
    near(&format!("{what}: host"), after.host, before.host, bench.host_slack)?;
    let ranks =
        before.readings.iter().zip(&after.readings).zip(before.held.iter().zip(&after.held));
    for (rank, ((r0, r1), (h0, h1))) in ranks.enumerate() {
        let what = format!("{what}: rank {rank}");
        near(&format!("{what}: free"), r1.free, r0.free, bench.device_slack)?;
        let fixed = |r: &MemoryReading| (r.capacity, r.total);
        ensure(fixed(r0) == fixed(r1), || format!("{what}: {r0:?} became {r1:?}"))?;
        for account in Account::ALL {
            let what = format!("{what}: {}", account.name());
            near(&what, of(h1, account), of(h0, account), bench.device_slack)?;
        }
    }
    Ok(())
}

/// What one account holds.
pub(crate) fn of(held: &[(Account, Bytes)], account: Account) -> Bytes {
    held.iter().filter(|(a, _)| *a == account).map(|(_, bytes)| *bytes).sum()
}

pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if holds { Ok(()) } else { Err(otherwise()) }
}

pub(crate) fn near(what: &str, got: Bytes, due: Bytes, slack: Bytes) -> Verdict {
    let apart = got.0.abs_diff(due.0);
    ensure(apart <= slack.0, || format!("{what} is {got:?}, and {due:?} is due (±{slack:?})"))
}

/// The value of a call that must succeed.
pub(crate) fn did<T>(what: &str, result: Result<T, BackendError>) -> Result<T, String> {
    result.map_err(|error| format!("{what} failed: {error} ({error:?})"))
}

/// A call that must fail as a mistake of the caller.
pub(crate) fn unknown<T>(what: &str, result: Result<T, BackendError>) -> Verdict {
    match result {
        Err(BackendError::Unknown(_)) => Ok(()),
        Err(other) => Err(format!("{what} should be unknown, and failed with {other:?}")),
        Ok(_) => Err(format!("{what} should be unknown, and succeeded")),
    }
}

/// What a refusal should be compared with.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) rank: Rank,
    pub(crate) account: Account,
    pub(crate) place: Place,
    /// At least so much is refused.
    pub(crate) size: Bytes,
    /// What is free, and by how much it may miss.
    pub(crate) free: (Bytes, Bytes),
}

/// A call that must be refused for now; what it says is compared with the reading. The host's refusal may
/// name the limit that was reached.
pub(crate) fn not_now<T>(what: &str, result: Result<T, BackendError>, asked: Asked) -> Verdict {
    let (due, slack) = asked.free;
    let (rank, account, requested, free) = match result {
        Err(BackendError::OutOfMemory { rank, account, requested, free }) => {
            (rank, account, requested, free)
        }
        Err(BackendError::HostOutOfMemory { rank, account, requested, free, limit })
            if asked.place == Place::Host =>
        {
            // A control group may leave less than the host has.
            let tighter = limit == HostLimit::Cgroup && free < due;
            (rank, account, requested, if tighter { due } else { free })
        }
        Err(other) => return Err(format!("{what} should be out of memory: {other:?}")),
        Ok(_) => return Err(format!("{what} should be out of memory, and succeeded")),
    };
    ensure((rank, account) == (asked.rank, asked.account), || {
        format!("{what} was refused to {account:?} of {rank:?}, not to {:?}", asked.account)
    })?;
    ensure(requested >= asked.size, || {
        format!("{what}: {requested:?} refused, and {:?} were asked for", asked.size)
    })?;
    near(&format!("{what}: free in the refusal"), free, due, slack)
}

/// A call that can never succeed.
pub(crate) fn never<T>(what: &str, result: Result<T, BackendError>) -> Verdict {
    match result {
        Err(BackendError::TooLarge { .. }) => Ok(()),
        Err(other) => Err(format!("{what} can never fit, and failed with {other:?}")),
        Ok(_) => Err(format!("{what} can never fit, and succeeded")),
    }
}

/// What a rank's accounts hold together, its free memory included: the device's capacity.
pub(crate) fn capacity<B: Backend>(machine: &B, rank: Rank) -> Result<Bytes, String> {
    Ok(did("held", machine.held(rank))?.iter().map(|(_, bytes)| *bytes).sum())
}

pub(crate) fn device<B: Backend>(
    machine: &mut B,
    rank: Rank,
    account: Account,
    size: Bytes,
) -> Result<SegmentId, String> {
    did("allocate", machine.allocate(rank, account, Place::Device, size))
}

pub(crate) fn free_of<B: Backend>(machine: &mut B, rank: Rank) -> Result<Bytes, String> {
    Ok(did("memory", machine.memory(rank))?.free)
}

/// Accounts that a server takes segments for.
const TAKEN: [Account; 9] = [
    Account::Context,
    Account::Weights,
    Account::DraftWeights,
    Account::RequestTable,
    Account::KvPool,
    Account::StatePool,
    Account::Graphs,
    Account::Workspaces,
    Account::Activations,
];

/// Rows are in order, none twice, none empty; they sum to the capacity at any moment; `free` is the reading.
fn accounts_close<B: Backend>(machine: &mut B, bench: &Bench) -> Verdict {
    let start = see(machine)?;
    for rank in ranks(machine) {
        let whole = capacity(machine, rank)?;
        let at_rest = did("held", machine.held(rank))?;
        let mut taken = Vec::new();
        for account in TAKEN {
            taken.push(device(machine, rank, account, bench.unit)?);
            let held = did("held", machine.held(rank))?;
            rows_in_order(&held)?;
            let sum: Bytes = held.iter().map(|(_, bytes)| *bytes).sum();
            ensure(sum == whole, || format!("the rows sum to {sum:?} of {whole:?}: {held:?}"))?;
            let due = of(&at_rest, account) + bench.unit;
            near(account.name(), of(&held, account), due, bench.device_slack)?;
            let reading = did("memory", machine.memory(rank))?;
            near("the row of free", of(&held, Account::Free), reading.free, bench.device_slack)?;
            if let Some(total) = reading.total {
                let seen = whole.saturating_sub(of(&held, Account::DriverReserve));
                ensure(seen == total, || format!("programs see {total:?}, the rows say {seen:?}"))?;
            }
        }
        for segment in taken {
            did("free", machine.free(segment))?;
        }
        unchanged("after all was freed", &start, &see(machine)?, bench)?;
    }
    Ok(())
}

fn rows_in_order(held: &[(Account, Bytes)]) -> Verdict {
    let rising = held.windows(2).all(|pair| pair[0].0 < pair[1].0);
    ensure(rising, || format!("rows out of order: {held:?}"))?;
    let empty = held.iter().any(|(_, bytes)| *bytes == Bytes::ZERO);
    ensure(!empty, || format!("an empty row: {held:?}"))
}

/// A segment is missing from its rank's free memory and from nothing else, and comes back.
fn readings_follow_segments<B: Backend>(machine: &mut B, bench: &Bench) -> Verdict {
    let at_rest = see(machine)?;
    for rank in ranks(machine) {
        let before = free_of(machine, rank)?;
        let first = device(machine, rank, Account::Weights, bench.units(3))?;
        let left = before.saturating_sub(bench.units(3));
        near("free after a segment", free_of(machine, rank)?, left, bench.device_slack)?;
        for other in ranks(machine).filter(|other| *other != rank) {
            let index = other.0 as usize;
            let due = at_rest.readings[index].free;
            near("free of another rank", free_of(machine, other)?, due, bench.device_slack)?;
        }
        let host = did("host_available", machine.host_available())?;
        near("the host", host, at_rest.host, bench.host_slack)?;
        // One byte costs at most a unit, whatever the device rounds to.
        let small = device(machine, rank, Account::Activations, Bytes(1))?;
        let now = free_of(machine, rank)?;
        let cost = left.saturating_add(bench.device_slack).saturating_sub(now);
        let most = bench.unit.saturating_add(bench.device_slack).saturating_add(bench.device_slack);
        ensure(cost <= most, || format!("one byte costs {cost:?}"))?;
        did("free", machine.free(first))?;
        did("free", machine.free(small))?;
    }
    unchanged("after all was freed", &at_rest, &see(machine)?, bench)
}

/// A segment is freed once; its name does not come back for another.
fn segments_end_once<B: Backend>(machine: &mut B, bench: &Bench) -> Verdict {
    let at_rest = see(machine)?;
    let rank = Rank(0);
    let first = device(machine, rank, Account::KvPool, bench.unit)?;
    let second = device(machine, rank, Account::KvPool, bench.unit)?;
    ensure(first != second, || format!("{first:?} was given twice"))?;
    did("free", machine.free(first))?;
    let one_left = see(machine)?;
    unknown("a second free", machine.free(first))?;
    unchanged("after a second free", &one_left, &see(machine)?, bench)?;
    let third = device(machine, rank, Account::KvPool, bench.unit)?;
    ensure(third != first && third != second, || format!("{third:?} came back"))?;
    unknown("the old name", machine.free(first))?;
    did("free", machine.free(third))?;
    did("free", machine.free(second))?;
    unchanged("after all was freed", &at_rest, &see(machine)?, bench)
}

/// More than the device is refused for ever; more than is free, for now, and fits when it is free again.
fn not_now_and_never<B: Backend>(machine: &mut B, bench: &Bench) -> Verdict {
    let account = Account::Weights;
    for rank in ranks(machine) {
        let at_rest = see(machine)?;
        let beyond = capacity(machine, rank)?.saturating_add(bench.unit);
        never("a huge segment", machine.allocate(rank, account, Place::Device, beyond))?;
        never("a huge graph", machine.capture(rank, 1, beyond))?;
        unchanged("after a refusal for ever", &at_rest, &see(machine)?, bench)?;

        let free = free_of(machine, rank)?;
        let pool = device(machine, rank, Account::KvPool, bench.units(4))?;
        let filled = see(machine)?;
        let left = free_of(machine, rank)?;
        let most = Bytes(free.saturating_sub(bench.device_slack).0 / bench.unit.0 * bench.unit.0);
        let again = machine.allocate(rank, account, Place::Device, most);
        let free = (left, bench.device_slack);
        let asked = Asked { rank, account, place: Place::Device, size: most, free };
        not_now("a segment", again, asked)?;
        let again = machine.capture(rank, 1, most);
        let asked = Asked { account: Account::Graphs, size: Bytes::ZERO, ..asked };
        not_now("a graph", again, asked)?;
        unchanged("after a refusal for now", &filled, &see(machine)?, bench)?;
        did("free", machine.free(pool))?;
        let whole = device(machine, rank, account, most)?;
        did("free", machine.free(whole))?;
        unchanged("after all was freed", &at_rest, &see(machine)?, bench)?;
    }
    Ok(())
}

/// A rank, a segment or a range that does not exist is a mistake, in every call, and changes nothing.
fn unknown_names<B: Backend>(machine: &mut B, bench: &Bench) -> Verdict {
    let at_rest = see(machine)?;
    let rank = Rank(machine.ranks());
    let (account, unit) = (Account::KvPool, bench.unit);
    unknown("memory", machine.memory(rank))?;
    unknown("held", machine.held(rank))?;
    unknown("set_others", machine.set_others(rank, unit))?;
    for place in [Place::Device, Place::Host] {
        unknown("allocate", machine.allocate(rank, account, place, unit))?;
    }
    unknown("reserve", machine.reserve(rank, account, unit))?;
    unknown("capture", machine.capture(rank, 1, unit))?;
    for way in [super::KvMove::ToHost, super::KvMove::ToDevice] {
        unknown("move_kv", machine.move_kv(rank, way, unit))?;
    }
    unknown("free", machine.free(SegmentId(u64::MAX)))?;
    let range = RangeId(u64::MAX);
    unknown("map", machine.map(range, Bytes::ZERO, unit))?;
    unknown("unmap", machine.unmap(range, Bytes::ZERO, unit))?;
    unknown("unreserve", machine.unreserve(range))?;
    unchanged("after unknown names", &at_rest, &see(machine)?, bench)
}

/// Other programs grow and shrink, and are refused like anybody else.
fn other_programs<B: Backend>(machine: &mut B, bench: &Bench) -> Verdict {
    for rank in ranks(machine) {
        let at_rest = see(machine)?;
        let start = did("memory", machine.memory(rank))?;
        let held = of(&did("held", machine.held(rank))?, Account::OtherPrograms);
        let mine = device(machine, rank, Account::Weights, bench.unit)?;
        for units in [5, 2, 7, 0] {
            let due = held + bench.units(units);
            did("set_others", machine.set_others(rank, due))?;
            let reading = did("memory", machine.memory(rank))?;
            let left = start.free.saturating_sub(bench.units(units + 1));
            near("free beside other programs", reading.free, left, bench.device_slack)?;
            let row = of(&did("held", machine.held(rank))?, Account::OtherPrograms);
            near("the row of other programs", row, due, bench.device_slack)?;
            if let Some(said) = reading.others {
                near("the reading of other programs", said, due, bench.device_slack)?;
            }
        }
        let full = see(machine)?;
        let left = free_of(machine, rank)?;
        let more = held.saturating_add(left).saturating_add(bench.device_slack) + bench.units(2);
        let (account, free) = (Account::OtherPrograms, (left, bench.device_slack));
        let asked = Asked { rank, account, place: Place::Device, size: left, free };
        not_now("other programs", machine.set_others(rank, more), asked)?;
        unchanged("after other programs were refused", &full, &see(machine)?, bench)?;
        did("free", machine.free(mine))?;
        unchanged("after all was freed", &at_rest, &see(machine)?, bench)?;
    }
    Ok(())
}

/// The ranks share one host with other programs; a device does not notice.
fn host_is_shared<B: Backend>(machine: &mut B, bench: &Bench) -> Verdict {
    let at_rest = see(machine)?;
    let account = Account::KvPool;
    let left = |n: u64| at_rest.host.saturating_sub(bench.units(n));
    let pools: Result<Vec<_>, _> = ranks(machine)
        .take(2)
        .map(|rank| did("allocate", machine.allocate(rank, account, Place::Host, bench.unit)))
        .collect();
    let pools = pools?;
    let taken = pools.len() as u64;
    let host = did("host_available", machine.host_available())?;
    near("the host beside its pools", host, left(taken), bench.host_slack)?;
    for units in [4, 1] {
        did("set_host_others", machine.set_host_others(bench.units(units)))?;
        let host = did("host_available", machine.host_available())?;
        near("the host beside other programs", host, left(taken + units), bench.host_slack)?;
    }
    let filled = see(machine)?;
    let huge = Bytes::gib(1 << 20);
    never("a huge host pool", machine.allocate(Rank(0), account, Place::Host, huge))?;
    let all = Bytes(at_rest.host.0 / bench.unit.0 * bench.unit.0);
    let free = (left(taken + 1), bench.host_slack);
    let asked = Asked { rank: Rank(0), account, place: Place::Host, size: all, free };
    not_now("a host pool", machine.allocate(Rank(0), account, Place::Host, all), asked)?;
    let again = machine.set_host_others(all + bench.units(1));
    let asked = Asked { account: Account::OtherPrograms, ..asked };
    not_now("others on the host", again, asked)?;
    unchanged("after the host refused", &filled, &see(machine)?, bench)?;
    for rank in at_rest.readings.iter().zip(&filled.readings) {
        near("a device beside host pools", rank.1.free, rank.0.free, bench.device_slack)?;
    }
    for pool in pools {
        did("free", machine.free(pool))?;
    }
    did("set_host_others", machine.set_host_others(Bytes::ZERO))?;
    unchanged("after all was freed", &at_rest, &see(machine)?, bench)
}
