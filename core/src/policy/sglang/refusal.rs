//! Every way in which the sizing refuses a start: the numbers, the engine's own words, and which
//! flag to turn which way.

use super::version::Version;
use crate::{pyfloat::repr, units::Bytes};

/// Which way a flag has to be turned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// To a larger value.
    Raise,
    /// To a smaller value.
    Lower,
    /// Give it, or give it another value.
    Set,
    /// Take it away.
    Remove,
}

/// One way out: a flag, its direction, and a value where one is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remedy {
    /// The flag (or environment variable) as typed.
    pub flag: &'static str,
    /// Which way.
    pub direction: Direction,
    /// A value that works or a bound, when it follows from the numbers.
    pub value: Option<String>,
    /// What else moves with it.
    pub effect: &'static str,
}

impl Remedy {
    fn new(flag: &'static str, direction: Direction, effect: &'static str) -> Self {
        Self { flag, direction, value: None, effect }
    }

    fn to(mut self, value: impl ToString) -> Self {
        self.value = Some(value.to_string());
        self
    }
}

/// A start that the engine refuses while it sizes memory, or input that no rule covers.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Refusal {
    /// No capacity and no fraction, in the versions that then fail (0.4.6 to 0.4.6.post4).
    #[error(
        "the device capacity is unknown, and SGLang {version} cannot choose --mem-fraction-static without it"
    )]
    CapacityUnknown {
        /// Rules.
        version: Version,
    },
    /// What was loaded is more than the fraction allows (0.5.14 and later say so by themselves).
    #[error(
        "weights leave {budget_gib:.2} GiB for the KV cache at --mem-fraction-static {fraction}: it has to be above {minimum:.4}"
    )]
    WeightsLeaveNoMemory {
        /// Fraction used.
        fraction: f64,
        /// `1 - available / pre-load free`.
        minimum: f64,
        /// The engine's suggestion: `minimum` rounded up to thousandths.
        suggested: f64,
        /// The negative budget, GiB.
        budget_gib: f64,
    },
    /// The budget holds no page.
    #[error(
        "the KV budget of {:.2} GiB holds {tokens} tokens of {cell_bytes} B, less than one page of {page_size}",
        *budget_bytes as f64 / crate::units::GIB as f64
    )]
    NotEnoughMemory {
        /// Fraction used.
        fraction: f64,
        /// Budget before rounding to cells; may be negative.
        budget_bytes: i128,
        /// Bytes of one token.
        cell_bytes: f64,
        /// Tokens after rounding to pages; zero or less.
        tokens: i128,
        /// Page size.
        page_size: u64,
    },
    /// The sliding-window pool is below one request's floor (0.5.16 and later).
    #[error(
        "the SWA pool of {swa_tokens} tokens cannot hold one request: window {window} + page {page_size}"
    )]
    SwaPoolTooSmall {
        /// Tokens of the SWA pool.
        swa_tokens: i128,
        /// Window, tokens.
        window: u64,
        /// Page size.
        page_size: u64,
    },
    /// The request-capped SWA pool takes the whole budget (0.5.14 and later).
    #[error(
        "the SWA pool for {requests} requests takes {swa_tokens} tokens ({swa_bytes}) and leaves no room for the full pool"
    )]
    SwaCapLeavesNoRoom {
        /// Tokens of the capped pool.
        swa_tokens: u64,
        /// Its bytes.
        swa_bytes: Bytes,
        /// `max_running_requests`.
        requests: u64,
    },
    /// Hybrid SWA pools with a page above 1 (0.5.1 to 0.5.7).
    #[error("SGLang {version} has no sliding-window pool with page size {page_size}; only 1")]
    SwaNeedsPageOne {
        /// Rules.
        version: Version,
        /// Page size asked for.
        page_size: u64,
    },
    /// No state slot fits (0.5.13 and later).
    #[error("the budget holds {slots} linear-attention state slots of {state_bytes}")]
    NoMambaSlots {
        /// Slots computed; zero or less.
        slots: i128,
        /// Bytes of one request's state.
        state_bytes: Bytes,
    },
    /// Slots exist, but fewer than one request needs (0.5.13 and later).
    #[error("{slots} linear-attention state slots serve no request: each takes {per_request}")]
    NoRequestPerMambaSlots {
        /// Slots.
        slots: i128,
        /// Slots that one running request takes.
        per_request: u64,
    },
    /// `chunked_prefill_size` is not a multiple of `page_size`.
    #[error("chunked_prefill_size {chunk} is not a multiple of page_size {page_size}")]
    ChunkNotPageMultiple {
        /// Tokens.
        chunk: i64,
        /// Page size.
        page_size: u64,
    },
    /// MLA with pipeline stages, before 0.5.1.
    #[error("SGLang {version} does not run MLA models with --pp-size {pp_size}")]
    MlaWithPipeline {
        /// Rules.
        version: Version,
        /// `--pp-size`.
        pp_size: u32,
    },
    /// A rank that starts with much less free memory than its peers.
    #[error(
        "unbalanced GPUs: the least free rank has {least} before loading, this one {local}; below 90 % the start stops"
    )]
    UnbalancedRanks {
        /// Minimum over ranks.
        least: Bytes,
        /// Free on this rank.
        local: Bytes,
    },
    /// The host pool does not fit beside the 10 GiB that stay free.
    #[error("the HiCache host pool wants {requested}, the host has {free} for it")]
    NotEnoughHostMemory {
        /// Asked for by the rank.
        requested: Bytes,
        /// Allowed to the rank.
        free: Bytes,
        /// What the engine prints as free (0.4.6 does not subtract the 10 GiB).
        printed_free: Bytes,
    },
    /// The host pool is not larger than the device pool (an assertion to 0.5.14).
    #[error(
        "the HiCache host pool of {host_tokens} tokens is not larger than the device pool of {device_tokens}"
    )]
    HostPoolNotLarger {
        /// Host tokens.
        host_tokens: u64,
        /// Device tokens.
        device_tokens: u64,
    },
    /// A value outside what the rules can compute with.
    #[error("{name} is {value}; it has to be between {low} and {high}")]
    OutOfRange {
        /// Name in the engine's terms.
        name: &'static str,
        /// Value given.
        value: String,
        /// Smallest value.
        low: String,
        /// Largest value.
        high: String,
    },
    /// A layout whose sizing is not modelled.
    #[error("{what} is not modelled: {why}")]
    NotModelled {
        /// What was asked.
        what: String,
        /// What is missing.
        why: &'static str,
    },
}

