//! From undressed lines to the [`Log`]: who wrote them, in which start, and what is kept of them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::command::Command;
use super::filter::{Filter, Readers};
use super::kept::Kept;
use super::redact::Redact;
use super::source::Piece;
use super::stamp::{Stamp, StampForm};
use super::starts::Starts;
use super::traceback::{Part, Tracebacks, class};
use super::undress::{Undressed, json_message, plain, undress};
use super::{
    clues, devices, frequent, llama_cpp, lmdeploy, ollama, sglang, system, tensorrt_llm, tgi,
    torch, version, vllm,
};
use crate::log::{
    Activity, Event, ExceptionText, Frame, Kind, Log, Rank, Server, Sglang, System, Vllm,
};

/// Ranks that are told apart.
const RANKS: usize = 4096;

/// Pairs of start and rank of which the activity is counted.
const ACTIVITIES: usize = 4096;

/// Names of devices that are kept.
const DEVICES: usize = 16;

/// Bytes of a message of an exception that are kept.
const MESSAGE: usize = 400;

/// Builds the log piece by piece.
pub(super) struct Collector {
    filter: Option<&'static Filter>,
    redact: Redact,
    log: Log,
    kept: Kept,
    tracebacks: Tracebacks,
    command: Command,
    starts: Starts,
    ranks: BTreeSet<Rank>,
    /// Processes without a number of their own, in order of appearance.
    processes: BTreeMap<u64, u32>,
    /// Frequent lines whose wording was looked at.
    looked_at: u32,
    /// The first stamp of each form.
    origins: [Option<i64>; 3],
    /// Telling lines by server.
    telling: BTreeMap<Server, u64>,
    file: u16,
    line: u64,
}

impl Collector {
    pub(super) fn new(redact: Redact) -> Self {
        Self {
            filter: Filter::shared(),
            redact,
            log: Log::default(),
            kept: Kept::default(),
            tracebacks: Tracebacks::default(),
            command: Command::default(),
            starts: Starts::default(),
            ranks: BTreeSet::new(),
            processes: BTreeMap::new(),
            looked_at: 0,
            origins: [None; 3],
            telling: BTreeMap::new(),
            file: 0,
            line: 0,
        }
    }

    /// Begins a file.
    pub(super) fn file(&mut self, index: u16) {
        self.file = index;
        self.line = 0;
        self.starts.file();
    }

    /// Adds what a file amounted to.
    pub(super) fn amounts(&mut self, lines: u64, bytes: u64) {
        self.log.lines += lines;
        self.log.bytes += bytes;
    }

    /// Notes what is odd about the text, each kind once a file.
    pub(super) fn odd(&mut self, what: String) {
        if self.log.oddities.len() < 64 && !self.log.oddities.contains(&what) {
            self.log.oddities.push(what);
        }
    }

    /// Reads a piece of a line.
    pub(super) fn piece(&mut self, piece: &Piece<'_>, name: &str) {
        self.line = piece.line;
        let Some(filter) = self.filter else { return };
        if piece.skipped > 0 {
            let length = piece.bytes.len() as u64 + piece.skipped;
            self.odd(format!("{name}:{}: a line of {length} bytes was cut", piece.line));
        }
        let bytes = plain(piece.bytes);
        let open = self.tracebacks.any() || self.command.is_open() || self.kept.expects_more();
        let wanted = open || filter.wants(&bytes);
        if !wanted {
            return;
        }
        let text = String::from_utf8_lossy(&bytes);
        if matches!(text, Cow::Owned(_)) {
            self.odd(format!("{name}: some bytes are no UTF-8"));
        }
        if text.trim_start().starts_with('{')
            && let Some((message, stamp)) = json_message(&text)
        {
            for line in message.lines() {
                self.text(line, filter, stamp);
            }
            return;
        }
        self.text(&text, filter, None);
    }

