//! Whole scenarios, start and load, on the CUDA backend.

use super::{on_one_card, start};
use plimsoll_backend_cuda::{CudaBackend, CudaSpec};
use plimsoll_backend_sim::{MachineSpec, SimBackend};
use plimsoll_core::{backend::BackendError, engine::startup::StartEnd};
use plimsoll_replay::{
    ballast::Ballast,
    folder::{Entry, load_folder},
    run::{RunOptions, ScenarioRun, run_with},
    start::{CaseError, Machine, MakeMachine, simulator},
};
use std::path::Path;

fn run(entry: &Entry, machine: MakeMachine<'_>) -> Result<ScenarioRun, String> {
    let scenario = entry.scenario.clone().unwrap_or_else(|found| panic!("{}", found.render()));
    let options = RunOptions { machine, ..RunOptions::default() };
    run_with(scenario, &entry.path, options).map_err(|error| error.to_string())
}

fn lost(error: impl std::fmt::Display) -> CaseError {
    BackendError::DeviceLost(error.to_string()).into()
}

/// Every rank a share of one card; the backend's own accounts decide.
fn shares(machine: &MachineSpec) -> Result<Machine, CaseError> {
    Ok(Box::new(on_one_card(machine)?))
}

/// A whole card stands beside the first rank of a declared machine.
fn beside(machine: &MachineSpec) -> Result<Machine, CaseError> {
    let real = CudaBackend::open(&CudaSpec::whole_cards(1)).map_err(lost)?;
    let declared = SimBackend::new(machine.clone())?;
    Ok(Box::new(Ballast::new(declared, Box::new(real))?))
}

/// Runs every scenario on the simulator and on cards; what was decided must not differ.
pub(super) fn scenarios_decide_alike() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let (mut ran, mut served, mut died) = (0, 0, 0);
    for entry in load_folder(&folder).unwrap() {
        let name = entry.path.display().to_string();
        let simulated = run(&entry, &simulator);
        for (on, make) in [("shares", &shares as MakeMachine<'_>), ("beside", &beside)] {
            match (&simulated, run(&entry, make)) {
                (Ok(simulated), Ok(real)) => {
                    assert_eq!(simulated.digests.decisions, real.digests.decisions, "{name}, {on}");
                    ran += 1;
                    served += u64::from(real.served.is_some());
                    died += u64::from(matches!(real.ran.start.end, StartEnd::OutOfMemory(_)));
                }
                (Err(simulated), Err(real)) => assert_eq!(*simulated, real, "{name}, {on}"),
                (Ok(_), Err(error)) => panic!("{name}, {on}: {error}"),
                (Err(error), Ok(_)) => panic!("{name} on the simulator: {error}"),
            }
        }
    }
    println!("{ran} runs, {served} under load, {died} died in the start");
    assert!(ran >= 2 * 32 && served >= 2 * 7);
}

#[test]
fn every_scenario_runs_on_cards_as_on_the_simulator() {
    if let Some(ended) = start("scenarios") {
        println!("{}", ended.text);
        assert!(ended.report["requests"] > 1000, "{:?}", ended.report);
    }
}
