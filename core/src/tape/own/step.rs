//! What one step is asked for.

/// Which of a sequence's new tokens give logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outputs {
    /// None: a chunk of a prompt that goes on.
    None,
    /// The last: it gives the next token.
    Last,
    /// All of them.
    All,
}

/// New tokens of one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sequence<'a> {
    /// New tokens.
    pub tokens: &'a [u32],
    /// The page of every `page_tokens` positions, at least up to its last new token. The pages of what
    /// comes before hold its keys and values; the positions of the new tokens are no other sequence's in
    /// this step.
    pub table: &'a [u32],
    /// Positions that exist already.
    pub before: usize,
    /// Whose logits are asked for.
    pub outputs: Outputs,
}

impl Sequence<'_> {
    /// Rows of logits that it asks for.
    #[must_use]
    pub const fn output_rows(&self) -> usize {
        match self.outputs {
            Outputs::None => 0,
            Outputs::Last => 1,
            Outputs::All => self.tokens.len(),
        }
    }
}

/// What the sequences of a step are checked against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Positions of the rotary table.
    pub positions: usize,
    /// Positions of a page.
    pub page_tokens: u64,
    /// Pages of the pool.
    pub pages: usize,
    /// Ids of the vocabulary.
    pub vocab: u64,
}

/// A number of a sequence that is out of its range.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} is {value}; allowed: {allowed}")]
pub struct SequenceError {
    /// What.
    pub what: &'static str,
    /// As given.
    pub value: u64,
    /// What would be right.
    pub allowed: String,
}

impl Sequence<'_> {
    /// Checks ids, positions and pages; `is_here` says whether a page is there and not lent.
    ///
    /// # Errors
    /// [`SequenceError`] for the first number out of its range.
    pub fn check(
        &self,
        bounds: &Bounds,
        is_here: impl Fn(u32) -> bool,
    ) -> Result<(), SequenceError> {
        let wrong =
            |what, value: usize, allowed| Err(SequenceError { what, value: value as u64, allowed });
        let new = self.tokens.len();
        if new == 0 {
            return wrong("new tokens", new, "at least 1".to_owned());
        }
        let all = self.before.saturating_add(new);
        if all > bounds.positions {
            return wrong("positions", all, format!("up to {}", bounds.positions));
        }
        let pages = (all as u64).div_ceil(bounds.page_tokens.max(1)) as usize;
        let Some(table) = self.table.get(..pages) else {
            let allowed = format!("{pages} for its {all} positions");
            return wrong("pages", self.table.len(), allowed);
        };
        if let Some(page) = table.iter().find(|page| !is_here(**page)) {
            let (page, pages) = (*page as usize, bounds.pages);
            let allowed = format!("below {pages}{}", if page < pages { ", not lent" } else { "" });
            return wrong("page", page, allowed);
        }
        if let Some(token) = self.tokens.iter().find(|token| u64::from(**token) >= bounds.vocab) {
            return wrong("token", *token as usize, format!("below {}", bounds.vocab));
        }
        Ok(())
    }
}

/// How a device chooses a token from a row of logits by itself.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Draw {
    /// 0: the highest logit, the lowest id of equals.
    pub temperature: f32,
    /// Only the `k` most likely; 0 for all.
    pub top_k: u32,
    /// Of those, only the most likely that together have this part of their sum.
    pub top_p: f32,
    /// Of those, only the ones at least this part as likely as the most likely.
    pub min_p: f32,
    /// The draw, from 0 to below 1, over what is left in the order of ids; unused at temperature 0.
    pub unit: f64,
}

impl Draw {
    /// The highest logit.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, unit: 0.0 };
}
