//! Opening: a card is measured before its pool is sized. Whatever a library will ever load is loaded here, by
//! running the largest steps and every product; whatever a graph takes is taken here.

use super::{
    error::CudaError,
    execute::{self, Now, Which},
    inputs::Written,
    options::CudaOptions,
    pages::Pages,
    products::Products,
    program::Action,
    rank::{Captured, Rank, Sketch},
    rotary,
    take::{self, Taking},
};
use crate::{
    device::{Comms, DevicePointer, Failure, Part, cards},
    kernels::Dequantise,
};
use plimsoll_core::{
    model::encoding::ENCODINGS,
    policy::plimsoll::device::{DevicePart, DevicePlan},
    tape::own::{DecoderShape, Draw, Outputs, Sequence},
    units::Bytes,
};

/// Columns of the rows that dequantisation is warmed up with: a whole block of every encoding.
const COLUMNS: u32 = 256;

/// What one decode graph takes of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GraphCost {
    /// Requests of its step.
    pub batch: u64,
    /// By what free memory fell when it was captured, uploaded and launched.
    pub bytes: Bytes,
    /// Its nodes.
    pub nodes: usize,
}

/// All ranks, opened.
pub(super) struct Machine {
    pub(super) comms: Option<Comms>,
    pub(super) ranks: Vec<Rank>,
    pub(super) plans: Vec<DevicePlan>,
    pub(super) shape: DecoderShape,
    pub(super) options: CudaOptions,
    /// Pages of the pool, the same on every rank.
    pub(super) pages: Pages,
}

/// A device that is measured and has a pool, and whose weights are zeros.
///
/// It belongs to the thread that opened it.
pub struct OpenedCuda(pub(super) Machine);

impl OpenedCuda {
    /// Opens the cards, takes what the engine and the libraries hold, measures it, and sizes the pool by what
    /// is left.
    ///
    /// # Errors
    /// [`CudaError`]; everything that was taken is given back.
    pub fn open(shape: &DecoderShape, options: &CudaOptions) -> Result<Self, CudaError> {
        options.check(shape)?;
        let ranks = 0..options.devices.len() as u64;
        let sketches = ranks.map(|rank| Sketch::new(shape, options, rank));
        let sketches: Vec<Sketch> = sketches.collect::<Result<_, _>>()?;
        let cards = cards(&options.devices)?;
        let plans = cards.iter().zip(&sketches);
        let plans = plans.map(|(card, sketch)| take::predict(card, sketch, options));
        let plans: Vec<DevicePlan> = plans.collect::<Result<_, _>>()?;
        let mut taking = Vec::new();
        for ((card, sketch), plan) in cards.iter().zip(sketches).zip(plans) {
            taking.push(take::take(card.clone(), sketch, plan, options)?);
        }
        let comms = match taking.len() {
            1 => {
                taking.iter_mut().for_each(|one| {
                    one.plan.measured(DevicePart::Collectives, Bytes::ZERO);
                });
                None
            }
            _ => Some(join(&mut taking)?),
        };
        for one in &mut taking {
            prepare(one, options)?;
        }
        let pages = Pages::new(Bytes(1), Bytes(1), 0);
        let (mut meters, mut ranks, mut plans) = (Vec::new(), Vec::new(), Vec::new());
        for Taking { rank, plan, meter } in taking {
            ranks.push(rank);
            plans.push(plan);
            meters.push(meter);
        }
        let (shape, options) = (shape.clone(), options.clone());
        let mut machine = Machine { comms, ranks, plans, shape, options, pages };
        machine.warm(&mut meters)?;
        machine.capture(&mut meters)?;
        machine.settle(&mut meters)?;
        Ok(Self(machine))
    }

    /// The plan of each rank, with every row measured. All have the same number of pages.
    #[must_use]
    pub fn plans(&self) -> &[DevicePlan] {
        &self.0.plans
    }

    /// The plan of the first rank.
    #[must_use]
    pub fn plan(&self) -> &DevicePlan {
        self.0.plan()
    }

    /// What each decode graph took, by rising batches.
    #[must_use]
    pub fn graphs(&self) -> Vec<GraphCost> {
        self.0.graphs()
    }
}

