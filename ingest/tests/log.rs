//! Logs to facts: whole logs against snapshots, and the same log in every dress.

use std::io::{BufReader, Read};

use plimsoll_ingest::log::{
    Amount, Event, Input, Kind, Log, Rank, Redact, Server, read, read_text,
};

const LOGS: [(&str, &str); 4] = [
    ("sglang_0_4_6", include_str!("logs/sglang-0.4.6-prefill.log")),
    ("sglang_0_5_2", include_str!("logs/sglang-0.5.2-restart.log")),
    ("sglang_0_5_8", include_str!("logs/sglang-0.5.8-weights.log")),
    ("sglang_0_5_23", include_str!("logs/sglang-0.5.23-capture.log")),
];

fn read_bytes(bytes: &[u8]) -> Log {
    // A small buffer: lines cross its ends.
    let mut text = BufReader::with_capacity(61, bytes);
    read(&mut [Input { name: "log", text: &mut text }], Redact::Yes).unwrap_or_default()
}

/// What a log says, in words that fit a line each.
fn facts(log: &Log) -> String {
    let mut text = format!(
        "{:?} {:?} ({} to {}), {} starts, {} lines, ranks [{}]\ncommand {:?}\ndevices {:?}\nodd {:?}\n",
        log.server,
        log.version,
        log.releases.since.map_or("…".to_owned(), |v| v.to_string()),
        log.releases.before.map_or("…".to_owned(), |v| format!("before {v}")),
        log.starts,
        log.lines,
        log.ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        log.command,
        log.devices,
        log.oddities,
    );
    for (name, value) in log.args.iter().filter(|(_, value)| !matches!(&***value, "None" | "False"))
    {
        text += &format!("  {name} = {value}\n");
    }
    for event in &log.events {
        text += &format!(
            "{}: start {} [{}] {:?}\n",
            event.line, event.start, event.rank, event.seconds
        );
        text += &format!("    {}\n    {:?}\n", event.text, event.kind);
    }
    for ((start, rank), activity) in &log.activity {
        text += &format!("activity of start {start} [{rank}]: {activity:?}\n");
    }
    text
}

/// What does not depend on the dress: kinds, ranks and starts.
fn said(log: &Log) -> Vec<String> {
    let say = |event: &Event| format!("{} [{}] {:?}", event.start, event.rank, event.kind);
    let mut said: Vec<String> = log.events.iter().map(say).collect();
    said.extend(log.activity.iter().map(|((start, rank), activity)| {
        format!("{start} [{rank}] {} {}", activity.running.count, activity.answered)
    }));
    said.push(format!("{:?} {:?}", log.server, log.version.as_ref().map(|(version, ..)| version)));
    said
}

#[test]
fn whole_logs() {
    for (name, text) in LOGS {
        insta::assert_snapshot!(name, facts(&read_text(text)));
    }
}

/// A log as another tool prints it.
type Dress = fn(&str) -> String;

fn each_line(text: &str, dress: impl Fn(usize, &str) -> String) -> String {
    text.lines().enumerate().map(|(at, line)| dress(at, line) + "\n").collect()
}

const DRESSES: [(&str, Dress); 14] = [
    ("windows", |text| text.replace('\n', "\r\n")),
    ("docker stamps", |text| {
        each_line(text, |at, line| format!("2026-10-02T21:04:05.{at:09}Z {line}"))
    }),
    ("compose", |text| each_line(text, |_, line| format!("sglang-1  | {line}"))),
    ("cri", |text| {
        each_line(text, |at, line| format!("2026-10-02T21:04:05.{at:09}+00:00 stdout F {line}"))
    }),
    ("kubectl prefix", |text| each_line(text, |_, line| format!("[pod/llm-7d9f/server] {line}"))),
    ("journald", |text| {
        each_line(text, |_, line| format!("Oct 02 21:04:05 node7 serve.sh[411]: {line}"))
    }),
    ("syslog", |text| {
        each_line(text, |_, line| format!("Oct  2 21:04:05 node7 docker/serve[9]: {line}"))
    }),
    ("json file", |text| {
        each_line(text, |at, line| {
            let line = serde_json::Value::from(format!("{line}\n"));
            format!(
                "{{\"log\":{line},\"stream\":\"stderr\",\"time\":\"2026-10-02T21:04:05.{at:09}Z\"}}"
            )
        })
    }),
    ("json messages", |text| {
        each_line(text, |_, line| {
            format!("{{\"level\": \"info\", \"message\": {}}}", serde_json::Value::from(line))
        })
    }),
    ("quoted", |text| each_line(text, |_, line| format!("> {line}"))),
    ("fenced", |text| format!("```shell\n{text}```\n")),
    ("coloured", |text| {
        each_line(text, |_, line| format!("\u{1b}[32m{line}\u{1b}[0m\u{1b}]0;title\u{7}"))
    }),
    ("grep", |text| each_line(text, |at, line| format!("server.log:{}:{line}", at + 1))),
    ("srun", |text| {
        each_line(
            text,
            |_, line| if line.starts_with('[') { format!("0: {line}") } else { line.to_owned() },
        )
    }),
];

