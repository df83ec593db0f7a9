//! Scenario files: what is read, what is refused and how, overrides, folders.

use plimsoll_core::{
    figure::Tag,
    policy::sglang::version::Version,
    units::{Bytes, GIB},
};
use plimsoll_replay::{
    folder,
    path::{KeyPath, Step},
    problem::{Code, Place, Problems},
    scenario::{
        Capacity, Device, EngineName, FlagValue, ModelSource, Override, PerRank, Ranks, Scenario,
        engine::engine_of_command, schema,
    },
};
use serde_json::Value;
use std::{fs, path::PathBuf};

pub(crate) const KIMI: &str = include_str!("data/kimi.yaml");

pub(crate) fn parse(text: &str, set: &[&str]) -> Result<Scenario, Problems> {
    let overrides: Vec<Override> = set.iter().map(|s| s.parse().unwrap()).collect();
    Scenario::parse("scenario.yaml", text, &overrides)
}

fn only(problems: Result<Scenario, Problems>) -> plimsoll_replay::problem::Problem {
    let mut problems = problems.unwrap_err();
    assert_eq!(problems.list.len(), 1, "{problems}");
    problems.list.remove(0)
}

#[test]
fn every_mistake_of_a_file_is_shown_at_once() {
    let problems = parse(include_str!("data/broken.yaml"), &[]).unwrap_err();
    insta::assert_snapshot!(problems.render());
}

#[test]
fn contradictions_are_found_together() {
    let problems = parse(include_str!("data/contradictions.yaml"), &[]).unwrap_err();
    insta::assert_snapshot!(problems.render());
}

#[test]
fn events_are_checked_against_the_machine() {
    let capacity = "machine.device={name: x, capacity: 97887 MiB}";
    let event = "events=[{at: after_load, rank: 8, others_hold: 102642024449 B}]";
    let problems = parse(KIMI, &[capacity, event]).unwrap_err();
    let messages: Vec<_> = problems.list.iter().map(|p| (p.code, p.message.as_str())).collect();
    let above = "`events[0].others_hold` is 95.59 GiB (102642024449 B), above the capacity of the \
                 device, 95.59 GiB (102641958912 B)";
    let rank = "`events[0].rank` is 8, and the machine has 8 ranks";
    assert_eq!(messages, [(Code::Contradiction, above), (Code::Contradiction, rank)]);
    // With an event, free memory may rise: a neighbour may leave.
    let leaves = ["machine.readings.free_after_load=94.5 GiB", "machine.readings.weights="];
    assert!(parse(KIMI, &leaves).is_ok());
    assert_eq!(only(parse(KIMI, &[leaves[0], leaves[1], "events="])).code, Code::Contradiction);
}

#[test]
fn problems_are_data_too() {
    let problems = parse("name: a\nwhy: b\nmachine: { device: x, rank: 3 }\nengine: 5\n", &[]);
    insta::assert_snapshot!(
        serde_json::to_string_pretty(&problems.unwrap_err().to_json()).unwrap()
    );
}

#[test]
fn a_whole_scenario_is_read() {
    let read = parse(KIMI, &[]).unwrap();
    assert_eq!(read.machine.device, Device::Named("RTX PRO 6000 Blackwell".to_owned()));
    assert_eq!((read.machine.ranks, read.seed), (Some(8), 1));
    assert_eq!(read.machine.host_available, Some(Bytes(1007 * GIB)));
    let before = read.machine.readings.free_before_load.as_ref().unwrap();
    assert_eq!((before.tag, before.get(7)), (Tag::Calibrated, Some(Bytes(100_971_137_781))));
    let after = read.machine.readings.free_after_load.as_ref().unwrap();
    assert_eq!((after.tag, after.source.as_ref()), (Tag::Measured, None));
    assert_eq!(read.engine.version, Version::new(0, 5, 8));
    let one = |text: &str| FlagValue::One(text.to_owned());
    let sizes = ["1", "2", "4"].map(str::to_owned).to_vec();
    assert_eq!(
        read.engine.flags,
        [
            ("mem-fraction-static".to_owned(), one("0.88")),
            ("enable-hierarchical-cache".to_owned(), FlagValue::Switch(true)),
            ("cuda-graph-bs".to_owned(), FlagValue::Many(sizes)),
        ]
    );
    assert_eq!(read.engine.flags[2].1.tokens("cuda-graph-bs"), ["--cuda-graph-bs", "1", "2", "4"]);
    assert_eq!(read.engine.environment["SGLANG_USE_MLX"], "1");
    let named = ModelSource::Catalog("moonshotai/Kimi-K2.5".to_owned());
    assert_eq!(read.model.unwrap().source, Some(named));
    assert_eq!(read.events[0].rank, Ranks::One(3));
    assert_eq!(read.expect.figures.len(), 4);
}

