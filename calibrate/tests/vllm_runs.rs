//! Real runs of vLLM with the times of every request, in the folder that `PLIMSOLL_VLLM_RUNS` names: fitted on
//! the first 100 requests, scored on the others, across models, and beside another simulator's scores.

use crate::case::case;
use plimsoll_calibrate::{Calibration, Compared, File, Options, Predictor, calibrate};
use plimsoll_replay::{profile::Metric, start};
use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// A run.
struct Run {
    name: String,
    device: String,
    release: String,
    command: String,
    requests: Vec<u8>,
    theirs: String,
}

fn folder() -> Option<PathBuf> {
    let named = env::var_os("PLIMSOLL_VLLM_RUNS").map(PathBuf::from);
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/vllm-runs");
    named.or(Some(beside)).filter(|folder| folder.is_dir())
}

fn json(path: &Path) -> Option<Value> {
    serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
}

fn runs(folder: &Path) -> Vec<Run> {
    let mut names: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    names.into_iter().filter_map(|path| run(&path)).collect()
}

fn run(path: &Path) -> Option<Run> {
    let meta = json(&path.join("meta.json"))?;
    let told = json(&path.join("model-config.json"))?;
    let device = told.pointer("/nodes/0/instances/0/hardware")?.as_str()?.to_owned();
    let device = match device.as_str() {
        "RTXPRO6000" => "RTX PRO 6000".to_owned(),
        "RTX4090" => "RTX 4090".to_owned(),
        _ => device,
    };
    let flags = meta.get("engine_kwargs")?;
    let mut command = format!("vllm serve {}", flags.get("model")?.as_str()?);
    for (name, value) in flags.as_object()? {
        match value {
            Value::Number(n) if name != "seed" => {
                command.push_str(&format!(" --{} {n}", name.replace('_', "-")));
            }
            Value::Bool(true) => command.push_str(&format!(" --{}", name.replace('_', "-"))),
            _ => {}
        }
    }
    Some(Run {
        name: path.file_name()?.to_string_lossy().into_owned(),
        device,
        release: meta.get("vllm_version")?.as_str()?.to_owned(),
        command,
        requests: fs::read(path.join("requests.jsonl")).ok()?,
        theirs: fs::read_to_string(path.join("their-simulator-summary.txt")).unwrap_or_default(),
    })
}

impl Run {
    fn fit(&self) -> Calibration {
        let case = case(&self.device, &self.release, &self.command);
        let file = File { name: "requests.jsonl", bytes: &self.requests };
        calibrate(&case, &[file], Options { fit_first: Some(100) }).unwrap()
    }
}

/// Mean and percentiles (linear, as numpy's) in milliseconds.
fn figures(mut values: Vec<f64>) -> [f64; 5] {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = (values.len() - 1) as f64 * share;
        let (low, part) = (place as usize, place.fract());
        let high = (low + 1).min(values.len() - 1);
        values[low] + (values[high] - values[low]) * part
    };
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    [mean, at(0.5), at(0.9), at(0.95), at(0.99)]
}

const ROWS: [&str; 5] = ["Mean", "Median", "P90", "P95", "P99"];

/// Errors in percent: metric, row, measured, predicted.
fn errors(compared: &Compared, from: usize) -> Vec<(String, f64, f64)> {
    let rows = || compared.rows.iter().skip(from);
    let ms = |nanos: u64| nanos as f64 / 1e6;
    let ttft = (
        rows().map(|(r, _)| ms(r.ttft().0)).collect(),
        rows().map(|(_, p)| ms(p.ttft.unwrap().0)).collect(),
    );
    let tpot = (
        rows().map(|(r, _)| ms(r.tpot().unwrap().0)).collect(),
        rows().map(|(_, p)| ms(p.tpot.unwrap().0)).collect(),
    );
    let latency = (
        rows().map(|(r, _)| ms(r.ttft().0 + r.last.0 - r.first.0)).collect(),
        rows().map(|(_, p)| ms(p.latency.unwrap().0)).collect(),
    );
    let mut out = Vec::new();
    for (name, (measured, predicted)) in [("TTFT", ttft), ("TPOT", tpot), ("Latency", latency)] {
        let (measured, predicted) = (figures(measured), figures(predicted));
        for ((row, measured), predicted) in ROWS.iter().zip(measured).zip(predicted) {
            out.push((format!("{name} {row}"), measured, predicted));
        }
    }
    out
}

