//! Start-up figures of a server log: just what `plan` needs to replace estimates by measurements.
//!
//! Figures of several ranks are reduced as the engines reduce them: the smallest free memory.

use plimsoll_core::units::Bytes;

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

/// Reads the start-up figures of one server start; a second start in the same log replaces the first.
#[must_use]
pub fn start_figures(text: &str) -> LogFigures {
    let mut figures = LogFigures::default();
    for (at, line) in text.lines().enumerate() {
        read_line(&mut figures, at + 1, line);
    }
    figures
}

fn read_line(figures: &mut LogFigures, line: usize, text: &str) {
    let seen = |value: Bytes| Seen { value, line };
    if text.contains("Load weight begin.") {
        if figures.pool_tokens.is_some() {
            *figures = LogFigures::default();
        }
        keep_least(&mut figures.free_before_load, gib_after(text, "avail mem=").map(seen));
    } else if text.contains("Load weight end.") {
        keep_least(&mut figures.free_after_load, gib_after(text, "avail mem=").map(seen));
        keep_most(&mut figures.weights, gib_after(text, "mem usage=").map(seen));
    } else if text.contains("Memory pool end.") {
        keep_least(&mut figures.free_after_pool, gib_after(text, "avail mem=").map(seen));
    } else if text.contains("Capture ") && text.contains(" end.") {
        keep_least(&mut figures.free_after_graphs, gib_after(text, "avail mem=").map(seen));
    } else if text.contains("Model loading took ") {
        keep_most(&mut figures.weights, gib_after(text, "Model loading took ").map(seen));
    } else if text.contains("Available KV cache memory:") {
        let found = gib_after(text, "Available KV cache memory:").map(seen);
        keep_least(&mut figures.available_kv, found);
    } else if text.contains("Graph capturing finished") {
        keep_most(&mut figures.graphs, gib_after(text, "took ").map(seen));
    }
    let tokens = tokens_after(text, "max_total_num_tokens=")
        .or_else(|| tokens_after(text, "GPU KV cache size: "));
    if let Some(value) = tokens {
        figures.pool_tokens = Some(Seen { value, line });
    }
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

/// The number after `key`, in GiB; both engines print GiB, SGLang calls it GB.
fn gib_after(text: &str, key: &str) -> Option<Bytes> {
    let rest = text.split_once(key)?.1.trim_start();
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
    let value: f64 = rest[..end].trim_end_matches('.').parse().ok()?;
    (value < 1e6).then(|| Bytes::from_gib_f64(value))
}

fn tokens_after(text: &str, key: &str) -> Option<u64> {
    let rest = text.split_once(key)?.1;
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == ',')).unwrap_or(rest.len());
    rest[..end].replace(',', "").parse().ok()
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
