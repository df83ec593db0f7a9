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
const MAX_LEN: &str = "--max-model-len";

/// The most that the free memory allows, rounded down to hundredths.
fn most_utilization(free: Bytes, total: Bytes) -> f64 {
    (free.0 as f64 / total.0.max(1) as f64 * 100.0).floor() / 100.0
}

impl Refusal {
    /// A stable name.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::FreeBelowRequested { .. } => "free_below_requested",
            Self::MemoryGrew { .. } => "memory_grew",
            Self::NoBlocks { .. } => "no_blocks",
            Self::TooLong { .. } => "max_model_len_too_long",
            Self::AutoFitFailed { .. } => "auto_fit_failed",
            Self::PoolBelowMaxLen { .. } => "pool_below_max_model_len",
            Self::CannotUnify { .. } => "cannot_unify_pages",
            Self::NoLayers => "no_kv_layers",
        }
    }

    /// The value to which the setting `what` of [`Self::advice`] should move, when the numbers give one.
    #[must_use]
    pub fn advised_value(&self, what: &str) -> Option<String> {
        match self {
            Self::FreeBelowRequested { free, total, external_weights, .. } if what == UTIL => {
                let most = most_utilization(free.saturating_add(*external_weights), *total);
                Some(pyfloat::repr(most))
            }
            Self::TooLong { estimated, .. } if what == MAX_LEN && *estimated > 0 => {
                Some(estimated.to_string())
            }
            Self::PoolBelowMaxLen { slots, .. } if what == MAX_LEN => Some(slots.to_string()),
            _ => None,
        }
    }

    /// The ways out, the likeliest first; where a setting helps in either direction, both stand.
    #[must_use]
    pub fn advice(&self) -> Vec<Advice> {
        use Direction::{Act, Lower, Raise};
        match self {
            Self::FreeBelowRequested { free, total, external_weights, .. } => {
                let most = most_utilization(free.saturating_add(*external_weights), *total);
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
                    out.push(advice(Lower, MAX_LEN, why));
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
                advice(Lower, MAX_LEN, format!("the pool holds {slots} tokens")),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        policy::{
            sglang::version::Version,
            vllm::{
                budget::{self, AtStart},
                capacity::{self, Rank},
                spec::Kind,
                testing::{device, layers, settings},
            },
        },
        units::{GIB, Tokens},
    };

    fn refused(minor: u16, len: u64, (count, block): (usize, u64), gib: f64) -> String {
        let s = settings(minor, len, |a| a.block_size = Some(block));
        let rank =
            Rank { layers: layers(Kind::Full, count, block), available: (gib * GIB as f64) as i64 };
        let refusal = capacity::size_pool(&s, &[rank]).unwrap_err();
        refusal.engine_text(&s.rules).unwrap()
    }

    #[test]
    fn the_long_request_in_the_engines_words() {
        // vllm-project/vllm#16118 class, 32 layers on a TPU, blocks of 256 tokens.
        assert_eq!(
            refused(10, 131_072, (32, 256), 0.71),
            "To serve at least one request with the models's max seq len (131072), (16.00 GiB KV \
             cache is needed, which is larger than the available KV cache memory (0.71 GiB). Based \
             on the available memory, the estimated maximum model length is 5632. Try increasing \
             `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        );
        // A public log of 2026-04: 48 layers, 0.18 GiB.
        let text = refused(19, 16_384, (48, 16), 0.18);
        assert!(text.contains("models's max seq len (16384), (3.0 GiB"), "{text}");
        assert!(text.contains("(0.18 GiB). Based on") && text.contains("length is 976."), "{text}");
        assert!(refused(24, 16_384, (48, 16), 0.18).contains("the model's max seq len"));
        // Nothing fits: no estimate; before 0.9 the number was lost.
        assert!(refused(20, 16_384, (48, 16), 0.001).contains("GiB). Try increasing"));
        let lost = refused(8, 16_384, (48, 16), 0.18);
        assert!(lost.contains("Based on the available memory, Try increasing"), "{lost}");
    }

    #[test]
    fn the_start_check_in_the_engines_words() {
        let text = |minor, free: f64| {
            let s = settings(minor, 4096, |_| {});
            let at = AtStart::free(Bytes::from_gib_f64(free));
            budget::requested(&s, &device(), at).map_err(|r| r.engine_text(&s.rules).unwrap())
        };
        let head = "Free memory on device";
        let tail = "Decrease GPU memory utilization or reduce GPU memory used by other processes.";
        let plain = text(12, 60.5).unwrap_err();
        let middle = "(60.5/80.0 GiB) on startup is less than desired GPU memory utilization";
        assert_eq!(plain, format!("{head} {middle} (0.9, 72.0 GiB). {tail}"));
        let named = text(20, 60.5).unwrap_err();
        assert_eq!(named, format!("{head} cuda:0 {middle} (0.92, 73.6 GiB). {tail}"));
        assert!(text(9, 60.5).is_ok()); // No check before 0.10.
        assert!(text(20, 73.7).is_ok());
    }

    #[test]
    fn external_weights_lower_the_budget_first() {
        let s = settings(33, 4096, |_| {});
        let mut at = AtStart::free(Bytes::gib(60));
        at.external_weights = Bytes::gib(14);
        let budget = budget::requested(&s, &device(), at).unwrap();
        assert_eq!(budget.bytes, (80.0 * 0.92 * GIB as f64).ceil() - 14.0 * GIB as f64);
        at.external_weights = Bytes::gib(10);
        let refusal = budget::requested(&s, &device(), at).unwrap_err();
        assert!(refusal.engine_text(&s.rules).unwrap().contains("after excluding external"));
        // The most that then starts: (60 + 10) / 80, rounded down.
        assert!(refusal.advice()[0].why.starts_with("0.87 "), "{:?}", refusal.advice());
    }

    #[test]
    fn growth_is_refused_by_release() {
        let grew = |minor, initial, current| {
            let s = settings(minor, 4096, |_| {});
            budget::check_growth(&s, Bytes(initial), Bytes(current)).is_err()
        };
        assert!(grew(20, 10, 11) && grew(24, 10, 11));
        assert!(grew(21, 10, 10) && !grew(24, 10, 10) && !grew(21, 10, 9));
    }

    #[test]
    fn v0_says_slots() {
        // RTX 3090 and Llama-3.1-8B: 29,000 tokens asked, 1,478 blocks.
        let s = settings(6, 29_000, |_| {});
        let of = |blocks: i64| [blocks * 32 * 16 * 4096];
        let sized = |blocks| {
            crate::policy::vllm::v0::size_pool(&s, &layers(Kind::Full, 32, 16), &of(blocks))
        };
        let refusal = sized(1478).unwrap_err();
        assert_eq!(refusal, Refusal::PoolBelowMaxLen { max_model_len: 29_000, slots: 23_648 });
        let text = refusal.engine_text(&s.rules).unwrap();
        assert!(text.contains("(29000) is larger") && text.contains("KV cache (23648)"), "{text}");
        let pool = sized(2000).unwrap();
        assert_eq!((pool.slots, pool.cpu_blocks), (Tokens(32_000), 2048));
        assert_eq!(pool.watermark_blocks, 20);
        assert_eq!(sized(0).unwrap_err(), Refusal::NoBlocks { available: 0 });
    }

    #[test]
    fn every_refusal_has_a_code_and_a_way_out() {
        let all = [
            Refusal::NoBlocks { available: -1 },
            Refusal::AutoFitFailed { available: 1 },
            Refusal::MemoryGrew { initial: Bytes(1), current: Bytes(2) },
            Refusal::PoolBelowMaxLen { max_model_len: 2, slots: 1 },
            Refusal::CannotUnify { page: Bytes(3), largest: Bytes(4) },
        ];
        for refusal in all {
            assert!(!refusal.code().contains('-') && !refusal.advice().is_empty());
            assert!(!refusal.to_string().is_empty());
        }
        let long = Refusal::TooLong {
            max_model_len: 100,
            needed: Bytes(10),
            available: Bytes(5),
            estimated: 48,
        };
        let directions: Vec<_> = long.advice().iter().map(|a| a.direction).collect();
        assert_eq!(directions, [Direction::Lower, Direction::Raise, Direction::Lower]);
        let rules = Rules::of(Version::new(0, 20, 0), None);
        assert!(Refusal::NoLayers.engine_text(&rules).is_none());
    }
}