    fn text(&mut self, text: &str, filter: &Filter, stamp: Option<Stamp>) {
        let mut bare = undress(text);
        bare.stamp = bare.stamp.or(stamp);
        if let Some(process) = bare.process
            && bare.rank.worker.is_none()
        {
            bare.rank.worker = self.worker(process);
        }
        if filter.is_frequent(text.as_bytes()) && self.frequent(&bare) {
            return;
        }
        let readers = filter.readers(text.as_bytes());
        if self.kept.goes_on(bare.text, self.line) {
            return;
        }
        if self.command.is_open() || readers.has(Readers::COMMAND) {
            self.pasted(bare.text);
        }
        let seconds = bare.stamp.and_then(|stamp| self.seconds(stamp));
        match self.tracebacks.take(bare.rank, bare.tagged, bare.text, self.redact) {
            Part::Alien => self.facts(&bare, readers, seconds, Vec::new()),
            // The head of a traceback may stand behind words of its own: `Scheduler hit an exception: …`.
            Part::Taken if bare.text.starts_with([' ', '\t']) => {}
            Part::Taken => self.facts(&bare, readers, seconds, Vec::new()),
            Part::Ended(rank, frames) => {
                self.tell_by_frames(&frames);
                bare.rank = rank;
                self.facts(&bare, readers, seconds, frames);
            }
        }
    }

    /// The number of a process in order of appearance.
    fn worker(&mut self, process: u64) -> Option<u32> {
        let next = u32::try_from(self.processes.len()).ok()?;
        if self.processes.len() >= RANKS && !self.processes.contains_key(&process) {
            return None;
        }
        Some(*self.processes.entry(process).or_insert(next))
    }

    fn seconds(&mut self, stamp: Stamp) -> Option<u64> {
        let slot = match stamp.form {
            StampForm::Dated => 0,
            StampForm::Yearless => 1,
            StampForm::Daytime => 2,
        };
        let origin = self.origins.get_mut(slot)?.get_or_insert(stamp.seconds);
        u64::try_from(stamp.seconds - *origin).ok()
    }

    fn frequent(&mut self, bare: &Undressed<'_>) -> bool {
        let Some(line) = frequent::classify(bare.text) else { return false };
        if let Some(stamp) = bare.stamp {
            self.seconds(stamp);
        }
        let mut rank = bare.rank;
        if let frequent::Line::Statistics(_, Some(engine)) = line
            && rank.is_none()
            && (engine > 0 || self.ranks.iter().any(|rank| rank.dp.is_some()))
        {
            rank.dp = Some(engine);
        }
        if let Some(server) = line.server() {
            self.tell(server, 1);
            self.know(rank);
            if server == Server::Sglang && self.looked_at < clues::FREQUENT {
                self.looked_at += 1;
                clues::by_text(&mut self.log.releases, bare.text);
            }
        }
        let at = self.line;
        if let Some(activity) = self.activity(rank) {
            line.count(at, activity);
        }
        true
    }

    /// What is counted of a rank in the current start; `None` beyond the bound.
    fn activity(&mut self, rank: Rank) -> Option<&mut Activity> {
        let key = (self.starts.current(), rank);
        let room = self.log.activity.len() < ACTIVITIES || self.log.activity.contains_key(&key);
        room.then(|| self.log.activity.entry(key).or_default())
    }

    fn pasted(&mut self, text: &str) {
        if let Some(command) = self.command.take(text) {
            self.keep_command(&command);
        }
    }

    fn keep_command(&mut self, command: &str) {
        if self.log.command.is_none() {
            self.log.command = Some(self.redact.cut(command, 8192));
        }
    }

    fn know(&mut self, rank: Rank) {
        if self.ranks.len() < RANKS {
            self.ranks.insert(rank);
        }
    }

    fn tell(&mut self, server: Server, lines: u64) {
        *self.telling.entry(server).or_default() += lines;
    }

    /// The server with most telling lines; of equal ones that of the first name.
    fn server(&self) -> Option<Server> {
        self.telling.iter().rev().max_by_key(|(_, lines)| **lines).map(|(server, _)| *server)
    }

    /// The outermost frame inside an engine's package says whose process it was.
    fn tell_by_frames(&mut self, frames: &[Frame]) {
        let server = frames.iter().find_map(|frame| {
            let file = frame.file.split(['/', '\\']).next()?;
            match file {
                "sglang" => Some(Server::Sglang),
                "vllm" => Some(Server::Vllm),
                "lmdeploy" => Some(Server::Lmdeploy),
                "tensorrt_llm" => Some(Server::TensorRtLlm),
                "text_generation_server" => Some(Server::Tgi),
                _ => None,
            }
        });
        if let Some(server) = server {
            self.tell(server, 1);
        }
    }

