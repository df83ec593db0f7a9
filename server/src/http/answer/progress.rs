//! How far one answer is.

use std::time::Instant;

use crate::{
    engine::{Ended, TokenUse},
    http::metrics::Metrics,
};

/// How far one answer is.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    /// Whether its beginning was written.
    pub(super) begun: bool,
    /// Characters of text that were written, the repeated prompt among them.
    pub(super) characters: usize,
    /// Ids so far.
    pub(super) ids: Vec<u32>,
    /// Text so far, where the form repeats it.
    pub(super) text: String,
    /// What it took, once it is over.
    pub(super) used: Option<TokenUse>,
    /// When its last token came.
    last: Option<Instant>,
}

impl Progress {
    /// A token came.
    pub(super) fn token(&mut self, id: u32, arrived: Instant, metrics: &Metrics) {
        let now = Instant::now();
        match self.last.replace(now) {
            None => metrics.first_token(now.duration_since(arrived)),
            Some(last) => metrics.next_token(now.duration_since(last)),
        }
        self.ids.push(id);
    }

    /// It is over.
    pub(super) fn end(&mut self, ended: &Ended, arrived: Instant, metrics: &Metrics) {
        metrics.answered(arrived.elapsed());
        self.used = Some(ended.tokens);
    }
}
