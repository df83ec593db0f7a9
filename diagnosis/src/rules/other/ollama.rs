//! ollama: its scheduler's own refusals, and runners that ended.

use plimsoll_ingest::log::{Event, Kind, Ollama, System};

use super::not_modelled;
use crate::{Case, Cause, Confidence, Finding, Lever, Move, Phase};

const SERVER: &str = "ollama";

fn lines(case: &Case) -> impl DoubleEndedIterator<Item = (&Event, &Ollama)> {
    case.events().filter_map(|event| match &event.kind {
        Kind::Ollama(line) => Some((event, line)),
        _ => None,
    })
}

/// `model requires more system memory (…) than is available (…)`.
pub(super) fn system_memory(case: &Case) -> Vec<Finding> {
    let refusal = lines(case).find_map(|(event, line)| match line {
        Ollama::SystemMemory { required, available } => Some((event, *required, *available)),
        _ => None,
    });
    let Some((event, required, available)) = refusal else { return Vec::new() };
    let mut finding = Finding::new(
        "host-memory",
        Cause::HostMemory,
        Phase::Load,
        match (required, available) {
            (Some(required), Some(available)) => {
                format!("the model needs {required} of host memory, {available} were available")
            }
            _ => "the model needs more host memory than is available".to_owned(),
        },
    )
    .also(&[Cause::ModelTooBig, Cause::SharedOrUnifiedMemory])
    .sure(Confidence::Certain, 90)
    .because("Layers that are not on a device stay in host memory, with their part of the cache.")
    .seen(event)
    .set(Lever::new("num_ctx", Move::Lower).gives("a smaller cache"))
    .set(Lever::new("num_gpu", Move::Raise).gives("more layers on devices, where they have room"));
    if let (Some(required), Some(available)) = (required, available) {
        finding =
            finding.sum(format!("{required} − {available} = {} missing", required - available));
    }
    vec![not_modelled(finding, SERVER)]
}

/// A runner ended: with the driver's refusal before it, its buffers did not fit.
pub(super) fn runner_ended(case: &Case) -> Vec<Finding> {
    let Some((event, _)) = lines(case).find(|(_, line)| matches!(line, Ollama::RunnerEnded)) else {
        return Vec::new();
    };
    let refused = case.system().find(|(_, line)| matches!(line, System::DriverOom { .. }));
    let Some((refusal, _)) = refused else { return Vec::new() };
    let mut finding = Finding::new(
        "outside-pool-too-small",
        Cause::GraphsOrWorkspace,
        Phase::Load,
        "a runner ended because a device had no memory left for its buffers",
    )
    .also(&[Cause::ModelTooBig, Cause::SharedOrUnifiedMemory, Cause::WrongOrUnknownCapacity])
    .sure(Confidence::Likely, 82)
    .because("The estimate of layers that fit left too little for compute buffers.")
    .seen(refusal)
    .seen(event);
    for (line, what) in lines(case) {
        if let Ollama::Offload { required, layers: Some((on, all)) } = what {
            let needs = required.map_or(String::new(), |required| format!(", {required} in full"));
            finding = finding.seen(line).sum(format!("{on} of {all} layers on devices{needs}"));
            finding = finding.set(
                Lever::new("num_gpu", Move::Lower)
                    .to(on.saturating_sub(2))
                    .gives("two layers fewer on the devices"),
            );
            break;
        }
    }
    if finding.help.is_empty() {
        finding =
            finding.set(Lever::new("num_gpu", Move::Lower).gives("fewer layers on the devices"));
    }
    vec![not_modelled(finding.set(Lever::new("num_batch", Move::Lower)), SERVER)]
}
