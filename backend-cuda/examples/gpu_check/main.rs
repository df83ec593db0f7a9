//! Checks the CUDA backend on the device of this machine and writes what it measured as JSON: ballast, every
//! kernel beside doubles, a decoder beside the host's, and how fast a large one is.
//!
//! `gpu_check [--short] FILE`: sections are written as they end, so that a run that is cut leaves those before.
//! Ends with 1 when a check failed, 3 when there is no device. Needs the
//! driver and cuBLASLt. `--short`: kernels and a small decoder alone, in small, for a slow observer.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::exit,
    reason = "a program for the terminal"
)]

mod attention;
mod bench;
mod kernels;
mod model;
mod noise;

use bench::Bench as Card;
use kernels::Scale;
use noise::Size;
use plimsoll_backend_cuda::facts::{Facts, measure};
use plimsoll_backend_cuda::{BallastReport, CudaBackend, CudaSpec, Declared, probe};
use plimsoll_core::{
    backend::{
        Backend, BackendError, KvMove, Place, Rank, StepWork,
        conformance::{Bench, checks},
    },
    memory::ledger::Account,
    sched::Mode,
    units::{Bytes, Nanos},
};
use serde_json::{Map, Value, json};
use std::time::Instant;

type Answer = Result<Value, String>;

struct Results {
    file: String,
    sections: Map<String, Value>,
    failed: u32,
}

impl Results {
    /// Runs a section and writes all results until now.
    fn section(&mut self, name: &str, body: impl FnOnce() -> Answer) {
        let started = Instant::now();
        let answer = body();
        let seconds = started.elapsed().as_secs_f64();
        let value = match answer {
            Ok(value) => json!({ "ok": true, "seconds": seconds, "results": value }),
            Err(error) => {
                self.failed += 1;
                json!({ "ok": false, "seconds": seconds, "error": error })
            }
        };
        println!("{name}: {} in {seconds:.2} s", if value["ok"] == true { "ok" } else { "FAILED" });
        if let Some(error) = value["error"].as_str() {
            println!("  {error}");
        }
        self.sections.insert(name.to_owned(), value);
        let text = json!({ "schema": "plimsoll.gpu_check/1", "sections": self.sections });
        if let Err(error) = std::fs::write(&self.file, format!("{text:#}\n")) {
            eprintln!("{}: {error}", self.file);
            self.failed += 1;
        }
    }
}

fn main() {
    let mut files: Vec<String> = std::env::args().skip(1).collect();
    let short = files.first().is_some_and(|first| first == "--short");
    if short {
        files.remove(0);
    }
    let [file] = &files[..] else {
        eprintln!("usage: gpu_check [--short] FILE");
        std::process::exit(2);
    };
    let mut results = Results { file: file.clone(), sections: Map::new(), failed: 0 };
    results.section("probe", devices);
    if results.sections["probe"]["ok"] != true {
        std::process::exit(3);
    }
    if !short {
        ballast_sections(&mut results);
    }
    let scale = if short { Scale::Small } else { Scale::Real };
    for (name, check) in kernels::CHECKS {
        results.section(&format!("kernel_{name}"), || {
            let worst = check(&mut Card::open(0, 1)?, scale)?;
            Ok(json!({ "worst_part_of_tolerance": worst }))
        });
    }
    results.section("model_agrees_with_host", model::agrees_with_host);
    if !short {
        results.section("llama_8b_served", || model::served(Size::Llama8b));
    }
    results.section("after_all", || {
        let found = measure_free()?;
        Ok(json!({ "free_bytes": found.0 }))
    });
    println!("{} sections failed", results.failed);
    std::process::exit(i32::from(results.failed > 0));
}

fn ballast_sections(results: &mut Results) {
    results.section("facts", || measure(0).map(|f| facts(&f)).map_err(|e| e.to_string()));
    results.section("conformance_whole_card", || {
        let bench = Bench {
            unit: Bytes::mib(64),
            // What the driver keeps for graphs and small allocations.
            device_slack: Bytes::mib(32),
            // The host is used by other programs too.
            host_slack: Bytes::gib(1),
        };
        conformance(&CudaSpec::whole_cards(1), &bench)
    });
    results.section("conformance_eight_ranks", || {
        let mut spec = CudaSpec::on_one_card(0, &[share(measure_free()?, 8); 8]);
        spec.host.available = Some(Bytes::gib(8));
        conformance(&spec, &Bench::exact(Bytes::mib(2)))
    });
    results.section("out_of_memory_whole_card", out_of_memory);
    results.section("declared_card", declared_card);
}

