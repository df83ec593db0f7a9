//! What a diagnosis starts from: a log, a command, or both.

use plimsoll_ingest::launch::{Engine, Launch};
use plimsoll_ingest::log::{Event, Kind, Log, Server, Sglang, System, TorchOom, Vllm};
use plimsoll_replay::assemble::Places;

/// What the user says beside the log.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// A device of the catalog; wins over what the log names.
    pub device: Option<String>,
    /// A model of the catalog, or the path of its files; wins over the launch's.
    pub model: Option<String>,
    /// Where models are looked for besides the catalog.
    pub places: Places,
}

/// A log with the launch command that belongs to it.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// What the log says.
    pub log: Log,
    /// The command: given beside the log, or found in it.
    pub launch: Option<Launch>,
    /// What else the user says.
    pub asked: Asked,
}

impl Case {
    /// Whose log it is; the command decides where no line tells.
    #[must_use]
    pub fn server(&self) -> Option<Server> {
        self.log.server.or_else(|| {
            self.launch.as_ref().map(|launch| match launch.engine.engine() {
                Engine::Sglang => Server::Sglang,
                Engine::Vllm => Server::Vllm,
            })
        })
    }

    /// Events of the last start of the server, which is the one diagnosed.
    pub fn events(&self) -> impl DoubleEndedIterator<Item = &Event> {
        let last = self.log.events.iter().map(|event| event.start).max().unwrap_or(0);
        self.log.events.iter().filter(move |event| event.start == last)
    }

    /// SGLang's lines of the last start.
    pub fn sglang(&self) -> impl DoubleEndedIterator<Item = (&Event, &Sglang)> {
        self.events().filter_map(|event| match &event.kind {
            Kind::Sglang(line) => Some((event, line)),
            _ => None,
        })
    }

    /// vLLM's lines of the last start.
    pub fn vllm(&self) -> impl DoubleEndedIterator<Item = (&Event, &Vllm)> {
        self.events().filter_map(|event| match &event.kind {
            Kind::Vllm(line) => Some((event, line)),
            _ => None,
        })
    }

    /// PyTorch's out-of-memory texts of the last start.
    pub fn torch_ooms(&self) -> impl DoubleEndedIterator<Item = (&Event, &TorchOom)> {
        self.events().filter_map(|event| match &event.kind {
            Kind::TorchOom(oom) => Some((event, oom)),
            _ => None,
        })
    }

    /// Lines of the system of the last start.
    pub fn system(&self) -> impl DoubleEndedIterator<Item = (&Event, &System)> {
        self.events().filter_map(|event| match &event.kind {
            Kind::System(line) => Some((event, line)),
            _ => None,
        })
    }

    /// The value of a server argument, name with underscores: as the server printed it, else as the command gave it.
    #[must_use]
    pub fn arg(&self, name: &str) -> Option<&str> {
        self.log.args.get(name).map(AsRef::as_ref)
    }
}
