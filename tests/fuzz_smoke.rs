//! A short run of every fuzz target: its seeds, then mutations of them from a fixed seed.
//!
//! `PLIMSOLL_FUZZ_RUNS` and `PLIMSOLL_FUZZ_SEED` make it longer or other.

use plimsoll_fuzz_entries::{
    Target,
    mutate::{Numbers, mutate},
    target,
};
use std::{
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
};

/// Mutated inputs of each target.
const RUNS: u64 = 200;
/// Seed of the mutations.
const SEED: u64 = 20_261_129;

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().expect("a whole number"))
}

/// Shows the input that broke a property before the test fails on it.
fn run_one(target: &Target, input: &[u8], what: &str) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(input))) {
        println!("{}: {what} breaks a property:\n{}", target.name, input.escape_ascii());
        resume_unwind(panic);
    }
}

fn smoke(name: &str) {
    let target = target(name).expect("a target of that name");
    let seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{name} has no seeds");
    for (index, seed) in seeds.iter().enumerate() {
        run_one(target, seed, &format!("seed {index}"));
    }
    let mut numbers = Numbers::new(number("PLIMSOLL_FUZZ_SEED", SEED), name);
    for run in 0..number("PLIMSOLL_FUZZ_RUNS", RUNS) {
        let seed = numbers.choose(&seeds).unwrap();
        let other = numbers.choose(&seeds).unwrap();
        let input = mutate(&mut numbers, seed, other, target.words);
        run_one(target, &input, &format!("run {run}"));
    }
}

macro_rules! smoke_tests {
    ($($name:ident),+ $(,)?) => {
        $(#[test]
        fn $name() {
            smoke(stringify!($name));
        })+

        const TESTED: &[&str] = &[$(stringify!($name)),+];
    };
}

smoke_tests!(
    alloc_conf,
    bench_command,
    decision_log,
    device_file,
    gguf,
    launch_argv,
    launch_config,
    launch_text,
    measured_times,
    memory_snapshot,
    model_config,
    model_entry,
    nvidia_smi,
    plan,
    profile,
    safetensors,
    scenario,
    server_log,
    server_page,
    watch_recording,
    workload_trace,
);

/// Every entry has a fuzz target, a `[[bin]]` and a smoke test; none is left over.
#[test]
fn every_target_is_wired() {
    let names: Vec<&str> =
        plimsoll_fuzz_entries::TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names, TESTED);
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
    let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    for name in &names {
        assert!(manifest.contains(&format!("name = \"{name}\"\n")), "{name} has no [[bin]]");
        let text = fs::read_to_string(fuzz.join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert!(text.contains(&format!("plimsoll_fuzz_entries::{name}(data)")), "{name}.rs");
    }
    let files = fs::read_dir(fuzz.join("fuzz_targets")).unwrap().count();
    assert_eq!(files, names.len(), "a fuzz target without an entry");
}

