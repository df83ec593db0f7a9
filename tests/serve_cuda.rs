//! The program serves on a CUDA device: over the fake driver library, so that every call, every byte and every kernel of
//! it is run here, on the CPU.

use crate::{
    cli::schema_check::check,
    cuda::support::{build, counts, nothing_owed, without_libraries},
    serve::{
        Address, Server,
        files::{Gguf, Scratch},
        load, plimsoll, replay, spread,
    },
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read as _},
    path::PathBuf,
    process::Command,
    thread,
    time::Duration,
};

/// Flags of a small server: what it computes at its start runs on the CPU.
const SMALL: [&str; 12] = [
    "--page-size",
    "4",
    "--max-running-requests",
    "4",
    "--chunked-prefill-size",
    "32",
    "--max-total-tokens",
    "1024",
    "--mem-margin",
    "64MiB",
    "--port",
    "0",
];

/// A small model of two layers whose weights are bfloat16's already: 4 heads over 2, of 16, hidden 64, inner 96.
fn model(scratch: &Scratch) -> String {
    let mut file = Gguf::new("llama");
    for (key, number) in &mut file.numbers {
        *number = match key.strip_prefix("llama.").unwrap_or_default() {
            "embedding_length" => 64,
            "block_count" => 2,
            "context_length" => 128,
            "feed_forward_length" => 96,
            "attention.head_count" => 4,
            "attention.head_count_kv" => 2,
            "attention.key_length" | "attention.value_length" => 16,
            _ => continue,
        };
    }
    for (name, shape, values) in &mut file.tensors {
        *shape = match name.split('.').rev().nth(1).unwrap_or_default() {
            "token_embd" => vec![260, 64],
            "attn_k" | "attn_v" => vec![32, 64],
            "ffn_gate" | "ffn_up" => vec![96, 64],
            "ffn_down" => vec![64, 96],
            "attn_q" | "attn_output" => vec![64, 64],
            _ => vec![64],
        };
        values.resize(shape.iter().product::<u64>() as usize, 0.0);
    }
    let second = file.tensors.iter().filter(|(name, ..)| name.starts_with("blk.0."));
    let second: Vec<_> = second
        .map(|(name, shape, values)| {
            (name.replacen("blk.0.", "blk.1.", 1), shape.clone(), values.clone())
        })
        .collect();
    file.tensors.extend(second);
    spread(&mut file);
    for (name, _, values) in &mut file.tensors {
        // Wide logits: most choices are clear.
        let scale = if name.starts_with("token_embd") { 2.0 } else { 0.5 };
        values.iter_mut().for_each(|v| *v = f32::from_bits((*v * scale).to_bits() & 0xffff_0000));
    }
    scratch.file("tiny.gguf", file.bytes()).display().to_string()
}

/// A card of 2 GiB over the library in `folder`, and where the driver's report goes.
struct Card {
    folder: PathBuf,
    report: PathBuf,
}

impl Card {
    /// `None` where there is no compiler for it.
    fn new(scratch: &Scratch) -> Option<Self> {
        Some(Self { folder: build(&[])?, report: scratch.0.join("driver.json") })
    }

    fn over(&self, mut command: Command, settings: &[(&str, &str)]) -> Command {
        command
            .env("LD_LIBRARY_PATH", &self.folder)
            .env("FAKE_CUDA_TOTAL", "2147483648")
            .env("FAKE_CUDA_REPORT", &self.report)
            .envs(settings.iter().copied());
        command
    }

    fn command(&self, verb: &str, model: &str, flags: &[&str]) -> Command {
        let common = [verb, "--model-path", model, "--device", "cuda"];
        self.over(plimsoll(&[&common, flags].concat()), &[])
    }

    fn serve(&self, model: &str, flags: &[&str]) -> Server {
        Server::of(self.command("serve", model, &[&SMALL, flags].concat()))
    }

    /// The driver's report of a process that has ended.
    fn report(&self) -> BTreeMap<String, i64> {
        let text = fs::read_to_string(&self.report).unwrap();
        fs::remove_file(&self.report).unwrap();
        counts(&text)
    }

    #[track_caller]
    fn nothing_leaked(&self) {
        nothing_owed(&self.report());
    }
}

