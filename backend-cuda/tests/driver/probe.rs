//! The probe without a driver, and over the fake driver library. Each case runs in a process of
//! its own, since a library is loaded once.
use super::support::{CHILD, Ended, build, child as run_child};
use plimsoll_backend_cuda::{Partition, ProbeError, probe};
use plimsoll_core::device::Evidence;
use plimsoll_core::units::Bytes;
use std::path::Path;

const TWO: [(&str, &str); 2] =
    [("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_NAMES", "NVIDIA H200;NVIDIA H200 MIG 1g.18gb")];

fn start(part: &str, folder: &Path, settings: &[(&str, &str)]) -> Ended {
    run_child("probe::child", part, folder, settings)
}

/// Not a case of its own: what the others start.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
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
                assert_eq!(device.total, Bytes::gib(8));
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
    let Some(folder) = build(&[]) else { return };
    let ended = start("probe", &folder, &TWO);
    let text = &ended.text;
    assert!(text.contains("name: \"NVIDIA H200\""), "{text}");
    assert!(text.contains("Mig { profile: \"1g.18gb\" }"), "{text}");
    assert!(text.contains("sms: 132") && text.contains("driver: (13, 0)"), "{text}");
    // 8 GiB without the context in which it is read.
    assert!(text.contains("free: Ok(8053063680 B)"), "{text}");
    assert!(text.contains("memory: Discrete"), "{text}");
    ended.nothing_leaked();
    let shared = start("integrated", &folder, &[("FAKE_CUDA_INTEGRATED", "1")]);
    assert!(shared.text.contains("memory: Integrated"), "{}", shared.text);
}

#[test]
fn failures_say_what_to_do() {
    let Some(folder) = build(&[]) else { return };
    for (settings, expected) in [
        (&[("FAKE_CUDA_INIT", "100")][..], "shows no device"),
        (&[("FAKE_CUDA_DEVICES", "0")], "shows no device"),
        (&[("FAKE_CUDA_INIT", "803")], "Reboot"),
        (&[("FAKE_CUDA_INIT", "34")], "stub"),
        (&[("FAKE_CUDA_INIT", "12345")], "CUDA error 12345"),
        (&[("FAKE_CUDA_VERSION", "10020")], "too old (CUDA 10.2)"),
        (&[("FAKE_CUDA_MEMORY", "2")], "meaning: \"out of memory\""),
        (&[("FAKE_CUDA_FOREIGN", "8589934592")], "meaning: \"out of memory\""),
    ] {
        let ended = start(expected, &folder, settings);
        assert!(ended.text.contains(expected), "{settings:?}: {}", ended.text);
        ended.nothing_leaked();
    }
}

#[test]
fn a_driver_without_a_symbol_is_too_old() {
    let Some(folder) = build(&["-DFAKE_OLD"]) else { return };
    let text = start("old", &folder, &[]).text;
    assert!(text.contains("too old (it has no cuMemGetInfo_v2, and is for CUDA 13.0)"), "{text}");
}