/// A seed that no reader accepts starts from nothing: each must be read without an error.
#[test]
fn seeds_are_accepted_by_their_readers() {
    use plimsoll_core::{
        memory::{caching_allocator, snapshot},
        model::{config, gguf, safetensors},
    };
    for seed in (target("memory_snapshot").unwrap().seeds)() {
        assert!(!snapshot::from_bytes(&seed).unwrap().segments.is_empty());
    }
    for seed in (target("measured_times").unwrap().seeds)() {
        use plimsoll_ingest::measured;
        let text = String::from_utf8(seed).unwrap();
        assert!(
            measured::requests(&text).is_ok() || !measured::windows(&text).is_empty(),
            "{text}"
        );
    }
    for seed in (target("profile").unwrap().seeds)() {
        let text = String::from_utf8(seed).unwrap();
        plimsoll_replay::profile::Profile::parse("seed", &text).unwrap();
    }
    for seed in (target("workload_trace").unwrap().seeds)() {
        let from = seed.windows(3).position(|three| three == b"%%\n").map_or(0, |at| at + 3);
        let options = plimsoll_ingest::workload::Options { strict: true, ..Default::default() };
        plimsoll_ingest::workload::import(&seed[from..], &options).unwrap();
    }
    for seed in (target("bench_command").unwrap().seeds)() {
        let text = String::from_utf8(seed).unwrap();
        plimsoll_replay::workload::bench::part(&text).unwrap();
    }
    for seed in (target("alloc_conf").unwrap().seeds)() {
        let text = String::from_utf8(seed).unwrap();
        let newest = caching_allocator::TorchVersion::NEWEST;
        caching_allocator::Options::parse(&text, newest).unwrap();
    }
    for seed in (target("gguf").unwrap().seeds)() {
        gguf::model("seed", &gguf::parse(&seed).unwrap()).unwrap();
    }
    let files = (target("safetensors").unwrap().seeds)();
    assert_eq!(safetensors::parse(&files[0]).unwrap().len(), 4);
    assert_eq!(
        safetensors::parse_index(std::str::from_utf8(&files[1]).unwrap()).unwrap().tensors,
        2
    );
    for seed in (target("model_config").unwrap().seeds)() {
        let text = String::from_utf8(seed).unwrap();
        let (first, second) = text.split_once("%%\n").unwrap_or((&text, ""));
        config::parse("seed", first, Some(second).filter(|s| !s.is_empty())).unwrap();
    }
    for name in ["launch_text", "launch_argv"] {
        use plimsoll_ingest::launch::{Context, LaunchInput, parse_command};
        for seed in (target(name).unwrap().seeds)() {
            let text = String::from_utf8(seed).unwrap();
            let words: Vec<String> = text.lines().map(str::to_owned).collect();
            let input = match name {
                "launch_text" => LaunchInput::Text(&text),
                _ => LaunchInput::Argv(&words),
            };
            let launch = parse_command(input, &Context::default()).unwrap();
            assert!(launch.unknown.is_empty(), "{:?}", launch.unknown);
        }
    }
    for seed in (target("scenario").unwrap().seeds)() {
        use plimsoll_replay::{run::run_scenario, scenario::Scenario};
        let text = String::from_utf8(seed).unwrap();
        let file = text.split("%%\n").next().unwrap();
        let scenario = Scenario::parse("seed.yaml", file, &[]).unwrap();
        run_scenario(scenario, Path::new("seed.yaml")).map(|_| ()).unwrap();
    }
    for seed in (target("device_file").unwrap().seeds)() {
        plimsoll_catalog::device_file::read("seed", std::str::from_utf8(&seed).unwrap()).unwrap();
    }
    for seed in (target("model_entry").unwrap().seeds)() {
        plimsoll_catalog::models::read_text("seed", std::str::from_utf8(&seed).unwrap()).unwrap();
    }
    for seed in (target("watch_recording").unwrap().seeds)() {
        let mut lines = 0;
        plimsoll_ingest::watch::recording::read(seed.as_slice(), |_, _| lines += 1).unwrap();
        assert_eq!(lines, 4);
    }
    let pages = (target("server_page").unwrap().seeds)();
    for page in &pages[..2] {
        let page = plimsoll_ingest::watch::read_page(std::str::from_utf8(page).unwrap());
        assert!(page.bad.is_none() && page.ranks.len() <= 2 && page.kind.is_some());
    }
    let logs = (target("decision_log").unwrap().seeds)();
    let logs: Vec<_> = logs
        .iter()
        .map(|seed| plimsoll_replay::wire::Log::read(seed.as_slice()).unwrap())
        .collect();
    assert_eq!(logs[0].records.len(), 4);
    assert!(plimsoll_replay::live::again(&logs[1]).unwrap().difference.is_none());
}

/// What the fuzzer found, each with the answer that is right.
#[test]
fn found_before() {
    use plimsoll_ingest::launch::{Context, EngineLaunch, LaunchInput, parse_command};
    use plimsoll_replay::{assemble::launch_of_scenario, run::run_scenario, scenario::Scenario};
    let scenario = |engine: &str| {
        let text = format!(
            "name: a/b\nwhy: c\nmachine: {{ device: A10 }}\nengine: {{ {engine} }}\n\
             model: {{ kv_bytes_per_token: 1 KiB, weights: 1 GiB, context_length: 4096 }}\n"
        );
        Scenario::parse("a.yaml", &text, &[]).unwrap()
    };
    // Billions of ranks are refused, not allocated.
    let many = scenario(
        "name: vllm, version: 0.11.0, flags: { tensor-parallel-size: 65536, pipeline-parallel-size: 65536 }",
    );
    let error = run_scenario(many, Path::new("a.yaml")).err().unwrap().to_string();
    assert_eq!(error, "a server of 4294967295 ranks; allowed: 1 to 1024");
    // A list beside a command is several words.
    let list = "version: 0.5.8, command: sglang serve m --tp 2, flags: { cuda-graph-bs: [1, 2] }";
    let EngineLaunch::Sglang(args) = launch_of_scenario(&scenario(list)).unwrap().engine else {
        panic!("another engine")
    };
    assert_eq!((args.tp_size, args.cuda_graph_bs.as_deref()), (2, Some(&[1, 2][..])));
    // Escape sequences of a pasted text do not reach the terminal.
    let text = "vllm serve m --max-num-seqs \u{1b}[2J";
    let errors = parse_command(LaunchInput::Text(text), &Context::default()).unwrap_err();
    assert!(!errors.to_string().contains('\u{1b}'), "{errors}");
}