/// Exit code and what was said on stderr.
fn ends(mut command: Command) -> (i32, String) {
    let out = command.output().unwrap();
    let said = String::from_utf8(out.stdout).unwrap() + &String::from_utf8(out.stderr).unwrap();
    (out.status.code().unwrap(), said)
}

fn prompts() -> Vec<Vec<u32>> {
    (0..10_u32).map(|n| (0..7 + n).map(|at| (n * 31 + at * (n + 3)) % 250).collect()).collect()
}

/// Answer of a request, and of its logprobs the two likeliest at every place.
fn answered(address: Address, prompt: &[u32], more: &Value) -> Value {
    let mut body = json!({
        "model": "tiny", "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true,
    });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    let (status, text) = address.ask("POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{text}");
    serde_json::from_str::<Value>(&text).unwrap()["choices"][0].take()
}

/// How far the likeliest token is ahead of the second, at every place.
fn margins(choice: &Value) -> Vec<f64> {
    let places = choice["logprobs"]["top_logprobs"].as_array().unwrap().iter();
    let margin = |place: &Value| {
        let mut all: Vec<f64> =
            place.as_object().unwrap().values().map(|n| n.as_f64().unwrap()).collect();
        all.sort_by(|a, b| b.total_cmp(a));
        all[0] - all.get(1).copied().unwrap_or(f64::NEG_INFINITY)
    };
    places.map(margin).collect()
}

