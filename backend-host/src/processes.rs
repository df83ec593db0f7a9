//! Processes as `/proc` shows them: what they hold of devices, shared memory and locked memory.
//!
//! Reads files only. What another user's process has open is not shown without rights; then
//! [`Process::open`] is `None`.

use crate::linux::{Roots, meminfo};
use plimsoll_core::units::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    io::Read as _,
    path::Path,
};

/// Most bytes that are read of a command line.
const LONGEST_COMMAND: u64 = 4096;
/// Most bytes that are read of a table of mappings.
const LONGEST_MAPS: u64 = 64 << 20;

/// One process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its parent's.
    pub parent: u32,
    /// The kernel's letter: `R`, `S`, `D` (waits and cannot be interrupted), `Z` (dead, not yet reaped), ….
    pub state: char,
    /// The kernel's short name, at most 15 bytes.
    pub name: String,
    /// The words of its command line; empty for a zombie or a kernel thread. They may hold secrets and
    /// paths.
    pub command: Vec<String>,
    /// Whose it is.
    pub owner: Owner,
    /// In RAM (`VmRSS`).
    pub resident: Bytes,
    /// Locked (`VmLck`).
    pub locked: Bytes,
    /// Pinned (`VmPin`).
    pub pinned: Bytes,
    /// What it has open; `None` when that is not shown.
    pub open: Option<Open>,
}

/// Whose a process is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// The user's who asks.
    Own,
    /// Somebody else's.
    Other,
}

/// What a process has open, of what is looked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Open {
    /// Device files: `nvidia0`, `kfd`, `dri/renderD128`, ….
    pub devices: BTreeSet<String>,
    /// Segments of `/dev/shm`, open or mapped.
    pub segments: BTreeSet<String>,
    /// Sockets that listen on the port that was asked for.
    pub listens: u32,
}

/// A file below `/dev/shm`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Its name.
    pub name: String,
    /// Memory that it occupies.
    pub bytes: Bytes,
}

/// Locked memory of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockedMemory {
    /// `Mlocked`.
    pub locked: Option<Bytes>,
    /// `Unevictable`.
    pub unevictable: Option<Bytes>,
}

/// Every process, by number. `port`: whose sockets to look for.
///
/// # Errors
/// `/proc` cannot be listed.
pub fn read(roots: &Roots, port: Option<u16>) -> io::Result<Vec<Process>> {
    let sockets = port.map(|port| listeners(roots, port)).unwrap_or_default();
    let own = user(&roots.proc.join("self"));
    let mut found = Vec::new();
    for entry in fs::read_dir(&roots.proc)?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // A process may end while it is looked at.
        found.extend(process(&entry.path(), pid, own, &sockets));
    }
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

fn process(folder: &Path, pid: u32, own: Option<u32>, sockets: &BTreeSet<u64>) -> Option<Process> {
    let stat = fs::read(folder.join("stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat).into_owned();
    // The name stands in parentheses and may hold some itself.
    let (before, after) = stat.rsplit_once(')')?;
    let name = before.split_once('(')?.1.to_owned();
    let mut fields = after.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
    let amount = |key| meminfo("", &status, key).ok().flatten().unwrap_or(Bytes::ZERO);
    let owner = match (own, user(folder)) {
        (Some(own), Some(user)) if own != user => Owner::Other,
        _ => Owner::Own,
    };
    Some(Process {
        pid,
        parent,
        state,
        name,
        command: command(&folder.join("cmdline")),
        owner,
        resident: amount("VmRSS"),
        locked: amount("VmLck"),
        pinned: amount("VmPin"),
        open: open(folder, sockets),
    })
}

fn command(path: &Path) -> Vec<String> {
    let text = beginning(path, LONGEST_COMMAND);
    let words = text.split('\0').map(str::to_owned);
    words.filter(|word| !word.is_empty()).collect()
}

fn beginning(path: &Path, most: u64) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open(path) {
        // What was read before an error counts.
        let _ = file.take(most).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn open(folder: &Path, sockets: &BTreeSet<u64>) -> Option<Open> {
    let mut open = Open::default();
    for entry in fs::read_dir(folder.join("fd")).ok()?.flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let Some(target) = target.to_str() else { continue };
        open.see(target);
        let socket = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']'));
        let listens = socket.and_then(|inode| inode.parse().ok());
        open.listens += u32::from(listens.is_some_and(|inode| sockets.contains(&inode)));
    }
    // A segment may be mapped without being open.
    for line in beginning(&folder.join("maps"), LONGEST_MAPS).lines() {
        if let Some(at) = line.find("/dev/") {
            open.see(line.get(at..).unwrap_or_default());
        }
    }
    Some(open)
}

impl Open {
    fn see(&mut self, path: &str) {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        if let Some(name) = path.strip_prefix("/dev/shm/") {
            self.segments.insert(name.to_owned());
            return;
        }
        let Some(name) = path.strip_prefix("/dev/") else { return };
        if name.starts_with("nvidia") || name == "kfd" || name.starts_with("dri/renderD") {
            self.devices.insert(name.to_owned());
        }
    }
}

/// Inodes of the TCP sockets that listen on `port` (`/proc/net/tcp`, `tcp6`).
fn listeners(roots: &Roots, port: u16) -> BTreeSet<u64> {
    const LISTENS: &str = "0A";
    let mut inodes = BTreeSet::new();
    for file in ["net/tcp", "net/tcp6"] {
        let text = fs::read_to_string(roots.proc.join(file)).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let (Some(local), Some(&LISTENS), Some(inode)) =
                (fields.get(1), fields.get(3), fields.get(9))
            else {
                continue;
            };
            let number = local.rsplit_once(':').and_then(|(_, p)| u16::from_str_radix(p, 16).ok());
            if number == Some(port) {
                inodes.extend(inode.parse::<u64>());
            }
        }
    }
    inodes
}

/// Whether somebody listens on `port`, whoever it is.
#[must_use]
pub fn is_taken(roots: &Roots, port: u16) -> bool {
    !listeners(roots, port).is_empty()
}

/// The files below `/dev/shm`, by name; `None` when it cannot be listed.
#[must_use]
pub fn segments(roots: &Roots) -> Option<Vec<Segment>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(&roots.shm).ok()?.flatten() {
        let (Ok(name), Ok(data)) = (entry.file_name().into_string(), entry.metadata()) else {
            continue;
        };
        if data.is_file() {
            found.insert(name, crate::linux::blocks(&data));
        }
    }
    Some(found.into_iter().map(|(name, bytes)| Segment { name, bytes }).collect())
}

/// Locked memory by `/proc/meminfo`.
#[must_use]
pub fn locked_memory(roots: &Roots) -> LockedMemory {
    let text = fs::read_to_string(roots.proc.join("meminfo")).unwrap_or_default();
    let amount = |key| meminfo("", &text, key).ok().flatten();
    LockedMemory { locked: amount("Mlocked"), unevictable: amount("Unevictable") }
}

#[cfg(unix)]
fn user(folder: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(folder).ok().map(|data| data.uid())
}

#[cfg(not(unix))]
fn user(_folder: &Path) -> Option<u32> {
    None
}
