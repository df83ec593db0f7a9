//! It ended, and no line says why: the last reading of free memory is all there is to go by.

use plimsoll_ingest::log::{Event, ExceptionText, Kind, Server, Sglang, System};

use super::levers::{FRACTION, Scale, gib};
use super::settings::Settings;
use super::start::Start;
use crate::oom::{Reached, reached, size, went_on};
use crate::{Case, Cause, Confidence, Direction, Finding, Lever, Move, Phase};

/// Less free than this share of what there was before loading makes a shortage the first guess.
const TIGHT: i64 = 25;

/// An end without a text, or with one that no other rule knows.
pub(crate) fn ended(case: &Case) -> Vec<Finding> {
    if !matches!(case.server(), None | Some(Server::Sglang)) {
        return Vec::new();
    }
    let Some(event) = end(case) else { return Vec::new() };
    let far = reached(case, event);
    let start = Start::tightest(case);
    let tight = start.as_ref().and_then(|start| {
        let (_, free) = start.last_free()?;
        let base = start.base().map_or(gib(40), |base| base.bytes);
        (far >= Reached::Capture && free.bytes < base / TIGHT).then_some(free)
    });
    let cut = "Paste the lines above it: the first traceback has the reason.";
    let finding = match tight {
        Some(free) => {
            let headline = format!("it ended with {} free, and no line says why", size(free));
            let (code, cause) = if far == Reached::Serving {
                ("activations-outside-pool", Cause::ActivationsOutsidePool)
            } else {
                ("outside-pool-too-small", Cause::GraphsOrWorkspace)
            };
            let phase = if far == Reached::Serving { Phase::Unknown } else { Phase::Capture };
            Finding::new(code, cause, phase, headline)
                .also(&[Cause::GraphsOrWorkspace, Cause::ActivationsOutsidePool, Cause::NotMemory])
                .fraction(Direction::Lower)
                .set(Scale::of(case, &Settings::of(case), start.as_ref(), None).lower(None))
        }
        None => {
            let headline = "it ended, and no line speaks of memory";
            Finding::new("not-memory", Cause::NotMemory, Phase::Unknown, headline)
                .also(&[Cause::MisleadingMessage])
                .set(
                    Lever::new("the whole log", Move::Set)
                        .gives("the first traceback, of every rank"),
                )
                .useless(FRACTION, None, "no line says that memory was short")
        }
    };
    let finding = finding.because(cut).sure(Confidence::Possible, 20).seen(event);
    vec![match start.and_then(|start| start.last_free()) {
        Some((event, _)) => finding.seen(event),
        None => finding,
    }]
}

/// The line of the end: an exception that no other rule reads, the scheduler's word, an exit code.
fn end(case: &Case) -> Option<&Event> {
    let mut found = None;
    for event in case.events() {
        match &event.kind {
            Kind::System(System::Exception(text)) if of_a_request(text) => {}
            Kind::System(System::Exception(_)) | Kind::Sglang(Sglang::SchedulerException)
                if !went_on(case, event) =>
            {
                found = found.or(Some(event));
            }
            Kind::System(System::Exit { code }) if *code != 0 => found = found.or(Some(event)),
            // Anything else that can end a server is told by its own rule.
            Kind::TorchOom(_) => return None,
            _ => {}
        }
    }
    found
}

/// Exceptions that end a connection, or a server that was told to stop.
const ENDS_OF_REQUESTS: &[&str] = &[
    "CancelledError",
    "ConnectionResetError",
    "BrokenPipeError",
    "ClientDisconnect",
    "EndOfStream",
    "HTTPException",
    "RequestValidationError",
    "KeyboardInterrupt",
    "SystemExit",
];

/// Whether an exception is of one request and no end of the server.
fn of_a_request(text: &ExceptionText) -> bool {
    let class = text.class.rsplit('.').next().unwrap_or_default();
    ENDS_OF_REQUESTS.contains(&class)
}
