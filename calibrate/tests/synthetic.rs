//! Runs of our own with known coefficients and noise: the fit must find them, and claim no more than it has.

use crate::case::case;
use plimsoll_calibrate::{Asked, File, Options, Predictor, calibrate};
use plimsoll_core::{
    estimate::{
        coefficients::{Coefficient, Coefficients},
        roofline::StepShape,
    },
    units::Nanos,
};
use plimsoll_ingest::measured::Request;
use plimsoll_replay::{
    profile::{Basis, Metric, Part, Profile, RemainderName},
    record::FieldValue,
    run::{RunOptions, run_with},
    scenario::Scenario,
    start::{self, Case},
    workload::Stream,
};
use std::{fs, path::PathBuf};

const COMMAND: &str = "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 48 --max-model-len 8192";

fn llama() -> Case {
    case("RTX PRO 6000", "0.19.0", COMMAND)
}

fn truth(case: &Case) -> Coefficients {
    Coefficients::assumed(case.device.link)
        .with(Coefficient::Step, 1_500_000)
        .with(Coefficient::Request, 8_000)
        .with(Coefficient::WeightBandwidth, 730_000)
        .with(Coefficient::KvBandwidth, 520_000)
        .with(Coefficient::Matmul, 430_000)
        .with(Coefficient::Attention, 180_000)
}

/// Requests that arrive at 5 a second.
fn arrivals(count: usize) -> Vec<Request> {
    let mut stream = Stream::named(1, "calibrate", "arrivals");
    let mut at = 0_u64;
    let mut request = || {
        at += (-libm::log(stream.unit()) / 5.0 * 1e9) as u64;
        Request {
            arrival: Nanos(at),
            queued: None,
            first: Nanos(at),
            last: Nanos(at),
            // Some are long, so that scores are more than nothing.
            input: 20 + if stream.below(4) == 0 { stream.below(7000) } else { stream.below(1200) },
            output: 20 + stream.below(300),
        }
    };
    let mut all: Vec<Request> = (0..count).map(|_| request()).collect();
    // A trace begins with its first row.
    let begin = all[0].arrival.0;
    all.iter_mut().for_each(|request| request.arrival.0 -= begin);
    all
}

/// The rows of a run under these coefficients; spans are off by a normal error of this share.
fn rows(case: &Case, asked: &Asked, requests: &[Request], noise: f64) -> String {
    let ran = start::run(case).unwrap();
    let predictor = Predictor::new(case, &ran).unwrap();
    let times = predictor.times(asked, requests, requests.len()).unwrap().times;
    let mut stream = Stream::named(1, "calibrate", "noise");
    let mut off = |nanos: u64| (nanos as f64 * (1.0 + noise * stream.normal())).round() / 1e9;
    let mut text = String::new();
    for (request, times) in requests.iter().zip(times) {
        let (first, last) = (times.first.unwrap(), times.last.unwrap());
        let ttft = off(first.0 - request.arrival.0);
        let latency = ttft + off(last.0 - first.0);
        text.push_str(&format!(
            "{{\"input_len\": {}, \"output_len\": {}, \"arrival\": {}, \"ttft\": {ttft}, \"latency\": {latency}}}\n",
            request.input,
            request.output,
            request.arrival.0 as f64 / 1e9,
        ));
    }
    text
}

