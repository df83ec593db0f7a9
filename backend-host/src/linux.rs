//! Linux: `/proc/meminfo`, control groups (v1 and v2, parents included), NUMA nodes, `/dev/shm`.

use crate::memory::{Cgroup, CgroupVersion, HostError, HostMemory, NumaNode};
use plimsoll_core::{
    policy::plimsoll::{GroupRoom, HostReadings},
    units::Bytes,
};
use std::fs;
use std::path::{Path, PathBuf};

/// Where the kernel's files are; other places in tests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roots {
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys`.
    pub sys: PathBuf,
    /// `/dev/shm`.
    pub shm: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { proc: "/proc".into(), sys: "/sys".into(), shm: "/dev/shm".into() }
    }
}

/// Reads the host below `roots`.
///
/// # Errors
/// When `meminfo` is missing or malformed. Control groups, nodes and shm that are not there are
/// left out.
pub fn read(roots: &Roots) -> Result<HostMemory, HostError> {
    let path = roots.proc.join("meminfo");
    let place = path.display().to_string();
    let text = fs::read_to_string(&path)
        .map_err(|error| HostError::Read { place: place.clone(), text: error.to_string() })?;
    let total = meminfo(&place, &text, "MemTotal")?;
    let total = total.ok_or_else(|| missing(&place, "MemTotal"))?;
    Ok(HostMemory {
        total,
        free: meminfo(&place, &text, "MemFree")?,
        available: meminfo(&place, &text, "MemAvailable")?,
        cgroup: cgroup(roots),
        numa: numa(roots),
        shm_used: shm_used(&roots.shm),
        metal_wired_limit: None,
    })
}

/// What can still be taken: the smaller of `MemAvailable` and what every group over this process leaves.
/// Some small files, where [`read`] walks nodes and `/dev/shm` too. `None` when the kernel says neither.
///
/// # Errors
/// When `meminfo` cannot be read or is malformed.
pub fn headroom(roots: &Roots) -> Result<Option<Bytes>, HostError> {
    let group = group_room(roots).map(|group| group.room);
    Ok(available(roots)?.into_iter().chain(group).min())
}

/// `MemAvailable`, where the kernel says it.
///
/// # Errors
/// When `meminfo` cannot be read or is malformed.
pub fn available(roots: &Roots) -> Result<Option<Bytes>, HostError> {
    let path = roots.proc.join("meminfo");
    let place = path.display().to_string();
    let text = fs::read_to_string(&path)
        .map_err(|error| HostError::Read { place: place.clone(), text: error.to_string() })?;
    meminfo(&place, &text, "MemAvailable")
}

/// The group that leaves the least, of this process's own and all its parents: a parent with a larger limit
/// may have less left, because of others in it. `None` when no group has a limit.
#[must_use]
pub fn group_room(roots: &Roots) -> Option<GroupRoom> {
    let (files, mount, path) = own_group(roots)?;
    let rooms = groups(files, &mount, &path).into_iter().filter_map(|group| {
        let limit = group.limit?;
        let held = group.usage.saturating_sub(group.reclaimable);
        Some(GroupRoom { path: group.path, limit, room: limit.saturating_sub(held) })
    });
    rooms.min_by_key(|group| group.room)
}

/// Readings for the memory plan of an engine in this process.
///
/// # Errors
/// When `meminfo` or the process's own `status` cannot be read or is malformed.
pub fn plan_readings(roots: &Roots) -> Result<HostReadings, HostError> {
    let path = roots.proc.join("meminfo");
    let place = path.display().to_string();
    let text = fs::read_to_string(&path)
        .map_err(|error| HostError::Read { place: place.clone(), text: error.to_string() })?;
    let total = meminfo(&place, &text, "MemTotal")?.ok_or_else(|| missing(&place, "MemTotal"))?;
    let own = own_memory(roots)?;
    let maps = fs::read_to_string(roots.proc.join("sys/vm/max_map_count"));
    Ok(HostReadings {
        total,
        available: meminfo(&place, &text, "MemAvailable")?,
        group: group_room(roots),
        resident: own.resident,
        anonymous: own.anonymous,
        maps_max: maps.ok().and_then(|text| text.trim().parse().ok()),
        system_page: Bytes(page_size::get() as u64),
    })
}

/// Memory of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnMemory {
    /// Addresses that it has mapped, touched or not (`VmSize`).
    pub mapped: Bytes,
    /// Of them, what lies in RAM (`VmRSS`). The kernel counts it in batches: right to some hundred KiB.
    pub resident: Bytes,
    /// Of that, what is in no file (`RssAnon`; all of it where the kernel does not tell).
    pub anonymous: Bytes,
}

/// Reads this process's own memory from `/proc/self/status`.
///
/// # Errors
/// When the file cannot be read or has no such lines.
pub fn own_memory(roots: &Roots) -> Result<OwnMemory, HostError> {
    let path = roots.proc.join("self/status");
    let place = path.display().to_string();
    let text = fs::read_to_string(&path)
        .map_err(|error| HostError::Read { place: place.clone(), text: error.to_string() })?;
    let value = |key| meminfo(&place, &text, key)?.ok_or_else(|| missing(&place, key));
    let (mapped, resident) = (value("VmSize")?, value("VmRSS")?);
    let anonymous = meminfo(&place, &text, "RssAnon")?.unwrap_or(resident);
    Ok(OwnMemory { mapped, resident, anonymous })
}

fn missing(place: &str, key: &str) -> HostError {
    HostError::Form {
        place: place.to_owned(),
        line: 0,
        key: key.to_owned(),
        value: "missing".to_owned(),
        expected: "a line with it",
    }
}

/// One value of a `meminfo` text (kB there are 1024 bytes); `None` when the key is absent. Lines of
/// a NUMA node (`Node 0 MemTotal: …`) are understood too. `place` is named in the error.
///
/// # Errors
/// `Form` when the value is not a whole number.
pub fn meminfo(place: &str, text: &str, key: &str) -> Result<Option<Bytes>, HostError> {
    for (index, line) in text.lines().enumerate() {
        let Some((name, value)) = line.split_once(':') else { continue };
        if name.split_whitespace().next_back() != Some(key) {
            continue;
        }
        let number = value.trim().trim_end_matches("kB").trim();
        let kib: Result<u64, _> = number.parse();
        return match kib {
            Ok(kib) => Ok(Some(Bytes(kib.saturating_mul(1024)))),
            Err(_) => Err(HostError::Form {
                place: place.to_owned(),
                line: index + 1,
                key: key.to_owned(),
                value: value.trim().to_owned(),
                expected: "a whole number of kB",
            }),
        };
    }
    Ok(None)
}

/// The tightest group over this process's group and its parents.
fn cgroup(roots: &Roots) -> Option<Cgroup> {
    let (files, mount, path) = own_group(roots)?;
    let groups = groups(files, &mount, &path);
    let unlimited = groups.first().cloned();
    let limited = groups.into_iter().filter(|g| g.limit.is_some()).min_by_key(|g| g.limit);
    limited.or(unlimited)
}

/// Where this process stands: in v2 when its hierarchy is there, else in v1.
fn own_group(roots: &Roots) -> Option<(&'static Files, PathBuf, String)> {
    let membership = fs::read_to_string(roots.proc.join("self/cgroup")).ok()?;
    let mount = roots.sys.join("fs/cgroup");
    if mount.join("cgroup.controllers").exists() {
        let path = membership.lines().find_map(|line| line.strip_prefix("0::"))?;
        return Some((&V2, mount, path.to_owned()));
    }
    let path = membership.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        controllers.split(',').any(|c| c == "memory").then(|| fields.next()).flatten()
    })?;
    Some((&V1, mount.join("memory"), path.to_owned()))
}

/// File names of a hierarchy.
struct Files {
    version: CgroupVersion,
    limit: &'static str,
    usage: &'static str,
    inactive: &'static str,
}

static V2: Files = Files {
    version: CgroupVersion::V2,
    limit: "memory.max",
    usage: "memory.current",
    inactive: "inactive_file",
};
static V1: Files = Files {
    version: CgroupVersion::V1,
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    inactive: "total_inactive_file",
};

/// No limit: v1 prints 2^63 rounded down to a page.
const UNLIMITED: u64 = 1 << 62;

/// A group and its parents, as far as they are to be seen.
fn groups(files: &Files, mount: &Path, path: &str) -> Vec<Cgroup> {
    // In a container the path may be the host's: folders that are not there are passed over, and
    // the mount point itself (the container's own group) is always looked at.
    let mut groups = Vec::new();
    let mut rest = path.trim_matches('/');
    loop {
        groups.extend(group(files, mount, rest));
        match rest.rsplit_once('/') {
            Some((parent, _)) => rest = parent,
            None if rest.is_empty() => return groups,
            None => rest = "",
        }
    }
}

fn group(files: &Files, mount: &Path, path: &str) -> Option<Cgroup> {
    let folder = mount.join(path);
    let number = |file: &str| -> Option<u64> {
        fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
    };
    let usage = number(files.usage)?;
    let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let reclaimable = stat.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == files.inactive).then(|| value.trim().parse().ok()).flatten()
    });
    Some(Cgroup {
        version: files.version,
        path: format!("/{path}"),
        // `max` is not a number: no limit.
        limit: number(files.limit).filter(|limit| *limit < UNLIMITED).map(Bytes),
        usage: Bytes(usage),
        reclaimable: Bytes(reclaimable.unwrap_or(0)),
    })
}

/// Nodes that have memory (a Grace board shows its GPU's memory as nodes without any at first).
fn numa(roots: &Roots) -> Vec<NumaNode> {
    let Ok(entries) = fs::read_dir(roots.sys.join("devices/system/node")) else {
        return Vec::new();
    };
    let mut nodes: Vec<NumaNode> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let id = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let path = entry.path().join("meminfo");
            let text = fs::read_to_string(&path).ok()?;
            let place = path.display().to_string();
            let value = |key| meminfo(&place, &text, key).ok().flatten();
            Some(NumaNode { id, total: value("MemTotal")?, free: value("MemFree")? })
        })
        .filter(|node| node.total > Bytes::ZERO)
        .collect();
    nodes.sort_by_key(|node| node.id);
    nodes
}

/// Bytes that the files below `folder` occupy (not their nominal length), four levels deep.
fn shm_used(folder: &Path) -> Option<Bytes> {
    let entries = fs::read_dir(folder).ok()?;
    Some(occupied(entries, 4))
}

fn occupied(entries: fs::ReadDir, depth: u32) -> Bytes {
    let mut sum = Bytes::ZERO;
    for entry in entries.flatten() {
        // `DirEntry::metadata` does not follow links.
        let Ok(data) = entry.metadata() else { continue };
        if data.is_file() {
            sum = sum.saturating_add(blocks(&data));
        } else if data.is_dir()
            && depth > 0
            && let Ok(inner) = fs::read_dir(entry.path())
        {
            sum = sum.saturating_add(occupied(inner, depth - 1));
        }
    }
    sum
}

#[cfg(unix)]
pub(crate) fn blocks(data: &fs::Metadata) -> Bytes {
    use std::os::unix::fs::MetadataExt as _;
    // POSIX counts in 512-byte blocks whatever the file system's are.
    Bytes(data.blocks().saturating_mul(512))
}

#[cfg(not(unix))]
pub(crate) fn blocks(data: &fs::Metadata) -> Bytes {
    Bytes(data.len())
}
