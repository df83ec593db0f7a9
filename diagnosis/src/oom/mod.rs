//! One failed allocation, judged: when, for what, how much was short, and who held the memory. The rules of
//! every engine share it; which flag to move is theirs.

pub mod accounts;
pub mod factor;
mod part;
mod phase;
mod verdict;

use plimsoll_ingest::log::{Event, Kind, Sglang, TorchOom};

use crate::{Case, Phase};

pub use accounts::{Accounts, Artefact, size};
pub use part::{Part, part, telling_frame};
pub use phase::{Basis, Reached, of_frames as phase_of_frames, reached, served_before, went_on};
pub use verdict::Verdict;

/// A failed allocation with all that its lines tell.
#[derive(Clone, PartialEq, Debug)]
pub struct Judgement<'a> {
    /// The line.
    pub event: &'a Event,
    /// Its figures.
    pub oom: &'a TorchOom,
    /// When: [`Phase::Unknown`] for a pass of which no line says more.
    pub phase: Phase,
    /// What the phase rests on.
    pub basis: Basis,
    /// How far the lines say that the start was.
    pub reached: Reached,
    /// What asked.
    pub part: Option<Part>,
    /// Whether the frames are a draft model's.
    pub in_draft: bool,
    /// Whose the memory was.
    pub accounts: Accounts,
    /// Failures of the same kind on other ranks.
    pub other_ranks: usize,
}

/// The failure of this start: of the first allocations that failed, the one with the most figures.
///
/// Later failures are consequences, or other requests; the first is the one to explain.
#[must_use]
pub fn first<'a>(case: &'a Case) -> Option<Judgement<'a>> {
    let mut firsts: Vec<(&Event, &TorchOom)> = Vec::new();
    for (event, oom) in case.torch_ooms() {
        if !firsts.iter().any(|(seen, _)| seen.rank == event.rank) || event.rank.is_none() {
            firsts.push((event, oom));
        }
    }
    let told = |oom: &TorchOom| {
        let figures = [oom.requested, oom.capacity, oom.free, oom.allocated];
        (figures.iter().flatten().count(), usize::from(!oom.frames.is_empty()))
    };
    let best = firsts.iter().map(|(_, oom)| told(oom)).max()?;
    let (event, oom) = *firsts.iter().find(|(_, oom)| told(oom) == best)?;
    let ranks = firsts.iter().filter(|(e, _)| e.rank != event.rank).count();
    Some(Judgement { other_ranks: ranks, ..judge(case, event, oom) })
}

/// Judges one failed allocation.
#[must_use]
pub fn judge<'a>(case: &'a Case, event: &'a Event, oom: &'a TorchOom) -> Judgement<'a> {
    let accounts = Accounts::of(oom);
    let reached = reached(case, event);
    let (phase, basis) = phase_of(case, event, oom, reached, &accounts);
    Judgement {
        event,
        oom,
        phase,
        basis,
        reached,
        part: part(&oom.frames),
        in_draft: part::in_draft(&oom.frames),
        accounts,
        other_ranks: 0,
    }
}

fn phase_of(
    case: &Case,
    event: &Event,
    oom: &TorchOom,
    reached: Reached,
    accounts: &Accounts,
) -> (Phase, Basis) {
    if capture_failed(case, event) {
        return (Phase::Capture, Basis::Lines);
    }
    match phase::of_frames(&oom.frames) {
        Some(Phase::Unknown) => return (last_pass(case), Basis::Frames),
        Some(phase) => return (phase, Basis::Frames),
        None => {}
    }
    match reached {
        Reached::Loading | Reached::DraftLoading => (Phase::Load, Basis::Lines),
        Reached::Sizing | Reached::DraftSizing => (Phase::Sizing, Basis::Lines),
        Reached::Capture => (Phase::Capture, Basis::Lines),
        Reached::Serving => (last_pass(case), Basis::Lines),
        Reached::Nothing => of_figures(accounts),
    }
}

/// Whether a `Capture … failed` line stands with it: on the same line, or as the next failure of its rank.
fn capture_failed(case: &Case, event: &Event) -> bool {
    if event.text.contains("apture cuda graph failed") {
        return true;
    }
    case.sglang().any(|(other, line)| {
        matches!(line, Sglang::CaptureFailed { .. })
            && other.rank == event.rank
            && other.file == event.file
            && other.line >= event.line
    })
}

/// What the scheduler last did: a prefill after its last decode line, or the other way round.
fn last_pass(case: &Case) -> Phase {
    let busy: Vec<_> = case.log.activity.values().filter(|a| a.lines.is_some()).collect();
    let prefills: u64 = busy.iter().map(|a| a.prefill_tokens.count).sum();
    let decodes: u64 = busy.iter().map(|a| a.running.count).sum();
    match (prefills, decodes) {
        (0, 0) => Phase::Unknown,
        (_, 0) => Phase::Prefill,
        (0, _) => Phase::Decode,
        _ => Phase::Unknown,
    }
}

/// What the figures alone allow.
fn of_figures(accounts: &Accounts) -> (Phase, Basis) {
    // PyTorch names private pools only once graphs were captured.
    let graphs = accounts.private_pools.is_some_and(|pools| pools.bytes > 512 << 20);
    if graphs {
        (Phase::Capture, Basis::Figures)
    } else if accounts.nothing_freed_yet() {
        (Phase::Load, Basis::Figures)
    } else {
        (Phase::Unknown, Basis::Nothing)
    }
}

/// Whether a kind is a failed allocation of any form.
#[must_use]
pub fn is_oom(kind: &Kind) -> bool {
    matches!(kind, Kind::TorchOom(_))
}
