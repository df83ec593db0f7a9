//! Text Generation Inference: warm-up runs the largest request that the limits allow and stops there if it
//! does not fit; any exception of that run is reported as want of memory.

use plimsoll_ingest::log::{Event, Kind, System, Tgi};

use super::not_modelled;
use crate::{Case, Cause, Confidence, Finding, Lever, Move, Phase};

/// A prefill of this few tokens needs next to nothing beside the weights.
const FEW: u64 = 512;

fn lines(case: &Case) -> impl DoubleEndedIterator<Item = (&Event, &Tgi)> {
    case.events().filter_map(|event| match &event.kind {
        Kind::Tgi(line) => Some((event, line)),
        _ => None,
    })
}

/// `Not enough memory to handle … prefill tokens`.
pub(super) fn prefill(case: &Case) -> Vec<Finding> {
    let refusal = lines(case).find_map(|(event, line)| match line {
        Tgi::PrefillTokens { prefill, total } => Some((event, *prefill, *total)),
        _ => None,
    });
    let Some((event, prefill, total)) = refusal else { return Vec::new() };
    let oom = case.torch_ooms().next().map(|(event, _)| event);
    let exception = case.system().find_map(|(event, line)| match line {
        System::Exception(_) | System::DeviceError { .. } => Some(event),
        _ => None,
    });
    let few = prefill.is_some_and(|tokens| tokens <= FEW);
    let (code, cause) = match (few, oom, total) {
        // Two tokens and a pool that does not fit: the weights leave no room.
        (true, Some(_), _) | (true, None, Some(_)) => ("model-too-big", Cause::ModelTooBig),
        (true, None, None) => ("misleading-message", Cause::MisleadingMessage),
        (false, ..) => ("profile-run-peak", Cause::ProfileRunPeak),
    };
    let tokens = prefill.map_or("its".to_owned(), |tokens| tokens.to_string());
    let mut finding = Finding::new(
        code,
        cause,
        Phase::Sizing,
        format!("warm-up with {tokens} prefill tokens failed"),
    )
    .also(&[
        Cause::ProfileRunPeak,
        Cause::ModelTooBig,
        Cause::MisleadingMessage,
        Cause::ActivationsOutsidePool,
        Cause::NotMemory,
    ])
    .sure(if few { Confidence::Possible } else { Confidence::Likely }, 88)
    .because(because(cause))
    .seen(event);
    for event in [oom, exception].into_iter().flatten() {
        finding = finding.seen(event);
    }
    if let (false, Some(tokens)) = (few, prefill) {
        finding = finding.set(
            Lever::new("--max-batch-prefill-tokens", Move::Lower)
                .to(tokens / 2)
                .gives("half the activations of warm-up"),
        );
    }
    if let (Some(_), Some(total)) = (total, prefill.and(total)) {
        finding = finding.set(
            Lever::new("--max-batch-total-tokens", Move::Lower)
                .gives(format!("a smaller pool than {total} tokens")),
        );
    }
    finding =
        finding.set(Lever::new("--num-shard", Move::Raise).gives("the weights over more devices"));
    if few {
        finding = finding.useless(
            "--max-batch-prefill-tokens",
            Some(Move::Lower),
            "so few tokens need next to nothing already",
        );
    }
    vec![not_modelled(finding, "Text Generation Inference")]
}

fn because(cause: Cause) -> &'static str {
    match cause {
        Cause::ModelTooBig => {
            "So few tokens need next to nothing beside the weights: these leave no room."
        }
        Cause::MisleadingMessage => {
            "So few tokens need next to nothing: either the weights leave no room, or the run failed for another reason. \
             Every exception of warm-up prints this text; the traceback above it tells."
        }
        _ => {
            "Warm-up runs the largest request that the limits allow, so that it fails now and not while serving."
        }
    }
}
