//! Adds up matrices by part: whole model and one rank, with the storage that the quantisation
//! settings give each module.

use std::{collections::BTreeMap, collections::BTreeSet, ops::Range};

use crate::{
    figure::{Estimate, Tag, Why},
    model::{
        detail::Model,
        parallel::Loader,
        storage::{Scales, Storage},
    },
    units::Bytes,
};

use super::{Bill, Mxfp4Layout, Part, PartKind, WeightOptions, sum};

/// What quantisation may do to a matrix.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// A linear layer.
    Linear,
    /// A routed expert's matrix.
    Expert,
    /// The output head.
    Head,
    /// Embeddings, routers, convolutions, norms, biases: never quantised.
    Plain,
    /// The same, in float32 whatever the model's dtype.
    Plain32,
}

/// What is in doubt about a module's storage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doubt {
    /// Nothing.
    Nothing,
    /// The packing is not known; up to 16 bits.
    Packing,
    /// vLLM and settings module by module (modelopt `MIXED_PRECISION`): 16 bits beside the experts,
    /// down to what the settings say. Two public starts of Qwen3.6-35B-A3B-NVFP4 print 21.94 GiB:
    /// head and linear attention in 16 bits (21.89), not as the file has them (20.26).
    Kept16,
}

/// Rows, columns and how many of that size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size {
    pub(super) rows: u64,
    pub(super) cols: u64,
    pub(super) count: u64,
}

impl Size {
    pub(super) const fn matrix(rows: u64, cols: u64) -> Self {
        Self { rows, cols, count: 1 }
    }

    pub(super) const fn vector(length: u64) -> Self {
        Self { rows: 1, cols: length, count: 1 }
    }

    fn elements(self) -> u128 {
        u128::from(self.rows) * u128::from(self.cols) * u128::from(self.count)
    }

    fn bytes(self, storage: &Storage) -> u128 {
        storage.bytes(self.rows, self.cols) * u128::from(self.count)
    }

    /// Rows divided by `parts`, rounded up.
    pub(super) fn by_rows(self, parts: u64) -> Self {
        Self { rows: self.rows.div_ceil(parts.max(1)), ..self }
    }

    /// Columns divided by `parts`, rounded up.
    pub(super) fn by_cols(self, parts: u64) -> Self {
        Self { cols: self.cols.div_ceil(parts.max(1)), ..self }
    }

    /// Count divided by `parts`, rounded up.
    pub(super) fn by_count(self, parts: u64) -> Self {
        Self { count: self.count.div_ceil(parts.max(1)), ..self }
    }
}

#[derive(Default)]
struct Line {
    parameters: u128,
    whole: u128,
    low: u128,
    mid: u128,
    high: u128,
    storages: BTreeSet<&'static str>,
    tag: Option<Tag>,
}

/// The sum so far.
pub(super) struct Sheet<'a> {
    pub(super) model: &'a Model,
    pub(super) options: &'a WeightOptions,
    /// Storage of unquantised matrices.
    pub(super) plain: Storage,
    /// Layers on this stage.
    stage: Range<usize>,
    lines: BTreeMap<PartKind, Line>,
    /// Part that everything goes to while draft layers are added.
    pub(super) redirect: Option<PartKind>,
    /// Whether what is added is on this stage.
    pub(super) here: bool,
}

impl<'a> Sheet<'a> {
    pub(super) fn new(model: &'a Model, options: &'a WeightOptions, stage: Range<usize>) -> Self {
        let dtype = options.dtype.unwrap_or_else(|| model.engine_dtype());
        let lines = BTreeMap::new();
        let plain = Storage::plain(dtype);
        Self { model, options, plain, stage, lines, redirect: None, here: true }
    }

    /// Sets `here` for a layer of the geometry.
    pub(super) fn enter(&mut self, index: usize) {
        self.here = self.stage.contains(&index);
    }

    /// Adds a module's matrix; `local` is its size on one rank.
    pub(super) fn add(&mut self, kind: PartKind, role: Role, name: &str, whole: Size, local: Size) {
        let kind = self.redirect.unwrap_or(kind);
        let (storage, doubt) = self.storage(role, name);
        let mut bytes = [local; 3].map(|size| size.bytes(&storage));
        if role == Role::Expert && storage == Storage::MXFP4 {
            bytes = self.padded(local, &storage);
        }
        let here = self.here;
        let plain = local.bytes(&self.plain);
        let line = self.lines.entry(kind).or_default();
        line.parameters += whole.elements();
        line.whole += whole.bytes(&storage);
        line.storages.insert(storage.name);
        if doubt != Doubt::Nothing {
            line.tag = Some(Tag::Assumed);
            bytes[2] = plain;
        }
        if doubt == Doubt::Kept16 {
            bytes[1] = plain;
        }
        if here {
            line.low += bytes[0];
            line.mid += bytes[1];
            line.high += bytes[2];
        }
    }

    /// Adds a vector on every rank whole.
    pub(super) fn vector(&mut self, kind: PartKind, name: &str, length: u64) {
        let size = Size::vector(length);
        self.add(kind, Role::Plain, name, size, size);
    }

    /// Adds a figure that is not a matrix.
    pub(super) fn put(
        &mut self,
        kind: PartKind,
        parameters: u64,
        whole: Bytes,
        per_rank: Estimate,
        tag: Tag,
    ) {
        let line = self.lines.entry(kind).or_default();
        line.parameters += u128::from(parameters);
        line.whole += u128::from(whole.0);
        line.low += u128::from(per_rank.low.0);
        line.mid += u128::from(per_rank.mid.0);
        line.high += u128::from(per_rank.high.0);
        line.tag = Some(tag);
    }

