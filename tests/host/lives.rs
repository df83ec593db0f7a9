//! Every scenario of the project, its start and its life, in real memory: the digests of the simulator. The
//! founding crash among them, with and without expandable segments.

use plimsoll_backend_host::{
    self as host, HostBackend, HostSpec, Limit, Meter, RankSpec, TouchPolicy,
};
use plimsoll_backend_sim::{DeviceMemory, DeviceSpec, MachineSpec, SimBackend, TotalReading};
use plimsoll_core::{
    backend::{Backend, BackendError, Rank},
    decision::Record,
    engine::{
        metrics::Slo,
        serving::{Limits, Pace, ServeEnd, Watchers},
        startup::StartEnd,
    },
    memory::ledger::{Account, Ledger},
    units::Bytes,
};
use plimsoll_replay::{
    assemble,
    ballast::Ballast,
    folder,
    run::wire_record,
    scenario::Scenario,
    serve::{Load, serve},
    start::{self, CaseError, Machine, MakeMachine},
};
use std::{cell::RefCell, fs, path::Path};

/// What a life may really touch here: enough to be real, little enough for a test.
const TOUCHED: Bytes = Bytes::mib(32);

fn rank_spec(device: &DeviceSpec) -> RankSpec {
    RankSpec {
        capacity: device.capacity,
        tool_capacity: device.tool_capacity,
        total: match device.total {
            TotalReading::Works => host::TotalReading::Works,
            TotalReading::Fails => host::TotalReading::Fails,
            TotalReading::Wrong(total) => host::TotalReading::Wrong(total),
        },
        driver_reserve: device.driver_reserve,
        others: device.others,
        granularity: device.granularity,
    }
}

/// The simulator's machine in real memory.
fn in_memory(machine: &MachineSpec) -> Result<HostBackend, BackendError> {
    HostBackend::new(&HostSpec {
        ranks: machine.devices.iter().map(rank_spec).collect(),
        host_available: SimBackend::new(machine.clone())?.host_available()?,
        limit: Limit::Broker,
        touch: TouchPolicy { total: TOUCHED, neighbours: Bytes::mib(8), ..TouchPolicy::default() },
    })
}

/// Whether real memory stands for all of a machine: what else there is, only the simulator has.
fn is_plain(machine: &MachineSpec) -> bool {
    let own = machine.devices.iter().all(|d| d.memory == DeviceMemory::Own && d.node == 0);
    own && machine.faults.is_empty() && machine.fail_at.is_none() && machine.host.cgroup.is_none()
}

/// Who decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Body {
    /// Real memory and its broker; the simulator where that is not all of the machine.
    Real,
    /// The simulator, and real memory holds what it says.
    Ballast,
}

/// A life: every decision in its order, the end under load if there was one, and the account after the start.
#[derive(PartialEq, Debug)]
struct Life {
    decisions: Vec<String>,
    end: Option<ServeEnd>,
    ledger: Ledger,
}

fn live(
    scenario: &Scenario,
    file: &Path,
    make: MakeMachine<'_>,
) -> Result<(Life, Machine), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let assembled = assemble::of_scenario(scenario, file).map_err(|e| text(&e))?;
    let mut records: Vec<Record> = Vec::new();
    let (ran, mut machine) =
        start::run_on(&assembled.case, make, &mut records).map_err(|e| text(&e))?;
    let mut end = None;
    let traces = scenario.traces(file, true).map_err(|e| text(&e))?;
    if let (Some(mut clients), StartEnd::Ready) = (scenario.clients(&traces), &ran.start.end) {
        let changes = scenario.timed_changes(machine.ranks());
        let limits =
            Limits { max_steps: scenario.limits.max_steps, max_time: scenario.limits.max_time };
        let (changes, interrupted) = (changes.as_slice(), &|| false);
        let detail = plimsoll_core::sched::LogDetail::Decisions;
        let (pace, slo, watcher) = (Pace::default(), Slo::default(), &mut Watchers::default());
        let clients = &mut clients;
        let load = Load { clients, changes, limits, detail, pace, slo, watcher, interrupted };
        let run = serve(&assembled, &ran, machine.as_mut(), load, &mut records);
        end = Some(run.map_err(|e| text(&e))?.served.end);
    }
    let decisions = records.iter().filter_map(|record| wire_record(record).decision_line());
    Ok((Life { decisions: decisions.collect(), end, ledger: ran.ledger }, machine))
}