#[test]
fn short_and_long_forms_are_read() {
    let text = "
name: laptop/start
why: The first start of a laptop.
source: a log
machine:
  device: { capacity: unknown, platform: mlx, integrated: true }
  readings:
    working_set: &g 53084 MiB
    host_available_at_sizing: { value: [27.808 GiB, 27.9 GiB], calibrated: true }
    mlx_active: *g
engine:
  name: sglang
  version: v0.5.23
  flags: { json-model-override-args: { rope: 2 }, disable-radix-cache: , schedule-conservativeness: 1.0 }
model: { kv_bytes_per_token: 114688 B, context_length: 40960 }
";
    let read = parse(text, &[]).unwrap();
    let Device::Described(device) = &read.machine.device else { panic!("{read:?}") };
    assert_eq!(device.capacity, Some(Capacity::Unknown));
    let readings = &read.machine.readings;
    let host = readings.host_available_at_sizing.as_ref().unwrap();
    assert_eq!((host.get(1), host.get(2)), (Some(Bytes(29_957_396_890)), None));
    assert_eq!(host.values.min(), Bytes(29_858_612_642));
    assert_eq!(readings.mlx_active.as_ref().unwrap().values, PerRank::All(Bytes::mib(53_084)));
    let given: Vec<&str> = readings.given().iter().map(|(name, _)| *name).collect();
    assert_eq!(given, ["mlx_active", "working_set", "host_available_at_sizing"]);
    let flags: Vec<Vec<String>> =
        read.engine.flags.iter().map(|(name, value)| value.tokens(name)).collect();
    assert_eq!(
        flags,
        [
            vec!["--json-model-override-args", "{\"rope\":2}"],
            vec!["--disable-radix-cache"],
            vec!["--schedule-conservativeness", "1.0"],
        ]
    );
    assert!(read.expect.is_empty());
    let off = parse(text, &["engine.flags={a: false, b: 2, c: true}"]).unwrap().engine;
    assert_eq!(
        (off.flag_tokens(), off.switched_off()),
        (vec!["--b".into(), "2".into(), "--c".into()], vec!["a"])
    );
}

#[test]
fn overrides_replace_before_anything_is_checked() {
    let read = parse(
        KIMI,
        &[
            "engine.flags.mem-fraction-static=0.85",
            "machine.readings.free_after_load={value: [21 GiB], source: x}",
            "machine.readings.weights=",
            "machine.ranks=1",
            "machine.readings.graph_memory=3 GiB",
            "events[0].rank=all",
            "machine.cgroup_limit=90 GiB",
        ],
    )
    .unwrap();
    assert_eq!(read.engine.flags[0].1, FlagValue::One("0.85".to_owned()));
    let readings = read.machine.readings;
    assert_eq!(readings.free_after_load.unwrap().values, PerRank::Each(vec![Bytes::gib(21)]));
    assert_eq!((readings.weights, read.machine.ranks), (None, Some(1)));
    assert_eq!(readings.graph_memory.unwrap().values, PerRank::All(Bytes::gib(3)));
    assert_eq!(read.events[0].rank, Ranks::All);
    assert_eq!(read.machine.cgroup_limit, Some(Bytes::gib(90)));
}

