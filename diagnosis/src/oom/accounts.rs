//! Whose the device's memory was when an allocation failed.

use plimsoll_core::units::{GIB, MIB};
use plimsoll_ingest::log::{Amount, TorchOom};

/// What a process may hold beside PyTorch without a reason to look for: context, modules, communicators.
const ORDINARY_OUTSIDE: i64 = 6 * GIB as i64;

/// What a desktop and other small programs hold at most, as a share of the device: a twentieth.
const SMALL_SHARE: i64 = 20;

/// Above this share of the device others are the reason that weights do not load: a tenth.
const LOADING_SHARE: i64 = 10;

/// Above this share they are the reason that a measured server dies later: a fifth. What they held before was taken
/// off when it measured.
const SERVING_SHARE: i64 = 5;

/// Devices of this capacity share their memory with the host (GB10, Thor, Strix Halo, MI300A): no other device has
/// between 100 and 129 GiB. Source: the device catalog.
const UNIFIED: std::ops::RangeInclusive<i64> = 100 * GIB as i64..=129 * GIB as i64;

/// Why a printed figure was not used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Artefact {
    /// `0 bytes memory in use`: in a container the driver's list of processes has other numbers.
    ZeroInContainer,
    /// 2^64 or near it: a difference below zero, printed unsigned (WSL2).
    Wrapped,
}

/// The accounts of the device at the failure, from the figures of one text.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Accounts {
    /// The segment asked for.
    pub requested: Option<Amount>,
    /// Capacity of the device.
    pub capacity: Option<Amount>,
    /// Free on the device.
    pub free: Option<Amount>,
    /// All that this process holds.
    pub this_process: Option<Amount>,
    /// Allocated by PyTorch.
    pub allocated: Option<Amount>,
    /// Free blocks inside private pools of graphs (PyTorch counts them as allocated).
    pub private_pools: Option<Amount>,
    /// Reserved by PyTorch and idle.
    pub idle: Option<Amount>,
    /// Of this process and not PyTorch's: context, communicators, DeepEP, symmetric memory, graphs' code.
    pub outside_torch: Option<Amount>,
    /// Neither free nor this process's; where the text does not give this process, neither free nor PyTorch's.
    pub others: Option<Amount>,
    /// How much was short: requested less free; below zero when there was enough.
    pub missing: Option<Amount>,
    /// A figure that means nothing.
    pub artefact: Option<Artefact>,
}

impl Accounts {
    /// What failed, with what was asked and what was free, as far as the text prints them.
    #[must_use]
    pub fn shortage(&self, what: &str) -> String {
        match (self.requested, self.free) {
            (Some(asked), Some(free)) => {
                format!("{what}: {} asked, {} free", size(asked), size(free))
            }
            (Some(asked), None) => format!("{what}: {} asked", size(asked)),
            _ => format!("{what}: out of device memory"),
        }
    }

    /// From the figures of the text.
    ///
    /// Identities of PyTorch's text (2.1 and later): capacity − free is the sum of all processes; a process is
    /// its context and libraries and what PyTorch reserved; reserved is allocated and idle.
    #[must_use]
    pub fn of(oom: &TorchOom) -> Self {
        let (own, artefact) = usable(oom.this_process);
        let mut accounts = Self {
            requested: oom.requested,
            capacity: oom.capacity,
            free: oom.free,
            allocated: oom.allocated,
            private_pools: oom.private_pools,
            idle: oom.reserved_unallocated,
            missing: oom.requested.zip(oom.free).map(|(asked, free)| asked - free),
            artefact,
            ..Self::default()
        };
        let reserved = oom.allocated.map(|a| a + oom.reserved_unallocated.unwrap_or_default());
        let used = oom.capacity.zip(oom.free).map(|(capacity, free)| capacity - free);
        accounts.this_process = own.or_else(|| listed_as_own(oom, reserved));
        accounts.outside_torch =
            accounts.this_process.zip(reserved).map(|(own, torch)| not_negative(own - torch));
        accounts.others = match (used, accounts.this_process, reserved) {
            (Some(used), Some(own), _) => Some(not_negative(used - own)),
            // Nothing says what this process holds beside PyTorch: that is in it too.
            (Some(used), None, Some(torch)) => Some(not_negative(used - torch)),
            _ => listed_others(oom),
        };
        accounts
    }

    /// Whether others hold so much that it matters: over a twentieth of the device, and enough for the request.
    #[must_use]
    pub fn others_decide(&self) -> bool {
        self.others_above(SMALL_SHARE)
    }

    /// Whether others hold so much that they are the reason why weights do not load.
    #[must_use]
    pub fn others_decide_loading(&self) -> bool {
        self.others_above(LOADING_SHARE)
    }

    /// Whether others hold so much that they are the reason why a server that measured its memory dies.
    #[must_use]
    pub fn others_decide_serving(&self) -> bool {
        self.others_above(SERVING_SHARE)
    }

    /// Whether device and host share one memory, by the capacity alone.
    #[must_use]
    pub fn unified(&self) -> bool {
        self.capacity.is_some_and(|capacity| UNIFIED.contains(&capacity.bytes))
    }

    /// Over one part in `share` of the device, and enough for the request.
    fn others_above(&self, share: i64) -> bool {
        let Some(mut others) = self.others else { return false };
        if self.this_process.is_none() && self.allocated.is_some() {
            others.bytes = others.bytes.saturating_sub(ORDINARY_OUTSIDE);
        }
        let capacity = self.capacity.map_or(0, |capacity| capacity.bytes);
        let missing = self.missing.map_or(0, |missing| missing.bytes);
        others.bytes > capacity / share && others.bytes > missing && others.bytes > GIB as i64
    }

