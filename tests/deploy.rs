//! The files that a server is deployed with, held against the program: what they copy is there, the flags that they
//! pass are its own, and their numbers agree with each other.

use crate::serve::{Server, files::Scratch, model, plimsoll};
use serde_yaml::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::{Command, Stdio},
};

/// Port in all of the files.
const PORT: u64 = 30_000;

/// User of the image, in the Kubernetes file too.
const USER: u64 = 10_001;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect(path)
}

/// The long flags of a verb.
fn flags(verb: &str) -> BTreeSet<String> {
    let help = plimsoll(&[verb, "--help"]).output().unwrap();
    let text = String::from_utf8(help.stdout).unwrap();
    let words = text.split(|c: char| c.is_whitespace() || "[]`,;:=".contains(c));
    let flags: BTreeSet<String> =
        words.filter(|word| word.starts_with("--")).map(str::to_owned).collect();
    assert!(flags.len() > 5, "{text}");
    flags
}

/// Fails when a word is a flag that the verb does not have.
#[track_caller]
fn known(verb: &str, words: &[String]) {
    let flags = flags(verb);
    let used = words.iter().filter_map(|word| word.split('=').next());
    let used: Vec<&str> = used.filter(|word| word.starts_with("--")).collect();
    assert!(!used.is_empty(), "no flag in {words:?}");
    for flag in used {
        assert!(flags.contains(flag), "`plimsoll {verb}` has no {flag}: {words:?}");
    }
}

/// The instructions of the Dockerfile: name and the rest, lines joined, comments left out.
fn instructions() -> Vec<(String, String)> {
    let text = read("Dockerfile");
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let joined = lines.collect::<Vec<_>>().join("\n").replace("\\\n", " ");
    let split = |line: &str| {
        let (name, rest) = line.split_once(' ').expect("an instruction has words");
        (name.to_owned(), rest.trim().to_owned())
    };
    joined.lines().filter(|line| !line.trim().is_empty()).map(split).collect()
}

/// All of one name.
fn all(name: &str) -> Vec<String> {
    instructions().into_iter().filter(|(of, _)| of == name).map(|(_, rest)| rest).collect()
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// A form of JSON: `["serve", "--port", …]`.
fn list(text: &str) -> Vec<String> {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn the_image_is_built_of_the_whole_workspace() {
    let mut copied = BTreeSet::new();
    let stages = all("FROM").iter().filter_map(|from| from.split(" AS ").nth(1)).count();
    assert_eq!(stages, 2);
    for copy in all("COPY") {
        let words: Vec<&str> = copy.split_whitespace().collect();
        if let Some(stage) = words[0].strip_prefix("--from=") {
            assert!(all("FROM").iter().any(|from| from.ends_with(&format!(" AS {stage}"))));
            continue;
        }
        for source in &words[..words.len() - 1] {
            assert!(root().join(source).exists(), "{source} is not there");
            copied.insert((*source).to_owned());
        }
    }
    let ignored = read(".dockerignore");
    for source in &copied {
        assert!(!ignored.lines().any(|line| line == source), "{source} is not sent");
    }
    let manifest = read("Cargo.toml");
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = ")).unwrap();
    let paths = manifest.lines().filter_map(|line| line.strip_prefix("path = "));
    let needed = paths.map(|path| path.trim_matches('"').to_owned()).chain(list(members));
    for path in needed {
        let covered = copied.iter().any(|of| Path::new(&path).starts_with(of));
        assert!(covered, "{path} is needed to build and not copied");
    }
}

#[test]
fn the_image_calls_the_program_as_it_is() {
    let command = list(&all("CMD")[0]);
    assert_eq!((all("ENTRYPOINT")[0].as_str(), command[0].as_str()), ("[\"plimsoll\"]", "serve"));
    known("serve", &command);
    assert!(command.windows(2).any(|two| two == ["--port", &PORT.to_string()]), "{command:?}");
    assert_eq!(all("EXPOSE"), [PORT.to_string()]);
    assert_eq!(all("USER"), [format!("{USER}:{USER}")]);
    assert!(all("RUN").iter().any(|run| run.contains(&format!("--uid {USER}"))));
    assert_eq!(all("STOPSIGNAL"), ["SIGTERM"]);
}

/// `sh -n`: the shell reads it and runs nothing.
#[test]
fn its_shell_is_shell() {
    for run in all("RUN").iter().chain(&[health()]) {
        let script = run.split_whitespace().skip_while(|word| word.starts_with("--"));
        let script = script.collect::<Vec<_>>().join(" ");
        let read = Command::new("sh").args(["-n", "-c", &script]).output().unwrap();
        assert!(read.status.success(), "{script}\n{}", String::from_utf8_lossy(&read.stderr));
    }
}

/// The command of the health check.
fn health() -> String {
    let check = all("HEALTHCHECK").remove(0);
    check.split_once("CMD ").expect("a command").1.to_owned()
}

#[test]
fn the_health_check_tells_a_server_from_none() {
    let command = health();
    let before_pipe: Vec<String> =
        words(&command).into_iter().take_while(|word| !word.starts_with("2>")).collect();
    assert_eq!(before_pipe[..2], ["plimsoll", "watch"]);
    known("watch", &before_pipe);
    let check = |port: u16| {
        let command = command
            .replacen("plimsoll", env!("CARGO_BIN_EXE_plimsoll"), 1)
            .replace(&PORT.to_string(), &port.to_string());
        let ran = Command::new("sh").args(["-c", &command]).stdout(Stdio::null()).status();
        ran.unwrap().code()
    };
    let scratch = Scratch::new();
    let server = Server::start(&model(&scratch), &["--api-key", "secret"]);
    assert_eq!(check(server.port), Some(0));
    let port = server.port;
    drop(server);
    assert_eq!(check(port), Some(1));
}

/// `KEY=value` lines of an environment file or a unit; a key may stand more than once.
fn settings(text: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let lines = text.lines().filter(|line| !line.starts_with(['#', '[']));
    for (key, value) in lines.filter_map(|line| line.split_once('=')) {
        found.entry(key).or_default().push(value);
    }
    found
}

fn seconds(text: &str) -> u64 {
    text.strip_suffix('s').and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn the_unit_starts_the_program_with_the_settings_of_its_file() {
    let (unit, environment) =
        (read("contrib/systemd/plimsoll.service"), read("contrib/systemd/plimsoll.env"));
    let (unit, environment) = (settings(&unit), settings(&environment));
    let start = words(unit["ExecStart"][0]);
    assert_eq!(start[1], "serve");
    known("serve", &start);
    let mut used = BTreeSet::new();
    for word in start.iter().filter_map(|word| word.strip_prefix('$')) {
        let name = word.trim_matches(['{', '}']);
        assert!(environment.contains_key(name), "{name} is not in plimsoll.env");
        used.insert(name);
    }
    assert_eq!(used, environment.keys().copied().collect(), "a setting that nothing reads");
    assert_eq!(environment["PORT"], [PORT.to_string()]);
    let (stop, drain) = (unit["TimeoutStopSec"][0], environment["DRAIN_TIMEOUT"][0]);
    assert!(seconds(stop) > seconds(drain), "{stop} cuts {drain} off");
    assert_eq!(unit["KillSignal"], ["SIGTERM"]);
    for hides_devices in ["PrivateDevices", "ProtectClock", "DevicePolicy"] {
        assert!(!unit.contains_key(hides_devices), "{hides_devices}");
    }
}

#[test]
fn systemd_reads_the_unit_without_a_word() {
    let scratch = Scratch::new();
    let text = read("contrib/systemd/plimsoll.service")
        .replace("/usr/local/bin/plimsoll", env!("CARGO_BIN_EXE_plimsoll"));
    let path = scratch.file("plimsoll.service", text);
    match Command::new("systemd-analyze").arg("verify").arg(path).output() {
        Ok(said) => {
            let words = String::from_utf8_lossy(&said.stderr).into_owned();
            assert!(said.status.success() && !words.contains("plimsoll.service"), "{words}");
        }
        Err(_) => println!("skipped: no systemd-analyze here"),
    }
}

/// A place in a document, by keys and numbers.
#[track_caller]
fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').fold(value, |value, key| match key.parse::<usize>() {
        Ok(index) => &value[index],
        Err(_) => value.get(key).unwrap_or_else(|| panic!("no {key} of {path}")),
    })
}

