//! The house rules that a compiler does not check: directions of dependencies, purity of `core`,
//! where unsafe code may stand, size of files.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Who may depend on whom inside the workspace. Anything else is a wrong direction.
const ALLOWED: &[(&str, &[&str])] = &[
    ("plimsoll-core", &[]),
    ("plimsoll-backend-sim", &["plimsoll-core"]),
    // Its tests load real files; the library gets weights through a trait of core.
    ("plimsoll-backend-host", &["plimsoll-core", "plimsoll-checkpoint"]),
    // Tests only: the same models on the host.
    ("plimsoll-backend-cuda", &["plimsoll-core", "plimsoll-backend-host"]),
    ("plimsoll-catalog", &["plimsoll-core"]),
    ("plimsoll-checkpoint", &["plimsoll-core", "plimsoll-catalog"]),
    ("plimsoll-ingest", &["plimsoll-core"]),
    (
        "plimsoll-diagnosis",
        &["plimsoll-core", "plimsoll-catalog", "plimsoll-ingest", "plimsoll-replay"],
    ),
    (
        "plimsoll-replay",
        &["plimsoll-core", "plimsoll-backend-sim", "plimsoll-catalog", "plimsoll-ingest"],
    ),
    ("plimsoll-sweep", &["plimsoll-core", "plimsoll-replay"]),
    (
        "plimsoll-server",
        &[
            "plimsoll-core",
            "plimsoll-backend-host",
            "plimsoll-backend-cuda",
            "plimsoll-checkpoint",
            "plimsoll-replay",
            // Tests only.
            "plimsoll-ingest",
        ],
    ),
    ("plimsoll-report", &["plimsoll-core", "plimsoll-replay"]),
    (
        "plimsoll-calibrate",
        &["plimsoll-core", "plimsoll-catalog", "plimsoll-ingest", "plimsoll-replay"],
    ),
    (
        "plimsoll-fuzz-entries",
        &[
            "plimsoll-core",
            "plimsoll-backend-host",
            "plimsoll-catalog",
            "plimsoll-checkpoint",
            "plimsoll-diagnosis",
            "plimsoll-ingest",
            "plimsoll-replay",
            "plimsoll-server",
        ],
    ),
    (
        "plimsoll",
        &[
            "plimsoll-core",
            "plimsoll-backend-sim",
            "plimsoll-backend-host",
            "plimsoll-backend-cuda",
            "plimsoll-calibrate",
            "plimsoll-catalog",
            "plimsoll-diagnosis",
            "plimsoll-ingest",
            "plimsoll-replay",
            "plimsoll-report",
            "plimsoll-server",
            "plimsoll-checkpoint",
            "plimsoll-sweep",
            // Tests only.
            "plimsoll-fuzz-entries",
        ],
    ),
    ("plimsoll-python", &["plimsoll"]),
];

/// Paths of the standard library that `core` must not name: it decides, it does not look.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::env",
    "std::net",
    "std::thread",
    "std::time::",
    "std::process",
    "std::io",
    "std::sync",
    "HashMap",
    "HashSet",
    "RandomState",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<_> = entries.flatten().map(|e| e.path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            if !path.ends_with("target") {
                rust_files(&path, found);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

fn sources(folders: &[&str]) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for folder in folders {
        rust_files(&root().join(folder), &mut found);
    }
    found.into_iter().map(|p| (p.clone(), fs::read_to_string(&p).unwrap())).collect()
}

/// Lines outside comments; a test module closes the file, so what follows it is left out.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .take_while(|(_, line)| line.trim() != "#[cfg(test)]")
        .filter(|(_, line)| !line.trim_start().starts_with("//"))
}

#[test]
fn dependencies_point_one_way() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let out = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() >= 6, "the workspace was not read");
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let may = allowed.get(name).unwrap_or_else(|| panic!("{name} is not in the table"));
        for dependency in package["dependencies"].as_array().unwrap() {
            let on = dependency["name"].as_str().unwrap();
            let inside = on.starts_with("plimsoll");
            assert!(!inside || may.contains(&on), "{name} must not depend on {on}");
        }
    }
}

#[test]
fn core_only_decides() {
    let sources = sources(&["core/src", "backend-sim/src"]);
    // Modules of tests may look for data beside the checkout.
    for (path, text) in sources.iter().filter(|(path, _)| !path.ends_with("tests.rs")) {
        for (at, line) in code_lines(text) {
            for impure in IMPURE {
                let place = format!("{}:{}", path.display(), at + 1);
                assert!(!line.contains(impure), "{place} names {impure}");
            }
        }
    }
    let lib = fs::read_to_string(root().join("core/src/lib.rs")).unwrap();
    assert!(lib.contains("#![forbid(unsafe_code)]"));
}

#[test]
fn unsafe_code_stands_in_the_cuda_backend_only() {
    let all = sources(&[
        "core",
        "backend-sim",
        "backend-host",
        "calibrate",
        "catalog",
        "checkpoint",
        "diagnosis",
        "ingest",
        "python",
        "replay",
        "report",
        "server",
        "sweep",
        "cli",
    ]);
    for (path, text) in all {
        for (at, line) in code_lines(&text) {
            let found = line.contains("unsafe {") || line.contains("unsafe fn");
            assert!(!found, "{}:{} is unsafe", path.display(), at + 1);
        }
    }
}

#[test]
fn files_have_one_subject() {
    let all = [
        "core",
        "backend-sim",
        "backend-host",
        "backend-cuda",
        "calibrate",
        "catalog",
        "checkpoint",
        "diagnosis",
        "ingest",
        "python",
        "replay",
        "report",
        "server",
        "sweep",
    ];
    for (path, text) in
        sources(&all).into_iter().chain(sources(&["cli", "tests", "benches", "fuzz"]))
    {
        let lines = text.lines().take_while(|l| l.trim() != "#[cfg(test)]").count();
        assert!(lines <= 700, "{} has {lines} lines: split it by subject", path.display());
        let documented = text.starts_with("//!");
        assert!(documented, "{} does not say what it is for", path.display());
    }
}
