//! Which variant of each sizing rule a release follows: one line a rule, with its first release.

use super::args::Generation;
use crate::policy::sglang::version::Version;

/// Releases whose code the rules were read from, ascending. A change is dated to the first of
/// these that has it.
pub const OPENED: [Version; 15] = [
    Version::new(0, 6, 6),
    Version::new(0, 8, 5),
    Version::new(0, 9, 0),
    Version::new(0, 10, 0),
    Version::new(0, 11, 0),
    Version::new(0, 12, 0),
    Version::new(0, 15, 0),
    Version::new(0, 18, 0),
    Version::new(0, 19, 0),
    Version::new(0, 20, 0),
    Version::new(0, 21, 0),
    Version::new(0, 24, 0),
    Version::new(0, 27, 0),
    Version::new(0, 30, 0),
    Version::new(0, 33, 0),
];

/// How firmly a release's rules are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// Read from this minor release.
    Read,
    /// Lies between two releases that were read; follows the lower.
    Between {
        /// The release whose rules are used.
        below: Version,
        /// The next release that was read; what it changed may already hold.
        above: Version,
    },
    /// Older than every release that was read; follows the oldest.
    Older {
        /// The release whose rules are used.
        nearest: Version,
    },
    /// Newer than every release that was read; follows the newest.
    Newer {
        /// The release whose rules are used.
        nearest: Version,
    },
}

impl Basis {
    /// Where `version` lies among [`OPENED`]; patch releases count as their minor release.
    #[must_use]
    pub fn of(version: Version) -> Self {
        let minor = |v: Version| (v.major, v.minor);
        let (first, last) = (OPENED[0], OPENED[OPENED.len() - 1]);
        if OPENED.iter().any(|&v| minor(v) == minor(version)) {
            return Self::Read;
        }
        if minor(version) < minor(first) {
            return Self::Older { nearest: first };
        }
        let mut below = first;
        for &v in &OPENED {
            if minor(v) > minor(version) {
                return Self::Between { below, above: v };
            }
            below = v;
        }
        Self::Newer { nearest: last }
    }

    /// One sentence for the user; `None` when the rules were read from this release.
    #[must_use]
    pub fn note(self, version: Version) -> Option<String> {
        match self {
            Self::Read => None,
            Self::Between { below, above } => Some(format!(
                "vLLM {version} follows the rules of {below}; what {above} changed may already hold"
            )),
            Self::Older { nearest } => Some(format!(
                "vLLM {version} is older than the oldest known rules; it follows {nearest}, and \
                 profiling, defaults and messages may differ"
            )),
            Self::Newer { nearest } => Some(format!(
                "vLLM {version} is newer than the newest known rules; it follows {nearest}, and \
                 profiling terms, defaults and messages may differ"
            )),
        }
    }
}

/// How `total * gpu_memory_utilization` becomes the budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestedRounding {
    /// The float64 product itself.
    Product,
    /// `ceil` of the product (0.15+, `request_memory`).
    Ceil,
}

/// The check of free memory before the model loads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartCheck {
    /// None (V0, and V1 before 0.10).
    Absent,
    /// `free < requested` refuses; the text does not name the device (0.10 to 0.14).
    Plain,
    /// The same, naming the device (0.15+).
    NamesDevice,
}

/// What the baseline reading already contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Snapshot {
    /// Taken before NCCL: its buffers count as consumption (V0, V1 to 0.9).
    BeforeNccl,
    /// Taken after NCCL and an emptied cache: those buffers only lower what is free (0.10+).
    AfterNccl,
    /// Also after the first use of cuBLAS and cuBLASLt (0.33).
    AfterNcclAndBlas,
}

/// What is charged against the budget before KV.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProfileRule {
    /// V0: weights + peak increase in torch + increase outside torch.
    V0Increase,
    /// V1 0.8 and 0.9: torch peak with weights + everything on the device outside torch, also what
    /// the context, NCCL and other processes hold.
    WholeDevice,
    /// V1 0.10 to 0.26: weights + activation peak + increase outside torch since the baseline.
    Increase,
    /// V1 0.27+: drop of free memory since the baseline (so also what the allocator keeps
    /// fragmented) + transient headroom.
    Consumed,
}

