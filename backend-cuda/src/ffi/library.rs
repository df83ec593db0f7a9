//! Shared libraries, opened when the program runs: the driver, and the libraries beside it. A
//! library is opened once in a process and never closed, since its threads may outlive its users.

use libloading::Library;
use std::ffi::c_int;
use std::sync::OnceLock;

/// Why the driver cannot be called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LoadError {
    /// No `libcuda` is found.
    NoLibrary,
    /// The library lacks a symbol.
    MissingSymbol {
        /// Its name.
        name: &'static str,
        /// CUDA release of the driver (1000 × major + 10 × minor), when it can say.
        release: Option<i32>,
    },
}

/// A library beside the driver that is not there, or lacks what is called.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", self.text())]
pub struct MissingLibrary {
    /// What it is: `cuBLASLt`.
    pub library: &'static str,
    /// The file names that were tried, in their order.
    pub tried: &'static [&'static str],
    /// The first symbol that it lacks; `None` when the library itself is not found.
    pub symbol: Option<&'static str>,
    /// How to get it.
    pub fix: &'static str,
}

impl MissingLibrary {
    fn text(&self) -> String {
        let Self { library, tried, symbol, fix } = self;
        match symbol {
            None => format!("{library} is not found (tried {}): {fix}", tried.join(", ")),
            Some(symbol) => format!("{library} is too old (it has no {symbol}): {fix}"),
        }
    }
}

/// A library beside the driver: what it is called, and how to get it.
pub(crate) struct Wanted {
    pub(super) library: &'static str,
    pub(crate) names: &'static [&'static str],
    pub(super) fix: &'static str,
}

impl Wanted {
    const fn missing(&self, symbol: Option<&'static str>) -> MissingLibrary {
        MissingLibrary { library: self.library, tried: self.names, symbol, fix: self.fix }
    }

    /// Opens the first that is there.
    pub(super) fn open(&self) -> Result<Library, MissingLibrary> {
        open_first(self.names).ok_or(self.missing(None))
    }

    /// Looks a symbol up, with the type that the caller's field has.
    pub(super) fn symbol<F: Copy>(
        &self,
        library: &Library,
        name: &'static str,
    ) -> Result<F, MissingLibrary> {
        // SAFETY: each name is looked up with the C signature that its library documents.
        unsafe { library.get::<F>(name) }.map(|f| *f).map_err(|_| self.missing(Some(name)))
    }
}

fn open_first(names: &[&str]) -> Option<Library> {
    // SAFETY: opening a library runs its initialisers; these are NVIDIA's, by their file names.
    names.iter().find_map(|name| unsafe { Library::new(*name) }.ok())
}

#[cfg(windows)]
const DRIVER: &[&str] = &["nvcuda.dll"];
#[cfg(not(windows))]
const DRIVER: &[&str] = &["libcuda.so.1", "libcuda.so"];

/// The driver's library.
pub(super) fn driver() -> Result<&'static Library, LoadError> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY.get_or_init(|| open_first(DRIVER)).as_ref().ok_or(LoadError::NoLibrary)
}

/// Looks a symbol of the driver up, with the type that the caller's field has.
pub(super) fn symbol<F: Copy>(name: &'static str) -> Result<F, LoadError> {
    let library = driver()?;
    // SAFETY: each name is looked up with the C signature that the driver API documents for it.
    let found = unsafe { library.get::<F>(name) }.map(|f| *f);
    found.map_err(|_| LoadError::MissingSymbol { name, release: release(library) })
}

fn release(library: &Library) -> Option<i32> {
    type Version = unsafe extern "C" fn(*mut c_int) -> c_int;
    // SAFETY: the documented signature.
    let version = *unsafe { library.get::<Version>("cuDriverGetVersion") }.ok()?;
    let mut release = 0;
    // SAFETY: the pointer is valid for the call.
    (unsafe { version(&raw mut release) } == 0).then_some(release)
}
