//! Passes of a planned server, played through torch's caching allocator over what is left: the same
//! tapes that a run under load plays.

use crate::start::{Case, CaseLaunch, Policy, Ran, pass_inputs};
use plimsoll_core::{
    engine::{
        SglangPasses,
        serving::{Pass, PassTapes as _, Sampling, SamplingChoice},
    },
    figure::FigureValue,
    memory::caching_allocator::{
        CachingAllocator, CountingSource, MallocError, OutOfMemory, Setup, StreamId,
    },
    policy::sglang::Resolved,
    sched::Mode,
    units::Bytes,
};

/// A pass that the allocator refuses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Death {
    /// The buffer that is asked for, with its layer.
    pub buffer: String,
    /// What the allocator asks the device for.
    pub requested: Bytes,
    /// What the device has free then.
    pub free: Bytes,
    /// Live buffers of the pass at that moment.
    pub allocated: Bytes,
}

impl Death {
    fn of(buffer: String, error: &OutOfMemory) -> Self {
        Self {
            buffer,
            requested: Bytes(error.segment),
            free: Bytes(error.device_free),
            allocated: Bytes(error.allocated),
        }
    }
}

/// What bounds a server's passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Limits {
    /// Most new tokens of a prefill pass.
    pub(super) chunk: u64,
    /// Longest sequence.
    pub(super) context: u64,
    /// `max_running_requests`.
    pub(super) running: u64,
    /// Tokens of the pool.
    pub(super) pool: u64,
    /// Largest captured decode batch; 0 without graphs.
    pub(super) captured: u64,
}

/// The passes of one server.
pub(super) struct Passes {
    tapes: SglangPasses,
    total: Bytes,
    pub(super) limits: Limits,
}

impl Passes {
    /// The passes of a started SGLang server; `None` where its layers have no recorded tape.
    pub(super) fn of(case: &Case, ran: &Ran) -> Option<Self> {
        let (CaseLaunch::Sglang(args), Policy::Sglang(start)) = (&case.launch, &ran.policy) else {
            return None;
        };
        let resolved = start.resolved()?;
        let model = case.model.geometry()?;
        let limits = limits(ran, resolved)?;
        let mut inputs = pass_inputs(case, args, resolved, model);
        let (tape_model, setup) = inputs.recorded?;
        inputs.recorded = Some((tape_model.shortened(), setup));
        Some(Self { tapes: SglangPasses::new(inputs), total: ran.basis.total.value.mid, limits })
    }

    /// Plays one pass on an allocator that holds nothing yet, over `left` bytes of the device. What it
    /// kept from the start is not counted.
    pub(super) fn dies(&mut self, pass: &Pass, left: Bytes) -> Option<Death> {
        let mut allocator = CachingAllocator::new(Setup::new(self.total.0));
        let mut source = CountingSource::new(left.0);
        for tape in self.tapes.tapes(pass) {
            let stopped = match allocator.play(&mut source, &tape, StreamId(0)) {
                Ok(_) => continue,
                Err(stopped) => stopped,
            };
            let MallocError::OutOfMemory(error) = &stopped.error else { return None };
            return Some(Death::of(stopped.name.to_string(), error));
        }
        None
    }

    /// The least free memory over which the allocator serves every pass, to 1 MiB above.
    pub(super) fn needs(&mut self, passes: &[Pass]) -> Bytes {
        let mut need = Bytes::ZERO;
        for pass in passes {
            if self.dies(pass, need).is_none() {
                continue;
            }
            let (mut dies, mut lives) = (need, self.total);
            while lives.saturating_sub(dies) > Bytes::mib(1) {
                let middle = Bytes(dies.0.midpoint(lives.0));
                if self.dies(pass, middle).is_some() { dies = middle } else { lives = middle }
            }
            need = lives;
        }
        need
    }
}

fn limits(ran: &Ran, resolved: &Resolved) -> Option<Limits> {
    let count = |name: &str| match ran.start.figure(name)?.value {
        FigureValue::Count(count) => Some(count),
        _ => None,
    };
    Some(Limits {
        chunk: resolved.full_chunk(),
        context: resolved.context_len.max(1),
        running: count("max_running_requests")?.max(1),
        pool: count("max_total_num_tokens")?,
        captured: resolved.largest_decode_graph(),
    })
}

/// Prompt tokens of a short request, assumed.
pub(super) const SHORT_PROMPT: u64 = 128;

/// Mean length of the requests that a pool is full of, assumed: decides how many run at once.
const MEAN_REQUEST: u64 = 1024;

/// A prefill pass of `requests` equal prompts, `tokens` new tokens in all after `prefix` cached ones.
pub(super) fn prefill(tokens: u64, requests: u64, prefix: u64) -> Pass {
    let requests = requests.clamp(1, tokens.max(1));
    Pass {
        mode: Mode::Prefill,
        tokens: tokens.max(1),
        requests,
        prefix_tokens: prefix,
        longest: tokens.max(1).div_ceil(requests).saturating_add(prefix / requests),
        sampled: requests,
        logprob_rows: 0,
        sampling: Sampling::default(),
    }
}

/// A decode pass of `requests` requests of the mean length, sampled by temperature.
pub(super) fn decode(requests: u64) -> Pass {
    Pass {
        mode: Mode::Decode,
        tokens: requests,
        requests,
        prefix_tokens: requests.saturating_mul(MEAN_REQUEST - 1),
        longest: MEAN_REQUEST,
        sampled: requests,
        logprob_rows: 0,
        sampling: Sampling { choice: SamplingChoice::Temperature, ..Sampling::default() },
    }
}

impl Limits {
    /// The heaviest prefill passes of plain requests: a full chunk, one at the end of the longest
    /// prompt, and one of short prompts.
    pub(super) fn prefills(&self) -> [Pass; 3] {
        let together = (self.chunk / SHORT_PROMPT).clamp(1, self.running);
        let longest = self.context.min(self.pool).saturating_sub(self.chunk);
        [
            prefill(self.chunk, 1, 0),
            prefill(self.chunk, 1, longest),
            prefill(self.chunk, together, 0),
        ]
    }

    /// Those, and a decode batch of as many requests of the mean length as the pool holds; beyond the
    /// captured batches it runs eagerly.
    pub(super) fn heaviest(&self) -> Vec<Pass> {
        let running = (self.pool / MEAN_REQUEST).clamp(1, self.running);
        let mut passes = self.prefills().to_vec();
        passes.push(decode(running));
        passes
    }
}