fn devices() -> Answer {
    let devices = probe().map_err(|error| error.to_string())?;
    let device = |d: plimsoll_backend_cuda::CudaDevice| {
        json!({
            "name": d.name,
            "total_bytes": d.total.0,
            "free_bytes": d.free.as_ref().ok().map(|free| free.0),
            "compute_capability": d.compute_capability.to_string(),
            "sms": d.sms,
            "memory": format!("{:?}", d.memory),
            "partition": format!("{:?}", d.partition),
            "driver": format!("{}.{}", d.driver.0, d.driver.1),
        })
    };
    Ok(devices.into_iter().map(device).collect())
}

fn facts(facts: &Facts) -> Value {
    let costs: Vec<Value> = facts
        .costs
        .iter()
        .map(|cost| {
            json!({
                "call": cost.call,
                "size_bytes": cost.size.0,
                "count": cost.count,
                "taken_bytes": cost.taken.0,
                "taken_each_bytes": cost.taken.0 as f64 / cost.count.max(1) as f64,
                "kept_bytes": cost.kept.0,
                "ns_each": cost.nanos / cost.count.max(1),
            })
        })
        .collect();
    let graph = |g: &plimsoll_backend_cuda::facts::GraphCost| json!([g.batch, g.taken.0]);
    json!({
        "total_bytes": facts.total.0,
        "tool_total_bytes": facts.tool_total.map(|b| b.0),
        "context_bytes": facts.context.0,
        "foreign_bytes": facts.foreign.map(|b| b.0),
        "free_bytes": facts.free.0,
        "page_min_bytes": facts.pages.0.0,
        "page_recommended_bytes": facts.pages.1.0,
        "costs": costs,
        "graph_batch_and_taken_bytes": facts.graphs.iter().map(graph).collect::<Vec<_>>(),
        "graphs_taken_bytes": facts.graphs.iter().map(|g| g.taken.0).sum::<u64>(),
        "graphs_kept_bytes": facts.graphs_kept.0,
        "largest_bytes": facts.largest.0,
        "works_after_refusal": facts.works_after_refusal,
        "fill_bytes": facts.fill.0.0,
        "fill_ns": facts.fill.1,
        "copy_bytes": facts.copy.0.0,
        "copy_to_host_ns": facts.copy.1,
        "copy_to_device_ns": facts.copy.2,
        "reading_ns": facts.reading_nanos,
    })
}

fn open(spec: &CudaSpec) -> Result<CudaBackend, String> {
    CudaBackend::open(spec).map_err(|error| error.to_string())
}

/// Every check on its own machine, so that one failure does not hide the others.
fn conformance(spec: &CudaSpec, bench: &Bench) -> Answer {
    let mut answers = Map::new();
    let mut wrong = Vec::new();
    for (name, check) in checks() {
        let started = Instant::now();
        let mut machine = open(spec).map_err(|error| format!("{name}: {error}"))?;
        let done = check(&mut machine, bench);
        drop(machine);
        let seconds = started.elapsed().as_secs_f64();
        if let Err(what) = &done {
            wrong.push(format!("{name}: {what}"));
        }
        answers.insert(name.to_owned(), json!({ "ok": done.is_ok(), "seconds": seconds }));
    }
    if wrong.is_empty() { Ok(answers.into()) } else { Err(wrong.join("; ")) }
}

/// Free on card 0 inside a context.
fn measure_free() -> Result<Bytes, String> {
    let mut machine = open(&CudaSpec::whole_cards(1))?;
    machine.memory(Rank(0)).map(|reading| reading.free).map_err(|error| error.to_string())
}

/// An `n`-th of what is free, with a reserve and another program inside.
fn share(free: Bytes, n: u64) -> Declared {
    let capacity = Bytes(free.0 / n / Bytes::mib(64).0 * Bytes::mib(64).0);
    let driver_reserve = Bytes(capacity.0 / 64 / Bytes::mib(2).0 * Bytes::mib(2).0);
    Declared {
        capacity,
        tool_capacity: Some(capacity),
        total: Some(capacity.saturating_sub(driver_reserve)),
        driver_reserve,
        others: Bytes::mib(20),
        granularity: Bytes::mib(2),
    }
}

