//! What one rank holds: its card, streams, regions, kernels, planned products and graphs.

use super::{
    error::{CudaError, told},
    inputs::InputLayout,
    layout::WeightLayout,
    options::{Arithmetic, CudaOptions},
    products::Products,
    program::{Program, Span},
    splits,
};
use crate::{
    device::{
        Card, DevicePointer, Event, Failure, Float, Gemm, Graph, Pinned, Region, Stream, bucket,
    },
    kernels::{Heads, Kernels, Pages},
};
use plimsoll_core::{
    policy::plimsoll::{
        KvCell,
        device::{DevicePart, Regions},
    },
    tape::own::{self, ArenaPlan, DecoderShape, Execution, OwnTape, StepLimits, Workspace},
    units::Bytes,
};
use std::rc::Rc;

/// Pages begin at multiples of this.
pub(super) const PAGE_ALIGNMENT: Bytes = Bytes(256);

/// What is known of a rank before its card is opened.
pub(super) struct Sketch {
    /// The shape of one rank.
    pub(super) own: DecoderShape,
    /// Its page.
    pub(super) cell: KvCell,
    /// Places of its weights.
    pub(super) weights: WeightLayout,
    /// Places of a step's inputs.
    pub(super) inputs: InputLayout,
    /// Its launches.
    pub(super) program: Program,
    /// Size of its arena, whose buffers have as many rows as the products compute.
    pub(super) arena: Bytes,
    /// The largest step, rounded up as the products need it.
    pub(super) rows: StepLimits,
}

impl Sketch {
    /// Lays out rank `rank` of a model.
    pub(super) fn new(
        shape: &DecoderShape,
        options: &CudaOptions,
        rank: u64,
    ) -> Result<Self, CudaError> {
        let ranks = options.devices.len() as u64;
        let own = shape.of_rank(ranks)?;
        let cell = options.cell(&own)?;
        let execution = Execution { workspace: Workspace::None, activation_bytes: 2, ranks };
        let tape: OwnTape = own::tape(&own, execution)?;
        let limits = options.settings.limits;
        // Checked as given; then with the rows that products compute in vain.
        ArenaPlan::new(&tape, limits)?;
        let whole = |rows: u64| u64::from(bucket(rows as u32));
        let rows = StepLimits { tokens: whole(limits.tokens), outputs: whole(limits.outputs) };
        let plan = ArenaPlan::new(&tape, rows)?;
        let weights = WeightLayout::new(&own, rank);
        let program = Program::new(&own, &tape, &plan, &weights, rank == 0)?;
        let (inputs, arena) = (InputLayout::new(options), plan.total);
        Ok(Self { own, cell, weights, inputs, program, arena, rows })
    }

    /// Bytes of every region; `multiprocessors` are the card's.
    pub(super) fn regions(&self, options: &CudaOptions, multiprocessors: u32) -> Regions {
        let settings = &options.settings;
        let rotary = settings.context_length * self.own.head_dim * 4;
        let partial = |batch| {
            let splits = self.splits(options, multiprocessors, batch);
            splits::partial_values(&self.own, splits::class(batch, &options.graphs), splits)
        };
        let scratch = (1..=settings.max_running_requests).map(partial).max().unwrap_or(0);
        Regions {
            weights: Bytes(self.weights.total()),
            rotary: Bytes(rotary),
            inputs: Bytes(self.inputs.bytes()),
            arena: self.arena,
            scratch: Bytes(scratch * 4),
            workspace: options.workspace,
        }
    }

    /// Splits of a decode step of `batch` sequences: those of the smallest graph that holds it.
    pub(super) fn splits(&self, options: &CudaOptions, multiprocessors: u32, batch: u64) -> u64 {
        let (context, class) =
            (options.settings.context_length, splits::class(batch, &options.graphs));
        splits::splits(class, self.own.kv_heads, u64::from(multiprocessors), context)
    }
}

/// The regions of a rank but its pool. Those of no bytes are not there.
pub(super) struct Held {
    pub(super) weights: Region,
    pub(super) rotary: Region,
    pub(super) inputs: Region,
    pub(super) arena: Region,
    pub(super) scratch: Option<Region>,
    pub(super) workspace: Option<Region>,
}

