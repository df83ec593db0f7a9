//! Plimsoll's memory plan on a device.
//!
//! What the engine computes itself (weights, arena, pool, …) is known to the byte. What libraries and the
//! driver take is predicted, taken before the pool, measured, and kept as a row of its own; the pool is what is
//! left. So nothing grows once the server is ready, and what the rows do not explain shows.
//!
//! Every region is mapped in whole chunks, multiples of the driver's page.

mod part;
mod refusal;
#[cfg(test)]
mod tests;

pub use part::{DevicePart, DeviceRow};
pub use refusal::DeviceRefusal;

use super::{KvCell, Settings};
use crate::{
    figure::{Tag, Why},
    units::Bytes,
};

/// Where every rule stands.
const SOURCE: &str = "plimsoll, policy::plimsoll::device";
/// The margin's part of the device, and its ends.
const MARGIN: (u64, Bytes, Bytes) = (64, Bytes::mib(256), Bytes::gib(1));
/// Code of the own kernels on a device; predicted, not measured on one yet.
const KERNELS: Bytes = Bytes::mib(8);
/// cuBLASLt's handle and the kernels of some shapes; predicted, not measured on a device yet.
const GEMM: Bytes = Bytes::mib(96);
/// NCCL's channels for a few GPUs with NVLink: 24 channels of 12 MiB, and 256 MiB of NVLS.
const COLLECTIVES: Bytes = Bytes::mib(544);
/// Device memory of a captured kernel launch; predicted, not measured on a device yet.
const NODE: Bytes = Bytes::kib(8);
/// Page of the driver: graphs grow by it.
const PAGE: Bytes = Bytes::mib(2);
/// Chunks of the pool at most, so that mapping it takes a moment.
const CHUNKS_MAX: u64 = 4096;
/// Pages that can be numbered.
const PAGES_MAX: u64 = 1 << 31;

/// What a device says once its context is there and nothing else is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceReadings {
    /// Total of the device.
    pub total: Bytes,
    /// Free now.
    pub free: Bytes,
    /// The context of this process and what opening the device took.
    pub context: Bytes,
    /// The driver's page: sizes of physical memory are multiples of it.
    pub page: Bytes,
}

/// Regions of one rank, to the byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Regions {
    /// Weights as the device keeps them.
    pub weights: Bytes,
    /// Rotary table.
    pub rotary: Bytes,
    /// Inputs of the largest step.
    pub inputs: Bytes,
    /// Arena of activations.
    pub arena: Bytes,
    /// Attention's scratch.
    pub scratch: Bytes,
    /// Workspace of matrix products.
    pub workspace: Bytes,
}

/// What is to be put on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceEngine {
    /// What is computed.
    pub regions: Regions,
    /// A page of this rank's pool.
    pub cell: KvCell,
    /// What the scheduler may form.
    pub settings: Settings,
    /// Ranks of tensor parallelism.
    pub ranks: u64,
    /// Decode graphs.
    pub graphs: u64,
    /// Kernel launches of one of them.
    pub launches: u64,
}

/// Flags of the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceArgs {
    /// `--mem-margin`: left free.
    pub mem_margin: Option<Bytes>,
    /// `--max-total-tokens`: of the pool, at most; whole pages, rounded up.
    pub max_total_tokens: Option<u64>,
}

/// The plan of one rank. Its rows add up to the device's total.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DevicePlan {
    /// Total of the device.
    pub total: Bytes,
    /// In the order of [`DevicePart`].
    pub rows: Vec<DeviceRow>,
    /// Pages of the pool.
    pub pages: u64,
    /// One page.
    pub page: Bytes,
    /// The pool is mapped in pieces of this size, and given back in them.
    pub chunk: Bytes,
    /// Its cell.
    pub cell: KvCell,
    /// What the scheduler may form.
    pub settings: Settings,
    /// Pages that it needs at least, and has at most.
    bounds: (u64, u64),
}

impl DevicePlan {
    /// Predicts every row and sizes the pool by them.
    ///
    /// # Errors
    /// [`DeviceRefusal`], with the numbers.
    pub fn new(
        readings: &DeviceReadings,
        args: &DeviceArgs,
        engine: &DeviceEngine,
    ) -> Result<Self, DeviceRefusal> {
        let DeviceReadings { total, free, .. } = *readings;
        let weights = engine.regions.weights.round_up_to(readings.page);
        if weights > free {
            return Err(DeviceRefusal::BelowWeights { weights, free, total });
        }
        let bounds = bounds(args, engine)?;
        let rows = rows(readings, args, engine);
        let page = engine.cell.page_bytes(ALIGNMENT);
        let mut plan = Self {
            total,
            rows,
            pages: 0,
            page,
            chunk: chunk_of(readings, page, bounds.1),
            cell: engine.cell,
            settings: engine.settings,
            bounds,
        };
        let ours = [DevicePart::OtherPrograms, DevicePart::Context];
        let needs = plan.rows.iter().filter(|row| !ours.contains(&row.part));
        let needs: Bytes = needs.map(|row| row.planned).sum();
        let Some(left) = free.checked_sub(needs) else {
            return Err(plan.below(needs, free));
        };
        plan.size_pool(left, u64::MAX)?;
        Ok(plan)
    }

