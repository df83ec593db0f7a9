//! What a log says of one start, put into the order of the ranks, every figure with its line.

use crate::Case;
use plimsoll_ingest::log::{Amount, Event, Rank, Sglang, Vllm};
use std::collections::{BTreeMap, BTreeSet};

/// A figure and where it stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct At<T> {
    /// The figure.
    pub value: T,
    /// Index of the file.
    pub file: u16,
    /// Line, from 1.
    pub line: u64,
}

impl<T> At<T> {
    fn new(event: &Event, value: T) -> Self {
        Self { value, file: event.file, line: event.line }
    }

    /// `line 12`, for the first file; `line 12 of file 2` for others.
    pub(crate) fn place(&self) -> String {
        match self.file {
            0 => format!("line {}", self.line),
            file => format!("line {} of file {}", self.line, u32::from(file) + 1),
        }
    }
}

/// The figure of each rank that printed it, by the rank's index (stage × tensor-parallel size + rank).
/// Lines without a tag stand at index 0.
pub(crate) type ByRank<T> = BTreeMap<usize, At<T>>;

/// Start-up figures of the last start in a log.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Logged {
    /// SGLang: free before loading.
    pub before: ByRank<Amount>,
    /// SGLang: free when the pool was sized.
    pub after: ByRank<Amount>,
    /// SGLang: free after the pools.
    pub after_pool: ByRank<Amount>,
    /// SGLang: free at the end of the start.
    pub after_graphs: ByRank<Amount>,
    /// Token slots of the pool.
    pub tokens: Option<At<u64>>,
    /// Prefill chunk in force.
    pub chunk: Option<At<i64>>,
    /// Longest sequence.
    pub context: Option<At<u64>>,
    /// K and V, or the whole of a latent pool, of each rank.
    pub kv: ByRank<Amount>,
    /// Tokens of that pool of each rank.
    pub kv_tokens: ByRank<u64>,
    /// vLLM: the longest request that would fit, as a refused start says.
    pub longest: Option<At<u64>>,
    /// vLLM: what a request of the longest length needs, and that length, as a refused start says.
    pub request: Option<(Amount, u64)>,
    /// vLLM: requests of the longest length that fit.
    pub concurrency: Option<At<f64>>,
    /// Requests that may run.
    pub running: Option<At<u64>>,
    /// Blocks on the device (vLLM V0).
    pub blocks: Option<At<u64>>,
    /// Weights (vLLM, and SGLang where free memory is not printed).
    pub weights: ByRank<Amount>,
    /// vLLM: total of the device.
    pub total: Option<At<Amount>>,
    /// vLLM: free at its first snapshot.
    pub free_at_start: Option<At<Amount>>,
    /// vLLM: the fraction in force.
    pub utilization: Option<At<f64>>,
    /// vLLM: growth outside of PyTorch.
    pub non_torch: Option<At<Amount>>,
    /// vLLM: peak of the profile run.
    pub activation_peak: Option<At<Amount>>,
    /// vLLM: estimate of the graphs.
    pub graph_estimate: Option<At<Amount>>,
    /// vLLM: for the cache.
    pub available_kv: ByRank<Amount>,
    /// What capture took.
    pub graphs: ByRank<Amount>,
    /// MLX: the line of its pool.
    pub mlx: Option<At<MlxLine>>,
}

/// The pool line of the MLX backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct MlxLine {
    /// Memory of the system that was available.
    pub available: Option<Amount>,
    /// Slots.
    pub slots: Option<u64>,
}

impl Logged {
    /// Reads the events of the last start; `tp` places pipeline stages. Of several replicas in one log only
    /// that of `rank` counts, else the first.
    pub(crate) fn of(case: &Case, tp: u32, rank: Option<Rank>) -> Self {
        let mut logged = Self::default();
        let mut sized = BTreeSet::new();
        let replica = replica(case, tp, rank);
        let ours = |event: &Event| {
            replica.is_none() || event.rank.dp.is_none() || event.rank.dp == replica
        };
        for (event, line) in case.sglang().filter(|(event, _)| ours(event)) {
            logged.sglang(event, line, index(event.rank, tp), &mut sized);
        }
        for (event, line) in case.vllm().filter(|(event, _)| ours(event)) {
            logged.vllm(event, line, index(event.rank, tp));
        }
        logged
    }

    fn sglang(&mut self, event: &Event, line: &Sglang, rank: usize, sized: &mut BTreeSet<usize>) {
        match line {
            Sglang::LoadBegin { avail } => first(&mut self.before, event, rank, *avail),
            // What is loaded before the pool is sized counts; a draft that is loaded later does not.
            Sglang::LoadEnd { avail, usage, .. } if !sized.contains(&rank) => {
                if let Some(avail) = avail {
                    last(&mut self.after, event, rank, *avail);
                    if let Some(usage) = usage {
                        // A log that begins with this line: what was free before follows from it.
                        first(&mut self.before, event, rank, *avail + *usage);
                    }
                } else if let Some(usage) = usage {
                    first(&mut self.weights, event, rank, *usage);
                }
            }
            Sglang::KvAllocated { label: None, tokens, k: Some(k), v, .. } => {
                sized.insert(rank);
                first(&mut self.kv, event, rank, v.map_or(*k, |v| *k + v));
                if let Some(tokens) = tokens {
                    first(&mut self.kv_tokens, event, rank, *tokens);
                    self.tokens = self.tokens.or(Some(At::new(event, *tokens)));
                }
            }
            Sglang::KvAllocated { .. }
            | Sglang::MambaAllocated { .. }
            | Sglang::WindowPool { .. } => {
                sized.insert(rank);
            }
            Sglang::PoolEnd { avail } => {
                sized.insert(rank);
                last(&mut self.after_pool, event, rank, *avail);
            }
            Sglang::CaptureEnd { usage, avail, .. } => {
                if let Some(avail) = avail {
                    last(&mut self.after_graphs, event, rank, *avail);
                }
                if let Some(usage) = usage {
                    last(&mut self.graphs, event, rank, *usage);
                }
            }
            Sglang::Summary {
                max_total_num_tokens,
                chunked_prefill_size,
                max_running_requests,
                context_len,
                available_gpu_mem,
                ..
            } => {
                self.context = context_len.map(|n| At::new(event, n));
                self.tokens = Some(At::new(event, *max_total_num_tokens));
                self.chunk = chunked_prefill_size.map(|chunk| At::new(event, chunk));
                self.running = max_running_requests.map(|n| At::new(event, n));
                if let Some(avail) = available_gpu_mem {
                    last(&mut self.after_graphs, event, rank, *avail);
                }
            }
            Sglang::MlxPool { available, slots, .. } => {
                let line = MlxLine { available: *available, slots: *slots };
                self.mlx = Some(At::new(event, line));
                self.tokens = slots.map(|slots| At::new(event, slots)).or(self.tokens);
            }
            _ => {}
        }
    }

