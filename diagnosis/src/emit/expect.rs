//! What a log shows, as claims of a scenario file.

use super::{
    death::{Death, How, Shortage},
    draft::{Draft, Entry, amount},
    load,
    server::{Known, Release},
    trial::Trial,
};
use crate::Phase;
use crate::logged::{At, ByRank, Logged};
use plimsoll_core::pyfloat;
use plimsoll_ingest::{launch::Engine, log::Amount};

/// The claims of the crash. Figures that a run never produces in this phase are not claimed.
pub(super) fn crash(known: &Known, logged: &Logged, death: &Death) -> Vec<Entry> {
    let mut claims = ending(death, known.release);
    if known.mlx() {
        // Where programs take the memory, it is whichever pass comes next.
        claims.retain(|claim| claim.key != "died_in");
    }
    match known.engine() {
        Engine::Sglang => sglang(&mut claims, known, logged, death),
        Engine::Vllm => vllm(&mut claims, logged, death),
    }
    claims
}

fn ending(death: &Death, release: Release) -> Vec<Entry> {
    let place = death.place();
    let outcome = |word: &str| Entry::new("outcome", word, place.as_str());
    // Which refusal a shortage gets depends on the release.
    let refused = |code: &str| {
        let code = Entry::new("refusal", code, "");
        let code = (release == Release::Named).then_some(code);
        [outcome("refused")].into_iter().chain(code).collect::<Vec<Entry>>()
    };
    match &death.how {
        How::WeightsTooLarge { code, fraction, above, .. } => {
            let mut claims = refused(code);
            if let Some(fraction) = fraction {
                claims.push(Entry::new("mem_fraction_static", pyfloat::repr(*fraction), ""));
            }
            if let Some(above) = above {
                let text = pyfloat::repr(*above);
                claims.push(Entry::new("suggested_mem_fraction_static", text, place.as_str()));
            }
            claims
        }
        How::HostPool { .. } => refused("not_enough_host_memory"),
        How::FreeBelow => refused("free_below_requested"),
        How::NoBlocks => refused("no_blocks"),
        How::TooLong { estimated, .. } => {
            let mut claims = refused("max_model_len_too_long");
            if let Some(estimated) = estimated {
                claims.push(Entry::new("estimated_max_model_len", estimated, place.as_str()));
            }
            claims
        }
        How::LongerThanPool { tokens } => {
            let mut claims = refused("pool_below_max_model_len");
            claims.push(Entry::new("estimated_max_model_len", tokens, place.as_str()));
            claims
        }
        How::OutOfMemory { phase, .. } => {
            let died = match phase {
                Phase::Prefill => Some(Entry::new("died_in", "prefill", "")),
                Phase::Decode => Some(Entry::new("died_in", "decode", "")),
                Phase::Unknown => None,
                _ => Some(Entry::new("died_in", "start", phase.name())),
            };
            [outcome("out_of_memory")].into_iter().chain(died).collect()
        }
        How::Nothing => vec![Entry::new("outcome", "started", "")],
    }
}

/// Whether the start gets to the end of this phase.
fn reaches(death: &Death, pool: Reach) -> bool {
    match (&death.how, pool) {
        (How::Nothing, _) => true,
        (How::HostPool { .. }, _) => true,
        (How::OutOfMemory { phase, .. }, Reach::Pool) => {
            !matches!(phase, Phase::Load | Phase::Sizing)
        }
        (How::OutOfMemory { phase, .. }, Reach::Graphs) => {
            !matches!(phase, Phase::Load | Phase::Sizing | Phase::Capture)
        }
        _ => false,
    }
}

/// Phases that a start may get through.
#[derive(Clone, Copy)]
enum Reach {
    Pool,
    Graphs,
}

fn sglang(claims: &mut Vec<Entry>, known: &Known, logged: &Logged, death: &Death) {
    if !reaches(death, Reach::Pool) {
        return;
    }
    count(claims, "max_total_num_tokens", &logged.tokens);
    if let Some(chunk) = logged.chunk {
        claims.push(Entry::new("chunked_prefill_size", chunk.value, chunk.place()));
    }
    // One memory for all: what is free there is not the pool's doing.
    if known.mlx() {
        return;
    }
    least(claims, "free_after_pool", &logged.after_pool);
    if reaches(death, Reach::Graphs) {
        least(claims, "free_after_graphs", &logged.after_graphs);
    }
}

fn vllm(claims: &mut Vec<Entry>, logged: &Logged, death: &Death) {
    let no_budget = matches!(death.how, How::FreeBelow)
        || matches!(death.how, How::OutOfMemory { phase: Phase::Load | Phase::Sizing, .. });
    if !no_budget && !matches!(death.how, How::NoBlocks) {
        least(claims, "available_kv_cache_memory", &logged.available_kv);
    }
    if reaches(death, Reach::Pool) {
        count(claims, "kv_cache_tokens", &logged.tokens);
        count(claims, "num_gpu_blocks", &logged.blocks);
    }
}

fn count(claims: &mut Vec<Entry>, name: &str, at: &Option<At<u64>>) {
    if let Some(at) = at {
        claims.push(Entry::new(name, at.value, at.place()));
    }
}

/// The rank with the least, as the run's figure is that of the least rank.
fn least(claims: &mut Vec<Entry>, name: &str, ranks: &ByRank<Amount>) {
    if let Some(at) = ranks.values().min_by_key(|at| at.value.bytes) {
        claims.push(within(name, &at.value, &at.place()));
    }
}

/// A printed amount and what its rounding allows.
fn within(name: &str, value: &Amount, place: &str) -> Entry {
    let text = match value.half {
        0 => amount(value.bytes),
        half => format!("{{ value: {}, within: {} }}", amount(value.bytes), amount(half)),
    };
    Entry::new(name, text, place)
}

/// For a death in a pass: the refused block, where the run refuses the same one.
pub(super) fn block(draft: &mut Draft, trial: &Trial, shortage: Shortage, place: &str) {
    if let (Some(requested), true) = (shortage.requested, load::asked(trial, shortage.requested)) {
        let same = |name: &str| {
            trial.bytes(name).is_some_and(|b| (requested.least()..=requested.most()).contains(&b))
        };
        let name = if same("died_requested") { "died_requested" } else { "died_segment" };
        draft.expect.push(within(name, &requested, place));
        if let (Some(free), Some(there)) = (shortage.free, trial.bytes("died_free"))
            && (free.least()..=free.most()).contains(&there)
        {
            draft.expect.push(within("died_free", &free, place));
        }
    }
}
