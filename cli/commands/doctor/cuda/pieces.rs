//! From what was read to one piece a line, and whether a model can be served. Reads nothing.

use super::{Facts, advice};
use plimsoll_backend_cuda::{
    CudaDevice, Partition, ProbeError,
    libraries::{BLACKWELL, DeviceCode, KERNELS, Library, Look, device_code},
};
use plimsoll_backend_host::nvidia_smi::SmiProcess;
use plimsoll_core::{device::MemoryKind, units::Bytes};
use std::path::PathBuf;

/// How a piece was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// There, and good for what it is needed for.
    Found,
    /// There, and no good for it.
    Unfit,
    /// Not there.
    Missing,
}

/// What a piece is needed for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// Serving at all.
    Serving,
    /// `--tp-size` above 1.
    SeveralDevices,
    /// Lending pool pages while the server runs.
    Lending,
    /// Compiling the kernels anew.
    Rebuilding,
    /// Saying who else is on a device.
    Naming,
    /// Nothing by itself: it explains another piece.
    Explaining,
}

/// One line.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Its name.
    pub name: String,
    /// How it was found.
    pub state: State,
    /// What was found, or what was looked for.
    pub says: String,
    /// The file behind it.
    pub path: Option<PathBuf>,
    /// Its release.
    pub release: Option<String>,
    /// What it is needed for.
    pub need: Need,
    /// The same in words.
    pub purpose: &'static str,
    /// How to get it; empty when it was found.
    pub get: Vec<String>,
}

/// The whole.
#[derive(Debug)]
pub struct Checkup {
    /// All that serving needs is there.
    pub serves: bool,
    /// The answer in a sentence.
    pub headline: String,
    /// The pieces, in the order in which one needs the next.
    pub pieces: Vec<Piece>,
}

impl State {
    /// As it is printed.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::Unfit => "unfit",
            Self::Missing => "missing",
        }
    }
}

impl Need {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Serving,
        Self::SeveralDevices,
        Self::Lending,
        Self::Rebuilding,
        Self::Naming,
        Self::Explaining,
    ];

    /// For people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::SeveralDevices => "--tp-size 2 on",
            Self::Lending => "lending",
            Self::Rebuilding => "new kernels",
            Self::Naming => "naming others",
            Self::Explaining => "the driver",
        }
    }

    /// In JSON.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Serving => "serving",
            Self::SeveralDevices => "several_devices",
            Self::Lending => "lending",
            Self::Rebuilding => "rebuilding",
            Self::Naming => "naming",
            Self::Explaining => "explaining",
        }
    }
}

/// Judges what was read.
pub fn checkup(facts: &Facts) -> Checkup {
    let mut pieces = vec![driver(facts), nodes(facts)];
    match &facts.devices {
        Ok(devices) => {
            for (device, pages) in devices.iter().zip(&facts.virtual_memory) {
                pieces.extend(of_device(device, *pages));
            }
        }
        Err(error) => pieces.push(no_device(error)),
    }
    let libraries = facts.libraries.iter().map(|(library, look)| of_library(*library, look, facts));
    pieces.extend(libraries);
    pieces.push(holders(facts));
    let usable = facts.devices.iter().flatten().filter(|device| is_usable(device)).count();
    let needed = |piece: &&Piece| piece.need == Need::Serving && piece.state != State::Found;
    // One device that serves is enough.
    let lacks: Vec<&Piece> = pieces
        .iter()
        .filter(needed)
        .filter(|piece| usable == 0 || !piece.name.starts_with("device "))
        .collect();
    let headline = headline(&lacks, usable, facts.devices.is_ok());
    Checkup { serves: lacks.is_empty(), headline, pieces }
}

fn headline(lacks: &[&Piece], usable: usize, ballast: bool) -> String {
    if lacks.is_empty() {
        let s = if usable == 1 { "" } else { "s" };
        return format!("all that serving needs is there, on {usable} device{s}");
    }
    let names: Vec<String> =
        lacks.iter().map(|piece| format!("{} {}", piece.name, piece.state.word())).collect();
    let rest = if ballast { "; ballast (`run --backend cuda`) works" } else { "" };
    format!("cannot serve: {}{rest}", names.join(", "))
}

