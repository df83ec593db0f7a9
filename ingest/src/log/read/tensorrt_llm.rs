//! Lines of TensorRT-LLM, engine and PyTorch backends. Templates: releases 0.5 to 1.x.

use super::fields::{after, float_after, uint, uint_after};
use super::scan::{Known, amount_after, between, file_name, read_by, words};
use crate::log::{Amount, TensorRtLlm};

const LINES: &[Known<TensorRtLlm>; 13] = &[
    ("paged kv cache: total", budget),
    ("when calculating max tokens", budget),
    ("tokens in paged KV cache (", allocated),
    ("bytes for k/v cache", whole_bytes),
    ("tokens in paged KV cache.", tokens),
    ("[MemUsageChange] TensorRT-managed", engine_memory),
    (" for execution context memory", |line| buffers(line, "execution context")),
    ("memory for runtime buffers", |line| buffers(line, "runtime buffers")),
    ("memory for decoder", |line| buffers(line, "decoder")),
    ("CUDA runtime error in ", out_of_memory),
    ("Requested size was ", out_of_memory),
    ("Cuda Runtime (out of memory)", out_of_memory),
    ("Impossible to fit in any sequence", |_| Some(TensorRtLlm::PoolTooSmall)),
];

/// Words of which every line that [`read`] understands holds at least one, in any case.
pub(super) const WORDS: &[&str] = &words(LINES);

/// What one undressed line says; `None` when it is no line of this server.
pub(super) fn read(line: &str) -> Option<TensorRtLlm> {
    read_by(LINES, line)
}

/// `Memory usage when calculating max tokens in paged kv cache: total: 22.19 GiB, available: 0.11 GiB`;
/// the PyTorch backend adds the fraction: `available KV cache memory when calculating max tokens: 33.10 GiB,
/// fraction is set 0.9, … device total memory 79.11 GiB`.
fn budget(line: &str) -> Option<TensorRtLlm> {
    let total =
        amount_after(line, "total: ").or_else(|| amount_after(line, "device total memory "));
    let available = amount_after(line, "available: ")
        .or_else(|| amount_after(line, "calculating max tokens: "));
    if total.is_none() && available.is_none() {
        return None;
    }
    Some(TensorRtLlm::KvBudget {
        total,
        available,
        fraction: float_after(line, "fraction is set "),
    })
}

/// `Allocated 0.10 GiB for max tokens in paged KV cache (2112)`.
fn allocated(line: &str) -> Option<TensorRtLlm> {
    Some(TensorRtLlm::KvAllocated {
        bytes: amount_after(line, "Allocated ")?,
        tokens: uint_after(line, "paged KV cache ("),
    })
}

/// `Allocate 69524783104 bytes for k/v cache.`
fn whole_bytes(line: &str) -> Option<TensorRtLlm> {
    Some(TensorRtLlm::KvAllocated { bytes: amount_after(line, "Allocate ")?, tokens: None })
}

/// `Using 132608 tokens in paged KV cache.`
fn tokens(line: &str) -> Option<TensorRtLlm> {
    Some(TensorRtLlm::KvTokens { tokens: uint_after(line, "Using ")? })
}

/// `… now: CPU 0, GPU 6683 (MiB)`.
fn engine_memory(line: &str) -> Option<TensorRtLlm> {
    let mib = uint(after(after(line, "now: ")?, "GPU ")?)?;
    let gpu = i64::try_from(mib).ok().and_then(|mib| mib.checked_mul(1 << 20)).map(Amount::exact);
    Some(TensorRtLlm::EngineMemory { gpu })
}

/// `Allocated 2.66 GB GPU memory for runtime buffers.`
fn buffers(line: &str, what: &str) -> Option<TensorRtLlm> {
    Some(TensorRtLlm::Buffers { what: what.into(), bytes: amount_after(line, "Allocated ")? })
}

/// `CUDA runtime error in ::cudaMallocAsync(…): out of memory (…/tllmBuffers.h:112)`; TensorRT's own
/// `OutOfMemory (Requested size was 805306368 bytes.)`.
fn out_of_memory(line: &str) -> Option<TensorRtLlm> {
    let requested = amount_after(line, "Requested size was ");
    if requested.is_none() && !line.contains("out of memory") {
        return None;
    }
    let place = between(line, "out of memory (", ")").map(|path| file_name(path).into());
    Some(TensorRtLlm::OutOfMemory { place, requested })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_of_both_backends() {
        let engine = "Memory usage when calculating max tokens in paged kv cache: total: 23.50 GiB, available: 4.25 GiB";
        let Some(TensorRtLlm::KvBudget { total, available, fraction: None }) = read(engine) else {
            panic!("no budget");
        };
        assert_eq!((total, available), (Some(Amount::gib(23.5, 2)), Some(Amount::gib(4.25, 2))));
        let torch = "available KV cache memory when calculating max tokens: 31.25 GiB, fraction is set 0.85, \
                     kv size is 65536. device total memory 79.11 GiB";
        let Some(TensorRtLlm::KvBudget { fraction: Some(fraction), .. }) = read(torch) else {
            panic!("no fraction");
        };
        assert_eq!(fraction, 0.85);
    }

    #[test]
    fn the_refusal_names_the_buffer_that_asked() {
        let line = "CUDA runtime error in ::cudaMallocAsync(ptr, n, mCudaStream->get()): out of memory (/src/cpp/tllmBuffers.h:99)";
        let Some(TensorRtLlm::OutOfMemory { place: Some(place), .. }) = read(line) else {
            panic!("no refusal");
        };
        assert_eq!(&*place, "tllmBuffers.h:99");
        assert_eq!(read("CUDA runtime error in cudaSetDevice(0): invalid device ordinal"), None);
    }
}
