//! A pool that does not hold one request of the model's full context. Where the user asked for that context, it is more
//! than a remark (`rules/sglang/pool_full.rs`).

use plimsoll_core::units::group_thousands;
use plimsoll_ingest::launch::EngineLaunch;
use plimsoll_ingest::log::Server;

use crate::study::Study;
use crate::{Case, Cause, Confidence, Direction, Finding, Level, Lever, Move, Phase};

/// Tokens of the pool that a prompt may not use.
///
/// Source: SGLang `get_max_req_len`: the pool less one, and five less for the input.
const KEPT: u64 = 6;

pub(super) fn find(study: &Study<'_>) -> Option<Finding> {
    // vLLM refuses to start with such a pool.
    if study.case.server() != Some(Server::Sglang) || asked_for(study.case) {
        return None;
    }
    let rank = study.rank()?;
    let tokens = rank.pool.and_then(|pool| pool.tokens);
    let (tokens, context) = (tokens?, rank.limits.context?);
    if tokens >= context {
        return None;
    }
    let longest = tokens.saturating_sub(KEPT);
    let headline = format!(
        "the pool holds {} tokens, the context is {}: prompts above {} tokens are refused",
        group_thousands(tokens),
        group_thousands(context),
        group_thousands(longest),
    );
    // With free memory known there is more to say of the server than this.
    let weight = if rank.left.is_some() { 10 } else { 50 };
    let mut finding = Finding::new("pool-too-small", Cause::PoolTooSmall, Phase::Refused, headline)
        .level(Level::Note)
        .sure(Confidence::Certain, weight)
        .sum(format!("{} − {KEPT} = {}", group_thousands(tokens), group_thousands(longest)))
        .int("pool_tokens", i64::try_from(tokens).unwrap_or(i64::MAX))
        .int("context_tokens", i64::try_from(context).unwrap_or(i64::MAX));
    let lever = rank.what_if.and_then(|what_if| {
        let fraction = what_if.fraction_for_tokens(context)?;
        let at = what_if.at_fraction(fraction);
        let fits = at.left.is_some_and(|left| left.least() > what_if.step_bytes().most());
        fits.then(|| Lever::new(what_if.flag, Move::Raise).to(fraction).gives(at.words()))
    });
    if let Some(lever) = lever {
        finding = finding.fraction(Direction::Raise).set(lever);
    }
    let context = Lever::new("--context-length", Move::Lower)
        .to(longest)
        .gives("clients are told the limit before they send");
    Some(finding.set(context))
}

/// Whether the launch sets the context itself.
fn asked_for(case: &Case) -> bool {
    let printed = case.arg("context_length").is_some_and(|value| value != "None");
    let given = case.launch.as_ref().is_some_and(|launch| match &launch.engine {
        EngineLaunch::Sglang(args) => args.context_length.is_some(),
        EngineLaunch::Vllm(_) => false,
    });
    printed || given
}
