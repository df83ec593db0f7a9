//! What stands beside the driver: which libraries the loader finds, where and of which release, and whether the
//! kernels in this program have code for a device. Nothing is kept open.

use crate::ffi::{Driver, VIRTUAL_MEMORY, cublaslt, nccl, nvrtc, release};
use crate::probe;
use plimsoll_core::device::ComputeCapability;
use std::fmt;
use std::path::PathBuf;

/// Release of CUDA that the kernels are compiled with. Its machine code loads in drivers of that release and later,
/// its PTX (ISA 9.0) is translated by the same ones.
pub const KERNELS: (u32, u32) = (13, 0);

/// First release whose cuBLASLt knows Blackwell.
pub const BLACKWELL: (u32, u32) = (12, 8);

/// A library that is opened at run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Library {
    /// cuBLASLt: all matrix products of serving.
    CublasLt,
    /// NCCL: sums over the devices of one server.
    Nccl,
    /// NVRTC: compiles the kernels anew.
    Nvrtc,
    /// NVML, a part of the driver: memory without a context.
    Nvml,
}

/// A release as the library says it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Release(String);

/// What the loader gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Look {
    /// It is there.
    Found {
        /// The name under which it was asked for.
        file: &'static str,
        /// The file, where the system tells (Linux).
        path: Option<PathBuf>,
        /// Its release; for NVML the driver's. `None` when it does not say.
        release: Option<Release>,
    },
    /// There is a file of that name, and it cannot be used.
    Unusable {
        /// The name under which it was asked for.
        file: &'static str,
        /// The loader's words.
        why: String,
    },
    /// The loader finds no file of any of its names.
    Missing,
}

/// How the kernels of this program get onto a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceCode {
    /// Machine code that the program carries.
    Native(&'static str),
    /// PTX that the driver translates when it is first loaded.
    Translated,
    /// None: the device is older than any of it.
    None,
}

impl Library {
    /// All of them, the needed ones first.
    pub const ALL: [Self; 4] = [Self::CublasLt, Self::Nccl, Self::Nvrtc, Self::Nvml];

    /// Name without release.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CublasLt => "libcublasLt",
            Self::Nccl => "libnccl",
            Self::Nvrtc => "libnvrtc",
            Self::Nvml => "libnvidia-ml",
        }
    }

    /// File names, in the order in which they are tried.
    #[must_use]
    pub const fn files(self) -> &'static [&'static str] {
        match self {
            Self::CublasLt => cublaslt::WANTED.names,
            Self::Nccl => nccl::WANTED.names,
            Self::Nvrtc => nvrtc::WANTED.names,
            Self::Nvml => &["libnvidia-ml.so.1"],
        }
    }

    /// Opens it under the first of its names that the loader finds, asks its release, and closes it.
    #[must_use]
    pub fn look(self) -> Look {
        for file in self.files() {
            match release::Opened::open(file) {
                Ok(opened) => return self.ask(file, &opened),
                Err(why) if is_absent(file, &why) => {}
                Err(why) => return Look::Unusable { file, why },
            }
        }
        Look::Missing
    }

    fn ask(self, file: &'static str, opened: &release::Opened) -> Look {
        let (symbol, release) = match self {
            Self::CublasLt => {
                ("cublasLtGetVersion", opened.returned("cublasLtGetVersion").map(Release::packed))
            }
            Self::Nccl => ("ncclGetVersion", opened.written("ncclGetVersion").map(Release::packed)),
            Self::Nvrtc => {
                let pair = opened.written_pair("nvrtcVersion");
                ("nvrtcVersion", pair.map(|(major, minor)| Release(format!("{major}.{minor}"))))
            }
            Self::Nvml => match opened.driver_release() {
                Ok(release) => ("nvmlInit_v2", release.map(Release)),
                Err(code) => {
                    return Look::Unusable { file, why: format!("nvmlInit_v2 returned {code}") };
                }
            },
        };
        match opened.address(symbol) {
            Some(address) => Look::Found { file, path: file_of(address), release },
            None => Look::Unusable { file, why: format!("it has no {symbol}") },
        }
    }
}

impl Release {
    /// 10,000 × major + 100 × minor + patch.
    fn packed(number: u64) -> Self {
        Self(format!("{}.{}.{}", number / 10_000, number / 100 % 100, number % 100))
    }

