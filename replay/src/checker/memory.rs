//! Memory: every byte of every rank, at every record.
//!
//! State of a rank: `total` (what programs see), `others` (held by other programs), `held` (sum of the
//! segments taken and not freed, and of what leaked). From these follow the rules: free is
//! `total - others - held` in every reading and after every pass; nothing is taken that is not there, nothing
//! freed that is not held; a refused segment was larger than what was free; the accounts after a failure
//! are those of the log and add up. Where a total cannot be read it is solved from the first reading, which
//! then proves nothing by itself. On a machine with one memory (`memory: unified`) what programs and pools
//! on the host hold is missing on the device too; page cache that readings count as used gives way to
//! whoever takes memory, and does not come back. Where a live machine's readings decide, its
//! free memory is its own, and what is left to check is the server's: segments, pools, the allocator.

use super::{Found, Subject, count, is_pass, number, text};
use crate::record::Record;
use std::collections::BTreeMap;

/// The account of the caching allocator's segments.
const ACTIVATIONS: &str = "activations";

/// One rank's memory, as the log tells it.
#[derive(Clone, Default)]
struct RankState {
    total: Option<u64>,
    others: u64,
    /// What the system keeps of a memory in common with the host.
    system: u64,
    page_cache: u64,
    held: u64,
    by_account: BTreeMap<String, u64>,
    /// Pools on the host that take from the device's memory.
    host_pools: BTreeMap<String, u64>,
    /// Most that the caching allocator held since the last pass.
    most_reserved: u64,
    ledger: Option<u64>,
}

impl RankState {
    /// What could be taken: free memory and page cache.
    fn room(&self, host: u64) -> Option<u64> {
        let taken = [self.system, self.others, self.held, host];
        taken.into_iter().try_fold(self.total?, u64::checked_sub)
    }

    /// What is read as free.
    fn free(&self, host: u64) -> Option<u64> {
        Some(self.room(host)?.saturating_sub(self.page_cache))
    }

    /// Page cache that does not fit any more is gone.
    fn squeeze(&mut self, host: u64) {
        if let Some(room) = self.room(host) {
            self.page_cache = self.page_cache.min(room);
        }
    }

    fn reserved(&self) -> u64 {
        self.by_account.get(ACTIVATIONS).copied().unwrap_or(0)
    }

    fn take(&mut self, account: &str, size: u64) {
        self.held = self.held.saturating_add(size);
        let held = self.by_account.entry(account.to_owned()).or_default();
        *held = held.saturating_add(size);
        self.most_reserved = self.most_reserved.max(self.reserved());
    }

    /// Whether the account holds that much; it is given back then.
    fn give_back(&mut self, account: &str, size: u64) -> bool {
        let Some(held) = self.by_account.get_mut(account).filter(|held| **held >= size) else {
            return false;
        };
        *held -= size;
        self.held = self.held.saturating_sub(size);
        true
    }
}

/// What the host holds, as far as the log tells.
#[derive(Default)]
struct Host {
    available: Option<u64>,
    others: u64,
    segments: usize,
}

#[derive(Default)]
pub(super) struct Memory {
    ranks: BTreeMap<u32, RankState>,
    host: Host,
    unified: bool,
    /// A live machine answers.
    live: bool,
    sized: Option<BTreeMap<&'static str, u64>>,
    failed: bool,
}

fn said(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "less than nothing".to_owned(), |bytes| bytes.to_string())
}

impl Subject for Memory {
    fn take(&mut self, record: &Record, found: &mut Found) {
        let mut aside = Found::default();
        let is_own = matches!(record.kind.as_str(), "segment_freed" | "pool_sized" | "ready");
        let found = if self.live && !is_own && !is_pass(record) { &mut aside } else { found };
        match record.kind.as_str() {
            "capacity_read" => self.capacity(record, found),
            "reading" => self.reading(record, found),
            "segment_allocated" => self.segment(record, found),
            "segment_freed" => self.segment_freed(record, found),
            "tenant_changed" => self.tenant(record, found),
            "host_tenant_changed" => self.host_tenant(record, found),
            "tenant_refused" => self.tenant_refused(record, found),
            "leaked" => self.took(record, "unaccounted", count(record, "size_bytes"), found),
            "pool_sized" => self.pool(record, found),
            "host_read" => self.host.available = number(record, "available_bytes"),
            "out_of_memory" => self.out_of_memory(record, found),
            "ledger" => self.ledger(record, found),
            "ready" => self.pool_taken(record, found),
            _ if is_pass(record) => self.pass(record, found),
            _ => {}
        }
        let host = self.host_part();
        self.ranks.values_mut().for_each(|state| state.squeeze(host));
    }

