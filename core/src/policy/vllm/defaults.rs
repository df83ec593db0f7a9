//! Defaults that the device class and the release choose: batch, sequences, capture sizes.

use super::rules::{BatchClasses, CaptureSteps, Rules};
use crate::{
    policy::vllm::args::Generation,
    units::{Bytes, GIB},
};

/// Who starts the engine; it chooses `max_num_batched_tokens`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Usage {
    /// The OpenAI server (`vllm serve`).
    #[default]
    Server,
    /// The offline `LLM` class.
    Offline,
}

/// How memory of the device relates to the host's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MemoryKind {
    /// Its own memory.
    #[default]
    Discrete,
    /// One memory with the host (`cudaDeviceProp.integrated`: GB10, Jetson).
    Unified,
}

/// What the rules ask of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Name as the driver reports it (`NVIDIA A100-SXM4-80GB`).
    pub name: String,
    /// Total memory, the second value of `cudaMemGetInfo`.
    pub total: Bytes,
    /// Discrete or unified.
    pub memory: MemoryKind,
    /// CUDA compute capability, if known.
    pub compute_capability: Option<(u32, u32)>,
}

/// A default batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchDefaults {
    /// `max_num_batched_tokens`, tokens, before it is capped.
    pub max_num_batched_tokens: u64,
    /// `max_num_seqs`.
    pub max_num_seqs: u64,
    /// The class that decided, for the derivation.
    pub class: &'static str,
}

/// Default batch of a device class.
///
/// V1: source vLLM 0.11 to 0.33 `EngineArgs.get_batch_defaults`; V0: `SchedulerConfig` of 0.6.6
/// (2048 tokens, 256 sequences on every device).
#[must_use]
pub fn batch_defaults(rules: &Rules, device: &Device, usage: Usage) -> BatchDefaults {
    let of = |offline, server, seqs, class| BatchDefaults {
        max_num_batched_tokens: if usage == Usage::Offline { offline } else { server },
        max_num_seqs: seqs,
        class,
    };
    if rules.generation == Generation::V0 {
        return of(2048, 2048, 256, "V0");
    }
    let name = device.name.to_ascii_lowercase();
    let small_by_name = match rules.batch_classes {
        BatchClasses::Two => name.contains("a100"),
        BatchClasses::Three => name.contains("a100") || name.contains("gb10"),
    };
    let three = rules.batch_classes == BatchClasses::Three;
    if three && device.total.0 >= 160 * GIB {
        of(16384, 16384, 1024, "device of at least 160 GiB")
    } else if device.total.0 >= 70 * GIB && !small_by_name {
        of(16384, 8192, 1024, "device of at least 70 GiB, not A100")
    } else {
        of(8192, 2048, 256, "device below 70 GiB, or A100")
    }
}

/// Inputs of the list of capture sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CaptureInputs {
    /// `max_num_seqs`.
    pub max_num_seqs: u64,
    /// Draft tokens a step.
    pub num_speculative_tokens: u64,
    /// `max_num_batched_tokens`: no larger size is captured.
    pub max_num_batched_tokens: u64,
    /// `--max-cudagraph-capture-size`: replaces the largest size.
    pub largest: Option<u64>,
}

/// Capture sizes in tokens, ascending.
///
/// V1: the largest is `min(max_num_seqs * (1 + spec tokens) * 2, 512)` (1024 on compute capability
/// 10.x in 0.33). V0: up to `max_num_seqs` rounded up to the next size, 256 at most.
/// Source: vLLM 0.11 to 0.33 `VllmConfig._set_cudagraph_sizes`; 0.6.6 `model_runner`.
#[must_use]
pub fn capture_sizes(rules: &Rules, device: &Device, inputs: CaptureInputs) -> Vec<u64> {
    let query_len = inputs.num_speculative_tokens.saturating_add(1);
    let max = match rules.generation {
        Generation::V0 => v0_largest(inputs.max_num_seqs).min(256),
        Generation::V1 => {
            let blackwell = device.compute_capability.is_some_and(|(major, _)| major == 10);
            let newest = (rules.version.major, rules.version.minor) >= (0, 33);
            let cap = if blackwell && newest { 1024 } else { 512 };
            inputs.max_num_seqs.saturating_mul(query_len).saturating_mul(2).min(cap)
        }
    };
    let max = inputs.largest.unwrap_or(max).min(inputs.max_num_batched_tokens).min(1 << 20);
    let steps: Vec<u64> = match rules.capture_steps {
        CaptureSteps::Eight => (8..=max).step_by(8).collect(),
        CaptureSteps::EightThenSixteen => {
            (8..=max.min(248)).step_by(8).chain((256..=max).step_by(16)).collect()
        }
    };
    [1, 2, 4].into_iter().filter(|&size| size <= max).chain(steps).collect()
}

const fn v0_largest(max_num_seqs: u64) -> u64 {
    match max_num_seqs {
        0..=2 => max_num_seqs,
        3..=4 => 4,
        n => n.div_ceil(8).saturating_mul(8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::sglang::version::Version;

    fn device(name: &str, gib: u64, compute_capability: Option<(u32, u32)>) -> Device {
        let total = Bytes::gib(gib);
        Device { name: name.into(), total, memory: MemoryKind::Discrete, compute_capability }
    }

    fn rules(minor: u16) -> Rules {
        Rules::of(Version::new(0, minor, 0), None)
    }

    #[test]
    fn batches_by_class() {
        let tokens = |minor, name, gib, usage| {
            let b = batch_defaults(&rules(minor), &device(name, gib, None), usage);
            (b.max_num_batched_tokens, b.max_num_seqs)
        };
        assert_eq!(tokens(11, "NVIDIA H100", 79, Usage::Server), (8192, 1024));
        assert_eq!(tokens(11, "NVIDIA H100", 79, Usage::Offline), (16384, 1024));
        assert_eq!(tokens(27, "NVIDIA A100-SXM4-80GB", 79, Usage::Server), (2048, 256));
        assert_eq!(tokens(27, "NVIDIA GB10", 121, Usage::Server), (8192, 1024));
        assert_eq!(tokens(30, "NVIDIA GB10", 121, Usage::Server), (2048, 256));
        assert_eq!(tokens(27, "NVIDIA B200", 178, Usage::Server), (8192, 1024));
        assert_eq!(tokens(30, "NVIDIA B200", 178, Usage::Server), (16384, 1024));
        assert_eq!(tokens(6, "NVIDIA H100", 79, Usage::Server), (2048, 256));
    }

    #[test]
    fn capture_lists_by_release() {
        let list = |minor, seqs, spec, cc| {
            let inputs = CaptureInputs {
                max_num_seqs: seqs,
                num_speculative_tokens: spec,
                max_num_batched_tokens: 8192,
                largest: None,
            };
            capture_sizes(&rules(minor), &device("x", 80, cc), inputs)
        };
        assert_eq!(list(11, 1024, 0, None).len(), 67); // The "67 sizes" of the 0.8 to 0.11 logs.
        assert_eq!(list(12, 1024, 0, None).len(), 3 + 31 + 17);
        assert_eq!(list(12, 4, 0, None), [1, 2, 4, 8]);
        assert_eq!(list(12, 1, 3, None), [1, 2, 4, 8]);
        assert_eq!(list(7, 256, 0, None).len(), 35); // V0.
        assert_eq!(list(33, 1024, 0, Some((10, 0))).last(), Some(&1024));
        assert_eq!(list(33, 1024, 0, Some((12, 0))).last(), Some(&512));
    }
}
