//! The server as a process: a tiny model over a real socket, its recording decided again, and what happens when
//! things go wrong.

#[path = "../checkpoint/tests/files/mod.rs"]
#[allow(dead_code, reason = "shared with the tests of checkpoints")]
pub(crate) mod files;

use crate::cli::schema_check::check;
use files::{Gguf, Scratch};
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

/// How long anything may take before a test is given up: far beyond what it takes.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn plimsoll(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(args).env_remove("PLIMSOLL_API_KEY").stdin(Stdio::null());
    command
}

/// Weights that spread a tiny model's answers over its vocabulary.
pub(crate) fn spread(file: &mut Gguf) {
    let mut state = 1_u64;
    for (_, _, values) in &mut file.tensors {
        for value in values {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *value = ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 3.0;
        }
    }
}

/// A tiny model as a file.
pub(crate) fn model(scratch: &Scratch) -> String {
    let mut file = Gguf::new("llama");
    spread(&mut file);
    scratch.file("tiny.gguf", file.bytes()).display().to_string()
}

/// A server that goes when the test ends.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    lines: Receiver<String>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    pub(crate) fn start(model: &str, flags: &[&str]) -> Self {
        let common =
            ["serve", "--model-path", model, "--port", "0", "--threads", "1", "--page-size", "4"];
        Self::of(plimsoll(&[&common, flags].concat()))
    }

    /// Waits until a server is ready.
    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut server = Self { child, port: 0, lines };
        let ready = server.line("ready: http://127.0.0.1:");
        let digits = ready.split("127.0.0.1:").nth(1).unwrap().split('/').next().unwrap();
        server.port = digits.parse().unwrap();
        server
    }

    /// The next line of stderr that holds `what`.
    pub(crate) fn line(&self, what: &str) -> String {
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(what) => return line,
                Ok(line) => seen.push(line),
                Err(error) => panic!("no {what:?} ({error}); there was {seen:?}"),
            }
        }
    }

    fn connect(&self) -> TcpStream {
        Address(self.port).connect()
    }

    /// An answer of so many tokens that has begun to come.
    pub(crate) fn stream(&self, tokens: u64) -> TcpStream {
        let mut stream = self.connect();
        let body = json!({
            "model": "tiny", "prompt": "ab", "max_tokens": tokens, "ignore_eos": true, "stream": true,
        });
        let body = body.to_string();
        let length = body.len();
        let head =
            format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all((head + &body).as_bytes()).unwrap();
        stream.read_exact(&mut [0; 16]).unwrap();
        stream
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        Address(self.port).ask(method, path, body)
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    pub(crate) fn drain(mut self) -> ExitStatus {
        self.signal("-TERM");
        self.child.wait().unwrap()
    }

    /// Waits until it ends by itself.
    pub(crate) fn end(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

/// Where a server listens, for many threads.
#[derive(Clone, Copy)]
pub(crate) struct Address(pub(crate) u16);

impl Address {
    fn connect(self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.0)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Status and body of a request.
    pub(crate) fn ask(self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = self.connect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let status = text.split(' ').nth(1).unwrap().parse().unwrap();
        (status, text.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    fn complete(self, prompt: &Value, tokens: u64) -> Value {
        let body = json!({
            "model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
        });
        let (status, body) = self.ask("POST", "/v1/completions", &body.to_string());
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }
}

fn prompt(number: u32) -> Vec<u32> {
    (0..12 + number % 7)
        .map(|at| if at < 8 { number % 2 + at } else { number * 5 + at } % 250)
        .collect()
}

/// Many clients at once, and then many prompts that arrive together; their texts.
pub(crate) fn load(server: &Server, requests: u32) -> Vec<String> {
    let address = Address(server.port);
    let mut texts: Vec<String> = thread::scope(|scope| {
        let ask = |number| {
            move || address.complete(&json!(prompt(number)), 20)["choices"][0]["text"].to_string()
        };
        let threads: Vec<_> = (0..requests).map(|number| scope.spawn(ask(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let prompts: Vec<Vec<u32>> = (0..requests).map(prompt).collect();
    let answer = address.complete(&json!(prompts), 30);
    let choices = answer["choices"].as_array().unwrap();
    texts.extend(choices.iter().map(|choice| choice["text"].to_string()));
    texts
}

pub(crate) fn replay(recording: &Path) -> (i32, Value) {
    let path = recording.display().to_string();
    let out = plimsoll(&["replay", &path, "--format", "json"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let errors = String::from_utf8(out.stderr).unwrap();
    let document = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}{errors}"));
    (out.status.code().unwrap(), document)
}

#[test]
fn what_was_served_is_decided_again_on_the_simulator() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let recording = scratch.0.join("night.log");
    let path = recording.display().to_string();
    let roomy = Server::start(&model, &[]);
    let expected = load(&roomy, 12);
    assert!(roomy.drain().success());
    // A pool so small, and admitted so boldly, that running requests give their slots back.
    let tight = [
        "--max-total-tokens",
        "160",
        "--chunked-prefill-size",
        "16",
        "--schedule-conservativeness",
        "0",
        "--record",
        &path,
    ];
    let server = Server::start(&model, &tight);
    assert_eq!(load(&server, 12), expected, "retraction changes no text");
    let metrics = server.ask("GET", "/metrics", "").1;
    assert!(metrics.contains("sglang:num_requests_total"), "{metrics}");
    assert!(server.drain().success());
    let log = fs::read_to_string(&recording).unwrap();
    assert!(log.contains("\"kind\":\"retracted\""), "nothing was retracted");
    let (code, document) = replay(&recording);
    assert_eq!((code, &document["same_decisions"]), (0, &json!(true)), "{document}");
    assert_eq!(document["recording"], "whole");
    // A decision that was not made is found.
    let changed = log.replacen("\"prefix_tokens\":8", "\"prefix_tokens\":4", 1);
    assert_ne!(changed, log);
    fs::write(&recording, changed).unwrap();
    let (code, document) = replay(&recording);
    assert_eq!((code, &document["same_decisions"]), (1, &json!(false)), "{document}");
}

#[test]
fn a_server_that_is_killed_leaves_a_recording_up_to_the_cut() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let recording = scratch.0.join("cut.log");
    let mut server = Server::start(&model, &["--record", &recording.display().to_string()]);
    load(&server, 6);
    let _open = server.stream(40);
    server.signal("-KILL");
    server.child.wait().unwrap();
    let (code, document) = replay(&recording);
    assert_eq!((code, &document["same_decisions"]), (0, &json!(true)), "{document}");
    assert_eq!(document["recording"], "cut");
    assert!(document["decisions"].as_u64().unwrap() > 20);
}

#[test]
fn a_client_that_leaves_frees_its_slots() {
    let scratch = Scratch::new();
    let server = Server::start(&model(&scratch), &["--max-running-requests", "1"]);
    let stream = server.stream(60);
    drop(stream);
    // With one request at a time the next is answered when the first is gone.
    let answer = Address(server.port).complete(&json!([1, 2, 3]), 4);
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    assert!(server.drain().success());
}

/// Exit code and what was said.
fn fails(args: &[&str]) -> (i32, String) {
    let out = plimsoll(args).output().unwrap();
    (out.status.code().unwrap(), String::from_utf8(out.stderr).unwrap())
}

#[test]
fn what_cannot_start_says_why() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, said) = fails(&["serve", "--model-path", &model, "--port", &port]);
    assert!(code == 2 && said.contains("cannot listen on 127.0.0.1"), "{code} {said}");
    let (code, said) = fails(&["serve", "--model-path", "/no/such/model.gguf"]);
    assert!(code == 2 && said.contains("/no/such/model.gguf"), "{code} {said}");
    let bytes = fs::read(&model).unwrap();
    let cut = scratch.file("cut.gguf", &bytes[..bytes.len() - 100]).display().to_string();
    let (code, said) = fails(&["serve", "--model-path", &cut]);
    assert!(code == 2 && said.contains("cut.gguf"), "{code} {said}");
    let (code, said) = fails(&["serve", "--model-path", &model, "--record", "/no/such/folder/log"]);
    assert!(code == 2 && said.contains("/no/such/folder/log"), "{code} {said}");
    let (code, said) = fails(&["serve", "--model-path", &model, "--schedule-policy", "fifo"]);
    assert!(code == 2 && said.contains("fcfs"), "{code} {said}");
}

#[test]
fn a_full_disk_ends_the_recording_and_not_the_server() {
    // The device that is always full refuses the first line already.
    let scratch = Scratch::new();
    let (code, said) =
        fails(&["serve", "--model-path", &model(&scratch), "--port", "0", "--record", "/dev/full"]);
    assert!(code == 2 && said.contains("/dev/full"), "{code} {said}");
    // A limit of the file's size fails later, as a full disk does.
    let recording = scratch.0.join("full.log").display().to_string();
    let script = format!(
        "trap '' XFSZ; ulimit -f 8; exec {} serve --model-path {} --port 0 --threads 1 --page-size 4 --record {recording}",
        env!("CARGO_BIN_EXE_plimsoll"),
        model(&scratch),
    );
    let mut command = Command::new("bash");
    command.args(["-c", &script]).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let errors = BufReader::new(child.stderr.take().unwrap());
    let (sender, lines) = channel();
    thread::spawn(move || {
        errors.lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)))
    });
    let mut server = Server { child, port: 0, lines };
    let ready = server.line("ready: http://127.0.0.1:");
    server.port =
        ready.split("127.0.0.1:").nth(1).unwrap().split('/').next().unwrap().parse().unwrap();
    assert_eq!(load(&server, 24).len(), 48, "everybody is answered");
    server.signal("-TERM");
    let said = server.line("is cut off");
    assert!(said.contains("full.log"), "{said}");
    assert_eq!(server.child.wait().unwrap().code(), Some(1));
    let (code, document) = replay(Path::new(&recording));
    assert_eq!((code, &document["same_decisions"]), (0, &json!(true)), "{document}");
}

#[test]
fn a_plan_alone_loads_nothing() {
    let scratch = Scratch::new();
    let model = model(&scratch);
    let args = ["serve", "--model-path", &model, "--plan-only", "--format", "json"];
    let out = plimsoll(&args).output().unwrap();
    let document: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(out.status.success());
    let schema = plimsoll(&["schema", "serve"]).output().unwrap().stdout;
    assert_eq!(check(&serde_json::from_slice(&schema).unwrap(), &document), Vec::<String>::new());
    let rows = document["memory"].as_array().unwrap();
    let sum: u64 = rows.iter().map(|row| row["size_bytes"].as_u64().unwrap()).sum();
    assert_eq!(sum, document["limit_bytes"].as_u64().unwrap(), "the rows add up to the limit");
    assert_eq!(document["context_length"], 64);
    assert!(document["max_total_num_tokens"].as_u64().unwrap() >= 64);
}

#[test]
fn a_folder_from_the_hub_is_served_and_a_limit_below_its_weights_is_refused_with_numbers() {
    let scratch = Scratch::new();
    let folder = files::folder(&scratch, &files::config()).display().to_string();
    let (code, said) = fails(&["serve", "--model-path", &folder]);
    assert!(code == 2 && said.contains("tokenizer.json is missing"), "{code} {said}");
    let words: serde_json::Map<String, Value> =
        (0..260).map(|id| (format!("w{id}"), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": { "type": "WordLevel", "vocab": words, "unk_token": "w0" },
    });
    scratch.file("tokenizer.json", tokenizer.to_string());
    let server = Server::start(&folder, &["--served-model-name", "tiny"]);
    let answer = Address(server.port).complete(&json!([1, 2, 3]), 4);
    assert!(answer["usage"]["completion_tokens"].as_u64() >= Some(1), "{answer}");
    assert!(server.drain().success());
    let (code, said) = fails(&["serve", "--model-path", &folder, "--memory-limit", "4KiB"]);
    assert!(
        code == 2 && said.contains("the weights take") && said.contains("4.00 KiB"),
        "{code} {said}"
    );
    let (code, said) = fails(&["serve", "--model-path", &folder, "--memory-limit", "20MiB"]);
    assert!(code == 2 && said.contains("--memory-limit"), "{code} {said}");
}