#[test]
fn every_dress_says_the_same() {
    for (log, text) in LOGS {
        // A progress bar's returns are no line ends to tools that prefix lines.
        let text = &text.replace('\r', "");
        let plain = said(&read_text(text));
        for (name, dress) in DRESSES {
            let dressed = dress(text);
            assert_eq!(said(&read_bytes(dressed.as_bytes())), plain, "{log} {name}");
        }
    }
}

#[test]
fn encodings_and_compression_say_the_same() {
    for (log, text) in LOGS {
        let plain = read_text(text);
        let wide = |little: bool| {
            let mut bytes = if little { vec![0xff, 0xfe] } else { vec![0xfe, 0xff] };
            for unit in text.encode_utf16() {
                bytes.extend(if little { unit.to_le_bytes() } else { unit.to_be_bytes() });
            }
            bytes
        };
        let marked = [&[0xef, 0xbb, 0xbf], text.as_bytes()].concat();
        for bytes in [wide(true), wide(false), marked, gzip(text.as_bytes())] {
            let read = read_bytes(&bytes);
            assert_eq!(said(&read), said(&plain), "{log}");
            assert_eq!(read.lines, plain.lines, "{log}");
        }
        let (first, second) = text.split_at(text.len() / 2);
        let members = [gzip(first.as_bytes()), gzip(second.as_bytes())].concat();
        assert_eq!(said(&read_bytes(&members)), said(&plain), "{log}");
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    let level = flate2::Compression::fast();
    // Writing to memory does not fail; a test of what was not written would.
    let _ = flate2::read::GzEncoder::new(bytes, level).read_to_end(&mut packed);
    packed
}

#[test]
fn a_compressed_log_cut_off_gives_what_is_there() {
    let text = LOGS[1].1.repeat(40);
    let whole = gzip(text.as_bytes());
    let log = read_bytes(&whole[..whole.len() / 2]);
    assert!(log.events.len() > 20 && log.lines < read_text(&text).lines, "{}", log.lines);
    assert_eq!(log.oddities, ["log: the compressed file ends early or is damaged"]);
    assert!(read_bytes(&whole[..2]).events.is_empty());
    assert!(read_bytes(&[0x1f, 0x8b, 8, 9]).oddities[0].contains("damaged"));
}

#[test]
fn files_are_one_log_and_lines_are_counted_in_each() {
    let (first, second) = LOGS[1].1.split_at(LOGS[1].1.find("[2025-10-05 08:00:22").unwrap());
    let (mut a, mut b) = (first.as_bytes(), second.as_bytes());
    let mut inputs = [Input { name: "a", text: &mut a }, Input { name: "b", text: &mut b }];
    let log = read(&mut inputs, Redact::Yes).unwrap();
    assert_eq!(said(&log), said(&read_text(LOGS[1].1)));
    let event = log.events.iter().find(|event| event.file == 1).unwrap();
    assert_eq!(event.line, 1);
    assert_eq!(log.starts, 2);
}

#[test]
fn two_nodes_of_one_server_are_one_start() {
    let node = |rank: u32| {
        format!(
            "[2026-01-01 00:00:00] server_args=ServerArgs(model_path='a/b', nnodes=2, node_rank={rank})\n\
             [2026-01-01 00:00:09 TP{rank}] Load weight begin. avail mem=79.1{rank} GB\n\
             [2026-01-01 00:00:19 TP{rank}] The server is fired up and ready to roll!\n"
        )
    };
    let (a, b) = (node(0), node(1));
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    let mut inputs = [Input { name: "a", text: &mut a }, Input { name: "b", text: &mut b }];
    let log = read(&mut inputs, Redact::Yes).unwrap();
    assert_eq!(log.starts, 1);
    assert!(log.events.iter().all(|event| event.start == 0));
}

#[test]
fn an_endless_line_is_cut_and_a_hole_of_nuls_skipped() {
    let mut text = vec![0_u8; 200_000];
    text.extend(b"[2026-01-01 00:00:00 TP0] Load weight begin. avail mem=79.10 GB\n");
    text.extend(b"Load weight begin. avail mem=79.00 GB ");
    text.extend(std::iter::repeat_n(b'x', 300_000));
    text.extend(b"\nLoad weight begin. avail mem=78.00 GB");
    let log = read_bytes(&text);
    assert_eq!(log.events.len(), 3);
    assert_eq!(log.lines, 3);
    assert!(log.oddities[0].starts_with("log:2: a line of 300038 bytes"), "{:?}", log.oddities);
}

#[test]
fn the_first_and_the_last_events_are_kept() {
    let line =
        "[2026-01-01 00:00:00 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1\n";
    let log = read_text(&line.repeat(Log::EVENTS + 500));
    assert_eq!(log.events.len(), Log::EVENTS);
    assert_eq!(log.events_left_out, 500);
    assert_eq!(log.events[Log::EVENTS / 2].line, (Log::EVENTS / 2 + 501) as u64);
}

#[test]
fn nothing_that_identifies_is_kept() {
    let text = "\
[2026-01-01 00:00:00] server_args=ServerArgs(model_path='/home/jo/models/Pear-8B', host='box7.example', \
api_key='hunter2', dist_init_addr='10.2.3.4:5000', admin_api_key='x', log_file='/srv/jo/a.log')
Jan 01 00:00:01 box7 serve[12]: [2026-01-01 00:00:01 TP0] Load weight begin. avail mem=79.10 GB
docker run -e HF_TOKEN=hf_secretsecretsecret img python3 -m sglang.launch_server --api-key hunter2 --host box7.example
Traceback (most recent call last):
  File \"/home/jo/serve/run.py\", line 3, in main
    connect(\"https://jo:hunter2@box7.example/x\")
ConnectionError: no route to 10.9.8.7 for jo@box7.example in /home/jo/serve
OSError: [Errno 28] No space left on device: '/home/jo/tmp/x.bin'
";
    let mut bytes = text.as_bytes();
    let log = read(&mut [Input { name: "log", text: &mut bytes }], Redact::Yes).unwrap();
    let kept = format!("{log:?}");
    for word in
        ["hunter2", "box7", "jo@", "/jo", "jo/", "10.2.3.4", "10.9.8.7", "hf_secret", "/home"]
    {
        assert!(!kept.contains(word), "{word} in {kept}");
    }
    for word in ["Pear-8B", "run.py", "<address>", "79.10", "x.bin"] {
        assert!(kept.contains(word), "no {word} in {kept}");
    }
    let mut bytes = text.as_bytes();
    let log = read(&mut [Input { name: "log", text: &mut bytes }], Redact::No).unwrap();
    assert!(format!("{log:?}").contains("/home/jo/models/Pear-8B"));
}

#[test]
fn an_allocators_text_over_several_lines_is_one_event() {
    let text = "\
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB.
GPU 2 has a total capacity of 47.40 GiB of which 31.06 MiB is free.

Of the allocated memory 44.10 GiB is allocated by PyTorch, and 210.00 MiB is reserved by PyTorch but unallocated.
[2026-01-01 00:00:09 TP0] Load weight begin. avail mem=47.00 GB
";
    let log = read_text(text);
    assert_eq!(log.events.len(), 2);
    let Kind::TorchOom(oom) = &log.events[0].kind else { panic!("{:?}", log.events) };
    assert_eq!(oom.capacity, Some(Amount::gib(47.40, 2)));
    assert_eq!(oom.allocated, Some(Amount::gib(44.10, 2)));
    assert!(oom.reserved_unallocated.is_some());
}

#[test]
fn the_wording_tells_the_release() {
    let since = |text: &str, minor, patch| read_text(text).releases.since(minor, patch);
    let new = "Memory baseline taken. mem usage=1.10 GB";
    assert_eq!(since(new, 5, 14), Some(true));
    assert_eq!(since(new, 5, 22), None);
    let old = "Init torch distributed ends. mem usage=1.10 GB";
    assert_eq!(since(old, 5, 14), Some(false));
    assert_eq!(since(old, 5, 2), None);
    // A shortened line looks old; the newer wording counts.
    assert_eq!(since(&format!("{old}\n{new}"), 5, 14), Some(true));
    assert_eq!(since("Load weight begin. avail mem=3.00 GB", 5, 14), None);
    // By an argument: 0.5.5 has it, 0.5.2 has not.
    assert_eq!(since("ServerArgs(abort_on_priority_when_disabled=False)", 5, 3), Some(true));
}

#[test]
fn interleaved_tracebacks_of_workers_keep_their_frames() {
    let head = |rank: u32| {
        format!("(VllmWorker rank={rank} pid=7{rank}) ERROR 05-06 10:00:00 [executor.py:470] ")
    };
    let mut text = String::new();
    for part in 0..4 {
        for rank in [1, 0] {
            text += &head(rank);
            text += &match part {
                0 => "Traceback (most recent call last):".to_owned(),
                1 => format!(
                    "  File \"/opt/lib/site-packages/vllm/v1/worker/f{rank}.py\", line 1{rank}, in step"
                ),
                2 => format!("    self.run({rank})"),
                _ => format!(
                    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}.00 MiB. GPU {rank}",
                    rank + 2
                ),
            };
            text.push('\n');
        }
    }
    let log = read_text(&text);
    assert_eq!(log.events.len(), 2);
    for event in &log.events {
        let rank = event.rank.worker.unwrap();
        let Kind::TorchOom(oom) = &event.kind else { panic!("{event:?}") };
        assert_eq!(oom.device, Some(rank));
        assert_eq!(&*oom.frames[0].file, format!("vllm/v1/worker/f{rank}.py"));
        assert_eq!(oom.frames[0].code.as_deref(), Some(&*format!("self.run({rank})")));
    }
    assert_eq!(log.server, Some(Server::Vllm));
}

#[test]
fn workers_without_numbers_are_told_apart_by_their_processes() {
    let text = "\
(RayWorkerWrapper pid=31, ip=10.0.0.1) INFO 05-06 10:00:00 [gpu_worker.py:9] Available KV cache memory: 3.00 GiB
(RayWorkerWrapper pid=77, ip=10.0.0.2) INFO 05-06 10:00:00 [gpu_worker.py:9] Available KV cache memory: 2.00 GiB
(RayWorkerWrapper pid=31, ip=10.0.0.1) INFO 05-06 10:00:02 [gpu_worker.py:9] Available KV cache memory: 3.50 GiB
";
    let ranks: Vec<_> = read_text(text).events.iter().map(|event| event.rank.worker).collect();
    assert_eq!(ranks, [Some(0), Some(1), Some(0)]);
}

#[test]
fn a_serving_server_is_counted() {
    let log = read_text(LOGS[0].1);
    let of_rank = &log.activity[&(0, Rank::tp(0))];
    assert_eq!((of_rank.running.count, of_rank.held_tokens.last), (5, 11_200.0));
    assert_eq!((of_rank.prefill_tokens_sum, of_rank.cached_tokens_sum), (2055, 512));
    assert_eq!((of_rank.usage.most, of_rank.usage.most_line), (0.31, 25));
    assert_eq!(of_rank.lines, Some((17, 25)));
    let of_main = &log.activity[&(0, Rank::NONE)];
    assert_eq!((of_main.answered, of_main.probes), (3, 1));
    let retracted = &read_text(LOGS[1].1).activity[&(0, Rank::tp(0))];
    assert_eq!((retracted.retractions, retracted.retracted_requests), (2, 3));
}