/// Joins the ranks, and sums once.
fn join(taking: &mut [Taking]) -> Result<Comms, CudaError> {
    for one in &mut *taking {
        one.meter.skip()?;
    }
    let cards: Vec<_> = taking.iter().map(|one| one.rank.card.clone()).collect();
    let comms = Comms::new(&cards).and_then(|comms| {
        let parts = taking
            .iter()
            .map(|one| Part { place: one.rank.held.arena.pointer(), stream: &one.rank.compute });
        let parts: Vec<_> = parts.collect();
        let least = parts.iter().map(|part| part.place.size()).min().unwrap_or(0);
        comms.all_reduce(&parts, least / 4, None)?;
        taking.iter().try_for_each(|one| one.rank.compute.synchronize())?;
        Ok(comms)
    });
    let Some(first) = taking.first() else { return Err(CudaError::Tape("a rank")) };
    let planned = first.plan.of(DevicePart::Collectives);
    let comms = comms.map_err(first.rank.told("NCCL", planned))?;
    for one in taking {
        one.meter.took(&mut one.plan, DevicePart::Collectives)?;
    }
    Ok(comms)
}

/// Fills what a step reads, and loads whatever the kernels and products of this rank load.
fn prepare(one: &mut Taking, options: &CudaOptions) -> Result<(), CudaError> {
    one.meter.skip()?;
    rotary::upload(&one.rank)?;
    one.meter.took(&mut one.plan, DevicePart::Context)?;
    one.rank.clear().map_err(one.rank.told("its memory", Bytes::ZERO))?;
    let code = one.plan.of(DevicePart::Kernels);
    let warmed = one.rank.warm_dequantisation();
    warmed.map_err(one.rank.told("its kernels", code))?;
    one.meter.took(&mut one.plan, DevicePart::Kernels)?;
    let planned = one.plan.of(DevicePart::Gemm);
    let products = one.rank.plan_products(options);
    products.map_err(one.rank.told("cuBLASLt", planned))?;
    one.meter.took(&mut one.plan, DevicePart::Gemm)?;
    Ok(())
}

impl Rank {
    /// Zeros in everything but the rotary table and the pool: what stands in new memory is not known, and a
    /// step may run over weights that are not there yet.
    fn clear(&self) -> Result<(), Failure> {
        let held = &self.held;
        for region in [&held.weights, &held.inputs, &held.arena] {
            self.compute.fill(region.pointer(), 0)?;
        }
        self.compute.synchronize()
    }

    /// One row of every encoding: the driver loads a kernel when it is first asked for.
    fn warm_dequantisation(&mut self) -> Result<(), Failure> {
        let arena = self.held.arena.pointer();
        let (out, stored) = (u64::from(COLUMNS) * 2, u64::from(COLUMNS) * 4);
        if arena.size() < out + stored {
            return Ok(());
        }
        for encoding in ENCODINGS {
            let of = Dequantise {
                encoding,
                out: arena.slice(stored, out)?,
                stored: arena.slice(0, stored)?,
                rows: 1,
                columns: COLUMNS,
                first_column: 0,
                width: COLUMNS,
                out_stride: COLUMNS,
            };
            self.kernels.dequantise(&self.compute, &of)?;
        }
        self.compute.synchronize()
    }

    fn plan_products(&mut self, options: &CudaOptions) -> Result<(), Failure> {
        let (arena, weights) = (self.held.arena.pointer(), self.held.weights.pointer());
        let places = |action: &Action, rows: u32| -> Result<[DevicePointer; 3], Failure> {
            let Action::Product { weight, from, to, .. } = action else {
                return Err(Failure::misuse("cublasLtMatmul", "no product"));
            };
            let rows = u64::from(rows);
            let x = arena.slice(from.offset, rows * from.width * from.value_bytes)?;
            let y = arena.slice(to.offset, rows * to.width * to.value_bytes)?;
            Ok([x, weights.slice(weight.offset, weight.bytes)?, y])
        };
        let how = (self.sketch.rows, self.arithmetic.float(), options.timed_products);
        let made =
            Products::new(&mut self.gemm, &self.sketch.program, how, &places, &self.compute)?;
        self.products = Some(made);
        Ok(())
    }
}

impl Machine {
    /// The plan of the first rank.
    pub(super) fn plan(&self) -> &DevicePlan {
        // There is a rank on each device, and the options name at least one.
        &self.plans[0]
    }