#[test]
fn the_deployment_agrees_with_the_program_and_with_itself() {
    let text = read("contrib/kubernetes/serve.yaml");
    let documents: Vec<Value> = serde_yaml::Deserializer::from_str(&text)
        .map(|part| serde::Deserialize::deserialize(part).expect("YAML"))
        .collect();
    let kind = |name: &str| {
        let found = documents.iter().find(|of| of["kind"].as_str() == Some(name));
        found.unwrap_or_else(|| panic!("no {name}"))
    };
    let pod = at(kind("Deployment"), "spec.template.spec");
    let container = at(pod, "containers.0");
    let args = at(container, "args").as_sequence().unwrap();
    let args: Vec<String> = args.iter().map(|arg| arg.as_str().unwrap().to_owned()).collect();
    assert_eq!(args[0], "serve");
    known("serve", &args);
    let flag = |name: &str| {
        let found = args.iter().find_map(|arg| arg.strip_prefix(&format!("--{name}=")));
        found.unwrap_or_else(|| panic!("no --{name}"))
    };
    assert_eq!(flag("port"), PORT.to_string());
    assert_eq!(at(container, "ports.0.containerPort").as_u64(), Some(PORT));
    for (probe, path) in [("startup", "/ready"), ("readiness", "/ready"), ("liveness", "/health")] {
        let get = at(container, &format!("{probe}Probe.httpGet"));
        assert_eq!((get["path"].as_str(), get["port"].as_str()), (Some(path), Some("http")));
    }
    let before = at(container, "lifecycle.preStop.exec.command.1").as_str().unwrap();
    let grace = at(pod, "terminationGracePeriodSeconds").as_u64().unwrap();
    assert!(grace > before.parse::<u64>().unwrap() + seconds(flag("drain-timeout")));
    assert_eq!(at(pod, "securityContext.runAsUser").as_u64(), Some(USER));
    let memory = |of: &str| at(container, &format!("resources.{of}.memory")).clone();
    assert_eq!(memory("requests"), memory("limits"));
    let labels = at(kind("Deployment"), "spec.template.metadata.labels");
    assert_eq!(labels, at(kind("Deployment"), "spec.selector.matchLabels"));
    assert_eq!(labels, at(kind("Service"), "spec.selector"));
    let claim = at(kind("PersistentVolumeClaim"), "metadata.name");
    assert_eq!(at(pod, "volumes.0.persistentVolumeClaim.claimName"), claim);
    let mounted = |of: &Value| of["mountPath"].as_str().map(str::to_owned);
    let mounts = at(container, "volumeMounts").as_sequence().unwrap();
    assert!(mounts.iter().filter_map(mounted).any(|path| path == flag("model-path")));
}

#[test]
fn links_of_the_guide_lead_somewhere() {
    let text = read("docs/deploy.md");
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
    let mut count = 0;
    for target in targets.filter(|target| !target.is_empty()) {
        assert!(root().join("docs").join(target).exists(), "{target}");
        count += 1;
    }
    assert!(count > 5, "{count}");
    assert!(read("README.md").contains("(docs/deploy.md)"));
}
