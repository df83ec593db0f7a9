//! Speculative decoding as far as sizes depend on it: algorithm, draft tokens, request limit.

use super::{
    args::ServerArgs,
    facts::ModelFacts,
    version::Version,
    whys::{assumed, computed},
};
use crate::figure::Why;

/// Whose KV the algorithm keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DraftKind {
    /// EAGLE, EAGLE3, NEXTN or STANDALONE: a draft model with its own KV.
    Model,
    /// NGRAM: no draft model.
    Ngram,
    /// DFLASH and its family: a block draft whose own geometry is charged.
    Block,
}

/// A resolved speculative setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Speculation {
    /// As given, upper case (`NEXTN` is an alias of `EAGLE`).
    pub algorithm: String,
    /// Kind.
    pub kind: DraftKind,
    /// `speculative_num_steps`.
    pub num_steps: u64,
    /// `speculative_eagle_topk`.
    pub topk: u64,
    /// `speculative_num_draft_tokens`.
    pub num_draft_tokens: u64,
}

impl Speculation {
    /// From the flags; unset numbers take the engine's choice by architecture. `None` without an algorithm.
    ///
    /// Source: SGLang `_handle_speculative_decoding` and `auto_choose_speculative_params`. The choice
    /// by architecture changed over releases and is tagged as assumed.
    #[must_use]
    pub fn resolve(v: Version, args: &ServerArgs, model: &ModelFacts) -> Option<(Self, Why)> {
        let algorithm = args.speculative_algorithm.clone()?;
        let kind = match algorithm.as_str() {
            "NGRAM" => DraftKind::Ngram,
            name if name.starts_with("DFLASH") || name.starts_with("DSPARK") => DraftKind::Block,
            _ => DraftKind::Model,
        };
        let shallow = algorithm == "STANDALONE" || model.architecture.starts_with("Deepseek");
        let (steps, topk, draft) = if shallow { (3, 1, 4) } else { (5, 4, 8) };
        let given = args.speculative_num_steps.is_some();
        let num_steps = args
            .speculative_num_steps
            .unwrap_or(if args.speculative_num_draft_tokens.is_some() { 3 } else { steps });
        let topk = args.speculative_eagle_topk.unwrap_or(if given { 1 } else { topk });
        let mut num_draft_tokens = args.speculative_num_draft_tokens.unwrap_or(draft);
        if topk == 1 && given {
            num_draft_tokens = num_steps.saturating_add(1);
        }
        let rule = "flags; top-k 1 makes draft tokens = steps + 1";
        let complete = given && (topk == 1 || args.speculative_num_draft_tokens.is_some());
        let function = "_handle_speculative_decoding";
        let why = if complete { computed(v, function, rule) } else { assumed(v, function, rule) };
        let why = why
            .with("speculative_algorithm", &algorithm)
            .with("speculative_num_steps", num_steps)
            .with("speculative_eagle_topk", topk)
            .with("speculative_num_draft_tokens", num_draft_tokens);
        Some((Self { algorithm, kind, num_steps, topk, num_draft_tokens }, why))
    }

    /// `max_running_requests` that the algorithm sets when the user gave none.
    ///
    /// Source: SGLang `_handle_speculative_decoding`: EAGLE and EAGLE3 from 0.4.6, STANDALONE 0.5.2,
    /// NGRAM 0.5.3, the block drafts 0.5.11.
    #[must_use]
    pub fn default_max_running_requests(&self, v: Version) -> Option<u64> {
        let applies = match (self.kind, self.algorithm.as_str()) {
            (DraftKind::Ngram, _) => v.since(5, 3),
            (DraftKind::Block, _) => v.since(5, 11),
            (DraftKind::Model, "STANDALONE") => v.since(5, 2),
            (DraftKind::Model, _) => true,
        };
        applies.then_some(48)
    }

    /// Token slots that one decode step may take from a request, with pages of `page` tokens.
    ///
    /// Top-k above 1 needs whole pages for each branch (rounded from the worst position in a page).
    /// Source: SGLang decode reserve, read for 0.5.13 to 0.5.23; top-k above 1 was not run.
    #[must_use]
    pub fn decode_reserve(&self, page: u64) -> u64 {
        let draft = u128::from(self.num_draft_tokens);
        let (steps, topk, page) =
            (u128::from(self.num_steps), u128::from(self.topk), u128::from(page.max(1)));
        let branch =
            if topk > 1 && page > 1 { (steps + page - 1).div_ceil(page) * page } else { steps };
        u64::try_from(2 * (branch * topk).max(draft)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(change: impl Fn(&mut ServerArgs)) -> Speculation {
        let v = Version::new(0, 5, 23);
        let mut args = ServerArgs::new(v, "m");
        args.speculative_algorithm = Some("EAGLE".to_owned());
        change(&mut args);
        Speculation::resolve(v, &args, &ModelFacts::text(4096)).unwrap().0
    }

    #[test]
    fn top_k_one_ties_draft_tokens_to_steps() {
        let s = resolve(|a| {
            a.speculative_num_steps = Some(5);
            a.speculative_eagle_topk = Some(1);
            a.speculative_num_draft_tokens = Some(9);
        });
        assert_eq!(s.num_draft_tokens, 6);
        assert_eq!(s.default_max_running_requests(Version::new(0, 4, 6)), Some(48));
    }

    #[test]
    fn branches_take_whole_pages() {
        let s = resolve(|a| {
            a.speculative_num_steps = Some(5);
            a.speculative_eagle_topk = Some(4);
            a.speculative_num_draft_tokens = Some(8);
        });
        assert_eq!(s.decode_reserve(1), 40);
        assert_eq!(s.decode_reserve(64), 2 * 4 * 128);
    }
}