    /// Everything that the line says.
    fn facts(
        &mut self,
        bare: &Undressed<'_>,
        readers: Readers,
        seconds: Option<u64>,
        frames: Vec<Frame>,
    ) {
        if readers.has(Readers::VERSION) {
            self.version(bare.text);
        }
        if readers.has(Readers::DEVICES) {
            self.device(bare.text);
        }
        let mut kinds = parse(bare.text, readers);
        if readers.has(Readers::SGLANG) {
            clues::by_text(&mut self.log.releases, bare.text);
        }
        let ended = !frames.is_empty();
        if kinds.is_empty() && (ended || readers.has(Readers::TRACEBACK)) {
            kinds.extend(self.exception(bare.text, ended));
        }
        let mut frames = Some(frames).filter(|frames| !frames.is_empty());
        for mut kind in kinds {
            give_frames(&mut kind, &mut frames);
            self.redact_kind(&mut kind);
            self.event(bare, seconds, kind);
        }
    }

    fn exception(&self, text: &str, ended: bool) -> Option<Kind> {
        let (class, message) = class(text)?;
        // Without a traceback above it only what says something is one.
        if !ended
            && (message.is_empty()
                || class.starts_with(|c: char| c.is_ascii_lowercase()) && !class.contains('.'))
        {
            return None;
        }
        Some(Kind::System(System::Exception(ExceptionText {
            class: self.redact.cut(class, 120),
            message: self.redact.cut(message, MESSAGE),
            frames: Vec::new(),
        })))
    }

    fn version(&mut self, text: &str) {
        if self.log.version.is_none()
            && let Some((server, release)) = version::read(text)
        {
            self.log.version = Some((release.into(), self.file, self.line));
            self.tell(server, 1);
        }
    }

    fn device(&mut self, text: &str) {
        if self.log.devices.len() < DEVICES
            && let Some(name) = devices::read(text)
            && !self.log.devices.iter().any(|known| **known == *name)
        {
            self.log.devices.push(name.into());
        }
    }

    /// Redacts the texts inside a kind.
    fn redact_kind(&self, kind: &mut Kind) {
        match kind {
            Kind::Sglang(Sglang::ServerArgs(args)) | Kind::Vllm(Vllm::Args(args)) => {
                for (name, value) in args {
                    // The name says what the value is.
                    let whole = format!("{name}={value}");
                    let clean = self.redact.cut(&whole, 4096);
                    *value = clean.split_once('=').map_or(&*clean, |(_, value)| value).into();
                }
            }
            Kind::Sglang(Sglang::CaptureFailed { text })
            | Kind::System(
                System::HostOom { text, .. }
                | System::NoSpace { text }
                | System::DeviceError { text, .. },
            ) => *text = self.redact.cut(text, MESSAGE),
            Kind::System(System::KernelKill { process: Some(text), .. }) => {
                *text = self.redact.cut(text, 64);
            }
            _ => {}
        }
    }

    fn event(&mut self, bare: &Undressed<'_>, seconds: Option<u64>, kind: Kind) {
        if kind == Kind::Vllm(Vllm::Ready) {
            // uvicorn's words, whoever runs it.
            if self.server() == Some(Server::Sglang) {
                return;
            }
        } else if let Some(server) = server_of(&kind) {
            self.tell(server, 1);
        }
        self.know(bare.rank);
        if let Kind::Sglang(what) = &kind {
            clues::by_arguments(&mut self.log.releases, what);
        }
        let start = self.starts.take(bare.rank, &kind);
        if let Kind::Sglang(Sglang::Retract { requests, .. }) = &kind
            && let Some(activity) = self.activity(bare.rank)
        {
            activity.retractions += 1;
            activity.retracted_requests = activity.retracted_requests.saturating_add(*requests);
        }
        match &kind {
            Kind::Sglang(Sglang::ServerArgs(args)) | Kind::Vllm(Vllm::Args(args)) => {
                if start > self.starts.args_of {
                    self.log.args.clear();
                    self.starts.args_of = start;
                }
                for (name, value) in args.iter().take(1024) {
                    self.log.args.insert(name.clone(), value.clone());
                }
            }
            _ => {}
        }
        let event = Event {
            file: self.file,
            line: self.line,
            rank: bare.rank,
            start,
            seconds,
            text: self.redact.cut(bare.text.trim_start(), Event::TEXT),
            kind,
        };
        self.kept.push(event, bare.text);
    }

