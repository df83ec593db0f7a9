//! What vLLM's passes allocate: layers, logits, sampler, by release and settings.
//!
//! Ids, positions, block tables and the index of attention live in buffers that the start made. A pass of at
//! most the largest captured size runs inside its graph's pool, prompts too; what it allocates outside is
//! logits and the sampler. The profile run's memory was given back before the pool was sized, so that
//! passes take it anew, and keep it in the allocator's cache.

use super::serving::{Pass, PassTapes, Sampling, SamplingChoice};
use crate::{
    estimate::{activation::Instant, shape::ShapeInputs, vllm_profile::eager_layer_peak},
    sched::Mode,
    tape::{self, Choice, OutputLogprobs, PrefillChunk, SamplerBatch, Setup, Tape, TapeModel},
    units::Bytes,
};
use std::{collections::BTreeMap, rc::Rc};

/// How top-k and top-p are applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TopKTopP {
    /// In a fused kernel.
    Fused,
    /// After a sort of the vocabulary.
    Sorted,
}

/// What the passes of a server depend on.
#[derive(Clone, Debug)]
pub struct VllmPassInputs {
    /// Shape of the whole model.
    pub shape: ShapeInputs,
    /// Tensor-parallel ranks.
    pub tp: u64,
    /// The model for tapes and what runs it; `None` where the layers' code was not recorded: the closed
    /// form of the profile run stands in for it.
    pub recorded: Option<(TapeModel, Setup)>,
    /// Most tokens of a captured pass; 0 without graphs.
    pub captured: u64,
    /// Who samples.
    pub top_k_top_p: TopKTopP,
}

/// Tapes that are kept: a server repeats its decode batches.
const KEPT: usize = 128;

/// vLLM's passes on one rank.
pub struct VllmPasses {
    inputs: VllmPassInputs,
    kept: BTreeMap<Pass, Vec<Rc<Tape>>>,
}

impl VllmPasses {
    /// Passes of one server.
    #[must_use]
    pub const fn new(inputs: VllmPassInputs) -> Self {
        Self { inputs, kept: BTreeMap::new() }
    }

    fn make(&self, pass: &Pass) -> Vec<Rc<Tape>> {
        let penalised = pass.sampling.penalties && pass.sampled > 0;
        let penalties = penalised.then(|| tape::penalties(pass.requests, self.inputs.shape.vocab));
        let layers = self.layers(pass);
        layers.into_iter().chain(penalties).chain(self.sampler(pass)).map(Rc::new).collect()
    }

    /// Layers outside graphs, and logits of the last row of each request.
    ///
    /// Source: vLLM V1 `GPUModelRunner.execute_model`, `CudagraphDispatcher`.
    fn layers(&self, pass: &Pass) -> Option<Tape> {
        let captured = pass.tokens <= self.inputs.captured;
        let Some((model, setup)) = &self.inputs.recorded else {
            return Some(self.closed_form(pass, captured));
        };
        let chunk = PrefillChunk {
            tokens: pass.tokens,
            requests: pass.requests,
            prefix_tokens: pass.prefix_tokens,
        };
        let tape = match pass.mode {
            _ if captured => tape::logits(model, setup, pass.requests),
            Mode::Decode => tape::decode_batch(model, setup, pass.requests),
            Mode::Prefill | Mode::Mixed => tape::prefill_chunk(model, setup, &chunk),
        };
        tape.ok()
    }

    /// The peak of the pass as one buffer, where no tape is recorded.
    fn closed_form(&self, pass: &Pass, captured: bool) -> Tape {
        let shape = &self.inputs.shape;
        // 16-bit logits and their float32 copy.
        let logits = pass.requests.saturating_mul(shape.vocab).saturating_mul(6);
        let layers = match captured {
            true => Bytes::ZERO,
            false => eager_layer_peak(shape, self.inputs.tp, pass.tokens).value.mid,
        };
        if layers.0 < logits {
            return tape::one_buffer(Bytes(logits), Instant::Logits);
        }
        let instant = if shape.moe.is_some() { Instant::Moe } else { Instant::DenseMlp };
        tape::one_buffer(layers, instant)
    }