fn percent(measured: f64, predicted: f64) -> f64 {
    100.0 * (predicted / measured - 1.0)
}

/// Their error of a row, percent.
fn theirs(run: &Run, row: &str) -> f64 {
    let line = run.theirs.lines().find(|line| line.starts_with(row)).unwrap_or_default();
    line.split_whitespace()
        .last()
        .unwrap_or_default()
        .trim_end_matches('%')
        .parse()
        .unwrap_or(f64::NAN)
}

#[test]
fn the_other_requests_of_a_run() {
    let Some(folder) = folder() else {
        println!("skipped: PLIMSOLL_VLLM_RUNS names no folder of runs");
        return;
    };
    let mut worst: f64 = 0.0;
    for run in runs(&folder) {
        let fitted = run.fit();
        println!("\n== {} ({} runs of the simulator)", run.name, fitted.runs);
        println!("   pool {:?}", fitted.pool);
        for rate in &fitted.profile.time {
            let doubt = rate.deviation_ppm as f64 / 1e6;
            println!("   {:22} {:>12} {:?} ±{doubt:.3}", rate.name, rate.value, rate.basis);
        }
        for residual in &fitted.profile.residual {
            println!(
                "   {:?} {:?}: {} mean {:+.2} % typical {:.2} % worst {:.1} %",
                residual.part,
                residual.metric,
                residual.count,
                residual.mean_error_ppm as f64 / 1e4,
                residual.typical_error_ppm as f64 / 1e4,
                residual.worst_error_ppm as f64 / 1e4,
            );
        }
        let compared = &fitted.compared[0];
        println!("   row              measured   ours, held out      ours, all   theirs, all");
        let whole = errors(compared, 0);
        for ((row, measured, ours), (_, all_measured, all)) in
            errors(compared, compared.fitted).into_iter().zip(whole)
        {
            println!(
                "   {row:14} {measured:>10.1} {:>+14.1} % {:>+12.1} % {:>+12.1} %",
                percent(measured, ours),
                percent(all_measured, all),
                theirs(&run, &row)
            );
        }
        for metric in [Metric::Ttft, Metric::Tpot] {
            let held_out = fitted.profile.residual.iter().rfind(|r| r.metric == metric).unwrap();
            worst = worst.max(held_out.mean_error_ppm.abs() as f64 / 1e4);
        }
    }
    println!("\nworst mean error of requests that were held out: {worst:.2} %");
    assert!(worst <= 5.0, "{worst:.2} %");
}

/// The profile of one model's run on the runs of other models on the same card.
#[test]
fn other_models_on_the_same_card() {
    let Some(folder) = folder() else {
        println!("skipped: PLIMSOLL_VLLM_RUNS names no folder of runs");
        return;
    };
    let runs = runs(&folder);
    for from in &runs {
        let fitted = from.fit();
        for to in runs.iter().filter(|to| to.device == from.device && to.name != from.name) {
            let mut case = case(&to.device, &to.release, &to.command);
            fitted.profile.apply("p.yaml", "", &mut case).unwrap();
            let applied = case.facts.profile.clone().unwrap();
            let ran = start::run(&case).unwrap();
            let predictor = Predictor::new(&case, &ran).unwrap();
            let text = String::from_utf8(to.requests.clone()).unwrap();
            let requests = plimsoll_ingest::measured::requests(&text).unwrap().list;
            let asked = plimsoll_calibrate::Asked { rates: applied.values, pool: None };
            let predicted = predictor.predict(&asked, &requests, requests.len()).unwrap();
            let compared = Compared {
                file: String::new(),
                fitted: 0,
                rows: requests.into_iter().zip(predicted).collect(),
            };
            let of = |row: &str| {
                let all = errors(&compared, 0);
                let (_, measured, ours) = all.into_iter().find(|e| e.0 == row).unwrap();
                percent(measured, ours)
            };
            println!(
                "{} -> {}: TTFT {:+.1} % TPOT {:+.1} %",
                from.name,
                to.name,
                of("TTFT Mean"),
                of("TPOT Mean")
            );
        }
    }
}