/// Whether an estimate of the graphs' memory is charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GraphCharge {
    /// Never: graphs come out of `(1 - utilization) * total`.
    Never,
    /// Only with `VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1` (0.18, 0.19).
    OptIn,
    /// Unless that variable is 0 (0.20+).
    Default,
}

/// Size of a group in the hybrid case, from the sizes of the buckets of equal layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupSizeRule {
    /// No hybrid manager: window and chunk layers are stored as full attention (V1 to 0.9).
    PromoteAll,
    /// The smallest bucket (0.10, 0.11).
    Smallest,
    /// The smallest, or the largest where `largest * den < smallest * num` (1.25 in 0.12 to 0.17,
    /// 1.5 from 0.18).
    Factor {
        /// Numerator.
        num: u64,
        /// Denominator.
        den: u64,
    },
}

/// How the bytes of one request of `max_model_len` are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NeededRule {
    /// Sum over layers of blocks × page, without padding layers (before 0.15).
    LayerSum,
    /// `bytes_per_block` × sum over groups of blocks (0.15+).
    GroupBlocks,
}

/// The number in the "KV cache size" line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvSizeRule {
    /// `num_blocks // groups * smallest block size` (to 0.20).
    BlocksTimesBlockSize,
    /// `int(concurrency * max_model_len)` (0.21+).
    ConcurrencyTimesLen,
}

/// How many tokens of a request may be in flight beyond its window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InFlightRule {
    /// `max_num_batched_tokens` (to 0.26).
    OneBatch,
    /// `max_concurrent_batches * max_num_batched_tokens` (0.27+).
    ConcurrentBatches,
}

/// Classes of device that choose the default batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BatchClasses {
    /// 70 GiB and not an A100, else (to 0.29).
    Two,
    /// 160 GiB; 70 GiB and neither A100 nor GB10; else (0.30+).
    Three,
}

/// Steps of the list of capture sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CaptureSteps {
    /// 1, 2, 4, then every 8 (to 0.11).
    Eight,
    /// 1, 2, 4, every 8 below 256, every 16 from 256 (0.12+).
    EightThenSixteen,
}

/// How the engine prints a GiB figure in its refusals.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GibFormat {
    /// Always two decimals: `16.00` (before 0.15).
    Fixed,
    /// Rounded to two decimals, then the shortest form: `3.0` (0.15+).
    Shortest,
}

/// Whether a feature exists in a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Feature {
    /// It does not.
    Absent,
    /// It does.
    Present,
}

impl Feature {
    const fn since(version: Version, major_minor: (u16, u16)) -> Self {
        if at_least(version, major_minor) { Self::Present } else { Self::Absent }
    }

    /// Whether it exists.
    #[must_use]
    pub const fn exists(self) -> bool {
        matches!(self, Self::Present)
    }
}

const fn at_least(v: Version, (major, minor): (u16, u16)) -> bool {
    v.major > major || (v.major == major && v.minor >= minor)
}

