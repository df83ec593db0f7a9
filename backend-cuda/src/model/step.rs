//! The model: steps, and what it holds. Nothing is allocated in a step.

use super::{
    error::CudaError,
    execute::{self, Which},
    inputs::Written,
    open::{GraphCost, Machine},
    pages::PageError,
    room::DeviceRoom,
};
use crate::device::{Failure, Region};
use plimsoll_core::{
    policy::plimsoll::device::{DevicePart, DevicePlan},
    tape::own::{Bounds, DecoderShape, Draw, Sequence},
    units::Bytes,
};
use std::cell::Ref;

/// A dense decoder on CUDA, loaded. It belongs to the thread that opened it.
pub struct CudaModel {
    pub(super) machine: Machine,
    /// By output of the last step: whether the device chose its token.
    drawn: Vec<bool>,
}

/// What came of one output row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Chosen<'a> {
    /// The token that the device chose.
    Token(u32),
    /// The row's logits, one for each of the vocabulary.
    Logits(&'a [f32]),
}

/// What a step gave: one row an output, in the order of the sequences.
pub struct Step<'a> {
    tokens: Ref<'a, [u32]>,
    logits: Ref<'a, [f32]>,
    drawn: &'a [bool],
    vocab: usize,
}

impl Step<'_> {
    /// Rows.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.drawn.len()
    }

    /// A row.
    #[must_use]
    pub fn chosen(&self, row: usize) -> Option<Chosen<'_>> {
        match self.drawn.get(row)? {
            true => self.tokens.get(row).copied().map(Chosen::Token),
            false => {
                let start = row * self.vocab;
                self.logits.get(start..start + self.vocab).map(Chosen::Logits)
            }
        }
    }

    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = Chosen<'_>> {
        (0..self.count()).filter_map(|row| self.chosen(row))
    }
}

/// What one device holds, closed on what is free on it now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceMemory {
    /// CUDA ordinal.
    pub device: u32,
    /// Free now.
    pub free: Bytes,
    /// The plan's rows with what each part holds now beside what was planned.
    pub plan: DevicePlan,
}

impl CudaModel {
    pub(super) fn new(machine: Machine) -> Self {
        let outputs = machine.options.settings.limits.outputs as usize;
        Self { machine, drawn: Vec::with_capacity(outputs) }
    }

    /// Executes one step. `draws` has an entry for each output row, in the order of the sequences: with a draw
    /// the device chooses the token, without one (or beyond the entries) the row's logits come to the host.
    ///
    /// # Errors
    /// [`CudaError`]: what the plan does not cover, ids and pages that are not there; nothing has changed then.
    /// `Lost` when the device is gone.
    pub fn step(
        &mut self,
        sequences: &[Sequence<'_>],
        draws: &[Option<Draw>],
    ) -> Result<Step<'_>, CudaError> {
        self.check(sequences, draws)?;
        let graph = self.graph(sequences);
        let padded = graph.and_then(|at| self.captured(at));
        let written = self.machine.put(sequences, draws, padded)?;
        let ran = match graph {
            Some(at) => self.replay(at),
            None => {
                let machine = &self.machine;
                let now = machine.now(&written, sequences.len());
                execute::run(&machine.ranks, machine.comms.as_ref(), &now, Which::All)
            }
        };
        self.drawn.clear();
        self.drawn
            .extend((0..written.asked).map(|row| draws.get(row).is_some_and(Option::is_some)));
        let put = ran.and_then(|()| self.fetch(&written));
        // Also of a step that was put there in part: the next one writes the same buffers.
        let done = put.and(self.machine.wait());
        done.map_err(|failure| self.machine.failed("a step", failure))?;
        self.result()
    }