#[test]
fn known_coefficients_are_found() {
    let case = llama();
    let rates = truth(&case);
    let text = rows(&case, &Asked { rates, pool: None }, &arrivals(160), 0.01);
    let file = File { name: "a/b/rows.jsonl", bytes: text.as_bytes() };
    let fitted = calibrate(&case, &[file], Options { fit_first: Some(100) }).unwrap();
    let profile = &fitted.profile;
    for rate in &profile.time {
        let which = Coefficient::named(&rate.name).unwrap();
        let error = (rate.value as f64 / rates.get(which) as f64 - 1.0).abs();
        println!(
            "{:22} {:>9} of {:>9}: {:.1} % {:?}",
            rate.name,
            rate.value,
            rates.get(which),
            error * 100.0,
            rate.basis
        );
        // The constant of a step, its requests and the reading of weights are one sum in most passes: these stand
        // by themselves.
        let alone = matches!(which, Coefficient::KvBandwidth | Coefficient::Matmul);
        if alone {
            assert_eq!(rate.basis, Basis::Fitted, "{}", rate.name);
            assert!(error < 0.2, "{}: {error}", rate.name);
        }
    }
    passes_are_those_of(&case, profile, &rates, 0.04);
    // It claims the noise that was put in, and not less.
    for residual in profile.residual.iter().filter(|one| one.metric == Metric::Tpot) {
        let typical = residual.typical_error_ppm;
        assert!((5_000..16_000).contains(&typical), "{:?}: {typical}", residual.part);
        assert!(residual.mean_error_ppm.abs() < 5_000, "{residual:?}");
    }
    let held_out = profile.residual.iter().find(|one| one.part == Part::HeldOut).unwrap();
    assert_eq!(held_out.count, 60);
    assert_eq!((profile.sources[0].file.as_str(), profile.sources[0].fitted), ("rows.jsonl", 100));
    assert!(fitted.pool.fitted.is_none(), "{:?}", fitted.pool);
    // The same data give the same profile.
    let again = calibrate(&case, &[file], Options { fit_first: Some(100) }).unwrap();
    assert_eq!(again.profile, *profile);
    assert_eq!(Profile::parse("p", &profile.to_text().unwrap()).unwrap(), *profile);
}

/// Passes of every kind take what they took.
fn passes_are_those_of(case: &Case, profile: &Profile, rates: &Coefficients, within: f64) {
    let ran = start::run(case).unwrap();
    let predictor = Predictor::new(case, &ran).unwrap();
    let found = predictor.model(&profile.coefficients(predictor.assumed()));
    let truth = predictor.model(rates);
    for (decoding, context, prompt) in
        [(1, 300, 0), (8, 900, 0), (24, 1000, 0), (0, 0, 400), (0, 0, 1500), (20, 1000, 1000)]
    {
        let shape = StepShape {
            tokens: decoding + prompt,
            requests: decoding + u64::from(prompt > 0),
            context_tokens: decoding * context + prompt,
            attention_pairs: decoding * context + prompt * (prompt + 1) / 2,
            logits_rows: decoding,
        };
        let (found, truth) = (found.step(&shape).0 as f64, truth.step(&shape).0 as f64);
        println!(
            "{decoding:>3} of {context:>4} and {prompt:>4}: {:+.2} %",
            (found / truth - 1.0) * 100.0
        );
        assert!((found / truth - 1.0).abs() < within, "{shape:?}: {found} of {truth}");
    }
}

/// A pool that is smaller than the rules say shows in who waits.
#[test]
fn a_pool_is_found_in_the_times() {
    let command = "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 128 --max-model-len 8192";
    let case = case("RTX 4090", "0.19.0", command);
    let ran = start::run(&case).unwrap();
    let predictor = Predictor::new(&case, &ran).unwrap();
    let (least, most) = predictor.pool_interval().unwrap();
    let real = least + (most - least) * 2 / 5;
    let requests: Vec<Request> =
        arrivals(160).into_iter().map(|r| Request { output: 400 + r.output, ..r }).collect();
    let asked = Asked { rates: truth(&case), pool: Some(real) };
    let text = rows(&case, &asked, &requests, 0.005);
    let file = File { name: "rows.jsonl", bytes: text.as_bytes() };
    let fitted = calibrate(&case, &[file], Options { fit_first: Some(100) }).unwrap();
    println!("{:?} of {real}", fitted.pool);
    let found = fitted.pool.fitted.unwrap();
    assert!(found.abs_diff(real) * 100 < real * 3, "{found} of {real}");
    let remainder = &fitted.profile.memory[0];
    assert_eq!(remainder.name, RemainderName::ActivationPeak);
    // The profile gives that pool.
    let mut other = case.clone();
    fitted.profile.apply("p.yaml", "", &mut other).unwrap();
    let ran = start::run(&other).unwrap();
    let pool = Predictor::new(&other, &ran).unwrap().pool_tokens();
    assert!(pool.abs_diff(found) <= 16, "{pool} of {found}");
}

fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A scenario of the case with a profile and these requests.
fn scenario(folder: &std::path::Path, case: &Case, requests: &[Request]) -> PathBuf {
    let text = rows(case, &Asked { rates: truth(case), pool: None }, requests, 0.0);
    let file = File { name: "rows.jsonl", bytes: text.as_bytes() };
    let fitted = calibrate(case, &[file], Options { fit_first: Some(60) }).unwrap();
    fs::write(folder.join("profile.yaml"), fitted.profile.to_text().unwrap()).unwrap();
    let row = |r: &Request| {
        let (i, o, at) = (r.input, r.output, r.arrival.0);
        format!("{{\"input_toks\": {i}, \"output_toks\": {o}, \"arrival_time_ns\": {at}}}\n")
    };
    fs::write(folder.join("trace.jsonl"), requests.iter().map(row).collect::<String>()).unwrap();
    let path = folder.join("scenario.yaml");
    let text = format!(
        "name: test\nwhy: a profile\nmachine: {{ device: RTX PRO 6000, profile: profile.yaml }}\n\
         engine:\n  version: 0.19.0\n  command: {COMMAND}\nworkload: {{ trace: {{ file: trace.jsonl }} }}\n"
    );
    fs::write(&path, text).unwrap();
    path
}

/// The loop without memory gives the times of a whole run, to the nanosecond; and a recording of that run gives
/// its time model back.
#[test]
fn a_run_with_a_profile_is_the_one_that_was_fitted() {
    let folder = folder("whole-run");
    let case = llama();
    let requests = arrivals(80);
    let path = scenario(&folder, &case, &requests);
    let run = run_with(Scenario::load(&path, &[]).unwrap(), &path, RunOptions::default()).unwrap();
    let applied = run.assembled.case.facts.profile.clone().unwrap();
    assert_eq!(
        run.log.header.get("profile_sha256"),
        Some(&FieldValue::from(applied.sha256.as_str()))
    );
    let ran = start::run(&run.assembled.case).unwrap();
    let predictor = Predictor::new(&run.assembled.case, &ran).unwrap();
    let asked = Asked { rates: applied.values, pool: None };
    let times = predictor.times(&asked, &requests, requests.len()).unwrap().times;
    let mut ends = 0;
    for record in run.log.records.iter().filter(|record| record.kind == "finished") {
        let count = |name| match record.fields.get(name) {
            Some(FieldValue::Unsigned(n)) => *n,
            other => panic!("{other:?}"),
        };
        let last = times[count("request") as usize].last.unwrap();
        assert_eq!(last, Nanos(count("at_ns")), "request {}", count("request"));
        ends += 1;
    }
    assert_eq!(ends, requests.len());

    let mut log = Vec::new();
    log = run.write_log(log).unwrap().0;
    let file = File { name: "recording.jsonl", bytes: &log };
    let back = calibrate(&case, &[file], Options::default()).unwrap();
    for residual in &back.profile.residual {
        println!("{residual:?}");
        assert!(
            residual.mean_error_ppm.abs() < 5_000 && residual.worst_error_ppm < 100_000,
            "{residual:?}"
        );
    }
    // Of prefills a recording tells only those of one request, and there are few.
    passes_are_those_of(&case, &back.profile, &applied.values, 0.08);
}

/// A run without a profile gives back what is assumed of it.
#[test]
fn a_recording_without_a_profile_gives_its_passes_back() {
    let folder = folder("plain-run");
    let path = scenario(&folder, &llama(), &arrivals(80));
    let text = fs::read_to_string(&path).unwrap().replace(", profile: profile.yaml", "");
    let scenario = Scenario::parse("plain.yaml", &text, &[]).unwrap();
    let run = run_with(scenario, &path, RunOptions::default()).unwrap();
    let log = run.write_log(Vec::new()).unwrap().0;
    let file = File { name: "recording.jsonl", bytes: &log };
    let back = calibrate(&llama(), &[file], Options::default()).unwrap();
    for residual in &back.profile.residual {
        println!("{residual:?}");
        assert!(residual.mean_error_ppm.abs() < 20_000, "{residual:?}");
    }
}

