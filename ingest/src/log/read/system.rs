//! Lines of the operating system, drivers, container runtimes and Python that tell of memory or of an end.
//! Texts: CUDA and HIP runtime, Linux `mm/oom_kill`, systemd, Kubernetes, Ray's memory monitor, Metal.

use super::fields::{Gb, after, amount, amount_after, int, uint_after};
use crate::log::{Amount, System};

/// Words of which every such line holds one.
pub(super) const WORDS: &[&str] = &[
    "out of memory",
    "cudaErrorMemoryAllocation",
    "hipErrorOutOfMemory",
    "ERROR_OUT_OF_MEMORY",
    "OUT_OF_DEVICE_MEMORY",
    "OUT_OF_RESOURCES",
    "cudaMalloc failed",
    "CUDA error",
    "HIP error",
    "Triton Error",
    "illegal memory access",
    "NV_ERR_NO_MEMORY",
    "CallbackErrorOutOfMemory",
    "Insufficient Memory",
    "Killed process",
    "oom-kill",
    "oom_reaper",
    "OOMKilled",
    "OOM killer",
    "MemoryError",
    "Cannot allocate memory",
    "std::bad_alloc",
    "DefaultCPUAllocator",
    "low on resource: memory",
    "_STATUS_ALLOC_FAILED",
    "aclrtMalloc",
    "Failed to CUDA ",
    "EL0004",
    "status=9/KILL",
    "exited with code",
    "exit code",
    "exit 137",
    "exitcode",
    "Exit status",
    "SIGQUIT",
    "SIGKILL",
    "SIGTERM",
    "SIGSEGV",
    "SIGABRT",
    "SIGFPE",
    "signal 9",
    "Killed",
    "No space left on device",
    "Bus error",
    "shared memory object",
    "node running low on memory",
    "ray.exceptions.OutOfMemoryError",
    "Ray memory monitor",
    "workers (tasks / actors) killed due to memory pressure",
    "MiB |",
    "memory peak",
];

/// Bytes of a text that are kept.
const TEXT: usize = 200;

/// What the line says; the more telling first.
pub(super) fn read(line: &str) -> Option<System> {
    kernel(line)
        .or_else(|| ray(line))
        .or_else(|| host(line))
        .or_else(|| metal(line))
        .or_else(|| driver(line))
        .or_else(|| no_space(line))
        .or_else(|| device_error(line))
        .or_else(|| exit(line))
        .or_else(|| signal(line))
        .or_else(|| smi(line))
}

fn has(line: &str, words: &[&str]) -> bool {
    words.iter().any(|word| line.contains(word))
}

fn cut(text: &str) -> Box<str> {
    let text = text.trim();
    let end = (0..=text.len().min(TEXT)).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or("").into()
}

/// `Out of memory: Killed process 1 (python3) total-vm:…kB, anon-rss:…kB`, `Memory cgroup out of memory: …`,
/// `oom-kill:constraint=CONSTRAINT_MEMCG,…,task=python3`.
fn kernel(line: &str) -> Option<System> {
    let killed = after(line, "Killed process ");
    let record = after(line, "oom-kill:");
    if killed.is_none() && record.is_none() {
        return if line.contains("NV_ERR_NO_MEMORY") { Some(System::NvNoMemory) } else { None };
    }
    let process = match killed {
        Some(rest) => after(rest, "(").and_then(|rest| rest.split(')').next()),
        None => record
            .and_then(|rest| after(rest, "task="))
            .and_then(|rest| rest.split([',', ' ']).next()),
    };
    let resident = after(line, "anon-rss:").and_then(|text| amount(text, Gb::Binary));
    let memcg = has(line, &["Memory cgroup", "CONSTRAINT_MEMCG"]);
    let cgroup = (memcg || has(line, &["Out of memory", "CONSTRAINT_NONE"])).then_some(memcg);
    Some(System::KernelKill { process: process.map(cut), resident, cgroup })
}

fn ray(line: &str) -> Option<System> {
    let words = [
        "node running low on memory",
        "ray.exceptions.OutOfMemoryError",
        "Ray memory monitor",
        "killed due to memory pressure",
    ];
    has(line, &words).then_some(System::RayMemoryKill)
}