    /// The smallest graph that holds a step of one token a sequence.
    fn graph(&self, sequences: &[Sequence<'_>]) -> Option<usize> {
        let graphs = &self.machine.ranks.first()?.graphs;
        let decode = sequences.iter().all(|sequence| sequence.tokens.len() == 1);
        let at = graphs.partition_point(|graph| (graph.batch as usize) < sequences.len());
        (decode && at < graphs.len()).then_some(at)
    }

    fn captured(&self, at: usize) -> Option<usize> {
        let graph = self.machine.ranks.first()?.graphs.get(at)?;
        Some(graph.batch as usize)
    }

    fn replay(&self, at: usize) -> Result<(), Failure> {
        let rank = self.machine.ranks.first();
        match rank.and_then(|rank| Some((rank, rank.graphs.get(at)?))) {
            Some((rank, captured)) => captured.graph.launch(&rank.compute),
            None => Err(Failure::misuse("cuGraphLaunch", "no such graph")),
        }
    }

    /// Brings what was asked for to the host: the chosen tokens, and rows of logits, those side by side in one
    /// copy.
    fn fetch(&self, written: &Written) -> Result<(), Failure> {
        let Some(rank) = self.machine.ranks.first() else { return Ok(()) };
        let (Some(logits), Some(host)) = (rank.sketch.program.logits, &rank.logits) else {
            return Ok(());
        };
        if self.drawn.contains(&true) {
            let chosen = rank.input(rank.sketch.inputs.chosen)?;
            let chosen = chosen.slice(0, written.asked as u64 * 4)?;
            rank.compute.copy_out(&rank.chosen, 0, chosen)?;
        }
        let (all, row) = (rank.span(logits, written.outputs as u32)?, logits.width * 4);
        let mut start = 0;
        for run in self.drawn.chunk_by(|a, b| a == b) {
            if run.first() == Some(&false) {
                let (offset, bytes) = (start as u64 * row, run.len() as u64 * row);
                rank.compute.copy_out(host, offset, all.slice(offset, bytes)?)?;
            }
            start += run.len();
        }
        Ok(())
    }

    fn result(&self) -> Result<Step<'_>, CudaError> {
        let Some(rank) = self.machine.ranks.first() else { return Err(CudaError::Tape("a rank")) };
        let Some(logits) = &rank.logits else { return Err(CudaError::Tape("logits")) };
        let told = |failure| rank.told("a step's results", Bytes::ZERO)(failure);
        Ok(Step {
            tokens: rank.chosen.read::<u32>().map_err(told)?,
            logits: logits.read::<f32>().map_err(told)?,
            drawn: &self.drawn,
            vocab: self.machine.shape.vocab as usize,
        })
    }

