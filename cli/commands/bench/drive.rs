//! The load in real time: what is due is sent, and what is heard of it is measured, all from the client's side.

use plimsoll_core::{
    engine::{
        metrics::{Metrics, MetricsReport, Slo},
        serving::{Arrival, Clients, PassSeen, Watcher},
    },
    sched::{Batch, Decision, EosRule, Finish, Mode, NewRequest, RequestId, Row, Usage},
    units::{Bytes, Nanos},
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};
use tokio::{
    sync::mpsc::{UnboundedSender, unbounded_channel},
    task::yield_now,
    time::timeout,
};

/// How often an interruption is looked for.
const LOOK: Duration = Duration::from_millis(50);

/// Something happened to a request.
#[derive(Debug)]
pub struct Heard {
    /// To which.
    pub request: RequestId,
    /// When it was heard.
    pub at: Instant,
    /// What.
    pub what: What,
}

/// What is heard of a request.
#[derive(Debug)]
pub enum What {
    /// A token; its id where it is told.
    Token(Option<u32>),
    /// The whole answer is there.
    Ended {
        /// Its tokens; `None`: as many as were heard.
        outputs: Option<u64>,
        /// Tokens of the prompt, as the server counts them.
        prompt: Option<u64>,
        /// Of them, found in its cache.
        cached: Option<u64>,
    },
    /// It was turned away.
    Refused(Trouble),
    /// It broke off.
    Broken(Trouble),
    /// The server is gone, and why.
    Lost(String),
}

/// Why a request has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trouble {
    /// Stable word: requests of one reason are counted together.
    pub reason: String,
    /// The server's own words.
    pub message: String,
}

/// Where what is heard goes.
pub type Voice = UnboundedSender<Heard>;

/// Who is under load.
pub trait Target {
    /// Sends a request; all that is heard of it comes through `voice`.
    fn send(&mut self, arrival: &Arrival, voice: &Voice);

    /// A request made this token.
    fn made(&mut self, request: RequestId, token: u32);
}

/// How a load ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Every request was sent and is over.
    Whole,
    /// The user asked for the end.
    Interrupted,
    /// The server is gone.
    Lost(String),
}

/// Requests without an answer, of one reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failed {
    /// How many.
    pub count: u64,
    /// What was said to the first.
    pub first: String,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Driven {
    /// How it ended.
    pub ending: Ending,
    /// The client's metrics. Only what a client can know means something.
    pub metrics: MetricsReport,
    /// Whether the server told what its cache had.
    pub cache_told: bool,
    /// From the first moment to the last.
    pub wall: Nanos,
    /// By reason.
    pub failures: BTreeMap<String, Failed>,
    /// Tokens of the prompts of answered requests as they were meant, and as the server counted them.
    pub prompts: (u64, Option<u64>),
}

/// Tokens that an answer is to have: as many as the workload says that the model makes, within its limit.
pub fn answer_tokens(request: &NewRequest) -> u64 {
    let limit = request.max_new_tokens.unwrap_or(request.output_len);
    let made = match request.eos {
        EosRule::Ignored => limit,
        EosRule::Ends => limit.min(request.output_len),
    };
    made.max(1)
}

/// Sends everything that `clients` send, when it is due, until all of it is over or `stop` says so.
pub async fn drive(
    clients: &mut dyn Clients,
    target: &mut dyn Target,
    stop: &dyn Fn() -> bool,
) -> Driven {
    let (voice, mut ears) = unbounded_channel();
    let mut driver = Driver::new(clients, target);
    let ending = loop {
        while driver.send(&voice) {
            // Answers are heard meanwhile.
            yield_now().await;
        }
        if let Some(why) = driver.lost.take() {
            break Ending::Lost(why);
        }
        if stop() {
            break Ending::Interrupted;
        }
        if driver.is_over() {
            break Ending::Whole;
        }
        if let Ok(Some(heard)) = timeout(driver.patience(), ears.recv()).await {
            driver.hear(heard);
        }
        while let Ok(heard) = ears.try_recv() {
            driver.hear(heard);
        }
    };
    driver.end(ending)
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Open {
    prompt: u64,
    outputs: u64,
}

struct Driver<'a> {
    clients: &'a mut dyn Clients,
    target: &'a mut dyn Target,
    begun: Instant,
    metrics: Metrics,
    open: BTreeMap<RequestId, Open>,
    /// A token is told to the metrics as a pass of one request.
    pass: Batch,
    passes: u64,
    failures: BTreeMap<String, Failed>,
    cache_told: bool,
    meant: u64,
    counted: Option<u64>,
    lost: Option<String>,
}

