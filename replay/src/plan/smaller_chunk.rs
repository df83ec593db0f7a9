//! The largest smaller prefill chunk that would fit where the chosen one does not.

use super::{KilledBy, Plan, passes::Passes};
use crate::start::{self, Case, CaseLaunch};
use plimsoll_core::units::Bytes;

/// A chunk that fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SmallerChunk {
    /// Tokens; a power of two times 256 or more.
    pub tokens: u64,
    /// What it needs at its peak.
    pub need: Bytes,
}

/// Smallest chunk that is tried, tokens.
const LEAST: u64 = 256;

/// Halves the chunk until its peak fits what is left; `None` when it fits already, or none does.
pub(super) fn find(case: &Case, plan: &Plan) -> Option<SmallerChunk> {
    let CaseLaunch::Sglang(args) = &case.launch else { return None };
    let left = plan.left?.mid;
    let need = plan.need.as_ref()?.1.value.mid;
    if need <= left && !plan.kills.plain.as_ref().is_some_and(KilledBy::is_prompts) {
        return None;
    }
    let figure = plan.ran.start.figure("chunked_prefill_size")?;
    let plimsoll_core::figure::FigureValue::Count(mut chunk) = figure.value else { return None };
    while chunk / 2 >= LEAST {
        chunk /= 2;
        let mut smaller = (**args).clone();
        smaller.chunked_prefill_size = i64::try_from(chunk).ok();
        // The fraction stays: an automatic one would move with the chunk.
        smaller.mem_fraction_static = plan.fraction;
        let launch = CaseLaunch::Sglang(Box::new(smaller));
        let case = Case { launch, ..case.clone() };
        let ran = start::run(&case).ok()?;
        let served = Passes::of(&case, &ran).is_none_or(|mut passes| {
            passes.limits.prefills().iter().all(|pass| passes.dies(pass, left).is_none())
        });
        let need = ran.basis.need?.1.value.mid;
        if need <= left && served {
            return Some(SmallerChunk { tokens: chunk, need });
        }
    }
    None
}