    /// Runs the largest prefill, the largest decode and the smallest on the first layer, which launches every
    /// kernel that the others do.
    fn warm(&mut self, meters: &mut [take::Meter]) -> Result<(), CudaError> {
        for meter in &mut *meters {
            meter.skip()?;
        }
        let settings = self.options.settings;
        // More are not mapped yet.
        let least = settings.least_pages(self.options.page_tokens);
        let pages: Vec<u32> = (0..settings.context_length.div_ceil(self.options.page_tokens))
            .map(|page| (page % least) as u32)
            .collect();
        let tokens = vec![0_u32; settings.limits.tokens as usize];
        self.warm_prefill(&tokens, &pages)?;
        let batch = settings.max_running_requests.min(settings.limits.outputs);
        let before = self.options.page_tokens.min(settings.context_length) as usize - 1;
        let one = |index: usize| {
            let first = index % pages.len().max(1);
            let table = pages.get(first..=first).unwrap_or_default();
            Sequence { tokens: &[0], table, before, outputs: Outputs::Last }
        };
        for batch in [1, batch as usize] {
            let decode: Vec<Sequence<'_>> = (0..batch).map(one).collect();
            self.try_out(&decode, "the largest decode step")?;
        }
        for (meter, plan) in meters.iter_mut().zip(&mut self.plans) {
            meter.took(plan, DevicePart::Kernels)?;
        }
        Ok(())
    }

    fn warm_prefill(&mut self, tokens: &[u32], pages: &[u32]) -> Result<(), CudaError> {
        let settings = self.options.settings;
        let context = settings.context_length as usize;
        let running = settings.max_running_requests as usize;
        let chunks = tokens.chunks(context).take(running).enumerate();
        let outputs = settings.limits.outputs as usize;
        let prefill = chunks.map(|(index, tokens)| Sequence {
            tokens,
            table: pages,
            before: 0,
            outputs: if index < outputs { Outputs::Last } else { Outputs::None },
        });
        let prefill: Vec<Sequence<'_>> = prefill.collect();
        self.try_out(&prefill, "the largest prefill step")
    }