    /// Whether it is `major.minor` or later.
    #[must_use]
    pub fn is_at_least(&self, (major, minor): (u32, u32)) -> bool {
        let mut parts = self.0.split('.').map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap_or(0_u32), parts.next().unwrap_or(0)) >= (major, minor)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How the kernels get onto a device: machine code is good for its own generation from its own minor number on,
/// PTX of 9.0 for every later device.
#[must_use]
pub fn device_code(device: ComputeCapability) -> DeviceCode {
    match (device.major, device.minor) {
        (9, _) => DeviceCode::Native("sm_90"),
        (10, _) => DeviceCode::Native("sm_100"),
        (12, _) => DeviceCode::Native("sm_120"),
        (0..9, _) => DeviceCode::None,
        _ => DeviceCode::Translated,
    }
}

/// The file of the driver's library; `None` when there is none or the system does not tell.
#[must_use]
pub fn driver_file() -> Option<PathBuf> {
    Driver::load().ok()?;
    file_of(release::driver_address()?)
}

/// CUDA release of the driver; `None` when there is none or it lacks a function of 11.0. No device is needed.
#[must_use]
pub fn driver_release() -> Option<(u32, u32)> {
    let version = u32::try_from(Driver::load().ok()?.version().ok()?).ok()?;
    Some((version / 1000, version % 1000 / 10))
}

/// Whether a device maps physical memory page by page; `None` when the driver does not answer.
#[must_use]
pub fn virtual_memory(ordinal: u32) -> Option<bool> {
    let driver = Driver::load().ok()?;
    probe::start(&driver).ok()?;
    let device = probe::handle(&driver, i32::try_from(ordinal).ok()?).ok()?;
    driver.attribute(device, VIRTUAL_MEMORY).ok().map(|value| value != 0)
}

/// The loader says first which file it could not open: the one that was asked for is not there, another one is
/// missing behind it.
fn is_absent(file: &str, complaint: &str) -> bool {
    let missing =
        ["cannot open shared object file: No such file", "image not found", "no such file"];
    let first = complaint.split(':').next().unwrap_or_default();
    first.contains(file) && missing.iter().any(|text| complaint.contains(text))
}

/// The mapped file in which an address of this process lies.
fn file_of(address: usize) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| file_in(line, address))
}

/// The file of one line of `/proc/self/maps`, when the address lies in it.
fn file_in(line: &str, address: usize) -> Option<PathBuf> {
    let (from, rest) = line.split_once('-')?;
    let (to, _) = rest.split_once(' ')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    let inside = (number(from)?..number(to)?).contains(&address);
    let path = line.find('/').map(|at| &line[at..])?;
    inside.then(|| PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(major: u32, minor: u32) -> DeviceCode {
        device_code(ComputeCapability { major, minor })
    }

    #[test]
    fn machine_code_is_good_for_its_generation_and_ptx_for_later_ones() {
        assert_eq!(code(9, 0), DeviceCode::Native("sm_90"));
        assert_eq!(code(10, 3), DeviceCode::Native("sm_100"));
        assert_eq!(code(12, 1), DeviceCode::Native("sm_120"));
        assert_eq!(code(11, 0), DeviceCode::Translated);
        assert_eq!(code(13, 0), DeviceCode::Translated);
        assert_eq!(code(8, 9), DeviceCode::None);
    }

    #[test]
    fn the_code_is_that_of_the_fat_binary() {
        let about = include_str!("../kernels/plimsoll.fatbin.txt");
        let architectures: std::collections::BTreeSet<&str> = about
            .lines()
            .filter(|line| line.starts_with("sm_"))
            .filter_map(|line| line.split(' ').next())
            .collect();
        let said = [(9, 0), (10, 0), (12, 0)].map(|(major, minor)| code(major, minor));
        assert_eq!(architectures.len(), said.len());
        for code in said {
            assert!(matches!(code, DeviceCode::Native(arch) if architectures.contains(arch)));
        }
        assert!(about.contains(&format!("\ncompiler {}.{}.", KERNELS.0, KERNELS.1)), "{about}");
        assert!(about.contains("\nptx 9.0\n"));
    }

    #[test]
    fn releases_compare_by_their_numbers() {
        let release = Release::packed(130_100);
        assert_eq!(release.to_string(), "13.1.0");
        assert!(release.is_at_least((12, 8)) && release.is_at_least((13, 1)));
        assert!(!release.is_at_least((13, 2)));
        assert!(Release("12.10".into()).is_at_least((12, 8)));
        assert!(!Release("words".into()).is_at_least((1, 0)));
    }

    #[test]
    fn a_file_that_is_missing_behind_another_is_no_absent_library() {
        let missing = "cannot open shared object file: No such file or directory";
        assert!(is_absent("libnvrtc.so.13", &format!("libnvrtc.so.13: {missing}")));
        assert!(!is_absent("libnvrtc.so.13", &format!("libnvrtc-builtins.so.13.0: {missing}")));
        assert!(!is_absent("libnvrtc.so.13", "/lib/libnvrtc.so.13: file too short"));
    }

    #[test]
    fn an_address_leads_to_its_file() {
        let line = "7f01-7f0a r-xp 00000000 08:01 42                 /usr/lib/a b/libx.so.1";
        assert_eq!(file_in(line, 0x7f02), Some("/usr/lib/a b/libx.so.1".into()));
        assert_eq!(file_in(line, 0x7f0a), None);
        assert_eq!(file_in("7f01-7f0a rw-p 00000000 00:00 0 ", 0x7f02), None);
        assert_eq!(file_in("no line", 1), None);
    }
}
