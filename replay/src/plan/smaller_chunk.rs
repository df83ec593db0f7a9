//! The largest smaller prefill chunk that would fit where the chosen one does not.

use super::{
    KilledBy, Plan,
    killed::{self, MixKind},
    passes::Passes,
};
use crate::start::{self, Case, CaseLaunch, Ran};
use plimsoll_core::units::Bytes;

/// A chunk that fits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SmallerChunk {
    /// Tokens; a power of two times 256 or more.
    pub tokens: u64,
    /// What it needs at its peak.
    pub need: Bytes,
    /// The longest prompt that it serves, tokens, where attention over what is cached needs more than
    /// the chunk itself; `None`: all.
    pub prompt_limit: Option<u64>,
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
        let fits = match Passes::of(&case, &ran) {
            Some(mut passes) => served(&mut passes, chunk, left),
            None => unplayed(&ran, chunk, left),
        };
        if fits.is_some() {
            return fits;
        }
    }
    None
}

/// Whether the allocator serves this chunk over `left` bytes: one prompt's, and one of short prompts.
fn served(passes: &mut Passes, tokens: u64, left: Bytes) -> Option<SmallerChunk> {
    let [one, _, together] = passes.limits.prefills();
    if passes.dies(&one, left).is_some() || passes.dies(&together, left).is_some() {
        return None;
    }
    let longer = killed::smallest(passes, left, MixKind::OnePrompt);
    let prompt_limit =
        longer.map(|killed| (killed.tokens + killed.prefix_tokens).saturating_sub(1));
    Some(SmallerChunk { tokens, need: passes.needs(&[one]), prompt_limit })
}

/// The same by the closed form, where no tape is known.
fn unplayed(ran: &Ran, tokens: u64, left: Bytes) -> Option<SmallerChunk> {
    let need = ran.basis.need.as_ref()?.1.value.mid;
    (need <= left).then_some(SmallerChunk { tokens, need, prompt_limit: None })
}
