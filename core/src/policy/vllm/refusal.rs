//! Why the engine would refuse to start: the numbers, the ways out, and the engine's own words.

use super::{
    lines::{gib_fixed, gib_shortest},
    rules::{GibFormat, Rules, StartCheck},
};
use crate::{pyfloat, units::Bytes};

/// A refusal, with its numbers.
#[derive(Clone, PartialEq, Debug)]
pub enum Refusal {
    /// Less is free at the start than the budget (V1 0.10+).
    FreeBelowRequested {
        /// Free memory.
        free: Bytes,
        /// Total memory.
        total: Bytes,
        /// Utilization asked for.
        utilization: f64,
        /// Budget, bytes.
        requested: f64,
        /// Index of the device.
        device_index: u32,
        /// Weights that another process holds, already taken off the budget (0.33).
        external_weights: Bytes,
    },
    /// Free memory grew while the engine profiled.
    MemoryGrew {
        /// At the start.
        initial: Bytes,
        /// After profiling.
        current: Bytes,
    },
    /// Nothing is left for KV.
    NoBlocks {
        /// What the check saw, bytes; zero or negative.
        available: i64,
    },
    /// One request of `max_model_len` does not fit.
    TooLong {
        /// Length asked for, tokens.
        max_model_len: u64,
        /// Bytes that it needs.
        needed: Bytes,
        /// Bytes that the check saw.
        available: Bytes,
        /// Longest request that fits, tokens; 0 when none does.
        estimated: u64,
    },
    /// `--max-model-len -1` and not even one token fits.
    AutoFitFailed {
        /// What the check saw, bytes.
        available: i64,
    },
    /// V0: `max_model_len` is above all slots of the pool.
    PoolBelowMaxLen {
        /// Length asked for, tokens.
        max_model_len: u64,
        /// Slots: blocks × block size.
        slots: u64,
    },
    /// A latent page neither equals nor divides the largest page, so layers share no block.
    CannotUnify {
        /// Its page.
        page: Bytes,
        /// The largest page.
        largest: Bytes,
    },
    /// No layer keeps a KV cache, or no rank was given.
    NoLayers,
}

/// Which way a setting should move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Up.
    Raise,
    /// Down.
    Lower,
    /// Not a setting: act on the machine.
    Act,
}

/// One way out of a refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Advice {
    /// Which way.
    pub direction: Direction,
    /// Flag or thing to act on.
    pub what: &'static str,
    /// Bound and reason in one sentence.
    pub why: String,
}

fn advice(direction: Direction, what: &'static str, why: impl Into<String>) -> Advice {
    Advice { direction, what, why: why.into() }
}

const UTIL: &str = "--gpu-memory-utilization";

