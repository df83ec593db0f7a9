//! `doctor --cuda` where nothing is installed, and over the fake driver with libraries that only say their release.

use super::{
    Shown, command, run, schema_check::check, shown, snapshot, verbs::folder, watch::executable,
};
use crate::cuda::support::build;
use plimsoll_backend_cuda::{
    ProbeError,
    libraries::{Library, Look},
    probe,
};
use serde_json::Value;
use std::{
    fs,
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

/// cuBLASLt, NCCL, NVRTC and NVML of one release each.
const STUBS: [(&str, &str); 4] = [
    ("libcublasLt.so.13", "size_t cublasLtGetVersion(void) { return 130100; }"),
    ("libnccl.so.2", "int ncclGetVersion(int *v) { *v = 22703; return 0; }"),
    ("libnvrtc.so.13", "int nvrtcVersion(int *a, int *b) { *a = 13; *b = 0; return 0; }"),
    (
        "libnvidia-ml.so.1",
        "int nvmlInit_v2(void) { return 0; } int nvmlShutdown(void) { return 0; }
         int nvmlSystemGetDriverVersion(char *t, unsigned n) { return !strncpy(t, \"580.65.06\", n); }",
    ),
];

/// The devices of a made-up machine: a card and a slice.
const CARDS: [(&str, &str); 2] =
    [("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_NAMES", "NVIDIA H200;NVIDIA H200 MIG 1g.18gb")];

const NODES: [&str; 3] = ["nvidia0", "nvidiactl", "nvidia-uvm"];

/// A machine that is being made up: its libraries, its `/dev`, its tools.
struct Machine {
    root: PathBuf,
}

impl Machine {
    /// With the fake driver; `None` where there is no compiler to build it with.
    fn new(name: &str) -> Option<Self> {
        let driver = build(&[])?;
        let machine = Self { root: folder(&format!("doctor-{name}")) };
        for part in ["lib", "dev", "bin"] {
            fs::create_dir_all(machine.root.join(part)).unwrap();
        }
        fs::copy(driver.join("libcuda.so.1"), machine.root.join("lib/libcuda.so.1")).unwrap();
        Some(machine)
    }

    /// Compiles one library.
    fn library(&self, file: &str, source: &str) {
        let mut compiler = Command::new("g++")
            .args(["-x", "c++", "-shared", "-fPIC", "-o"])
            .arg(self.root.join("lib").join(file))
            .arg("-")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let text = format!("#include <stddef.h>\n#include <string.h>\nextern \"C\" {{ {source} }}");
        compiler.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(compiler.wait().unwrap().success(), "{source}");
    }

    /// With all that serving can use.
    fn whole(name: &str) -> Option<Self> {
        let machine = Self::new(name)?;
        STUBS.iter().for_each(|(file, source)| machine.library(file, source));
        NODES.iter().for_each(|node| fs::write(machine.root.join("dev").join(node), "").unwrap());
        let script = "#!/bin/sh\ncase $1 in\n\
                      *compute-apps*) echo 'GPU-a, 4001, 71000' ;;\n\
                      *uuid*) echo '0, GPU-a' ;;\n\
                      *) echo '0, NVIDIA H200, 143771, 72000, 71771' ;;\nesac\n";
        executable(&machine.root.join("bin/nvidia-smi"), script);
        Some(machine)
    }

    fn doctor(&self, settings: &[(&str, &str)], more: &[&str]) -> Shown {
        let root = self.root.display().to_string();
        let mut command = command(&[&["doctor", "--cuda", "--root", &root], more].concat());
        command.env("LD_LIBRARY_PATH", self.root.join("lib"));
        command.env("PATH", self.root.join("bin")).envs(settings.iter().copied());
        shown(command)
    }

    /// What is said of CUDA, as one line of words with the folder's name taken out.
    fn words(&self, settings: &[(&str, &str)]) -> (i32, String) {
        let shown = self.doctor(settings, &[]);
        let text = cuda(&shown).replace(&self.root.display().to_string(), "[root]");
        (shown.code, text.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

/// The part that is the same on every host.
fn cuda(shown: &Shown) -> &str {
    shown.stdout.find("\ncuda ").map(|at| &shown.stdout[at + 1..]).expect("a part on CUDA")
}

/// Whether this computer has neither driver nor libraries of its own.
fn is_bare() -> bool {
    let none = |library: Library| library.look() == Look::Missing;
    probe() == Err(ProbeError::NoDriver) && Library::ALL.into_iter().all(none)
}

#[test]
fn where_nothing_is_installed_each_piece_says_how_to_get_it() {
    if !is_bare() {
        println!("skipped: this computer has a driver or libraries of CUDA");
        return;
    }
    let root = folder("doctor-bare").display().to_string();
    let shown = run(&["doctor", "--cuda", "--root", &root]);
    snapshot("doctor-cuda-nothing", &format!("[exit {}]\n{}", shown.code, cuda(&shown)));
}

#[test]
fn a_whole_machine_can_serve() {
    let Some(machine) = Machine::whole("whole") else { return };
    let shown = machine.doctor(&CARDS, &["--format", "json"]);
    let found: Value = serde_json::from_str(&shown.stdout).unwrap();
    let json =
        format!("{:#}\n", found["cuda"]).replace(&machine.root.display().to_string(), "[root]");
    snapshot("doctor-cuda-whole", &format!("[exit {}]\n{json}", shown.code));
    let (code, text) = machine.words(&CARDS);
    assert_eq!(code, 0);
    for piece in found["cuda"]["pieces"].as_array().unwrap() {
        let (name, says) = (piece["name"].as_str().unwrap(), piece["says"].as_str().unwrap());
        assert!(text.contains(&format!("found {name} ")) && text.contains(says), "{name}\n{text}");
    }
    assert!(!text.contains("get:") && !text.contains("missing"), "{text}");
    assert!(text.starts_with("cuda all that serving needs is there, on 2 devices"), "{text}");
}

#[test]
fn what_serving_lacks_is_named_and_the_rest_is_not_in_the_way() {
    let Some(machine) = Machine::whole("lacks") else { return };
    let capability = |number| [("FAKE_CUDA_CAPABILITY", number)];
    for (settings, code, says) in [
        (&capability("89")[..], 1, "cannot serve: device 0 unfit; ballast"),
        (&capability("103"), 0, "compute capability 10.3: machine code for sm_100"),
        (&capability("110"), 0, "translates PTX"),
        (&[("FAKE_CUDA_VERSION", "12080")], 1, "CUDA 12.8, too old to serve"),
        (&[("FAKE_CUDA_VERSION", "10020")], 1, "too old (CUDA 10.2)"),
        (&[("FAKE_CUDA_DEVICES", "0")], 1, "cannot serve: devices missing"),
        (&[("FAKE_CUDA_INIT", "803")], 1, "unfit driver serving the CUDA library does not fit"),
        (&[("FAKE_CUDA_VMM", "0")], 0, "missing device 0 pages lending"),
        (&[("FAKE_CUDA_INTEGRATED", "1")], 0, "the host's own memory"),
        (&[("FAKE_CUDA_MEMORY", "2")], 1, "cannot serve: device 0 memory unfit"),
    ] {
        let (ended, text) = machine.words(settings);
        assert!(ended == code && text.contains(says), "{settings:?}: {ended}\n{text}");
    }
    for (file, _) in &STUBS[1..] {
        fs::remove_file(machine.root.join("lib").join(file)).unwrap();
    }
    fs::remove_file(machine.root.join("bin/nvidia-smi")).unwrap();
    assert_eq!(machine.words(&[]).0, 0);
}

#[test]
fn libraries_that_are_old_or_broken_are_told_from_missing_ones() {
    let Some(machine) = Machine::whole("broken") else { return };
    let lib = |name: &str| machine.root.join("lib").join(name);
    fs::remove_file(lib("libcublasLt.so.13")).unwrap();
    machine.library("libcublasLt.so.12", "size_t cublasLtGetVersion(void) { return 120600; }");
    fs::write(lib("libnvrtc.so.13"), "no library").unwrap();
    machine.library("libnccl.so.2", "int nothing(void) { return 0; }");
    machine.library("libnvidia-ml.so.1", "int nvmlInit_v2(void) { return 9; }");
    fs::remove_file(machine.root.join("dev/nvidia-uvm")).unwrap();
    let (code, hopper) = machine.words(&[]);
    assert_eq!(code, 0, "{hopper}");
    for says in [
        "libcublasLt.so.12, 12.6.0",
        "unfit libnccl --tp-size 2 on libnccl.so.2: it has no ncclGetVersion",
        "unfit libnvrtc new kernels libnvrtc.so.13: ",
        "nvmlInit_v2 returned 9",
    ] {
        assert!(hopper.contains(says), "{says}\n{hopper}");
    }
    let (code, blackwell) = machine.words(&[("FAKE_CUDA_CAPABILITY", "120")]);
    let old = "12.6.0, older than the 12.8 that is needed";
    assert!(code == 1 && blackwell.contains(old), "{blackwell}");
    let (_, none) = machine.words(&[("FAKE_CUDA_DEVICES", "0")]);
    let nodes = "unfit device nodes the driver /dev: nvidia0, nvidiactl";
    assert!(none.contains(nodes) && none.contains("get: nvidia-modprobe -u"), "{none}");
}

#[test]
fn the_json_is_as_its_schema_says() {
    let schema: Value = serde_json::from_str(&run(&["schema", "doctor"]).stdout).unwrap();
    let Some(machine) = Machine::whole("json") else { return };
    for (settings, serves, devices) in [
        (&CARDS[..], true, 2),
        (&[("FAKE_CUDA_CAPABILITY", "75")], false, 1),
        (&[("FAKE_CUDA_DEVICES", "0")], false, 0),
    ] {
        let shown = machine.doctor(settings, &["--format", "json"]);
        let found: Value = serde_json::from_str(&shown.stdout).unwrap();
        assert_eq!(check(&schema, &found), Vec::<String>::new());
        assert_eq!(found["cuda"]["serves"], serves);
        assert_eq!(found["cuda"]["devices"].as_array().unwrap().len(), devices);
        assert_eq!(found["cuda"]["holders"][0]["pid"], 4001);
    }
}