impl Refusal {
    /// A stable name.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::CapacityUnknown { .. } => "capacity_unknown",
            Self::WeightsLeaveNoMemory { .. } => "weights_leave_no_memory",
            Self::NotEnoughMemory { .. } => "not_enough_memory",
            Self::SwaPoolTooSmall { .. } => "swa_pool_too_small",
            Self::SwaCapLeavesNoRoom { .. } => "swa_cap_leaves_no_room",
            Self::SwaNeedsPageOne { .. } => "swa_needs_page_one",
            Self::NoMambaSlots { .. } => "no_mamba_slots",
            Self::NoRequestPerMambaSlots { .. } => "no_request_per_mamba_slots",
            Self::ChunkNotPageMultiple { .. } => "chunk_not_page_multiple",
            Self::MlaWithPipeline { .. } => "mla_with_pipeline",
            Self::UnbalancedRanks { .. } => "unbalanced_ranks",
            Self::NotEnoughHostMemory { .. } => "not_enough_host_memory",
            Self::HostPoolNotLarger { .. } => "host_pool_not_larger",
            Self::OutOfRange { .. } => "out_of_range",
            Self::NotModelled { .. } => "not_modelled",
        }
    }

    /// The text that the engine prints, by version; `None` where the start stops in an assertion or
    /// where the refusal is Plimsoll's. Interface facts, for matching logs.
    #[must_use]
    pub fn engine_message(&self, v: Version) -> Option<String> {
        Some(match self {
            Self::WeightsLeaveNoMemory { fraction, minimum, suggested, .. } if v.since(5, 14) => {
                format!(
                    "Loaded weights leave no GPU memory for the KV cache under \
                     --mem-fraction-static={}. Raise --mem-fraction-static above {suggested:.3} \
                     (minimum viable = 1 - available/pre = {minimum:.4}).",
                    repr(*fraction)
                )
            }
            Self::WeightsLeaveNoMemory { fraction, .. }
            | Self::NotEnoughMemory { fraction, .. } => not_enough_memory(v, *fraction),
            Self::SwaPoolTooSmall { swa_tokens, window, page_size } => format!(
                "SWA pool ({swa_tokens} tokens) cannot hold even one request: the prefill admission \
                 floor is sliding_window_size ({window}) + page_size ({page_size})."
            ),
            Self::SwaCapLeavesNoRoom { swa_tokens, swa_bytes, .. } => format!(
                "SWA pool cap ({swa_tokens} tokens, {:.2} GiB) leaves no room for the full KV pool",
                swa_bytes.as_gib_f64()
            ),
            Self::NoMambaSlots { slots, .. } => format!(
                "Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed \
                 max_mamba_cache_size={slots}"
            ),
            Self::NoRequestPerMambaSlots { slots, per_request } => format!(
                "Hybrid (mamba/linear-attention) state cache is too small to serve any requests. \
                 max_mamba_cache_size={slots}, mamba_ratio={per_request}, resulting max_num_reqs=0."
            ),
            Self::NotEnoughHostMemory { requested, printed_free, .. } => format!(
                "Not enough host memory available. Requesting {:.2} GB but only have {:.2} GB free. \
                 Please reduce the size of the hierarchical cache.",
                requested.0 as f64 / 1e9,
                printed_free.0 as f64 / 1e9
            ),
            _ => return None,
        })
    }

    /// Flags that lead out, nearest first. Both directions of a trade are listed where there are two.
    #[must_use]
    pub fn remedies(&self) -> Vec<Remedy> {
        use Direction::{Lower, Raise, Remove, Set};
        let raise_fraction =
            || Remedy::new("--mem-fraction-static", Raise, "less is left for prefill and graphs");
        let more_ranks = || Remedy::new("--tp-size", Raise, "each rank holds less of the weights");
        match self {
            Self::CapacityUnknown { .. } => {
                vec![Remedy::new("--mem-fraction-static", Set, "the automatic value is not needed")]
            }
            Self::WeightsLeaveNoMemory { suggested, .. } => {
                vec![raise_fraction().to(format!("above {suggested:.3}")), more_ranks()]
            }
            Self::NotEnoughMemory { .. } => vec![
                raise_fraction(),
                Remedy::new("--page-size", Lower, "fewer tokens are lost to rounding"),
                Remedy::new("--max-total-tokens", Remove, "the cap may be below one page"),
                more_ranks(),
            ],
            Self::SwaPoolTooSmall { .. } => vec![
                Remedy::new("--swa-full-tokens-ratio", Raise, "the full pool becomes smaller"),
                raise_fraction(),
            ],
            Self::SwaCapLeavesNoRoom { .. } => vec![
                Remedy::new("--max-running-requests", Lower, "fewer requests run at once"),
                Remedy::new("--chunked-prefill-size", Lower, "long prompts take more steps"),
                raise_fraction(),
            ],
            Self::SwaNeedsPageOne { .. } => {
                vec![Remedy::new("--page-size", Set, "the pool is not paged").to(1)]
            }
            Self::NoMambaSlots { .. } => vec![
                raise_fraction(),
                Remedy::new("--mamba-full-memory-ratio", Raise, "the KV pool becomes smaller"),
            ],
            Self::NoRequestPerMambaSlots { per_request, .. } => vec![
                Remedy::new("--max-mamba-cache-size", Raise, "the KV pool becomes smaller")
                    .to(per_request),
                Remedy::new("--mamba-full-memory-ratio", Raise, "the KV pool becomes smaller"),
                raise_fraction(),
            ],
            Self::ChunkNotPageMultiple { page_size, .. } => {
                vec![
                    Remedy::new("--chunked-prefill-size", Set, "a multiple of the page")
                        .to(format!("a multiple of {page_size}")),
                ]
            }
            Self::MlaWithPipeline { .. } => {
                vec![Remedy::new("--pp-size", Set, "or take 0.5.1 or later").to(1)]
            }
            Self::UnbalancedRanks { .. } => vec![Remedy::new(
                "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK",
                Set,
                "a warning instead of an error; the pool follows the least free rank. Better: see \
                 who holds memory on that device",
            )],
            Self::NotEnoughHostMemory { free, .. } => vec![
                host_size(*free),
                Remedy::new("--hicache-ratio", Lower, "fewer tokens are kept on the host"),
            ],
            Self::HostPoolNotLarger { .. } => vec![
                Remedy::new("--hicache-size", Raise, "more host memory is pinned"),
                Remedy::new("--hicache-ratio", Raise, "more host memory is pinned"),
                Remedy::new("--mem-fraction-static", Lower, "the device pool becomes smaller"),
            ],
            Self::OutOfRange { .. } | Self::NotModelled { .. } => Vec::new(),
        }
    }
}

