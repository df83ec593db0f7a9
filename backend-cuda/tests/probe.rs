//! The probe without a driver, and over a small fake driver library (built with the system's C
//! compiler; skipped, and said so, where there is none). Each case runs in a process of its own,
//! since a library is loaded once.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests")]

use plimsoll_backend_cuda::{Partition, ProbeError, probe};
use plimsoll_core::device::Evidence;
use plimsoll_core::units::Bytes;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the fake library with `flags` into a folder of its own.
fn fake(folder: &str, flags: &[&str]) -> Option<PathBuf> {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&out).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_driver.c");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(out.join("libcuda.so"))
        .arg(source)
        .args(flags)
        .status();
    match built {
        Ok(status) if status.success() => Some(out),
        _ => {
            println!("skipped: no C compiler (`cc`)");
            None
        }
    }
}

/// Runs the `child` test over the library in `folder` and returns what it printed.
fn run_child(folder: &Path, settings: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--nocapture"])
        .env("LD_LIBRARY_PATH", folder)
        .env("PROBE_CHILD", "1")
        .envs(settings.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "the probe must not panic: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Not a case of its own: what the others start.
#[test]
fn child() {
    if std::env::var_os("PROBE_CHILD").is_none() {
        return;
    }
    match probe() {
        Ok(devices) => {
            for device in devices {
                println!("{device:?}");
                assert_eq!(device.compute_capability.to_string(), "9.0");
                if let Partition::Mig { profile } = &device.partition {
                    assert_eq!(profile, "1g.18gb");
                }
                let profile = device.profile(None);
                assert_eq!(profile.runtime_total.evidence, Evidence::Measured);
                assert_eq!(profile.key, format!("cuda:{}", device.ordinal));
                if device.free.is_ok() {
                    assert_eq!(device.total, Bytes((16 << 30) - (1 << 20)));
                }
            }
        }
        Err(error) => println!("error: {error}"),
    }
}

#[test]
fn this_machine_answers_without_a_panic() {
    match probe() {
        Ok(devices) => assert!(devices.iter().all(|d| d.total > Bytes::ZERO && d.sms > 0)),
        Err(ProbeError::NoDriver) => {
            let text = ProbeError::NoDriver.to_string();
            assert!(text.contains("libcuda.so.1") && text.contains("--gpus all"), "{text}");
        }
        Err(error) => assert!(error.to_string().len() > 40, "{error}"),
    }
}

#[test]
fn devices_are_read_and_contexts_let_go() {
    let Some(folder) = fake("driver", &[]) else { return };
    let text = run_child(&folder, &[]);
    assert!(text.contains("name: \"NVIDIA H200\""), "{text}");
    assert!(text.contains("Mig { profile: \"1g.18gb\" }"), "{text}");
    assert!(text.contains("sms: 132") && text.contains("driver: (13, 0)"), "{text}");
    assert!(text.contains("free: Ok(12884901888 B)"), "{text}");
}

#[test]
fn failures_say_what_to_do() {
    let Some(folder) = fake("failing", &[]) else { return };
    for (settings, expected) in [
        (&[("FAKE_CUDA_INIT", "100")][..], "shows no device"),
        (&[("FAKE_CUDA_DEVICES", "0")], "shows no device"),
        (&[("FAKE_CUDA_INIT", "803")], "Reboot"),
        (&[("FAKE_CUDA_INIT", "34")], "stub"),
        (&[("FAKE_CUDA_INIT", "12345")], "CUDA error 12345"),
        (&[("FAKE_CUDA_VERSION", "10020")], "too old (CUDA 10.2)"),
        (&[("FAKE_CUDA_MEMORY", "2")], "meaning: \"out of memory\""),
    ] {
        let text = run_child(&folder, settings);
        assert!(text.contains(expected), "{settings:?}: {text}");
    }
}

#[test]
fn a_driver_without_a_symbol_is_too_old() {
    let Some(folder) = fake("old", &["-DOLD"]) else { return };
    let text = run_child(&folder, &[]);
    assert!(text.contains("too old (it has no cuMemGetInfo_v2)"), "{text}");
}
