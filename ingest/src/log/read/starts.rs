//! Which start of a server a line belongs to.

use std::collections::BTreeSet;

use crate::log::{Kind, Rank, Sglang, System, Vllm};

/// Counts the starts. A start ends when the server is ready or dies; the next one begins with the next line that
/// only a beginning server writes.
#[derive(Default)]
pub(super) struct Starts {
    current: u32,
    /// Starts that began in this file.
    in_file: u32,
    /// Whether anything was read at all.
    any: bool,
    /// Whether the current start is over: ready or dead.
    over: bool,
    /// Whether the current start printed arguments or began to load.
    begun: bool,
    loaded: BTreeSet<Rank>,
    summed: BTreeSet<Rank>,
    /// The node that the last arguments were for.
    node: Option<Box<str>>,
    /// The start whose arguments are kept.
    pub(super) args_of: u32,
}

impl Starts {
    /// A file begins.
    pub(super) fn file(&mut self) {
        self.in_file = 0;
    }

    /// The start that lines belong to now.
    pub(super) fn current(&self) -> u32 {
        self.current
    }

    /// Starts seen.
    pub(super) fn count(&self) -> u32 {
        if self.any { self.current.saturating_add(1) } else { 0 }
    }

    /// Takes an event in; the start that it belongs to.
    pub(super) fn take(&mut self, rank: Rank, kind: &Kind) -> u32 {
        self.any = true;
        match kind {
            Kind::Sglang(Sglang::ServerArgs(args)) => self.arguments(args),
            Kind::Vllm(Vllm::Args(_)) => {
                if self.over {
                    self.next();
                }
                self.begun = true;
            }
            Kind::Sglang(Sglang::LoadBegin { .. }) => {
                let again = self.loaded.contains(&rank);
                if self.over || again && self.summed.contains(&rank) {
                    self.next();
                }
                self.begun = true;
                self.loaded.insert(rank);
            }
            Kind::Sglang(Sglang::Summary { .. }) => {
                self.summed.insert(rank);
            }
            Kind::Vllm(Vllm::LoadEnd { .. }) => {
                if self.over && self.loaded.contains(&rank) {
                    self.next();
                }
                self.loaded.insert(rank);
            }
            _ if ends(kind) => self.over = true,
            _ => {}
        }
        self.current
    }

    /// Arguments begin a start, but for those of another node of the same one, whose log is the next file.
    fn arguments(&mut self, args: &[(Box<str>, Box<str>)]) {
        let value =
            |name: &str| args.iter().find(|(key, _)| **key == *name).map(|(_, value)| value);
        let several = value("nnodes").is_some_and(|nodes| &**nodes != "1");
        let node = value("node_rank").filter(|_| several).cloned();
        let other_node = node.is_some() && self.node.is_some() && node != self.node;
        if other_node && self.in_file == 0 {
            self.current = 0;
            self.over = false;
        } else if self.over || self.begun {
            self.next();
        }
        self.node = node;
        self.begun = true;
        self.in_file += 1;
    }

    fn next(&mut self) {
        self.current = self.current.saturating_add(1);
        self.over = false;
        self.begun = false;
        self.loaded.clear();
        self.summed.clear();
    }
}

/// Whether a server that wrote this is ready or dead.
fn ends(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Sglang(
            Sglang::Ready
                | Sglang::NotEnoughMemory { .. }
                | Sglang::WeightsLeaveNothing { .. }
                | Sglang::SchedulerException
                | Sglang::CaptureFailed { .. }
                | Sglang::Watchdog
        ) | Kind::Vllm(Vllm::Ready | Vllm::EngineFailed | Vllm::NoBlocks)
            | Kind::TorchOom(_)
            | Kind::System(
                System::KernelKill { .. }
                    | System::HostOom { .. }
                    | System::Exit { .. }
                    | System::Signal { .. }
                    | System::RayMemoryKill
            )
    )
}