#[test]
fn overrides_that_miss_say_so() {
    let cases = [
        ("machine.redings.weights=1 GiB", Code::UnknownKey, Some("did you mean `readings`?")),
        ("machine.readings.weigths=1 GiB", Code::UnknownKey, Some("did you mean `weights`?")),
        (
            "machine.device.capacity=1 GiB",
            Code::Override,
            Some("set all of it: `machine.device={capacity: ...}`"),
        ),
        ("events[1].rank=2", Code::Override, None),
        ("machine[0]=2", Code::Override, None),
        ("seed.a=", Code::Override, None),
        ("machine.ranks=0", Code::BadValue, None),
    ];
    for (set, code, help) in cases {
        let problem = only(parse(KIMI, &[set]));
        assert_eq!((problem.code, problem.help.as_deref()), (code, help), "{set}");
        assert_eq!(problem.place, Place::Override(set.to_owned()), "{set}");
    }
    for text in ["a", "=1", "a..b=1", "a=[1", "a=.nan", "a={b: 1, b: 2}"] {
        let problem = text.parse::<Override>().unwrap_err();
        assert_eq!(
            (problem.code, problem.place),
            (Code::Override, Place::Override(text.to_owned()))
        );
    }
}

#[test]
fn commands_show_their_engine() {
    use EngineName::{Sglang, Vllm};
    let cases = [
        ("python -m sglang.launch_server --model-path vllm/x", Some(Sglang)),
        ("env A=1 sglang serve --model nm/vllm", Some(Sglang)),
        (
            "docker run --gpus all lmsysorg/sglang:v0.5.8-cu126 python3 -m sglang.launch_server",
            Some(Sglang),
        ),
        ("docker run vllm/vllm-openai:v0.11.0 --model sglang", Some(Vllm)),
        ("python -m vllm.entrypoints.openai.api_server", Some(Vllm)),
        ("bash -c \"vllm serve Qwen/Qwen3-8B\"", Some(Vllm)),
        ("/opt/venv/bin/vllm serve x", Some(Vllm)),
        ("python serve.py", None),
        ("vllmx serve", None),
        ("", None),
    ];
    for (command, engine) in cases {
        assert_eq!(engine_of_command(command), engine, "{command}");
    }
}

/// A file that has every mapping of the format, so that every key can be set in it.
const BASE: &str = "
name: base
why: a base for other values
source: none
machine: { device: { name: x }, readings: { free_before_load: { value: 9 GiB } } }
engine: { name: sglang, version: 0.5.8 }
model: { kv_bytes_per_token: 1 KiB, context_length: 4096 }
events: [{ at: before_load, others_hold: 0 B }]
expect: { outcome: refused }
";

#[test]
fn every_example_of_the_schema_is_read() {
    let mut tried = 0;
    for key in schema::keys() {
        let Some(example) = &key.example else { continue };
        let path = key.path.replace("[]", "[0]").replace(".*", ".X");
        let mut set = vec![format!("{path}={example}")];
        if example.contains(": ") {
            set[0] = format!("{path}={example:?}");
        }
        if path.starts_with("machine.readings.") {
            // One at a time the examples do not agree with the base.
            let size = if path.ends_with(".total") { "96 GiB" } else { "1 GiB" };
            set[0] = format!("{path}={size}");
        }
        if path == "expect.refusal" || path == "events[0].rank" {
            set.push("machine.ranks=8".to_owned());
        }
        set.splice(0..0, companions(&path).into_iter().map(str::to_owned));
        let set: Vec<&str> = set.iter().map(String::as_str).collect();
        assert!(parse(BASE, &set).is_ok(), "{set:?}: {}", parse(BASE, &set).unwrap_err());
        tried += 1;
    }
    assert!(tried > 70, "{tried}");
}