impl<'a> Driver<'a> {
    fn new(clients: &'a mut dyn Clients, target: &'a mut dyn Target) -> Self {
        Self {
            clients,
            target,
            begun: Instant::now(),
            metrics: Metrics::new(1, Slo::default()),
            open: BTreeMap::new(),
            pass: Batch { mode: Mode::Decode, rows: Vec::new() },
            passes: 0,
            failures: BTreeMap::new(),
            cache_told: false,
            meant: 0,
            counted: None,
            lost: None,
        }
    }

    fn since(&self, at: Instant) -> Nanos {
        let passed = at.saturating_duration_since(self.begun).as_nanos();
        Nanos(u64::try_from(passed).unwrap_or(u64::MAX))
    }

    /// Sends the next request that is due; whether there was one.
    fn send(&mut self, voice: &Voice) -> bool {
        let Some(arrival) = self.clients.take(self.since(Instant::now())) else { return false };
        self.metrics.arrived(&arrival);
        let request = &arrival.request;
        self.open.insert(request.id, Open { prompt: request.prompt.len(), outputs: 0 });
        self.target.send(&arrival, voice);
        true
    }

    fn is_over(&self) -> bool {
        self.open.is_empty() && (self.clients.is_done() || self.clients.next_at().is_none())
    }

    /// How long there is nothing to do but to listen.
    fn patience(&self) -> Duration {
        let now = self.since(Instant::now());
        let due = self.clients.next_at().map(|at| Duration::from_nanos(at.0.saturating_sub(now.0)));
        due.map_or(LOOK, |due| due.min(LOOK))
    }

    fn hear(&mut self, Heard { request, at, what }: Heard) {
        let at = self.since(at);
        if let What::Lost(why) = what {
            self.lost.get_or_insert(why);
            return;
        }
        let Some(open) = self.open.get_mut(&request) else { return };
        match what {
            What::Token(token) => {
                open.outputs += 1;
                self.token(request, at);
                if let Some(token) = token {
                    self.target.made(request, token);
                }
            }
            What::Ended { outputs, prompt, cached } => {
                let Open { prompt: meant, outputs: heard } = *open;
                self.meant += meant;
                if let Some(prompt) = prompt {
                    *self.counted.get_or_insert(0) += prompt;
                }
                if let Some(prefix) = cached {
                    self.cache_told = true;
                    let (extend, chunked) = (meant.saturating_sub(prefix), false);
                    let admitted = Decision::Admitted { request, prefix, extend, chunked };
                    self.metrics.decided(&admitted, at);
                }
                self.over(request, Finish::Length, outputs.unwrap_or(heard), at);
            }
            What::Refused(trouble) => {
                self.failed(trouble);
                self.open.remove(&request);
                self.metrics.decided(&Decision::Refused { request, code: "refused" }, at);
                self.clients.finished(request, Finish::Abort, 0, at);
            }
            What::Broken(trouble) => {
                let outputs = open.outputs;
                self.failed(trouble);
                self.over(request, Finish::Abort, outputs, at);
            }
            What::Lost(_) => {}
        }
    }

    fn token(&mut self, request: RequestId, at: Nanos) {
        self.pass.rows.clear();
        self.pass.rows.push(Row { request, extend: 0, prefix: 0, more_follows: false });
        let pass = PassSeen {
            step: self.passes,
            batch: &self.pass,
            at,
            elapsed: Nanos(0),
            usage: Usage::default(),
            beside: 0,
            free: Bytes::ZERO,
        };
        self.metrics.passed(&pass);
        self.passes += 1;
    }

    fn over(&mut self, request: RequestId, finish: Finish, outputs: u64, at: Nanos) {
        self.open.remove(&request);
        self.metrics.decided(&Decision::Finished { request, outputs, finish }, at);
        self.clients.finished(request, finish, outputs, at);
    }

    fn failed(&mut self, trouble: Trouble) {
        let failed = self.failures.entry(trouble.reason);
        failed.or_insert(Failed { count: 0, first: trouble.message }).count += 1;
    }

    fn end(self, ending: Ending) -> Driven {
        let wall = self.since(Instant::now());
        Driven {
            ending,
            metrics: self.metrics.report(wall),
            cache_told: self.cache_told,
            wall,
            failures: self.failures,
            prompts: (self.meant, self.counted),
        }
    }
}
