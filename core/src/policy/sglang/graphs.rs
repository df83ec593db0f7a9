//! Sizes that are captured as CUDA graphs: batch sizes of decode, token counts of prefill.

use super::version::Version;

/// Whether a speculative algorithm runs (the decode list is denser then).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Speculating {
    /// Plain decoding.
    No,
    /// Any algorithm.
    Yes,
}

/// Whether a batch may be padded up to a captured size (`--disable-cuda-graph-padding`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Padding {
    /// The default.
    On,
    /// Every size has its own graph.
    Off,
}

/// What the decode list depends on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DecodeList {
    /// Rules.
    pub version: Version,
    /// Capacity in MiB (lists to 0.5.2 grow with it).
    pub gpu_mem_mib: Option<f64>,
    /// `cuda_graph_max_bs`; `None` only to 0.5.2.
    pub max_bs: Option<u64>,
    /// Speculation.
    pub speculating: Speculating,
    /// `--dp-size`.
    pub dp_size: u32,
    /// Padding.
    pub padding: Padding,
}

/// `from, from + step, …` up to and including `to`.
fn steps(from: u64, to: u64, step: usize) -> impl Iterator<Item = u64> {
    (from..=to).step_by(step)
}

impl DecodeList {
    /// Batch sizes in rising order, before the filter at capture.
    ///
    /// Source: SGLang `get_batch_sizes_to_capture` (to 0.5.2), `_generate_cuda_graph_batch_sizes` and
    /// its successors (0.5.3 to 0.5.23).
    #[must_use]
    pub fn sizes(&self) -> Vec<u64> {
        match self.max_bs {
            Some(max) if self.version.since(5, 3) => self.up_to(max),
            _ => self.by_capacity(),
        }
    }

    fn up_to(&self, max: u64) -> Vec<u64> {
        let v = self.version;
        let mut list: Vec<u64> = match (self.padding, self.speculating) {
            (Padding::Off, _) => (1..=max).collect(),
            (Padding::On, Speculating::No) => [1, 2, 4, 8, 12]
                .into_iter()
                .chain(steps(16, 256, 8))
                .chain(steps(272, 496, 16))
                .chain(steps(512, max, 32))
                .collect(),
            (Padding::On, Speculating::Yes) => {
                let fours = if v.since_post(5, 4, 2) { 64 } else { 60 };
                (1..=8)
                    .chain(steps(10, 32, 2))
                    .chain(steps(40, fours, 4))
                    .chain(steps(72, 256, 8))
                    .chain(steps(272, max, 16))
                    .collect()
            }
        };
        list.retain(|&bs| bs <= max);
        if v.since(5, 10) && list.last() != Some(&max) {
            list.push(max);
        }
        list
    }

    fn by_capacity(&self) -> Vec<u64> {
        let v = self.version;
        let old = !v.since(4, 7);
        let mut list: Vec<u64> = match (self.padding, self.speculating) {
            (Padding::Off, _) => {
                (1..=32).chain(steps(if old { 40 } else { 48 }, 160, 16)).collect()
            }
            (Padding::On, Speculating::No) => {
                [1, 2, 4, 8].into_iter().chain(steps(16, 160, 8)).collect()
            }
            (Padding::On, Speculating::Yes) => {
                let low = (1..=8).chain(steps(10, 32, 2));
                if old {
                    low.chain(steps(40, 160, 16)).collect()
                } else {
                    low.chain(steps(40, 56, 8)).chain(steps(80, 160, 16)).collect()
                }
            }
        };
        let above = |bound: f64| self.gpu_mem_mib.is_some_and(|g| g > bound);
        let (to_256, to_512) = if v.since_post(4, 7, 1) {
            (above(92_160.0), above(160_000.0))
        } else if v.since(4, 7) {
            (above(98_304.0), above(180_000.0))
        } else if v.since_post(4, 6, 2) {
            (above(98_304.0), false)
        } else {
            (above(81_920.0) && self.dp_size == 1, false)
        };
        if to_256 {
            list.extend(steps(160, 256, 8));
        }
        if to_512 {
            list.extend(steps(256, 512, 16));
        }
        if let Some(max) = self.max_bs {
            list.retain(|&bs| bs <= max);
            let top = list.iter().copied().max().unwrap_or(max);
            if v.since_post(4, 6, 4) && top < max {
                list.extend(steps(top, max, 16));
            }
        }
        list.sort_unstable();
        list.dedup();
        list
    }
}

/// Batch sizes of the CPU backend from 0.5.10, where `max` is `torch_compile_max_bs`.
/// Source: SGLang CPU graph list, 0.5.10 to 0.5.23.
#[must_use]
pub fn cpu_sizes(max: u64) -> Vec<u64> {
    let mut list: Vec<u64> = (1..=16)
        .chain(steps(18, 30, 2))
        .chain(steps(32, 80, 4))
        .chain(steps(84, max, 8))
        .chain([max])
        .filter(|&bs| bs <= max)
        .collect();
    list.sort_unstable();
    list.dedup();
    list
}