/// `--hicache-size` counts whole units of 10^9 bytes a rank.
fn host_size(free: Bytes) -> Remedy {
    let remedy =
        Remedy::new("--hicache-size", Direction::Lower, "fewer tokens are kept on the host");
    match free.0 / 1_000_000_000 {
        0 => remedy,
        most => remedy.to(most),
    }
}

/// The generic sentence; only some releases name the fraction in it.
fn not_enough_memory(v: Version, fraction: f64) -> String {
    let bare = "Not enough memory. Please try to increase --mem-fraction-static.";
    let value = repr(fraction);
    if v.since(5, 11) || !v.since(5, 3) {
        bare.to_owned()
    } else if v.since(5, 10) {
        format!("{bare} Current value: mem_fraction_static={value}")
    } else {
        format!("{bare} Current value: self.server_args.mem_fraction_static={value}")
    }
}

/// `Ok` when `low <= value <= high`.
pub(crate) fn in_range<T: PartialOrd + ToString>(
    name: &'static str,
    value: T,
    low: T,
    high: T,
) -> Result<(), Refusal> {
    if value >= low && value <= high {
        return Ok(());
    }
    let [value, low, high] = [value, low, high].map(|x| x.to_string());
    Err(Refusal::OutOfRange { name, value, low, high })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_names_the_fraction_in_some_releases_only() {
        let refusal = Refusal::NotEnoughMemory {
            fraction: 0.88,
            budget_bytes: -5,
            cell_bytes: 70_272.0,
            tokens: 0,
            page_size: 1,
        };
        let text = |v: &str| refusal.engine_message(v.parse().unwrap()).unwrap();
        assert!(text("0.5.2").ends_with("--mem-fraction-static."));
        assert!(text("0.5.8").ends_with("self.server_args.mem_fraction_static=0.88"));
        assert!(text("0.5.10").ends_with(" Current value: mem_fraction_static=0.88"));
        assert!(text("0.5.23").ends_with("--mem-fraction-static."));
        assert_eq!(refusal.remedies()[0].direction, Direction::Raise);
    }

    #[test]
    fn ranges_hold_both_ends_and_no_nan() {
        assert!(in_range("x", 1.0, 0.0, 1.0).is_ok());
        assert!(in_range("x", f64::NAN, 0.0, 1.0).is_err());
    }
}
