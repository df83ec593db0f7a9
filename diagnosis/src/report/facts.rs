//! What the answer is about: server, release, device, ranks, model, the flags that decide.

use plimsoll_ingest::launch::{EngineLaunch, quote};
use plimsoll_ingest::log::{Server, Sglang};

use plimsoll_replay::assemble::ranks_of;

use super::Fact;
use crate::{
    Case,
    planned::DeviceKnown,
    reconstruct::{Known, RankLedger},
    study::Study,
};

/// Arguments that are worth a line when the server prints them.
const ARGS: &[&str] = &[
    "max_total_tokens",
    "kv_cache_memory_bytes",
    "chunked_prefill_size",
    "max_num_batched_tokens",
    "max_running_requests",
    "max_num_seqs",
    "context_length",
    "max_model_len",
    "tp_size",
    "tensor_parallel_size",
    "dp_size",
    "pp_size",
    "cuda_graph_max_bs",
    "kv_cache_dtype",
    "attention_backend",
    "speculative_algorithm",
    "hicache_size",
    "hicache_ratio",
];

/// All facts, in printing order.
pub(super) fn facts(study: &Study<'_>) -> Vec<Fact> {
    let case = study.case;
    let mut facts = Vec::new();
    facts.extend(case.server().map(|server| {
        let source = if case.log.server.is_some() { "log" } else { "command" };
        fact("server", name(server), source)
    }));
    facts.extend(version(case));
    facts.extend(device(study));
    facts.extend(ranks(case));
    facts.extend(model(case));
    facts.extend(study.rank().and_then(fraction));
    facts.extend(args(case));
    facts
}

fn fact(name: &str, value: impl Into<String>, source: impl Into<String>) -> Fact {
    Fact { name: name.to_owned(), value: value.into(), source: source.into() }
}

/// Name of a server.
const fn name(server: Server) -> &'static str {
    match server {
        Server::Sglang => "SGLang",
        Server::Vllm => "vLLM",
        Server::LlamaCpp => "llama.cpp",
        Server::Ollama => "ollama",
        Server::TensorRtLlm => "TensorRT-LLM",
        Server::Tgi => "TGI",
        Server::Lmdeploy => "LMDeploy",
    }
}

fn version(case: &Case) -> Option<Fact> {
    match &case.log.version {
        Some((text, _, line)) => Some(fact("version", &**text, format!("line {line}"))),
        None => case.version().map(|version| fact("version", version.to_string(), "command")),
    }
}

fn device(study: &Study<'_>) -> Option<Fact> {
    let case = study.case;
    if let Some(name) = &case.asked.device {
        return Some(fact("device", name.clone(), "asked"));
    }
    if let Some(name) = case.log.devices.first() {
        return Some(fact("device", &**name, "log"));
    }
    let fits = study.plans.iter().filter(|planned| planned.known == DeviceKnown::Fits);
    let names: Vec<&str> = fits.map(|planned| &*planned.device.name).collect();
    (!names.is_empty()).then(|| fact("device", names.join(", or "), "assumed: this much memory"))
}

fn ranks(case: &Case) -> Option<Fact> {
    if let Some(launch) = case.launched() {
        let source = if case.launch.is_some() { "command" } else { "log" };
        return Some(fact("ranks", ranks_of(&launch.engine).to_string(), source));
    }
    let tagged = case.log.ranks.iter().filter(|rank| !rank.is_none()).count();
    (tagged > 0).then(|| fact("ranks", tagged.to_string(), "log"))
}

fn model(case: &Case) -> Option<Fact> {
    if let Some(name) = &case.asked.model {
        return Some(fact("model", name.clone(), "asked"));
    }
    let launch = case.launched()?;
    let name = match &launch.engine {
        EngineLaunch::Sglang(args) => args.model_path.clone(),
        EngineLaunch::Vllm(args) => args.model.clone(),
    };
    if name.is_empty() {
        let class = case.sglang().find_map(|(_, line)| match line {
            Sglang::LoadEnd { model_class, .. } => model_class.clone(),
            _ => None,
        });
        return class.map(|class| fact("model", &*class, "log"));
    }
    let source = if case.launch.is_some() { "command" } else { "log" };
    Some(fact("model", quote(&name), source))
}

fn fraction(rank: &RankLedger) -> Option<Fact> {
    let fraction = rank.fraction?;
    let flag = rank.what_if.map_or("fraction", |what_if| what_if.flag);
    let (value, source) = match fraction.known {
        Known::Solved => (
            format!("{:.3} ± {:.3}", fraction.value, fraction.half.max(0.0005)),
            "solved from the lines",
        ),
        Known::Printed => (fraction.value.to_string(), "log"),
        Known::Given => (fraction.value.to_string(), "command"),
        Known::Automatic => (fraction.value.to_string(), "default of the release"),
    };
    Some(fact(flag, value, source))
}

fn args(case: &Case) -> Vec<Fact> {
    let printed = ARGS.iter().filter_map(|name| {
        let value = case.arg(name).filter(|value| !matches!(*value, "" | "None"))?;
        Some(fact(name, value, "log"))
    });
    printed.collect()
}