/// The distribution that a key of one belongs to.
fn distribution(path: &str) -> Option<&'static str> {
    match path.strip_prefix("machine.others_on_host.")? {
        "lognormal.mean" => Some("machine.others_on_host={lognormal: {sigma: 1}}"),
        law if law.starts_with("lognormal.") => {
            Some("machine.others_on_host={lognormal: {median: 4 GiB, sigma: 1}}")
        }
        law if law.starts_with("normal.") => {
            Some("machine.others_on_host={normal: {mean: 4 GiB, sd: 1 GiB}}")
        }
        _ => Some("machine.others_on_host={}"),
    }
}

/// What must stand beside a key, so that its example can be read.
fn companions(path: &str) -> Vec<&'static str> {
    let of_neighbours = path.starts_with("machine.others_on_host.");
    let last = path.rsplit('.').next().filter(|_| !of_neighbours).unwrap_or_default();
    let group = match last {
        "bench" | "preset" => "workload={}",
        _ if path.starts_with("workload.preset") => "workload={preset: {name: bench-32}}",
        "arrivals" if path.starts_with("workload.trace") => {
            "workload={trace: {file: a, rate: 1 /s}}"
        }
        "burstiness" if path.starts_with("workload.trace") => {
            "workload={trace: {file: a, rate: 1 /s, arrivals: gamma}}"
        }
        _ if path.starts_with("workload.trace") => "workload={trace: {file: a}}",
        _ if path.starts_with("workload.turns") => {
            "workload={requests: 1, at: 0 s, prompt_tokens: 1, output_tokens: 1, turns: {count: 2}}"
        }
        _ if path.starts_with("workload.bursts") => {
            "workload={requests: 1, rate: 1 /s, prompt_tokens: 1, output_tokens: 1, \
             bursts: {on: 1 s, off: 1 s}}"
        }
        "alpha" => {
            "workload={requests: 1, at: 0 s, prompt_tokens: 1, output_tokens: 1, \
             shared_prefix: {tokens: 1, choice: zipf}}"
        }
        "concurrency" | "think_time" | "start" => {
            "workload={requests: 1, concurrency: 1, prompt_tokens: 1, output_tokens: 1}"
        }
        "rate" => "workload={requests: 1, prompt_tokens: 1, output_tokens: 1}",
        "arrivals" => "workload={requests: 1, rate: 1 /s, prompt_tokens: 1, output_tokens: 1}",
        "burstiness" => {
            "workload={requests: 1, rate: 1 /s, arrivals: gamma, prompt_tokens: 1, output_tokens: 1}"
        }
        "uniform" => "workload={requests: 1, at: 0 s, prompt_tokens: {}, output_tokens: 1}",
        "mean" => {
            "workload={requests: 1, at: 0 s, prompt_tokens: {lognormal: {sigma: 1}}, output_tokens: 1}"
        }
        "sigma" | "median" | "min" | "max" => {
            "workload={requests: 1, at: 0 s, prompt_tokens: {lognormal: {median: 9, sigma: 1}}, \
             output_tokens: 1}"
        }
        "tokens" | "groups" | "choice" => {
            "workload={requests: 1, at: 0 s, prompt_tokens: 1, output_tokens: 1, \
             shared_prefix: {tokens: 1}}"
        }
        _ => "workload={requests: 1, at: 0 s, prompt_tokens: 1, output_tokens: 1}",
    };
    let event = match path.strip_prefix("events[0].").unwrap_or_default() {
        "at.step" => "events=[{at: {step: 1}, others_hold: 0 B}]",
        "others_grow.to" | "others_grow.over" => {
            "events=[{at: 1 s, others_grow: {to: 1 B, over: 1 s}}]"
        }
        "others_grow.by" => "events=[{at: 1 s, others_grow: {over: 1 s}}]",
        "host_others_hold" => "events=[{at: 1 s}]",
        "host_others_grow.to" | "host_others_grow.over" => {
            "events=[{at: 1 s, host_others_grow: {to: 1 B, over: 1 s}}]"
        }
        "host_others_grow.by" => "events=[{at: 1 s, host_others_grow: {over: 1 s}}]",
        "leak.bytes" => "events=[{at: 1 s, leak: {bytes: 1 B}}]",
        "leak.every" | "leak.until" => {
            "events=[{at: 1 s, leak: {bytes: 1 B, every: 1 s, until: 5 s}}]"
        }
        request if request.starts_with("request") => {
            "events=[{at: 1 s, request: {prompt_tokens: 1, output_tokens: 1}}]"
        }
        _ => "events=[{at: before_load, others_hold: 0 B}]",
    };
    let mut set = vec![group, event, "machine.others_on_host=1 GiB"];
    set.extend(distribution(path));
    if path.starts_with("machine.weaker") {
        set.extend(["machine.weaker={rank: 0, capacity: 1 GiB}", "machine.ranks=8"]);
    }
    set
}