/// What stands behind a life: real memory, and what the host had at its beginning.
struct Behind {
    meter: Meter,
    on_host: Bytes,
}

fn live_in(
    body: Body,
    scenario: &Scenario,
    file: &Path,
) -> (Result<(Life, Machine), String>, Option<Behind>) {
    let behind = RefCell::new(None);
    let make = |spec: &MachineSpec| -> Result<Machine, CaseError> {
        if body == Body::Real && !is_plain(spec) {
            return start::simulator(spec);
        }
        let mut real = in_memory(spec)?;
        behind.replace(Some(Behind { meter: real.meter(), on_host: real.host_available()? }));
        Ok(match body {
            Body::Real => Box::new(real),
            Body::Ballast => {
                Box::new(Ballast::new(SimBackend::new(spec.clone())?, Box::new(real))?)
            }
        })
    };
    let life = live(scenario, file, &make);
    (life, behind.into_inner())
}

/// Lives one scenario on all bodies; answers how it ended under load, how often real memory was behind it,
/// and how often it was touched.
fn compare(scenario: &Scenario, file: &Path) -> (Option<ServeEnd>, u64, u64) {
    let name = &scenario.name;
    let (mut real, mut touched) = (0, 0);
    let simulated = live(scenario, file, &start::simulator).map(|(life, _)| life);
    for body in [Body::Real, Body::Ballast] {
        // Long lives once are enough.
        if body == Body::Ballast && real == 1 && scenario.workload.is_some() {
            continue;
        }
        let (lived, behind) = live_in(body, scenario, file);
        let (life, machine) = match lived {
            Ok((life, machine)) => (Ok(life), Some(machine)),
            Err(error) => (Err(error), None),
        };
        if let (Ok(due), Ok(got)) = (&simulated, &life) {
            let first = due.decisions.iter().zip(&got.decisions).find(|(a, b)| a != b);
            assert_eq!(first, None, "{name} {body:?}");
        }
        assert_eq!(simulated, life, "{name} {body:?}");
        let (Some(Behind { meter, on_host }), Some(mut machine)) = (behind, machine) else {
            continue;
        };
        let print = meter.read();
        if body == Body::Real {
            // What the accounts say is what is really mapped, host pools included.
            let pools = on_host.saturating_sub(machine.host_available().unwrap());
            let held = held_by_all(machine.as_ref()).saturating_add(pools);
            assert_eq!(print.mapped, held, "{name}");
        }
        assert!(print.touched_peak <= TOUCHED, "{name} {body:?}: {print:?}");
        real += 1;
        touched += u64::from(print.touched_peak > Bytes::ZERO);
    }
    (simulated.ok().and_then(|life| life.end), real, touched)
}

/// Everything but free memory, over all ranks.
fn held_by_all(machine: &dyn Backend) -> Bytes {
    let rows = (0..machine.ranks()).flat_map(|rank| machine.held(Rank(rank)).unwrap());
    rows.filter(|(account, _)| *account != Account::Free).map(|(_, bytes)| bytes).sum()
}

#[test]
fn every_scenario_lives_in_real_memory_as_on_the_simulator() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let (mut real, mut touched, mut served) = (0, 0, 0);
    for entry in folder::load_folder(&folder).unwrap() {
        let scenario = entry.scenario.unwrap_or_else(|problems| panic!("{}", problems.render()));
        let (end, r, t) = compare(&scenario, &entry.path);
        (real, touched, served) = (real + r, touched + t, served + u64::from(end.is_some()));
    }
    assert!(real >= 64 && touched >= 32, "{real} lives in real memory, {touched} touched it");
    assert!(served >= 4, "{served} lives under load");
}

/// Parts of ranges come and go in real mappings, and the end is the same.
#[test]
fn the_founding_crash_with_expandable_segments_is_the_same_in_real_memory() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios/founding/margin-0.93.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let launch = "python -m sglang.launch_server";
    let expandable = format!("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True {launch}");
    assert!(text.contains(launch));
    let text = text.replacen(launch, &expandable, 1);
    let scenario = Scenario::parse(&file.display().to_string(), &text, &[]).unwrap();
    let (end, real, touched) = compare(&scenario, &file);
    assert!(matches!(end, Some(ServeEnd::OutOfMemory(_))), "{end:?}");
    assert_eq!((real, touched), (1, 1));
}
