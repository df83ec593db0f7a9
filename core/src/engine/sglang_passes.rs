//! What SGLang's passes allocate: layers, logits, input logprobs, sampler, by release and settings.

use super::serving::{Pass, PassTapes, Sampling, SamplingChoice};
use crate::{
    estimate::{
        activation::{self, Instant, Phase, RunInputs, Step},
        logits::LogprobChunks,
        shape::ShapeInputs,
        workspace::AttentionBackend,
    },
    sched::Mode,
    tape::{
        self, Choice, InputLogprobs, Metadata, OutputLogprobs, PrefillChunk, SamplerBatch, Setup,
        StepInputs, Tape, TapeModel,
    },
};
use std::{collections::BTreeMap, rc::Rc};

/// Where torch's own sort does the sampling, or a fused kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SamplingBackend {
    /// FlashInfer's fused kernels.
    FlashInfer,
    /// PyTorch: `torch.sort` over the vocabulary.
    Pytorch,
}

/// What the passes of a server depend on.
#[derive(Clone, Debug)]
pub struct SglangPassInputs {
    /// Shape of the whole model.
    pub shape: ShapeInputs,
    /// The model for tapes and what runs it; `None` where the layers' code was not recorded: the closed
    /// form stands in for it.
    pub recorded: Option<(TapeModel, Setup)>,
    /// Release and kernels.
    pub run: RunInputs,
    /// Largest batch of a decode graph; 0 without graphs.
    pub captured_decode: u64,
    /// Most tokens of a prefill graph; 0 without.
    pub captured_prefill: u64,
    /// Who samples.
    pub sampling: SamplingBackend,
    /// Attention backend, whose index tensors every pass makes.
    pub backend: AttentionBackend,
    /// `page_size`, tokens.
    pub page_size: u64,
    /// Whether input logprobs are made in chunks where the release leaves it to a switch.
    pub logprob_chunks: LogprobChunks,
}

/// Tapes that are kept: a server repeats its decode batches.
const KEPT: usize = 128;

/// SGLang's passes on one rank.
pub struct SglangPasses {
    inputs: SglangPassInputs,
    kept: BTreeMap<Pass, Vec<Rc<Tape>>>,
}

impl SglangPasses {
    /// Passes of one server.
    #[must_use]
    pub const fn new(inputs: SglangPassInputs) -> Self {
        Self { inputs, kept: BTreeMap::new() }
    }

    fn make(&self, pass: &Pass) -> Vec<Rc<Tape>> {
        let layers = match pass.mode {
            Mode::Decode => self.decode(pass),
            Mode::Prefill | Mode::Mixed => self.prefill(pass),
        };
        let penalised = pass.sampling.penalties && pass.sampled > 0;
        let penalties = penalised.then(|| tape::penalties(pass.requests, self.inputs.shape.vocab));
        let sampler = self.sampler(pass);
        layers.into_iter().chain(penalties).chain(sampler).map(Rc::new).collect()
    }

    /// Ids, positions, slots and the attention backend's index; they live through the pass. `None` for a pass
    /// of nothing.
    fn metadata(&self, pass: &Pass) -> Option<Rc<Tape>> {
        tape::metadata(&self.batch(pass)).ok().map(Rc::new)
    }

    fn batch(&self, pass: &Pass) -> Metadata {
        let captured = pass.mode == Mode::Decode && pass.requests <= self.inputs.captured_decode;
        Metadata {
            backend: self.inputs.backend,
            tokens: pass.tokens,
            requests: pass.requests,
            prefix_tokens: pass.prefix_tokens,
            longest: pass.longest,
            page_size: self.inputs.page_size,
            host_moved: 0,
            inputs: if captured { StepInputs::Static } else { StepInputs::New },
        }
    }

    /// Layers and logits of a decode batch; nothing inside a graph, whose memory is paid at the start.
    fn decode(&self, pass: &Pass) -> Option<Tape> {
        if pass.requests <= self.inputs.captured_decode {
            return None;
        }
        match &self.inputs.recorded {
            Some((model, setup)) => tape::decode_batch(model, setup, pass.requests).ok(),
            None => self.closed_form(pass, Phase::Decode, |_| true),
        }
    }

