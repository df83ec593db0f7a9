//! The device catalog: every file reads, every number has evidence, names find what they mean.

use plimsoll_catalog::device_file::{self, DeviceFileError};
use plimsoll_catalog::devices::{self, DeviceError};
use plimsoll_core::device::{Evidence, MemoryKind, Platform};
use plimsoll_core::units::Bytes;

#[test]
fn every_file_reads_and_agrees_with_itself() {
    let all = devices::all();
    assert!(all.len() >= 100, "{} devices", all.len());
    for (key, names, text) in all {
        let device = device_file::read(key, text).unwrap();
        let total = device.runtime_total.value;
        assert!(total.low > Bytes::ZERO && total.width() < Bytes(total.mid.0 / 3), "{key}");
        if let Some(reserve) = device.driver_reserve() {
            // 0 to 1.3 GiB on NVIDIA; AMD's runtime reports what the tools do.
            assert!(reserve.low.as_gib_f64() < 1.5, "{key}: reserve {reserve:?}");
            assert!(reserve.high < Bytes::gib(5), "{key}: reserve {reserve:?}");
        } else {
            let without = device.memory == MemoryKind::Integrated || device.mig.is_some();
            assert!(without, "{key}: no smi total");
        }
        if device.platform == Platform::Cuda {
            assert!(device.compute_capability().is_some(), "{key}: arch {}", device.arch);
        }
        if let Some(mig) = &device.mig {
            assert!(all.iter().any(|(parent, ..)| *parent == mig.parent), "{key}: {}", mig.parent);
        }
        assert_eq!(names.first().copied(), Some(device.name.as_str()), "{key}: name comes first");
        assert!(device.bandwidth_gb_s.is_some(), "{key}: bandwidth");
    }
}

#[test]
fn names_of_one_device_do_not_lead_to_another() {
    for (key, names, _) in devices::all() {
        for name in names.iter().chain([key]) {
            match devices::find(name) {
                Ok(device) => assert_eq!(device.key, *key, "`{name}`"),
                Err(error) => panic!("`{name}` of {key}: {error}"),
            }
        }
    }
}

#[test]
fn names_are_found_as_people_write_them() {
    for (written, key) in [
        ("RTX PRO 6000 Blackwell", "rtx-pro-6000-blackwell"),
        ("rtx-pro-6000", "rtx-pro-6000-blackwell"),
        ("NVIDIA H200", "h200-sxm-141gb"),
        ("h100", "h100-sxm-80gb"),
        ("H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("a100 80 GB pcie", "a100-pcie-80gb"),
        ("A100-40G", "a100-sxm4-40gb"),
        ("rtx4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("dgx spark", "gb10"),
        ("mi300x", "mi300x"),
        ("Apple M4 Max 128 GB", "apple-128gb"),
        ("h200 1g.18gb", "h200-sxm-141gb-mig-1g-18gb"),
        ("h100 nvl", "h100-nvl-94gb"),
        ("3090", "rtx-3090"),
    ] {
        assert_eq!(devices::find(written).map(|d| d.key), Ok(key.to_owned()), "`{written}`");
    }
}

#[test]
fn a_name_of_several_lists_them_and_a_wrong_one_the_nearest() {
    let Err(DeviceError::Ambiguous { candidates, .. }) = devices::find("A100") else {
        panic!("A100 is several boards");
    };
    assert_eq!(candidates.len(), 4, "{candidates:?}");
    let error = devices::find("RTX 6000").unwrap_err().to_string();
    assert!(error.contains("RTX 6000 Ada") && error.contains("RTX PRO 6000"), "{error}");
    let error = devices::find("H1000").unwrap_err().to_string();
    assert!(error.contains("near:") && error.contains("H100"), "{error}");
    for nothing in ["", "   ", "nvidia", "💥"] {
        let error = devices::find(nothing).unwrap_err();
        assert!(matches!(error, DeviceError::Unknown { .. }), "`{nothing}`: {error}");
    }
}

#[test]
fn founding_machines_have_the_printed_numbers() {
    let card = devices::find("RTX PRO 6000 Blackwell").unwrap();
    let smi = card.smi_total_mib.as_ref().unwrap();
    assert_eq!((smi.value, smi.evidence), (97_887, Evidence::Observed));
    let laptop = devices::find("M3 Max 64GB").unwrap();
    assert_eq!(laptop.runtime_total.value.high, Bytes::mib(53_084));
    assert_eq!(laptop.runtime_total.value.low, Bytes::gib(48));
    assert_eq!(laptop.sglang_gpu_mem_mib(), 53_084);
    // 2/3 of 32 GB in whole 16 KiB pages: printed as 22,906.50 MB.
    let ram32 = devices::find("Apple 32GB").unwrap();
    let printed = ram32.runtime_total.value.mid.0 as f64 / 1e6;
    assert_eq!(format!("{printed:.2}"), "22906.50");
    assert_eq!(devices::find("GB10").unwrap().smi_total_mib, None);
}

#[test]
fn bad_files_say_where() {
    let form = device_file::read("x", "name: a\nplatfrom: cuda\n").unwrap_err().to_string();
    assert!(form.contains("platfrom") && form.contains("line"), "{form}");
    let text = "name: a\nplatform: cuda\nmemory: discrete\nlink: pcie\narch: '9.0'\n\
                runtime_total: { gib: [2, 1, 3], evidence: rule }\n";
    let range = device_file::read("x", text).unwrap_err();
    assert!(matches!(range, DeviceFileError::Range { key: "runtime_total.gib", .. }), "{range}");
    let missing = "name: a\nplatform: cuda\nmemory: discrete\nlink: pcie\narch: '9.0'\n";
    assert!(device_file::read("x", missing).is_err());
    let endless = text.replace("[2, 1, 3]", "[1, 2, .inf]");
    assert!(device_file::read("x", &endless).is_err());
}
