//! Timings of what `plan` is made of, from one rule to the whole, for a founding command and one of
//! vLLM. `cargo bench --bench plan`; `scripts/bench-plan.sh` times the whole process.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a bench stops where a test would; the harness makes a public function"
)]

use criterion::{Criterion, criterion_group, criterion_main};
use plimsoll_catalog::{devices, models};
use plimsoll_core::{
    device::DeviceProfile,
    model::{detail::Model, parallel::Loader, weights},
    policy::{
        sglang::{
            args::ServerArgs,
            facts::MachineFacts,
            from_model as sglang_model,
            pool::{Pool as SglangPool, RankInputs, size_pool},
            resolve,
            version::Version,
        },
        vllm::{
            args::EngineArgs,
            capacity::{self, Pool as VllmPool, Rank},
            defaults::{Device, MemoryKind, Usage},
            from_model as vllm_model, settings,
        },
    },
    units::Bytes,
};
use plimsoll_ingest::launch::{Context, EngineLaunch, Launch, LaunchInput, parse_command};
use plimsoll_replay::{
    assemble::{ModelAsk, Places, case_launch, find_device, find_model, ranks_of},
    plan::{Plan, plan},
    start::{CapacityReading, Case, Facts},
};
use std::hint::black_box;

const SGLANG: &str = "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 \
    --mem-fraction-static 0.93 --enable-hierarchical-cache --hicache-size 48";
const SGLANG_DEVICE: &str = "RTX PRO 6000 Blackwell";
const VLLM: &str = "vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2 \
    --max-model-len 32k --gpu-memory-utilization 0.9";
const VLLM_DEVICE: &str = "H100 SXM5 80GB";

fn launch(command: &str) -> Launch {
    parse_command(LaunchInput::Text(command), &Context::default()).unwrap()
}

fn sglang_args() -> ServerArgs {
    match launch(SGLANG).engine {
        EngineLaunch::Sglang(args) => *args,
        EngineLaunch::Vllm(_) => unreachable!("the command starts SGLang"),
    }
}

fn vllm_args() -> EngineArgs {
    match launch(VLLM).engine {
        EngineLaunch::Vllm(args) => *args,
        EngineLaunch::Sglang(_) => unreachable!("the command starts vLLM"),
    }
}

/// Flags to settings, geometry to cells, readings to a pool.
fn sglang_pool(args: &ServerArgs, model: &Model) -> SglangPool {
    let machine = MachineFacts { gpu_mem_mib: Some(97_887.0), compute_capability: Some((12, 0)) };
    let facts = sglang_model::model_facts(&model.geometry);
    let resolved = resolve(args, &machine, &facts).unwrap();
    let stages = sglang_model::stages(&model.geometry, &resolved, None).unwrap();
    let rank = RankInputs {
        kv: stages.stages[0].kv,
        draft: stages.stages[0].draft,
        pre_load_free_gib: 94.037,
        avail_after_load_gib: 94.037 - 72.3285,
    };
    size_pool(&resolved, &rank).unwrap()
}

/// The same for vLLM, from the available bytes on.
fn vllm_pool(args: &EngineArgs, model: &Model) -> VllmPool {
    let device = Device {
        name: "NVIDIA H100 80GB HBM3".to_owned(),
        total: Bytes::gib(79),
        memory: MemoryKind::Discrete,
        compute_capability: Some((9, 0)),
    };
    let facts = vllm_model::facts(&model.geometry);
    let settings = settings::resolve(args, &device, Usage::Server, facts).unwrap();
    let layers = vllm_model::layer_specs(&model.geometry, args, &settings, 0).unwrap();
    capacity::size_pool(&settings, &[Rank { layers, available: 60 << 30 }]).unwrap()
}

fn whole(command: &str, device: &str) -> Plan {
    let mut launch = launch(command);
    let device: DeviceProfile = find_device(device, &mut launch).unwrap();
    let ask = ModelAsk::of_launch(&launch.engine);
    let case = Case {
        launch: case_launch(&launch.engine),
        model: find_model(&ask, &launch.engine, &Places::default()).unwrap(),
        device,
        capacity: CapacityReading::Catalog,
        ranks: ranks_of(&launch.engine),
        facts: Facts::default(),
        tenants: Vec::new(),
    };
    plan(&case).unwrap()
}

fn rules(c: &mut Criterion) {
    let kimi = models::find("moonshotai/Kimi-K2.5").unwrap().model;
    let llama = models::find("meta-llama/Llama-3.1-8B-Instruct").unwrap().model;
    let (mut sglang, vllm) = (sglang_args(), vllm_args());
    // The release of the founding case.
    sglang.version = Version::new(0, 5, 8);
    // A timing of something else would be worth nothing.
    assert_eq!(sglang_pool(&sglang, &kimi).max_total_num_tokens.0, 231_120);
    assert!(vllm_pool(&vllm, &llama).num_blocks > 0);
    c.bench_function("sglang: resolve and size the pool", |b| {
        b.iter(|| sglang_pool(black_box(&sglang), black_box(&kimi)));
    });
    c.bench_function("vllm: resolve and size the pool", |b| {
        b.iter(|| vllm_pool(black_box(&vllm), black_box(&llama)));
    });
    let options = weights::WeightOptions::new(Loader::Sglang);
    c.bench_function("weights of Kimi-K2.5", |b| {
        b.iter(|| weights::bill(black_box(&kimi), &options).unwrap());
    });
}

fn readers(c: &mut Criterion) {
    c.bench_function("read an SGLang command", |b| b.iter(|| launch(black_box(SGLANG))));
    c.bench_function("read a vLLM command", |b| b.iter(|| launch(black_box(VLLM))));
    c.bench_function("look up a device", |b| {
        b.iter(|| devices::find(black_box(SGLANG_DEVICE)).unwrap());
    });
    c.bench_function("look up a model", |b| {
        b.iter(|| models::find(black_box("moonshotai/Kimi-K2.5")).unwrap());
    });
}

fn plans(c: &mut Criterion) {
    c.bench_function("plan: SGLang, Kimi-K2.5, 8 ranks", |b| {
        b.iter(|| whole(black_box(SGLANG), SGLANG_DEVICE));
    });
    c.bench_function("plan: vLLM, Llama-3.1-8B, 2 ranks", |b| {
        b.iter(|| whole(black_box(VLLM), VLLM_DEVICE));
    });
}

criterion_group!(benches, rules, readers, plans);
criterion_main!(benches);