/// Token counts of the prefill graphs up to `max_tokens`, rising; empty before 0.5.4.
/// Source: SGLang piecewise capture sizes, 0.5.4 to 0.5.23.
#[must_use]
pub fn prefill_sizes(v: Version, max_tokens: i64) -> Vec<u64> {
    let Ok(max) = u64::try_from(max_tokens) else { return Vec::new() };
    if !v.since(5, 4) {
        return Vec::new();
    }
    let low = steps(4, 32, 4).chain(steps(48, 256, 16)).chain(steps(288, 512, 32));
    let mut list: Vec<u64> = if v.since(5, 8) {
        let middle = if v.since(5, 9) { 576 } else { 640 };
        low.chain(steps(middle, 1024, 64))
            .chain(steps(1280, 4096, 256))
            .chain(steps(4608, max, 512))
            .collect()
    } else {
        low.chain(steps(640, 4096, 128)).chain(steps(4352, max, 256)).collect()
    };
    list.retain(|&n| n <= max);
    list
}

/// DeepEP's list: sizes to 2048, each rounded up to a multiple of 8 (0.5.17 to 0.5.23).
#[must_use]
pub fn prefill_sizes_deepep(v: Version) -> Vec<u64> {
    let mut list: Vec<u64> =
        prefill_sizes(v, 2048).into_iter().map(|n| n.next_multiple_of(8)).collect();
    list.dedup();
    list
}

/// What happens to the decode list when the graphs are captured.
///
/// `alignment` is the multiple that attention-TP gathering and two-batch overlap need; sizes above
/// the request table are dropped and its own size is added. Rising order, unique.
/// Source: SGLang `get_batch_sizes_to_capture`, 0.4.6 to 0.5.23.
#[must_use]
pub fn sizes_at_capture(v: Version, sizes: &[u64], table_rows: u64, alignment: u64) -> Vec<u64> {
    let alignment = alignment.max(1);
    let mut list = sizes.to_vec();
    let mut limit = table_rows;
    if list.iter().any(|&bs| bs > table_rows) {
        if v.since(5, 10) {
            limit = table_rows.next_multiple_of(alignment);
            list.push(limit);
        } else if v.since(4, 7) {
            list.push(table_rows);
        } else {
            list.extend([table_rows.saturating_sub(1), table_rows]);
        }
    }
    list.retain(|&bs| bs > 0 && bs <= limit && bs.is_multiple_of(alignment));
    list.sort_unstable();
    list.dedup();
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(version: &str, max_bs: Option<u64>, speculating: Speculating) -> Vec<u64> {
        DecodeList {
            version: version.parse().unwrap(),
            gpu_mem_mib: Some(97_887.0),
            max_bs,
            speculating,
            dp_size: 1,
            padding: Padding::On,
        }
        .sizes()
    }

    #[test]
    fn a_largest_size_off_the_grid_is_appended_from_0_5_10() {
        assert_eq!(decode("0.5.8", Some(300), Speculating::No).last(), Some(&288));
        assert_eq!(decode("0.5.10", Some(300), Speculating::No).last(), Some(&300));
        assert_eq!(decode("0.5.23", Some(512), Speculating::No).len(), 52);
    }

    #[test]
    fn speculative_lists_differ_by_version() {
        assert!(decode("0.4.6", None, Speculating::Yes).contains(&152));
        assert!(!decode("0.5.2", None, Speculating::Yes).contains(&152));
        assert!(!decode("0.5.4", Some(256), Speculating::Yes).contains(&64));
        assert!(decode("0.5.4.post2", Some(256), Speculating::Yes).contains(&64));
    }

    #[test]
    fn prefill_counts_by_version() {
        let counts =
            |v: &str| [8192, 4096, 2048].map(|n| prefill_sizes(v.parse().unwrap(), n).len());
        assert_eq!(counts("0.5.8"), [57, 49, 41]);
        assert_eq!(counts("0.5.23"), [58, 50, 42]);
        assert!(prefill_sizes(Version::new(0, 5, 3), 8192).is_empty());
        assert!(prefill_sizes(Version::new(0, 5, 23), -1).is_empty());
    }

    #[test]
    fn a_small_request_table_cuts_the_list() {
        let sizes = [1, 2, 4, 8, 16];
        let at = |v: &str, rows, align| sizes_at_capture(v.parse().unwrap(), &sizes, rows, align);
        assert_eq!(at("0.4.6", 10, 1), [1, 2, 4, 8, 9, 10]);
        assert_eq!(at("0.5.8", 10, 1), [1, 2, 4, 8, 10]);
        assert_eq!(at("0.5.8", 9, 2), [2, 4, 8]);
        assert_eq!(at("0.5.23", 9, 2), [2, 4, 8, 10]);
        assert_eq!(at("0.5.23", 0, 1), Vec::<u64>::new());
    }
}