    /// The log, complete.
    pub(super) fn finish(mut self) -> Log {
        if let Some(command) = self.command.rest() {
            self.keep_command(&command);
        }
        for (rank, frames) in self.tracebacks.unfinished() {
            if frames.is_empty() {
                continue;
            }
            self.tell_by_frames(&frames);
            self.odd("the log ends inside a traceback".to_owned());
            let text = "(the log ends inside this traceback)";
            let bare = Undressed { text, rank, process: None, stamp: None, tagged: true };
            let unknown = ExceptionText { class: "".into(), message: "".into(), frames };
            self.event(&bare, None, Kind::System(System::Exception(unknown)));
        }
        let server = self.server();
        let mut log = self.log;
        log.server = server;
        (log.events, log.events_left_out) = self.kept.finish();
        log.ranks = self.ranks.into_iter().collect();
        log.starts = self.starts.count();
        log
    }
}

/// Every parser whose words stand in the line.
fn parse(text: &str, readers: Readers) -> Vec<Kind> {
    let mut kinds = Vec::new();
    if readers.has(Readers::SGLANG) {
        let mut found = Vec::new();
        sglang::read(text, &mut found);
        kinds.extend(found.into_iter().map(Kind::Sglang));
    }
    if readers.has(Readers::VLLM) {
        kinds.extend(vllm::read(text).map(Kind::Vllm));
    }
    if readers.has(Readers::TORCH) {
        let mut found = Vec::new();
        torch::read(text, &mut found);
        kinds.extend(found.into_iter().map(Kind::TorchOom));
    }
    if readers.has(Readers::LLAMA_CPP) {
        kinds.extend(llama_cpp::read(text).map(Kind::LlamaCpp));
    }
    if readers.has(Readers::OLLAMA) {
        kinds.extend(ollama::read(text).map(Kind::Ollama));
    }
    if readers.has(Readers::TENSORRT_LLM) {
        kinds.extend(tensorrt_llm::read(text).map(Kind::TensorRtLlm));
    }
    if readers.has(Readers::TGI) {
        kinds.extend(tgi::read(text).map(Kind::Tgi));
    }
    if readers.has(Readers::LMDEPLOY) {
        kinds.extend(lmdeploy::read(text).map(Kind::Lmdeploy));
    }
    // The other servers' own lines tell of a driver's refusal with more than the bare words.
    let told = kinds.iter().any(|kind| {
        !matches!(kind, Kind::Sglang(_) | Kind::Vllm(_) | Kind::TorchOom(_) | Kind::System(_))
    });
    if readers.has(Readers::SYSTEM) {
        let found = system::read(text);
        let again = told && matches!(found, Some(System::DriverOom { .. }));
        kinds.extend(found.filter(|_| !again).map(Kind::System));
    }
    kinds
}

fn server_of(kind: &Kind) -> Option<Server> {
    match kind {
        Kind::Sglang(_) => Some(Server::Sglang),
        Kind::Vllm(_) => Some(Server::Vllm),
        Kind::LlamaCpp(_) => Some(Server::LlamaCpp),
        Kind::Ollama(_) => Some(Server::Ollama),
        Kind::TensorRtLlm(_) => Some(Server::TensorRtLlm),
        Kind::Tgi(_) => Some(Server::Tgi),
        Kind::Lmdeploy(_) => Some(Server::Lmdeploy),
        Kind::TorchOom(_) | Kind::System(_) => None,
    }
}

/// Gives the frames of the traceback to the first event of the line that can hold them.
fn give_frames(kind: &mut Kind, frames: &mut Option<Vec<Frame>>) {
    let slot = match kind {
        Kind::TorchOom(oom) => &mut oom.frames,
        Kind::System(System::Exception(exception)) => &mut exception.frames,
        Kind::System(System::DriverOom { frames, .. } | System::DeviceError { frames, .. }) => {
            frames
        }
        _ => return,
    };
    if let Some(frames) = frames.take() {
        *slot = frames;
    }
}