/// The driver's own refusals on a whole card: not now, never, and that nothing was lost by them.
fn out_of_memory() -> Answer {
    let say = |error: BackendError| error.to_string();
    let mut machine = open(&CudaSpec::whole_cards(1))?;
    let (rank, device) = (Rank(0), Place::Device);
    let before = machine.memory(rank).map_err(say)?;
    let total = before.total.unwrap_or_default();
    let never = machine.allocate(rank, Account::KvPool, device, total + Bytes::mib(2));
    let started = Instant::now();
    let pool = Bytes(before.free.saturating_sub(Bytes::gib(1)).0 / (2 << 20) * (2 << 20));
    let pool = machine.allocate(rank, Account::KvPool, device, pool).map_err(say)?;
    let pool_seconds = started.elapsed().as_secs_f64();
    let left = machine.memory(rank).map_err(say)?.free;
    let not_now = machine.allocate(rank, Account::Activations, device, left + Bytes::mib(2));
    let live =
        machine.allocate(rank, Account::Activations, device, Bytes::mib(512)).map_err(say)?;
    let step = StepWork { mode: Mode::Prefill, tokens: 8192, requests: 1, time: Nanos(1) };
    let pass = machine.execute(&step).map_err(say)?;
    machine.move_kv(rank, KvMove::ToHost, Bytes::mib(64)).map_err(say)?;
    machine.move_kv(rank, KvMove::ToDevice, Bytes::mib(64)).map_err(say)?;
    let rows = machine.held(rank).map_err(say)?;
    machine.free(live).map_err(say)?;
    machine.free(pool).map_err(say)?;
    let after = machine.memory(rank).map_err(say)?;
    let told_apart = matches!(never, Err(BackendError::TooLarge { .. }))
        && matches!(not_now, Err(BackendError::OutOfMemory { .. }));
    let ledger: Map<String, Value> =
        rows.iter().map(|(account, bytes)| (account.name().to_owned(), bytes.0.into())).collect();
    let value = json!({
        "never": never.err().map(|e| e.to_string()),
        "not_now": not_now.err().map(|e| e.to_string()),
        "free_before_bytes": before.free.0,
        "free_with_pool_bytes": left.0,
        "free_after_bytes": after.free.0,
        "pool_seconds": pool_seconds,
        "pass_ns": pass.measured.map(|ns| ns.0),
        "ledger": ledger,
    });
    if told_apart { Ok(value) } else { Err(format!("refusals not told apart: {value}")) }
}

/// A declared card that is smaller than the real one: its free memory is the card's to the page,
/// through a server's life, and the driver refuses what the declaration refuses.
fn declared_card() -> Answer {
    let say = |error: BackendError| error.to_string();
    let free = measure_free()?;
    let mut declared = share(free, 1);
    declared.capacity = Bytes(free.0 / 3 * 2 / Bytes::mib(64).0 * Bytes::mib(64).0);
    declared.total = Some(declared.usable());
    declared.granularity = Bytes::ZERO;
    let started = Instant::now();
    let mut machine = open(&CudaSpec::on_one_card(0, &[declared]))?;
    let opened_seconds = started.elapsed().as_secs_f64();
    let rank = Rank(0);
    let mut readings = Vec::new();
    let mut read = |machine: &mut CudaBackend, point: &str| {
        let reading = machine.memory(rank).map_err(say)?;
        let measured = reading.measured_free.unwrap_or_default();
        readings.push(json!([point, reading.free.0, measured.0]));
        Ok::<_, String>((reading.free, measured))
    };
    let start = read(&mut machine, "start")?;
    let take = |machine: &mut CudaBackend, account, size: Bytes| {
        machine.allocate(rank, account, Place::Device, size).map_err(say)
    };
    take(&mut machine, Account::Weights, Bytes(start.0.0 / 3))?;
    read(&mut machine, "weights")?;
    take(&mut machine, Account::KvPool, Bytes(start.0.0 / 2))?;
    read(&mut machine, "pool")?;
    for batch in [1, 2, 4, 8, 16, 32, 64, 128] {
        machine.capture(rank, batch, Bytes::mib(24)).map_err(say)?;
    }
    read(&mut machine, "graphs")?;
    machine.set_others(rank, Bytes::gib(1)).map_err(say)?;
    let last = read(&mut machine, "others grown")?;
    let refused = take(&mut machine, Account::Activations, last.0 + Bytes::mib(64));
    let report = machine.report();
    drop(machine);
    let apart = start.0.0.abs_diff(start.1.0);
    let value = json!({
        "opened_seconds": opened_seconds,
        "point_declared_measured_bytes": readings,
        "refused": refused.err(),
        "report": ballast(&report),
    });
    if apart < Bytes::mib(2).0 && report.refusals_confirmed == 1 {
        Ok(value)
    } else {
        Err(format!("the card does not agree with the declaration: {value}"))
    }
}

fn ballast(report: &BallastReport) -> Value {
    json!({
        "graphs": report.graphs,
        "graph_cost_bytes": report.graph_cost.0,
        "refusals_confirmed": report.refusals_confirmed,
        "refusals_disputed": report.refusals_disputed,
        "filler_given_bytes": report.filler_given.0,
        "filler_bytes": report.cards.first().map(|card| card.filler.0),
        "context_bytes": report.cards.first().map(|card| card.context.0),
        "foreign_bytes": report.cards.first().and_then(|card| card.foreign).map(|b| b.0),
    })
}
