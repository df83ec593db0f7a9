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