    fn close(&mut self, last: &Record, found: &mut Found) {
        for (rank, state) in &self.ranks {
            match (state.ledger, state.total) {
                // A device of nothing has no accounts.
                (None, total) if self.failed && total != Some(0) => {
                    found.say(last, format!("the accounts of rank {rank} are not in the log"));
                }
                (Some(sum), Some(total)) if sum != total && !self.live => found.say(
                    last,
                    format!("the accounts of rank {rank} hold {sum} B, and its total is {total} B"),
                ),
                _ => {}
            }
        }
    }
}

impl Memory {
    /// Of a run that a machine's own readings decide.
    pub(super) fn live() -> Self {
        Self { live: true, ..Self::default() }
    }

    /// What programs on the host take from a device that shares its memory.
    const fn host_part(&self) -> u64 {
        if self.unified { self.host.others } else { 0 }
    }

    fn rank(&mut self, record: &Record, found: &mut Found) -> Option<&mut RankState> {
        let known = record.rank.filter(|rank| self.ranks.contains_key(rank));
        if known.is_none() {
            found.say(record, "a rank whose capacity was never read");
        }
        self.ranks.get_mut(&known?)
    }

    fn capacity(&mut self, record: &Record, found: &mut Found) {
        let state = RankState {
            total: number(record, "total_bytes"),
            others: number(record, "others_bytes").unwrap_or(0),
            system: number(record, "system_bytes").unwrap_or(0),
            page_cache: number(record, "page_cache_bytes").unwrap_or(0),
            ..RankState::default()
        };
        self.unified = text(record, "memory") == "unified";
        self.host.others = number(record, "host_others_bytes").unwrap_or(0);
        let next = u32::try_from(self.ranks.len()).unwrap_or(u32::MAX);
        if record.rank != Some(next) {
            found.say(record, format!("rank {next} should be read here"));
        }
        if let Some(rank) = record.rank {
            self.ranks.insert(rank, state);
        }
    }

    fn reading(&mut self, record: &Record, found: &mut Found) {
        let host = self.host_part();
        let read = number(record, "free_bytes");
        let Some(state) = self.rank(record, found) else { return };
        let Some(read) = read else { return };
        if state.total.is_none() {
            let parts = [state.system, state.others, state.held, host, state.page_cache];
            state.total = parts.into_iter().try_fold(read, u64::checked_add);
        }
        let free = state.free(host);
        if free != Some(read) {
            found.say(record, format!("read {read} B free, the accounts leave {}", said(free)));
        }
    }

    fn segment(&mut self, record: &Record, found: &mut Found) {
        let size = count(record, "size_bytes");
        if text(record, "place") == "host" {
            return self.host_segment(record, size, found);
        }
        self.took(record, text(record, "account"), size, found);
    }

    fn took(&mut self, record: &Record, account: &str, size: u64, found: &mut Found) {
        let host = self.host_part();
        let Some(state) = self.rank(record, found) else { return };
        let free = state.room(host);
        state.take(account, size);
        if free.is_some_and(|free| size > free) {
            let free = free.unwrap_or(0);
            found.say(record, format!("{size} B taken where {free} B were free"));
        }
    }

    fn host_segment(&mut self, record: &Record, size: u64, found: &mut Found) {
        self.host.segments += 1;
        if self.unified {
            return self.host_segment_on_device(record, size, found);
        }
        match self.host.available.and_then(|available| available.checked_sub(size)) {
            Some(left) => self.host.available = Some(left),
            None => found.say(record, format!("{size} B of host memory that is not there")),
        }
    }