/// Tokens of an answer up to the first that is no clear choice.
fn clear(choice: &Value) -> Vec<u64> {
    let ids = choice["token_ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap());
    ids.zip(margins(choice)).take_while(|(_, margin)| *margin > 0.25).map(|(id, _)| id).collect()
}

#[test]
fn a_device_answers_as_the_host_and_owes_nothing_at_the_end() {
    let scratch = Scratch::new();
    let Some(card) = Card::new(&scratch) else { return };
    let model = model(&scratch);
    let host = Server::start(&model, &["--precision", "float32"]);
    let scored = json!({"logprobs": 2});
    let expected: Vec<Value> =
        prompts().iter().map(|prompt| answered(Address(host.port), prompt, &scored)).collect();
    assert!(host.drain().success());
    let compared: usize = expected.iter().map(|choice| clear(choice).len()).sum();
    assert!(compared >= 40, "only {compared} tokens are clear choices");

    let recording = scratch.0.join("device.log");
    let server = card.serve(&model, &["--record", &recording.display().to_string()]);
    let address = Address(server.port);
    // All at once, drawn on the device; then by logits that come to the host.
    for more in [json!({}), scored.clone()] {
        let found: Vec<Value> = thread::scope(|scope| {
            let more = &more;
            let ask = |prompt: Vec<u32>| scope.spawn(move || answered(address, &prompt, more));
            let threads: Vec<_> = prompts().into_iter().map(ask).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (found, expected) in found.iter().zip(&expected) {
            let clear = json!(clear(expected));
            let ids = &found["token_ids"].as_array().unwrap()[..clear.as_array().unwrap().len()];
            assert_eq!(json!(ids), clear, "{found} {expected}");
        }
    }
    // What is drawn follows the seed, wherever it is drawn.
    let warm = json!({"temperature": 0.9, "top_p": 0.95, "seed": 7});
    let drawn = answered(address, &prompts()[3], &warm);
    assert_eq!(drawn["token_ids"], answered(address, &prompts()[3], &warm)["token_ids"]);
    let scored = json!({"temperature": 0.9, "top_p": 0.95, "seed": 7, "logprobs": 0});
    assert_eq!(drawn["token_ids"], answered(address, &prompts()[3], &scored)["token_ids"]);
    let events: Vec<String> = BufReader::new(server.stream(9))
        .lines()
        .map_while(Result::ok)
        .take_while(|line| !line.contains("[DONE]"))
        .filter(|line| line.starts_with("data: {"))
        .collect();
    // Bytes of one character come together.
    let last = events.last().is_some_and(|event| event.contains("\"finish_reason\":\"length\""));
    assert!(events.len() >= 3 && last, "{events:?}");
    told(&server);
    assert!(server.drain().success());
    card.nothing_leaked();

    let (code, document) = replay(&recording);
    assert_eq!((code, &document["same_decisions"]), (0, &json!(true)), "{document}");
    let log = fs::read_to_string(&recording).unwrap();
    let header = log.lines().next().unwrap();
    assert!(header.contains("\"backend\":\"cuda\"") && header.contains("cuda:0"), "{header}");
}

/// What the server says of its device's memory: planned beside held, to the card's last byte.
fn told(server: &Server) {
    let info: Value = serde_json::from_str(&server.ask("GET", "/get_server_info", "").1).unwrap();
    assert_eq!(info["device"], "cuda:0");
    let rows = info["memory"].as_array().unwrap();
    let sum = |field: &str| rows.iter().filter_map(|row| row[field].as_u64()).sum::<u64>();
    assert_eq!((sum("planned_bytes"), sum("held_bytes")), (2 << 30, 2 << 30), "{rows:?}");
    for row in rows {
        assert_eq!(row["device"], "cuda:0");
        let own = ["weights", "arena", "kv_pool", "context", "graphs"];
        if own.iter().any(|name| row["account"] == *name) {
            assert_eq!(row["planned_bytes"], row["held_bytes"], "{row}");
        }
    }
    let metrics = server.ask("GET", "/metrics", "").1;
    let line =
        "plimsoll:memory_held_bytes{model_name=\"tiny\",account=\"kv_pool\",device=\"cuda:0\"}";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn two_ranks_on_two_devices_answer_together() {
    let scratch = Scratch::new();
    let Some(card) = Card::new(&scratch) else { return };
    let model = model(&scratch);
    let alone = card.serve(&model, &[]);
    let scored = json!({"logprobs": 2});
    let expected: Vec<Value> =
        prompts().iter().map(|prompt| answered(Address(alone.port), prompt, &scored)).collect();
    assert!(alone.drain().success());
    card.nothing_leaked();
    let serve = card.command("serve", &model, &[&SMALL[..], &["--tp-size", "2"]].concat());
    let both = Server::of(card.over(serve, &[("FAKE_CUDA_DEVICES", "2")]));
    for (prompt, expected) in prompts().iter().zip(&expected) {
        let (found, clear) = (answered(Address(both.port), prompt, &json!({})), clear(expected));
        let ids = &found["token_ids"].as_array().unwrap()[..clear.len()];
        assert_eq!(json!(ids), json!(clear));
    }
    let info: Value = serde_json::from_str(&both.ask("GET", "/get_server_info", "").1).unwrap();
    assert_eq!(info["device"], "cuda:0,1");
    let rows = info["memory"].as_array().unwrap();
    let of = |device: &str| {
        let rows = rows.iter().filter(|row| row["device"] == device);
        rows.map(|row| row["planned_bytes"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((of("cuda:0"), of("cuda:1")), (2 << 30, 2 << 30));
    assert!(both.drain().success());
    card.nothing_leaked();
}

#[test]
fn a_small_pool_on_a_device_retracts_and_is_decided_again() {
    let scratch = Scratch::new();
    let Some(card) = Card::new(&scratch) else { return };
    let recording = scratch.0.join("tight.log");
    let path = recording.display().to_string();
    let tight = ["--max-total-tokens", "160", "--chunked-prefill-size", "16", "--record", &path];
    let tight = [&tight[..], &["--schedule-conservativeness", "0"]].concat();
    let flags = ["--page-size", "4", "--mem-margin", "64MiB", "--port", "0"];
    let server =
        Server::of(card.command("serve", &model(&scratch), &[&flags[..], &tight].concat()));
    assert_eq!(load(&server, 12).len(), 24, "everybody is answered");
    assert!(server.drain().success());
    card.nothing_leaked();
    let log = fs::read_to_string(&recording).unwrap();
    assert!(log.contains("\"kind\":\"retracted\""), "nothing was retracted");
    let (code, document) = replay(&recording);
    assert_eq!((code, &document["same_decisions"]), (0, &json!(true)), "{document}");
}

/// Token slots that a server has lent.
fn lent(server: &Server) -> u64 {
    let page = server.ask("GET", "/metrics", "").1;
    let line = page.lines().find(|line| line.starts_with("plimsoll:lent_tokens{")).unwrap();
    line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64
}

/// Waits until `what` holds of the lent slots.
#[track_caller]
fn until(server: &Server, what: impl Fn(u64) -> bool) -> u64 {
    for _ in 0..1000 {
        let now = lent(server);
        if what(now) {
            return now;
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("{} slots are lent", lent(server));
}

#[test]
fn pages_go_to_a_neighbour_on_the_device_and_come_back() {
    let scratch = Scratch::new();
    let Some(card) = Card::new(&scratch) else { return };
    let others = scratch.file("others", "0");
    let recording = scratch.0.join("lent.log").display().to_string();
    let flags =
        ["--page-size", "16", "--max-running-requests", "4", "--chunked-prefill-size", "32"];
    let more = ["--mem-margin", "16MiB", "--port", "0", "--strict-memory", "--record", &recording];
    let serve = card.command("serve", &model(&scratch), &[&flags[..], &more].concat());
    let path = others.display().to_string();
    let settings = [("FAKE_CUDA_TOTAL", "805306368"), ("FAKE_CUDA_FOREIGN_FILE", path.as_str())];
    let server = Server::of(card.over(serve, &settings));
    let before = answered(Address(server.port), &prompts()[2], &json!({}));
    assert_eq!(lent(&server), 0);
    fs::write(&others, (30 << 20).to_string()).unwrap();
    // 16 MiB were free; eight more are wanted, and what the neighbour is short of.
    let most = until(&server, |lent| lent > 0);
    let during = answered(Address(server.port), &prompts()[2], &json!({}));
    assert_eq!(during["token_ids"], before["token_ids"]);
    fs::write(&others, "0").unwrap();
    until(&server, |lent| lent < most);
    assert!(server.drain().success());
    card.nothing_leaked();
    let (code, document) = replay(recording.as_ref());
    assert_eq!((code, &document["same_decisions"]), (0, &json!(true)), "{document}");
}

#[test]
fn a_plan_alone_is_what_the_device_says_and_gives_it_back() {
    let scratch = Scratch::new();
    let Some(card) = Card::new(&scratch) else { return };
    let model = model(&scratch);
    let flags = [&SMALL[..], &["--plan-only", "--format", "json"]].concat();
    let out = card.command("serve", &model, &flags).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    let document: Value = serde_json::from_slice(&out.stdout).unwrap();
    card.nothing_leaked();
    let schema = plimsoll(&["schema", "serve"]).output().unwrap().stdout;
    assert_eq!(check(&serde_json::from_slice(&schema).unwrap(), &document), Vec::<String>::new());
    let rows = document["memory"].as_array().unwrap();
    let sum: u64 = rows.iter().map(|row| row["size_bytes"].as_u64().unwrap()).sum();
    assert_eq!((sum, &document["limit_bytes"]), (2 << 30, &json!(2_u64 << 30)), "the card's total");
    let measured = rows.iter().filter(|row| row["measured_bytes"].is_u64()).count();
    assert!(measured >= 8, "{rows:?}");
    let human = [&SMALL[..], &["--plan-only"]].concat();
    let (code, said) = ends(card.command("serve", &model, &human));
    assert!(code == 0 && said.contains("memory plan of tiny on cuda:0: 2.00 GiB"), "{said}");
    for label in ["planned", "measured", "CUDA context", "KV pool", "unexplained"] {
        assert!(said.contains(label), "{label}: {said}");
    }
}

#[test]
fn a_device_without_room_is_a_refusal_with_numbers() {
    let scratch = Scratch::new();
    let Some(card) = Card::new(&scratch) else { return };
    let model = model(&scratch);
    let start = |settings: &[(&str, &str)]| {
        ends(card.over(card.command("serve", &model, &SMALL), settings))
    };
    let (code, said) = start(&[("FAKE_CUDA_FOREIGN", "1600000000")]);
    assert!(code == 2 && said.contains("is free"), "{code} {said}");
    card.nothing_leaked();
    for request in ["3", "9", "14"] {
        let (code, said) = start(&[("FAKE_CUDA_FAIL_FROM", request)]);
        let fits = said.contains("memory") || said.contains("out of memory");
        assert!(code == 2 && fits, "at {request}: {code} {said}");
        card.nothing_leaked();
    }
}

#[test]
fn a_device_that_is_lost_tells_its_clients_and_ends_the_server() {
    let scratch = Scratch::new();
    let Some(card) = Card::new(&scratch) else { return };
    let model = model(&scratch);
    // As many calls as a life without a request makes, and some steps of one.
    assert!(card.serve(&model, &["--no-lend"]).drain().success());
    let calls = (card.report()["calls"] + 60).to_string();
    let serve = card.command("serve", &model, &[&SMALL[..], &["--no-lend"]].concat());
    let server = Server::of(card.over(serve, &[("FAKE_CUDA_LOST_AT", &calls)]));
    let mut text = String::new();
    server.stream(50).read_to_string(&mut text).unwrap();
    assert!(text.contains("\"error\"") && !text.contains("[DONE]"), "{text}");
    let said = server.line("error:");
    assert!(said.contains("lost"), "{said}");
    assert_eq!(server.end().code(), Some(3));
}

#[test]
fn what_a_device_cannot_do_is_refused_and_why() {
    let scratch = Scratch::new();
    let Some(card) = Card::new(&scratch) else { return };
    let model = model(&scratch);
    for (flags, why) in [
        (&["--threads", "2"][..], "--threads is for --device host"),
        (&["--precision", "int8"], "--precision is for --device host"),
        (&["--memory-limit", "1GiB"], "--mem-margin"),
        (&["--kv-cache-dtype", "float32"], "fp8_e4m3"),
        (&["--kv-cache-dtype", "float16"], "bfloat16 or fp8_e4m3"),
        (&["--tp-size", "2", "--device", "cuda:0"], "needs 2 devices"),
        (&["--disable-cuda-graph", "--cuda-graph-max-bs", "2"], "contradict"),
        (&["--tp-size", "3"], "heads is 4"),
    ] {
        // A flag that is given twice counts the last time.
        let device = if flags.contains(&"--device") { &[][..] } else { &["--device", "cuda"] };
        let all = [&["serve", "--model-path", &model], device, &SMALL, flags].concat();
        let (code, said) = ends(card.over(plimsoll(&all), &[]));
        assert!(code == 2 && said.contains(why), "{flags:?}: {code} {said}");
    }
    for (flags, why) in [
        (&["--tp-size", "2"][..], "--device cuda"),
        (&["--dtype", "bfloat16"], "--precision"),
        (&["--strict-memory"], "--device cuda"),
        (&["--device", "gpu"], "host, cuda, cuda:N"),
    ] {
        let (code, said) = ends(plimsoll(&[&["serve", "--model-path", &model], flags].concat()));
        assert!(code == 2 && said.contains(why), "{flags:?}: {code} {said}");
    }
    // No driver; a driver without the library of matrix products.
    let serve = ["serve", "--model-path", &model, "--device", "cuda"];
    let mut bare = plimsoll(&serve);
    bare.env("LD_LIBRARY_PATH", &scratch.0);
    let (code, said) = ends(bare);
    assert!(code == 2 && said.contains("doctor --cuda"), "{code} {said}");
    let alone = Card { folder: without_libraries().unwrap(), ..Card::new(&scratch).unwrap() };
    let (code, said) = ends(alone.over(plimsoll(&[&serve[..], &SMALL].concat()), &[]));
    let named = said.contains("libcublasLt") && said.contains("doctor --cuda");
    assert!(code == 2 && named, "{code} {said}");
    alone.nothing_leaked();
}

#[test]
fn bench_and_chat_run_on_a_device_too() {
    let scratch = Scratch::new();
    let Some(card) = Card::new(&scratch) else { return };
    let model = model(&scratch);
    let small = &SMALL[..10];
    let load = ["--num-prompts", "5", "--input-len", "12", "--output-len", "6", "--format", "json"];
    let out = card.command("bench", &model, &[small, &load[..]].concat()).output().unwrap();
    let document: Value = serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&out.stderr)));
    assert_eq!((out.status.code(), &document["verdict"]), (Some(0), &json!("completed")));
    let precision = document["engine"]["precision"].as_str().unwrap();
    assert!(precision.contains("bfloat16"), "{precision}");
    card.nothing_leaked();
    let talk = ["--prompt", "ab", "--temperature", "0", "--max-tokens", "5"];
    let fp8 = ["--kv-cache-dtype", "fp8_e4m3", "--disable-cuda-graph"];
    let (code, said) = ends(card.command("chat", &model, &[small, &talk[..], &fp8].concat()));
    assert!(code == 0 && said.contains("[5 tokens"), "{code} {said}");
    card.nothing_leaked();
}
