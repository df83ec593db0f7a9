//! Requests one after the other, without a scheduler: prompts by chunks, then token by token. What a server
//! does with a scheduler must give the same tokens.

use super::{
    load::HostModel,
    sample::{Sampled, Sampler, Sampling, SamplingError},
    step::StepError,
};
use plimsoll_core::tape::own::{Outputs, Sequence};

/// Why nothing was generated.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum GenerateError {
    /// A step was refused.
    #[error(transparent)]
    Step(#[from] StepError),
    /// Sampling options.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}

/// What was generated.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Generated {
    /// Tokens, without the one that ended the text.
    pub tokens: Vec<u32>,
    /// Of each token, where logprobs were asked for.
    pub logprobs: Vec<Sampled>,
    /// An id of `ends` was chosen; otherwise the limit was reached.
    pub ended: bool,
}

/// Generates with one model, a request at a time, in the first pages of its pool that are not lent.
#[derive(Debug)]
pub struct Generator<'m> {
    model: &'m mut HostModel,
    /// Tokens of a prompt in one step.
    chunk: usize,
}

impl<'m> Generator<'m> {
    /// With the model's largest step as the chunk.
    #[must_use]
    pub fn new(model: &'m mut HostModel) -> Self {
        let chunk = model.plan().limits.tokens as usize;
        Self { model, chunk }
    }

    /// Up to `limit` tokens after `prompt`, until one of `ends` is chosen.
    ///
    /// # Errors
    /// [`GenerateError`]; a pool or context that is too short is a refused step.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        sampling: Sampling,
        (limit, ends): (usize, &[u32]),
    ) -> Result<Generated, GenerateError> {
        let mut sampler = Sampler::new(sampling, prompt)?;
        let table = self.table(prompt.len() + limit);
        let mut done = 0;
        let mut generated = Generated::default();
        let mut next = None;
        for tokens in prompt.chunks(self.chunk) {
            let before = done;
            done += tokens.len();
            let last = done == prompt.len();
            let outputs = if last { Outputs::Last } else { Outputs::None };
            let sequence = Sequence { tokens, table: &table, before, outputs };
            next = self.model.step(&[sequence])?.row(0).map(|row| sampler.next(row));
        }
        while let Some(sampled) = next.take() {
            let token = sampled.token;
            generated.ended = ends.contains(&token);
            if generated.ended || generated.tokens.len() == limit {
                break;
            }
            generated.tokens.push(token);
            if sampled.logprob.is_some() {
                generated.logprobs.push(sampled);
            }
            if generated.tokens.len() == limit {
                break;
            }
            let (tokens, before, outputs) = (&[token], done, Outputs::Last);
            done += 1;
            let sequence = Sequence { tokens, table: &table, before, outputs };
            next = self.model.step(&[sequence])?.row(0).map(|row| sampler.next(row));
        }
        Ok(generated)
    }

    /// Pages for that many positions; fewer where the pool has fewer, which the steps then refuse.
    fn table(&self, positions: usize) -> Vec<u32> {
        let pool = self.model.pool();
        let pages = pool.cell().pages_for(positions as u64) as usize;
        (0..pool.pages() as u32).filter(|page| pool.is_here(*page)).take(pages).collect()
    }
}
