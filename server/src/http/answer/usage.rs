//! Tokens used, as the interface tells them.

use serde::Serialize;

use super::{Reply, progress::Progress};

/// Tokens of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: Details,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
struct Details {
    cached_tokens: u64,
}

impl Usage {
    /// Of all answers, as far as they are. A prompt counts once, however many answers it has; what was cached
    /// of it is told by its first answer.
    pub(super) fn of(reply: &Reply, progress: &[Progress]) -> Self {
        let prompt_tokens = reply.prompts.iter().map(|prompt| prompt.ids.len() as u64).sum();
        let firsts = progress.iter().step_by(reply.n.max(1));
        let cached_tokens = firsts.filter_map(|one| one.used).map(|used| used.cached).sum();
        let completion_tokens =
            progress.iter().map(|one| completion(reply, one)).fold(0, u64::saturating_add);
        let details = Details { cached_tokens };
        Self::new(prompt_tokens, completion_tokens, details)
    }

    /// Of one answer.
    pub(super) fn one(reply: &Reply, choice: usize, progress: &Progress) -> Self {
        let cached_tokens = progress.used.map_or(0, |used| used.cached);
        let prompt = reply.prompt_tokens(choice);
        Self::new(prompt, completion(reply, progress), Details { cached_tokens })
    }

    fn new(prompt_tokens: u64, completion_tokens: u64, prompt_tokens_details: Details) -> Self {
        let total_tokens = prompt_tokens.saturating_add(completion_tokens);
        Self { prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details }
    }

    pub(super) const fn prompt(&self) -> u64 {
        self.prompt_tokens
    }

    pub(super) const fn completion(&self) -> u64 {
        self.completion_tokens
    }

    pub(super) const fn cached(&self) -> u64 {
        self.prompt_tokens_details.cached_tokens
    }
}

fn completion(reply: &Reply, progress: &Progress) -> u64 {
    if reply.style.silent {
        return 0;
    }
    progress.used.map_or(progress.ids.len() as u64, |used| used.completion)
}
