//! The text of an out-of-memory error, worded as each release of torch words it.

use std::fmt::Write as _;

use super::options::TorchVersion;
use crate::units::{GIB, KIB, MIB};

/// A request that could not be served, with the account at that moment. Bytes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "out of memory: {requested} B need {} of {segment} B, {device_free} B of {device_total} B are free, \
     {allocated} B allocated, {reserved} B reserved",
    if *.grows { "growth of a range" } else { "a segment" }
)]
pub struct OutOfMemory {
    /// As asked for.
    pub requested: u64,
    /// As rounded.
    pub rounded: u64,
    /// The segment that would have been taken; what the text prints as "tried to allocate".
    pub segment: u64,
    /// Whether a growing range was to serve: it needs less than a segment.
    pub grows: bool,
    /// Total that programs see.
    pub device_total: u64,
    /// Free on the device after everything cached was given back.
    pub device_free: u64,
    /// What this process may reserve, when a fraction is set.
    pub limit: Option<u64>,
    /// Blocks in use.
    pub allocated: u64,
    /// Free blocks inside private pools.
    pub private_free: u64,
    /// Segments and mapped ranges.
    pub reserved: u64,
}

/// Memory of one process on the device, as the driver's management library lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProcessUse {
    /// Another process.
    Other {
        /// Its id.
        pid: u32,
        /// Bytes.
        bytes: u64,
    },
    /// This process: context, libraries and everything reserved.
    This {
        /// Bytes.
        bytes: u64,
    },
}

impl OutOfMemory {
    /// Bytes that the text calls reserved but unallocated: free blocks of the default pools.
    #[must_use]
    pub const fn unallocated(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated).saturating_sub(self.private_free)
    }

    /// The message of `torch.OutOfMemoryError`; `processes` in the order of the listing.
    ///
    /// Wordings: up to 2.0, 2.1 (with its misspelt "capacty"), 2.2 to 2.9, 2.10 and later, which
    /// names `PYTORCH_ALLOC_CONF`; the address of the page changes in 2.15, which may add a hint
    /// of its own for growing ranges (not printed here).
    ///
    /// Source: torch, `CUDACachingAllocator::malloc`; public logs of 1.13 to 2.10.
    #[must_use]
    pub fn text(&self, version: TorchVersion, device: u32, processes: &[ProcessUse]) -> String {
        if version < TorchVersion::new(2, 1) {
            self.old_text(device)
        } else {
            self.new_text(version, device, processes)
        }
    }

    fn old_text(&self, device: u32) -> String {
        let allowed =
            self.limit.map_or(String::new(), |limit| format!("{} allowed; ", format_size(limit)));
        format!(
            "CUDA out of memory. Tried to allocate {} (GPU {device}; {} total capacity; {} already \
             allocated; {} free; {allowed}{} reserved in total by PyTorch) If reserved memory is >> \
             allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation \
             for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
            format_size(self.segment),
            format_size(self.device_total),
            format_size(self.allocated),
            format_size(self.device_free),
            format_size(self.reserved),
        )
    }

    fn new_text(&self, version: TorchVersion, device: u32, processes: &[ProcessUse]) -> String {
        let first = version == TorchVersion::new(2, 1);
        let mut text = format!(
            "CUDA out of memory. Tried to allocate {}. GPU {device} has a total {} of {} of which {} \
             is free. ",
            format_size(self.segment),
            if first { "capacty" } else { "capacity" },
            format_size(self.device_total),
            format_size(self.device_free),
        );
        for process in processes {
            // Writing to a String cannot fail.
            let _ = match process {
                ProcessUse::Other { pid, bytes } => {
                    write!(text, "Process {pid} has {} memory in use. ", format_size(*bytes))
                }
                ProcessUse::This { bytes } => write!(
                    text,
                    "Including non-PyTorch memory, this process has {} memory in use. ",
                    format_size(*bytes)
                ),
            };
        }
        if let Some(limit) = self.limit {
            let _ = write!(text, "{} allowed; ", format_size(limit));
        }
        let held = format_size(self.allocated + self.private_free);
        let _ = write!(text, "Of the allocated memory {held} is allocated by PyTorch, ");
        if self.private_free > 0 {
            let private = format_size(self.private_free);
            let _ = write!(text, "with {private} allocated in private pools (e.g., CUDA Graphs), ");
        }
        let rest = format_size(self.unallocated());
        let _ = write!(
            text,
            "and {rest} is reserved by PyTorch but unallocated. If reserved but unallocated memory is \
             large try setting {}",
            advice(version)
        );
        text
    }
}

