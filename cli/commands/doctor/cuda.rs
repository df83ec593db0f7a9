//! `doctor --cuda`: what stands between this program and a model on a device, piece by piece. Libraries are
//! opened and asked their release; the driver is asked for its devices; nothing stays open.

mod advice;
mod pieces;

pub use pieces::{Checkup, Need, Piece, State, checkup};

use super::SMI_LIMIT;
use plimsoll_backend_cuda::{
    CudaDevice, ProbeError,
    libraries::{self, Library, Look},
    probe,
};
use plimsoll_backend_host::nvidia_smi::{self, SmiError, SmiProcess};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// What was read.
pub struct Facts {
    /// Devices, or why there are none.
    pub devices: Result<Vec<CudaDevice>, ProbeError>,
    /// For each device, whether it maps memory page by page, where the driver says so.
    pub virtual_memory: Vec<Option<bool>>,
    /// The driver's library.
    pub driver_file: Option<PathBuf>,
    /// Its CUDA release.
    pub driver_release: Option<(u32, u32)>,
    /// Device files of the driver, by name.
    pub nodes: Vec<String>,
    /// The libraries beside it.
    pub libraries: Vec<(Library, Look)>,
    /// Who computes on the devices.
    pub holders: Result<Vec<SmiProcess>, SmiError>,
}

/// Reads all of it; `root` is the folder below which `dev` lies.
pub fn read(root: &Path) -> Facts {
    let devices = probe();
    let ordinals = devices.iter().flatten().map(|device| device.ordinal);
    Facts {
        virtual_memory: ordinals.map(libraries::virtual_memory).collect(),
        devices,
        driver_file: libraries::driver_file(),
        driver_release: libraries::driver_release(),
        nodes: nodes(&root.join("dev")),
        libraries: Library::ALL.into_iter().map(|library| (library, library.look())).collect(),
        holders: nvidia_smi::processes("nvidia-smi", SMI_LIMIT),
    }
}

/// `nvidia0`, `nvidiactl`, `nvidia-uvm`, …; under Windows' Linux it is `dxg`, on a Jetson `nvmap` too.
fn nodes(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_node = |name: &String| name.starts_with("nvidia") || name == "dxg" || name == "nvmap";
    let mut found: Vec<String> = names.filter(is_node).collect();
    found.sort();
    found
}
