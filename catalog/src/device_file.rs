//! The form of a device file (`scenarios/devices/*.yaml`): read, checked, made into a profile.

use plimsoll_core::device::{
    CUDA_GRANULARITY, DenseTflops, DeviceProfile, Evidence, Link, MemoryKind, MetalWorkingSet,
    MigSlice, Platform, Rate, Sourced,
};
use plimsoll_core::figure::Estimate;
use plimsoll_core::units::Bytes;
use serde::Deserialize;

/// A device file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceFileError {
    /// Not YAML, an unknown key, or a value of another kind; the text names line and column.
    #[error("{file}: {text}")]
    Form {
        /// Which file.
        file: String,
        /// What the reader says.
        text: String,
    },
    /// A number outside its range.
    #[error("{file}: {key}: {value} is out of range; {allowed}")]
    Range {
        /// Which file.
        file: String,
        /// Key path.
        key: &'static str,
        /// As written.
        value: String,
        /// What is allowed.
        allowed: &'static str,
    },
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EvidenceName {
    Observed,
    Planner,
    Datasheet,
    Rule,
    Assumed,
}

impl From<EvidenceName> for Evidence {
    fn from(name: EvidenceName) -> Self {
        match name {
            EvidenceName::Observed => Self::Observed,
            EvidenceName::Planner => Self::Planner,
            EvidenceName::Datasheet => Self::Datasheet,
            EvidenceName::Rule => Self::Rule,
            EvidenceName::Assumed => Self::Assumed,
        }
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum PlatformName {
    Cuda,
    Rocm,
    Xpu,
    Metal,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum MemoryName {
    Discrete,
    Integrated,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LinkName {
    Nvswitch,
    Nvlink,
    Pcie,
    Fabric,
    None,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Count {
    count: u64,
    evidence: EvidenceName,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SmiTotal {
    mib: u64,
    evidence: EvidenceName,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Gib {
    gib: [f64; 3],
    evidence: EvidenceName,
    #[serde(default)]
    note: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mib {
    mib: [f64; 3],
    evidence: EvidenceName,
    #[serde(default)]
    note: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bandwidth {
    gb_s: [f64; 2],
    evidence: EvidenceName,
    #[serde(default)]
    note: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tflops {
    tflops: [f64; 2],
    evidence: EvidenceName,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Metal {
    ram_gib: u64,
    older_macos_bytes: u64,
    older_evidence: EvidenceName,
    newer_macos_bytes: Option<u64>,
    newer_evidence: Option<EvidenceName>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mig {
    parent: String,
    compute_slices: u32,
    memory_eighths: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceFile {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    platform: PlatformName,
    memory: MemoryName,
    link: LinkName,
    arch: String,
    sms: Option<Count>,
    smi_total: Option<SmiTotal>,
    runtime_total: Option<Gib>,
    bandwidth: Option<Bandwidth>,
    bf16: Option<Tflops>,
    fp8: Option<Tflops>,
    fp4: Option<Tflops>,
    context: Option<Mib>,
    metal: Option<Metal>,
    mig: Option<Mig>,
}

/// Reads one device file; `key` is its name without `.yaml`, shown in errors and kept in the profile.
///
/// # Errors
/// `Form` for anything that is not this form, `Range` for an interval out of order or a number
/// outside its range.
pub fn read(key: &str, text: &str) -> Result<DeviceProfile, DeviceFileError> {
    let file: DeviceFile = serde_yaml::from_str(text)
        .map_err(|e| DeviceFileError::Form { file: key.to_owned(), text: e.to_string() })?;
    let check = Check { file: key };
    let metal = file.metal.map(|metal| check.metal(&metal)).transpose()?;
    let runtime_total = match (file.runtime_total, &metal) {
        (Some(total), _) => check
            .estimate("runtime_total.gib", total.gib, 1024.0 * 1024.0 * 1024.0)
            .map(|value| Sourced { value, evidence: total.evidence.into(), note: total.note })?,
        (None, Some(metal)) => metal_total(metal),
        (None, None) => {
            return Err(check.range(
                "runtime_total",
                "missing".into(),
                "required unless `metal` is there",
            ));
        }
    };
    Ok(DeviceProfile {
        key: key.to_owned(),
        name: file.name,
        aliases: file.aliases,
        platform: match file.platform {
            PlatformName::Cuda => Platform::Cuda,
            PlatformName::Rocm => Platform::Rocm,
            PlatformName::Xpu => Platform::Xpu,
            PlatformName::Metal => Platform::Metal,
        },
        memory: match file.memory {
            MemoryName::Discrete => MemoryKind::Discrete,
            MemoryName::Integrated => MemoryKind::Integrated,
        },
        link: match file.link {
            LinkName::Nvswitch => Link::NvSwitch,
            LinkName::Nvlink => Link::NvLink,
            LinkName::Pcie => Link::Pcie,
            LinkName::Fabric => Link::Fabric,
            LinkName::None => Link::None,
        },
        arch: file.arch,
        sms: file.sms.map(|sms| check.count(&sms)).transpose()?,
        smi_total_mib: file.smi_total.map(|smi| check.smi(&smi)).transpose()?,
        runtime_total,
        bandwidth_gb_s: file
            .bandwidth
            .map(|b| check.rate("bandwidth.gb_s", b.gb_s, b.evidence, b.note))
            .transpose()?,
        tflops: DenseTflops {
            bf16: file
                .bf16
                .map(|t| check.rate("bf16.tflops", t.tflops, t.evidence, String::new()))
                .transpose()?,
            fp8: file
                .fp8
                .map(|t| check.rate("fp8.tflops", t.tflops, t.evidence, String::new()))
                .transpose()?,
            fp4: file
                .fp4
                .map(|t| check.rate("fp4.tflops", t.tflops, t.evidence, String::new()))
                .transpose()?,
        },
        context: file
            .context
            .map(|c| {
                let value = check.estimate("context.mib", c.mib, 1024.0 * 1024.0)?;
                Ok(Sourced { value, evidence: c.evidence.into(), note: c.note })
            })
            .transpose()?,
        granularity: match file.platform {
            PlatformName::Metal => Bytes(16 << 10),
            _ => CUDA_GRANULARITY,
        },
        metal,
        mig: file.mig.map(|mig| check.mig(mig)).transpose()?,
    })
}

/// Working set: what older macOS gives to what newer releases give, or 0.85 of RAM where that was not seen.
fn metal_total(metal: &MetalWorkingSet) -> Sourced<Estimate> {
    let older = metal.older_macos.value;
    match &metal.newer_macos {
        Some(newer) => Sourced {
            value: Estimate::new(older, newer.value, newer.value),
            evidence: newer.evidence,
            note: "newer macOS reports the high end, older the low".to_owned(),
        },
        None => Sourced {
            value: Estimate::new(older, older, Bytes(metal.ram.0 / 20 * 17)),
            evidence: metal.older_macos.evidence,
            note: "newer macOS reports more for 64 and 128 GB; not seen for this size".to_owned(),
        },
    }
}

struct Check<'a> {
    file: &'a str,
}

impl Check<'_> {
    fn range(&self, key: &'static str, value: String, allowed: &'static str) -> DeviceFileError {
        DeviceFileError::Range { file: self.file.to_owned(), key, value, allowed }
    }

    fn estimate(
        &self,
        key: &'static str,
        ends: [f64; 3],
        unit: f64,
    ) -> Result<Estimate, DeviceFileError> {
        let [low, mid, high] = ends;
        let ordered = low <= mid && mid <= high;
        if !ordered || low < 0.0 || high * unit > 1e15 {
            let allowed = "low <= mid <= high, from 0 to 10^15 bytes";
            return Err(self.range(key, format!("{ends:?}"), allowed));
        }
        let bytes = |n: f64| Bytes((n * unit).round() as u64);
        Ok(Estimate::new(bytes(low), bytes(mid), bytes(high)))
    }

    fn rate(
        &self,
        key: &'static str,
        ends: [f64; 2],
        evidence: EvidenceName,
        note: String,
    ) -> Result<Sourced<Rate>, DeviceFileError> {
        let [low, high] = ends;
        if !(low > 0.0 && low <= high && high < 1e9) {
            return Err(self.range(key, format!("{ends:?}"), "0 < low <= high < 10^9"));
        }
        Ok(Sourced { value: Rate { low, high }, evidence: evidence.into(), note })
    }

    fn count(&self, sms: &Count) -> Result<Sourced<u64>, DeviceFileError> {
        if !(1..=4096).contains(&sms.count) {
            return Err(self.range("sms.count", sms.count.to_string(), "1 to 4096"));
        }
        Ok(Sourced::new(sms.count, sms.evidence.into()))
    }

    fn smi(&self, smi: &SmiTotal) -> Result<Sourced<u64>, DeviceFileError> {
        if !(1..=16 << 20).contains(&smi.mib) {
            return Err(self.range("smi_total.mib", smi.mib.to_string(), "1 to 16,777,216"));
        }
        Ok(Sourced::new(smi.mib, smi.evidence.into()))
    }

    fn metal(&self, metal: &Metal) -> Result<MetalWorkingSet, DeviceFileError> {
        if !(1..=65_536).contains(&metal.ram_gib) {
            let ram = metal.ram_gib.to_string();
            return Err(self.range("metal.ram_gib", ram, "1 to 65,536"));
        }
        let ram = Bytes::gib(metal.ram_gib);
        for bytes in [Some(metal.older_macos_bytes), metal.newer_macos_bytes].into_iter().flatten()
        {
            if bytes > ram.0 {
                return Err(self.range("metal", bytes.to_string(), "at most the RAM"));
            }
        }
        let newer_evidence = metal.newer_evidence.map_or(Evidence::Assumed, Into::into);
        Ok(MetalWorkingSet {
            ram,
            older_macos: Sourced::new(Bytes(metal.older_macos_bytes), metal.older_evidence.into()),
            newer_macos: metal.newer_macos_bytes.map(|b| Sourced::new(Bytes(b), newer_evidence)),
        })
    }

    fn mig(&self, mig: Mig) -> Result<MigSlice, DeviceFileError> {
        if !(1..=7).contains(&mig.compute_slices) || !(1..=8).contains(&mig.memory_eighths) {
            let slices = format!("{} of 7, {} of 8", mig.compute_slices, mig.memory_eighths);
            return Err(self.range(
                "mig",
                slices,
                "1 to 7 compute slices, 1 to 8 eighths of memory",
            ));
        }
        Ok(MigSlice {
            parent: mig.parent,
            compute_slices: mig.compute_slices,
            memory_eighths: mig.memory_eighths,
        })
    }
}