    /// Device and host are one memory: the pool takes from the rank's.
    fn host_segment_on_device(&mut self, record: &Record, size: u64, found: &mut Found) {
        let host = self.host_part();
        let Some(state) = self.rank(record, found) else { return };
        if state.room(host).is_some_and(|room| size > room) {
            found.say(record, format!("{size} B of host memory that is not there"));
        }
        state.held = state.held.saturating_add(size);
        let held = state.host_pools.entry(text(record, "account").to_owned()).or_default();
        *held = held.saturating_add(size);
    }

    fn segment_freed(&mut self, record: &Record, found: &mut Found) {
        let (account, size) = (text(record, "account").to_owned(), count(record, "size_bytes"));
        if text(record, "place") == "host" {
            let unified = self.unified;
            if let Some(state) = self.rank(record, found).filter(|_| unified) {
                state.held = state.held.saturating_sub(size);
                let held = state.host_pools.entry(account).or_default();
                *held = held.saturating_sub(size);
            }
            self.host.available = self.host.available.and_then(|bytes| bytes.checked_add(size));
            return;
        }
        let Some(state) = self.rank(record, found) else { return };
        if !state.give_back(&account, size) {
            found.say(record, format!("{size} B freed that `{account}` does not hold"));
        }
    }

    fn tenant(&mut self, record: &Record, found: &mut Found) {
        let host = self.host_part();
        let held = count(record, "held_bytes");
        let Some(state) = self.rank(record, found) else { return };
        state.others = held;
        if state.total.is_some() && state.room(host).is_none() {
            found.say(record, format!("other programs hold {held} B that are not there"));
        }
    }

    fn host_tenant(&mut self, record: &Record, found: &mut Found) {
        self.host.others = count(record, "held_bytes");
        let host = self.host_part();
        if self.ranks.values().any(|state| state.total.is_some() && state.room(host).is_none()) {
            let held = self.host.others;
            found.say(record, format!("other programs hold {held} B that are not there"));
        }
    }

    /// They asked for more than there was: they hold less, and nothing is left.
    fn tenant_refused(&mut self, record: &Record, found: &mut Found) {
        let (asked, free) = (count(record, "asked_bytes"), count(record, "free_bytes"));
        let host = self.host_part();
        if record.rank.is_none() {
            let held = self.host.others;
            if asked <= held || free > held {
                found.say(record, format!("{asked} B asked for were refused, {held} B are held"));
            }
            return;
        }
        let Some(state) = self.rank(record, found) else { return };
        let (held, left) = (state.others, state.room(host));
        if asked <= held || free > held || left.is_some_and(|left| left > 0) {
            let left = said(left);
            let what = format!("{asked} B were refused; {held} B are held, {left} B are free");
            found.say(record, what);
        }
    }

    fn pool(&mut self, record: &Record, found: &mut Found) {
        if self.sized.is_some() {
            found.say(record, "the pool is sized twice");
        }
        let names = ["kv_pool_bytes", "state_pool_bytes"].into_iter();
        self.sized = Some(names.filter_map(|name| Some((name, number(record, name)?))).collect());
        let early = self.ranks.values().any(|state| state.by_account.contains_key("kv_pool"));
        if early {
            found.say(record, "a pool was taken before it was sized");
        }
    }

    /// At `ready`: the pool that was taken is the one that was sized.
    fn pool_taken(&self, record: &Record, found: &mut Found) {
        let (segments, ranks) = (self.host.segments, self.ranks.len());
        if segments != 0 && segments != ranks {
            found.say(record, format!("{segments} of {ranks} ranks have a host pool"));
        }
        let Some(sized) = &self.sized else {
            return found.say(record, "the server is ready without a pool that was sized");
        };
        let first = self.ranks.get(&0);
        let pool = first.and_then(|state| state.by_account.get("kv_pool")).copied();
        let sized = sized.get("kv_pool_bytes").copied();
        if sized.is_some_and(|bytes| bytes > 0 && pool != Some(bytes)) {
            let (sized, pool) = (sized.unwrap_or(0), pool.unwrap_or(0));
            found.say(record, format!("the pool was sized at {sized} B and {pool} B were taken"));
        }
    }

