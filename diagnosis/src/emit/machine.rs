//! The device of an emitted file: by name, or the one of the catalog that has the printed memory.

use super::{
    Given, Missing,
    death::Death,
    draft::{Entry, amount, quoted},
    solve::shown,
};
use crate::{
    Case,
    logged::{At, Logged},
};
use plimsoll_catalog::devices;
use plimsoll_core::device::{ComputeCapability, DeviceProfile, MemoryKind, Platform};
use plimsoll_ingest::log::Amount;

/// The entry of the device: as given, as named, by the total that is printed, or by what was free before
/// loading.
pub(super) fn device(
    case: &Case,
    given: &Given<'_>,
    logged: &Logged,
    death: &Death,
) -> Result<Entry, Missing> {
    if let Some(name) = given.device {
        let known = devices::find(name).map_err(|error| {
            Missing::one("a device of the catalog", "--device", error.to_string())
        })?;
        return Ok(Entry::new("device", quoted(&known.name), "as given"));
    }
    if let Some(known) = case.device() {
        return Ok(Entry::new("device", quoted(&known.name), "named in the log"));
    }
    if let Some(total) = total(logged, death) {
        return Ok(of_total(&total, platform(case)));
    }
    let before = logged.before.values().min_by_key(|at| at.value.bytes);
    let before = before.or(logged.free_at_start.as_ref());
    let nearest = before.and_then(|at| {
        let known = nearest(at.value, CONTEXT, platform(case))?;
        let note = format!(
            "not named in the log; nearest to the {} free at {}, --device names another",
            shown(at.value),
            at.place()
        );
        Some(Entry::new("device", quoted(&known.name), note))
    });
    let none = "the log names none, and prints neither a total nor what was free before loading";
    nearest.ok_or_else(|| Missing::one("the device", "--device", none.to_owned()))
}

fn total(logged: &Logged, death: &Death) -> Option<At<Amount>> {
    let of_death = || {
        let at = death.at?;
        Some(At { value: death.shortage()?.capacity?, file: at.file, line: at.line })
    };
    logged.total.or_else(of_death).filter(|at| at.value.bytes > 0)
}

fn of_total(total: &At<Amount>, platform: Option<Platform>) -> Entry {
    let (shown, place) = (shown(total.value), total.place());
    match nearest(total.value, 0.0, platform) {
        Some(known) => {
            let note = format!(
                "not named in the log; nearest to the total of {shown} at {place}, --device names another"
            );
            Entry::new("device", quoted(&known.name), note)
        }
        None => {
            let value = format!("{{ capacity: {}, platform: cuda }}", amount(total.value.bytes));
            let note = format!("not named in the log; total capacity at {place}");
            Entry::new("device", value, note)
        }
    }
}

/// What contexts and communicators may have taken before the first reading, as a share of what was free.
const CONTEXT: f64 = 0.05;

/// As PyTorch names it where memory was refused.
fn platform(case: &Case) -> Option<Platform> {
    let named = case.torch_ooms().map(|(_, oom)| match &*oom.dialect {
        "CUDA" => Some(Platform::Cuda),
        "HIP" => Some(Platform::Rocm),
        "XPU" => Some(Platform::Xpu),
        _ => None,
    });
    named.flatten().next()
}

/// How far a card's total may lie from the catalog's: drivers reserve different amounts.
const SLACK: f64 = 0.005;

/// The device whose total is nearest, at most this share above what is known of it; whole devices with memory
/// of their own, CUDA devices of 2020 and later first: most servers run on them.
fn nearest(known: Amount, share: f64, platform: Option<Platform>) -> Option<DeviceProfile> {
    let whole = devices::all().iter().filter(|(key, ..)| !key.contains("-mig-"));
    let profiles = whole.filter_map(|(key, ..)| devices::find(key).ok());
    let gap = |device: &DeviceProfile| {
        let total = device.runtime_total.value;
        let (low, high) = (total.low.0 as f64, total.high.0 as f64);
        let (least, most) = (known.least() as f64, known.most() as f64);
        let fits = most * (1.0 + share + SLACK) >= low && least <= high * (1.0 + SLACK);
        fits.then(|| (total.mid.0 as f64 - known.bytes as f64).abs())
    };
    profiles
        .filter(|device| device.memory == MemoryKind::Discrete)
        .filter(|device| platform.is_none_or(|platform| device.platform == platform))
        .filter_map(|device| Some((gap(&device)?, device)))
        .min_by(|a, b| {
            let rare = |device: &DeviceProfile| {
                let old = |capability: ComputeCapability| capability.major < 8;
                let old = device.compute_capability().is_some_and(old);
                (device.platform != Platform::Cuda, old)
            };
            let nearer = a.0.total_cmp(&b.0).then_with(|| a.1.key.cmp(&b.1.key));
            rare(&a.1).cmp(&rare(&b.1)).then(nearer)
        })
        .map(|(_, device)| device)
}
