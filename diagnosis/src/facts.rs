//! What a case says about the server and its machine, whichever way it says it.

use plimsoll_catalog::devices;
use plimsoll_core::device::DeviceProfile;
use plimsoll_core::policy::sglang::version::Version;
use plimsoll_ingest::launch::{
    Context, Engine, EngineLaunch, Launch, LaunchInput, VersionSource, from_flags, parse_command,
};
use plimsoll_ingest::log::{Amount, Event, Kind, Server, Sglang, System, Vllm};
use serde_json::Value;

use crate::{Case, reconstruct, reconstruct::Place};

impl Case {
    /// The release: as the log prints it, else as the launch says; `None` when neither does. A build between
    /// releases (`0.0.0.dev1+g…`) names none.
    #[must_use]
    pub fn version(&self) -> Option<Version> {
        let printed = self.log.version.as_ref().and_then(|(text, ..)| text.parse().ok());
        let named = |version: &Version| *version > Version::new(0, 0, 99);
        printed.filter(named).or_else(|| {
            let launch = self.launch.as_ref()?;
            let assumed = matches!(launch.version, VersionSource::Default { .. });
            (!assumed).then(|| launch.engine.version())
        })
    }

    /// The release to follow where nothing names one: the newest SGLang that words its lines so.
    #[must_use]
    pub fn worded_version(&self) -> Option<Version> {
        (self.server() == Some(Server::Sglang)).then(|| self.log.releases.newest()).flatten()
    }

    /// The launch: as given, else a command in the log, else the arguments that the server printed; with
    /// the release that the log prints, else the one that its wording shows.
    #[must_use]
    pub fn launched(&self) -> Option<Launch> {
        let version = self.version().or_else(|| self.worded_version());
        let ctx = Context { version, ..Context::default() };
        let pasted = || {
            let text = self.log.command.as_deref()?;
            parse_command(LaunchInput::Text(text), &ctx).ok()
        };
        let mut launch = self.launch.clone().or_else(pasted).or_else(|| self.printed(&ctx))?;
        if let Some(version) = version {
            match &mut launch.engine {
                EngineLaunch::Sglang(args) => args.version = version,
                EngineLaunch::Vllm(args) => args.version = version,
            }
        }
        Some(launch)
    }

    /// The arguments that the server printed, those with a value.
    fn printed(&self, ctx: &Context<'_>) -> Option<Launch> {
        let engine = match self.server()? {
            Server::Sglang => Engine::Sglang,
            Server::Vllm => Engine::Vllm,
            _ => return None,
        };
        let flags: Vec<(String, Value)> = self
            .log
            .args
            .iter()
            .filter(|(_, value)| !matches!(&***value, "None" | "" | "[]" | "{}" | "auto"))
            .map(|(name, value)| (name.to_string(), json(value)))
            .collect();
        from_flags(engine, ctx.version, &flags, ctx).ok()
    }

    /// The device: as asked for, else the first that the log names and the catalog knows.
    #[must_use]
    pub fn device(&self) -> Option<DeviceProfile> {
        if let Some(name) = &self.asked.device {
            return devices::find(name).ok();
        }
        self.log.devices.iter().find_map(|name| devices::find(name).ok())
    }

    /// Memory of one device as programs see it: printed in the last start, else of the device's profile.
    #[must_use]
    pub fn capacity(&self) -> Option<Amount> {
        let printed = self.events().find_map(|event| match &event.kind {
            Kind::TorchOom(oom) => oom.capacity,
            Kind::Vllm(Vllm::FreeAtStart { total, .. } | Vllm::Budget { total, .. }) => {
                Some(*total)
            }
            Kind::Vllm(Vllm::Usage { total, .. } | Vllm::Profile { total, .. }) => *total,
            _ => None,
        });
        printed.filter(|total| total.bytes > 0).or_else(|| {
            let total = self.device()?.runtime_total.value;
            let end = |bytes: plimsoll_core::units::Bytes| i64::try_from(bytes.0).ok();
            Some(reconstruct::between(end(total.low)?, end(total.high)?))
        })
    }

    /// The event of a line, in the last start.
    #[must_use]
    pub fn at(&self, place: Place) -> Option<&Event> {
        self.events().find(|event| event.file == place.file && event.line == place.line)
    }

    /// Whether a line says that the server died, refused to start or was killed.
    #[must_use]
    pub fn died(&self) -> bool {
        self.events().any(|event| match &event.kind {
            Kind::TorchOom(_) => true,
            Kind::Sglang(line) => sglang_ends(line),
            Kind::Vllm(line) => vllm_ends(line),
            Kind::System(line) => system_ends(line),
            // Their own rules say what a failure is there: some are recovered from.
            Kind::LlamaCpp(_)
            | Kind::Ollama(_)
            | Kind::TensorRtLlm(_)
            | Kind::Tgi(_)
            | Kind::Lmdeploy(_) => false,
        })
    }
}

/// A printed value as the reader of flags takes it.
fn json(text: &str) -> Value {
    match text {
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        text => Value::String(text.to_owned()),
    }
}

fn sglang_ends(line: &Sglang) -> bool {
    matches!(
        line,
        Sglang::NotEnoughMemory { .. }
            | Sglang::WeightsLeaveNothing { .. }
            | Sglang::Unbalanced
            | Sglang::HostPoolRefused { .. }
            | Sglang::PrefillPoolExhausted { .. }
            | Sglang::DecodePoolExhausted { .. }
            | Sglang::RequestSlotsExhausted
            | Sglang::CaptureFailed { .. }
            | Sglang::SchedulerException
            | Sglang::DetokenizerSilent { .. }
            | Sglang::Watchdog
            | Sglang::PoolLeak
            | Sglang::ProfiledBelowAsked { profiled: ..=0, .. }
    )
}

fn vllm_ends(line: &Vllm) -> bool {
    use plimsoll_ingest::log::Refused;
    matches!(
        line,
        Vllm::FreeAtStart { refused: Refused::Yes, .. }
            | Vllm::NoBlocks
            | Vllm::OneRequestTooLong { .. }
            | Vllm::LongerThanPool { .. }
            | Vllm::AutoFitFailed
            | Vllm::ModelLenTooLarge { .. }
            | Vllm::MambaBlocks { .. }
            | Vllm::SegmentsRefused
            | Vllm::WorkspaceLocked { .. }
            | Vllm::FreeGrewWhileProfiling { .. }
            | Vllm::SamplerWarmup { .. }
            | Vllm::NoSwapSpace
            | Vllm::SwapSpace { refused: Refused::Yes, .. }
            | Vllm::EngineFailed
    )
}

fn system_ends(line: &System) -> bool {
    match line {
        System::Exit { code } => *code != 0,
        System::Signal { name } => !matches!(&**name, "SIGTERM" | "SIGINT"),
        System::SmiRow { .. } => false,
        _ => true,
    }
}
