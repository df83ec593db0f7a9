//! Bytes of one token on one rank: the divisor of the budget, and what is really allocated for it.

use super::{
    facts::KvDtype,
    geometry::{CellShape, Heads, Hybrid, KvGeometry, Latent, LatentRow},
    speculation::{DraftKind, Speculation},
    version::Version,
    whys::computed,
};
use crate::figure::Why;

/// Bytes of one token.
#[derive(Clone, PartialEq, Debug)]
pub struct Cell {
    /// Divisor of the budget, bytes; a real number for sliding-window hybrids from 0.5.11.
    pub bytes: f64,
    /// The same as an integer where it is one.
    pub whole: Option<i128>,
    /// Bytes that the target's uniform or full pool really takes for a token (0.5.3 to 0.5.16 budget
    /// less than they allocate for FP8 sparse attention).
    pub allocated: u64,
    /// Bytes of a token in a sliding-window layer pool; 0 without one.
    pub allocated_swa: u64,
    /// Bytes of a token in the draft's pool; 0 without one.
    pub allocated_draft: u64,
    /// KV heads of the rank; `None` for latent attention.
    pub kv_heads_per_rank: Option<u64>,
    /// Derivation.
    pub why: Why,
}

/// Latent and index bytes of a token.
struct LatentBytes {
    kv: i128,
    index: i128,
}

/// What the cell depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellQuestion<'a> {
    pub(crate) version: Version,
    pub(crate) kv: &'a KvGeometry,
    pub(crate) speculation: Option<&'a Speculation>,
    /// Draft layers that are charged to the target's cell.
    pub(crate) draft_layers: u64,
    /// Bytes of a token in the draft's pool, when known.
    pub(crate) draft_cell: Option<u64>,
}

fn int(n: u64) -> i128 {
    i128::from(n)
}

fn narrow(n: i128) -> u64 {
    u64::try_from(n.max(0)).unwrap_or(u64::MAX)
}

