//! Memory of the host, whatever the system.

use plimsoll_core::units::Bytes;

/// Which control-group hierarchy limits this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CgroupVersion {
    /// `memory.limit_in_bytes`.
    V1,
    /// `memory.max`.
    V2,
}

/// The tightest memory limit over this process's control group and its parents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cgroup {
    /// Hierarchy.
    pub version: CgroupVersion,
    /// Group that has the limit, as a path below the mount point.
    pub path: String,
    /// Limit; `None` when no group has one.
    pub limit: Option<Bytes>,
    /// Memory that the group is charged with, page cache included.
    pub usage: Bytes,
    /// Page cache of it that the kernel would drop first (`inactive_file`).
    pub reclaimable: Bytes,
}

/// One NUMA node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NumaNode {
    /// Its number.
    pub id: u32,
    /// Memory.
    pub total: Bytes,
    /// Free (page cache counts as used).
    pub free: Bytes,
}

/// Memory of the host, read once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostMemory {
    /// `MemTotal`; `hw.memsize` on macOS.
    pub total: Bytes,
    /// `MemFree`: what GB10's free reading follows. `None` on macOS.
    pub free: Option<Bytes>,
    /// `MemAvailable`: what psutil calls available, and vLLM and SGLang read. `None` on macOS,
    /// where it takes Mach calls.
    pub available: Option<Bytes>,
    /// Limit of the control group, when there is one to read.
    pub cgroup: Option<Cgroup>,
    /// NUMA nodes with memory, by number; empty when the system shows none.
    pub numa: Vec<NumaNode>,
    /// Bytes held by files in `/dev/shm`, whoever wrote them (they stay after a crash). `None` when
    /// it cannot be listed.
    pub shm_used: Option<Bytes>,
    /// `iogpu.wired_limit_mb` on macOS, when it is set.
    pub metal_wired_limit: Option<Bytes>,
}

impl HostMemory {
    /// What a new process may still take: the smaller of `MemAvailable` and what the control group
    /// leaves (limit − usage + reclaimable).
    #[must_use]
    pub fn headroom(&self) -> Option<Bytes> {
        let group = self.cgroup.as_ref().and_then(|group| {
            let limit = group.limit?;
            Some(limit.saturating_sub(group.usage.saturating_sub(group.reclaimable)))
        });
        match (self.available, group) {
            (Some(available), Some(group)) => Some(available.min(group)),
            (available, group) => available.or(group),
        }
    }
}

/// Why the host's memory could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// A file or command gave nothing.
    #[error("{place} could not be read: {text}")]
    Read {
        /// Path or command.
        place: String,
        /// What the system said.
        text: String,
    },
    /// A text has another form than expected.
    #[error("{place}, line {line}: {key} is `{value}`; expected {expected}")]
    Form {
        /// Path or command.
        place: String,
        /// Line, from 1; 0 when the key is missing.
        line: usize,
        /// Key or column.
        key: String,
        /// As written.
        value: String,
        /// What was expected.
        expected: &'static str,
    },
}

/// Reads this machine.
///
/// # Errors
/// When the total cannot be read; parts that a system does not have are left out.
pub fn read_host() -> Result<HostMemory, HostError> {
    if cfg!(target_os = "macos") {
        crate::macos::read()
    } else {
        crate::linux::read(&crate::linux::Roots::default())
    }
}
