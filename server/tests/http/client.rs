//! A client of plain sockets, and a server that goes with a test.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use plimsoll_checkpoint::{ChatTemplate, Today};
use plimsoll_server::http::{Drained, Front, FrontOptions, serve};
use serde_json::Value;
use tokio::{net::TcpListener, sync::oneshot};

use crate::script::{Script, Seen, start, tokenizer};

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}\
     {% if tools is defined %}T{{ tools | length }}{% endif %}\
     {% if add_generation_prompt %}<assistant>{% endif %}";

/// A front over a scripted engine.
pub(crate) fn front(script: Script, options: FrontOptions) -> (Front, Arc<Mutex<Seen>>) {
    let (engine, seen) = start(script);
    let template = ChatTemplate::new(TEMPLATE, String::new(), String::new()).unwrap();
    let today = Some(Today { year: 2026, month: 11, day: 30 });
    let options = FrontOptions { today, ..options };
    let (tokenizer, template) = (Arc::new(tokenizer()), Some(Arc::new(template)));
    (Front { engine, tokenizer, template, options }, seen)
}

/// A server that stops with the test.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Mutex<Seen>>,
    stop: Option<oneshot::Sender<()>>,
    at_once: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Drained>>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(Script::default(), FrontOptions::default())
    }

    pub(crate) fn with(script: Script, options: FrontOptions) -> Self {
        let (front, seen) = front(script, options);
        Self::of(front, seen)
    }

    pub(crate) fn of(front: Front, seen: Arc<Mutex<Seen>>) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let (at_once, ended) = oneshot::channel::<()>();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                let wait = |signal: oneshot::Receiver<()>| async move { drop(signal.await) };
                serve(listener, front, wait(stopped), wait(ended)).await.unwrap()
            })
        });
        let (stop, at_once, thread) = (Some(stop), Some(at_once), Some(thread));
        Self { address, seen, stop, at_once, thread }
    }

    /// The first signal.
    pub(crate) fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// The second one.
    pub(crate) fn end(&mut self) {
        self.at_once.take().unwrap().send(()).unwrap();
    }

    /// How it ended.
    pub(crate) fn join(&mut self) -> Drained {
        self.thread.take().unwrap().join().unwrap()
    }

    /// A whole exchange.
    pub(crate) fn call(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
        let mut open = Open::new(self.address, method, path, headers, body);
        let body = open.rest();
        Reply { status: open.status, headers: open.headers, body }
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.call("GET", path, "", b"")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.call("POST", path, "", body.to_string().as_bytes())
    }

    /// A stream that is read as it comes.
    pub(crate) fn open(&self, path: &str, body: &Value) -> Open {
        Open::new(self.address, "POST", path, "", body.to_string().as_bytes())
    }

    /// Waits until something is true of what the engine saw.
    pub(crate) fn until(&self, what: &str, is: impl Fn(&Seen) -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is(&self.seen.lock().unwrap()) {
            assert!(Instant::now() < end, "{what}: {:?}", self.seen.lock().unwrap());
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A response.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Status and `error` of its body, whose form is checked.
    pub(crate) fn error(&self) -> (u16, Value) {
        let mut page = self.json();
        let error = page["error"].take();
        assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
        assert!(error["code"].is_string() && error.get("param").is_some(), "{error}");
        (self.status, error)
    }

    /// Data of the events, the closing `[DONE]` checked and left out.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let mut events: Vec<&str> = self.body.split_terminator("\n\n").collect();
        assert_eq!(events.pop(), Some("data: [DONE]"));
        let data = events.into_iter().map(|event| event.strip_prefix("data: ").unwrap());
        data.map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

/// A response that is being read.
pub(crate) struct Open {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
    chunked: bool,
}

impl Open {
    pub(crate) fn new(
        to: SocketAddr,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> Self {
        Self::read(Self::send(to, method, path, headers, body))
    }

    /// Sends a request.
    pub(crate) fn send(
        to: SocketAddr,
        method: &str,
        path: &str,
        headers: &str,
        body: &[u8],
    ) -> TcpStream {
        let mut stream = TcpStream::connect(to).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        stream
    }

    /// Reads a response's head.
    pub(crate) fn read(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("{line:?}"));
        let status = status.parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let chunked = headers.iter().any(|(_, value)| value == "chunked");
        Self { status, headers, reader, chunked }
    }

    /// The next chunk; `None` at the end.
    pub(crate) fn chunk(&mut self) -> Option<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        let length = usize::from_str_radix(line.trim(), 16).ok()?;
        let mut data = vec![0; length + 2];
        self.reader.read_exact(&mut data).unwrap();
        data.truncate(length);
        (length > 0).then(|| String::from_utf8(data).unwrap())
    }

    /// What is left.
    pub(crate) fn rest(&mut self) -> String {
        let mut text = String::new();
        if self.chunked {
            while let Some(chunk) = self.chunk() {
                text.push_str(&chunk);
            }
        } else {
            self.reader.read_to_string(&mut text).unwrap();
        }
        text
    }
}
