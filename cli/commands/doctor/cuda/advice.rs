//! How to get each piece: images, packages and wheels by their names.

use plimsoll_backend_cuda::libraries::Library;

/// An image that holds all libraries of serving.
const IMAGE: &str = "image nvidia/cuda:13.0.2-runtime-ubuntu24.04, or the project's Dockerfile";

/// The driver.
pub(super) fn driver() -> Vec<String> {
    lines(&[
        "package nvidia-open or cuda-drivers of NVIDIA's repository, release 580 or later; Blackwell needs the open \
         kernel modules",
        "container: start it with --gpus all; the library comes from the host",
    ])
}

/// A driver that runs and is older than the kernels.
pub(super) fn newer_driver() -> Vec<String> {
    lines(&[
        "package nvidia-open or cuda-drivers of NVIDIA's repository, release 580 or later",
        "data-centre cards can keep their kernel module: package cuda-compat-13-0; \
         export LD_LIBRARY_PATH=/usr/local/cuda-13.0/compat:$LD_LIBRARY_PATH",
    ])
}

/// Device files, by those that are there.
pub(super) fn nodes(some: bool) -> Vec<String> {
    let load = "nvidia-modprobe -u -c 0, as root, loads the modules and makes the files";
    if some {
        return lines(&[load, "container: start it with --gpus all"]);
    }
    lines(&[
        load,
        "where there is no module, install the driver",
        "container: start it with --gpus all, or pass /dev/nvidia0, /dev/nvidiactl and /dev/nvidia-uvm in",
    ])
}

/// A library.
pub(super) fn library(library: Library) -> Vec<String> {
    let package = |name: &str| format!("package {name} of NVIDIA's repository (apt-get install)");
    match library {
        Library::CublasLt => {
            vec![IMAGE.to_owned(), package("libcublas-13-0"), wheel("'nvidia-cublas<14'", "cu13")]
        }
        Library::Nccl => {
            vec![IMAGE.to_owned(), package("libnccl2"), wheel("nvidia-nccl-cu13", "nccl")]
        }
        Library::Nvrtc => {
            let wheel = wheel("'nvidia-cuda-nvrtc==13.0.*'", "cu13");
            vec![package("cuda-nvrtc-13-0"), wheel]
        }
        Library::Nvml => smi(),
    }
}

/// A wheel from the Python index, and the line that makes the loader find its libraries.
fn wheel(name: &str, folder: &str) -> String {
    let site = "$(python3 -c 'import sysconfig; print(sysconfig.get_path(\"purelib\"))')";
    format!(
        "wheel: pip install {name}; export LD_LIBRARY_PATH=\"{site}/nvidia/{folder}/lib:$LD_LIBRARY_PATH\""
    )
}

/// NVML and `nvidia-smi`.
pub(super) fn smi() -> Vec<String> {
    lines(&["comes with the driver; in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility"])
}

fn lines(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}
