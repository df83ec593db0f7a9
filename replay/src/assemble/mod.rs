//! From what users write - a scenario file, or flags of `plan` - to a case that can be started.

mod launches;
mod models;
mod models_found;

pub use launches::{launch_of_scenario, ranks_of};
pub use models::{ModelAsk, ModelFigures, find_model};

use crate::{
    scenario::{self, Scenario},
    start::{CapacityReading, Case, CaseLaunch, Fact, Facts, HostMemory},
};
use plimsoll_catalog::{devices, files::HubPaths};
use plimsoll_core::{
    backend::Rank,
    device::{DeviceProfile, MemoryKind, Platform},
    engine::startup::{Phase, TenantChange},
    policy::sglang::args::Platform as ServerPlatform,
    units::Bytes,
};
use plimsoll_ingest::launch::EngineLaunch;
/// What a launch command or its flags were read to.
pub use plimsoll_ingest::launch::Launch;
use std::path::{Path, PathBuf};

/// Where models are looked for besides the catalog.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// The local Hugging Face cache.
    pub hub: HubPaths,
    /// Relative paths start here.
    pub base: PathBuf,
}

/// Why a case cannot be put together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AssembleError {
    /// All mistakes, a line each.
    pub message: String,
    /// Whether the user's own figures of a model would help.
    pub kind: AssembleErrorKind,
}

/// What would help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AssembleErrorKind {
    /// Mending what was given.
    Input,
    /// A name that is known, a file, or the user's own figures: no rule knows this model.
    UnknownModel,
}

impl AssembleError {
    /// From anything that says what is wrong.
    pub fn new(message: impl ToString) -> Self {
        Self { message: message.to_string(), kind: AssembleErrorKind::Input }
    }
}

/// A case with the launch that it was made from.
#[derive(Clone, Debug)]
pub struct Assembled {
    /// Ready to start.
    pub case: Case,
    /// The launch, with what is not modelled or unknown in it.
    pub launch: Launch,
}

/// The case of a scenario file.
///
/// # Errors
///
/// [`AssembleError`]: a launch with mistakes, a device or model that is not found.
pub fn of_scenario(scenario: &Scenario, file: &Path) -> Result<Assembled, AssembleError> {
    let base = file.parent().map(Path::to_path_buf).unwrap_or_default();
    let places = Places { hub: HubPaths::default(), base };
    let mut launch = launch_of_scenario(scenario)?;
    let (device, capacity) = device_of_scenario(&scenario.machine.device, &mut launch)?;
    let ranks = scenario.machine.ranks.unwrap_or_else(|| ranks_of(&launch.engine));
    let ask = ModelAsk::of_scenario(scenario, &launch.engine);
    let model = find_model(&ask, &launch.engine, &places).map_err(with_keys)?;
    let case = Case {
        launch: case_launch(&launch.engine),
        model,
        device,
        capacity,
        ranks,
        facts: facts_of_scenario(scenario),
        tenants: tenants(scenario, ranks),
    };
    Ok(Assembled { case, launch })
}

/// The keys of a scenario that give a model's figures.
fn with_keys(error: AssembleError) -> AssembleError {
    if error.kind == AssembleErrorKind::Input {
        return error;
    }
    let help =
        "help: give its figures: model.kv_bytes_per_token and model.weights, both of one rank";
    AssembleError { message: format!("{}\n{help}", error.message), ..error }
}

/// The launch as a case holds it.
#[must_use]
pub fn case_launch(engine: &EngineLaunch) -> CaseLaunch {
    match engine {
        EngineLaunch::Sglang(args) => CaseLaunch::Sglang(args.clone()),
        EngineLaunch::Vllm(args) => CaseLaunch::Vllm(args.clone()),
    }
}

/// A device of the catalog, with the launch's platform set by it.
///
/// # Errors
///
/// A name that no device or several devices have.
pub fn find_device(name: &str, launch: &mut Launch) -> Result<DeviceProfile, AssembleError> {
    let device = devices::find(name).map_err(AssembleError::new)?;
    set_platform(launch, platform_of(&device));
    Ok(device)
}

fn platform_of(device: &DeviceProfile) -> ServerPlatform {
    match device.platform {
        Platform::Cuda => ServerPlatform::Cuda,
        Platform::Rocm => ServerPlatform::Rocm,
        Platform::Xpu => ServerPlatform::Xpu,
        Platform::Metal => ServerPlatform::Mps,
    }
}

