//! `doctor --before-relaunch` over made-up machines: a folder with `proc`, `sys` and `dev/shm`, and an
//! `nvidia-smi` of their own.

use super::{
    Shown, command, run, schema_check::check, shown, snapshot, verbs::folder, watch::executable,
};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// A machine that is being made up.
struct Machine {
    root: PathBuf,
}

impl Machine {
    fn new(name: &str) -> Self {
        let machine = Self { root: folder(&format!("relaunch-{name}")) };
        machine.file(
            "proc/meminfo",
            "MemTotal: 100000000 kB\nMemFree: 1000000 kB\n\
             MemAvailable: 80000000 kB\nMlocked: 9000000 kB\nUnevictable: 8000000 kB\n",
        );
        machine.file("proc/self/cgroup", "0::/\n");
        machine.process((1, 0), 'S', "systemd", &["/sbin/init"], &[]);
        machine
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }

    fn process(
        &self,
        (pid, parent): (u32, u32),
        state: char,
        name: &str,
        words: &[&str],
        open: &[&str],
    ) {
        let stat = format!("{pid} ({name}) {state} {parent} 1 1 0 -1 4194304\n");
        self.file(&format!("proc/{pid}/stat"), &stat);
        let status = "VmRSS:\t 2048 kB\nVmLck:\t 0 kB\nVmPin:\t 1024 kB\n";
        self.file(&format!("proc/{pid}/status"), status);
        let command: String = words.iter().map(|word| format!("{word}\0")).collect();
        self.file(&format!("proc/{pid}/cmdline"), &command);
        let fds = self.root.join(format!("proc/{pid}/fd"));
        fs::create_dir_all(&fds).expect("made");
        for (number, target) in open.iter().enumerate() {
            symlink(target, fds.join(number.to_string())).expect("linked");
        }
    }

    /// `nvidia-smi` with these tables.
    fn smi(&self, cards: &str, processes: &str) {
        let path = self.root.join("bin/nvidia-smi");
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        let text = format!(
            "#!/bin/sh\ncase \"$1\" in\n--query-gpu=index,uuid) echo '0, GPU-a'; echo '1, GPU-b';;\n\
             --query-gpu=*) echo '{cards}';;\n*) echo '{processes}';;\nesac\n"
        );
        executable(&path, &text);
    }

    fn doctor(&self, more: &[&str]) -> Shown {
        let root = self.root.display().to_string();
        let args = [&["doctor", "--before-relaunch", "--root", &root], more].concat();
        let mut command = command(&args);
        command.env("PATH", self.root.join("bin"));
        shown(command)
    }
}

const FREE: &str = "0, Made-up Card, 81920, 81000, 300\n1, Made-up Card, 81920, 81000, 300";

/// After a crash: a scheduler without its server, a zombie, one that hangs, a stranger on the device, segments,
/// a taken port.
fn crashed(name: &str) -> Machine {
    let machine = Machine::new(name);
    machine.process(
        (4001, 1),
        'S',
        "sglang::schedul",
        &["sglang::scheduler_TP0"],
        &["/dev/nvidia0", "/dev/nvidia-uvm", "/dev/shm/psm_held"],
    );
    machine.process((4002, 77), 'Z', "sglang::schedul", &[], &[]);
    machine.process(
        (77, 1),
        'S',
        "supervisor",
        &["/home/somebody/supervisor", "--token=sk-secret"],
        &[],
    );
    machine.process(
        (4003, 4000),
        'D',
        "VLLM::EngineCor",
        &["VLLM::EngineCore_DP0"],
        &["/dev/nvidia1"],
    );
    machine.process(
        (4000, 1),
        'S',
        "python3",
        &[
            "/home/somebody/bin/python3",
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--api-key",
            "sk-secret",
        ],
        &["socket:[555]"],
    );
    machine.process(
        (5000, 1),
        'S',
        "train",
        &["/home/somebody/train", "--password", "sk-secret"],
        &["/dev/nvidia1", "/dev/nvidia-uvm"],
    );
    machine.process(
        (6000, 1),
        'S',
        "nv-hostengine",
        &["nv-hostengine"],
        &["/dev/nvidia0", "/dev/nvidia-uvm"],
    );
    machine.file(
        "proc/net/tcp",
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
         0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 555 1 0\n",
    );
    machine.file("dev/shm/psm_held", &"x".repeat(4096));
    machine.file("dev/shm/psm_left", &"x".repeat(80 << 20));
    machine.file("dev/shm/nccl-left it", "x");
    machine.file("dev/shm/pulse-shm", "x");
    machine.smi(
        "0, Made-up Card, 81920, 9000, 72300\n1, Made-up Card, 81920, 41000, 40300",
        "GPU-a, 4001, 71000\nGPU-b, 5000, [N/A]\nGPU-b, 999999, 39000",
    );
    machine
}

/// The text of a run, without what differs between machines.
fn text(machine: &Machine, shown: &Shown) -> String {
    let text = format!("[exit {}]\n{}{}", shown.code, shown.stdout, shown.stderr);
    text.replace(&machine.root.display().to_string(), "ROOT")
}

