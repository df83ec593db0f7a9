//! Tiers of device capacity: the prefill chunk and the largest decode graph that the engine fills in
//! when the user gave neither. Bounds are strict: a tier holds below its bound.

use super::{
    args::{DisaggregationMode, Platform},
    version::Version,
};

/// What the tier table says; MiB of capacity decide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TierValues {
    /// `chunked_prefill_size`, tokens.
    pub chunked_prefill_size: i64,
    /// `cuda_graph_max_bs`; `None` where the version leaves it unset (the size list decides).
    pub cuda_graph_max_bs: Option<u64>,
}

/// What the table is read by.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TierInputs {
    /// Rules.
    pub version: Version,
    /// Capacity in MiB; `None` when unknown.
    pub gpu_mem_mib: Option<f64>,
    /// `--tp-size`; 4 and more take the second column.
    pub tp_size: u32,
    /// Role.
    pub disaggregation_mode: DisaggregationMode,
    /// Backend.
    pub platform: Platform,
}

struct Row {
    below_mib: f64,
    chunk: i64,
    max_bs: (u64, u64),
}

const fn row(below_mib: f64, chunk: i64, small_tp: u64, large_tp: u64) -> Row {
    Row { below_mib, chunk, max_bs: (small_tp, large_tp) }
}

impl TierInputs {
    /// The table's values.
    ///
    /// Source: SGLang `ServerArgs.__post_init__` (to 0.5.2), `_handle_gpu_memory_settings` (later).
    #[must_use]
    pub fn values(&self) -> TierValues {
        let v = self.version;
        if v.since(5, 3) {
            self.table()
        } else if v.since_post(4, 7, 1) {
            self.two_bounds()
        } else {
            self.one_bound()
        }
    }

    fn below(&self, bound: f64) -> bool {
        self.gpu_mem_mib.is_some_and(|g| g < bound)
    }

    fn above(&self, bound: f64) -> bool {
        self.gpu_mem_mib.is_some_and(|g| g > bound)
    }

    fn by_tp(&self, (small, large): (u64, u64)) -> u64 {
        if self.tp_size < 4 { small } else { large }
    }

    fn one_bound(&self) -> TierValues {
        let late = self.version.since(4, 7);
        let chunk = if late && self.above(180_000.0) {
            16_384
        } else if self.below(25_000.0) {
            2_048
        } else if late && self.disaggregation_mode != DisaggregationMode::Null {
            16_384
        } else {
            8_192
        };
        let bs = self.below(25_000.0).then(|| self.by_tp((8, 80)));
        TierValues { chunked_prefill_size: chunk, cuda_graph_max_bs: bs }
    }

    fn two_bounds(&self) -> TierValues {
        let chunk = match self.gpu_mem_mib {
            None => 4_096,
            Some(g) if g < 35_840.0 => 2_048,
            Some(g) if g < 163_840.0 => 8_192,
            Some(_) => 16_384,
        };
        let bs = self.below(35_840.0).then(|| self.by_tp((8, 80)));
        TierValues { chunked_prefill_size: chunk, cuda_graph_max_bs: bs }
    }

    fn table(&self) -> TierValues {
        let Some(g) = self.gpu_mem_mib else {
            return TierValues { chunked_prefill_size: 4_096, cuda_graph_max_bs: Some(160) };
        };
        let top = row(f64::INFINITY, 16_384, 512, 512);
        let rows = self.rows();
        let hit = rows.iter().find(|r| g < r.below_mib).unwrap_or(&top);
        TierValues {
            chunked_prefill_size: hit.chunk,
            cuda_graph_max_bs: Some(self.by_tp(hit.max_bs)),
        }
    }

    fn rows(&self) -> Vec<Row> {
        let v = self.version;
        let second = if v.since(5, 20) {
            row(35_840.0, 4_096, 48, 160)
        } else if v.since_post(5, 4, 1) {
            row(35_840.0, 2_048, 24, 80)
        } else {
            row(35_840.0, 2_048, 16, 80)
        };
        // Ascend cards had their own rows inside the table before they got a preset (0.5.7).
        let ascend = self.platform == Platform::Npu && v.since_post(5, 3, 3) && !v.since(5, 7);
        let mut rows = vec![row(20_480.0, 2_048, 8, 8)];
        if ascend {
            rows.push(row(32_768.0, 32_768, 16, 64));
        }
        rows.push(second);
        rows.push(row(61_440.0, 4_096, 32, 160));
        if ascend {
            rows.push(row(65_536.0, 32_768, 64, 128));
        }
        rows.push(row(163_840.0, 8_192, 256, 512));
        rows
    }

    /// Ascend's values that go before the table from 0.5.7; `None` above 64 GiB and elsewhere.
    ///
    /// Source: SGLang `_handle_npu_backends` presets, 0.5.7 to 0.5.23.
    #[must_use]
    pub fn ascend_preset(&self) -> Option<TierValues> {
        if self.platform != Platform::Npu || !self.version.since(5, 7) {
            return None;
        }
        let (chunk, bs) = match self.gpu_mem_mib? {
            g if g <= 32_768.0 => (4_096, (16, 64)),
            g if g <= 65_536.0 => (8_192, (64, 256)),
            _ => return None,
        };
        Some(TierValues { chunked_prefill_size: chunk, cuda_graph_max_bs: Some(self.by_tp(bs)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(version: &str, mib: f64, tp_size: u32) -> (i64, Option<u64>) {
        let inputs = TierInputs {
            version: version.parse().unwrap(),
            gpu_mem_mib: Some(mib),
            tp_size,
            disaggregation_mode: DisaggregationMode::Null,
            platform: Platform::Cuda,
        };
        let v = inputs.values();
        (v.chunked_prefill_size, v.cuda_graph_max_bs)
    }

    #[test]
    fn bounds_are_strict() {
        assert_eq!(values("0.5.8", 35_839.0, 1), (2_048, Some(24)));
        assert_eq!(values("0.5.8", 35_840.0, 1), (4_096, Some(32)));
        assert_eq!(values("0.5.23", 35_839.0, 4), (4_096, Some(160)));
        assert_eq!(values("0.5.4", 30_000.0, 1), (2_048, Some(16)));
        assert_eq!(values("0.5.4.post1", 30_000.0, 1), (2_048, Some(24)));
        assert_eq!(values("0.5.23", 163_840.0, 8), (16_384, Some(512)));
        assert_eq!(values("0.4.6", 24_999.0, 8), (2_048, Some(80)));
        assert_eq!(values("0.4.6", 200_000.0, 8), (8_192, None));
        assert_eq!(values("0.4.7", 200_000.0, 8), (16_384, None));
        assert_eq!(values("0.4.7.post1", 30_000.0, 8), (2_048, Some(80)));
    }
}
