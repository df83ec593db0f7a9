//! Cards whose own readings decide: what is recorded of them gives the same decisions without them.

use super::support::build;
use plimsoll_replay::{
    again::{Extent, again},
    wire::Log,
};
use std::{
    fs::{self, File},
    io::BufReader,
    path::Path,
    process::Command,
};

/// What is run, and the card that it finds: a full one, a small one, one that is lost while it serves.
const RUNS: [(&str, &[(&str, &str)]); 6] = [
    ("unified-memory/gb10-host-programs-grow", &[("FAKE_CUDA_TOTAL", "150110011392")]),
    ("founding/margin-0.93", &[("FAKE_CUDA_TOTAL", "150110011392"), ("FAKE_CUDA_DEVICES", "8")]),
    ("faults/leak-of-20-gb-a-week", &[("FAKE_CUDA_TOTAL", "25757220864")]),
    ("crash-prefill/llama-3-8b-24gb-prefill-8192", &[("FAKE_CUDA_TOTAL", "20757220864")]),
    (
        "unified-memory/gb10-host-programs-shrink-again",
        &[("FAKE_CUDA_TOTAL", "150110011392"), ("FAKE_CUDA_LOST_AT", "900")],
    ),
    (
        "unified-memory/gb10-host-programs-shrink-again",
        &[("FAKE_CUDA_TOTAL", "150110011392"), ("FAKE_CUDA_LOST_AT", "4000")],
    ),
];

#[test]
fn live_runs_on_cards_replay_without_them() {
    let Some(library) = build(&[]) else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = std::env::temp_dir().join(format!("plimsoll-{}-cuda.jsonl", std::process::id()));
    for (name, card) in RUNS {
        let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["run", "--backend", "cuda", "--observe", "device", "--record"])
            .arg(&file)
            .arg(root.join(format!("scenarios/{name}.yaml")))
            .env("LD_LIBRARY_PATH", &library)
            .envs(card.iter().copied())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 1 | 3)), "{name}: {errors}");
        let log = Log::read(BufReader::new(File::open(&file).unwrap())).unwrap();
        let observed = log.records.iter().filter(|record| record.kind == "observed").count();
        println!("{name}: {observed} of {} records; {errors}", log.records.len());
        assert!(observed > 0, "{name}");
        let again = again(&log).unwrap();
        assert!(again.difference.is_none(), "{name}");
        // A card that is lost in the start leaves a log without its end.
        let lost = output.status.code() == Some(3) && !log.complete;
        match again.extent {
            Extent::Whole => {
                assert_eq!(again.run.digests.decisions, log.digests.decisions, "{name}");
            }
            extent => assert!(lost, "{name}: {extent:?}"),
        }
    }
    let _ = fs::remove_file(&file);
}