impl CellQuestion<'_> {
    fn element(&self) -> i128 {
        int(self.kv.dtype.element_bytes())
    }

    /// Layers that the version counts for a uniform cell.
    fn counted_layers(&self) -> u64 {
        let v = self.version;
        match &self.kv.hybrid {
            Hybrid::Mamba(m) if !v.since(5, 8) => m.whole_model_full_layers,
            Hybrid::Swa(s) if v.since(5, 7) && !v.since(5, 8) && s.layers.full > 0 => s.layers.full,
            _ => self.kv.layers,
        }
    }

    /// Key and value widths of a head, as counted.
    fn width(&self, heads: &Heads) -> i128 {
        let values = if self.version.since(5, 7) { heads.v_head_dim } else { heads.head_dim };
        int(heads.head_dim) + int(values)
    }

    /// Bytes of a token in one layer of these heads.
    pub(crate) fn layer_bytes(&self, heads: &Heads) -> i128 {
        int(heads.per_rank(self.kv.attn_tp_size)) * self.width(heads) * self.element()
    }

    fn heads_bytes(&self, heads: &Heads, layers: u64) -> i128 {
        let plain = self.layer_bytes(heads) * int(layers);
        if self.kv.dtype != KvDtype::Fp4 || !self.version.since_post(5, 5, 3) {
            return plain;
        }
        // Half for two values a byte, then one scale byte for each block of 16.
        let keys =
            int(heads.per_rank(self.kv.attn_tp_size)) * int(heads.head_dim) * 2 * self.element();
        let scales = keys * int(layers) / 16;
        let workspace = if self.version.since(5, 16) { keys } else { 0 };
        plain / 2 + scales + workspace
    }

    fn latent_bytes(&self, latent: &Latent, layers: u64, packed: bool) -> LatentBytes {
        let e = self.element();
        let dim = int(latent.kv_lora_rank) + int(latent.qk_rope_head_dim);
        let row = if packed { packed_row(latent) } else { dim };
        let mut kv = row * int(layers) * e;
        if self.kv.dtype == KvDtype::Fp4 && self.version.since_post(5, 4, 3) {
            kv = kv / 2 + dim / 16 * int(layers) * e;
        }
        let owners =
            if self.version.since(5, 18) { latent.indexer_layers.min(layers) } else { layers };
        let index = match latent.index_head_dim {
            Some(dim) if self.version.since_post(5, 3, 1) => index_row(dim) * int(owners),
            _ => 0,
        };
        LatentBytes { kv, index }
    }

    /// FP8 sparse attention writes packed rows; the budget knows it from 0.5.17.
    fn packed(&self, latent: &Latent) -> bool {
        latent.index_head_dim.is_some()
            && self.kv.dtype == KvDtype::Fp8E4m3
            && latent.row == LatentRow::Packed
    }

    /// Draft layers in the cell: model drafts from 0.5.14, sliding-window targets from 0.5.15.
    pub(crate) fn charged_draft(&self) -> u64 {
        let model = self.speculation.is_some_and(|s| s.kind == DraftKind::Model);
        let from = match self.kv.swa(self.version) {
            Some(_) => self.version.since(5, 15),
            None => self.version.since(5, 14),
        };
        if model && from { self.draft_layers } else { 0 }
    }

    /// The cell.
    ///
    /// Source: SGLang `get_cell_size_per_token` (to 0.5.10) and the pool configurators (later).
    pub(crate) fn answer(&self) -> Cell {
        if let Some(bytes) = self.kv.cell_override {
            return self.overridden(bytes);
        }
        if let Some(swa) = self.kv.swa(self.version)
            && self.version.since(5, 9)
            && let CellShape::Heads(full) = &self.kv.shape
        {
            return self.swa_cell(swa, full);
        }
        let layers = self.counted_layers();
        match &self.kv.shape {
            CellShape::Heads(heads) => {
                let target = self.heads_bytes(heads, layers);
                let whole = self.with_draft(target, target, 0, layers);
                self.uniform(whole, narrow(self.heads_bytes(heads, self.kv.layers)))
            }
            CellShape::Latent(latent) => {
                let packed = self.packed(latent);
                let budget = self.latent_bytes(latent, layers, packed && self.version.since(5, 17));
                let real = self.latent_bytes(latent, layers, packed);
                let target = budget.kv + budget.index;
                let per_index = latent.index_head_dim.map_or(0, index_row);
                let whole = self.with_draft(target, budget.kv, per_index, layers);
                self.uniform(whole, narrow(real.kv + real.index))
            }
        }
    }

    /// Adds the charged draft layers, at the target's width.
    fn with_draft(&self, target: i128, kv: i128, per_index: i128, layers: u64) -> i128 {
        let (v, draft) = (self.version, self.charged_draft());
        if draft == 0 || layers == 0 {
            return target;
        }
        let (d, l) = (draft as f64, layers as f64);
        if per_index > 0 && v.since(5, 18) {
            let share = int(draft) * kv;
            target + (share as f64 / l).trunc() as i128 + per_index * int(draft)
        } else if v.since(5, 22) {
            target + ((target * int(draft)) as f64 / l).trunc() as i128
        } else {
            (target as f64 * (1.0 + d / l)).trunc() as i128
        }
    }

    fn swa_cell(&self, swa: &super::geometry::SwaHybrid, full: &Heads) -> Cell {
        let (f, s) = (self.layer_bytes(full), self.layer_bytes(&swa.swa_heads));
        let (n_full, n_swa) = (int(swa.layers.full), int(swa.layers.swa));
        let draft = int(self.charged_draft());
        let (bytes, whole) = if n_full == 0 {
            let whole = s * n_swa + f * draft;
            (whole as f64, Some(whole))
        } else if self.version.since(5, 11) {
            let bytes = (f * (n_full + draft)) as f64 + swa.ratio * s as f64 * n_swa as f64;
            (bytes, None)
        } else {
            let whole = f * n_full + s * n_swa;
            (whole as f64, Some(whole))
        };
        let rule = if n_full == 0 {
            "S*(n_swa) + F*draft"
        } else if whole.is_some() {
            "F*n_full + S*n_swa"
        } else {
            "F*(n_full + draft) + ratio*S*n_swa"
        };
        let why = self
            .why(rule)
            .with("F (full layer)", format!("{f} B"))
            .with("S (sliding-window layer)", format!("{s} B"))
            .with("n_full", n_full)
            .with("n_swa", n_swa)
            .with("draft layers", draft)
            .with("swa_full_tokens_ratio", swa.ratio);
        Cell {
            bytes,
            whole,
            allocated: narrow(f * n_full),
            allocated_swa: narrow(s * n_swa),
            allocated_draft: self.draft_cell_bytes(f),
            kv_heads_per_rank: Some(full.per_rank(self.kv.attn_tp_size)),
            why,
        }
    }

    fn draft_cell_bytes(&self, per_layer: i128) -> u64 {
        if !self.speculation.is_some_and(|s| s.kind != DraftKind::Ngram) {
            return 0;
        }
        self.draft_cell.unwrap_or_else(|| narrow(per_layer * int(self.draft_layers)))
    }

    fn uniform(&self, whole: i128, allocated: u64) -> Cell {
        let layers = self.kv.layers.max(1);
        let (swa_bytes, full_bytes, heads) = match (&self.kv.shape, self.kv.swa(self.version)) {
            (CellShape::Heads(h), Some(swa)) => (
                narrow(self.layer_bytes(&swa.swa_heads) * int(swa.layers.swa)),
                narrow(self.layer_bytes(h) * int(swa.layers.full)),
                Some(h.per_rank(self.kv.attn_tp_size)),
            ),
            (CellShape::Heads(h), None) => (0, allocated, Some(h.per_rank(self.kv.attn_tp_size))),
            (CellShape::Latent(_), _) => (0, allocated, None),
        };
        Cell {
            bytes: whole as f64,
            whole: Some(whole),
            allocated: full_bytes,
            allocated_swa: swa_bytes,
            allocated_draft: self.draft_cell_bytes(int(allocated) / int(layers)),
            kv_heads_per_rank: heads,
            why: self.uniform_why(whole),
        }
    }

    fn overridden(&self, bytes: u64) -> Cell {
        Cell {
            bytes: bytes as f64,
            whole: Some(int(bytes)),
            allocated: bytes,
            allocated_swa: 0,
            allocated_draft: self.draft_cell.unwrap_or(0),
            kv_heads_per_rank: None,
            why: Why::new(crate::figure::Tag::Measured, "as given", "--kv-bytes-per-token"),
        }
    }

    fn uniform_why(&self, whole: i128) -> Why {
        let e = self.element();
        let why = match &self.kv.shape {
            CellShape::Heads(h) => self
                .why(
                    "kv_heads * (head_dim + v_head_dim) * layers * element, FP4 halved with scales",
                )
                .with("kv_heads per rank", h.per_rank(self.kv.attn_tp_size))
                .with("head_dim + v_head_dim", self.width(h)),
            CellShape::Latent(l) => self
                .why("(kv_lora_rank + qk_rope_head_dim) * layers * element + index, on every rank")
                .with("kv_lora_rank", l.kv_lora_rank)
                .with("qk_rope_head_dim", l.qk_rope_head_dim)
                .with("index bytes per layer", l.index_head_dim.map_or(0, index_row)),
        };
        why.with("layers", self.counted_layers())
            .with("element", format!("{e} B ({})", self.kv.dtype.name()))
            .with("draft layers charged", self.charged_draft())
            .with("cell", format!("{whole} B"))
    }

    fn why(&self, rule: &str) -> Why {
        let function = if self.version.since(5, 11) {
            "KVCacheConfigurator"
        } else {
            "ModelRunner.get_cell_size_per_token"
        };
        computed(self.version, function, rule)
    }
}

