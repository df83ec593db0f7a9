//! Device code from source on this machine, by NVRTC: for an architecture that the embedded code
//! was not built for.

use crate::ffi::nvrtc::{CompileError, Nvrtc};

/// The unit that includes every kernel.
const UNIT: &str = include_str!("../../kernels/all.cu");

macro_rules! sources {
    ($($name:literal,)*) => {
        /// What the unit includes, directly or not.
        const INCLUDED: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../kernels/", $name))),)*];
    };
}

sources! {
    "copy.cu",
    "decode_attention.cu",
    "dequant.cu",
    "device.cuh",
    "embed.cu",
    "launch.h",
    "mma.cuh",
    "norms.cu",
    "paged.cuh",
    "pointwise.cu",
    "prefill_attention.cu",
    "reduce.cuh",
    "rope.cu",
    "sample.cu",
    "types.cuh",
}

/// Compiles this project's kernels for one architecture (`90` for compute capability 9.0); the code
/// (a cubin, for `Module::load`) and what the compiler says, registers and spills of each kernel
/// among it. Needs no device; takes tens of seconds.
///
/// # Errors
///
/// [`CompileError`]: no NVRTC, or an architecture that it does not know.
pub fn rebuild(architecture: u32) -> Result<(Vec<u8>, String), CompileError> {
    compile(UNIT, INCLUDED, architecture)
}

/// Compiles device code for one architecture, as [`rebuild`] does; `source` may include `headers`,
/// pairs of name and text.
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

#[cfg(test)]
mod tests {
    use super::INCLUDED;

    #[test]
    fn every_source_is_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels");
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let names = names.map(|name| name.into_string().unwrap());
        let code = |name: &String| {
            [".cu", ".cuh", ".h"].iter().any(|end| name.ends_with(end)) && name != "all.cu"
        };
        let mut there: Vec<String> = names.filter(code).collect();
        there.sort();
        let embedded: Vec<&str> = INCLUDED.iter().map(|(name, _)| *name).collect();
        assert_eq!(embedded, there);
    }
}
