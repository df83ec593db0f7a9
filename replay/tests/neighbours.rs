//! What other programs hold as a distribution: draws by seed, quantiles, and what is wrong with one.

use crate::scenario::parse;
use plimsoll_core::units::{Bytes, GIB};
use plimsoll_replay::{
    problem::Code,
    scenario::{EventAt, Happening, Scenario},
};

const BASE: &str = "
name: base
why: neighbours that are drawn
machine: { device: H100 SXM 80GB }
engine: { name: sglang, version: 0.5.8, command: python -m sglang.launch_server --model-path Qwen/Qwen3-8B }
workload: { requests: 1, at: 0 s, prompt_tokens: 9, output_tokens: 9 }
events: [{ at: 1 s, others_hold: LAW }]
";

fn read(law: &str, set: &[&str]) -> Scenario {
    let text = BASE.replace("LAW", law);
    parse(&text, set).unwrap_or_else(|problems| panic!("{law}: {}", problems.render()))
}

fn held(law: &str, set: &[&str]) -> u64 {
    match read(law, set).events[0].what {
        Happening::OthersHold(Bytes(held)) => held,
        ref other => panic!("{other:?}"),
    }
}

fn draws(law: &str, seeds: u64) -> Vec<u64> {
    (1..=seeds).map(|seed| held(law, &[&format!("seed={seed}")])).collect()
}

const LOGNORMAL: &str = "{ lognormal: { median: 4 GiB, sigma: 0.5, max: 40 GiB } }";

#[test]
fn draws_follow_their_law() {
    let gib = |value: u64| value as f64 / GIB as f64;
    let of = |law: &str| -> Vec<f64> { draws(law, 2000).into_iter().map(gib).collect() };
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    let near = |a: f64, b: f64| assert!((a - b).abs() < 0.06 * b, "{a}, not {b}");
    let mut lognormal = of(LOGNORMAL);
    near(mean(&lognormal), 4.0 * (0.125_f64).exp());
    lognormal.sort_by(f64::total_cmp);
    near(lognormal[1000], 4.0);
    near(mean(&of("{ lognormal: { mean: 4 GiB, sigma: 0.5 } }")), 4.0);
    let normal = of("{ normal: { mean: 8 GiB, sd: 2 GiB } }");
    near(mean(&normal), 8.0);
    near(mean(&normal.iter().map(|x| (x - 8.0).powi(2)).collect::<Vec<_>>()), 4.0);
    let uniform = of("{ uniform: [2 GiB, 12 GiB] }");
    near(mean(&uniform), 7.0);
    assert!(uniform.iter().all(|x| (2.0..=12.0).contains(x)));
    let samples = of("{ samples: [1 GiB, 2 GiB, 6 GiB] }");
    near(mean(&samples), 3.0);
    assert!(samples.iter().all(|x| [1.0, 2.0, 6.0].contains(x)));
    let cut = of("{ normal: { mean: 1 GiB, sd: 2 GiB, max: 2 GiB } }");
    assert!(cut.contains(&0.0) && cut.contains(&2.0), "cut at its ends");
}

#[test]
fn percentiles_are_those_of_the_law() {
    let at = |law: &str, p: &str| held(law, &[&format!("neighbours={p}")]) as f64 / GIB as f64;
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-6 * b, "{a}, not {b}");
    near(at(LOGNORMAL, "p50"), 4.0);
    near(at(LOGNORMAL, "p99"), 4.0 * (0.5 * 2.326_347_874_040_84_f64).exp());
    near(at("{ normal: { mean: 8 GiB, sd: 2 GiB } }", "p97.5"), 8.0 + 2.0 * 1.959_963_984_540_05);
    near(at("{ uniform: [2 GiB, 12 GiB] }", "p90"), 11.0);
    for (p, expected) in [("p1", 1.0), ("p25", 1.0), ("p26", 2.0), ("p75", 3.0), ("p99", 4.0)] {
        near(at("{ samples: [4 GiB, 1 GiB, 3 GiB, 2 GiB] }", p), expected);
    }
    // 99 % of many draws do not exceed it.
    let most = held(LOGNORMAL, &["neighbours=p99"]);
    let below = draws(LOGNORMAL, 3000).into_iter().filter(|held| *held <= most).count();
    assert!((2955..=2985).contains(&below), "{below}");
}

/// A change of method, of key or of a library would move these.
#[test]
fn the_draws_are_frozen() {
    assert_eq!(draws(LOGNORMAL, 3), FROZEN);
    // The seed that a file does not give is 1, and the same law elsewhere draws otherwise.
    let scenario = read(LOGNORMAL, &[&format!("machine.others_on_host={LOGNORMAL}")]);
    let bytes: Vec<u64> = scenario.drawn.iter().map(|one| one.bytes.0).collect();
    assert_eq!(bytes.len(), 2);
    assert!(bytes.contains(&FROZEN[0]) && bytes[0] != bytes[1]);
    assert_eq!(scenario.drawn[0].path.to_string(), "machine.others_on_host");
}

const FROZEN: [u64; 3] = [7_408_469_317, 1_534_032_418, 4_076_369_156];

