//! Device code from source on this machine, by NVRTC: for an architecture that the embedded code
//! was not built for.

use crate::ffi::nvrtc::{CompileError, Nvrtc};

/// Compiles device code for one architecture (`90` for compute capability 9.0); the code (a cubin)
/// and what the compiler says, registers and spills of each kernel among it. Needs no device.
///
/// # Errors
///
/// [`CompileError`]: no NVRTC, or source that it refuses, with its log.
pub fn compile(
    source: &str,
    headers: &[(&str, &str)],
    architecture: u32,
) -> Result<(Vec<u8>, String), CompileError> {
    let options = [
        format!("--gpu-architecture=sm_{architecture}"),
        "--std=c++17".to_owned(),
        "--ptxas-options=-v".to_owned(),
    ];
    Nvrtc::load()?.compile(source, headers, &options)
}
