//! What the passes of SGLang's laptop backend take outside the slots: an assumed model.

use super::serving::{Pass, PassTapes};
use crate::{
    estimate::shape::ShapeInputs,
    sched::Mode,
    tape::{Tape, mlx_pass},
};
use std::rc::Rc;

/// MLX's passes; it captures nothing, so every pass pays.
pub struct MlxPasses {
    shape: ShapeInputs,
}

impl MlxPasses {
    /// Passes of a model.
    #[must_use]
    pub const fn new(shape: ShapeInputs) -> Self {
        Self { shape }
    }
}

impl PassTapes for MlxPasses {
    fn tapes(&mut self, pass: &Pass) -> Vec<Rc<Tape>> {
        let requests = match pass.mode {
            Mode::Decode => pass.requests,
            // A prompt is computed request by request, and leaves one row of logits.
            Mode::Prefill | Mode::Mixed => pass.sampled.max(1),
        };
        let context = pass.prefix_tokens.saturating_add(pass.tokens);
        vec![Rc::new(mlx_pass(&self.shape, pass.tokens, requests, context))]
    }
}