fn driver(facts: &Facts) -> Piece {
    let piece = |state, says, get| Piece {
        name: "driver".to_owned(),
        state,
        says,
        path: facts.driver_file.clone(),
        release: facts.driver_release.map(|(major, minor)| format!("{major}.{minor}")),
        need: Need::Serving,
        purpose: "the kernels are made by CUDA 13.0: driver release 580 on",
        get,
    };
    let (major, minor) = facts.driver_release.unwrap_or_default();
    let release = format!("CUDA {major}.{minor}");
    match &facts.devices {
        Err(ProbeError::NoDriver) => {
            piece(State::Missing, "libcuda.so.1".to_owned(), advice::driver())
        }
        Err(error @ ProbeError::DriverTooOld { .. }) => {
            piece(State::Unfit, error.to_string(), advice::newer_driver())
        }
        Err(error @ (ProbeError::Mismatch { .. } | ProbeError::Other(_))) => {
            piece(State::Unfit, error.to_string(), Vec::new())
        }
        Ok(_) | Err(ProbeError::NoDevice) if (major, minor) < KERNELS => {
            let says = format!("{release}, too old to serve; ballast works from 11.0 on");
            piece(State::Unfit, says, advice::newer_driver())
        }
        Ok(_) | Err(ProbeError::NoDevice) => piece(State::Found, release, Vec::new()),
    }
}

fn nodes(facts: &Facts) -> Piece {
    let has = |name: &str| facts.nodes.iter().any(|node| node == name);
    // Under Windows' Linux there is one for all; when devices answer, whatever is there is enough.
    let enough = facts.devices.is_ok() || has("dxg") || (has("nvidiactl") && has("nvidia-uvm"));
    let none = facts.nodes.is_empty();
    let state = match (enough, none) {
        (true, _) => State::Found,
        (false, true) => State::Missing,
        (false, false) => State::Unfit,
    };
    let says = match none {
        true if enough => "none below /dev, yet the driver answers".to_owned(),
        true => "/dev/nvidia*".to_owned(),
        false => format!("/dev: {}", facts.nodes.join(", ")),
    };
    let get = if state == State::Found { Vec::new() } else { advice::nodes(!none) };
    Piece {
        purpose: "nvidiactl, nvidia-uvm and one a device",
        ..plain("device nodes", state, says, Need::Explaining, get)
    }
}

fn no_device(error: &ProbeError) -> Piece {
    let (says, get) = match error {
        ProbeError::NoDevice => ("none", vec![error.to_string()]),
        _ => ("not asked: the driver comes first", Vec::new()),
    };
    Piece {
        purpose: "Hopper, Blackwell or later",
        ..plain("devices", State::Missing, says.to_owned(), Need::Serving, get)
    }
}

fn is_usable(device: &CudaDevice) -> bool {
    device.free.is_ok() && device_code(device.compute_capability) != DeviceCode::None
}

/// The device, its memory, and whether it maps pages.
fn of_device(device: &CudaDevice, pages: Option<bool>) -> [Piece; 3] {
    let n = device.ordinal;
    let capability = device.compute_capability;
    let (state, code) = match device_code(capability) {
        DeviceCode::Native(arch) => (State::Found, format!("machine code for {arch}")),
        DeviceCode::Translated => (
            State::Found,
            "no machine code, the driver translates PTX of 9.0 at the first load".into(),
        ),
        DeviceCode::None => (State::Unfit, "no code: the kernels begin at 9.0".to_owned()),
    };
    let name = &device.name;
    let slice = match &device.partition {
        Partition::Whole => "",
        Partition::Mig { .. } => "; a MIG slice: a process sees one, so --tp-size 1",
    };
    let says = format!("{name}, compute capability {capability}: {code}{slice}");
    let get = match state {
        State::Found => Vec::new(),
        _ => vec!["a card of Hopper or Blackwell; `serve --device host` needs none".to_owned()],
    };
    let whole = Piece {
        purpose: "Hopper, Blackwell or later",
        ..plain(&format!("device {n}"), state, says, Need::Serving, get)
    };
    [whole, memory(device), mapping(n, pages)]
}

