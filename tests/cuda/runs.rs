//! Whole scenarios, start and load, on the CUDA backend.

use super::{on_one_card, start};
use plimsoll_backend_cuda::{CudaBackend, CudaSpec};
use plimsoll_backend_sim::{MachineSpec, SimBackend};
use plimsoll_core::backend::BackendError;
use plimsoll_replay::{
    ballast::Ballast,
    folder,
    run::{RunOptions, ScenarioRun, run_with},
    start::{CaseError, MakeMachine, Machine},
};
use std::path::Path;

/// Runs every scenario on the simulator and on `make`, and compares what was decided.
fn all_decide_alike(make: MakeMachine<'_>) {
    let folder_path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let entries = folder::load_folder(&folder_path).unwrap();
    let (mut runs, mut died) = (0, 0);
    for entry in entries {
        let scenario = entry.scenario.unwrap_or_else(|problems| panic!("{}", problems.render()));
        let name = scenario.name.clone();
        let run = |machine| {
            let options = RunOptions { machine, ..RunOptions::default() };
            run_with(scenario.clone(), &entry.path, options).map_err(|error| error.to_string())
        };
        let simulated = run(&plimsoll_replay::start::simulator);
        let real = run(make);
        match (simulated, real) {
            (Ok(simulated), Ok(real)) => {
                assert_eq!(simulated.digests.decisions, real.digests.decisions, "{name}");
                let kept = |run: &ScenarioRun| {
                    run.claims.iter().filter(|claim| claim.holds()).count()
                };
                assert_eq!(kept(&simulated), kept(&real), "{name}");
                died += usize::from(!matches!(
                    real.ran.start.end,
                    plimsoll_core::engine::startup::StartEnd::Ready
                ));
            }
            (simulated, real) => {
                assert_eq!(simulated.map(|_| ()), real.map(|_| ()), "{name}");
            }
        }
        runs += 1;
    }
    println!("{runs} scenarios, {died} of them not started");
    assert!(runs >= 32);
}

fn lost(error: impl std::fmt::Display) -> CaseError {
    BackendError::DeviceLost(error.to_string()).into()
}

/// Every rank a share of one card; the backend's own accounts decide.
pub(super) fn scenarios_on_one_card() {
    all_decide_alike(&|machine: &MachineSpec| -> Result<Machine, CaseError> {
        Ok(Box::new(on_one_card(machine)?))
    });
}

/// A whole card stands beside the first rank of a declared machine.
pub(super) fn scenarios_beside_a_declared_machine() {
    all_decide_alike(&|machine: &MachineSpec| -> Result<Machine, CaseError> {
        let real = CudaBackend::open(&CudaSpec::whole_cards(1)).map_err(lost)?;
        let declared = SimBackend::new(machine.clone())?;
        Ok(Box::new(Ballast::new(declared, Box::new(real))?))
    });
}

#[test]
fn every_scenario_runs_on_one_card_as_on_the_simulator() {
    if let Some(ended) = start("scenarios on one card") {
        assert!(ended.report["requests"] > 1000, "{:?}", ended.report);
    }
}

#[test]
fn every_scenario_runs_beside_a_declared_machine() {
    if let Some(ended) = start("scenarios beside a declared machine") {
        assert!(ended.report["requests"] > 300, "{:?}", ended.report);
    }
}