/// Every mapping of the schema: path in [`BASE`] and the names of its keys, those of all its forms.
fn mappings(schema: &Value, path: &KeyPath, found: &mut Vec<(KeyPath, Vec<String>)>) {
    if let Some(properties) = schema.get("properties").and_then(Value::as_object) {
        let names = properties.keys().cloned();
        match found.iter_mut().find(|(other, _)| other == path) {
            Some((_, all)) => all.extend(names),
            None => found.push((path.clone(), names.collect())),
        }
        for (name, property) in properties {
            mappings(property, &path.key(name), found);
        }
    }
    for form in schema.get("anyOf").and_then(Value::as_array).into_iter().flatten() {
        mappings(form, path, found);
    }
    if let Some(items) = schema.get("items") {
        mappings(items, &path.index(0), found);
    }
}

#[test]
fn the_schema_has_the_keys_that_the_reader_has() {
    let mut found = Vec::new();
    mappings(&schema::json_schema(), &KeyPath::root(), &mut found);
    let mut tried = 0;
    for (path, mut names) in found {
        let in_base = path.0.first() != Some(&Step::Key("expect".to_owned())) || path.0.len() == 1;
        let reading = path.to_string().starts_with("machine.readings.");
        if !in_base || (reading && !path.to_string().ends_with("free_before_load")) {
            continue;
        }
        let text = path.to_string();
        // Distributions are the same wherever an amount may be one.
        if text.contains("others_hold") || text.contains("_grow.") {
            continue;
        }
        let mut set = vec![format!("{}=1", path.key("zzzzzzzz")).replace("..", "")];
        // Lists and forms that the base does not have.
        for (form, value) in [
            ("workload[0]", "workload=[{}]"),
            ("machine.weaker[0]", "machine.weaker=[{}]"),
            ("events[0].at", "events[0].at={}"),
            ("machine.others_on_host", "machine.others_on_host={}"),
            ("machine.others_on_host.lognormal", "machine.others_on_host={lognormal: {}}"),
            ("machine.others_on_host.normal", "machine.others_on_host={normal: {}}"),
        ] {
            if text.starts_with(form) {
                set.insert(0, value.to_owned());
            }
        }
        let set: Vec<&str> = set.iter().map(String::as_str).collect();
        let problem = only(parse(BASE, &set));
        assert_eq!(problem.code, Code::UnknownKey, "{path}");
        let mut allowed: Vec<String> =
            problem.allowed.unwrap().split('`').skip(1).step_by(2).map(str::to_owned).collect();
        if path.0.first() == Some(&Step::Key("workload".to_owned())) && path.0.len() <= 2 {
            // The keys of several forms are not in one order.
            names.sort();
            allowed.sort();
        }
        assert_eq!(allowed, names, "{path}");
        tried += 1;
    }
    assert_eq!(tried, 68);
}