const fn advice(version: TorchVersion) -> &'static str {
    match (version.major, version.minor) {
        (2, ..=1) => {
            "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and \
             PYTORCH_CUDA_ALLOC_CONF"
        }
        (2, ..=9) => {
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation \
             for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        }
        (2, ..=14) => {
            "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for \
             Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        }
        _ => {
            "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for \
             Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html\
             #optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
        }
    }
}

/// A size as torch prints it: up to 1 KiB in bytes, up to 1 MiB in KiB, up to 1 GiB in MiB (so
/// exactly 1 GiB is `1024.00 MiB`), else in GiB; two decimals.
///
/// Source: torch `format_size`.
#[must_use]
pub fn format_size(bytes: u64) -> String {
    let size = bytes as f64;
    if bytes <= KIB {
        format!("{bytes} bytes")
    } else if bytes <= MIB {
        format!("{:.2} KiB", size / KIB as f64)
    } else if bytes <= GIB {
        format!("{:.2} MiB", size / MIB as f64)
    } else {
        format!("{:.2} GiB", size / GIB as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CASE: OutOfMemory = OutOfMemory {
        requested: 939_524_096,
        rounded: 939_524_096,
        segment: 939_524_096,
        grows: false,
        device_total: 102_005_473_280,
        device_free: 880_803_840,
        limit: None,
        allocated: 96_636_764_160,
        private_free: 134_217_728,
        reserved: 97_844_723_712,
    };

    #[test]
    fn sizes_are_printed_as_torch_prints_them() {
        for (bytes, text) in [
            (1024, "1024 bytes"),
            (1025, "1.00 KiB"),
            (MIB, "1024.00 KiB"),
            (2 * MIB, "2.00 MiB"),
            (GIB, "1024.00 MiB"),
            (GIB + 1, "1.00 GiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }

    #[test]
    fn each_release_words_it_its_own_way() {
        let processes = [
            ProcessUse::Other { pid: 4242, bytes: 1_739_461_755 },
            ProcessUse::This { bytes: 99_000_000_000 },
        ];
        let limited = OutOfMemory { limit: Some(100_000_000_000), ..CASE };
        let mut all = String::new();
        for minor in [1, 9, 10, 15] {
            let text = limited.text(TorchVersion::new(2, minor), 1, &processes);
            all += &format!("2.{minor}: {text}\n");
        }
        all += &format!("2.4: {}\n", CASE.text(TorchVersion::new(2, 4), 0, &[]));
        all += &format!("1.13: {}\n", CASE.text(TorchVersion::new(1, 13), 0, &[]));
        insta::assert_snapshot!(all);
    }

    #[test]
    fn a_process_line_of_a_public_log_comes_out_to_the_letter() {
        // torch 2.4, a V100: figures chosen so that they print as that log does.
        let case = OutOfMemory {
            segment: 546 * MIB,
            device_total: (15.77 * GIB as f64) as u64,
            device_free: (514.19 * MIB as f64) as u64,
            allocated: (13.73 * GIB as f64) as u64 - 46 * MIB,
            private_free: 46 * MIB,
            reserved: (13.73 * GIB as f64) as u64 + (736.86 * MIB as f64) as u64,
            ..CASE
        };
        let process = ProcessUse::Other { pid: 562_167, bytes: (15.25 * GIB as f64) as u64 };
        assert_eq!(
            case.text(TorchVersion::new(2, 6), 0, &[process]),
            "CUDA out of memory. Tried to allocate 546.00 MiB. GPU 0 has a total capacity of 15.77 GiB of \
             which 514.19 MiB is free. Process 562167 has 15.25 GiB memory in use. Of the allocated memory \
             13.73 GiB is allocated by PyTorch, with 46.00 MiB allocated in private pools (e.g., CUDA \
             Graphs), and 736.86 MiB is reserved by PyTorch but unallocated. If reserved but unallocated \
             memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid \
             fragmentation.  See documentation for Memory Management  \
             (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        );
    }
}
