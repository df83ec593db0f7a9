//! A model on NVIDIA devices. Opening one takes and measures everything but the contents of the weights: the plan is
//! what the devices say.

use plimsoll_backend_cuda::device::Failure;
use plimsoll_backend_cuda::model::{
    Arithmetic, Chosen as Came, CudaError, CudaModel, CudaOptions, LoadError, OpenedCuda,
    graph_sizes,
};
use plimsoll_checkpoint::{CheckpointError, WeightFiles};
use plimsoll_core::{
    engine::live::BodyError,
    model::encoding::Encoding,
    policy::plimsoll::{PlanArgs, Room, Settings, device::DeviceArgs},
    tape::own::{DecoderShape, Draw, Sequence},
};

use super::{
    Ask, CudaAsk, Half, PlanError,
    host::Parts,
    thread::{LoadFailure, Opened, Ready},
};
use crate::{
    engine::{Chosen, MemoryRow, Model, failed},
    plan::{MemoryOf, MemoryPlan},
};

/// Opens the devices.
pub(super) fn open(ask: &Ask, own: &CudaAsk, parts: Parts) -> Result<Opened, PlanError> {
    let Parts { shape, mut weights, .. } = parts;
    let options = options(ask, own, &shape, &weights)?;
    let opened = OpenedCuda::open(&shape, &options).map_err(refused)?;
    let devices = options.devices.clone();
    let precision = format!(
        "{} arithmetic, KV {}, {} ranks",
        options.arithmetic.name(),
        options.kv.name(),
        devices.len()
    );
    let plan = MemoryPlan::of_devices(opened.plans(), &devices, precision);
    let plan = plan.ok_or_else(|| PlanError::Device("no device is named".to_owned()))?;
    let load = move || {
        let model = opened.load(&mut weights).map_err(not_loaded)?;
        let (room, lends) = (model.room(), model.lends());
        Ok(Ready {
            held: held(&model).map_err(|error| LoadFailure::Lost(error.to_string()))?,
            model: Box::new(model),
            // Where nothing can be lent there is nothing to look for.
            room: Box::new(move || {
                let free = lends.then(|| room.least())??;
                Some(Room { available: Some(free), ..Room::default() })
            }),
        })
    };
    Ok(Opened { plan, load: Box::new(load) })
}

fn options(
    ask: &Ask,
    own: &CudaAsk,
    shape: &DecoderShape,
    weights: &WeightFiles,
) -> Result<CudaOptions, PlanError> {
    let args = PlanArgs {
        memory_limit: None,
        mem_margin: ask.margin,
        max_running_requests: Some(ask.running()),
        chunked_prefill_size: Some(ask.chunk()),
        context_length: Some(ask.context(shape.context)),
        max_total_tokens: ask.max_total_tokens,
        prompt_logprobs: false,
    };
    let settings = Settings::new(&args, shape)?;
    let arithmetic = match own.arithmetic {
        Some(Half::Bf16) => Arithmetic::Bf16,
        Some(Half::F16) => Arithmetic::F16,
        None => as_stored(shape, weights),
    };
    let running = settings.max_running_requests;
    let graphs = own.graph_max.unwrap_or(running).min(running);
    let args = DeviceArgs { mem_margin: ask.margin, max_total_tokens: ask.max_total_tokens };
    Ok(CudaOptions {
        devices: own.devices.clone(),
        kv: ask.kv.unwrap_or(arithmetic.kv()),
        arithmetic,
        graphs: graph_sizes(graphs),
        args,
        strict: own.strict,
        ..CudaOptions::new(settings, ask.page_size)
    })
}

/// float16 where all matrices are stored so, else bfloat16: its range is float32's.
fn as_stored(shape: &DecoderShape, weights: &WeightFiles) -> Arithmetic {
    let mut half = false;
    for id in shape.weights() {
        match weights.encoding(id) {
            Some(Encoding::F16) => half = true,
            // Norms are often kept wider.
            Some(Encoding::F32) => {}
            _ => return Arithmetic::Bf16,
        }
    }
    if half { Arithmetic::F16 } else { Arithmetic::Bf16 }
}

/// Says where to look when something of the machine is missing.
fn refused(error: CudaError) -> PlanError {
    let missing = matches!(
        error,
        CudaError::Open(_) | CudaError::Device { failure: Failure::Missing(_), .. }
    );
    let text = error.to_string();
    if missing && !text.contains("doctor") {
        return PlanError::Device(format!(
            "{text}; `plimsoll doctor --cuda` says what is missing and how to get it"
        ));
    }
    PlanError::Device(text)
}

fn not_loaded(error: LoadError<CheckpointError>) -> LoadFailure {
    match error {
        LoadError::Cuda(error) if !error.is_refusal() => LoadFailure::Lost(error.to_string()),
        error => LoadFailure::Device(error.to_string()),
    }
}

/// What the parts hold now, by the names of the plan.
fn held(model: &CudaModel) -> Result<Vec<MemoryRow>, CudaError> {
    let memories = model.memory()?;
    let (plans, devices): (Vec<_>, Vec<_>) =
        memories.into_iter().map(|memory| (memory.plan, memory.device)).unzip();
    let read = MemoryPlan::of_devices(&plans, &devices, String::new());
    let rows = |memory: MemoryOf| {
        let device = memory.device;
        memory.rows.into_iter().map(move |row| MemoryRow {
            device: device.clone(),
            name: row.name.to_owned(),
            bytes: row.bytes(),
        })
    };
    Ok(read.into_iter().flat_map(|plan| plan.memories).flat_map(rows).collect())
}

impl Model for CudaModel {
    fn draws(&self) -> bool {
        true
    }

    fn step(
        &mut self,
        sequences: &[Sequence<'_>],
        draws: &[Option<Draw>],
        take: &mut dyn FnMut(Chosen<'_>),
    ) -> Result<(), BodyError> {
        let step = Self::step(self, sequences, draws).map_err(failed)?;
        for row in step.rows() {
            take(match row {
                Came::Token(token) => Chosen::Token(token),
                Came::Logits(logits) => Chosen::Logits(logits),
            });
        }
        Ok(())
    }

    fn lend(&mut self, page: u32) -> Result<(), BodyError> {
        Self::lend(self, page).map_err(failed)
    }

    fn take_back(&mut self, page: u32) -> Result<(), BodyError> {
        Self::take_back(self, page).map_err(|error| {
            if error.is_out_of_memory() {
                BodyError::NoMemory(error.to_string())
            } else {
                failed(error)
            }
        })
    }
}
