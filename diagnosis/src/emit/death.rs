//! How a start or a server ended, as its log tells.

use crate::logged::At;
use crate::{
    Case, Finding, Level, Phase,
    oom::{self, Reached},
};
use plimsoll_ingest::log::{Amount, Event, Kind, Rank, Refused, Sglang, System, TorchOom, Vllm};

/// The figures of an allocation that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Shortage {
    pub requested: Option<Amount>,
    pub free: Option<Amount>,
    pub capacity: Option<Amount>,
}

/// What ended it.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum How {
    /// SGLang: nothing is left for the pool. The code is that of the refusal.
    WeightsTooLarge {
        code: &'static str,
        fraction: Option<f64>,
        above: Option<f64>,
        minimum: Option<f64>,
    },
    /// SGLang: the host pool does not fit.
    HostPool { requested: Option<Amount>, free: Option<Amount> },
    /// vLLM: less is free at the start than the fraction asks for.
    FreeBelow,
    /// vLLM: no block.
    NoBlocks,
    /// vLLM: one request of the longest length does not fit.
    TooLong { needed: Option<Amount>, available: Option<Amount>, estimated: Option<u64> },
    /// vLLM V0: the pool is shorter than the longest request.
    LongerThanPool { tokens: u64 },
    /// Memory was refused in a phase of the start or in a pass.
    OutOfMemory { phase: Phase, shortage: Shortage },
    /// Nothing did: it started.
    Nothing,
}

/// The end, with its line and rank.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Death {
    pub how: How,
    pub at: Option<At<Rank>>,
}

impl Death {
    /// The end that the log tells; `first` is the finding that says in which phase memory was refused.
    pub(super) fn of(case: &Case, first: Option<&Finding>) -> Self {
        let found = |(event, how): (&Event, How)| Self {
            how,
            at: Some(At { value: event.rank, file: event.file, line: event.line }),
        };
        // A refusal names the account; an exception of memory behind it is its echo.
        let refused = || case.events().rev().find_map(|event| Some((event, refusal(event)?)));
        let oom = || out_of_memory(case, first);
        refused().or_else(oom).map_or(Self { how: How::Nothing, at: None }, found)
    }

    /// Why this end cannot be simulated: the log is cut off before the server was ready, or it ended by what is
    /// no refusal of device memory.
    pub(super) fn not_simulated(&self, case: &Case, first: Option<&Finding>) -> Option<String> {
        if let How::OutOfMemory { phase: phase @ (Phase::Encoder | Phase::Host), .. } = self.how {
            return Some(format!(
                "{} is in the phase {phase}, which is not simulated",
                self.place()
            ));
        }
        if self.how != How::Nothing {
            return None;
        }
        if let Some(finding) = first.filter(|finding| finding.level == Level::Error) {
            return Some(format!(
                "{} is no refusal of device memory that has a line",
                finding.code
            ));
        }
        let ended = case.system().find(|(_, line)| {
            !matches!(
                line,
                System::SmiRow { .. } | System::Signal { .. } | System::Exit { code: 0 }
            )
        });
        if let Some((event, _)) = ended {
            return Some(format!("line {} is no refusal of device memory", event.line));
        }
        let ready = case.events().any(|event| {
            matches!(
                event.kind,
                Kind::Sglang(Sglang::Ready | Sglang::Summary { .. } | Sglang::CaptureEnd { .. })
                    | Kind::Vllm(Vllm::Ready | Vllm::CaptureEnd { .. } | Vllm::KvTokens { .. })
            )
        });
        (!ready).then(|| "the log ends before the server was ready, without an error".to_owned())
    }

    /// The figures of the refused allocation, where memory was refused.
    pub(super) const fn shortage(&self) -> Option<Shortage> {
        match self.how {
            How::OutOfMemory { shortage, .. } => Some(shortage),
            _ => None,
        }
    }

    /// The line, for a `source`.
    pub(super) fn place(&self) -> String {
        self.at.map_or_else(|| "the log".to_owned(), |at| at.place())
    }

    /// Its rank, where a line tells.
    pub(super) fn rank(&self) -> Option<Rank> {
        self.at.map(|at| at.value)
    }
}

fn refusal(event: &Event) -> Option<How> {
    Some(match &event.kind {
        Kind::Sglang(Sglang::WeightsLeaveNothing { fraction, above, minimum }) => {
            How::WeightsTooLarge {
                code: "weights_leave_no_memory",
                fraction: *fraction,
                above: *above,
                minimum: *minimum,
            }
        }
        Kind::Sglang(Sglang::NotEnoughMemory { fraction }) => How::WeightsTooLarge {
            code: "not_enough_memory",
            fraction: *fraction,
            above: None,
            minimum: None,
        },
        Kind::Sglang(Sglang::ProfiledBelowAsked { profiled, .. }) if *profiled <= 0 => {
            let code = "not_enough_memory";
            How::WeightsTooLarge { code, fraction: None, above: None, minimum: None }
        }
        Kind::Sglang(Sglang::HostPoolRefused { requested, free }) => {
            How::HostPool { requested: *requested, free: *free }
        }
        Kind::Vllm(Vllm::FreeAtStart { refused: Refused::Yes, .. }) => How::FreeBelow,
        Kind::Vllm(Vllm::NoBlocks) => How::NoBlocks,
        Kind::Vllm(Vllm::OneRequestTooLong { needed, available, estimated, .. }) => {
            How::TooLong { needed: *needed, available: *available, estimated: *estimated }
        }
        Kind::Vllm(Vllm::LongerThanPool { tokens, .. }) => How::LongerThanPool { tokens: *tokens },
        _ => return None,
    })
}

/// The first text of refused memory: what follows it is how the other ranks go down.
fn out_of_memory<'a>(case: &'a Case, first: Option<&Finding>) -> Option<(&'a Event, How)> {
    let said = |found: Phase| match first.map(|finding| finding.phase) {
        Some(phase) if found == Phase::Unknown && TELLING.contains(&phase) => phase,
        _ => found,
    };
    if let Some(judged) = oom::first(case) {
        let TorchOom { requested, free, capacity, .. } = *judged.oom;
        let shortage = Shortage { requested, free, capacity };
        return Some((judged.event, How::OutOfMemory { phase: said(judged.phase), shortage }));
    }
    let refused = |kind: &System| match kind {
        System::DriverOom { requested, .. } => {
            Some(Shortage { requested: *requested, ..Shortage::default() })
        }
        System::MetalOom | System::NvNoMemory => Some(Shortage::default()),
        _ => None,
    };
    let (event, shortage) = case.system().find_map(|(e, kind)| Some((e, refused(kind)?)))?;
    let phase = match oom::reached(case, event) {
        Reached::Nothing | Reached::Serving => Phase::Unknown,
        Reached::Loading | Reached::DraftLoading => Phase::Load,
        Reached::Sizing | Reached::DraftSizing => Phase::Sizing,
        Reached::Capture => Phase::Capture,
    };
    Some((event, How::OutOfMemory { phase: said(phase), shortage }))
}

/// Phases of a finding that say where memory was refused.
const TELLING: [Phase; 5] =
    [Phase::Load, Phase::Sizing, Phase::Capture, Phase::Prefill, Phase::Decode];
