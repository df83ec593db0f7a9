//! A small HTTP server for tests: a thread that answers one connection after the other.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// What a request gets.
pub(super) enum Answer {
    /// A page with its length.
    Page(String),
    /// A page in chunks of a few bytes.
    Chunks(String),
    /// A status without a body.
    Status(u16),
    /// A page that never ends.
    Endless,
    /// Bytes as they are.
    Raw(&'static [u8]),
    /// Nothing for a while, then nothing at all.
    Silence(Duration),
    /// Nothing, and nobody listens from now on.
    Gone,
}

/// A server that runs until it is gone or dropped.
pub(super) struct Fake {
    pub(super) port: u16,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    /// Answers `path` at its how-manieth request, from 1.
    pub(super) fn start(answer: impl Fn(&str, usize) -> Answer + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let kept = heads.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let Some(head) = head(&stream) else { continue };
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                let count = {
                    let mut heads = kept.lock().expect("no panic");
                    heads.push(head);
                    let same = |head: &&String| head.split(' ').nth(1) == Some(&path);
                    heads.iter().filter(same).count()
                };
                if !reply(stream, answer(&path, count)) {
                    return;
                }
            }
        });
        Self { port, heads }
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The heads of all requests so far.
    pub(super) fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("no panic").clone()
    }
}

fn head(mut stream: &TcpStream) -> Option<String> {
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        bytes.extend(byte);
    }
    String::from_utf8(bytes).ok()
}

/// Answers; `false` when the server is to go. What the other side does not take does not matter.
fn reply(mut stream: TcpStream, answer: Answer) -> bool {
    let mut send = |bytes: &[u8]| stream.write_all(bytes).is_ok();
    match answer {
        Answer::Page(body) => {
            let length = body.len();
            let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {length}");
            send(format!("{head}\r\n\r\n{body}").as_bytes());
        }
        Answer::Chunks(body) => {
            send(b"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n");
            for chunk in body.as_bytes().chunks(7) {
                send(format!("{:x}\r\n", chunk.len()).as_bytes());
                send(chunk);
                send(b"\r\n");
            }
            send(b"0\r\n\r\n");
        }
        Answer::Status(status) => {
            let head = format!("HTTP/1.1 {status} No\r\nconnection: close\r\ncontent-length: 0");
            send(format!("{head}\r\n\r\n").as_bytes());
        }
        Answer::Endless => {
            send(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n");
            let line = "sglang:num_running_reqs 1\n".repeat(4096);
            while send(line.as_bytes()) {}
        }
        Answer::Raw(bytes) => {
            send(bytes);
        }
        Answer::Silence(time) => thread::sleep(time),
        Answer::Gone => return false,
    }
    true
}