    fn try_out(&mut self, sequences: &[Sequence<'_>], what: &'static str) -> Result<(), CudaError> {
        let written = self.put(sequences, &[None::<Draw>; 0], None)?;
        let now = self.now(&written, sequences.len());
        let done = execute::run(&self.ranks, self.comms.as_ref(), &now, Which::FirstLayer);
        done.and_then(|()| self.wait()).map_err(|failure| self.failed(what, failure))
    }

    /// Captures a decode step for each planned batch, the largest first, and measures what it takes.
    fn capture(&mut self, meters: &mut [take::Meter]) -> Result<(), CudaError> {
        for plan in &mut self.plans {
            plan.measured(DevicePart::Graphs, Bytes::ZERO);
        }
        let [meter] = meters else {
            // The calls of NCCL stay outside of graphs.
            return Ok(());
        };
        meter.skip()?;
        let mut costs = Vec::new();
        for batch in self.options.graphs.clone().into_iter().rev() {
            let captured = self.capture_one(batch as u32)?;
            let Some(plan) = self.plans.first_mut() else { break };
            let cost = meter.took(plan, DevicePart::Graphs)?;
            costs.push(Captured { cost, ..captured });
        }
        costs.reverse();
        if let Some(rank) = self.ranks.first_mut() {
            rank.graphs = costs;
        }
        Ok(())
    }

    fn capture_one(&mut self, batch: u32) -> Result<Captured, CudaError> {
        let written = self.put(&[], &[], Some(batch as usize))?;
        let now = self.now(&written, batch as usize);
        let Some(rank) = self.ranks.first() else { return Err(CudaError::Tape("a rank")) };
        let ranks = std::slice::from_ref(rank);
        let captured = rank.compute.capture(|| execute::run(ranks, None, &now, Which::All));
        let launched = captured.and_then(|graph| {
            graph.upload(&rank.compute)?;
            graph.launch(&rank.compute)?;
            rank.compute.synchronize()?;
            Ok(graph)
        });
        let planned = self.plans.first().map_or(Bytes::ZERO, |plan| plan.of(DevicePart::Graphs));
        let graph = launched.map_err(rank.told("a decode graph", planned))?;
        Ok(Captured { batch, cost: Bytes::ZERO, graph })
    }

    /// Sizes the pool by what is free now, maps it, and closes the plan on what is free then.
    fn settle(&mut self, meters: &mut [take::Meter]) -> Result<(), CudaError> {
        let mut most = u64::MAX;
        for ((rank, meter), plan) in self.ranks.iter().zip(&*meters).zip(&self.plans) {
            let fixed = if rank.card.facts().virtual_memory { u64::MAX } else { plan.pages };
            let within = plan.pages_within(meter.free()?, rank.pool.mapped());
            most = most.min(within).min(fixed);
        }
        for ((rank, meter), plan) in self.ranks.iter_mut().zip(meters).zip(&mut self.plans) {
            let device = rank.card.ordinal();
            let refused = |refusal| CudaError::Refused { device, refusal };
            let so_far = rank.pool.mapped();
            plan.settle(meter.free()?, so_far, most).map_err(refused)?;
            meter.skip()?;
            let pool = plan.pool_bytes();
            let mapped = rank.pool.map(0..pool.0.div_ceil(plan.chunk.0.max(1)));
            mapped.map_err(rank.told("the pool", pool))?;
            meter.took_beyond(plan, rank.pool.mapped().saturating_sub(so_far))?;
            plan.measured(DevicePart::KvPool, rank.pool.mapped());
            plan.close(meter.free()?);
            let unexplained = plan.of(DevicePart::Unexplained);
            if self.options.strict && unexplained > Bytes::ZERO {
                return Err(CudaError::Unexplained { device, unexplained });
            }
        }
        let plan = self.plan();
        self.pages = Pages::new(plan.page, plan.chunk, plan.pages as usize);
        Ok(())
    }

    pub(super) fn graphs(&self) -> Vec<GraphCost> {
        let graphs = self.ranks.first().map(|rank| rank.graphs.as_slice()).unwrap_or_default();
        let cost = |one: &Captured| GraphCost {
            batch: u64::from(one.batch),
            bytes: one.cost,
            nodes: one.graph.nodes(),
        };
        graphs.iter().map(cost).collect()
    }

    /// How a written step of so many sequences is launched.
    pub(super) fn now(&self, written: &Written, batch: usize) -> Now {
        let splits = self.ranks.first().map_or(1, |rank| {
            let multiprocessors = rank.card.facts().multiprocessors;
            rank.sketch.splits(&self.options, multiprocessors, batch as u64)
        });
        Now {
            rows: written.rows as u32,
            outputs: written.outputs as u32,
            tiles: written.tiles as u32,
            splits: splits as u32,
        }
    }

    /// Writes a step's inputs and sends them up, on every rank.
    pub(super) fn put(
        &mut self,
        sequences: &[Sequence<'_>],
        draws: &[Option<Draw>],
        padded: Option<usize>,
    ) -> Result<Written, CudaError> {
        let mut put = Err(CudaError::Tape("a rank"));
        for rank in &mut self.ranks {
            let written = rank.put(sequences, draws, padded);
            put = written.map_err(rank.told("a step's inputs", Bytes::ZERO));
            if put.is_err() {
                break;
            }
        }
        if put.is_err() {
            // What was sent in part is waited for, so that it can be written again.
            let _ = self.wait();
        }
        put
    }

    /// Waits for every rank's work.
    pub(super) fn wait(&self) -> Result<(), Failure> {
        self.ranks.iter().try_for_each(|rank| rank.compute.synchronize())
    }

    /// A failure of some rank's card.
    pub(super) fn failed(&self, what: &'static str, failure: Failure) -> CudaError {
        let lost = self.ranks.iter().find(|rank| rank.card.check().is_err());
        match lost.or(self.ranks.first()) {
            Some(rank) => rank.told(what, Bytes::ZERO)(failure),
            None => CudaError::Tape("a rank"),
        }
    }
}

impl Rank {
    fn put(
        &mut self,
        sequences: &[Sequence<'_>],
        draws: &[Option<Draw>],
        padded: Option<usize>,
    ) -> Result<Written, Failure> {
        let layout = &self.sketch.inputs;
        let written = {
            let mut words = self.up.write::<u32>()?;
            layout.write(&mut words, sequences, draws, padded)
        };
        let device = self.held.inputs.pointer();
        self.compute.copy_in(device.slice(0, layout.head as u64 * 4)?, &self.up, 0)?;
        let (at, bytes) = (layout.tables.offset(), written.tables as u64 * 4);
        if bytes > 0 {
            self.compute.copy_in(device.slice(at, bytes)?, &self.up, at)?;
        }
        Ok(written)
    }
}
