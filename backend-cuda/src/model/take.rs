//! Taking a card: each part measured by what is free before and after, so that every byte has a row.

use super::{
    error::CudaError,
    options::CudaOptions,
    rank::{Held, PAGE_ALIGNMENT, Rank, Sketch, all, failed},
};
use crate::{
    device::{Card, Event, Failure, Gemm, Pinned, Region, Stream},
    kernels::{Kernels, KvFloat},
};
use plimsoll_core::{
    policy::plimsoll::{
        KvFormat,
        device::{DeviceArgs, DeviceEngine, DevicePart, DevicePlan, DeviceReadings},
    },
    units::Bytes,
};
use std::rc::Rc;

/// Page of a device that has no virtual memory: what its plain allocations are rounded to.
const PLAIN_PAGE: Bytes = Bytes::mib(2);

/// A rank that is being taken, with its plan and the last reading.
pub(super) struct Taking {
    pub(super) rank: Rank,
    pub(super) plan: DevicePlan,
    pub(super) meter: Meter,
}

/// Reads what is free around every step.
pub(super) struct Meter {
    card: Rc<Card>,
    last: Bytes,
}

impl Meter {
    fn new(card: &Rc<Card>) -> Result<Self, CudaError> {
        let mut meter = Self { card: Rc::clone(card), last: Bytes::ZERO };
        meter.skip()?;
        Ok(meter)
    }

    /// What is free now.
    pub(super) fn free(&self) -> Result<Bytes, CudaError> {
        let reading = self.card.memory();
        let (free, _) = reading.map_err(failed(&self.card, "a reading", Bytes::ZERO))?;
        Ok(free)
    }

    /// Goes on from here: what was taken since is known to the byte, or nobody's.
    pub(super) fn skip(&mut self) -> Result<(), CudaError> {
        self.last = self.free()?;
        Ok(())
    }

    /// What was taken since the last reading is this part's.
    pub(super) fn took(
        &mut self,
        plan: &mut DevicePlan,
        part: DevicePart,
    ) -> Result<Bytes, CudaError> {
        let now = self.free()?;
        let took = self.last.saturating_sub(now);
        let so_far = plan.row(part).and_then(|row| row.measured).unwrap_or_default();
        plan.measured(part, so_far.saturating_add(took));
        self.last = now;
        Ok(took)
    }
}

impl Meter {
    /// Of what was taken since the last reading, `known` is somebody's to the byte; the rest is what the driver
    /// needs to map it, and goes to the context.
    pub(super) fn took_beyond(
        &mut self,
        plan: &mut DevicePlan,
        known: Bytes,
    ) -> Result<(), CudaError> {
        self.last = self.last.saturating_sub(known);
        self.took(plan, DevicePart::Context)?;
        Ok(())
    }
}

/// The driver's page as the plan takes it.
fn page(card: &Card) -> Bytes {
    let facts = card.facts();
    if facts.virtual_memory { facts.page.max(Bytes(1)) } else { PLAIN_PAGE }
}

/// Predicts what a rank will hold on a card that has nothing but its context.
pub(super) fn predict(
    card: &Rc<Card>,
    sketch: &Sketch,
    options: &CudaOptions,
) -> Result<DevicePlan, CudaError> {
    let reading = card.memory().map_err(failed(card, "a reading", Bytes::ZERO))?;
    let (free, total) = reading;
    let facts = card.facts();
    let readings = DeviceReadings { total, free, context: facts.context, page: page(card) };
    let alone = options.devices.len() == 1;
    let engine = DeviceEngine {
        regions: sketch.regions(options, facts.multiprocessors),
        cell: sketch.cell,
        settings: options.settings,
        ranks: options.devices.len() as u64,
        graphs: if alone { options.graphs.len() as u64 } else { 0 },
        launches: sketch.program.launches(),
    };
    let refused = |refusal| CudaError::Refused { device: card.ordinal(), refusal };
    DevicePlan::new(&readings, &options.args, &engine).map_err(refused)
}

/// Addresses for the largest pool: all that is free, or all that is allowed.
fn most_pool(plan: &DevicePlan, args: &DeviceArgs, free: Bytes) -> Bytes {
    let allowed = args.max_total_tokens.map(|tokens| plan.cell.pages_for(tokens));
    let allowed = allowed.map_or(u64::MAX, |pages| pages.saturating_mul(plan.page.0));
    Bytes(free.0.min(allowed).max(plan.pool_bytes().0)).round_up_to(plan.chunk)
}

/// A region with all its memory; none of no bytes.
fn region(
    card: &Rc<Card>,
    plan: &mut DevicePlan,
    part: DevicePart,
    bytes: Bytes,
) -> Result<Option<Region>, CudaError> {
    if bytes == Bytes::ZERO {
        return Ok(None);
    }
    let bytes = bytes.round_up_to(page(card));
    let mapped = Region::reserve(card, bytes, bytes).and_then(|mut region| {
        region.map_all()?;
        Ok(region)
    });
    let region = mapped.map_err(failed(card, part.label(), bytes))?;
    plan.measured(part, region.mapped());
    Ok(Some(region))
}