    fn vllm(&mut self, event: &Event, line: &Vllm, rank: usize) {
        let at = |value: &Amount| At::new(event, *value);
        match line {
            Vllm::LoadEnd { weights } => last(&mut self.weights, event, rank, *weights),
            Vllm::FreeAtStart { free, total, utilization, .. } => {
                self.utilization = utilization.map(|fraction| At::new(event, fraction));
                self.free_at_start = Some(at(free));
                self.total = Some(at(total));
            }
            Vllm::Budget { total, utilization, .. } => {
                self.total = Some(at(total));
                self.utilization = Some(At::new(event, *utilization));
            }
            Vllm::Profile {
                weights, non_torch, activation_peak, kv, peak_torch, total, ..
            } => {
                self.total = total.as_ref().map(at).or(self.total);
                if let Some(weights) = weights {
                    last(&mut self.weights, event, rank, *weights);
                }
                self.non_torch = non_torch.as_ref().map(at).or(self.non_torch);
                self.activation_peak = activation_peak.as_ref().map(at).or(self.activation_peak);
                // The oldest form prints weights and activations together.
                if let (None, Some(peak), Some(weights)) =
                    (activation_peak, peak_torch, self.weights.get(&rank))
                {
                    self.activation_peak = Some(At::new(event, *peak - weights.value));
                }
                if let Some(kv) = kv {
                    last(&mut self.available_kv, event, rank, *kv);
                }
            }
            Vllm::Usage { activation_peak, non_torch, free, total, .. } => {
                self.total = self.total.or(total.as_ref().map(at));
                self.free_at_start = self.free_at_start.or(free.as_ref().map(at));
                self.activation_peak = activation_peak.as_ref().map(at).or(self.activation_peak);
                self.non_torch = non_torch.as_ref().map(at).or(self.non_torch);
            }
            Vllm::OneRequestTooLong { available, estimated, needed, max_model_len } => {
                self.request = needed.zip(*max_model_len).filter(|(_, length)| *length > 0);
                if let Some(available) = available {
                    first(&mut self.available_kv, event, rank, *available);
                }
                self.longest = estimated.map(|tokens| At::new(event, tokens));
            }
            Vllm::LongerThanPool { tokens, .. } => self.longest = Some(At::new(event, *tokens)),
            Vllm::AvailableKv { amount } => last(&mut self.available_kv, event, rank, *amount),
            Vllm::KvTokens { tokens, .. } => self.tokens = Some(At::new(event, *tokens)),
            Vllm::Concurrency { tokens, times } => {
                self.context = Some(At::new(event, *tokens));
                self.concurrency = Some(At::new(event, *times));
            }
            Vllm::Blocks { gpu, .. } => self.blocks = Some(At::new(event, *gpu)),
            Vllm::GraphEstimate { amount } => self.graph_estimate = Some(at(amount)),
            Vllm::CaptureEnd { took: Some(took) } => last(&mut self.graphs, event, rank, *took),
            _ => {}
        }
    }
}

/// The index of a rank; workers that are numbered without saying by what are taken in their order.
pub(crate) fn index(rank: Rank, tp: u32) -> usize {
    let of_stage = rank.tp.or(rank.worker).or(rank.ep).unwrap_or(0);
    let index = rank.pp.unwrap_or(0).saturating_mul(tp.max(1)).saturating_add(of_stage);
    usize::try_from(index).unwrap_or(usize::MAX)
}

/// The replica whose lines count, where several replicas of the same ranks write into one log. Under
/// attention data parallelism every rank has a replica number of its own, and all count.
fn replica(case: &Case, tp: u32, rank: Option<Rank>) -> Option<u32> {
    let mut seen: BTreeMap<usize, u32> = BTreeMap::new();
    let mut several = false;
    for event in case.events() {
        if let Some(dp) = event.rank.dp {
            several |= *seen.entry(index(event.rank, tp)).or_insert(dp) != dp;
        }
    }
    let first = || seen.values().copied().min();
    several.then(|| rank.and_then(|rank| rank.dp).or_else(first)).flatten()
}

fn first<T>(ranks: &mut ByRank<T>, event: &Event, rank: usize, value: T) {
    ranks.entry(rank).or_insert_with(|| At::new(event, value));
}

fn last<T>(ranks: &mut ByRank<T>, event: &Event, rank: usize, value: T) {
    ranks.insert(rank, At::new(event, value));
}
