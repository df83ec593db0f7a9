//! The front end over an engine that answers every request with one text, for clients to be tried on without
//! a model: `cargo run -p plimsoll-server --example scripted -- 8000`. It serves `org/tiny` until Ctrl-C.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "an example, with the helpers of the tests"
)]

#[path = "../tests/http/script.rs"]
#[allow(dead_code, reason = "tests use more of it")]
mod script;

use std::{sync::Arc, time::Duration};

use plimsoll_checkpoint::ChatTemplate;
use plimsoll_server::http::{Front, FrontOptions, serve};
use tokio::net::TcpListener;

const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";

fn main() {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok()).unwrap_or(8000_u16);
    let pace = Duration::from_millis(2);
    let (engine, _) = script::start(script::Script { pace, ..script::Script::default() });
    let template = ChatTemplate::new(TEMPLATE, String::new(), String::new()).unwrap();
    let (tokenizer, template) = (Arc::new(script::tokenizer()), Some(Arc::new(template)));
    let front = Front { engine, tokenizer, template, options: FrontOptions::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let signal = || async { drop(tokio::signal::ctrl_c().await) };
    let ended = runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        eprintln!("http://{}", listener.local_addr().unwrap());
        serve(listener, front, signal(), std::future::pending()).await
    });
    eprintln!("{ended:?}");
}
