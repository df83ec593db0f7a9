//! Exceptions whose text uses words of memory for something else, or that are plainly no shortage.

use plimsoll_ingest::log::{Event, ExceptionText, Server, Sglang, System};

use super::driver::fraction_flag;
use crate::oom::{Reached, reached, went_on};
use crate::{Case, Cause, Confidence, Direction, Finding, Lever, Move, Phase};

/// A text that is known, and what it means.
struct Known {
    /// All of these are in the text (lower case).
    words: &'static [&'static str],
    /// The code.
    code: &'static str,
    /// The cause.
    cause: Cause,
    /// Other causes.
    also: &'static [Cause],
    /// When.
    phase: Phase,
    /// What to do with the fraction.
    fraction: Direction,
    /// What it means, one sentence.
    headline: &'static str,
    /// What to set.
    levers: &'static [(&'static str, Move, &'static str)],
}

/// Texts of engines and their kernels, most telling first.
const KNOWN: &[Known] = &[
    Known {
        words: &["out of resource", "shared memory"],
        code: "not-memory",
        cause: Cause::NotMemory,
        also: &[Cause::MisleadingMessage],
        phase: Phase::Unknown,
        fraction: Direction::NoEffect,
        headline: "a Triton kernel wants more on-chip shared memory than this GPU has: not device memory",
        levers: &[(
            "--attention-backend",
            Move::Set,
            "other kernels; or a release with settings for this GPU",
        )],
    },
    Known {
        words: &["buffer overflow when allocating memory for"],
        code: "attention-workspace",
        cause: Cause::AttentionWorkspace,
        also: &[Cause::NotMemory, Cause::MisleadingMessage],
        phase: Phase::Unknown,
        fraction: Direction::NoEffect,
        headline: "FlashInfer's workspace, a buffer of fixed size, is too small for this batch",
        levers: &[(
            "SGLANG_FLASHINFER_WORKSPACE_SIZE",
            Move::Raise,
            "bytes; 384 MiB to 512 MiB unless set",
        )],
    },
    Known {
        words: &["num_max_dispatch_tokens_per_rank"],
        code: "moe-workspace",
        cause: Cause::MoeWorkspace,
        also: &[Cause::NotMemory, Cause::GraphsOrWorkspace],
        phase: Phase::Decode,
        fraction: Direction::NoEffect,
        headline: "a batch is larger than DeepEP's buffers were made for",
        levers: &[
            (
                "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK",
                Move::Raise,
                "at least the largest batch of a rank",
            ),
            ("--cuda-graph-max-bs", Move::Lower, "to that number"),
        ],
    },
    Known {
        words: &["sliding window", "pool"],
        code: "pool-too-small",
        cause: Cause::PoolTooSmall,
        also: &[Cause::WeightsAboveFraction],
        phase: Phase::Sizing,
        fraction: Direction::Raise,
        headline: "the pool of the sliding-window layers is smaller than one window",
        levers: &[
            ("--swa-full-tokens-ratio", Move::Raise, "more of the budget for window layers"),
            ("--mem-fraction-static", Move::Raise, "a larger budget for both pools"),
        ],
    },
    Known {
        words: &["swa", "window"],
        code: "pool-too-small",
        cause: Cause::PoolTooSmall,
        also: &[Cause::WeightsAboveFraction],
        phase: Phase::Sizing,
        fraction: Direction::Raise,
        headline: "the pool of the sliding-window layers is smaller than one window",
        levers: &[
            ("--swa-full-tokens-ratio", Move::Raise, "more of the budget for window layers"),
            ("--mem-fraction-static", Move::Raise, "a larger budget for both pools"),
        ],
    },
    Known {
        words: &["mamba", "cache", "memory"],
        code: "mamba-state",
        cause: Cause::MambaState,
        also: &[Cause::WeightsAboveFraction, Cause::PoolTooSmall],
        phase: Phase::Sizing,
        fraction: Direction::Raise,
        headline: "the budget holds no slot for the states of Mamba layers",
        levers: &[
            ("--mem-fraction-static", Move::Raise, "a larger budget"),
            ("--max-running-requests", Move::Lower, "fewer slots"),
            ("--mamba-ssm-dtype", Move::Set, "bfloat16 halves the states"),
        ],
    },
    Known {
        words: &["max_mamba_cache_size"],
        code: "mamba-state",
        cause: Cause::MambaState,
        also: &[Cause::WeightsAboveFraction, Cause::PoolTooSmall],
        phase: Phase::Sizing,
        fraction: Direction::Raise,
        headline: "the slots for states of Mamba layers do not fit what was asked",
        levers: &[
            ("--max-mamba-cache-size", Move::Raise, "several slots serve one request"),
            ("--max-running-requests", Move::Lower, "fewer slots are needed"),
        ],
    },
    Known {
        words: &["longer than the model's context length"],
        code: "not-memory",
        cause: Cause::NotMemory,
        also: &[Cause::PoolTooSmall],
        phase: Phase::Refused,
        fraction: Direction::NoEffect,
        headline: "a request is longer than the context length: not the pool",
        levers: &[("--context-length", Move::Raise, "where the model allows it")],
    },
    Known {
        words: &["exceeds the model's maximum context length"],
        code: "not-memory",
        cause: Cause::NotMemory,
        also: &[Cause::PoolTooSmall],
        phase: Phase::Refused,
        fraction: Direction::NoEffect,
        headline: "a request is longer than the context length: not the pool",
        levers: &[("--context-length", Move::Raise, "where the model allows it")],
    },
    Known {
        words: &["no space left for only one request"],
        code: "pool-too-small",
        cause: Cause::PoolTooSmall,
        also: &[Cause::SchedulerBug, Cause::PreemptionStorm],
        phase: Phase::Retraction,
        fraction: Direction::Raise,
        headline: "one request alone needs more slots than the token pool has",
        levers: &[
            (
                "--mem-fraction-static",
                Move::Raise,
                "by 0.02 at a time, while what is left covers the largest prefill",
            ),
            ("--kv-cache-dtype", Move::Set, "fp8_e4m3 halves the bytes of a token"),
        ],
    },
    Known {
        words: &["no gpu memory values found"],
        code: "wrong-capacity",
        cause: Cause::WrongOrUnknownCapacity,
        also: &[Cause::NotMemory, Cause::SharedOrUnifiedMemory],
        phase: Phase::Load,
        fraction: Direction::NoEffect,
        headline: "the capacity of the device could not be read: nvidia-smi prints no number for it",
        levers: &[(
            "--mem-fraction-static",
            Move::Set,
            "given, the automatic value is not needed (in releases that still read the capacity, take a newer one)",
        )],
    },
    Known {
        words: &["invalid literal", "[n/a]"],
        code: "wrong-capacity",
        cause: Cause::WrongOrUnknownCapacity,
        also: &[Cause::NotMemory, Cause::SharedOrUnifiedMemory],
        phase: Phase::Load,
        fraction: Direction::NoEffect,
        headline: "the capacity of the device could not be read: nvidia-smi prints [N/A] on a machine of unified memory",
        levers: &[(
            "a newer release",
            Move::Set,
            "0.5.10 and later fall back to what the driver says",
        )],
    },
    Known {
        words: &["std::bad_alloc"],
        code: "host-memory",
        cause: Cause::HostMemory,
        also: &[],
        phase: Phase::Host,
        fraction: Direction::NoEffect,
        headline: "the host had no memory left for native code",
        levers: &[("memory limit of the container", Move::Raise, "or a larger host")],
    },
];

