//! What the machine says, and the limit that follows.

use std::fmt;

use crate::units::Bytes;

/// The control group on the way up to the root that leaves the least.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupRoom {
    /// Path below the mount point.
    pub path: String,
    /// Its limit.
    pub limit: Bytes,
    /// Limit − what it is charged with + page cache of it that the kernel drops first.
    pub room: Bytes,
}

/// Readings of the host, taken before anything is loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostReadings {
    /// `MemTotal`.
    pub total: Bytes,
    /// `MemAvailable`, where the system says it.
    pub available: Option<Bytes>,
    /// Control groups, where one has a limit.
    pub group: Option<GroupRoom>,
    /// What of this process lies in RAM.
    pub resident: Bytes,
    /// Of that, what is in no file: what `available` and the group's room do not count as free.
    pub anonymous: Bytes,
    /// Most mappings of a process (`vm.max_map_count`), where there is such a limit.
    pub maps_max: Option<u64>,
    /// Size of the system's pages.
    pub system_page: Bytes,
}

/// What a limit rests on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LimitFrom {
    /// All memory of the machine.
    Total,
    /// What programs can still take, with what this one has.
    Available,
    /// A control group, by its path.
    Group(String),
    /// `--memory-limit`.
    Flag,
}

impl fmt::Display for LimitFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Total => f.write_str("all memory of the machine"),
            Self::Available => f.write_str("MemAvailable and what this process has"),
            Self::Group(path) => write!(f, "what control group {path} leaves"),
            Self::Flag => f.write_str("--memory-limit"),
        }
    }
}

/// How much this process may hold in all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limit {
    /// The smallest of all.
    pub bytes: Bytes,
    /// Which one that is.
    pub from: LimitFrom,
}

impl HostReadings {
    /// The smallest of the machine's memory, what it has available, what the groups leave, and the flag. Of
    /// equals the first.
    #[must_use]
    pub fn limit(&self, flag: Option<Bytes>) -> Limit {
        let mut limit = Limit { bytes: self.total, from: LimitFrom::Total };
        let with_own = |room: Bytes| self.anonymous.saturating_add(room);
        let group =
            self.group.as_ref().map(|g| (with_own(g.room), LimitFrom::Group(g.path.clone())));
        let others = [
            self.available.map(|bytes| (with_own(bytes), LimitFrom::Available)),
            group,
            flag.map(|bytes| (bytes, LimitFrom::Flag)),
        ];
        for (bytes, from) in others.into_iter().flatten() {
            if bytes < limit.bytes {
                limit = Limit { bytes, from };
            }
        }
        limit
    }
}