    fn prefill(&self, pass: &Pass) -> Option<Tape> {
        // Input logprobs and mixed batches run eagerly also where prefill graphs exist.
        let eager = pass.logprob_rows > 0 || pass.mode == Mode::Mixed;
        let captured = !eager && pass.tokens <= self.inputs.captured_prefill;
        let Some((model, setup)) = &self.inputs.recorded else {
            let outside = |instant: Instant| !captured || instant.is_outside_prefill_graphs();
            return self.closed_form(pass, Phase::Prefill, outside);
        };
        if captured {
            let over_prefix = pass.prefix_tokens > 0;
            return match over_prefix {
                true => self.closed_form(pass, Phase::Prefill, Instant::is_outside_prefill_graphs),
                false => tape::logits(model, setup, pass.requests).ok(),
            };
        }
        let chunk = PrefillChunk {
            tokens: pass.tokens,
            requests: pass.requests,
            prefix_tokens: pass.prefix_tokens,
        };
        if pass.logprob_rows == 0 {
            return tape::prefill_chunk(model, setup, &chunk).ok();
        }
        let last = pass.tokens.saturating_sub(pass.requests);
        let want = InputLogprobs {
            rows: pass.logprob_rows,
            sample_rows: (last..pass.tokens).collect(),
            top_logprobs: 0,
            chunks: self.inputs.logprob_chunks,
        };
        tape::input_logprobs(model, setup, &chunk, &want).ok()
    }

    /// The peak of the pass as one buffer, where no tape is recorded.
    fn closed_form(
        &self,
        pass: &Pass,
        phase: Phase,
        counts: impl Fn(Instant) -> bool,
    ) -> Option<Tape> {
        let step = Step {
            phase,
            tokens: pass.tokens,
            prefix_tokens: pass.prefix_tokens,
            logits_rows: pass.requests,
        };
        let instants = activation::instants(&self.inputs.shape, &self.inputs.run, &step);
        let peak =
            instants.into_iter().filter(|peak| counts(peak.instant)).reduce(|best, next| {
                if next.figure.value.mid > best.figure.value.mid { next } else { best }
            })?;
        Some(tape::one_buffer(peak.figure.value.mid, peak.instant))
    }

    fn sampler(&self, pass: &Pass) -> Option<Tape> {
        let (_, setup) = self.inputs.recorded.as_ref()?;
        if pass.sampled == 0 {
            return None;
        }
        let batch = SamplerBatch {
            rows: pass.requests,
            vocab: self.inputs.shape.vocab,
            choice: choice(pass.sampling, self.inputs.sampling),
            logprobs: match pass.sampling.output_logprobs {
                true => OutputLogprobs::Top(0),
                false => OutputLogprobs::Absent,
            },
        };
        tape::sampler(setup.code, &batch).ok()
    }
}

impl PassTapes for SglangPasses {
    fn tapes(&mut self, pass: &Pass) -> Vec<Rc<Tape>> {
        let key = without_index(pass);
        let mut tapes: Vec<_> = self.metadata(pass).into_iter().collect();
        if let Some(kept) = self.kept.get(&key) {
            tapes.extend_from_slice(kept);
            return tapes;
        }
        if self.kept.len() >= KEPT {
            self.kept.clear();
        }
        let made = self.make(&key);
        tapes.extend_from_slice(&made);
        self.kept.insert(key, made);
        tapes
    }

    fn key(&self, pass: &Pass) -> Pass {
        match self.batch(pass).inputs {
            StepInputs::Static => without_index(pass),
            StepInputs::New if self.inputs.backend.has_page_table() => *pass,
            StepInputs::New => Pass { longest: 0, ..*pass },
        }
    }

    fn repeats(&self, pass: &Pass) -> u64 {
        self.batch(pass).repeats()
    }
}

/// The pass without what only the index of the keys depends on.
fn without_index(pass: &Pass) -> Pass {
    match pass.mode {
        // A decode pass does not depend on what its requests hold.
        Mode::Decode => Pass { prefix_tokens: 0, longest: 0, ..*pass },
        Mode::Prefill | Mode::Mixed => Pass { longest: 0, ..*pass },
    }
}

const fn choice(sampling: Sampling, backend: SamplingBackend) -> Choice {
    match (sampling.choice, backend) {
        (SamplingChoice::Greedy, _) => Choice::Greedy,
        (SamplingChoice::Temperature, _) => Choice::Temperature,
        (SamplingChoice::TopKTopP, SamplingBackend::FlashInfer) => Choice::TopKTopP,
        (SamplingChoice::TopKTopP, SamplingBackend::Pytorch) => Choice::TorchSort,
        (SamplingChoice::MinP, SamplingBackend::FlashInfer) => Choice::MinP,
        (SamplingChoice::MinP, SamplingBackend::Pytorch) => Choice::TorchSort,
    }
}