#[test]
fn everywhere_that_an_amount_may_stand() {
    let law = "{samples: [3 GiB]}";
    for (set, path) in [
        ("machine.others_on_host=LAW", "machine.others_on_host"),
        ("machine.weaker={rank: 0, others_hold: LAW}", "machine.weaker.others_hold"),
        ("machine.weaker=[{rank: 0, others_hold: LAW}]", "machine.weaker[0].others_hold"),
        ("events=[{at: before_load, others_hold: LAW}]", "events[0].others_hold"),
        ("events=[{at: 1 s, host_others_hold: LAW}]", "events[0].host_others_hold"),
        ("events=[{at: 1 s, others_grow: {to: LAW, over: 1 s}}]", "events[0].others_grow.to"),
        (
            "events=[{at: 1 s, host_others_grow: {by: LAW, over: 1 s}}]",
            "events[0].host_others_grow.by",
        ),
    ] {
        let plain = set.replace("LAW", "3 GiB");
        let host = "machine.others_on_host=0 B";
        let drawn = read("0 B", &[host, &set.replace("LAW", law)]);
        let given = read("0 B", &[host, &plain]);
        assert_eq!(drawn.drawn[0].path.to_string(), path);
        assert_eq!(drawn.events, given.events, "{set}");
        assert_eq!(drawn.machine, given.machine, "{set}");
        assert_eq!(drawn.events.iter().filter(|e| matches!(e.at, EventAt::Step(_))).count(), 0);
    }
}

#[test]
fn samples_may_stand_in_a_file() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let samples = folder.join("samples.txt");
    std::fs::write(&samples, "# measured\n2 GiB\n\n5 GiB # at night\n").unwrap();
    let law = format!("{{ samples: {:?} }}", samples.display().to_string());
    let all = draws(&law, 40);
    assert!(all.iter().all(|held| [2 * GIB, 5 * GIB].contains(held)));
    assert!(all.contains(&(2 * GIB)) && all.contains(&(5 * GIB)));
    let file = read(&law, &[]).drawn[0].samples.clone().unwrap();
    assert_eq!((file.name, file.sha256.len()), (samples.display().to_string(), 64));
    for (text, part) in [("2 GiB\nmuch\n", "line 2"), ("# none\n", "no sample")] {
        std::fs::write(&samples, text).unwrap();
        let problems = parse(&BASE.replace("LAW", &law), &[]).unwrap_err().render();
        assert!(problems.contains(part), "{problems}");
    }
    let gone = parse(&BASE.replace("LAW", "{ samples: gone.txt }"), &[]).unwrap_err().render();
    assert!(gone.contains("gone.txt"), "{gone}");
}

#[test]
fn what_is_no_law_says_what_is() {
    for (law, code, part) in [
        ("{ lognormall: { median: 1 GiB } }", Code::UnknownKey, "did you mean `lognormal`"),
        ("{ lognormal: { median: 1 GiB, sigm: 1 } }", Code::UnknownKey, "did you mean `sigma`"),
        ("{ lognormal: { median: 1 GiB } }", Code::MissingKey, "sigma"),
        ("{ lognormal: { sigma: 1 } }", Code::BadValue, "either a `mean` or a `median`"),
        ("{ lognormal: { median: 0 B, sigma: 1 } }", Code::BadValue, "above 0 B"),
        ("{ lognormal: { median: 1 GiB, sigma: 9 } }", Code::BadValue, "from 0 to 4"),
        ("{ normal: { mean: 1, sd: 1 GiB } }", Code::BadValue, "did you mean `1 GiB`"),
        ("{ normal: { mean: 1 GiB, sd: 1 GiB, min: 2 GiB, max: 1 GiB } }", Code::BadValue, "above"),
        ("{ uniform: [2 GiB, 1 GiB] }", Code::BadValue, "lowest first"),
        ("{ uniform: [2 GiB] }", Code::BadValue, "lowest first"),
        ("{ samples: [] }", Code::BadValue, "at least one"),
        ("{}", Code::BadValue, "one law"),
        ("{ uniform: [1 B, 2 B], samples: [1 B] }", Code::BadValue, "one law"),
        ("9 PiB", Code::BadValue, "TiB"),
    ] {
        let problems = parse(&BASE.replace("LAW", law), &[]).unwrap_err();
        let text = problems.render();
        assert_eq!(problems.list.len(), 1, "{text}");
        assert_eq!(problems.list[0].code, code, "{text}");
        assert!(text.contains(part), "{law}: {part} is not in {text}");
    }
    let wrong = parse(&BASE.replace("LAW", LOGNORMAL), &["neighbours=p100"]).unwrap_err().render();
    assert!(wrong.contains("percentile"), "{wrong}");
}

/// What was drawn passes the checks of an amount.
#[test]
fn a_draw_above_the_device_is_as_wrong_as_an_amount() {
    let problems = parse(&BASE.replace("LAW", "{ samples: [900 GiB] }"), &[]);
    let amount = parse(&BASE.replace("LAW", "900 GiB"), &[]);
    assert_eq!(problems.is_err(), amount.is_err());
}
