//! The start of a log, planned: its launch, its model of the catalog, its device, its own figures. What a log
//! cannot say - what the heaviest prefill needs - the plan says.

use plimsoll_catalog::devices;
use plimsoll_core::device::{DeviceProfile, MemoryKind};
use plimsoll_core::figure::Tag;
use plimsoll_core::units::Bytes;
use plimsoll_ingest::launch::{EngineLaunch, Launch};
use plimsoll_ingest::log::Amount;
use plimsoll_replay::assemble::{ModelAsk, case_launch, find_device, find_model, ranks_of};
use plimsoll_replay::plan::{Plan, plan};
use plimsoll_replay::start::{self, CapacityReading, Fact, Facts};

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
    let Some(launch) = case.launched() else { return Vec::new() };
    let (devices, known) = match case.device() {
        Some(device) => (vec![device], DeviceKnown::Named),
        None => (fitting(rank), DeviceKnown::Fits),
    };
    let plans = devices.into_iter().filter_map(|device| {
        let plan = one(case, launch.clone(), rank, &device)?;
        Some(Planned { plan, device, known })
    });
    plans.collect()
}

fn one(case: &Case, mut launch: Launch, rank: &RankLedger, device: &DeviceProfile) -> Option<Plan> {
    let device = find_device(&device.key, &mut launch).ok()?;
    bounded(&mut launch, rank);
    let mut ask = ModelAsk::of_launch(&launch.engine);
    ask.name = case.asked.model.clone().or(ask.name);
    let model = find_model(&ask, &launch.engine, &case.asked.places).ok()?;
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

/// What the server printed stands for what the command leaves open.
fn bounded(launch: &mut Launch, rank: &RankLedger) {
    let EngineLaunch::Sglang(args) = &mut launch.engine else { return };
    let limits = rank.limits;
    // With attention data parallel the printed chunk is one worker's share.
    if !args.enable_dp_attention {
        let chunk = limits.chunk.and_then(|chunk| i64::try_from(chunk).ok());
        args.chunked_prefill_size = args.chunked_prefill_size.or(chunk);
    }
    args.max_running_requests = args.max_running_requests.or(limits.running);
    args.context_length = args.context_length.or(limits.context);
    let fraction = rank.fraction.map(|fraction| fraction.value);
    args.mem_fraction_static = args.mem_fraction_static.or(fraction);
}

/// The log's figures. What is left is taken at its most, so that rounding never makes a finding.
fn facts(rank: &RankLedger) -> Facts {
    let fact = |amount: Option<Amount>| {
        let bytes = u64::try_from(amount?.bytes).ok()?;
        Some(Fact::all(Bytes(bytes), Tag::Measured, "log"))
    };
    let left = rank.left.filter(|(_, stage)| *stage >= Stage::AfterGraphs);
    Facts {
        free_before_load: fact(rank.before),
        free_after_load: fact(rank.after),
        free_after_graphs: fact(left.map(|(left, _)| Amount::exact(left.most()))),
        ..Facts::default()
    }
}

/// Devices whose memory is what was free before loading, and a context: nearest first.
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
        .filter_map(|device| gap(&device).map(|gap| (gap, device)))
        .collect();
    fits.sort_by(|a, b| (a.0, &a.1.key).cmp(&(b.0, &b.1.key)));
    fits.into_iter().map(|(_, device)| device).take(TRIED).collect()
}
