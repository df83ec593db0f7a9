//! Starts made up from true bytes, printed as the engines print them.
#![allow(dead_code, reason = "each test crate uses its part")]

use plimsoll_diagnosis::Case;
use plimsoll_ingest::launch::{Context, LaunchInput, parse_command};
use plimsoll_ingest::log::{Amount, Event, Kind, Log, Rank, Server, Sglang, Vllm};

/// Bytes of one GiB.
pub(crate) const GIB: i64 = 1 << 30;

/// As a log prints it: GiB with two decimals.
pub(crate) fn printed(bytes: i64) -> Amount {
    let hundredths = (bytes as f64 / GIB as f64 * 100.0).round();
    Amount::gib(hundredths / 100.0, 2)
}

/// A log of these events, in order.
pub(crate) fn log(server: Server, events: Vec<(Rank, Kind)>) -> Log {
    let mut ranks: Vec<Rank> = events.iter().map(|(rank, _)| *rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let event = |(at, (rank, kind)): (usize, (Rank, Kind))| Event {
        file: 0,
        line: at as u64 + 1,
        rank,
        start: 0,
        seconds: None,
        text: format!("line {}", at + 1).into(),
        kind,
    };
    Log {
        server: Some(server),
        lines: events.len() as u64,
        events: events.into_iter().enumerate().map(event).collect(),
        ranks,
        starts: 1,
        ..Log::default()
    }
}

/// A case of SGLang's lines.
pub(crate) fn sglang(command: Option<&str>, lines: Vec<(Rank, Sglang)>) -> Case {
    let events = lines.into_iter().map(|(rank, line)| (rank, Kind::Sglang(line))).collect();
    case(command, log(Server::Sglang, events))
}

/// A case of vLLM's lines.
pub(crate) fn vllm(command: Option<&str>, lines: Vec<(Rank, Vllm)>) -> Case {
    let events = lines.into_iter().map(|(rank, line)| (rank, Kind::Vllm(line))).collect();
    case(command, log(Server::Vllm, events))
}

/// A case of a log and the command beside it.
pub(crate) fn case(command: Option<&str>, log: Log) -> Case {
    let launch =
        command.map(|text| parse_command(LaunchInput::Text(text), &Context::default()).unwrap());
    Case { log, launch, ..Case::default() }
}

/// A true start of SGLang on one rank, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Truth {
    pub(crate) before: i64,
    pub(crate) weights: i64,
    pub(crate) cell: i64,
    /// Thousandths.
    pub(crate) fraction: i64,
    pub(crate) page: i64,
    pub(crate) running: i64,
    pub(crate) context: i64,
    pub(crate) extra: i64,
    pub(crate) graphs: i64,
}

impl Truth {
    pub(crate) fn f(&self) -> f64 {
        self.fraction as f64 / 1000.0
    }

    pub(crate) fn after(&self) -> i64 {
        self.before - self.weights
    }

    /// The engine's own rule.
    pub(crate) fn tokens_at(&self, f: f64) -> i64 {
        let budget = self.after() as f64 - self.before as f64 * (1.0 - f);
        (budget / self.cell as f64).floor() as i64 / self.page * self.page
    }

    pub(crate) fn tokens(&self) -> i64 {
        self.tokens_at(self.f())
    }

    pub(crate) fn pool_at(&self, f: f64) -> i64 {
        (self.tokens_at(f) + self.page) * self.cell
    }

    pub(crate) fn table(&self) -> i64 {
        (self.running + 1) * (self.context + 4) * 4
    }

    pub(crate) fn after_pools(&self) -> i64 {
        self.after() - self.pool_at(self.f()) - self.table() - self.extra
    }

    pub(crate) fn left(&self) -> i64 {
        self.after_pools() - self.graphs
    }

    /// Free at the end with another fraction: everything else stays.
    pub(crate) fn left_at(&self, f: f64) -> i64 {
        self.left() + self.pool_at(self.f()) - self.pool_at(f)
    }

    /// Its lines.
    pub(crate) fn lines(&self) -> Vec<Sglang> {
        let half = self.pool_at(self.f()) / 2;
        vec![
            Sglang::LoadBegin { avail: printed(self.before) },
            Sglang::LoadEnd {
                model_class: None,
                form: None,
                avail: Some(printed(self.after())),
                usage: Some(printed(self.weights)),
                draft: None,
            },
            Sglang::KvAllocated {
                label: None,
                tokens: Some(self.tokens() as u64),
                k: Some(printed(half)),
                v: Some(printed(self.pool_at(self.f()) - half)),
                dtype: None,
            },
            Sglang::PoolEnd { avail: printed(self.after_pools()) },
            Sglang::CaptureBegin {
                what: "cuda graph".into(),
                avail: Some(printed(self.after_pools())),
            },
            Sglang::CaptureEnd {
                what: "cuda graph".into(),
                usage: Some(printed(self.graphs)),
                avail: Some(printed(self.left())),
            },
            Sglang::Summary {
                max_total_num_tokens: self.tokens() as u64,
                chunked_prefill_size: Some(8192),
                max_prefill_tokens: Some(16384),
                max_running_requests: Some(self.running as u64),
                context_len: Some(self.context as u64),
                available_gpu_mem: Some(printed(self.left())),
            },
        ]
    }
}