    /// A row by its part; zero where there is none.
    #[must_use]
    pub fn of(&self, part: DevicePart) -> Bytes {
        self.row(part).map_or(Bytes::ZERO, DeviceRow::bytes)
    }

    /// A row by its part.
    #[must_use]
    pub fn row(&self, part: DevicePart) -> Option<&DeviceRow> {
        self.rows.iter().find(|row| row.part == part)
    }

    /// Tokens of the pool.
    #[must_use]
    pub const fn pool_tokens(&self) -> u64 {
        self.pages * self.cell.page_tokens
    }

    /// Bytes of the pool in whole chunks.
    #[must_use]
    pub fn pool_bytes(&self) -> Bytes {
        Bytes(self.pages * self.page.0).round_up_to(self.chunk)
    }

    /// Notes what taking a part has really cost.
    pub fn measured(&mut self, part: DevicePart, bytes: Bytes) {
        if let Some(row) = self.rows.iter_mut().find(|row| row.part == part) {
            row.measured = Some(bytes);
        }
    }

    /// Pages that the pool can have now that everything else is taken: `free` is the reading, `pool` what the
    /// pool holds already.
    #[must_use]
    pub fn pages_within(&self, free: Bytes, pool: Bytes) -> u64 {
        self.pages_in(self.left_for_pool(free, pool))
    }

    /// Sizes the pool by what was measured: every other part has been taken, `free` is the reading, `pool` what
    /// the pool holds already, and no rank of several can have more than `most` pages.
    ///
    /// # Errors
    /// [`DeviceRefusal::PoolTooSmall`].
    pub fn settle(&mut self, free: Bytes, pool: Bytes, most: u64) -> Result<(), DeviceRefusal> {
        self.size_pool(self.left_for_pool(free, pool), most)?;
        // What is held by then but by no row; the pool is about to take what `pool` lacks.
        let free_then = free.saturating_add(pool).saturating_sub(self.pool_bytes());
        self.close(free_then);
        Ok(())
    }

    /// Closes the rows on a reading of what is free: what they do not explain becomes a row.
    pub fn close(&mut self, free: Bytes) {
        let open = [DevicePart::Margin, DevicePart::Rest, DevicePart::Unexplained];
        let held = self.rows.iter().filter(|row| !open.contains(&row.part));
        let held: Bytes = held.map(DeviceRow::bytes).sum();
        let unexplained = self.total.saturating_sub(free).saturating_sub(held);
        let left = self.total.saturating_sub(held).saturating_sub(unexplained);
        let margin = self.of(DevicePart::Margin).min(left);
        self.measured(DevicePart::Margin, margin);
        self.measured(DevicePart::Rest, left.saturating_sub(margin));
        self.measured(DevicePart::Unexplained, unexplained);
    }

    fn left_for_pool(&self, free: Bytes, pool: Bytes) -> Bytes {
        free.saturating_add(pool).saturating_sub(self.of(DevicePart::Margin))
    }

    fn pages_in(&self, left: Bytes) -> u64 {
        let whole = left.0 / self.chunk.0.max(1) * self.chunk.0;
        (whole / self.page.0.max(1)).min(self.bounds.1)
    }

    fn size_pool(&mut self, left: Bytes, most: u64) -> Result<(), DeviceRefusal> {
        let (pages, least) = (self.pages_in(left).min(most), self.bounds.0);
        if pages < least {
            return Err(DeviceRefusal::PoolTooSmall { pages, least, page: self.page });
        }
        self.pages = pages;
        let pool = self.pool_bytes();
        let why = Why::new(Tag::Computed, "(free - margin) in whole chunks / page", SOURCE)
            .with("left", left)
            .with("chunk", self.chunk)
            .with("page", self.page)
            .with("pages", pages)
            .with("page_tokens", self.cell.page_tokens);
        self.put(DevicePart::KvPool, pool, why);
        let rest = Why::new(Tag::Computed, "free - margin - pool", SOURCE);
        self.put(DevicePart::Rest, left.saturating_sub(pool), rest);
        Ok(())
    }

    fn put(&mut self, part: DevicePart, planned: Bytes, why: Why) {
        self.rows.retain(|row| row.part != part);
        self.rows.push(DeviceRow { part, planned, measured: None, why });
        self.rows.sort_by_key(|row| row.part);
    }