#[test]
fn ranges_hold_at_their_ends() {
    let cases = [
        ("machine.ranks", "1", "1024", ["0", "1025", "-1", "1.5", "x"]),
        ("model.layers", "1", "1099511627776", ["0", "1099511627777", "-1", "1.5", "x"]),
        ("seed", "0", "18446744073709551615", ["-1", "18446744073709551616", "1.5", "x", "[1]"]),
        ("machine.cgroup_limit", "0 B", "16383 PiB", ["16383 PiB", "1", "1 G", "-1 B", "[1 B]"]),
        (
            "machine.device.capacity",
            "9 GiB",
            "unknown",
            ["0 B", "12", "Unknown", "-1 GiB", "1e3 B"],
        ),
        ("expect.chunked_prefill_size", "-1", "8192 tokens", ["-2", "1.5", "8192 GiB", "x", "[1]"]),
        (
            "expect.max_concurrency",
            "0",
            "2.31x",
            ["-0.1", "2.31y", "[2]", "x", "{at_least: 3, at_most: 2}"],
        ),
        (
            "expect.free_after_load",
            "0 B",
            "{at_most: 1 TiB}",
            ["1", "-1 B", "{}", "{any_of: []}", "{value: 1 B, at_most: 2 B}"],
        ),
        ("events[0].rank", "0", "1023", ["-1", "1024", "every", "1.5", "[1]"]),
    ];
    for (path, low, high, bad) in cases {
        for good in [low, high] {
            let set = format!("{path}={good}");
            assert!(good.contains("PiB") || parse(BASE, &[&set]).is_ok(), "{set}");
        }
        for bad in bad {
            let set = format!("{path}={bad}");
            let problem = only(parse(BASE, &[&set]));
            assert!(matches!(problem.code, Code::BadValue | Code::WrongType), "{set}: {problem:?}");
            assert!(problem.message.contains(path), "{set}: {problem:?}");
        }
    }
}

#[test]
fn a_folder_is_read_in_order_without_its_catalogs() {
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("folder");
    let _ = fs::remove_dir_all(&root);
    for folder in ["b", "a/deep", "devices", "models"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let named = |name: &str| BASE.replace("name: base", &format!("name: {name}"));
    let files = [
        ("b/one.yaml", named("one")),
        ("a/deep/two.yaml", named("two")),
        ("a/three.yaml", named("one")),
        ("a/broken.yaml", "name: [".to_owned()),
        ("a/.hidden.yaml", "x".to_owned()),
        ("a/notes.md", "x".to_owned()),
        ("devices/gpus.yaml", "x".to_owned()),
        ("models/all.yaml", "x".to_owned()),
    ];
    for (path, text) in files {
        fs::write(root.join(path), text).unwrap();
    }
    fs::write(root.join("a/bytes.yaml"), b"name: a\nwhy: \xff\n").unwrap();
    fs::write(root.join("a/huge.yaml"), "#".repeat((1 << 20) + 9)).unwrap();
    let read: Vec<(String, Option<(Code, usize)>)> = folder::load_folder(&root)
        .unwrap()
        .into_iter()
        .map(|entry| {
            let path = entry.path.strip_prefix(&root).unwrap().display().to_string();
            let first = entry.scenario.err().map(|problems| {
                let line = match problems.list[0].place {
                    Place::Text(at) => at.line,
                    _ => 0,
                };
                (problems.list[0].code, line)
            });
            (path, first)
        })
        .collect();
    let expected = [
        ("a/broken.yaml", Some((Code::Syntax, 1))),
        ("a/bytes.yaml", Some((Code::Unreadable, 0))),
        ("a/deep/two.yaml", None),
        ("a/huge.yaml", Some((Code::TooLarge, 1))),
        ("a/three.yaml", None),
        ("b/one.yaml", Some((Code::Contradiction, 2))),
    ];
    assert_eq!(read, expected.map(|(path, first)| (path.to_owned(), first)));
    assert_eq!(folder::load_folder(&root.join("none")).unwrap_err().list[0].code, Code::Unreadable);
}
