//! The start of a log, planned: its launch, its model of the catalog, its device, its own figures. What a log
//! cannot say - what the heaviest prefill needs - the plan says.

use plimsoll_catalog::devices;
use plimsoll_core::device::{DeviceProfile, MemoryKind};
use plimsoll_core::figure::Tag;
use plimsoll_core::units::{Bytes, GIB};
use plimsoll_ingest::launch::{EngineLaunch, Launch};
use plimsoll_ingest::log::Amount;
use plimsoll_replay::assemble::{ModelAsk, case_launch, find_device, find_model, ranks_of};
use plimsoll_replay::plan::{Plan, plan};
use plimsoll_replay::start::{self, CapacityReading, CaseModel, Fact, Facts};

use crate::Case;
use crate::reconstruct::{RankLedger, Stage};

/// A plan of the start that the log tells.
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// On which device.
    pub device: DeviceProfile,
    /// How that device is known.
    pub known: DeviceKnown,
}

/// How a device is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKnown {
    /// The log or the user names it.
    Named,
    /// No line names it; it is one that has about this much memory.
    Fits,
}

/// Devices that are tried at most when no line names one.
const TRIED: usize = 3;

/// Plans the start; one plan a device that it may be. Empty without a launch, for a model that the catalog does
/// not know, or where no device fits.
#[must_use]
pub fn planned(case: &Case, rank: &RankLedger) -> Vec<Planned> {
    let Some(launch) = case.launched().filter(|_| sound(rank)) else { return Vec::new() };
    // Most models are not in the catalog: looked up before any device.
    let Some(model) = model(case, &launch) else { return Vec::new() };
    let (devices, known) = match case.device() {
        Some(device) => (vec![device], DeviceKnown::Named),
        None => (fitting(rank), DeviceKnown::Fits),
    };
    let plans = devices.into_iter().filter_map(|device| {
        let plan = one(launch.clone(), model.clone(), rank, &device)?;
        Some(Planned { plan, device, known })
    });
    plans.collect()
}

fn model(case: &Case, launch: &Launch) -> Option<CaseModel> {
    let mut ask = ModelAsk::of_launch(&launch.engine);
    ask.name = case.asked.model.clone().or(ask.name);
    find_model(&ask, &launch.engine, &case.asked.places).ok()
}

fn one(
    mut launch: Launch,
    model: CaseModel,
    rank: &RankLedger,
    device: &DeviceProfile,
) -> Option<Plan> {
    let device = find_device(&device.key, &mut launch).ok()?;
    bounded(&mut launch, rank);
    let case = start::Case {
        launch: case_launch(&launch.engine),
        model,
        device,
        capacity: CapacityReading::Catalog,
        ranks: ranks_of(&launch.engine),
        facts: facts(rank),
        tenants: Vec::new(),
    };
    plan(&case).ok()
}

/// The start of vLLM with this much for KV, as its log prints: what the engine's own check of one request says.
/// `None` where the launch gives the pool itself, or the release has no such flag.
#[must_use]
pub(crate) fn with_pool(case: &Case, rank: &RankLedger, bytes: Amount) -> Option<Plan> {
    let mut launch = case.launched().filter(|_| sound(rank) && bytes.most() < MOST)?;
    let EngineLaunch::Vllm(args) = &mut launch.engine else { return None };
    if args.kv_cache_memory_bytes.is_some() || args.num_gpu_blocks_override.is_some() {
        return None;
    }
    args.kv_cache_memory_bytes = u64::try_from(bytes.most()).ok().filter(|bytes| *bytes > 0);
    let device = case.device().or_else(|| fitting(rank).into_iter().next());
    let device = device.or_else(|| devices::find("h100-sxm-80gb").ok())?;
    let model = model(case, &launch)?;
    one(launch, model, rank, &device)
}

/// Readings that a start can have: none is more than the one before, and all are of this world. Logs are foreign
/// text; a plan is made for machines.
fn sound(rank: &RankLedger) -> bool {
    let readings = [rank.before, rank.after, rank.left.map(|left| left.bytes)];
    let mut bytes = readings.into_iter().flatten().map(|amount| amount.bytes);
    bytes.all(|bytes| (0..MOST).contains(&bytes))
}

/// Memory that no device has, 2 TiB.
const MOST: i64 = 2 << 40;

/// Tokens of a chunk, requests, and tokens of a context that no server has.
const CHUNK: u64 = 1 << 20;
const RUNNING: u64 = 1 << 16;
const CONTEXT: u64 = 1 << 25;

/// A limit that a server can have.
fn limit(printed: Option<u64>, most: u64) -> Option<u64> {
    printed.filter(|printed| (1..most).contains(printed))
}

/// What the server printed stands for what the command leaves open.
fn bounded(launch: &mut Launch, rank: &RankLedger) {
    let EngineLaunch::Sglang(args) = &mut launch.engine else { return };
    let limits = rank.limits;
    // With attention data parallel the printed chunk is one worker's share.
    if !args.enable_dp_attention {
        let chunk = limit(limits.chunk, CHUNK).and_then(|chunk| i64::try_from(chunk).ok());
        args.chunked_prefill_size = args.chunked_prefill_size.or(chunk);
    }
    args.max_running_requests = args.max_running_requests.or(limit(limits.running, RUNNING));
    args.context_length = args.context_length.or(limit(limits.context, CONTEXT));
    let fraction = rank.fraction.map(|fraction| fraction.value);
    args.mem_fraction_static = args.mem_fraction_static.or(fraction);
}

/// The log's figures. What is left is taken at its most, so that rounding never makes a finding.
fn facts(rank: &RankLedger) -> Facts {
    let fact = |amount: Option<Amount>| {
        let bytes = u64::try_from(amount?.bytes).ok()?;
        Some(Fact::all(Bytes(bytes), Tag::Measured, "log"))
    };
    let left = rank.left.filter(|left| left.stage >= Stage::AfterGraphs);
    Facts {
        free_before_load: fact(rank.before),
        free_after_load: fact(rank.after),
        free_after_graphs: fact(left.map(|left| Amount::exact(left.bytes.most()))),
        ..Facts::default()
    }
}

/// Devices whose memory is what was free before loading, and a context: the one whose context comes nearest
/// first.
fn fitting(rank: &RankLedger) -> Vec<DeviceProfile> {
    let Some(before) = rank.before.and_then(|before| u64::try_from(before.bytes).ok()) else {
        return Vec::new();
    };
    let gap = |device: &DeviceProfile| {
        device.runtime_total.value.high.0.checked_sub(before).filter(|gap| *gap < before / 20)
    };
    let whole = devices::all().iter().filter(|(key, ..)| !key.contains("-mig-"));
    let profiles = whole.filter_map(|(key, ..)| devices::find(key).ok());
    let mut fits: Vec<(u64, DeviceProfile)> = profiles
        .filter(|device| device.memory == MemoryKind::Discrete)
        .filter_map(|device| gap(&device).map(|gap| (gap.abs_diff(context(&device)), device)))
        .collect();
    fits.sort_by(|a, b| (a.0, &a.1.key).cmp(&(b.0, &b.1.key)));
    fits.into_iter().map(|(_, device)| device).take(TRIED).collect()
}

/// What a context and communicators take on a device, bytes; 0.9 GiB where no log showed it.
fn context(device: &DeviceProfile) -> u64 {
    device.context.as_ref().map_or(GIB / 10 * 9, |context| context.value.mid.0)
}