    /// Whether this process holds much that PyTorch does not know.
    #[must_use]
    pub fn much_outside_torch(&self) -> bool {
        self.outside_torch.is_some_and(|outside| outside.bytes > ORDINARY_OUTSIDE)
    }

    /// Whether the device had room for the request and still refused.
    #[must_use]
    pub fn refused_with_room(&self) -> bool {
        self.missing.is_some_and(|missing| missing.most() < 0)
    }

    /// Whether PyTorch held half as much again as the request in idle pieces. What is idle is never one piece:
    /// just as much as was asked would not have served it either.
    #[must_use]
    pub fn idle_covers_request(&self) -> bool {
        let enough =
            |idle: Amount, asked: Amount| idle.bytes >= asked.bytes.saturating_add(asked.bytes / 2);
        self.idle.zip(self.requested).is_some_and(|(idle, asked)| enough(idle, asked))
    }

    /// Whether idle pieces and free memory together would have served it, had they been one.
    #[must_use]
    pub fn enough_in_pieces(&self) -> bool {
        match (self.idle, self.free, self.requested) {
            (Some(idle), Some(free), Some(asked)) => (idle + free).bytes >= asked.bytes,
            _ => false,
        }
    }

    /// Whether nothing of size was ever freed: no pass has run in this process yet.
    #[must_use]
    pub fn nothing_freed_yet(&self) -> bool {
        let idle = self.idle.is_some_and(|idle| idle.bytes < 32 * MIB as i64);
        idle && self.private_pools.is_none() && self.allocated.is_some()
    }

    /// The amount short as a share of the capacity.
    #[must_use]
    pub fn missing_share(&self) -> Option<f64> {
        let (missing, capacity) = (self.missing?, self.capacity?);
        (capacity.bytes > 0 && missing.bytes > 0)
            .then(|| missing.bytes as f64 / capacity.bytes as f64)
    }

    /// The arithmetic, a line each, as far as the text gives it.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let (Some(asked), Some(free)) = (self.requested, self.free) {
            let rest = asked - free;
            lines.push(if rest.bytes > 0 {
                format!("{} asked − {} free = {} short", size(asked), size(free), size(rest))
            } else {
                format!("{} asked, {} free: there was room", size(asked), size(free))
            });
        }
        if let (Some(share), Some(capacity)) = (self.missing_share(), self.capacity) {
            lines.push(format!("that is {share:.4} of {}", size(capacity)));
        }
        if let (Some(own), Some(allocated), Some(outside)) =
            (self.this_process, self.allocated, self.outside_torch)
        {
            let idle = self.idle.unwrap_or_default();
            lines.push(format!(
                "{} of this process − {} allocated − {} idle = {} outside PyTorch",
                size(own),
                size(allocated),
                size(idle),
                size(outside)
            ));
        }
        if let (Some(capacity), Some(free), Some(others)) = (self.capacity, self.free, self.others)
            && others.bytes > GIB as i64
        {
            let torch = self.allocated.unwrap_or_default() + self.idle.unwrap_or_default();
            let (own, whose, rest) = match self.this_process {
                Some(own) => (own, "this process's", "others'"),
                None => (torch, "PyTorch's", "others' and this process's own context"),
            };
            lines.push(format!(
                "{} − {} free − {} {whose} = {}: {rest}",
                size(capacity),
                size(free),
                size(own),
                size(others)
            ));
        }
        lines
    }
}

/// The printed use of this process, unless it is one of the figures that mean nothing.
fn usable(printed: Option<Amount>) -> (Option<Amount>, Option<Artefact>) {
    match printed {
        Some(amount) if amount.bytes <= 0 => (None, Some(Artefact::ZeroInContainer)),
        Some(amount) if amount.bytes > (1 << 50) => (None, Some(Artefact::Wrapped)),
        other => (other, None),
    }
}

/// In containers the text lists this process under another number: the smallest listed one that holds what
/// PyTorch reserved.
fn listed_as_own(oom: &TorchOom, reserved: Option<Amount>) -> Option<Amount> {
    let reserved = reserved?;
    let sane = oom.processes.iter().filter(|p| p.bytes < (1 << 50));
    sane.filter(|p| p.most() >= reserved.least()).min_by_key(|p| p.bytes).copied()
}

fn listed_others(oom: &TorchOom) -> Option<Amount> {
    (!oom.processes.is_empty())
        .then(|| oom.processes.iter().fold(Amount::default(), |sum, process| sum + *process))
}

fn not_negative(amount: Amount) -> Amount {
    Amount { bytes: amount.bytes.max(0), half: amount.half }
}

/// An amount in the unit that PyTorch would print it in.
#[must_use]
pub fn size(amount: Amount) -> String {
    let (sign, bytes) =
        if amount.bytes < 0 { ("-", amount.bytes.saturating_neg()) } else { ("", amount.bytes) };
    let value = bytes as f64;
    if bytes > GIB as i64 {
        format!("{sign}{:.2} GiB", value / GIB as f64)
    } else if bytes > MIB as i64 {
        format!("{sign}{:.2} MiB", value / MIB as f64)
    } else if bytes > 1024 {
        format!("{sign}{:.2} KiB", value / 1024.0)
    } else {
        format!("{sign}{bytes} B")
    }
}
