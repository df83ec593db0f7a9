//! The CUDA kernels on the CPU: their sources compiled with `g++` through the shim, against references,
//! plain and with addresses checked; kernels that are wrong on purpose are found out; and the committed
//! fat binary is the one of these sources. See docs/kernels.md.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "this crate is tests only; a panic is how a test fails"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sha2::{Digest as _, Sha256};

/// As the kernels are compiled for the CPU: products and sums stay apart, as the sources have them.
const FLAGS: [&str; 6] =
    ["-std=c++17", "-Wall", "-Wno-unknown-pragmas", "-ffp-contract=off", "-pthread", "-c"];

const PLAIN: &[&str] = &["-O2"];
/// A read of 16 bytes from an odd place is a fault on a device, so that is checked too.
const CHECKED: &[&str] =
    &["-O1", "-g1", "-fsanitize=address,alignment", "-fno-sanitize-recover=alignment"];

fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

/// Files with one of these extensions, in the order of their names.
fn files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let wanted = |path: &PathBuf| {
        path.extension().is_some_and(|own| extensions.iter().any(|wanted| own == *wanted))
    };
    let mut found: Vec<_> = entries.filter(wanted).collect();
    found.sort();
    found
}

/// Whether there is a compiler; without one, that is said, and in CI it is a failure.
fn compiler() -> bool {
    if Command::new("g++").arg("--version").output().is_ok() {
        return true;
    }
    assert!(std::env::var_os("CI").is_none(), "CI needs g++ (Debian package `g++`)");
    println!("skipped: no C++ compiler (`g++`) to run the CUDA kernels with");
    false
}

/// Sources, and the flags that one is compiled with.
type Unit = (PathBuf, &'static [&'static str]);

/// The program of these units, compiled unless it is there already.
fn program(name: &str, units: &[Unit], link: &[&str]) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    (units, link, FLAGS).hash(&mut hasher);
    for folder in ["", "shim", "tests", "tests/broken"] {
        for file in files(&kernels().join(folder), &["cu", "cuh", "h", "cpp"]) {
            fs::read(file).unwrap().hash(&mut hasher);
        }
    }
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let whole = tmp.join(format!("kernels-{name}-{:016x}", hasher.finish()));
    if whole.exists() {
        return whole;
    }
    let making = tmp.join(format!("kernels-{name}-{}", std::process::id()));
    fs::create_dir_all(&making).unwrap();
    let object = |unit: &Unit| making.join(unit.0.file_stem().unwrap()).with_extension("o");
    let children = units.iter().map(|unit| {
        let mut command = Command::new("g++");
        command.args(FLAGS).args(unit.1).arg(&unit.0).arg("-o").arg(object(unit));
        command.spawn().unwrap()
    });
    for mut child in children.collect::<Vec<_>>() {
        assert!(child.wait().unwrap().success(), "the kernels do not compile");
    }
    let made = making.join("program");
    let mut command = Command::new("g++");
    command.args(link).arg("-pthread").arg("-o").arg(&made).args(units.iter().map(object));
    assert!(command.status().unwrap().success(), "the kernels do not link");
    fs::rename(&made, &whole).unwrap();
    fs::remove_dir_all(&making).unwrap();
    whole
}

fn start(program: &Path, arguments: &[&str]) -> Output {
    // Blocks that do not end leave their stacks behind.
    let mut command = Command::new(program);
    command.args(arguments).env("ASAN_OPTIONS", "detect_leaks=0").output().unwrap()
}