    fn sampler(&self, pass: &Pass) -> Option<Tape> {
        if pass.sampled == 0 {
            return None;
        }
        let batch = SamplerBatch {
            rows: pass.requests,
            vocab: self.inputs.shape.vocab,
            choice: self.choice(pass.sampling),
            logprobs: match pass.sampling.output_logprobs {
                true => OutputLogprobs::Top(0),
                false => OutputLogprobs::Absent,
            },
        };
        tape::vllm_sampler(&batch).ok()
    }

    const fn choice(&self, sampling: Sampling) -> Choice {
        match (sampling.choice, self.inputs.top_k_top_p) {
            (SamplingChoice::Greedy, _) => Choice::Greedy,
            // min-p masks logits in place before the draw.
            (SamplingChoice::Temperature | SamplingChoice::MinP, _) => Choice::Temperature,
            (SamplingChoice::TopKTopP, TopKTopP::Fused) => Choice::TopKTopP,
            (SamplingChoice::TopKTopP, TopKTopP::Sorted) => Choice::TorchSort,
        }
    }
}

impl PassTapes for VllmPasses {
    fn repeats(&self, pass: &Pass) -> u64 {
        if pass.mode == Mode::Decode { u64::MAX } else { 0 }
    }

    fn key(&self, pass: &Pass) -> Pass {
        // Inside a graph and in decode passes nothing depends on what the requests hold.
        let fixed = pass.mode == Mode::Decode || pass.tokens <= self.inputs.captured;
        let prefix_tokens = if fixed { 0 } else { pass.prefix_tokens };
        Pass { prefix_tokens, longest: 0, ..*pass }
    }

    fn tapes(&mut self, pass: &Pass) -> Vec<Rc<Tape>> {
        let key = self.key(pass);
        if let Some(kept) = self.kept.get(&key) {
            return kept.clone();
        }
        if self.kept.len() >= KEPT {
            self.kept.clear();
        }
        let made = self.make(&key);
        self.kept.insert(key, made.clone());
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{config, geometry::ModelGeometry};

    fn model() -> ModelGeometry {
        let text = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 2,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
            "max_position_embeddings": 8192, "torch_dtype": "bfloat16"}"#;
        config::parse("llama", text, None).unwrap().geometry
    }

    fn pass(tokens: u64, requests: u64) -> Pass {
        Pass {
            mode: Mode::Prefill,
            tokens,
            requests,
            prefix_tokens: 0,
            longest: tokens,
            sampled: requests,
            logprob_rows: 0,
            sampling: Sampling::default(),
        }
    }

    #[test]
    fn captured_passes_take_logits_alone() {
        let model = model();
        let recorded = TapeModel::from_geometry(&model)
            .ok()
            .map(|tape| (tape, Setup::plain(tape::Code::Vllm019, 1)));
        assert!(recorded.is_some());
        for recorded in [recorded, None] {
            let mut passes = VllmPasses::new(VllmPassInputs {
                shape: ShapeInputs::from_geometry(&model),
                tp: 1,
                recorded,
                captured: 512,
                top_k_top_p: TopKTopP::Fused,
            });
            let mut peak = |tokens| {
                let tapes = passes.tapes(&pass(tokens, 1));
                tapes.iter().map(|tape| tape.peak().bytes.0).max().unwrap()
            };
            // One row of logits in 16 bits and float32, and little beside.
            assert!((6 * 128_256..7 * 128_256).contains(&peak(512)));
            // 2 bytes of 3 widths each of stream and MLP, for each token.
            assert!(peak(513) >= 513 * 2 * 3 * 14_336);
        }
    }
}
