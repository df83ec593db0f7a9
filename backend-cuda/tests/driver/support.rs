//! The fake driver library, built from the project's own source, and children that run over it:
//! the loader reads its paths when a process starts, and a library is loaded once.

#![allow(unreachable_pub, dead_code, reason = "shared by test crates that use parts of it")]

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Says in a child which part it plays.
pub const CHILD: &str = "PLIMSOLL_FAKE_CUDA_CHILD";

/// One build at a time.
static BUILDING: Mutex<()> = Mutex::new(());

/// The fake driver's sources, in the order of their names.
fn sources() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let places = [root.join("fake"), root.join("backend-cuda/fake")];
    let folder = places.into_iter().find(|path| path.exists()).expect("the fake driver's sources");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.collect();
    files.sort();
    files
}

/// The folder with the library, built with `flags` unless it is there already. `None`, and said
/// so, where there is no `g++`; in CI (the variable `CI` is set) that is a failure.
pub fn build(flags: &[&str]) -> Option<PathBuf> {
    let _one = BUILDING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut hasher = DefaultHasher::new();
    flags.hash(&mut hasher);
    for source in sources() {
        std::fs::read(source).unwrap().hash(&mut hasher);
    }
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = tmp.join(format!("fake-cuda-{:016x}", hasher.finish()));
    if folder.exists() {
        return Some(folder);
    }
    // Another test process may build the same: each in its own folder, and the first one stays.
    let making = tmp.join(format!("fake-cuda-{}", std::process::id()));
    std::fs::create_dir_all(&making).unwrap();
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-O1", "-Wall", "-fPIC", "-shared"]);
    compiler.args(["-Wl,-soname,libcuda.so.1", "-o"]).arg(making.join("libcuda.so.1"));
    let units = sources().into_iter().filter(|path| path.extension().is_some_and(|e| e == "cpp"));
    let built = compiler.args(units).args(flags).output();
    let Ok(built) = built else {
        assert!(std::env::var_os("CI").is_none(), "CI needs g++ (Debian package `g++`)");
        println!("skipped: no C++ compiler (`g++`) to build the fake CUDA driver with");
        return None;
    };
    let complaint = String::from_utf8_lossy(&built.stderr).into_owned();
    assert!(built.status.success(), "the fake CUDA driver does not compile: {complaint}");
    for name in ["libcuda.so", "libnvidia-ml.so.1"] {
        std::os::unix::fs::symlink("libcuda.so.1", making.join(name)).unwrap();
    }
    if std::fs::rename(&making, &folder).is_err() {
        std::fs::remove_dir_all(&making).unwrap();
    }
    Some(folder)
}

/// What a child left.
pub struct Ended {
    /// What it printed.
    pub text: String,
    /// The fake driver's report, by name; empty when no driver was loaded.
    pub report: BTreeMap<String, i64>,
}

/// Runs the test `test` of this executable again, over the library in `folder`, as `part`. It must
/// end well: a panic in it is a failure here, with its output.
pub fn child(test: &str, part: &str, folder: &Path, settings: &[(&str, &str)]) -> Ended {
    let name: String = part.chars().filter(char::is_ascii_alphanumeric).collect();
    let unique = format!("{name}-{}-{:?}", std::process::id(), std::thread::current().id());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("report-{unique}.json"));
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env("LD_LIBRARY_PATH", folder)
        .env(CHILD, part)
        .env("FAKE_CUDA_REPORT", &file)
        .envs(settings.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{part} with {settings:?} failed:\n{text}\n{errors}");
    let report = std::fs::read_to_string(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    Ended { text, report: counts(&report) }
}

/// `{"a":1,"b":2}`.
fn counts(report: &str) -> BTreeMap<String, i64> {
    let pairs = report.trim().trim_matches(['{', '}']).split(',');
    let pair = |pair: &str| {
        let (name, value) = pair.split_once(':')?;
        Some((name.trim_matches('"').to_owned(), value.parse().ok()?))
    };
    pairs.filter_map(pair).collect()
}

/// What a process must have given back when it ends.
const OWED: [&str; 11] = [
    "contexts",
    "allocations",
    "pinned",
    "reserved",
    "mappings",
    "physical",
    "streams",
    "events",
    "graphs",
    "executables",
    "used_bytes",
];

impl Ended {
    /// Fails when anything was not given back to the driver.
    #[track_caller]
    pub fn nothing_leaked(&self) {
        assert!(!self.report.is_empty(), "no report: {}", self.text);
        for owed in OWED {
            assert_eq!(self.report[owed], 0, "{owed} leaked: {:?}\n{}", self.report, self.text);
        }
    }
}