/// An exception whose text is known.
pub(super) fn known(case: &Case) -> Vec<Finding> {
    if !matches!(case.server(), None | Some(Server::Sglang | Server::Vllm)) {
        return Vec::new();
    }
    let texts = exceptions(case).map(|(event, text)| (event, text.message.to_ascii_lowercase()));
    let captures = case.sglang().filter_map(|(event, line)| match line {
        Sglang::CaptureFailed { text } => Some((event, text.to_ascii_lowercase())),
        _ => None,
    });
    let found = texts.chain(captures).find_map(|(event, text)| {
        let known = KNOWN.iter().find(|k| k.words.iter().all(|word| text.contains(word)))?;
        Some((event, known))
    });
    let Some((event, known)) = found else { return Vec::new() };
    let mut finding = Finding::new(known.code, known.cause, known.phase, known.headline)
        .also(known.also)
        .sure(Confidence::Likely, 91)
        .seen(event)
        .fraction(known.fraction);
    for (flag, change, gives) in known.levers {
        finding = finding.set(Lever::new(*flag, *change).gives(*gives));
    }
    if known.fraction == Direction::NoEffect {
        finding = finding.useless(fraction_flag(case), None, "it does not change this buffer");
    }
    vec![finding]
}

fn exceptions(case: &Case) -> impl Iterator<Item = (&Event, &ExceptionText)> {
    case.system().filter_map(|(event, line)| match line {
        System::Exception(text) => Some((event, text)),
        _ => None,
    })
}

/// Classes of exceptions that no shortage of memory raises.
const PLAIN: &[&str] = &[
    "ImportError",
    "ModuleNotFoundError",
    "AttributeError",
    "TypeError",
    "KeyError",
    "NotImplementedError",
    "FileNotFoundError",
    "PermissionError",
    "NameError",
    "IndexError",
    "SyntaxError",
    "CompilationError",
    "TimeoutError",
    "ConnectionError",
    "ConnectionRefusedError",
    "JSONDecodeError",
    "SafetensorError",
    "AcceleratorError",
];

/// Words by which a text speaks of memory.
const OF_MEMORY: &[&str] = &["memory", "alloc", "oom", "no space", "capacity"];

/// A plain programming or loading error is what ended it: not memory.
pub(super) fn plain_error(case: &Case) -> Vec<Finding> {
    let found = exceptions(case).filter(|(event, _)| !went_on(case, event)).find(|(_, text)| {
        let class = text.class.rsplit('.').next().unwrap_or_default();
        let lower = text.message.to_ascii_lowercase();
        PLAIN.contains(&class) && !OF_MEMORY.iter().any(|word| lower.contains(word))
    });
    let Some((event, text)) = found else { return Vec::new() };
    if case.torch_ooms().next().is_some() {
        return Vec::new();
    }
    let phase = match reached(case, event) {
        Reached::Nothing | Reached::Loading | Reached::DraftLoading => Phase::Load,
        Reached::Sizing | Reached::DraftSizing => Phase::Sizing,
        Reached::Capture => Phase::Capture,
        Reached::Serving => Phase::Unknown,
    };
    let message: String = text.message.chars().take(120).collect();
    let headline =
        format!("it ended with an error that is no shortage of memory: {}: {message}", text.class);
    vec![
        Finding::new("not-memory", Cause::NotMemory, phase, headline)
            .sure(Confidence::Likely, 42)
            .seen(event)
            .useless(fraction_flag(case), None, "no allocation failed"),
    ]
}
