//! A device refused memory to a server whose rules are not modelled: the shared judgement, or the driver's bare text.

use plimsoll_ingest::log::{Server, System};

use super::not_modelled;
use crate::oom::{self, Verdict, size};
use crate::{Case, Cause, Confidence, Direction, Finding, Lever, Move, Phase};

/// What the server is called, and the setting that gives the pool less, where it has one.
fn named(server: Server) -> Option<(&'static str, Option<&'static str>)> {
    match server {
        Server::Sglang | Server::Vllm => None,
        Server::LlamaCpp => Some(("llama.cpp", None)),
        Server::Ollama => Some(("ollama", None)),
        Server::TensorRtLlm => Some(("TensorRT-LLM", Some("free_gpu_memory_fraction"))),
        Server::Tgi => Some(("Text Generation Inference", Some("--cuda-memory-fraction"))),
        Server::Lmdeploy => Some(("LMDeploy", Some("--cache-max-entry-count"))),
    }
}

/// PyTorch's text in the log of such a server.
pub(super) fn torch(case: &Case) -> Vec<Finding> {
    let Some((name, pool)) = case.server().and_then(named) else { return Vec::new() };
    let Some(judged) = oom::first(case) else { return Vec::new() };
    let verdict = Verdict::of(&judged);
    let accounts = &judged.accounts;
    let headline = match (accounts.requested, accounts.free) {
        (Some(asked), Some(free)) => {
            format!("an allocation failed: {} asked, {} free", size(asked), size(free))
        }
        (Some(asked), None) => format!("an allocation failed: {} asked", size(asked)),
        _ => "an allocation failed: out of device memory".to_owned(),
    };
    let mut finding = Finding::new(verdict.code, verdict.cause, verdict.phase, headline)
        .also(&verdict.also)
        .sure(Confidence::Possible, verdict.weight.min(78))
        .fraction(if pool.is_some() { verdict.fraction } else { Direction::NoEffect })
        .seen(judged.event);
    finding.arithmetic = accounts.lines();
    if let (Some(pool), Direction::Lower) = (pool, verdict.fraction) {
        finding =
            finding.set(Lever::new(pool, Move::Lower).gives("a smaller pool, more outside it"));
    }
    vec![not_modelled(finding, name)]
}

/// The driver's refusal without figures, where no line of the server itself says more.
pub(super) fn driver(case: &Case) -> Vec<Finding> {
    let Some((name, _)) = case.server().and_then(named) else { return Vec::new() };
    if case.torch_ooms().next().is_some() {
        return Vec::new();
    }
    let refused = case.system().find_map(|(event, line)| match line {
        System::DriverOom { requested, .. } => Some((event, *requested)),
        _ => None,
    });
    let Some((event, requested)) = refused else { return Vec::new() };
    let asked = requested.map_or(String::new(), |asked| format!(" {}", size(asked)));
    let finding = Finding::new(
        "outside-pool-too-small",
        Cause::GraphsOrWorkspace,
        Phase::Unknown,
        format!("the driver refused{asked} of device memory"),
    )
    .also(&[Cause::ActivationsOutsidePool, Cause::ModelTooBig, Cause::SharedOrUnifiedMemory])
    .sure(Confidence::Possible, 40)
    .fraction(Direction::Unknown)
    .seen(event);
    vec![not_modelled(finding, name)]
}
