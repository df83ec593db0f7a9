//! Settings that the server printed and the command does not lead to: a default of another release, a device
//! that no line names, an argument that was set elsewhere.

use super::{
    death::{Death, How},
    draft::{Draft, Entry},
    server::Known,
    trial::{self, Trial},
};
use crate::{Case, logged::Logged};
use plimsoll_core::{figure::FigureValue, pyfloat};
use plimsoll_ingest::launch::EngineLaunch;
use plimsoll_replay::start::Ran;
use std::path::Path;

/// A value that the server had, and where it is printed.
struct Printed {
    flag: &'static str,
    figure: &'static str,
    value: f64,
    place: String,
}

/// Adds what differs from the start of the command alone.
pub(super) fn put(
    draft: &mut Draft,
    case: &Case,
    known: &Known,
    logged: &Logged,
    death: &Death,
    base: &Path,
) {
    // A start that lacks a figure altogether is completed later.
    let Ok(ran) = Trial::settings(draft, base) else { return };
    for Printed { flag, figure, value, place } in printed(case, known, logged, death) {
        let now = number(&ran, figure);
        if now == Some(value) {
            continue;
        }
        let here = now.map_or_else(|| "none".to_owned(), text);
        let note = format!("as printed at {place}; by the command alone it would be {here}");
        draft.flags.push(Entry::new(flag, text(value), note));
    }
}

fn text(value: f64) -> String {
    match value.fract() == 0.0 {
        true => format!("{value:.0}"),
        false => pyfloat::repr(value),
    }
}

fn number(ran: &Ran, figure: &str) -> Option<f64> {
    match ran.start.figure(figure)?.value {
        FigureValue::Float(x) => Some(x),
        _ => trial::count(ran, figure).map(|n| n as f64),
    }
}

fn printed(case: &Case, known: &Known, logged: &Logged, death: &Death) -> Vec<Printed> {
    let argument = |name: &str| {
        let value = case.arg(name)?.parse::<f64>().ok().filter(|value| value.is_finite())?;
        Some((value, "the server's arguments".to_owned()))
    };
    let refused = match &death.how {
        How::WeightsTooLarge { fraction: Some(fraction), .. } => Some((*fraction, death.place())),
        _ => None,
    };
    let context = logged.context.map(|at| (at.value as f64, at.place()));
    let of = |flag, figure, found: Option<(f64, String)>| {
        found.map(|(value, place)| Printed { flag, figure, value, place })
    };
    let found = match &known.launch.engine {
        EngineLaunch::Sglang(args) => {
            // With attention data parallel the printed chunk is one worker's share.
            let chunk = logged.chunk.filter(|_| !args.enable_dp_attention);
            let chunk = chunk.filter(|at| at.value > 0).map(|at| (at.value as f64, at.place()));
            [
                of(
                    "mem-fraction-static",
                    "mem_fraction_static",
                    argument("mem_fraction_static").or(refused),
                ),
                of("chunked-prefill-size", "chunked_prefill_size", chunk),
                of("context-length", "context_len", context),
            ]
        }
        EngineLaunch::Vllm(_) => {
            let fraction = logged.utilization.map(|at| (at.value, at.place()));
            let batched = argument("max_num_batched_tokens");
            [
                of("gpu-memory-utilization", "gpu_memory_utilization", fraction),
                of("max-model-len", "max_model_len", context),
                of("max-num-batched-tokens", "max_num_batched_tokens", batched),
            ]
        }
    };
    found.into_iter().flatten().collect()
}