    fn check(&self, sequences: &[Sequence<'_>], draws: &[Option<Draw>]) -> Result<(), CudaError> {
        let (machine, settings) = (&self.machine, &self.machine.options.settings);
        let bounds = Bounds {
            positions: settings.context_length as usize,
            page_tokens: machine.options.page_tokens,
            pages: machine.pages.count(),
            vocab: machine.shape.vocab,
        };
        let (mut tokens, mut outputs) = (0_u64, 0_u64);
        for (index, sequence) in sequences.iter().enumerate() {
            let checked = sequence.check(&bounds, |page| machine.pages.is_here(page));
            checked.map_err(|error| CudaError::Sequence { sequence: index, error })?;
            tokens += sequence.tokens.len() as u64;
            outputs += sequence.output_rows() as u64;
        }
        let limits = settings.limits;
        if tokens == 0 || tokens > limits.tokens || outputs > limits.outputs {
            return Err(CudaError::TooLarge { tokens, outputs, limits });
        }
        let few = |what, value: usize, most: u64| match value as u64 {
            value if value > most => Err(CudaError::TooMany { what, value, most }),
            _ => Ok(()),
        };
        few("requests", sequences.len(), settings.max_running_requests)?;
        few("draws", draws.len(), outputs)?;
        if let Some(rank) = machine.ranks.first() {
            let inputs = &rank.sketch.inputs;
            let most = inputs.tables_max() as u64;
            few("pages", inputs.table_words(sequences), most)?;
        }
        draws.iter().enumerate().try_for_each(|(index, draw)| check_draw(index, draw.as_ref()))
    }

    /// Its shape.
    #[must_use]
    pub const fn shape(&self) -> &DecoderShape {
        &self.machine.shape
    }

    /// The plan of the first rank.
    #[must_use]
    pub fn plan(&self) -> &DevicePlan {
        self.machine.plan()
    }

    /// The plan of each rank.
    #[must_use]
    pub fn plans(&self) -> &[DevicePlan] {
        &self.machine.plans
    }

    /// What each decode graph took, by rising batches.
    #[must_use]
    pub fn graphs(&self) -> Vec<GraphCost> {
        self.machine.graphs()
    }

    /// Pages of the pool, lent ones included.
    #[must_use]
    pub const fn pages(&self) -> usize {
        self.machine.pages.count()
    }

    /// Pages that are lent.
    #[must_use]
    pub const fn lent(&self) -> usize {
        self.machine.pages.lent()
    }

    /// Whether pages can be lent: whether the devices give back parts of what they have mapped.
    #[must_use]
    pub fn lends(&self) -> bool {
        self.machine.ranks.iter().all(|rank| matches!(rank.pool, Region::Elastic(_)))
    }

    /// Reads what is free on the devices, from any thread.
    #[must_use]
    pub fn room(&self) -> DeviceRoom {
        DeviceRoom::new(self.machine.ranks.iter().map(|rank| &*rank.card))
    }

    /// What each device holds now. Regions hold what was planned, to the byte; the pool holds what is not lent.
    ///
    /// # Errors
    /// [`CudaError::Lost`].
    pub fn memory(&self) -> Result<Vec<DeviceMemory>, CudaError> {
        let read = |(rank, plan): (&super::rank::Rank, &DevicePlan)| {
            let reading = rank.card.memory().map_err(rank.told("a reading", Bytes::ZERO))?;
            let mut plan = plan.clone();
            for (part, bytes) in rank.held.mapped() {
                plan.measured(part, bytes);
            }
            plan.measured(DevicePart::KvPool, rank.pool.mapped());
            plan.close(reading.0);
            Ok(DeviceMemory { device: rank.card.ordinal(), free: reading.0, plan })
        };
        self.machine.ranks.iter().zip(&self.machine.plans).map(read).collect()
    }

    /// Gives a page away. The memory behind it goes back to the device once all pages that share it are lent.
    /// What it held is lost, and a step that names it is refused until it is taken back.
    ///
    /// # Errors
    /// [`CudaError::Page`] for no such page, one that is lent already, and a device that cannot give parts back.
    pub fn lend(&mut self, page: u32) -> Result<(), CudaError> {
        let machine = &mut self.machine;
        let chunks = machine.pages.would_free(page)?;
        for rank in &mut machine.ranks {
            // Copies of pages may be under way.
            let told = |rank: &super::rank::Rank, failure| {
                rank.told("a page that is lent", Bytes::ZERO)(failure)
            };
            if !chunks.is_empty() {
                rank.copy.synchronize().map_err(|failure| told(rank, failure))?;
                rank.compute.synchronize().map_err(|failure| told(rank, failure))?;
            }
            let range = chunks.start as u64..chunks.end as u64;
            let Some(elastic) = rank.pool.elastic() else {
                return Err(PageError::Fixed { page }.into());
            };
            let gone = elastic.unmap(range);
            gone.map_err(|failure| told(rank, failure))?;
        }
        machine.pages.lend(page);
        Ok(())
    }

    /// Takes a lent page again, with all the memory behind it, on every device or on none.
    ///
    /// # Errors
    /// [`CudaError::Page`] for no such page and one that is here; `OutOfMemory` when a device refuses, and the
    /// page stays lent.
    pub fn take_back(&mut self, page: u32) -> Result<(), CudaError> {
        let machine = &mut self.machine;
        let chunks = machine.pages.would_need(page)?;
        let range = chunks.start as u64..chunks.end as u64;
        let bytes = Bytes(chunks.len() as u64 * machine.plans.first().map_or(0, |p| p.chunk.0));
        for at in 0..machine.ranks.len() {
            let Some(rank) = machine.ranks.get_mut(at) else { break };
            let mapped = rank.pool.map(range.clone());
            if let Err(error) = mapped.map_err(rank.told("a page that is taken back", bytes)) {
                for rank in machine.ranks.iter_mut().take(at) {
                    // It was mapped a moment ago, and nothing has used it.
                    let _ = rank.pool.elastic().map(|elastic| elastic.unmap(range.clone()));
                }
                return Err(error);
            }
        }
        machine.pages.take_back(page);
        Ok(())
    }
}

/// A draw that a kernel could not make sense of is refused here.
fn check_draw(index: usize, draw: Option<&Draw>) -> Result<(), CudaError> {
    let Some(draw) = draw else { return Ok(()) };
    let wrong = |what, value| Err(CudaError::Draw { draw: index, what, value });
    if !(draw.temperature.is_finite() && draw.temperature >= 0.0) {
        return wrong("temperature", f64::from(draw.temperature));
    }
    for (what, value) in [("top_p", draw.top_p), ("min_p", draw.min_p)] {
        if !(0.0..=1.0).contains(&value) {
            return wrong(what, f64::from(value));
        }
    }
    if !(0.0..1.0).contains(&draw.unit) {
        return wrong("unit", draw.unit);
    }
    Ok(())
}
