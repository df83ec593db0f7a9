//! How a failure goes through the server: allocation, step, scheduler, process tree.

use super::rank_memory::OutOfMemoryAt;
use crate::{
    backend::{Backend, Rank},
    decision::Record,
    memory::{caching_allocator::TorchVersion, ledger::Account},
    sched::Mode,
    units::Nanos,
};

/// Which processes a server is made of, and how they fall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerProcesses {
    /// A scheduler a rank, a detokenizer, an HTTP server.
    Sglang,
    /// An engine core, a worker a rank where there are several, an API server.
    Vllm,
}

/// Who words an out-of-memory error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wording {
    /// `torch.OutOfMemoryError` of this release, in these processes.
    Torch(TorchVersion, ServerProcesses),
    /// Metal, through MLX.
    Metal,
}

impl Wording {
    /// Torch's words in the processes of a server.
    #[must_use]
    pub const fn torch(version: TorchVersion, processes: ServerProcesses) -> Self {
        Self::Torch(version, processes)
    }

    const fn processes(self) -> ServerProcesses {
        match self {
            Self::Torch(_, processes) => processes,
            Self::Metal => ServerProcesses::Sglang,
        }
    }

    /// The process that dies of the exception.
    pub(super) fn scheduler(self, rank: Rank) -> String {
        match self.processes() {
            ServerProcesses::Sglang => format!("scheduler TP{}", rank.0),
            ServerProcesses::Vllm => "EngineCore".to_owned(),
        }
    }

    /// The error as the server's log shows it.
    fn text(self, failure: &OutOfMemoryAt) -> String {
        match self {
            Self::Torch(version, _) => failure.error.text(version, failure.rank.0, &[]),
            // Source: the status that Metal gives a command buffer which found no memory.
            Self::Metal => "[METAL] Command buffer execution failed: Insufficient Memory \
                            (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
                .to_owned(),
        }
    }

    /// The exception's name.
    pub(super) const fn exception(self) -> &'static str {
        match self {
            Self::Torch(..) => "torch.OutOfMemoryError",
            Self::Metal => "RuntimeError (Metal: insufficient memory)",
        }
    }
}

/// What failed, where the run stood.
pub(super) struct Moment {
    pub(super) step: u64,
    pub(super) at: Nanos,
    pub(super) mode: Mode,
    pub(super) tokens: u64,
    pub(super) requests: u64,
}

/// The refused request, as torch and the device tell it.
pub(super) fn out_of_memory(failure: &OutOfMemoryAt, wording: Wording, when: &Moment) -> Record {
    let error = &failure.error;
    Record::of("out_of_memory", failure.rank)
        .with("account", Account::Activations.name())
        .with("requested_bytes", error.segment)
        .with("free_bytes", error.device_free)
        .with("block_bytes", error.requested)
        .with("allocated_bytes", error.allocated)
        .with("reserved_bytes", error.reserved)
        .with("buffer", failure.buffer.to_string().as_str())
        .with("message", wording.text(failure).as_str())
        .with("step", when.step)
        .with("at_ns", when.at.0)
}

/// What every account holds on every rank, as the backend says.
pub(super) fn ledgers(backend: &dyn Backend) -> Vec<Record> {
    let mut records = Vec::new();
    for rank in (0..backend.ranks()).map(Rank) {
        for (account, bytes) in backend.held(rank).unwrap_or_default() {
            let record = Record::of("ledger", rank).with("account", account.name());
            records.push(record.with("held_bytes", bytes.0));
        }
    }
    records
}

pub(super) fn step_failed(when: &Moment) -> Record {
    Record::new("step_failed")
        .with("step", when.step)
        .with("mode", when.mode.name())
        .with("tokens", when.tokens)
        .with("requests", when.requests)
        .with("at_ns", when.at.0)
}

/// The processes of the server in the order in which they fall after that of `first` died of an exception.
pub(super) fn process_tree(first: Rank, ranks: u32, why: &str, wording: Wording) -> Vec<Record> {
    let mut records = vec![Record::of("scheduler_ended", first).with("why", why)];
    records.extend(match wording.processes() {
        ServerProcesses::Sglang => sglang_tree(first, ranks),
        ServerProcesses::Vllm => vllm_tree(first, ranks),
    });
    records
}

fn ended(process: &str, by: &str, how: &str) -> Record {
    Record::new("process_ended").with("process", process).with("by", by).with("how", how)
}

/// The scheduler signals its parent, which kills the whole tree and itself.
///
/// Source: SGLang `scheduler.run_scheduler_process` (SIGQUIT to the parent on any exception) and
/// `engine.launch_phase_sigquit_handler` (`kill_process_tree`), 0.4.6 to 0.5.23.
fn sglang_tree(first: Rank, ranks: u32) -> Vec<Record> {
    let name = |rank: u32| format!("scheduler TP{rank}");
    let killed = "SIGKILL";
    let mut records = vec![ended(&name(first.0), "itself", "exception; SIGQUIT to its parent")];
    for rank in (0..ranks).filter(|rank| *rank != first.0) {
        records.push(ended(&name(rank), "http server", killed));
    }
    records.push(ended("detokenizer", "http server", killed));
    records.push(ended("http server", "itself", killed));
    records
}

/// The step fails in the engine core, in its own process or in a worker of its; it says so to the API
/// server, which answers with errors and shuts down.
///
/// Source: vLLM `EngineCoreProc.run_engine_core`, `MultiprocExecutor`, `AsyncLLM` (`EngineDeadError`), read.
fn vllm_tree(first: Rank, ranks: u32) -> Vec<Record> {
    let mut records = Vec::new();
    if ranks > 1 {
        let name = |rank: u32| format!("worker TP{rank}");
        records.push(ended(&name(first.0), "itself", "exception, told to EngineCore"));
        for rank in (0..ranks).filter(|rank| *rank != first.0) {
            records.push(ended(&name(rank), "EngineCore", "SIGTERM"));
        }
    }
    records.push(ended("EngineCore", "itself", "exception, told to the API server"));
    records.push(ended("API server", "itself", "EngineDeadError"));
    records
}