/// What a log prints of a steady server is what its passes take.
#[test]
fn lines_of_a_log_give_passes_and_memory() {
    let mut text = String::from(
        "INFO 12-01 10:00:00 [gpu_model_runner.py:100] Model loading took 15.0 GiB memory and 3.1 seconds\n\
         INFO 12-01 10:00:09 [gpu_worker.py:100] Available KV cache memory: 67.10 GiB\n\
         INFO 12-01 10:00:09 [kv_cache_utils.py:100] GPU KV cache size: 549,680 tokens\n\
         INFO 12-01 10:00:19 [gpu_model_runner.py:100] Graph capturing finished in 9 secs, took 0.61 GiB\n",
    );
    let case = llama();
    let ran = start::run(&case).unwrap();
    let predictor = Predictor::new(&case, &ran).unwrap();
    let model = predictor.model(&truth(&case));
    for running in [4_u64, 8, 16, 24, 32, 48] {
        let usage = running as f64 * 1200.0 / 549_680.0;
        let shape = StepShape {
            tokens: running,
            requests: running,
            context_tokens: running * 1200,
            attention_pairs: running * 1200,
            logits_rows: running,
        };
        let speed = running as f64 / (model.step(&shape).0 as f64 / 1e9);
        for _ in 0..2 {
            text.push_str(&format!(
                "INFO 12-01 10:01:00 [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg \
                 generation throughput: {speed:.1} tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV \
                 cache usage: {:.1}%, Prefix cache hit rate: 0.0%\n",
                usage * 100.0
            ));
        }
    }
    let file = File { name: "server.log", bytes: text.as_bytes() };
    let fitted = calibrate(&case, &[file], Options::default()).unwrap();
    println!("{:?} {:?}", fitted.profile.residual, fitted.profile.memory);
    let [throughput] = &fitted.profile.residual[..] else {
        panic!("{:?}", fitted.profile.residual)
    };
    assert_eq!((throughput.metric, throughput.count), (Metric::Throughput, 6));
    assert!(throughput.worst_error_ppm < 40_000, "{throughput:?}");
    assert!(fitted.pool.predicted.abs_diff(549_680) < 600, "{:?}", fitted.pool);
    let of = |name| fitted.profile.memory.iter().find(|one| one.name == name).unwrap();
    assert_eq!(of(RemainderName::GraphMemory).place, "server.log:4");
    assert_eq!(of(RemainderName::ActivationPeak).place, "server.log:2");
    // The half that the log does not say keeps its assumed value.
    let matmul = fitted.profile.time.iter().find(|rate| rate.name == "matmul_ppm").unwrap();
    assert_eq!((matmul.value, matmul.basis), (550_000, Basis::Assumed));
}

#[test]
fn what_says_nothing_is_refused() {
    let say = |name: &str, text: &str| {
        let file = File { name, bytes: text.as_bytes() };
        calibrate(&llama(), &[file], Options::default()).unwrap_err().to_string()
    };
    for text in [
        "",
        "hello\n",
        "{}\n",
        "{\"input_len\": 1}\n",
        "\u{0}\u{1}",
        "{\"schema\":\"plimsoll.log/1\"}\n",
    ] {
        let said = say("x.txt", text);
        assert!(said.starts_with("x.txt: "), "{text:?}: {said}");
    }
}

/// The committed rows are of a run like the first: `PLIMSOLL_WRITE_VECTORS=1` writes them anew.
#[test]
fn the_committed_rows_are_these() {
    let case = llama();
    let text = rows(&case, &Asked { rates: truth(&case), pool: None }, &arrivals(60), 0.01);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = path.join("../tests/vectors/measured-requests.jsonl");
    if std::env::var_os("PLIMSOLL_WRITE_VECTORS").is_some() {
        fs::write(&path, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), text);
}