#[test]
fn all_that_is_in_the_way_is_named_with_commands_that_are_not_run() {
    let machine = crashed("crashed");
    let shown = machine.doctor(&["--baseline", "78GiB", "--port", "30000"]);
    assert_eq!(shown.code, 1, "{}", shown.stderr);
    snapshot("before-relaunch", &text(&machine, &shown));
    for secret in ["somebody", "sk-secret", "--token", "/home"] {
        assert!(!shown.stdout.contains(secret), "{}", shown.stdout);
    }
    // The segments are still there: nothing was run.
    assert!(machine.root.join("dev/shm/psm_left").exists());
}

#[test]
fn the_json_is_as_its_schema_says() {
    let schema: Value =
        serde_json::from_str(&run(&["schema", "before-relaunch"]).stdout).expect("JSON");
    let machine = crashed("json");
    let shown = machine.doctor(&["--port", "30000", "--format", "json"]);
    let found: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!(check(&schema, &found), Vec::<String>::new());
    let kinds: Vec<&str> =
        found["findings"].as_array().unwrap().iter().map(|f| f["kind"].as_str().unwrap()).collect();
    for kind in
        ["server", "orphan", "stuck", "zombie", "holder", "device", "segments", "port", "locked"]
    {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
    let held: Vec<bool> = found["segments"]["of_servers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|segment| segment["held"].as_bool().unwrap())
        .collect();
    // nccl-left, psm_held, psm_left
    assert_eq!(held, [false, true, false]);
    for secret in ["somebody", "sk-secret"] {
        assert!(!shown.stdout.contains(secret), "{}", shown.stdout);
    }
    let clear = Machine::new("json-clear");
    clear.smi(FREE, "");
    let found: Value =
        serde_json::from_str(&clear.doctor(&["--format", "json"]).stdout).expect("JSON");
    assert_eq!(check(&schema, &found), Vec::<String>::new());
    assert_eq!(found["clear"], true);
}

#[test]
fn a_machine_at_its_baseline_is_clear() {
    let machine = Machine::new("clear");
    machine.smi(FREE, "");
    machine.file("dev/shm/sem.mp-x", "x");
    machine.process((300, 1), 'S', "Xorg", &["/usr/bin/Xorg"], &["/dev/nvidia0"]);
    for more in [&[][..], &["--baseline", "79GiB"], &["--port", "30000"]] {
        let shown = machine.doctor(more);
        assert_eq!(shown.code, 0, "{more:?}: {}{}", shown.stdout, shown.stderr);
        assert!(shown.stdout.starts_with("clear: nothing is in the way; at least 79.10 GiB"));
    }
    let waits = machine.doctor(&["--baseline", "79.5GiB"]);
    assert_eq!(waits.code, 1);
    assert!(
        waits.stdout.contains("device 0 has 79.10 GiB free of the 79.50 GiB"),
        "{}",
        waits.stdout
    );
    let never = machine.doctor(&["--baseline", "94GiB"]);
    assert_eq!(never.code, 2);
    assert!(never.stderr.contains("the largest device has 80.00 GiB"), "{}", never.stderr);
}

#[test]
fn a_device_that_nobody_seems_to_hold_points_elsewhere() {
    let machine = Machine::new("unseen");
    machine.smi("0, Made-up Card, 81920, 41000, 40300", "");
    let shown = machine.doctor(&[]);
    assert_eq!(shown.code, 1);
    let words = shown.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("by nobody who can be seen from here"), "{words}");
    assert!(shown.stdout.contains("sudo fuser -v /dev/nvidia*"), "{}", shown.stdout);
    assert!(!shown.stdout.contains("kill "), "{}", shown.stdout);
}

#[test]
fn amd_devices_are_read_from_their_driver() {
    let machine = Machine::new("amd");
    machine.file("sys/class/drm/card1/device/mem_info_vram_total", "206141652992\n");
    machine.file("sys/class/drm/card1/device/mem_info_vram_used", "150000000000\n");
    machine.process((4001, 1), 'S', "llama-server", &["llama-server"], &["/dev/kfd"]);
    let shown = machine.doctor(&[]);
    assert_eq!(shown.code, 1, "{}", shown.stderr);
    assert!(shown.stdout.contains("llama-server (pid 4001) still runs, holds an AMD device"));
    assert!(shown.stdout.contains("device 0 has 52.29 GiB free"), "{}", shown.stdout);
}

#[test]
fn where_nothing_can_be_read_is_exit_3() {
    let empty = folder("relaunch-nothing");
    let root = empty.display().to_string();
    let shown = run(&["doctor", "--before-relaunch", "--root", &root]);
    assert_eq!(shown.code, 3, "{}", shown.stdout);
    assert!(shown.stderr.contains("nothing can be read here"), "{}", shown.stderr);
    for args in [&["doctor", "--baseline", "1GiB"][..], &["doctor", "--before-relaunch", "--cuda"]]
    {
        assert_eq!(run(args).code, 2, "{args:?}");
    }
    assert!(Path::new(&root).exists());
}
