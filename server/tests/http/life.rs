//! Clients that leave, servers that stop, and many at once.

use std::{
    io::Write,
    net::{Shutdown, TcpStream},
    time::Duration,
};

use plimsoll_server::http::{Drained, FrontOptions};
use serde_json::{Value, json};

use crate::{
    client::{Open, Server},
    script::Script,
};

const PATH: &str = "/v1/completions";

fn slow() -> Script {
    Script { pace: Duration::from_millis(20), ..Script::default() }
}

fn long(stream: bool) -> Value {
    json!({"prompt": "a", "stream": stream, "n": 2, "ignore_eos": true, "max_tokens": 1_000_000})
}

#[test]
fn a_client_that_leaves_gives_its_requests_up() {
    let server = Server::with(slow(), FrontOptions::default());
    let mut open = server.open(PATH, &long(true));
    assert_eq!(open.status, 200);
    assert!(open.chunk().unwrap().starts_with("data: {"));
    drop(open);
    server.until("a stream is given up", |seen| seen.aborted.len() == 2);
    // One that waits for the whole answer.
    let mut stream = TcpStream::connect(server.address).unwrap();
    let body = long(false).to_string();
    let head = format!("POST {PATH} HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    server.until("it runs", |seen| seen.running == 2);
    stream.shutdown(Shutdown::Both).unwrap();
    drop(stream);
    server.until("a whole answer is given up", |seen| seen.aborted.len() == 4);
    assert!(
        server
            .get("/metrics")
            .body
            .contains("sglang:num_aborted_requests_total{model_name=\"org/tiny\"} 4\n")
    );
}

#[test]
fn a_stop_lets_streams_end() {
    let mut server = Server::with(slow(), FrontOptions::default());
    let body = json!({"prompt": "a", "stream": true, "ignore_eos": true, "max_tokens": 60});
    let mut open = server.open(PATH, &body);
    assert_eq!(open.status, 200);
    server.stop();
    server.until("the engine is told", |seen| seen.drained);
    let ready = server.get("/ready");
    assert_eq!((ready.status, &ready.json()["phase"]), (503, &json!("draining")));
    assert_eq!(server.get("/health").status, 200);
    let refused = server.post(PATH, &body);
    assert_eq!(refused.header("retry-after"), Some("10"));
    assert_eq!(refused.error().1["code"], "draining");
    let text = open.rest();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(server.join(), Drained::All);
    assert!(TcpStream::connect(server.address).is_err());
}

#[test]
fn an_idle_server_stops_though_a_connection_is_open() {
    let mut server = Server::start();
    let mut idle = TcpStream::connect(server.address).unwrap();
    idle.write_all(b"GET /health HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
    assert_eq!(Open::read(idle.try_clone().unwrap()).status, 200);
    server.stop();
    assert_eq!(server.join(), Drained::All);
}

#[test]
fn a_drain_has_an_end() {
    let options =
        FrontOptions { drain_timeout: Duration::from_millis(50), ..FrontOptions::default() };
    let mut server = Server::with(slow(), options);
    let open = server.open(PATH, &long(true));
    server.stop();
    assert_eq!(server.join(), Drained::Cut { open: 1 });
    drop(open);
    // And at once, by a second signal.
    let mut server = Server::with(slow(), FrontOptions::default());
    let open = server.open(PATH, &long(true));
    server.stop();
    server.end();
    assert_eq!(server.join(), Drained::Cut { open: 1 });
    drop(open);
    server.until("what ran is given up", |seen| seen.aborted.len() == 2);
}

#[test]
fn silence_has_comments() {
    let script = Script { pace: Duration::from_millis(300), ..Script::default() };
    let options = FrontOptions { keep_alive: Duration::from_millis(50), ..FrontOptions::default() };
    let server = Server::with(script, options);
    let body = json!({"prompt": "a", "stream": true, "max_tokens": 2});
    let text = server.open(PATH, &body).rest();
    assert!(text.contains("\n\n: waiting\n\n"), "{text}");
    assert!(text.ends_with("data: [DONE]\n\n"));
}

#[test]
fn as_many_requests_as_are_allowed() {
    let options = FrontOptions { max_streams: 1, ..FrontOptions::default() };
    let server = Server::with(slow(), options);
    let open = server.open(PATH, &long(true));
    let (status, error) = server.post(PATH, &json!({"prompt": "a"})).error();
    assert_eq!((status, &error["code"]), (429, &json!("too_many_requests")));
    assert_eq!(server.get("/ready").status, 200);
    drop(open);
    server.until("it is given up", |seen| seen.aborted.len() == 2);
    // The place is free once the connection is closed here too.
    while server.post(PATH, &json!({"prompt": "a"})).status == 429 {}
}

#[test]
fn connections_above_the_limit_wait() {
    let options = FrontOptions { max_connections: 1, ..FrontOptions::default() };
    let server = Server::with(slow(), options);
    let mut open = server.open(PATH, &json!({"prompt": "a", "stream": true, "max_tokens": 5}));
    let address = server.address;
    let second = std::thread::spawn(move || Open::new(address, "GET", "/health", "", b"").status);
    assert!(open.rest().ends_with("data: [DONE]\n\n"));
    drop(open);
    assert_eq!(second.join().unwrap(), 200);
}

/// Open file descriptors that this process may have.
fn descriptors() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    line.and_then(|line| line.split_whitespace().nth(3)).and_then(|n| n.parse().ok()).unwrap_or(256)
}

#[test]
fn a_thousand_streams_are_open_at_once() {
    // Both ends of every connection are this process's; beside the other tests.
    let count = 1000.min(descriptors().saturating_sub(200) / 2);
    assert!(count > 0);
    let script = Script { pace: Duration::from_millis(500), ..Script::default() };
    let server = Server::with(script, FrontOptions::default());
    // None ends before the last is open. The engine makes no more than a debug build can write.
    let body = json!({"prompt": "a", "stream": true, "ignore_eos": true, "max_tokens": 1_000_000});
    let body = body.to_string();
    let send = |_| Open::send(server.address, "POST", PATH, "", body.as_bytes());
    let sent: Vec<TcpStream> = (0..count).map(send).collect();
    let mut open: Vec<Open> = sent.into_iter().map(Open::read).collect();
    server.until("all run", |seen| seen.running == count);
    for one in &mut open {
        assert_eq!(one.status, 200);
        let mut text = String::new();
        while !text.contains("\"text\":\"H\"") {
            text.push_str(&one.chunk().unwrap());
        }
    }
    assert_eq!(server.get("/ready").status, 200);
    let page = server.get("/metrics").body;
    let line = format!("plimsoll:open_requests{{model_name=\"org/tiny\"}} {count}");
    assert!(page.lines().any(|found| found == line), "{line}");
    drop(open);
    server.until("all are given up", |seen| seen.aborted.len() == count);
}