/// An FP8 row of sparse attention: latent, one float scale for 128 of it, rope part in 16 bits.
fn packed_row(l: &Latent) -> i128 {
    int(l.kv_lora_rank) + int(l.kv_lora_rank) / 128 * 4 + int(l.qk_rope_head_dim) * 2
}

/// An index key with its scale: `dim + dim / 128 * 4` bytes; 132 for 128.
fn index_row(dim: u64) -> i128 {
    int(dim) + int(dim) / 128 * 4
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(version: &str, kv: &KvGeometry) -> Cell {
        let version = version.parse().unwrap();
        CellQuestion { version, kv, speculation: None, draft_layers: 0, draft_cell: None }.answer()
    }

    fn latent(index_head_dim: Option<u64>) -> CellShape {
        CellShape::Latent(Latent {
            kv_lora_rank: 512,
            qk_rope_head_dim: 64,
            index_head_dim,
            indexer_layers: 61,
            row: LatentRow::Packed,
        })
    }

    #[test]
    fn latent_cells_do_not_shrink_with_tp() {
        let kv = KvGeometry::uniform(latent(None), 61, 8, KvDtype::Bf16);
        assert_eq!(cell("0.5.8", &kv).bytes, 70_272.0);
    }

    #[test]
    fn fp8_sparse_attention_allocates_more_than_it_budgets_before_0_5_17() {
        let kv = KvGeometry::uniform(latent(Some(128)), 61, 8, KvDtype::Fp8E4m3);
        let old = cell("0.5.8", &kv);
        assert_eq!((old.bytes, old.allocated), (43_188.0, 48_068));
        let new = cell("0.5.17", &kv);
        assert_eq!((new.bytes, new.allocated), (48_068.0, 48_068));
        assert_eq!(cell("0.5.3", &kv).bytes, 576.0 * 61.0);
    }

    #[test]
    fn heads_are_replicated_when_ranks_outnumber_them() {
        let heads = Heads { kv_heads: 8, head_dim: 128, v_head_dim: 128 };
        let kv = |tp| KvGeometry::uniform(CellShape::Heads(heads), 28, tp, KvDtype::Bf16);
        assert_eq!(cell("0.5.23", &kv(1)).bytes, 114_688.0);
        assert_eq!(cell("0.5.23", &kv(16)).bytes, 28.0 * 512.0);
        let wide = Heads { v_head_dim: 64, ..heads };
        let kv = KvGeometry::uniform(CellShape::Heads(wide), 1, 8, KvDtype::Bf16);
        assert_eq!(cell("0.5.6", &kv).bytes, 512.0);
        assert_eq!(cell("0.5.7", &kv).bytes, 384.0);
    }
}
