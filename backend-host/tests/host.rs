//! Host readings over made-up kernel files, and the `nvidia-smi` table in its several forms.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use plimsoll_backend_host::linux::{self, Roots};
use plimsoll_backend_host::nvidia_smi::{SmiError, parse, run_command};
use plimsoll_backend_host::pressure::Pressure;
use plimsoll_backend_host::{CgroupVersion, HostError};
use plimsoll_core::units::Bytes;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A folder with the given files, and roots that lead into it.
fn machine(name: &str, files: &[(&str, &str)]) -> Roots {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&root);
    for (path, text) in files {
        let path: PathBuf = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    Roots { proc: root.join("proc"), sys: root.join("sys"), shm: root.join("shm") }
}

const MEMINFO: &str = "MemTotal:       131072000 kB\nMemFree:         1024000 kB\n\
                       MemAvailable:   98304000 kB\nHugePages_Total:       0\n";

#[test]
fn v2_groups_take_the_tightest_parent() {
    let roots = machine(
        "v2",
        &[
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/pods/server\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
            ("sys/fs/cgroup/memory.current", "50000000000\n"),
            ("sys/fs/cgroup/pods/memory.max", "64424509440\n"),
            ("sys/fs/cgroup/pods/memory.current", "20000000000\n"),
            ("sys/fs/cgroup/pods/memory.stat", "anon 1\ninactive_file 5000000000\n"),
            ("sys/fs/cgroup/pods/server/memory.max", "max\n"),
            ("sys/fs/cgroup/pods/server/memory.current", "10000000000\n"),
            (
                "sys/devices/system/node/node1/meminfo",
                "Node 1 MemTotal: 200 kB\nNode 1 MemFree: 50 kB\n",
            ),
            (
                "sys/devices/system/node/node0/meminfo",
                "Node 0 MemTotal: 100 kB\nNode 0 MemFree: 9 kB\n",
            ),
            (
                "sys/devices/system/node/node2/meminfo",
                "Node 2 MemTotal: 0 kB\nNode 2 MemFree: 0 kB\n",
            ),
            ("sys/devices/system/node/possible", "0-2\n"),
            ("shm/nccl-a", &"x".repeat(8192)),
            ("shm/deep/psm_b", &"x".repeat(4096)),
        ],
    );
    let host = linux::read(&roots).unwrap();
    assert_eq!((host.total, host.free), (Bytes(131_072_000 << 10), Some(Bytes(1_024_000 << 10))));
    let group = host.cgroup.clone().unwrap();
    assert_eq!((group.version, group.path.as_str()), (CgroupVersion::V2, "/pods"));
    assert_eq!(group.limit, Some(Bytes(64_424_509_440)));
    // 60 GiB − (20 − 5) decimal GB is less than what the kernel calls available.
    assert_eq!(host.headroom(), Some(Bytes(64_424_509_440 - 15_000_000_000)));
    assert_eq!(linux::headroom(&roots).unwrap(), host.headroom());
    let nodes: Vec<(u32, u64)> = host.numa.iter().map(|n| (n.id, n.free.0 >> 10)).collect();
    assert_eq!(nodes, [(0, 9), (1, 50)]);
    assert!(host.shm_used.unwrap() >= Bytes(12_288), "{:?}", host.shm_used);
}

#[test]
fn a_process_reads_its_own_memory() {
    let status = "Name:\tserver\nVmPeak:\t  900 kB\nVmSize:\t  800 kB\nVmRSS:\t   12 kB\n";
    let own = linux::own_memory(&machine("own", &[("proc/self/status", status)])).unwrap();
    assert_eq!((own.mapped, own.resident), (Bytes(800 << 10), Bytes(12 << 10)));
    let short = machine("own-short", &[("proc/self/status", "VmSize:\t 800 kB\n")]);
    let error = linux::own_memory(&short).unwrap_err();
    assert!(matches!(error, HostError::Form { key, .. } if key == "VmRSS"));
    assert!(linux::own_memory(&machine("own-none", &[])).is_err());
}

#[test]
fn a_parent_with_a_larger_limit_may_leave_less() {
    let roots = machine(
        "room",
        &[
            ("proc/meminfo", MEMINFO),
            ("proc/self/status", "VmSize: 800 kB\nVmRSS: 120 kB\nRssAnon: 20 kB\n"),
            ("proc/self/cgroup", "0::/pods/server\n"),
            ("proc/sys/vm/max_map_count", "65530\n"),
            ("sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
            ("sys/fs/cgroup/pods/memory.max", "9000000\n"),
            ("sys/fs/cgroup/pods/memory.current", "8500000\n"),
            ("sys/fs/cgroup/pods/memory.stat", "inactive_file 100000\n"),
            ("sys/fs/cgroup/pods/server/memory.max", "5000000\n"),
            ("sys/fs/cgroup/pods/server/memory.current", "1000000\n"),
        ],
    );
    let group = linux::group_room(&roots).unwrap();
    assert_eq!((group.path.as_str(), group.limit), ("/pods", Bytes(9_000_000)));
    assert_eq!(group.room, Bytes(600_000));
    // The tightest limit is still the inner one.
    assert_eq!(linux::read(&roots).unwrap().cgroup.unwrap().limit, Some(Bytes(5_000_000)));
    let readings = linux::plan_readings(&roots).unwrap();
    assert_eq!(readings.group, Some(group));
    assert_eq!((readings.resident, readings.anonymous), (Bytes(120 << 10), Bytes(20 << 10)));
    assert_eq!(readings.maps_max, Some(65_530));
    let room = Pressure::under(roots, Some(Bytes(200 << 10))).room().unwrap();
    assert_eq!(room.least(), Some(Bytes(80 << 10)));
    assert_eq!(room.group, Some(Bytes(600_000)));
}

#[test]
fn v1_groups_know_their_unlimited_number() {
    let files = |limit| {
        machine(
            "v1",
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "5:cpu,cpuacct:/a\n9:memory:/docker/abc\n0::/\n"),
                // The container sees its own group at the mount point.
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", limit),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n"),
            ],
        )
    };
    let group = linux::read(&files("9223372036854771712\n")).unwrap().cgroup.unwrap();
    assert_eq!((group.version, group.limit, group.usage), (CgroupVersion::V1, None, Bytes(1000)));
    let group = linux::read(&files("2000\n")).unwrap().cgroup.unwrap();
    assert_eq!(group.limit, Some(Bytes(2000)));
}