    fn out_of_memory(&mut self, record: &Record, found: &mut Found) {
        let requested = count(record, "requested_bytes");
        let free = number(record, "free_bytes");
        let limit = free.or_else(|| number(record, "capacity_bytes"));
        if limit.is_none_or(|limit| requested <= limit) {
            found.say(record, format!("{requested} B were refused although they fit"));
        }
        if record.rank.is_none() {
            return; // The host's memory: no account of it is in the log.
        }
        self.failed = true;
        let host = self.host_part();
        // A host pool is refused by the host, on behalf of a rank.
        let killed = !text(record, "killed_by").is_empty();
        let of_host = killed || (free.is_some() && free == self.host.available);
        let serving = number(record, "block_bytes").is_some();
        let Some(state) = self.rank(record, found) else { return };
        // A refusal at the start says what could be taken, one of torch what is read as free.
        let there = if serving { state.free(host) } else { state.room(host) };
        if free.is_some() && there.is_some() && free != there && !of_host {
            let what =
                format!("{} B free are said, the accounts leave {}", said(free), said(there));
            found.say(record, what);
        }
        if serving {
            let (live, reserved) =
                (count(record, "allocated_bytes"), count(record, "reserved_bytes"));
            if live > reserved {
                found.say(record, format!("{live} B are live in {reserved} B of segments"));
            }
            if reserved != state.reserved() {
                let held = state.reserved();
                found
                    .say(record, format!("{reserved} B reserved are said, segments hold {held} B"));
            }
        }
    }

    /// After a pass: what is free on the tightest rank, and what the allocator holds on the fullest.
    fn pass(&mut self, record: &Record, found: &mut Found) {
        let host = self.host_part();
        let free: Option<Vec<u64>> = self.ranks.values().map(|state| state.free(host)).collect();
        let (least, said_free) =
            (free.and_then(|free| free.into_iter().min()), count(record, "free_bytes"));
        if least.is_some_and(|least| least != said_free) && !self.live {
            let what = format!("{said_free} B free are said, the accounts leave {}", said(least));
            found.say(record, what);
        }
        let reserved = self.ranks.values().map(RankState::reserved).max().unwrap_or(0);
        let said_reserved = count(record, "reserved_bytes");
        if reserved != said_reserved {
            let what = format!("{said_reserved} B reserved are said, segments hold {reserved} B");
            found.say(record, what);
        }
        let most = self.ranks.values().map(|state| state.most_reserved).max().unwrap_or(0);
        let peak = count(record, "peak_bytes");
        if peak > most {
            found.say(record, format!("{peak} B were live in at most {most} B of segments"));
        }
        for state in self.ranks.values_mut() {
            state.most_reserved = state.reserved();
        }
    }

    fn ledger(&mut self, record: &Record, found: &mut Found) {
        let held = count(record, "held_bytes");
        let account = text(record, "account").to_owned();
        let host = self.host_part();
        let Some(state) = self.rank(record, found) else { return };
        let sum = state.ledger.get_or_insert(0);
        if account == "driver_reserve" {
            return; // Below what programs see as total.
        }
        *sum = sum.saturating_add(held);
        let expected = match account.as_str() {
            "other_programs" => {
                let parts = [state.system, state.others, host, state.page_cache];
                Some(parts.into_iter().fold(0, u64::saturating_add))
            }
            "free" => state.free(host),
            own => match (state.by_account.get(own), state.host_pools.get(own)) {
                (None, None) => None,
                (device, pool) => Some(device.unwrap_or(&0).saturating_add(*pool.unwrap_or(&0))),
            },
        };
        if expected != Some(held) {
            let expected = expected.map_or_else(|| "nothing".to_owned(), |n| n.to_string());
            found.say(record, format!("`{account}` holds {held} B, the log gave it {expected}"));
        }
    }
}