fn memory(device: &CudaDevice) -> Piece {
    let name = format!("device {} memory", device.ordinal);
    let shared = match device.memory {
        MemoryKind::Integrated => {
            "; the host's own memory: programs and page cache count against it"
        }
        _ => "",
    };
    let (state, says, get) = match &device.free {
        Ok(free) => (State::Found, format!("{free} free of {}{shared}", device.total), Vec::new()),
        Err(error) => {
            let get = "free the device: `plimsoll doctor --before-relaunch` says what holds it";
            (State::Unfit, format!("unreadable: {error}"), vec![get.to_owned()])
        }
    };
    Piece { purpose: "weights, pool and all else", ..plain(&name, state, says, Need::Serving, get) }
}

fn mapping(ordinal: u32, pages: Option<bool>) -> Piece {
    let (state, says) = match pages {
        Some(true) => (State::Found, "virtual memory management"),
        Some(false) => (State::Missing, "virtual memory management: memory is taken in one piece"),
        None => (State::Missing, "virtual memory management: the driver does not say"),
    };
    let get = match state {
        State::Found => Vec::new(),
        _ => {
            vec!["nothing brings it: some virtual GPUs lack it; the pool is then kept whole".into()]
        }
    };
    Piece {
        purpose: "pool pages given to other programs and taken back",
        ..plain(&format!("device {ordinal} pages"), state, says.to_owned(), Need::Lending, get)
    }
}

fn of_library(library: Library, look: &Look, facts: &Facts) -> Piece {
    let (need, purpose) = match library {
        Library::CublasLt => (Need::Serving, "all matrix products"),
        Library::Nccl => (Need::SeveralDevices, "sums over the devices of one server"),
        Library::Nvrtc => (Need::Rebuilding, "compiles the kernels anew"),
        Library::Nvml => (Need::Naming, "the vendor's own count of memory"),
    };
    let names = library.files().join(", ");
    let mut piece = plain(library.name(), State::Missing, names, need, advice::library(library));
    piece.purpose = purpose;
    match look {
        Look::Missing => {}
        Look::Unusable { file, why } => {
            piece.state = State::Unfit;
            piece.says = format!("{file}: {why}");
        }
        Look::Found { file, path, release } => {
            piece.path.clone_from(path);
            piece.release = release.as_ref().map(ToString::to_string);
            let release_says = piece.release.as_deref().unwrap_or("release not told");
            piece.says = match library {
                Library::Nvml => format!("{file}, driver {release_says}"),
                _ => format!("{file}, {release_says}"),
            };
            let least = least(library, facts);
            let old = release.as_ref().is_some_and(|release| !release.is_at_least(least));
            if old {
                piece.state = State::Unfit;
                piece
                    .says
                    .push_str(&format!(", older than the {}.{} that is needed", least.0, least.1));
            } else {
                piece.state = State::Found;
                piece.get.clear();
            }
        }
    }
    piece
}

/// Oldest release that will do here: Blackwell has kernels in cuBLASLt from 12.8 on.
fn least(library: Library, facts: &Facts) -> (u32, u32) {
    let mut devices = facts.devices.iter().flatten();
    match library {
        Library::CublasLt if devices.any(|device| device.compute_capability.major >= 10) => {
            BLACKWELL
        }
        Library::CublasLt => (12, 0),
        Library::Nccl => (2, 0),
        Library::Nvrtc => (12, 8),
        Library::Nvml => (0, 0),
    }
}

fn holders(facts: &Facts) -> Piece {
    let (state, says, get) = match &facts.holders {
        Ok(all) if all.is_empty() => {
            (State::Found, "nobody that nvidia-smi shows".to_owned(), Vec::new())
        }
        Ok(all) => {
            let list: Vec<String> = all.iter().map(holder).collect();
            (State::Found, list.join("; "), Vec::new())
        }
        Err(error) => (State::Missing, error.to_string(), advice::smi()),
    };
    Piece {
        purpose: "by nvidia-smi; most containers show none",
        ..plain("other programs", state, says, Need::Naming, get)
    }
}

fn holder(process: &SmiProcess) -> String {
    let device = process.index.map_or_else(|| "?".to_owned(), |index| index.to_string());
    let held = process.used_mib.map_or_else(
        || "an unknown amount".to_owned(),
        |mib| Bytes(mib.saturating_mul(1 << 20)).to_string(),
    );
    format!("process {} holds {held} on {device}", process.pid)
}

fn plain(name: &str, state: State, says: String, need: Need, get: Vec<String>) -> Piece {
    let name = name.to_owned();
    Piece { name, state, says, path: None, release: None, need, purpose: "", get }
}