fn host(line: &str) -> Option<System> {
    let words = [
        "oomkilled",
        "oom killer",
        "'oom-kill'",
        "exit 137",
        "exit code 137",
        "exited with code 137",
        "exit code: 137",
        "cannot allocate memory",
        "std::bad_alloc",
        "oom_reaper",
        "defaultcpuallocator",
        "low on resource: memory",
        "arraymemoryerror",
    ];
    // Python's own class, not `OutOfMemoryError`.
    let python = line.find("MemoryError").is_some_and(|at| {
        let before = line.get(..at).and_then(|head| head.chars().next_back());
        before.is_none_or(|c| !c.is_alphanumeric() && c != '_')
    });
    if !python && !has(&line.to_ascii_lowercase(), &words) {
        return None;
    }
    let peak = after(line, "time, ")
        .or_else(|| after(line, "Consumed "))
        .filter(|_| line.contains("memory peak"))
        .and_then(|text| amount(text, Gb::Binary));
    Some(System::HostOom { text: cut(line), peak })
}

fn metal(line: &str) -> Option<System> {
    has(line, &["CallbackErrorOutOfMemory", "Insufficient Memory (0"]).then_some(System::MetalOom)
}

/// Whether the words stand for the driver's refusal; PyTorch's own text with figures is another matter.
fn driver(line: &str) -> Option<System> {
    if line.contains("Tried to allocate") || line.contains("rying to allocate") {
        return None;
    }
    let coded = has(
        line,
        &[
            "cudaErrorMemoryAllocation",
            "hipErrorOutOfMemory",
            "ERROR_OUT_OF_MEMORY",
            "OUT_OF_DEVICE_MEMORY",
            "cudaMalloc failed",
            "_STATUS_ALLOC_FAILED",
            "aclrtMalloc",
            // NCCL's buffers: `Failed to CUDA calloc async 608 bytes`, `Failed to CUDA malloc …`.
            "Failed to CUDA calloc",
            "Failed to CUDA malloc",
            "EL0004",
        ],
    );
    let told = line.contains("out of memory")
        && has(
            line,
            &[
                "CUDA error",
                "HIP error",
                "CUDA failure",
                "Cuda failure",
                "CUDA driver error",
                "Triton Error",
                "NCCL",
                "cudaGraph",
                "cudaMalloc",
                "cuMem",
                "hipMalloc",
                "cublas",
                "CUBLAS",
                "CUDA runtime error",
            ],
        );
    if !coded && !told {
        return None;
    }
    let requested = ["allocating ", "calloc async ", "CUDA calloc ", "CUDA malloc "]
        .iter()
        .find_map(|key| amount_after(line, key, Gb::Binary));
    Some(System::DriverOom { call: call(line).map(Into::into), requested, frames: Vec::new() })
}

/// The first word that is a call of the CUDA or HIP interface.
fn call(line: &str) -> Option<&str> {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.into_iter().find(|word| {
        let named = [
            "cudaGraph",
            "cudaMalloc",
            "cudaStream",
            "cudaMem",
            "cuMem",
            "cuGraph",
            "cuCtx",
            "cuModule",
            "cublasCreate",
            "hipMalloc",
            "hipGraph",
            "hipMem",
            "nccl",
        ];
        named
            .iter()
            .any(|start| word.len() > start.len().saturating_sub(1) && word.starts_with(start))
            && !word.contains("Error")
    })
}

fn no_space(line: &str) -> Option<System> {
    has(line, &["No space left on device", "Bus error", "shared memory object"])
        .then(|| System::NoSpace { text: cut(line) })
}

fn device_error(line: &str) -> Option<System> {
    let text = ["CUDA error: ", "HIP error: ", "Triton Error [", "CUDA error ("]
        .iter()
        .find_map(|key| line.find(key).and_then(|at| line.get(at..)))
        .or_else(|| line.contains("illegal memory access").then_some(line))?;
    Some(System::DeviceError { text: cut(text), frames: Vec::new() })
}

fn exit(line: &str) -> Option<System> {
    const KEYS: [&str; 7] = [
        "exited with code ",
        "exit code: ",
        "exit code ",
        "exitcode: ",
        "exitcode=",
        "exit status: ",
        "exitcode  : ",
    ];
    let line = line.to_ascii_lowercase();
    let code = KEYS.iter().find_map(|key| int(after(&line, key)?))?;
    (code != 0).then_some(System::Exit { code })
}

