//! Real memory whose own readings decide: what is recorded of it gives the same decisions without it.

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

/// Starts alone, lives, neighbours that grow, a leak, another engine.
const SCENARIOS: [&str; 6] = [
    "unified-memory/gb10-host-programs-shrink-again",
    "founding/margin-0.93",
    "founding/empty-pool-0.872",
    "crash-prefill/llama-3-8b-24gb-prefill-8192",
    "faults/leak-of-20-gb-a-week",
    "shared-host/vllm-second-server-at-0.04",
];

/// Whatever this computer has free, and whatever the scenario expects: the verdict may be either.
#[test]
fn live_runs_on_host_memory_replay_without_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = std::env::temp_dir().join(format!("plimsoll-{}-host.jsonl", std::process::id()));
    for name in SCENARIOS {
        let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["run", "--backend", "host", "--observe", "device", "--record"])
            .arg(&file)
            .arg(root.join(format!("scenarios/{name}.yaml")))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 1)), "{name}: {errors}");
        let log = Log::read(BufReader::new(File::open(&file).unwrap())).unwrap();
        let observed = log.records.iter().filter(|record| record.kind == "observed").count();
        assert!(observed > 0, "{name}");
        let again = again(&log).unwrap();
        assert_eq!((again.extent, again.difference), (Extent::Whole, None), "{name}");
        assert_eq!(again.run.digests.decisions, log.digests.decisions, "{name}");
    }
    let _ = fs::remove_file(&file);
}
