//! `doctor`: what this machine has, who holds it, and what each backend can do here.

pub mod cuda;
mod relaunch;

use crate::{
    args::{DoctorArgs, Format},
    exit::{self, Failure},
    output::{Output, Tone},
    render,
};
use cuda::{Checkup, Facts, checkup};
use plimsoll_backend_host::{
    HostMemory,
    nvidia_smi::{self, SmiGpu},
    read_host,
};
use plimsoll_core::units::Bytes;
use serde_json::{Value, json};
use std::{fmt::Write as _, time::Duration};

/// What was found.
struct Found {
    host: Result<HostMemory, String>,
    smi: Result<Vec<SmiGpu>, String>,
    cuda: Option<(Facts, Checkup)>,
}

/// How long `nvidia-smi` may take.
const SMI_LIMIT: Duration = Duration::from_secs(10);

/// Reads the machine; changes nothing. Exit 1 when `--cuda` is asked for and serving lacks a piece.
pub fn doctor(args: &DoctorArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    if args.before_relaunch {
        return relaunch::before_relaunch(args, format, output);
    }
    let found = Found {
        host: read_host().map_err(|error| error.to_string()),
        smi: nvidia_smi::run(SMI_LIMIT).map_err(|error| error.to_string()),
        cuda: args.cuda.then(|| {
            let facts = cuda::read(&args.root);
            let checkup = checkup(&facts);
            (facts, checkup)
        }),
    };
    let text = match format {
        Format::Human | Format::Md | Format::Csv | Format::Sarif => human(&found, output),
        Format::Json => format!("{:#}\n", machine(&found)),
        Format::Jsonl => format!("{}\n", machine(&found)),
    };
    output.write(&text)?;
    let lacks = found.cuda.is_some_and(|(_, checkup)| !checkup.serves);
    Ok(if lacks { exit::FAILED } else { exit::OK })
}

fn human(found: &Found, output: &Output) -> String {
    let mut out = String::from("host\n");
    match &found.host {
        Ok(host) => out.push_str(&host_lines(host)),
        Err(error) => {
            let _ = writeln!(out, "  {} {error}", output.paint(Tone::Bad, "unreadable:"));
        }
    }
    out.push_str("\nnvidia-smi\n");
    match &found.smi {
        Ok(gpus) => gpus.iter().for_each(|gpu| out.push_str(&smi_line(gpu))),
        Err(error) => {
            let _ = writeln!(out, "  {} {error}", output.paint(Tone::Close, "not here:"));
        }
    }
    out.push_str("\nbackends\n  sim    works everywhere\n");
    match &found.cuda {
        None => out.push_str("  cuda   not asked; `plimsoll doctor --cuda` asks the driver\n"),
        Some((_, checkup)) => out.push_str(&render::cuda::human(checkup, output)),
    }
    out
}

fn host_lines(host: &HostMemory) -> String {
    let mut out = String::new();
    let known =
        |bytes: Option<Bytes>| bytes.map_or_else(|| "unknown".to_owned(), |b| b.to_string());
    let _ = writeln!(out, "  total       {}", host.total);
    let _ = writeln!(out, "  available   {}", known(host.available));
    let _ = writeln!(out, "  shared mem  {} in use", known(host.shm_used));
    if let Some(cgroup) = &host.cgroup {
        let limit = known(cgroup.limit);
        let _ = writeln!(out, "  cgroup      {} of {limit} at {}", cgroup.usage, cgroup.path);
    }
    let _ = writeln!(out, "  headroom    {} for a new program", known(host.headroom()));
    let _ = writeln!(out, "  NUMA nodes  {}", host.numa.len().max(1));
    out
}

fn smi_line(gpu: &SmiGpu) -> String {
    let mib = |n: Option<u64>| n.map_or_else(|| "unknown".to_owned(), |n| format!("{n} MiB"));
    format!(
        "  {}  {}  total {}  used {}  free {}\n",
        gpu.index,
        gpu.name,
        mib(gpu.total_mib),
        mib(gpu.used_mib),
        mib(gpu.free_mib)
    )
}

fn machine(found: &Found) -> Value {
    let host = match &found.host {
        Ok(host) => json!({
            "total_bytes": host.total.0,
            "available_bytes": host.available.map(|b| b.0),
            "headroom_bytes": host.headroom().map(|b| b.0),
            "shm_used_bytes": host.shm_used.map(|b| b.0),
            "cgroup_limit_bytes": host.cgroup.as_ref().and_then(|c| c.limit).map(|b| b.0),
            "numa_nodes": host.numa.len(),
        }),
        Err(error) => json!({ "error": error }),
    };
    let smi = match &found.smi {
        Ok(gpus) => gpus
            .iter()
            .map(|gpu| {
                json!({
                    "index": gpu.index,
                    "name": gpu.name,
                    "total_mib": gpu.total_mib,
                    "used_mib": gpu.used_mib,
                    "free_mib": gpu.free_mib,
                })
            })
            .collect(),
        Err(error) => json!({ "error": error }),
    };
    let cuda = found.cuda.as_ref().map(|(facts, checkup)| render::cuda::json(facts, checkup));
    json!({ "schema": "plimsoll.doctor/2", "host": host, "nvidia_smi": smi, "cuda": cuda })
}
