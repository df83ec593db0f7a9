//! The hierarchical cache: a pool in host memory for every rank.

use plimsoll_ingest::log::{Amount, Event, Kind, Sglang, System};

use super::levers::{FRACTION, decimal_gb};
use super::settings::Settings;
use crate::{Case, Cause, Confidence, Finding, Level, Lever, Move, Phase};

/// What SGLang keeps for the rest of the host before it grants a pool: 10 × 2^30 bytes.
/// Source: SGLang `HostKVCache.__init__`; from 0.4.9.post3 the free figure in the error has it taken off.
const RESERVE: i64 = 10 << 30;

/// `Not enough host memory available. Requesting … but only have … free.`
pub(super) fn refused(case: &Case) -> Vec<Finding> {
    let found = case.sglang().find_map(|(event, line)| match line {
        Sglang::HostPoolRefused { requested, free } => Some((event, *requested, *free)),
        _ => None,
    });
    let Some((event, requested, free)) = found else { return Vec::new() };
    let ranks = Settings::of(case).ranks_per_host;
    let mut finding = Finding::new(
        "host-memory",
        Cause::HostMemory,
        Phase::Host,
        "the hierarchical cache asks for more host memory than there is",
    )
    .sure(Confidence::Certain, 96)
    .seen(event)
    .useless(FRACTION, None, "the pool of the hierarchical cache is host memory");
    let (Some(requested), Some(free)) = (requested, free) else {
        return vec![finding.set(Lever::new("--hicache-size", Move::Lower))];
    };
    let hidden = requested.bytes < free.bytes;
    let limit = if hidden { free - Amount::exact(RESERVE) } else { free };
    if hidden {
        finding = finding.also(&[Cause::MisleadingMessage]).because(
            "The text compares the wrong two figures: 10 GiB of the free memory are kept for the host and are \
             not in it.",
        );
        finding = finding.sum(format!(
            "{} free − {} kept = {}, less than {}",
            decimal_gb(free),
            decimal_gb(Amount::exact(RESERVE)),
            decimal_gb(limit),
            decimal_gb(requested)
        ));
    } else {
        finding = finding.sum(format!(
            "{} asked, {} there: {} short",
            decimal_gb(requested),
            decimal_gb(free),
            decimal_gb(requested - free)
        ));
    }
    finding.headline = format!(
        "the hierarchical cache asks for {} of host memory and {} may be used",
        decimal_gb(requested),
        decimal_gb(limit)
    );
    let each = (limit.bytes.max(0) as f64 / 1e9 / ranks as f64).floor();
    finding = finding.int("requested_bytes", requested.bytes).int("limit_bytes", limit.bytes);
    if ranks > 1 {
        finding = finding.sum(format!(
            "every rank takes its own pool: {} / {ranks} ranks = {each:.0} GB each",
            decimal_gb(limit)
        ));
    }
    let lever = Lever::new("--hicache-size", Move::Lower);
    let lever = if each >= 1.0 { lever.to(format!("{each:.0}")) } else { lever };
    vec![finding.set(lever.gives(format!(
        "GB for {} on this host; a control group may allow less",
        if ranks == 1 { "one rank".to_owned() } else { format!("each of {ranks} ranks") }
    )))]
}

/// Host pools were asked for and nothing came after: it died there.
pub(super) fn died_there(case: &Case) -> Vec<Finding> {
    let pools: Vec<(&Event, Amount)> = case
        .sglang()
        .filter_map(|(event, line)| match line {
            Sglang::HostPool { size, .. } => Some((event, *size)),
            _ => None,
        })
        .collect();
    let Some((last, _)) = pools.last() else { return Vec::new() };
    let went_on = case
        .events()
        .any(|event| (event.file, event.line) > (last.file, last.line) && went_on(&event.kind));
    let refused = case.sglang().any(|(_, line)| matches!(line, Sglang::HostPoolRefused { .. }));
    if went_on || refused || case.log.activity.values().any(|a| a.lines.is_some()) {
        return Vec::new();
    }
    let killed = case
        .events()
        .find(|event| (event.file, event.line) > (last.file, last.line) && ended(&event.kind));
    let settings = Settings::of(case);
    let shown = pools.iter().map(|(_, size)| size.bytes).fold(0, i64::saturating_add);
    let one = pools.iter().map(|(_, size)| size.bytes).max().unwrap_or(0);
    // A log of one rank stands for all of the host.
    let all = shown.max(one.saturating_mul(i64::try_from(settings.ranks_per_host).unwrap_or(1)));
    let headline = format!(
        "it ended while the hierarchical cache took {} of host memory, all ranks together",
        decimal_gb(Amount::exact(all))
    );
    let mut finding = Finding::new("host-memory", Cause::HostMemory, Phase::Host, headline)
        .also(&[Cause::LoadTimePeak])
        .because(
            "The pool is pinned for every rank. Shared memory of a container or of the system is often half of \
             the host's memory, and a control group may allow less than the host has.",
        )
        .level(if killed.is_some() { Level::Error } else { Level::Warning })
        .sure(Confidence::Possible, 65)
        .int("host_pools_bytes", all)
        .set(Lever::new("--hicache-size", Move::Lower).gives(
            "size × ranks must stay below the host's free memory less 10 GiB, and below its shared memory",
        ))
        .set(Lever::new("--hicache-ratio", Move::Lower).gives("the size is ratio × pool of the device, each rank"))
        .useless(FRACTION, None, "the pool of the hierarchical cache is host memory");
    for (event, _) in pools.iter().take(8) {
        finding = finding.seen(event);
    }
    if let Some(event) = killed {
        finding = finding.seen(event).sure(Confidence::Likely, 88);
    }
    vec![finding]
}

/// Whether a line shows that the start went on.
fn went_on(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Sglang(
            Sglang::Ready
                | Sglang::Summary { .. }
                | Sglang::CaptureBegin { .. }
                | Sglang::Capturing { .. }
                | Sglang::CaptureEnd { .. }
        )
    )
}

fn ended(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::System(
            System::Exit { .. }
                | System::Signal { .. }
                | System::KernelKill { .. }
                | System::HostOom { .. }
                | System::NoSpace { .. }
                | System::Exception(_)
                | System::DriverOom { .. }
        ) | Kind::Sglang(Sglang::SchedulerException)
    )
}