    /// Storage of a module, and what is in doubt about it.
    fn storage(&self, role: Role, name: &str) -> (Storage, Doubt) {
        let plan = &self.model.detail.quant;
        let plain = (self.plain, Doubt::Nothing);
        match role {
            Role::Plain => return plain,
            Role::Plain32 => {
                return (Storage::plain(crate::model::geometry::Dtype::F32), Doubt::Nothing);
            }
            Role::Head if !plan.head => return plain,
            Role::Linear if plan.experts_only => return plain,
            Role::Head | Role::Linear | Role::Expert => {}
        }
        if let Some(storage) = plan.rules.get(name) {
            let mixed = plan.base.is_none() && role != Role::Expert;
            let vllm = self.options.loader == Loader::Vllm;
            let doubt = if mixed && vllm { Doubt::Kept16 } else { Doubt::Nothing };
            return (storage, doubt);
        }
        if plan.ignored.get(name).is_some() {
            return plain;
        }
        match (plan.base, &plan.unknown) {
            (Some(storage), _) => (storage, Doubt::Nothing),
            // The commonest packing stands for one that is not known; the interval goes up to none.
            (None, Some(_)) => (Storage::int_group(4, 128, 4), Doubt::Packing),
            (None, None) => match self.options.online {
                Some(storage) if role != Role::Head => (storage, Doubt::Nothing),
                _ => plain,
            },
        }
    }

    /// MXFP4 experts with their widths rounded up as the kernels want them. The model's width is
    /// the one of the two that is not cut: columns of gate and up, rows of down.
    fn padded(&self, local: Size, storage: &Storage) -> [u128; 3] {
        let hidden = self.model.geometry.hidden_size;
        let round = |layout: Mxfp4Layout| {
            let (width, model_width) = match layout {
                Mxfp4Layout::Triton => (64, 1),
                Mxfp4Layout::Marlin => (128, 256),
                Mxfp4Layout::Flashinfer => (256, 256),
                Mxfp4Layout::Unknown | Mxfp4Layout::Padded => (1, 1),
            };
            // Gate and up have two rows for each of the expert's width when they are fused; the
            // caller adds them one by one, so that both cases round alike.
            let pad = |n: u64, is_model: bool| {
                n.next_multiple_of(if is_model { model_width } else { width })
            };
            let down = local.rows == hidden && local.cols != hidden;
            Size { rows: pad(local.rows, down), cols: pad(local.cols, !down), count: local.count }
                .bytes(storage)
        };
        match (self.options.mxfp4, self.options.loader) {
            (Mxfp4Layout::Unknown, loader) => {
                let mid = match loader {
                    Loader::Sglang => Mxfp4Layout::Triton,
                    Loader::Vllm => Mxfp4Layout::Marlin,
                };
                [round(Mxfp4Layout::Triton), round(mid), round(Mxfp4Layout::Flashinfer)]
            }
            (Mxfp4Layout::Padded, _) => {
                let usual = round(Mxfp4Layout::Marlin);
                [usual, usual, round(Mxfp4Layout::Flashinfer)]
            }
            (layout, _) => [round(layout); 3],
        }
    }

    /// Bytes of `size` in 16 bits, for copies that the engine makes.
    pub(super) fn copy(&mut self, kind: PartKind, local: Size) {
        if !self.here {
            return;
        }
        let kind = self.redirect.unwrap_or(kind);
        let sixteen = Storage { name: "16 bit", bits: 16, scales: Scales::None, zero_bits: 0 };
        let bytes = local.bytes(&sixteen);
        let line = self.lines.entry(kind).or_default();
        line.storages.insert(sixteen.name);
        line.low += bytes;
        line.mid += bytes;
        line.high += bytes;
    }

    pub(super) fn bill(self) -> Bill {
        let narrow = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
        let parts: Vec<Part> = self
            .lines
            .into_iter()
            .map(|(kind, line)| Part {
                kind,
                parameters: narrow(line.parameters),
                whole: Bytes(narrow(line.whole)),
                per_rank: Estimate::new(
                    Bytes(narrow(line.low)),
                    Bytes(narrow(line.mid)),
                    Bytes(narrow(line.high)),
                ),
                storages: line.storages,
                tag: line.tag.unwrap_or(Tag::Computed),
            })
            .collect();
        let checkpoint = || parts.iter().filter(|p| p.kind.in_checkpoint());
        let main = || checkpoint().filter(|p| p.kind != PartKind::Draft);
        let parameters = main().fold(0, |a: u64, p| a.saturating_add(p.parameters));
        let whole = main().fold(Bytes::ZERO, |a, p| a.saturating_add(p.whole));
        let per_rank = sum(&parts);
        let weakest = parts.iter().map(|p| p.tag).max().unwrap_or(Tag::Computed);
        let why = Why::new(
            weakest,
            "sum over modules of (elements x bits + scales) / ranks that divide the module",
            "module shapes of the architecture; division as in SGLang and vLLM layers/linear.py",
        )
        .with("parameters", parameters)
        .with("attention tp", self.options.parallel.attention)
        .with("ep", self.options.parallel.expert_ep)
        .with("pp stage", format!("{} of {}", self.options.stage, self.options.parallel.pp));
        Bill { parts, parameters, whole, per_rank, why }
    }
}
