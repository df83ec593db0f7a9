//! Device code from source by NVRTC, where the library is: no device is needed. It is looked for
//! on the loader's path, and in a virtual environment that `PLIMSOLL_CUDA_WHEELS` names.

use super::support::{CHILD, child as run_child, without_libraries};
use plimsoll_backend_cuda::device::CompileError;
use plimsoll_backend_cuda::kernels::{compile, rebuild};
use std::path::{Path, PathBuf};

const SMALL: &str = "#include \"factor.h\"\nextern \"C\" __global__ void twice(float* x) { x[threadIdx.x] *= FACTOR; }\n";
const HEADERS: [(&str, &str); 1] = [("factor.h", "#define FACTOR 2.0f\n")];

/// Not a case of its own: what the others start.
#[test]
fn child() {
    let Some(part) = std::env::var_os(CHILD) else { return };
    let compiled = match part.to_str().unwrap() {
        "small" => compile(SMALL, &HEADERS, 90),
        "wrong" => compile("this is no program", &[], 90),
        "whole" => rebuild(90),
        other => panic!("no part {other}"),
    };
    match compiled {
        Ok((code, log)) => {
            assert!(code.starts_with(b"\x7fELF"), "a cubin is an ELF file");
            println!("compiled {} bytes\n{log}", code.len());
        }
        Err(error) => println!("error: {error}"),
    }
}

/// Folders with libraries in a virtual environment: lib/python3.*/site-packages/nvidia/*/lib.
fn folders(environment: &Path) -> Vec<PathBuf> {
    let inside = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let packages = inside(&environment.join("lib"))
        .into_iter()
        .flat_map(|python| inside(&python.join("site-packages/nvidia")));
    packages.map(|package| package.join("lib")).filter(|lib| lib.is_dir()).collect()
}

/// Where NVRTC is; `None`, and said so, when it is nowhere.
fn found() -> Option<PathBuf> {
    let wheels = std::env::var_os("PLIMSOLL_CUDA_WHEELS").map(PathBuf::from);
    let wheels = wheels.iter().flat_map(|wheels| folders(wheels)).collect::<Vec<_>>();
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let all = wheels.into_iter().chain(std::env::split_paths(&path));
    let has = |folder: &PathBuf| folder.join("libnvrtc.so.13").exists();
    let found = all.into_iter().find(has);
    if found.is_none() {
        println!("skipped: no libnvrtc.so.13 (PLIMSOLL_CUDA_WHEELS, LD_LIBRARY_PATH)");
    }
    found
}

#[test]
fn without_nvrtc_it_says_so() {
    // A machine with a toolkit has it elsewhere on the loader's path.
    let Some(folder) = without_libraries() else { return };
    if matches!(compile(SMALL, &HEADERS, 90), Err(CompileError::Missing(_))) {
        let text = run_child("rebuild::child", "small", &folder, &[]).text;
        assert!(text.contains("NVRTC is not found (tried libnvrtc.so.13,"), "{text}");
    }
}

#[test]
fn sources_become_device_code() {
    let Some(folder) = found() else { return };
    let text = run_child("rebuild::child", "small", &folder, &[]).text;
    assert!(text.contains("compiled ") && text.contains("twice"), "{text}");
    let text = run_child("rebuild::child", "wrong", &folder, &[]).text;
    assert!(text.contains("nvrtcCompileProgram returned NVRTC_ERROR_COMPILATION"), "{text}");
    assert!(text.contains("error: identifier") || text.contains("this"), "{text}");
}

#[test]
fn the_kernels_are_rebuilt_without_spills() {
    let Some(folder) = found() else { return };
    let text = run_child("rebuild::child", "whole", &folder, &[]).text;
    assert!(text.contains("compiled "), "{text}");
    let spills = text.lines().filter(|line| line.contains("spill stores"));
    let (clean, spilt): (Vec<_>, Vec<_>) =
        spills.partition(|line| line.contains(" 0 bytes spill stores, 0 bytes spill loads"));
    assert!(clean.len() > 30 && spilt.is_empty(), "{} without spills, {spilt:?}", clean.len());
}
