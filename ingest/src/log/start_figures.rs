//! Start-up figures of a server log: a view of a [`Log`], just what `plan` needs to replace estimates by
//! measurements.
//!
//! Figures of several ranks are reduced as the engines reduce them: the smallest free memory.

use plimsoll_core::units::Bytes;

use super::{Amount, Event, Kind, Log, Sglang, Vllm};

/// A figure with the line it was read from (1-based).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Seen<T> {
    /// The value.
    pub value: T,
    /// Line of the log.
    pub line: usize,
}

/// What a log says about memory at start-up. GiB figures keep their printed rounding: two decimals
/// stand for an interval of ±0.005 GiB.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct LogFigures {
    /// SGLang: smallest `Load weight begin. avail mem`.
    pub free_before_load: Option<Seen<Bytes>>,
    /// SGLang: smallest `Load weight end. … avail mem`.
    pub free_after_load: Option<Seen<Bytes>>,
    /// Largest weights figure: SGLang `mem usage`, vLLM `Model loading took`.
    pub weights: Option<Seen<Bytes>>,
    /// SGLang: smallest `Memory pool end. avail mem`.
    pub free_after_pool: Option<Seen<Bytes>>,
    /// SGLang: smallest `Capture … end … avail mem`, the last phase captured.
    pub free_after_graphs: Option<Seen<Bytes>>,
    /// SGLang `max_total_num_tokens=`, vLLM `GPU KV cache size`.
    pub pool_tokens: Option<Seen<u64>>,
    /// vLLM: smallest `Available KV cache memory`.
    pub available_kv: Option<Seen<Bytes>>,
    /// vLLM: `Graph capturing finished … took`.
    pub graphs: Option<Seen<Bytes>>,
}

impl LogFigures {
    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The start-up figures of a text: see [`LogFigures::of`].
#[must_use]
pub fn start_figures(text: &str) -> LogFigures {
    LogFigures::of(&super::read_text(text))
}

impl LogFigures {
    /// The start-up figures of the last start in a log that printed any.
    #[must_use]
    pub fn of(log: &Log) -> Self {
        let mut figures = Self::default();
        let mut start = 0;
        for event in &log.events {
            if event.start > start && sizes(&event.kind) {
                figures = Self::default();
                start = event.start;
            }
            if event.start == start {
                figures.take(event);
            }
        }
        figures
    }

    fn take(&mut self, event: &Event) {
        let line = usize::try_from(event.line).unwrap_or(usize::MAX);
        let seen = |amount: Option<Amount>| {
            let bytes = u64::try_from(amount?.bytes).ok()?;
            Some(Seen { value: Bytes(bytes), line })
        };
        match &event.kind {
            Kind::Sglang(Sglang::LoadBegin { avail }) => {
                keep_least(&mut self.free_before_load, seen(Some(*avail)));
            }
            Kind::Sglang(Sglang::LoadEnd { avail, usage, .. }) => {
                keep_least(&mut self.free_after_load, seen(*avail));
                keep_most(&mut self.weights, seen(*usage));
            }
            Kind::Sglang(Sglang::PoolEnd { avail }) => {
                keep_least(&mut self.free_after_pool, seen(Some(*avail)));
            }
            Kind::Sglang(Sglang::CaptureEnd { avail, .. }) => {
                keep_least(&mut self.free_after_graphs, seen(*avail));
            }
            Kind::Sglang(Sglang::Summary { max_total_num_tokens, .. }) => {
                self.pool_tokens = Some(Seen { value: *max_total_num_tokens, line });
            }
            Kind::Vllm(Vllm::LoadEnd { weights }) => {
                keep_most(&mut self.weights, seen(Some(*weights)));
            }
            Kind::Vllm(Vllm::AvailableKv { amount }) => {
                keep_least(&mut self.available_kv, seen(Some(*amount)));
            }
            Kind::Vllm(Vllm::KvTokens { tokens, .. }) => {
                self.pool_tokens = Some(Seen { value: *tokens, line });
            }
            Kind::Vllm(Vllm::CaptureEnd { took }) => keep_most(&mut self.graphs, seen(*took)),
            _ => {}
        }
    }
}

/// Whether the line belongs to the sizing of a start: it makes the figures of an earlier one old.
fn sizes(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Sglang(
            Sglang::LoadBegin { .. }
                | Sglang::LoadEnd { .. }
                | Sglang::PoolEnd { .. }
                | Sglang::Summary { .. }
        ) | Kind::Vllm(Vllm::LoadEnd { .. } | Vllm::AvailableKv { .. } | Vllm::KvTokens { .. })
    )
}

fn keep_least(slot: &mut Option<Seen<Bytes>>, found: Option<Seen<Bytes>>) {
    if let Some(found) = found
        && slot.is_none_or(|old| found.value < old.value)
    {
        *slot = Some(found);
    }
}

fn keep_most(slot: &mut Option<Seen<Bytes>>, found: Option<Seen<Bytes>>) {
    if let Some(found) = found
        && slot.is_none_or(|old| found.value > old.value)
    {
        *slot = Some(found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_rank_decides_and_a_new_start_replaces_the_old() {
        let log = "\
[TP1] Load weight begin. avail mem=94.10 GB
[TP0] Load weight begin. avail mem=94.04 GB
[TP0] Load weight end. type=A, dtype=torch.bfloat16, avail mem=21.71 GB, mem usage=72.33 GB.
[TP0] Memory pool end. avail mem=4.55 GB
[TP0] Capture cuda graph end. Time elapsed: 14.40 s. mem usage=3.73 GB. avail mem=0.82 GB.
[TP0] max_total_num_tokens=231120, chunked_prefill_size=8192, max_prefill_tokens=16384
";
        let figures = start_figures(log);
        assert_eq!(figures.free_before_load.unwrap().value, Bytes::from_gib_f64(94.04));
        assert_eq!(figures.weights.unwrap().value, Bytes::from_gib_f64(72.33));
        assert_eq!(figures.free_after_graphs.unwrap().value, Bytes::from_gib_f64(0.82));
        assert_eq!(figures.pool_tokens.unwrap(), Seen { value: 231_120, line: 6 });
        let twice = format!("{log}[TP0] Load weight begin. avail mem=90.00 GB\n");
        assert_eq!(start_figures(&twice).pool_tokens, None);
    }

    #[test]
    fn vllm_lines_are_read() {
        let log = "\
INFO Model loading took 14.96 GiB memory and 3.1 seconds
INFO Available KV cache memory: 53.29 GiB
INFO GPU KV cache size: 436,544 tokens
INFO Graph capturing finished in 20 secs, took 0.54 GiB
";
        let figures = start_figures(log);
        assert_eq!(figures.available_kv.unwrap().value, Bytes::from_gib_f64(53.29));
        assert_eq!(figures.pool_tokens.unwrap().value, 436_544);
        assert_eq!(figures.graphs.unwrap().value, Bytes::from_gib_f64(0.54));
    }
}
