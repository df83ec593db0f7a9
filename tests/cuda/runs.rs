//! Whole scenarios, start and load, on the CUDA backend.

use super::support::build;
use super::{on_one_card, start};
use plimsoll_backend_cuda::{CudaBackend, CudaSpec};
use plimsoll_backend_sim::{DeviceMemory, MachineSpec, SimBackend};
use plimsoll_core::{backend::BackendError, engine::startup::StartEnd};
use plimsoll_replay::{
    ballast::Ballast,
    folder::{Entry, load_folder},
    run::{RunOptions, ScenarioRun, run_with},
    start::{CaseError, Machine, MakeMachine, simulator},
};
use std::{path::Path, process::Command};

fn run(entry: &Entry, machine: MakeMachine<'_>) -> Result<ScenarioRun, String> {
    let scenario = entry.scenario.clone().unwrap_or_else(|found| panic!("{}", found.render()));
    let options = RunOptions { machine, ..RunOptions::default() };
    run_with(scenario, &entry.path, options).map_err(|error| error.to_string())
}

fn lost(error: impl std::fmt::Display) -> CaseError {
    BackendError::DeviceLost(error.to_string()).into()
}

/// Every rank a share of one card; the backend's own accounts decide. A memory in common with the host is
/// no share of a card.
fn shares(machine: &MachineSpec) -> Result<Machine, CaseError> {
    if machine.devices.iter().any(|device| device.memory != DeviceMemory::Own) {
        return simulator(machine);
    }
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
        // A load costs; one of the two machines is enough for most of them.
        let loaded = simulated.as_ref().is_ok_and(|run| run.served.is_some());
        let both = !loaded || name.contains("founding");
        let machines = [("beside", &beside as MakeMachine<'_>), ("shares", &shares)];
        // A card's own accounts know no control group, so that they name another limit.
        let grouped = entry.scenario.as_ref().is_ok_and(|read| read.machine.cgroup_limit.is_some());
        let both = both && !grouped;
        for (on, make) in machines.into_iter().take(1 + usize::from(both)) {
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
    assert!(ran >= 64 && served >= 14);
}

#[test]
fn every_scenario_runs_on_cards_as_on_the_simulator() {
    if let Some(ended) = start("scenarios") {
        println!("{}", ended.text);
        assert!(ended.report["requests"] > 1000, "{:?}", ended.report);
    }
}

/// What `plimsoll run` says of a founding scenario: exit code, and its digest of decisions.
fn said(backend: &str, library: &Path, settings: &[(&str, &str)]) -> (Option<i32>, String) {
    said_of("margin-0.93", &["--backend", backend], library, settings)
}

fn said_of(
    scenario: &str,
    flags: &[&str],
    library: &Path,
    settings: &[(&str, &str)],
) -> (Option<i32>, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["run", &format!("scenarios/founding/{scenario}.yaml"), "--format", "json"])
        .args(flags)
        .current_dir(root)
        .env("LD_LIBRARY_PATH", library)
        .envs(settings.iter().copied())
        .output()
        .unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let digest = answer["digests"]["decisions"].as_str().unwrap_or_default().to_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    (output.status.code(), if digest.is_empty() { errors.into_owned() } else { digest })
}

/// The founding crash by the binary, on a fake card of an H200's size with another program on it.
#[test]
fn the_binary_runs_the_founding_crash_on_a_card() {
    let Some(folder) = build(&[]) else { return };
    let card = [("FAKE_CUDA_TOTAL", "150110011392"), ("FAKE_CUDA_FOREIGN", "1073750000")];
    let (code, digest) = said("cuda", &folder, &card);
    assert_eq!((code, digest), said("sim", &folder, &[]));
    assert_eq!(code, Some(0));
    // A card that is too small, or none, is no verdict on the server.
    let (code, error) = said("cuda", &folder, &[("FAKE_CUDA_TOTAL", "85899345920")]);
    assert!(matches!(code, Some(2 | 3)) && error.contains("too little"), "{code:?} {error}");
    let (code, error) = said("cuda", &folder, &[("FAKE_CUDA_DEVICES", "0")]);
    assert!(matches!(code, Some(2 | 3)) && error.contains("shows no device"), "{code:?} {error}");
    // Lost in the middle of the run: an end of its own, with CUDA's name for it.
    let (code, _) = said("cuda", &folder, &[card[0], ("FAKE_CUDA_LOST_AT", "2000")]);
    assert!(matches!(code, Some(1 | 3)), "{code:?}");
}

/// The founding crash and its way out on cards of 24 and of 8 GiB: an n-th of every byte, the same decisions.
#[test]
fn a_small_card_holds_a_part_of_every_byte() {
    let Some(folder) = build(&[]) else { return };
    for (scenario, total) in [("margin-0.93", "25769803776"), ("margin-0.88", "8589934592")] {
        let flags = ["--backend", "cuda", "--observe", "scaled"];
        let card = [("FAKE_CUDA_TOTAL", total)];
        let (code, digest) = said_of(scenario, &flags, &folder, &card);
        let simulated = said_of(scenario, &["--backend", "sim"], &folder, &[]);
        assert_eq!((code, digest), simulated, "{scenario}");
        assert_eq!(code, Some(0));
    }
    let (code, error) = said_of("margin-0.93", &["--observe", "scaled"], &folder, &[]);
    assert!(code == Some(2) && error.contains("--observe scaled needs a device"), "{error}");
}
