//! The plan: rows whose sum is the limit, and the pages of the pool.

use super::{
    HostReadings, KvCell, Limit, Part, PlanArgs, PlanRow, Settings,
    refusal::{Refusal, WayOut},
};
use crate::{
    figure::{Estimate, Tag, Why},
    memory::ledger::Ledger,
    tape::own::{self, ArenaPlan, DecoderShape, Workspace},
    units::Bytes,
};

/// Where every rule stands.
const SOURCE: &str = "plimsoll, policy::plimsoll::plan";
/// Mappings that the rest of the process may need: libraries, heaps, stacks, large allocations.
const MAPS_OF_OTHERS: u64 = 4096;
/// Bytes that one byte of a page table of x86-64 and AArch64 maps: 4096 by 8.
const MAPPED_BY_TABLE: u64 = 512;
/// The margin's part of the limit, and its ends.
const MARGIN: (u64, Bytes, Bytes) = (16, Bytes::mib(64), Bytes::gib(1));

/// Room that is set aside for what has no exact size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budgets {
    /// Of one running request beside its sampler's choice: ids, counts, text that is held back.
    pub request: Bytes,
    /// Of one thread's stack, as far as it is used.
    pub stack: Bytes,
    /// Tokenizer and chat template.
    pub tokenizer: Bytes,
    /// Connections, bodies and streams.
    pub http: Bytes,
    /// Buffers of the recording.
    pub recording: Bytes,
    /// Queues and scratch of libraries.
    pub library: Bytes,
}

impl Default for Budgets {
    /// For a server of some thousand streams with a vocabulary of 150,000.
    fn default() -> Self {
        Self {
            request: Bytes::kib(64),
            stack: Bytes::kib(256),
            tokenizer: Bytes::mib(48),
            http: Bytes::mib(32),
            recording: Bytes::mib(2),
            library: Bytes::mib(2),
        }
    }
}

/// What is to be loaded.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Engine<'a> {
    /// The model.
    pub shape: &'a DecoderShape,
    /// A page of its pool.
    pub cell: KvCell,
    /// Weights by the checkpoint's bytes in the form in which they are kept.
    pub weights: Bytes,
    /// What its projections need beside their outputs.
    pub workspace: Workspace,
    /// Scratch of the executing backend for the settings' largest step.
    pub scratch: Bytes,
    /// Threads of the process.
    pub threads: u64,
    /// The rest.
    pub budgets: Budgets,
}

/// What the engine will hold, to the byte.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// How much it may hold.
    pub limit: Limit,
    /// In the order of [`Part`]; their sum is the limit.
    pub rows: Vec<PlanRow>,
    /// Pages of the pool.
    pub pages: u64,
    /// One page.
    pub page: Bytes,
    /// Its cell.
    pub cell: KvCell,
    /// What the scheduler may form.
    pub settings: Settings,
}

impl Plan {
    /// Bytes of a part.
    #[must_use]
    pub fn of(&self, part: Part) -> Bytes {
        self.rows.iter().filter(|row| row.part == part).map(|row| row.bytes).sum()
    }

    /// Tokens of the pool.
    #[must_use]
    pub const fn pool_tokens(&self) -> u64 {
        self.pages * self.cell.page_tokens
    }

    /// The same as a ledger of accounts, which closes.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::new(self.limit.bytes);
        for row in &self.rows {
            ledger.hold(row.part.account(), Estimate::exact(row.bytes), row.why.clone());
        }
        ledger
    }
}

/// Plans.
///
/// The margin is what stays free of the limit: a sixteenth of it, at least 64 MiB and at most 1 GiB. Others
/// fill new memory at about 1 GiB/s a core, and the watcher looks some ten times a second: 64 MiB last for a
/// look, and pages go back long before a kernel has to choose whom to kill. What the plan has wrong comes out
/// of it too.
///
/// # Errors
/// [`Refusal`], with the numbers.
pub fn plan(
    readings: &HostReadings,
    args: &PlanArgs,
    engine: &Engine<'_>,
) -> Result<Plan, Refusal> {
    let settings = Settings::new(args, engine.shape)?;
    let limit = readings.limit(args.memory_limit);
    if engine.weights > limit.bytes {
        return Err(Refusal::BelowWeights { limit, weights: engine.weights });
    }
    let mut rows = fixed(readings, &settings, engine)?;
    rows.push(page_tables(limit.bytes));
    rows.push(margin(args, &limit));
    let needs = rows.iter().fold(Bytes::ZERO, |sum, row| sum.saturating_add(row.bytes));
    let Some(left) = limit.bytes.checked_sub(needs) else {
        return Err(below(limit, needs, &rows));
    };
    let page = engine.cell.page_bytes(readings.system_page);
    let (pages, least) = pages(readings, args, &settings, engine, (left, page))?;
    if pages < least {
        return Err(Refusal::PoolTooSmall { limit, pages, least, page });
    }
    let pool = Bytes(pages * page.0);
    let why = Why::new(Tag::Computed, "(limit - all other rows) / page, whole pages", SOURCE)
        .with("left", left)
        .with("page", page)
        .with("pages", pages)
        .with("page_tokens", engine.cell.page_tokens)
        .with("token", engine.cell.token_bytes());
    rows.push(PlanRow { part: Part::KvPool, bytes: pool, why });
    let rest = Why::new(Tag::Computed, "limit - all rows", SOURCE);
    rows.push(PlanRow { part: Part::Rest, bytes: left.saturating_sub(pool), why: rest });
    rows.sort_by_key(|row| row.part);
    Ok(Plan { limit, rows, pages, page, cell: engine.cell, settings })
}