    fn below(&self, needs: Bytes, free: Bytes) -> DeviceRefusal {
        let ways = [
            (DevicePart::Arena, "--chunked-prefill-size"),
            (DevicePart::Rotary, "--context-length"),
            (DevicePart::Inputs, "--max-running-requests"),
            (DevicePart::Graphs, "--cuda-graph-max-bs"),
            (DevicePart::Margin, "--mem-margin"),
        ];
        let larger = |best: (DevicePart, _), way: (DevicePart, _)| {
            if self.of(way.0) > self.of(best.0) { way } else { best }
        };
        let (part, flag) = ways.into_iter().fold(ways[0], larger);
        let (weights, margin) = (self.of(DevicePart::Weights), self.of(DevicePart::Margin));
        DeviceRefusal::BelowEngine {
            needs,
            weights,
            margin,
            free,
            part,
            bytes: self.of(part),
            flag,
        }
    }
}

/// Pages begin at multiples of this: a kernel loads 16 bytes at a time, and the driver's own allocations begin at 256.
const ALIGNMENT: Bytes = Bytes(256);

/// Pages that the pool needs, and those that it may have.
fn bounds(args: &DeviceArgs, engine: &DeviceEngine) -> Result<(u64, u64), DeviceRefusal> {
    let least = engine.settings.least_pages(engine.cell.page_tokens);
    let most = match args.max_total_tokens {
        Some(tokens) => {
            let pages = engine.cell.pages_for(tokens);
            if pages < least {
                return Err(DeviceRefusal::TotalTooSmall { tokens, pages, least });
            }
            pages
        }
        None => PAGES_MAX,
    };
    Ok((least, most.min(PAGES_MAX)))
}

/// Whole driver pages, so many of them that the pool has no more than [`CHUNKS_MAX`] chunks.
fn chunk_of(readings: &DeviceReadings, page: Bytes, most: u64) -> Bytes {
    let pool = readings.free.min(Bytes(page.0.saturating_mul(most)));
    let unit = readings.page.max(Bytes(1));
    Bytes(pool.0.div_ceil(CHUNKS_MAX)).round_up_to(unit).max(unit)
}

fn rows(readings: &DeviceReadings, args: &DeviceArgs, engine: &DeviceEngine) -> Vec<DeviceRow> {
    let DeviceReadings { total, free, context, page } = *readings;
    let taken = total.saturating_sub(free);
    let others = taken.saturating_sub(context);
    let regions = &engine.regions;
    let launches = engine.graphs.saturating_mul(engine.launches);
    let graphs = Bytes(launches.saturating_mul(NODE.0)).round_up_to(PAGE);
    let collectives = if engine.ranks > 1 { COLLECTIVES } else { Bytes::ZERO };
    let whole = |bytes: Bytes| bytes.round_up_to(page);
    let (measured, computed, assumed) = (Tag::Measured, Tag::Computed, Tag::Assumed);
    let row = |part, planned, tag, rule: &str| {
        let measured = (tag == Tag::Measured).then_some(planned);
        DeviceRow { part, planned, measured, why: Why::new(tag, rule, SOURCE) }
    };
    let region = "whole pages of the driver";
    let mut rows = vec![
        row(DevicePart::OtherPrograms, others, measured, "total - free - context"),
        row(DevicePart::Context, context, measured, "free before the context - after"),
        row(DevicePart::Kernels, KERNELS, assumed, "code of the fat binary, one architecture"),
        row(DevicePart::Gemm, GEMM, assumed, "handle and kernels of the planned shapes"),
        row(DevicePart::Collectives, collectives, assumed, "24 channels x 12 MiB + NVLS 256 MiB"),
        row(DevicePart::Weights, whole(regions.weights), computed, region),
        row(DevicePart::Rotary, whole(regions.rotary), computed, region),
        row(DevicePart::Inputs, whole(regions.inputs), computed, region),
        row(DevicePart::Arena, whole(regions.arena), computed, region),
        row(DevicePart::Scratch, whole(regions.scratch), computed, region),
        row(DevicePart::Workspace, whole(regions.workspace), computed, region),
        row(DevicePart::Graphs, graphs, assumed, "graphs x launches x 8 KiB"),
        margin(args, total),
        row(DevicePart::Unexplained, Bytes::ZERO, computed, "total - free - all rows"),
    ];
    rows.sort_by_key(|row| row.part);
    rows
}

fn margin(args: &DeviceArgs, total: Bytes) -> DeviceRow {
    let (part, least, most) = MARGIN;
    let (planned, why) = match args.mem_margin {
        Some(bytes) => (bytes, Why::new(Tag::Measured, "given", "--mem-margin")),
        None => {
            let bytes = Bytes(total.0 / part).clamp(least, most);
            (bytes, Why::new(Tag::Assumed, "total / 64, 256 MiB to 1 GiB", SOURCE))
        }
    };
    DeviceRow { part: DevicePart::Margin, planned, measured: None, why: why.with("total", total) }
}
