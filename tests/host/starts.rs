//! Every scenario of the project starts in real memory with the decisions of the simulator, to the byte.

use plimsoll_backend_host::{self as host, HostBackend, HostSpec, Limit, RankSpec, TouchPolicy};
use plimsoll_backend_sim::{DeviceSpec, MachineSpec, SimBackend, TotalReading};
use plimsoll_core::{
    backend::{Backend, BackendError, Rank},
    decision::Record,
    memory::ledger::Account,
    units::Bytes,
};
use plimsoll_replay::{
    assemble,
    ballast::Ballast,
    folder,
    run::wire_record,
    start::{self, CaseError, Machine, Ran},
};
use std::path::Path;

/// What a start may really touch here: enough to be real, little enough for a test.
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
pub(super) fn in_memory(machine: &MachineSpec) -> Result<HostBackend, BackendError> {
    HostBackend::new(&HostSpec {
        ranks: machine.devices.iter().map(rank_spec).collect(),
        host_available: SimBackend::new(machine.clone())?.host_available()?,
        limit: Limit::Broker,
        touch: TouchPolicy { total: TOUCHED, neighbours: Bytes::mib(8), ..TouchPolicy::default() },
    })
}

/// Every case of the project, by the scenario's name.
fn cases() -> Vec<(String, start::Case)> {
    let folder_path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let entries = folder::load_folder(&folder_path).unwrap();
    let read = entries.into_iter().map(|entry| {
        let scenario = entry.scenario.unwrap_or_else(|problems| panic!("{}", problems.render()));
        let case = assemble::of_scenario(&scenario, &entry.path).unwrap().case;
        (scenario.name, case)
    });
    read.collect()
}

/// All that must agree between backends.
pub(super) fn decisions(records: &[Record]) -> Vec<String> {
    records.iter().filter_map(|record| wire_record(record).decision_line()).collect()
}

fn on(
    case: &start::Case,
    make: impl FnOnce(&MachineSpec) -> Result<Machine, CaseError>,
) -> Result<(Ran, Machine, Vec<Record>), String> {
    let mut records = Vec::new();
    let started = start::run_on(case, make, &mut records);
    let (ran, machine) = started.map_err(|error| error.to_string())?;
    Ok((ran, machine, records))
}

#[test]
fn every_scenario_starts_in_real_memory_as_on_the_simulator() {
    let cases = cases();
    assert!(cases.len() >= 32);
    let mut touched = 0;
    for (name, case) in cases {
        let simulated = on(&case, |m| Ok(Box::new(SimBackend::new(m.clone())?)));
        let (mut meter, mut on_host) = (host::Meter::default(), Bytes::ZERO);
        let really = on(&case, |m| {
            let mut machine = in_memory(m)?;
            meter = machine.meter();
            on_host = machine.host_available()?;
            Ok(Box::new(machine))
        });
        let (simulated, really) = match (simulated, really) {
            (Ok((ran, _, records)), Ok(really)) => ((ran, records), really),
            (simulated, really) => {
                assert_eq!(simulated.map(|_| ()), really.map(|_| ()), "{name}");
                continue;
            }
        };
        let ((simulated, simulated_records), (ran, mut machine, records)) = (simulated, really);
        assert_eq!(decisions(&simulated_records), decisions(&records), "{name}");
        assert_eq!(simulated.ledger, ran.ledger, "{name}");
        // What the accounts say is what is really mapped, host pools included.
        let print = meter.read();
        let pools = on_host.saturating_sub(machine.host_available().unwrap());
        let mapped = held_by_all(machine.as_mut()) + pools;
        assert_eq!(print.mapped, mapped, "{name}");
        assert!(print.touched <= TOUCHED, "{name}: {print:?}");
        // The same as ballast: the simulator decides, and real memory holds what it says.
        let ballast = on(&case, |m| {
            let real = Box::new(in_memory(m)?);
            Ok(Box::new(Ballast::new(SimBackend::new(m.clone())?, real)?))
        });
        let (_, _, records) = ballast.unwrap();
        assert_eq!(decisions(&simulated_records), decisions(&records), "{name} as ballast");
        touched += u64::from(print.touched > Bytes::ZERO);
    }
    assert!(touched >= 20, "only {touched} starts touched memory");
}

/// Everything but free memory, over all ranks.
fn held_by_all(machine: &mut dyn Backend) -> Bytes {
    let ranks = (0..machine.ranks()).map(Rank);
    let rows = ranks.flat_map(|rank| machine.held(rank).unwrap());
    rows.filter(|(account, _)| *account != Account::Free).map(|(_, bytes)| bytes).sum()
}