#[test]
fn a_bad_meminfo_is_an_error_with_its_place() {
    let roots = machine("bad", &[("proc/meminfo", "MemTotal: lots kB\n")]);
    let error = linux::read(&roots).unwrap_err().to_string();
    assert!(error.contains("line 1") && error.contains("lots"), "{error}");
    let empty = machine("empty", &[("proc/meminfo", "")]);
    assert!(matches!(linux::read(&empty), Err(HostError::Form { .. })));
    let none = machine("none", &[("proc/else", "")]);
    assert!(matches!(linux::read(&none), Err(HostError::Read { .. })));
}

#[test]
fn this_machine_is_read() {
    if cfg!(target_os = "linux") {
        let host = plimsoll_backend_host::read_host().unwrap();
        assert!(host.total > Bytes::ZERO && host.headroom().is_some());
    }
}

#[test]
fn smi_tables_with_and_without_header_and_units() {
    let plain = "0, NVIDIA H200, 143771, 143156, 1\n1, NVIDIA H200, 143771, 20, 143137\n";
    let gpus = parse(plain).unwrap();
    assert_eq!(gpus.len(), 2);
    assert_eq!((gpus[1].index, gpus[1].total_mib, gpus[1].free_mib), (1, Some(143_771), Some(20)));
    let titled = "name, memory.total [MiB], driver_version\nNVIDIA GB10, [N/A], 580.95\n";
    let gpus = parse(titled).unwrap();
    assert_eq!(
        (gpus[0].name.as_str(), gpus[0].total_mib, gpus[0].used_mib),
        ("NVIDIA GB10", None, None)
    );
    let units = "index, name, memory.total [MiB], memory.free [MiB], memory.used [MiB]\n\
                 0, NVIDIA RTX PRO 6000 Blackwell Server Edition, 97887 MiB, 97250 MiB, 2 MiB\r\n";
    assert_eq!(parse(units).unwrap()[0].total_mib, Some(97_887));
    let refused = "0, NVIDIA A100, [Insufficient Permissions], [Not Supported], N/A\n";
    assert_eq!(parse(refused).unwrap()[0].free_mib, None);
}

#[test]
fn smi_failures_are_named() {
    assert_eq!(parse(""), Err(SmiError::NoDevices));
    assert_eq!(parse("No devices were found\n"), Err(SmiError::NoDevices));
    let lost = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n";
    assert!(matches!(parse(lost), Err(SmiError::Failed(_))));
    for (text, column) in [
        ("zero, NVIDIA H200, 1, 1, 1\n", "index"),
        ("0, NVIDIA H200, lots, 1, 1\n", "memory.total"),
        ("0, NVIDIA H200, 1, 1\n", "memory.used"),
        ("-\n", "name"),
    ] {
        let Err(SmiError::Form { line: 1, column: found, .. }) = parse(text) else {
            unreachable!("`{text}` must be refused");
        };
        assert_eq!(found, column, "`{text}`");
    }
}

#[cfg(unix)]
#[test]
fn smi_is_run_and_stopped() {
    use std::os::unix::fs::PermissionsExt as _;
    let script = |name: &str, body: &str| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.display().to_string()
    };
    let good = script("smi-good", "echo '0, NVIDIA L4, 23034, 22600, 1'");
    let limit = Duration::from_secs(10);
    assert_eq!(run_command("no-such-nvidia-smi", limit), Err(SmiError::NotFound));
    assert_eq!(run_command(&good, limit).unwrap()[0].total_mib, Some(23_034));
    let bad = script(
        "smi-bad",
        "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18",
    );
    let error = run_command(&bad, limit).unwrap_err().to_string();
    assert!(error.contains("version mismatch"), "{error}");
    let slow = script("smi-slow", "exec sleep 30");
    let start = std::time::Instant::now();
    let error = run_command(&slow, Duration::from_millis(200)).unwrap_err();
    assert_eq!(error, SmiError::TimedOut(Duration::from_millis(200)));
    assert!(start.elapsed() < Duration::from_secs(10));
}