/// MLX is chosen by a variable of the launch and stays.
fn set_platform(launch: &mut Launch, platform: ServerPlatform) {
    if let EngineLaunch::Sglang(args) = &mut launch.engine
        && args.platform != ServerPlatform::Mlx
        && (args.platform == ServerPlatform::Cuda || platform != ServerPlatform::Cuda)
    {
        args.platform = platform;
    }
}

fn device_of_scenario(
    device: &scenario::Device,
    launch: &mut Launch,
) -> Result<(DeviceProfile, CapacityReading), AssembleError> {
    let properties = match device {
        scenario::Device::Named(name) => {
            return Ok((find_device(name, launch)?, CapacityReading::Catalog));
        }
        scenario::Device::Described(properties) => properties,
    };
    let mut profile = match &properties.name {
        Some(name) => find_device(name, launch)?,
        None => described(properties)?,
    };
    if let Some(platform) = properties.platform {
        set_platform(launch, platform);
        if let EngineLaunch::Sglang(args) = &mut launch.engine {
            args.platform = platform;
        }
    }
    if let Some(integrated) = properties.integrated {
        let kind = if integrated { MemoryKind::Integrated } else { MemoryKind::Discrete };
        profile.memory = kind;
    }
    let capacity = match properties.capacity {
        None => CapacityReading::Catalog,
        Some(scenario::Capacity::Known(bytes)) => CapacityReading::Known(bytes),
        Some(scenario::Capacity::Unknown) => CapacityReading::Unknown,
    };
    Ok((profile, capacity))
}

/// A device that no catalog has: its capacity is all that is known.
fn described(properties: &scenario::DeviceProperties) -> Result<DeviceProfile, AssembleError> {
    let total = match properties.capacity {
        Some(scenario::Capacity::Known(bytes)) => bytes,
        Some(scenario::Capacity::Unknown) => Bytes::ZERO,
        None => {
            let message = "machine.device needs a `name` of the catalog or a `capacity`";
            return Err(AssembleError::new(message));
        }
    };
    Ok(DeviceProfile::of_capacity("device of the scenario", total))
}

fn tenants(scenario: &Scenario, ranks: u32) -> Vec<TenantChange> {
    let mut changes = Vec::new();
    for event in &scenario.events {
        // Events of the running server come later.
        let Some((phase, held)) = event.of_start() else { continue };
        let phase = match phase {
            scenario::EventTime::BeforeLoad => Phase::BeforeLoad,
            scenario::EventTime::AfterLoad => Phase::AfterLoad,
            scenario::EventTime::DuringSizing => Phase::DuringSizing,
        };
        let on = match event.rank {
            scenario::Ranks::All => 0..ranks,
            scenario::Ranks::One(rank) => rank..rank + 1,
        };
        let change = |rank| TenantChange { phase, rank: Rank(rank), held };
        changes.extend(on.map(change));
    }
    changes
}

fn facts_of_scenario(scenario: &Scenario) -> Facts {
    let fallback = scenario.source.clone().unwrap_or_else(|| "scenario file".to_owned());
    let fact = |reading: &Option<scenario::Reading>| {
        reading.as_ref().map(|reading| Fact {
            values: reading.values.values().to_vec(),
            tag: reading.tag,
            source: reading.source.clone().unwrap_or_else(|| fallback.clone()),
        })
    };
    let r = &scenario.machine.readings;
    let host = scenario
        .machine
        .host_available
        .map(|bytes| Fact::all(bytes, plimsoll_core::figure::Tag::Measured, fallback.clone()));
    Facts {
        free_before_load: fact(&r.free_before_load).or_else(|| fact(&r.free_at_start)),
        used_by_load: fact(&r.weights),
        free_after_load: fact(&r.free_after_load),
        free_after_graphs: fact(&r.free_after_graphs),
        load_peak: fact(&r.load_peak),
        autotune_scratch: fact(&r.autotune_scratch),
        graph_memory: fact(&r.graph_memory),
        others: None,
        weaker: scenario.machine.weaker.0.clone(),
        host: HostMemory {
            ram: scenario.machine.ram,
            page_cache: scenario.machine.page_cache,
            others: scenario.machine.others_on_host,
            available: scenario.machine.host_available,
        },
        total: fact(&r.total),
        non_torch: fact(&r.non_torch),
        activation_peak: fact(&r.activation_peak),
        graph_estimate: fact(&r.graph_estimate),
        mlx_active: fact(&r.mlx_active),
        working_set: fact(&r.working_set),
        host_available: fact(&r.host_available_at_sizing).or(host),
        cgroup_limit: scenario.machine.cgroup_limit,
    }
}
