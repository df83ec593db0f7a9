//! Two ends of one engine: [`Engine`], which many hold, and [`EngineEnd`], which the engine's thread has.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
    mpsc::{Receiver, Sender, channel as commands},
};
use std::task::{Context, Poll};

use plimsoll_backend_host::model::{Logprob, Sampling};
use plimsoll_core::sched::{EosRule, Finish, RequestId};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::status::{EngineInfo, Phase, Status};

/// One request, in tokens.
#[derive(Clone, PartialEq, Debug)]
pub struct Submission {
    /// Ids of the prompt; not empty.
    pub prompt: Vec<u32>,
    /// How tokens are chosen, and whether their logprobs are told.
    pub sampling: Sampling,
    /// Most tokens of the answer; `None`: as many as context and pool allow.
    pub max_new_tokens: Option<u64>,
    /// Texts that end the answer, without being part of it.
    pub stop: Vec<String>,
    /// Ids that end the answer, beside the model's own.
    pub stop_token_ids: Vec<u32>,
    /// Whether the model's own end ends the answer.
    pub eos: EosRule,
    /// Priority, where the scheduler goes by it.
    pub priority: Option<i64>,
    /// Namespace of the prefix cache; 0 for the common one.
    pub namespace: u64,
    /// Logprobs of the prompt's tokens too, with this many alternatives each.
    pub prompt_logprobs: Option<u32>,
}

impl Submission {
    /// A greedy request.
    #[must_use]
    pub fn greedy(prompt: Vec<u32>, max_new_tokens: u64) -> Self {
        Self {
            prompt,
            sampling: Sampling::default(),
            max_new_tokens: Some(max_new_tokens),
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            eos: EosRule::Ends,
            priority: None,
            namespace: 0,
            prompt_logprobs: None,
        }
    }
}

/// A token of the answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Piece {
    /// Its id.
    pub token: u32,
    /// Text that has become certain with it: of this token and of earlier ones, often empty.
    pub text: String,
    /// Its logprob, where asked for.
    pub logprob: Option<f32>,
    /// The likeliest tokens in its place.
    pub top: Vec<Logprob>,
}

/// Which stop ended an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Matched {
    /// This id.
    Token(u32),
    /// This text.
    Text(String),
}

/// Tokens of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TokenUse {
    /// Of the prompt.
    pub prompt: u64,
    /// Of the prompt, found in the prefix cache at its first admission.
    pub cached: u64,
    /// Of the answer, one that ended it included.
    pub completion: u64,
}

/// How a request ended.
#[derive(Clone, PartialEq, Debug)]
pub struct Ended {
    /// How.
    pub finish: Finish,
    /// By which stop, for [`Finish::Stop`].
    pub matched: Option<Matched>,
    /// Text that was held back until now.
    pub text: String,
    /// What it took.
    pub tokens: TokenUse,
}

/// Why a request is turned away.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Stable code: `queue_full`, `prompt_too_long`, `draining`, `engine_gone`, …
    pub code: &'static str,
    /// For the client, with the numbers.
    pub message: String,
}

/// What happens to a request, in order; [`Event::Finished`] and [`Event::Refused`] are the last.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// Logprobs of the prompt's tokens from the second on, where asked for; before the first piece.
    Prompt(Vec<Piece>),
    /// A token.
    Token(Piece),
    /// The end.
    Finished(Ended),
    /// It is not served.
    Refused(Refusal),
}

/// The engine's end of a request's events. It never waits: how many lie unread is counted, so that a client
/// that does not read can be given up before they fill the memory.
#[derive(Clone, Debug)]
pub struct Events {
    sender: UnboundedSender<Event>,
    unread: Arc<AtomicU64>,
}

/// Nobody listens any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NobodyListens;

impl Events {
    /// Tells an event.
    ///
    /// # Errors
    ///
    /// [`NobodyListens`].
    pub fn send(&self, event: Event) -> Result<(), NobodyListens> {
        self.unread.fetch_add(1, Ordering::Relaxed);
        self.sender.send(event).map_err(|_| NobodyListens)
    }