fn references(name: &str, flags: &'static [&'static str], arguments: &[&str]) {
    if !compiler() {
        return;
    }
    // The references themselves need no checks.
    let tests = files(&kernels().join("tests"), &["cpp"]);
    let mut units: Vec<Unit> = tests.into_iter().map(|unit| (unit, &["-O1"][..])).collect();
    units.push((kernels().join("shim/kernels.cpp"), flags));
    let done = start(&program(name, &units, flags), arguments);
    let (text, errors) =
        (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    print!("{text}");
    assert!(done.status.success(), "{text}{errors}");
    assert!(errors.is_empty(), "{errors}");
    let tested: BTreeSet<_> = text.lines().filter_map(|l| l.split_whitespace().next()).collect();
    for kernel in ceilings().keys() {
        assert!(tested.contains(kernel.as_str()), "{kernel} has no test");
    }
}

#[test]
fn kernels_agree_with_references_in_any_order_of_threads() {
    references("plain", PLAIN, &[]);
}

#[test]
fn kernels_stay_inside_their_buffers() {
    references("checked", CHECKED, &["--orders", "2"]);
}

#[test]
fn kernels_that_are_wrong_on_purpose_are_found_out() {
    if !compiler() {
        return;
    }
    let unit = kernels().join("tests/broken/broken.cpp");
    let plain = program("broken", &[(unit.clone(), PLAIN)], PLAIN);
    // A missing barrier, a copy that is not waited for, shared memory that nobody wrote; and the right ones.
    for (kernel, answer) in [
        ("racy", "found"),
        ("right", "nothing"),
        ("unawaited", "found"),
        ("awaited", "nothing"),
        ("unwritten", "found"),
    ] {
        let done = start(&plain, &[kernel]);
        assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), answer, "{kernel}");
    }
    for kernel in ["divergent", "two_barriers", "half_exchange"] {
        let done = start(&plain, &[kernel]);
        let message = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(2), "{kernel}: {message}");
        assert!(message.contains(&format!("kernel {kernel}, block (0,0,0): divergent barrier")));
    }
    let checked = program("broken-checked", &[(unit, CHECKED)], CHECKED);
    assert!(start(&checked, &["right"]).status.success());
    for kernel in ["outside", "outside_shared"] {
        let done = start(&checked, &[kernel]);
        let message = String::from_utf8_lossy(&done.stderr);
        assert!(message.contains("heap-buffer-overflow"), "{kernel}: {message}");
        // The place in the source.
        let named = message.lines().any(|l| l.contains(kernel) && l.contains("broken.cpp:"));
        assert!(named, "{kernel}: {message}");
    }
}

/// Kernel → threads of a block and registers at most.
fn ceilings() -> BTreeMap<String, (u32, u32)> {
    let text = fs::read_to_string(kernels().join("ceilings.txt")).unwrap();
    let row = |line: &str| {
        let parts: Vec<_> = line.split(' ').collect();
        (parts[0].to_owned(), (parts[1].parse().unwrap(), parts[2].parse().unwrap()))
    };
    text.lines().filter(|line| !line.starts_with('#')).map(row).collect()
}

/// Numbers of launch.h.
fn sizes() -> BTreeMap<String, u32> {
    let text = fs::read_to_string(kernels().join("launch.h")).unwrap();
    let size = |line: &str| {
        let (name, number) = line.strip_prefix("#define ")?.split_once(' ')?;
        Some((name.to_owned(), number.parse().ok()?))
    };
    text.lines().filter_map(size).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

const REBUILD: &str = "run scripts/build-kernels.sh and commit what it writes";

#[test]
fn the_fat_binary_is_that_of_these_sources() {
    let mut sources = files(&kernels(), &["cu", "cuh", "h"]);
    sources.sort();
    let mut digest = Sha256::new();
    for file in &sources {
        digest.update(file.file_name().unwrap().as_encoded_bytes());
        digest.update(b"\n");
        digest.update(fs::read(file).unwrap());
    }
    let table = fs::read_to_string(kernels().join("plimsoll.fatbin.txt")).unwrap();
    let sources = format!("sources {}", hex(&digest.finalize()));
    assert!(table.lines().any(|line| line == sources), "kernels have changed: {REBUILD}");
    let image = fs::read(kernels().join("plimsoll.fatbin")).unwrap();
    let image = format!("image {} {}", hex(&Sha256::digest(&image)), image.len());
    assert!(
        table.lines().any(|line| line == image),
        "another fat binary than its table's: {REBUILD}"
    );
    assert!(table.lines().any(|line| line == "ptx 9.0"));
}

#[test]
fn no_kernel_spills_and_every_launch_fits_the_registers() {
    let (ceilings, sizes) = (ceilings(), sizes());
    let table = fs::read_to_string(kernels().join("plimsoll.fatbin.txt")).unwrap();
    let mut seen = BTreeMap::<&str, usize>::new();
    for line in table.lines().filter(|line| line.starts_with("sm_")) {
        let parts: Vec<_> = line.split(' ').collect();
        let number = |i: usize| parts[i].parse::<u32>().unwrap();
        let (threads, ceiling) = ceilings[parts[1]];
        assert!(number(2) <= ceiling && number(2) * threads <= 65_536, "{line}: at most {ceiling}");
        assert!(number(3) <= 48 * 1024, "{line}: too much static shared memory");
        assert_eq!(number(4), 0, "{line}: spills");
        *seen.entry(parts[0]).or_default() += 1;
        // The launch takes the threads that the ceiling was made for.
        let stem = |size: &&String| {
            size.strip_suffix("_THREADS").is_some_and(|s| parts[1].to_uppercase().starts_with(s))
        };
        let size = sizes.keys().filter(stem).max_by_key(|size| size.len()).unwrap();
        assert_eq!(sizes[size], threads, "{}", parts[1]);
    }
    let all = ceilings.len();
    assert_eq!(seen, BTreeMap::from([("sm_90", all), ("sm_100", all), ("sm_120", all)]));
}