/// Pages that there will be, and how many there must be.
fn pages(
    readings: &HostReadings,
    args: &PlanArgs,
    settings: &Settings,
    engine: &Engine<'_>,
    (left, page): (Bytes, Bytes),
) -> Result<(u64, u64), Refusal> {
    let least = settings.least_pages(engine.cell.page_tokens);
    let mut pages = (left.0 / page.0.max(1)).min(1 << 31);
    // Every page may become a mapping of its own, when those beside it are lent.
    if let Some(maps) = readings.maps_max {
        pages = pages.min(maps.saturating_sub(MAPS_OF_OTHERS));
    }
    if let Some(tokens) = args.max_total_tokens {
        let most = engine.cell.pages_for(tokens);
        if most < least {
            return Err(Refusal::TotalTooSmall { tokens, pages: most, least });
        }
        pages = pages.min(most);
    }
    Ok((pages, least))
}

/// What does not depend on the limit.
fn fixed(
    readings: &HostReadings,
    settings: &Settings,
    engine: &Engine<'_>,
) -> Result<Vec<PlanRow>, Refusal> {
    let Engine { shape, budgets, .. } = engine;
    let (running, limits) = (settings.max_running_requests, settings.limits);
    let arena = ArenaPlan::new(&own::tape(shape, engine.workspace)?, limits)?.total;
    // It begins at a cache line.
    let arena = arena.saturating_add(own::ALIGNMENT);
    // A logit and its id, for each of the vocabulary.
    let choice = Bytes(shape.vocab.saturating_mul(8));
    let times = |count: u64, bytes: Bytes| Bytes(bytes.0.saturating_mul(count));
    let rotary = times(settings.context_length, Bytes(4 * shape.head_dim));
    let requests = times(running, choice.saturating_add(budgets.request));
    let row =
        |part, bytes, tag, rule: &str| PlanRow { part, bytes, why: Why::new(tag, rule, SOURCE) };
    let (measured, computed, assumed) = (Tag::Measured, Tag::Computed, Tag::Assumed);
    let mut rows = vec![
        row(Part::Process, readings.resident, measured, "resident before loading"),
        row(Part::Weights, engine.weights, computed, "rows x bytes of a row as kept, all tensors"),
        row(Part::Rotary, rotary, computed, "context x head width x 4"),
        row(Part::Arena, arena, computed, "buffers of the largest step, packed by their lives"),
        row(Part::Scratch, engine.scratch, computed, "the backend's, for the largest step"),
        row(Part::Requests, requests, computed, "running x (vocabulary x 8 + budget)"),
        row(Part::Stacks, times(engine.threads, budgets.stack), assumed, "threads x budget"),
        row(Part::Tokenizer, budgets.tokenizer, assumed, "budget"),
        row(Part::Http, budgets.http, assumed, "budget"),
        row(Part::Recording, budgets.recording, assumed, "budget"),
        row(Part::Library, budgets.library, assumed, "budget"),
    ];
    for row in &mut rows {
        let (name, value) = match row.part {
            Part::Rotary => ("context_length", settings.context_length),
            Part::Arena => ("tokens", limits.tokens),
            Part::Requests => ("max_running_requests", running),
            Part::Stacks => ("threads", engine.threads),
            _ => continue,
        };
        row.why = row.why.clone().with(name, value);
    }
    Ok(rows)
}

fn page_tables(limit: Bytes) -> PlanRow {
    let why = Why::new(Tag::Computed, "limit / 512: eight bytes a page of 4096", SOURCE);
    let bytes = Bytes(limit.0.div_ceil(MAPPED_BY_TABLE));
    PlanRow { part: Part::PageTables, bytes, why }
}

fn margin(args: &PlanArgs, limit: &Limit) -> PlanRow {
    let (part, least, most) = MARGIN;
    let (bytes, why) = match args.mem_margin {
        Some(bytes) => (bytes, Why::new(Tag::Measured, "given", "--mem-margin")),
        None => {
            let bytes = Bytes(limit.bytes.0 / part).clamp(least, most);
            (bytes, Why::new(Tag::Assumed, "limit / 16, 64 MiB to 1 GiB", SOURCE))
        }
    };
    PlanRow { part: Part::Margin, bytes, why: why.with("limit", limit.bytes) }
}

fn below(limit: Limit, needs: Bytes, rows: &[PlanRow]) -> Refusal {
    let of = |part| rows.iter().find(|row| row.part == part).map_or(Bytes::ZERO, |row| row.bytes);
    let ways = [
        (Part::Arena, "--chunked-prefill-size"),
        (Part::Rotary, "--context-length"),
        (Part::Requests, "--max-running-requests"),
        (Part::Margin, "--mem-margin"),
    ];
    let ways = ways.map(|(part, flag)| WayOut { part, bytes: of(part), flag });
    let way =
        ways.into_iter().fold(ways[0], |best, way| if way.bytes > best.bytes { way } else { best });
    Refusal::BelowEngine { limit, needs, weights: of(Part::Weights), margin: of(Part::Margin), way }
}