    /// Events that were told and not yet read.
    #[must_use]
    pub fn unread(&self) -> u64 {
        self.unread.load(Ordering::Relaxed)
    }
}

/// What the engine's thread is told.
#[derive(Debug)]
pub enum Command {
    /// A request, and who hears of it.
    Submit(RequestId, Box<Submission>, Events),
    /// Nobody hears any more.
    Abort(RequestId),
    /// No new requests; the end when the last one is answered.
    Drain,
}

#[derive(Debug)]
struct Shared {
    info: EngineInfo,
    status: Mutex<Status>,
    next: AtomicU64,
}

/// The engine, for those who send requests; cheap to clone.
#[derive(Clone, Debug)]
pub struct Engine {
    commands: Sender<Command>,
    shared: Arc<Shared>,
}

/// The engine's own end.
#[derive(Debug)]
pub struct EngineEnd {
    /// What it is told; a closed channel is a [`Command::Drain`].
    pub commands: Receiver<Command>,
    shared: Arc<Shared>,
}

/// Both ends of an engine that is loading.
#[must_use]
pub fn channel(info: EngineInfo) -> (Engine, EngineEnd) {
    let (sender, receiver) = commands();
    let status = Mutex::new(Status::default());
    let shared = Arc::new(Shared { info, status, next: AtomicU64::new(0) });
    let engine = Engine { commands: sender, shared: Arc::clone(&shared) };
    (engine, EngineEnd { commands: receiver, shared })
}

impl Shared {
    fn status(&self) -> std::sync::MutexGuard<'_, Status> {
        // Numbers alone: what a panicking holder left is still a status.
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// Sends a request. It is refused by an event, never here.
    #[must_use]
    pub fn submit(&self, submission: Submission) -> Ticket {
        let id = RequestId(self.shared.next.fetch_add(1, Ordering::Relaxed));
        let (sender, receiver) = unbounded_channel();
        let unread = Arc::new(AtomicU64::new(0));
        let events = Events { sender, unread: Arc::clone(&unread) };
        let command = Command::Submit(id, Box::new(submission), events.clone());
        if self.commands.send(command).is_err() {
            let message = "the engine has stopped".to_owned();
            let refusal = Refusal { code: "engine_gone", message };
            // The receiver is here: it cannot be closed.
            let _ = events.send(Event::Refused(refusal));
        }
        Ticket { id, events: receiver, unread, commands: self.commands.clone() }
    }

    /// What it is.
    #[must_use]
    pub fn info(&self) -> &EngineInfo {
        &self.shared.info
    }

    /// How it is.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.status().clone()
    }

    /// No new requests from here on.
    pub fn drain(&self) {
        // An engine that is gone takes none.
        let _ = self.commands.send(Command::Drain);
    }
}

impl EngineEnd {
    /// What it is.
    #[must_use]
    pub fn info(&self) -> &EngineInfo {
        &self.shared.info
    }

    /// Tells how it is.
    pub fn set(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.shared.status());
    }

    /// Tells in which phase it is.
    pub fn enter(&self, phase: Phase) {
        self.set(|status| status.phase = phase);
    }
}

/// A request under way. Dropping it gives the request up.
#[derive(Debug)]
pub struct Ticket {
    id: RequestId,
    events: UnboundedReceiver<Event>,
    unread: Arc<AtomicU64>,
    commands: Sender<Command>,
}

impl Ticket {
    /// Its number.
    #[must_use]
    pub const fn id(&self) -> RequestId {
        self.id
    }

    /// The next event; `None` after the last, or when the engine died.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.events.recv().await;
        self.read(event)
    }

    /// The same for a task that waits for several.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.events.poll_recv(context).map(|event| self.read(event))
    }

    /// The same for a thread that may wait.
    pub fn next_blocking(&mut self) -> Option<Event> {
        let event = self.events.blocking_recv();
        self.read(event)
    }

    fn read(&self, event: Option<Event>) -> Option<Event> {
        if event.is_some() {
            self.unread.fetch_sub(1, Ordering::Relaxed);
        }
        event
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Of a request that is over the engine knows nothing any more.
        let _ = self.commands.send(Command::Abort(self.id));
    }
}