fn regions(
    card: &Rc<Card>,
    plan: &mut DevicePlan,
    sketch: &Sketch,
    options: &CudaOptions,
) -> Result<Held, CudaError> {
    let sizes = sketch.regions(options, card.facts().multiprocessors);
    let mut take = |part, bytes| region(card, plan, part, bytes);
    // None of these four has no bytes: the shape has rows, layers and positions.
    let some = |region: Option<Region>| region.ok_or(CudaError::Tape("a region"));
    Ok(Held {
        weights: some(take(DevicePart::Weights, sizes.weights)?)?,
        rotary: some(take(DevicePart::Rotary, sizes.rotary)?)?,
        inputs: some(take(DevicePart::Inputs, sizes.inputs)?)?,
        arena: some(take(DevicePart::Arena, sizes.arena)?)?,
        scratch: take(DevicePart::Scratch, sizes.scratch)?,
        workspace: take(DevicePart::Workspace, sizes.workspace)?,
    })
}

/// Streams and events, which the driver may keep memory for.
struct Streams {
    compute: Stream,
    copy: Stream,
    copied: Event,
    computed: Event,
}

fn streams(card: &Rc<Card>) -> Result<Streams, Failure> {
    Ok(Streams {
        compute: Stream::new(card)?,
        copy: Stream::new(card)?,
        copied: Event::new(card)?,
        computed: Event::new(card)?,
    })
}

/// Page-locked memory on the host, of at least a byte.
fn pinned(card: &Rc<Card>, what: &'static str, bytes: u64) -> Result<Pinned, CudaError> {
    let bytes = Bytes(bytes.max(8));
    Pinned::take(card, bytes).map_err(failed(card, what, bytes))
}

/// Takes everything of a rank but what warming up brings, and the pool beyond its least pages.
pub(super) fn take(
    card: Rc<Card>,
    sketch: Sketch,
    mut plan: DevicePlan,
    options: &CudaOptions,
) -> Result<Taking, CudaError> {
    let mut meter = Meter::new(&card)?;
    let start = meter.free()?;
    let Streams { compute, copy, copied, computed } =
        streams(&card).map_err(failed(&card, "streams", Bytes::ZERO))?;
    meter.took(&mut plan, DevicePart::Context)?;
    let kv = if options.kv == KvFormat::Fp8E4m3 { KvFloat::Fp8 } else { KvFloat::Same };
    let width = sketch.own.head_dim as u32;
    let kernels = Kernels::load(&card, options.arithmetic.float(), width, kv);
    let kernels_bytes = plan.of(DevicePart::Kernels);
    let kernels = kernels.map_err(failed(&card, "its kernels", kernels_bytes))?;
    meter.took(&mut plan, DevicePart::Kernels)?;
    let held = regions(&card, &mut plan, &sketch, options)?;
    meter.took_beyond(&mut plan, held.mapped().map(|(_, bytes)| bytes).sum())?;
    let gemm = Gemm::new(&card, all(held.workspace.as_ref()));
    let gemm = gemm.map_err(failed(&card, "cuBLASLt", plan.of(DevicePart::Gemm)))?;
    meter.took(&mut plan, DevicePart::Gemm)?;
    let pool = pool(&card, &plan, (options, start))?;
    meter.took_beyond(&mut plan, pool.mapped())?;
    let limits = options.settings.limits;
    let logits = match sketch.program.logits {
        Some(span) => Some(pinned(&card, "logits on the host", limits.outputs * span.width * 4)?),
        None => None,
    };
    let tier = match options.host_pages {
        0 => None,
        pages => Some(pinned(&card, "pages on the host", pages * plan.page.0)?),
    };
    let up = pinned(&card, "inputs on the host", sketch.inputs.bytes())?;
    let chosen = pinned(&card, "tokens on the host", limits.outputs * 4)?;
    meter.took(&mut plan, DevicePart::Context)?;
    let rank = Rank {
        graphs: Vec::new(),
        products: None,
        gemm,
        kernels,
        up,
        chosen,
        logits,
        tier,
        copied,
        computed,
        compute,
        copy,
        pool,
        held,
        sketch,
        arithmetic: options.arithmetic,
        page_bytes: plan.page.0,
        page_tokens: options.page_tokens as u32,
        context: options.settings.context_length,
        card,
    };
    Ok(Taking { rank, plan, meter })
}

/// Addresses of the pool, with memory for its least pages. A device without virtual memory has all of its
/// pool from here on, as it was predicted.
fn pool(
    card: &Rc<Card>,
    plan: &DevicePlan,
    (options, free): (&CudaOptions, Bytes),
) -> Result<Region, CudaError> {
    let most = match card.facts().virtual_memory {
        true => most_pool(plan, &options.args, free),
        false => plan.pool_bytes(),
    };
    debug_assert!(plan.page.0.is_multiple_of(PAGE_ALIGNMENT.0));
    let least = Bytes(plan.settings.least_pages(plan.cell.page_tokens) * plan.page.0);
    let chunks = least.0.div_ceil(plan.chunk.0.max(1));
    let mapped = Region::reserve(card, most, plan.chunk).and_then(|mut pool| {
        pool.map(0..chunks)?;
        Ok(pool)
    });
    mapped.map_err(failed(card, "the pool", least))
}
