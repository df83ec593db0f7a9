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

/// The crate's folder, from its own tests and from the program's.
fn home() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let places = [root.to_path_buf(), root.join("backend-cuda")];
    places.into_iter().find(|path| path.join("fake").exists()).expect("the fake driver's sources")
}

/// Files of a folder and of those inside it but `tests`, in the order of their names.
fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        match path.is_dir() {
            true if path.ends_with("tests") => {}
            true => files(&path, found),
            false => found.push(path),
        }
    }
}

/// A number that follows the flags and every source below the folders.
fn fingerprint(flags: &[&str], folders: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    flags.hash(&mut hasher);
    let mut sources = Vec::new();
    folders.iter().for_each(|folder| files(folder, &mut sources));
    let code = |path: &PathBuf| {
        path.extension().is_some_and(|e| ["cpp", "h", "cu", "cuh"].iter().any(|code| e == *code))
    };
    for source in sources.into_iter().filter(code) {
        std::fs::read(source).unwrap().hash(&mut hasher);
    }
    hasher.finish()
}

/// Runs `g++`; `None`, and said so, where there is none. In CI (the variable `CI` is set) that is
/// a failure.
fn compile(arguments: &[&str], paths: &[PathBuf], out: &Path) -> Option<()> {
    let mut compiler = Command::new("g++");
    let built = compiler.arg("-o").arg(out).args(paths).args(arguments).output();
    let Ok(built) = built else {
        assert!(std::env::var_os("CI").is_none(), "CI needs g++ (Debian package `g++`)");
        println!("skipped: no C++ compiler (`g++`) to build the fake CUDA driver with");
        return None;
    };
    let complaint = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "the fake CUDA driver does not compile: {complaint}");
    Some(())
}

/// A folder of this name, made by `make` unless it is there already. Another test process may make
/// the same: each in its own folder, and the first one stays.
fn kept(name: &str, make: impl FnOnce(&Path) -> Option<()>) -> Option<PathBuf> {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = tmp.join(name);
    if folder.exists() {
        return Some(folder);
    }
    let making = tmp.join(format!("making-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&making).unwrap();
    let made = make(&making);
    if made.is_none() || std::fs::rename(&making, &folder).is_err() {
        std::fs::remove_dir_all(&making).unwrap();
    }
    made.map(|()| folder)
}

const STRICT: [&str; 4] = ["-std=c++17", "-Wall", "-fPIC", "-pthread"];

/// The project's kernels, compiled for the CPU: half a minute, once for each state of them.
fn kernels(home: &Path) -> Option<PathBuf> {
    let sources = home.join("kernels");
    let name = format!("fake-kernels-{:016x}", fingerprint(&[], std::slice::from_ref(&sources)));
    let folder = kept(&name, |making| {
        let flags = ["-std=c++17", "-O2", "-fno-strict-aliasing", "-fPIC", "-pthread", "-c"];
        compile(&flags, &[sources.join("shim/kernels.cpp")], &making.join("kernels.o"))
    })?;
    Some(folder.join("kernels.o"))
}

/// The folder with the fake driver and, beside it, cuBLASLt and NCCL, built with `flags` unless it
/// is there already. `None`, and said so, where there is no `g++`.
pub fn build(flags: &[&str]) -> Option<PathBuf> {
    let _one = BUILDING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let home = home();
    let (fake, shim) = (home.join("fake"), home.join("kernels"));
    let name = format!("fake-cuda-{:016x}", fingerprint(flags, &[fake.clone(), shim]));
    kept(&name, |making| {
        let driver = making.join("libcuda.so.1");
        let mut units: Vec<PathBuf> = ["devices", "driver", "memory", "modules", "streams"]
            .map(|unit| fake.join(format!("{unit}.cpp")))
            .into();
        units.push(kernels(&home)?);
        let shared =
            |soname: &'static str| [&STRICT[..], &["-O1", "-shared", soname], flags].concat();
        compile(&shared("-Wl,-soname,libcuda.so.1"), &units, &driver)?;
        let beside = |name: &str| fake.join("libraries").join(name);
        let product = making.join("product.o");
        compile(
            &["-std=c++17", "-Wall", "-Wno-psabi", "-fPIC", "-O3", "-c"],
            &[beside("product.cpp")],
            &product,
        )?;
        let units = [beside("cublaslt.cpp"), product, driver.clone()];
        let soname = "-Wl,-soname,libcublasLt.so.13";
        compile(&shared(soname), &units, &making.join("libcublasLt.so.13"))?;
        let units = [beside("nccl.cpp"), driver];
        compile(&shared("-Wl,-soname,libnccl.so.2"), &units, &making.join("libnccl.so.2"))?;
        for name in ["libcuda.so", "libnvidia-ml.so.1"] {
            std::os::unix::fs::symlink("libcuda.so.1", making.join(name)).unwrap();
        }
        Some(())
    })
}

/// A folder with the fake driver and none of the libraries beside it.
pub fn without_libraries() -> Option<PathBuf> {
    let whole = build(&[])?;
    let name = format!("{}-alone", whole.file_name().unwrap().to_str().unwrap());
    kept(&name, |making| {
        for name in ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1"] {
            std::os::unix::fs::symlink(whole.join("libcuda.so.1"), making.join(name)).unwrap();
        }
        Some(())
    })
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

/// A driver's report, `{"a":1,"b":2}`, by name.
pub fn counts(report: &str) -> BTreeMap<String, i64> {
    let pairs = report.trim().trim_matches(['{', '}']).split(',');
    let pair = |pair: &str| {
        let (name, value) = pair.split_once(':')?;
        Some((name.trim_matches('"').to_owned(), value.parse().ok()?))
    };
    pairs.filter_map(pair).collect()
}

/// What a process must have given back when it ends.
const OWED: [&str; 17] = [
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
    "modules",
    "lt_handles",
    "lt_layouts",
    "lt_products",
    "lt_preferences",
    "comms",
    "used_bytes",
];

impl Ended {
    /// Fails when anything was not given back to the driver.
    #[track_caller]
    pub fn nothing_leaked(&self) {
        assert!(!self.report.is_empty(), "no report: {}", self.text);
        nothing_owed(&self.report);
    }
}

/// Fails when a report names anything that was not given back.
#[track_caller]
pub fn nothing_owed(report: &BTreeMap<String, i64>) {
    for owed in OWED {
        assert_eq!(report[owed], 0, "{owed} leaked: {report:?}");
    }
}