/// The variants that hold in one release and generation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rules {
    /// The release as asked for.
    pub version: Version,
    /// V0 or V1.
    pub generation: Generation,
    /// How firmly they are known.
    pub basis: Basis,
    /// Default of `--gpu-memory-utilization`: 0.9, from 0.20 on 0.92.
    pub default_utilization: f64,
    /// Rounding of the budget.
    pub requested: RequestedRounding,
    /// Check of free memory at the start.
    pub start_check: StartCheck,
    /// What the baseline holds.
    pub snapshot: Snapshot,
    /// What is charged before KV.
    pub profile: ProfileRule,
    /// Whether graphs are charged.
    pub graph_charge: GraphCharge,
    /// On integrated devices free memory is the host's available memory (0.12+).
    pub unified_free_is_available: Feature,
    /// `--kv-cache-memory-bytes` (0.11+).
    pub kv_cache_memory_bytes: Feature,
    /// `--max-model-len -1` (0.15+).
    pub auto_fit: Feature,
    /// Group size in the hybrid case.
    pub group_size: GroupSizeRule,
    /// Bytes of one request.
    pub needed: NeededRule,
    /// The null block is taken off in the checks (0.30+).
    pub null_block_in_checks: Feature,
    /// Tokens in flight.
    pub in_flight: InFlightRule,
    /// The "KV cache size" figure.
    pub kv_size: KvSizeRule,
    /// Prefix caching is the default for models with recurrent state too (off in 0.23, on in a
    /// candidate of 0.28.1, by `ModelConfig.is_prefix_caching_supported`).
    pub hybrid_prefix_caching: Feature,
    /// Asynchronous scheduling is the default (off in 0.12, on by 0.15).
    pub async_scheduling: Feature,
    /// Classes of device for default batches.
    pub batch_classes: BatchClasses,
    /// Steps of capture sizes.
    pub capture_steps: CaptureSteps,
    /// GiB figures in refusals.
    pub gib_format: GibFormat,
    /// After profiling, free memory equal to the initial is accepted (0.24+; before it must be less).
    pub equal_free_accepted: Feature,
    /// `model's` instead of `models's` in the refusal of a long `max_model_len` (0.24+).
    pub possessive_fixed: Feature,
    /// "KV cache size" and "Maximum concurrency" stand on one line (seen in logs of 0.28, read in 0.30).
    pub one_capacity_line: Feature,
    /// The suggestion speaks of consumed memory and is printed at info level (0.27+).
    pub suggestion_by_consumed: Feature,
    /// The refusal of a long request prints the estimated length (the number was lost in 0.8).
    pub estimate_printed: Feature,
}

impl Rules {
    /// The rules of `version`; `generation` `None` takes V0 before 0.8 and V1 from 0.8 on.
    /// Versions that were not read follow the nearest lower one ([`Basis`]).
    #[must_use]
    pub fn of(version: Version, generation: Option<Generation>) -> Self {
        let default_generation =
            if at_least(version, (0, 8)) { Generation::V1 } else { Generation::V0 };
        let generation = generation.unwrap_or(default_generation);
        let v1_since = |since| generation == Generation::V1 && at_least(version, since);
        let feature = |since| Feature::since(version, since);
        Self {
            version,
            generation,
            basis: Basis::of(version),
            default_utilization: if at_least(version, (0, 20)) { 0.92 } else { 0.9 },
            requested: if at_least(version, (0, 15)) {
                RequestedRounding::Ceil
            } else {
                RequestedRounding::Product
            },
            start_check: match (v1_since((0, 10)), v1_since((0, 15))) {
                (_, true) => StartCheck::NamesDevice,
                (true, _) => StartCheck::Plain,
                _ => StartCheck::Absent,
            },
            snapshot: snapshot(v1_since((0, 10)), v1_since((0, 33))),
            profile: profile(generation, version),
            graph_charge: match (v1_since((0, 18)), v1_since((0, 20))) {
                (_, true) => GraphCharge::Default,
                (true, _) => GraphCharge::OptIn,
                _ => GraphCharge::Never,
            },
            unified_free_is_available: feature((0, 12)),
            kv_cache_memory_bytes: feature((0, 11)),
            auto_fit: feature((0, 15)),
            group_size: group_size(version),
            needed: if at_least(version, (0, 15)) {
                NeededRule::GroupBlocks
            } else {
                NeededRule::LayerSum
            },
            null_block_in_checks: feature((0, 30)),
            in_flight: if at_least(version, (0, 27)) {
                InFlightRule::ConcurrentBatches
            } else {
                InFlightRule::OneBatch
            },
            kv_size: if at_least(version, (0, 21)) {
                KvSizeRule::ConcurrencyTimesLen
            } else {
                KvSizeRule::BlocksTimesBlockSize
            },
            hybrid_prefix_caching: feature((0, 28)),
            async_scheduling: feature((0, 15)),
            batch_classes: if at_least(version, (0, 30)) {
                BatchClasses::Three
            } else {
                BatchClasses::Two
            },
            capture_steps: if at_least(version, (0, 12)) {
                CaptureSteps::EightThenSixteen
            } else {
                CaptureSteps::Eight
            },
            gib_format: if at_least(version, (0, 15)) {
                GibFormat::Shortest
            } else {
                GibFormat::Fixed
            },
            equal_free_accepted: feature((0, 24)),
            possessive_fixed: feature((0, 24)),
            one_capacity_line: feature((0, 28)),
            suggestion_by_consumed: feature((0, 27)),
            estimate_printed: feature((0, 9)),
        }
    }

