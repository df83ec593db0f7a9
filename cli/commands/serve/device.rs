//! Where a model computes, from the flags; what makes no sense there is refused, and why.

use super::options::{KvDtype, ModelArgs, Precision};
use crate::exit::Failure;
use clap::ValueEnum;
use plimsoll_backend_host::model::Keep;
use plimsoll_core::policy::plimsoll::KvFormat;
use plimsoll_server::start::{CudaAsk, Half, HostAsk, On};

/// Most ranks of one engine.
const MOST_RANKS: u32 = 16;

/// `--device`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Device {
    /// `host`.
    Host,
    /// `cuda`, `cuda:1`, `cuda:0,2`; no ordinals: from 0 on, as many as there are ranks.
    Cuda(Vec<u32>),
}

/// Type of the arithmetic on a device.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dtype {
    /// The checkpoint's: float16 where its weights are kept so, else bfloat16.
    Auto,
    /// bfloat16.
    Bfloat16,
    /// float16.
    #[value(alias = "half")]
    Float16,
}

/// Reads `--device`.
///
/// # Errors
///
/// What would be right.
pub fn device(text: &str) -> Result<Device, String> {
    let wrong = || "host, cuda, cuda:N, or cuda:N,M for a rank each".to_owned();
    if text == "host" {
        return Ok(Device::Host);
    }
    let list = match text.strip_prefix("cuda").ok_or_else(wrong)? {
        "" => return Ok(Device::Cuda(Vec::new())),
        list => list.strip_prefix(':').ok_or_else(wrong)?,
    };
    let mut ordinals: Vec<u32> = Vec::new();
    for part in list.split(',') {
        let ordinal = part.parse().map_err(|_| wrong())?;
        if ordinals.contains(&ordinal) {
            return Err(format!("device {ordinal} is named twice"));
        }
        ordinals.push(ordinal);
    }
    Ok(Device::Cuda(ordinals))
}

impl ModelArgs {
    /// Where it computes.
    ///
    /// # Errors
    ///
    /// A flag that has no meaning there.
    pub fn on(&self) -> Result<On, Failure> {
        match &self.device {
            Device::Host => self.on_host().map(On::Host),
            Device::Cuda(ordinals) => self.on_cuda(ordinals).map(On::Cuda),
        }
    }

    fn on_host(&self) -> Result<HostAsk, Failure> {
        let dtype = self.dtype.is_some_and(|dtype| dtype != Dtype::Auto);
        refuse(&[
            (self.tp_size.is_some_and(|n| n > 1), "--tp-size divides a model over CUDA devices"),
            (dtype, "--dtype is the arithmetic of a CUDA device; on the host it is --precision"),
            (self.cuda_graph_max_bs.is_some(), "--cuda-graph-max-bs is for graphs of CUDA"),
            (self.disable_cuda_graph, "--disable-cuda-graph is for graphs of CUDA"),
            (
                self.strict_memory,
                "--strict-memory checks a device's memory; the host's belongs to others too",
            ),
        ])
        .map_err(|why| Failure::input(format!("{why}: add --device cuda")))?;
        let keep = match self.precision.unwrap_or(Precision::Int8) {
            Precision::AsStored => Keep::AsStored,
            Precision::F32 => Keep::F32,
            Precision::Bf16 => Keep::Bf16,
            Precision::Int8 => Keep::Int8,
        };
        Ok(HostAsk { memory_limit: self.memory_limit, keep, threads: self.threads })
    }

    fn on_cuda(&self, ordinals: &[u32]) -> Result<CudaAsk, Failure> {
        let f32 = self.kv_cache_dtype == KvDtype::Float32;
        refuse(&[
            (self.threads.is_some(), "--threads is for --device host: a device has its own"),
            (
                self.precision.is_some(),
                "--precision is for --device host: a device computes in --dtype, whatever the weights are stored in",
            ),
            (
                self.memory_limit.is_some(),
                "--memory-limit bounds the host's process: on a device --mem-margin leaves room to others, and \
                 --max-total-tokens bounds the pool",
            ),
            (
                f32,
                "--kv-cache-dtype float32 is for --device host: a device keeps keys and values in --dtype or fp8_e4m3",
            ),
            (
                self.disable_cuda_graph && self.cuda_graph_max_bs.is_some(),
                "--disable-cuda-graph and --cuda-graph-max-bs contradict each other",
            ),
        ])
        .map_err(Failure::input)?;
        let arithmetic = match self.dtype {
            None | Some(Dtype::Auto) => None,
            Some(Dtype::Bfloat16) => Some(Half::Bf16),
            Some(Dtype::Float16) => Some(Half::F16),
        };
        let graph_max = if self.disable_cuda_graph { Some(0) } else { self.cuda_graph_max_bs };
        let devices = ranks(ordinals, self.tp_size)?;
        Ok(CudaAsk { devices, arithmetic, graph_max, strict: self.strict_memory })
    }

    /// How keys and values are kept; `None`: as the device does by itself.
    pub const fn kv(&self) -> Option<KvFormat> {
        match self.kv_cache_dtype {
            KvDtype::Auto => None,
            KvDtype::Float32 => Some(KvFormat::F32),
            KvDtype::Float16 => Some(KvFormat::F16),
            KvDtype::Bfloat16 => Some(KvFormat::Bf16),
            KvDtype::Fp8E4m3 => Some(KvFormat::Fp8E4m3),
        }
    }
}

fn refuse(rules: &[(bool, &'static str)]) -> Result<(), &'static str> {
    rules.iter().find(|(given, _)| *given).map_or(Ok(()), |(_, why)| Err(*why))
}

/// A device for each rank.
fn ranks(ordinals: &[u32], tp_size: Option<u32>) -> Result<Vec<u32>, Failure> {
    match (ordinals, tp_size) {
        ([], ranks) => Ok((0..ranks.unwrap_or(1)).collect()),
        (named, Some(ranks)) if named.len() != ranks as usize => Err(Failure::input(format!(
            "--tp-size {ranks} needs {ranks} devices, and --device names {}",
            named.len()
        ))),
        (named, _) if named.len() > MOST_RANKS as usize => {
            Err(Failure::input(format!("--device names more than {MOST_RANKS} devices")))
        }
        (named, _) => Ok(named.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_by_name() {
        assert_eq!(device("host"), Ok(Device::Host));
        assert_eq!(device("cuda"), Ok(Device::Cuda(vec![])));
        assert_eq!(device("cuda:1"), Ok(Device::Cuda(vec![1])));
        assert_eq!(device("cuda:2,0"), Ok(Device::Cuda(vec![2, 0])));
        for wrong in ["", "gpu", "cuda:", "cuda1", "cuda:-1", "cuda:0,", "cuda:0,0", "cuda:x"] {
            assert!(device(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_rank_has_a_device() {
        let of = |named: &[u32], ranks| ranks_or_text(named, ranks);
        assert_eq!(of(&[], None), Ok(vec![0]));
        assert_eq!(of(&[], Some(2)), Ok(vec![0, 1]));
        assert_eq!(of(&[3], None), Ok(vec![3]));
        assert_eq!(of(&[3, 1], Some(2)), Ok(vec![3, 1]));
        assert!(of(&[3], Some(2)).unwrap_err().contains("needs 2 devices, and --device names 1"));
    }

    fn ranks_or_text(named: &[u32], ranks: Option<u32>) -> Result<Vec<u32>, String> {
        super::ranks(named, ranks).map_err(|failure| failure.message)
    }
}