impl Refusal {
    /// A stable name.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::FreeBelowRequested { .. } => "vllm-free-below-requested",
            Self::MemoryGrew { .. } => "vllm-memory-grew",
            Self::NoBlocks { .. } => "vllm-no-blocks",
            Self::TooLong { .. } => "vllm-max-model-len",
            Self::AutoFitFailed { .. } => "vllm-auto-fit",
            Self::PoolBelowMaxLen { .. } => "vllm-v0-max-model-len",
            Self::CannotUnify { .. } => "vllm-page-sizes",
            Self::NoLayers => "vllm-no-kv-layers",
        }
    }

    /// The ways out, the likeliest first; where a setting helps in either direction, both stand.
    #[must_use]
    pub fn advice(&self) -> Vec<Advice> {
        use Direction::{Act, Lower, Raise};
        match self {
            Self::FreeBelowRequested { free, total, external_weights, .. } => {
                let most = free.saturating_add(*external_weights).0 as f64 / total.0.max(1) as f64;
                let most = (most * 100.0).floor() / 100.0;
                vec![
                    advice(
                        Lower,
                        UTIL,
                        format!("{most} is the most that {free} free of {total} allow"),
                    ),
                    advice(
                        Act,
                        "other processes",
                        "free what they hold, or wait until free memory is back at its baseline",
                    ),
                ]
            }
            Self::MemoryGrew { .. } => vec![advice(
                Act,
                "other processes",
                "start again when no other process takes or frees memory of this device; start \
                 servers that share it one after the other",
            )],
            Self::NoBlocks { available } => vec![
                advice(
                    Raise,
                    UTIL,
                    format!("the budget is {} B short before the first block", available.abs()),
                ),
                advice(
                    Lower,
                    "--max-num-batched-tokens and --max-num-seqs",
                    "a smaller profile run charges less activation memory",
                ),
                advice(Raise, "--tensor-parallel-size", "fewer weights on each device"),
            ],
            Self::TooLong { needed, available, estimated, .. } => {
                let mut out = Vec::new();
                if *estimated > 0 {
                    let why = format!("the longest request that fits is {estimated} tokens");
                    out.push(advice(Lower, "--max-model-len", why));
                }
                let short = needed.saturating_sub(*available);
                out.push(advice(Raise, UTIL, format!("{short} more would do")));
                let why = "a smaller profile run leaves more for KV";
                out.push(advice(Lower, "--max-num-batched-tokens and --max-num-seqs", why));
                out
            }
            Self::AutoFitFailed { .. } => {
                vec![advice(Raise, UTIL, "not one token fits, so no length can")]
            }
            Self::PoolBelowMaxLen { slots, .. } => vec![
                advice(Lower, "--max-model-len", format!("the pool holds {slots} tokens")),
                advice(Raise, UTIL, "a larger budget has more blocks"),
            ],
            Self::CannotUnify { .. } => vec![advice(
                Act,
                "--block-size",
                "choose one at which the page sizes divide each other",
            )],
            Self::NoLayers => Vec::new(),
        }
    }

    /// What the engine of this release prints; `None` where it prints nothing of its own.
    ///
    /// The refusal of [`Refusal::NoBlocks`] goes on with a remark and a link from 0.27 on.
    #[must_use]
    pub fn engine_text(&self, rules: &Rules) -> Option<String> {
        match self {
            Self::FreeBelowRequested { .. } => Some(self.start_text(rules)),
            Self::MemoryGrew { initial, current } => Some(format!(
                "Error in memory profiling. Initial free memory {} GiB, current free memory {} \
                 GiB. This happens when other processes sharing the same container release GPU \
                 memory while vLLM is profiling during initialization.",
                gib_shortest(initial.0 as f64),
                gib_shortest(current.0 as f64)
            )),
            Self::NoBlocks { .. } => Some(
                "No available memory for the cache blocks. Try increasing \
                 `gpu_memory_utilization` when initializing the engine."
                    .to_owned(),
            ),
            Self::TooLong { max_model_len, needed, available, estimated } => {
                Some(too_long_text(rules, *max_model_len, (*needed, *available), *estimated))
            }
            Self::AutoFitFailed { .. } => Some(
                "Cannot auto-fit max_model_len: not enough GPU memory available to serve even a \
                 single token."
                    .to_owned(),
            ),
            Self::PoolBelowMaxLen { max_model_len, slots } => Some(format!(
                "The model's max seq len ({max_model_len}) is larger than the maximum number of \
                 tokens that can be stored in KV cache ({slots}). Try increasing \
                 `gpu_memory_utilization` or decreasing `max_model_len` when initializing the \
                 engine."
            )),
            Self::CannotUnify { .. } | Self::NoLayers => None,
        }
    }

    fn start_text(&self, rules: &Rules) -> String {
        let Self::FreeBelowRequested {
            free,
            total,
            utilization,
            requested,
            device_index,
            external_weights,
        } = self
        else {
            return String::new();
        };
        let device = match rules.start_check {
            StartCheck::NamesDevice => format!("cuda:{device_index} "),
            _ => String::new(),
        };
        let (free, total) = (gib_shortest(free.0 as f64), gib_shortest(total.0 as f64));
        let requested = gib_shortest(*requested);
        let head = format!("Free memory on device {device}({free}/{total} GiB) on startup is less");
        if *external_weights > Bytes::ZERO {
            return format!(
                "{head} than the engine's budget after excluding external process's weights \
                 ({requested} GiB)"
            );
        }
        format!(
            "{head} than desired GPU memory utilization ({}, {requested} GiB). Decrease GPU \
             memory utilization or reduce GPU memory used by other processes.",
            pyfloat::repr(*utilization)
        )
    }
}

fn too_long_text(
    rules: &Rules,
    max_model_len: u64,
    (needed, available): (Bytes, Bytes),
    estimated: u64,
) -> String {
    let gib = |b: Bytes| match rules.gib_format {
        GibFormat::Fixed => gib_fixed(b.0 as f64),
        GibFormat::Shortest => gib_shortest(b.0 as f64),
    };
    let model = if rules.possessive_fixed.exists() { "model's" } else { "models's" };
    let estimate = match (estimated, rules.estimate_printed.exists()) {
        (0, _) => String::new(),
        (_, false) => " Based on the available memory,".to_owned(),
        (n, true) => {
            format!(" Based on the available memory, the estimated maximum model length is {n}.")
        }
    };
    format!(
        "To serve at least one request with the {model} max seq len ({max_model_len}), ({} GiB KV \
         cache is needed, which is larger than the available KV cache memory ({} GiB).{estimate} \
         Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing \
         the engine.",
        gib(needed),
        gib(available)
    )
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::FreeBelowRequested { free, requested, utilization, .. } => {
                let asked = Bytes(requested.max(0.0) as u64);
                write!(f, "{free} free at the start, but utilization {utilization} asks {asked}")
            }
            Self::MemoryGrew { initial, current } => {
                write!(f, "free memory grew from {initial} to {current} while profiling")
            }
            Self::NoBlocks { available } => {
                write!(f, "nothing is left for the KV cache ({available} B)")
            }
            Self::TooLong { max_model_len, needed, available, estimated } => write!(
                f,
                "one request of {max_model_len} tokens needs {needed} of KV cache, {available} is \
                 there; the longest that fits is {estimated} tokens"
            ),
            Self::AutoFitFailed { available } => {
                write!(f, "not one token fits in {available} B of KV cache")
            }
            Self::PoolBelowMaxLen { max_model_len, slots } => {
                write!(f, "max_model_len {max_model_len} is above the pool's {slots} tokens")
            }
            Self::CannotUnify { page, largest } => {
                write!(f, "a page of {page:?} does not divide the largest page of {largest:?}")
            }
            Self::NoLayers => f.write_str("no layer keeps a KV cache"),
        }
    }
}

impl std::error::Error for Refusal {}