impl Held {
    /// What each region holds.
    pub(super) fn mapped(&self) -> impl Iterator<Item = (DevicePart, Bytes)> {
        let some = [
            (DevicePart::Weights, Some(&self.weights)),
            (DevicePart::Rotary, Some(&self.rotary)),
            (DevicePart::Inputs, Some(&self.inputs)),
            (DevicePart::Arena, Some(&self.arena)),
            (DevicePart::Scratch, self.scratch.as_ref()),
            (DevicePart::Workspace, self.workspace.as_ref()),
        ];
        some.into_iter().filter_map(|(part, region)| Some((part, region?.mapped())))
    }
}

/// All of an optional region.
pub(super) fn all(region: Option<&Region>) -> DevicePointer {
    region.map_or(DevicePointer::NULL, Region::pointer)
}

/// A captured decode step.
pub(super) struct Captured {
    /// Its batch.
    pub(super) batch: u32,
    /// What it took of the device.
    pub(super) cost: Bytes,
    /// The graph.
    pub(super) graph: Graph,
}

/// One rank, all of it; what is declared first is given back first.
pub(super) struct Rank {
    /// Rising batches.
    pub(super) graphs: Vec<Captured>,
    pub(super) products: Option<Products>,
    pub(super) gemm: Gemm,
    pub(super) kernels: Kernels,
    /// A step's inputs on their way up.
    pub(super) up: Pinned,
    /// Chosen tokens.
    pub(super) chosen: Pinned,
    /// Logits that the host asked for; only on rank 0.
    pub(super) logits: Option<Pinned>,
    /// Pages on the host.
    pub(super) tier: Option<Pinned>,
    /// Behind the last copy between the device and the tier.
    pub(super) copied: Event,
    /// Behind what the copies wait for.
    pub(super) computed: Event,
    pub(super) compute: Stream,
    pub(super) copy: Stream,
    pub(super) pool: Region,
    pub(super) held: Held,
    pub(super) sketch: Sketch,
    pub(super) arithmetic: Arithmetic,
    pub(super) page_bytes: u64,
    pub(super) page_tokens: u32,
    pub(super) context: u64,
    pub(super) card: Rc<Card>,
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Nothing runs any more when memory goes.
        let _ = self.compute.synchronize();
        let _ = self.copy.synchronize();
    }
}

impl Arithmetic {
    pub(super) const fn float(self) -> Float {
        match self {
            Self::Bf16 => Float::Bf16,
            Self::F16 => Float::F16,
        }
    }
}

impl Rank {
    /// A failure of this card, told with what it was for.
    pub(super) fn told(
        &self,
        what: &'static str,
        requested: Bytes,
    ) -> impl FnOnce(Failure) -> CudaError {
        failed(&self.card, what, requested)
    }

    /// `rows` rows of a buffer of the arena.
    pub(super) fn span(&self, span: Span, rows: u32) -> Result<DevicePointer, Failure> {
        let bytes = u64::from(rows) * span.width * span.value_bytes;
        self.held.arena.pointer().slice(span.offset, bytes)
    }

    /// Heads of a layer.
    pub(super) fn heads(&self) -> Heads {
        let own = &self.sketch.own;
        Heads { queries: own.q_heads as u32, kv: own.kv_heads as u32, width: own.head_dim as u32 }
    }

    /// The pool and a step's page tables.
    pub(super) fn pages(&self) -> Result<Pages, Failure> {
        Ok(Pages {
            pool: self.pool.pointer(),
            page_bytes: self.page_bytes,
            page_tokens: self.page_tokens,
            table_start: self.input(self.sketch.inputs.table_start)?,
            tables: self.input(self.sketch.inputs.tables)?,
        })
    }

    /// A part of the inputs on the device.
    pub(super) fn input(&self, part: super::inputs::Part) -> Result<DevicePointer, Failure> {
        self.held.inputs.pointer().slice(part.offset(), part.bytes())
    }
}

/// A failure of a card, told with what it was for and what was free. On a lost device whatever fails has failed
/// for that.
pub(super) fn failed(
    card: &Rc<Card>,
    what: &'static str,
    requested: Bytes,
) -> impl FnOnce(Failure) -> CudaError {
    let free = move || card.memory().map_or(Bytes::ZERO, |(free, _)| free);
    let told = told(card.ordinal(), free, what, requested);
    move |failure| told(card.check().err().unwrap_or(failure))
}