    /// `vLLM 0.24.0 (V1)`: how sources name the release.
    #[must_use]
    pub fn release(&self) -> String {
        let generation = match self.generation {
            Generation::V0 => "V0",
            Generation::V1 => "V1",
        };
        format!("vLLM {} ({generation})", self.version)
    }
}

const fn snapshot(after_nccl: bool, after_blas: bool) -> Snapshot {
    match (after_nccl, after_blas) {
        (_, true) => Snapshot::AfterNcclAndBlas,
        (true, _) => Snapshot::AfterNccl,
        _ => Snapshot::BeforeNccl,
    }
}

const fn profile(generation: Generation, version: Version) -> ProfileRule {
    if matches!(generation, Generation::V0) {
        ProfileRule::V0Increase
    } else if at_least(version, (0, 27)) {
        ProfileRule::Consumed
    } else if at_least(version, (0, 10)) || is_0_9_from_2(version) {
        ProfileRule::Increase
    } else {
        ProfileRule::WholeDevice
    }
}

/// 0.9.2 already profiles as 0.10 does: a public 0.9.2 start (Qwen3-8B, A100 40 GB) leaves 18.69 GiB,
/// which closes only when nothing before the first reading is charged.
const fn is_0_9_from_2(version: Version) -> bool {
    version.major == 0 && version.minor == 9 && version.patch >= 2
}

const fn group_size(version: Version) -> GroupSizeRule {
    if at_least(version, (0, 18)) {
        GroupSizeRule::Factor { num: 3, den: 2 }
    } else if at_least(version, (0, 12)) {
        GroupSizeRule::Factor { num: 5, den: 4 }
    } else if at_least(version, (0, 10)) {
        GroupSizeRule::Smallest
    } else {
        GroupSizeRule::PromoteAll
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_starts_at_its_release() {
        let v1 = |minor| Rules::of(Version::new(0, minor, 0), Some(Generation::V1));
        assert_eq!((v1(19).default_utilization, v1(20).default_utilization), (0.9, 0.92));
        assert_eq!(v1(9).profile, ProfileRule::WholeDevice);
        let last = Rules::of(Version::new(0, 9, 2), Some(Generation::V1));
        assert_eq!(last.profile, ProfileRule::Increase);
        assert_eq!(
            (v1(10).profile, v1(24).profile),
            (ProfileRule::Increase, ProfileRule::Increase)
        );
        assert_eq!(v1(27).profile, ProfileRule::Consumed);
        assert_eq!(v1(17).graph_charge, GraphCharge::Never);
        assert_eq!(v1(19).graph_charge, GraphCharge::OptIn);
        assert_eq!(v1(20).graph_charge, GraphCharge::Default);
        assert_eq!(v1(20).kv_size, KvSizeRule::BlocksTimesBlockSize);
        assert_eq!(v1(21).kv_size, KvSizeRule::ConcurrencyTimesLen);
        assert_eq!(v1(9).start_check, StartCheck::Absent);
        assert_eq!(v1(12).start_check, StartCheck::Plain);
        assert_eq!(v1(15).start_check, StartCheck::NamesDevice);
        assert_eq!(Rules::of(Version::new(0, 7, 3), None).generation, Generation::V0);
        assert_eq!(Rules::of(Version::new(0, 8, 0), None).generation, Generation::V1);
    }

    #[test]
    fn a_release_that_was_not_read_says_whom_it_follows() {
        let of = |minor| Basis::of(Version::new(0, minor, 3));
        assert_eq!(of(11), Basis::Read);
        assert_eq!(
            of(26),
            Basis::Between { below: Version::new(0, 24, 0), above: Version::new(0, 27, 0) }
        );
        assert_eq!(of(5), Basis::Older { nearest: Version::new(0, 6, 6) });
        assert_eq!(of(40), Basis::Newer { nearest: Version::new(0, 33, 0) });
        let note = of(40).note(Version::new(0, 40, 0)).unwrap();
        assert!(note.contains("0.33.0") && note.contains("newer"), "{note}");
        assert!(of(33).note(Version::new(0, 33, 0)).is_none());
    }
}