fn signal(line: &str) -> Option<System> {
    let names = ["SIGQUIT", "SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGFPE", "SIGBUS"];
    if let Some(name) = names.iter().find(|name| line.contains(**name)) {
        return Some(System::Signal { name: (*name).into() });
    }
    if line.contains("sigquit") {
        return Some(System::Signal { name: "SIGQUIT".into() });
    }
    if line.contains("signal 9") || line.contains("status=9/KILL") {
        return Some(System::Signal { name: "SIGKILL".into() });
    }
    let shell = line.trim().trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
    let word = shell == "Killed"
        || shell.starts_with("Killed  ")
        || line.trim_end().ends_with(": Killed")
        || line.contains(" Killed  ");
    word.then(|| System::Signal { name: "SIGKILL".into() })
}

/// `| 30%   45C    P0    70W / 350W |  12345MiB / 24576MiB |` of a pasted table.
fn smi(line: &str) -> Option<System> {
    let (head, rest) = line.split_once("MiB /")?;
    let digits = head.len() - head.bytes().rev().take_while(u8::is_ascii_digit).count();
    let used = uint_after(head.get(digits..)?, "")?;
    let total = uint_after(rest.split_once("MiB")?.0, "")?;
    let mib = |count: u64| {
        let bytes = i64::try_from(count).ok()?.checked_mul(1 << 20)?;
        Some(Amount { bytes, half: 1 << 19 })
    };
    Some(System::SmiRow { used: mib(used)?, total: mib(total)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver_call(text: &str) -> Option<Box<str>> {
        match read(text) {
            Some(System::DriverOom { call, .. }) => call.or(Some("".into())),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn drivers_refuse_in_many_words() {
        for (text, call) in [
            ("RuntimeError: CUDA error: out of memory", ""),
            ("torch.AcceleratorError: CUDA error: out of memory", ""),
            ("cudaGraphInstantiate: out of memory", "cudaGraphInstantiate"),
            ("cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY", "cuMemCreate"),
            (
                "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                "cublasCreate",
            ),
            ("RuntimeError: HIP error: hipErrorOutOfMemory", ""),
            ("NCCL WARN Cuda failure 2 'out of memory'", ""),
            ("Last error: Failed to CUDA calloc async 608 bytes", ""),
            ("level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", ""),
        ] {
            assert_eq!(driver_call(text).as_deref(), Some(call), "{text}");
        }
        let other = read(
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        );
        assert!(matches!(other, Some(System::DeviceError { .. })), "{other:?}");
        assert_eq!(
            read("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB."),
            None
        );
    }

    #[test]
    fn the_host_runs_out_in_many_words() {
        for text in [
            "Reason: OOMKilled",
            "Exit Code: 137",
            "MemoryError",
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9.0 GiB for an array",
            "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes",
            "OSError: [Errno 12] Cannot allocate memory",
            "llm.service: Failed with result 'oom-kill'.",
            "The node was low on resource: memory. Threshold quantity: 100Mi",
        ] {
            assert!(matches!(read(text), Some(System::HostOom { .. })), "{text}: {:?}", read(text));
        }
        let kill = "Memory cgroup out of memory: Killed process 7 (python3) total-vm:9kB, anon-rss:2048kB, file-rss:1kB";
        let expected = System::KernelKill {
            process: Some("python3".into()),
            resident: Some(Amount { bytes: 2 << 20, half: 512 }),
            cgroup: Some(true),
        };
        assert_eq!(read(kill), Some(expected));
        let record =
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=sglang::sched,pid=9,uid=0";
        let Some(System::KernelKill { process, cgroup, .. }) = read(record) else {
            panic!("{record}")
        };
        assert_eq!((process.as_deref(), cgroup), (Some("sglang::sched"), Some(false)));
    }

    #[test]
    fn ends_and_remarks() {
        assert_eq!(read("Server process exited with code -9"), Some(System::Exit { code: -9 }));
        assert_eq!(read("process finished with exit code 0"), None);
        assert_eq!(read("Killed"), Some(System::Signal { name: "SIGKILL".into() }));
        assert_eq!(
            read("serve.service: Main process exited, code=killed, status=9/KILL"),
            Some(System::Signal { name: "SIGKILL".into() })
        );
        assert_eq!(
            read("NVRM: Assertion failed: Out of memory [NV_ERR_NO_MEMORY] (0x51)"),
            Some(System::NvNoMemory)
        );
        let smi =
            read("| 30%   45C    P0    70W / 350W |  12345MiB / 24576MiB |     99%      Default |");
        let Some(System::SmiRow { used, total }) = smi else { panic!("{smi:?}") };
        assert_eq!((used.bytes >> 20, total.bytes >> 20), (12_345, 24_576));
    }
}
