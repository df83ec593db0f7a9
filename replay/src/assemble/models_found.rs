//! A model by name: its geometry and the weights of one rank.

use super::{AssembleError, AssembleErrorKind, Places};
use crate::start::{CaseModel, DividedModel, ModelKind};
use plimsoll_catalog::files::{self, FindError, Found, Weights};
use plimsoll_core::{
    estimate::Figure,
    model::{
        detail::Model,
        error::ConfigError,
        geometry::{Dtype, ModelGeometry},
        parallel::{ExpertSplit, Loader, Parallel, ParallelError},
        weights::{Bill, DraftWeights, Mxfp4Layout, VisionUse, WeightOptions, heaviest},
    },
    policy::{
        sglang::{args::ServerArgs, version::Version},
        vllm::args::EngineArgs,
    },
};
use plimsoll_ingest::launch::EngineLaunch;

/// Looks a model up: a path, the local hub cache, the catalog.
pub(super) fn look_up(
    name: &str,
    engine: &EngineLaunch,
    places: &Places,
) -> Result<CaseModel, AssembleError> {
    let beside = places.base.join(name);
    let path = if beside.exists() { beside.display().to_string() } else { name.to_owned() };
    let found = files::find(&path, &places.hub, REVISION).map_err(|error| not_found(&error))?;
    let refused = |error: ParallelError| {
        AssembleError::new(format!("the weights of {name} cannot be divided: {error}"))
    };
    let options = options(engine).map_err(refused)?;
    let weights = weights(&found, &options).map_err(refused)?;
    let divided = DividedModel { model: found.model.clone(), weights: options };
    Ok(CaseModel {
        name: name.to_owned(),
        origin: found.source.clone(),
        notes: found.model.notes.clone(),
        kind: ModelKind::Known(Box::new(geometry(found.model, engine))),
        divided: Some(Box::new(divided)),
        draft: None,
        weights: Some(weights),
        draft_weights: None,
    })
}

/// A model that no rule knows can still be planned by the user's figures; a broken file cannot.
fn not_found(error: &FindError) -> AssembleError {
    let unknown = match error {
        FindError::NotFound { .. } => true,
        FindError::Config { error, .. } => {
            matches!(
                error,
                ConfigError::UnknownArchitecture { .. } | ConfigError::NotModelled { .. }
            )
        }
        _ => false,
    };
    let kind = if unknown { AssembleErrorKind::UnknownModel } else { AssembleErrorKind::Input };
    AssembleError { message: error.to_string(), kind }
}

/// Branch of the hub that the cache is asked for.
const REVISION: &str = "main";

/// The geometry as this engine reads it: its context, and the vision numbers that its factor asks for.
fn geometry(model: Model, engine: &EngineLaunch) -> ModelGeometry {
    let mut geometry = model.geometry;
    match engine {
        EngineLaunch::Vllm(_) => geometry.context_len = model.detail.vllm_context_len,
        EngineLaunch::Sglang(_) => {
            if let (Some(factor), Some(vision)) = (model.detail.vision_factor, &mut geometry.vision)
            {
                (vision.layers, vision.hidden) = (factor.layers, factor.hidden);
                vision.sized = true;
            }
        }
    }
    geometry
}

fn options(engine: &EngineLaunch) -> Result<WeightOptions, ParallelError> {
    match engine {
        EngineLaunch::Sglang(args) => sglang_options(args),
        EngineLaunch::Vllm(args) => vllm_options(args),
    }
}

/// Weights of the heaviest rank, with what the engine makes while it loads them.
fn weights(found: &Found, options: &WeightOptions) -> Result<Figure, ParallelError> {
    let bill = heaviest_found(found, options)?;
    let mut figure = Figure { value: bill.per_rank, why: bill.why };
    for part in &bill.parts {
        figure = figure.with(part.kind.name(), part.per_rank.mid);
    }
    Ok(figure)
}

/// The stage with the most weights, by the firmest evidence there is.
fn heaviest_found(found: &Found, options: &WeightOptions) -> Result<Bill, ParallelError> {
    if found.weights == Weights::Computed {
        return Ok(heaviest(&found.model, options)?.1);
    }
    let mut best = found.bill(&WeightOptions { stage: 0, ..*options })?;
    for stage in 1..options.parallel.pp.min(1024) {
        let next = found.bill(&WeightOptions { stage, ..*options })?;
        if next.per_rank.mid > best.per_rank.mid {
            best = next;
        }
    }
    Ok(best)
}

fn sglang_options(args: &ServerArgs) -> Result<WeightOptions, ParallelError> {
    let dp = if args.enable_dp_attention { args.dp_size } else { 1 };
    // Ranks of attention context parallelism hold the same heads.
    let dp = dp.saturating_mul(args.attention_cp_size.max(1));
    let [tp, pp, ep, dp] = [args.tp_size, args.pp_size, args.ep_size, dp].map(u64::from);
    let builtin =
        args.speculative_algorithm.is_some() && args.speculative_draft_model_path.is_none();
    Ok(WeightOptions {
        parallel: Parallel::sglang(tp, pp, ep, dp)?,
        dtype: dtype(args.dtype.as_deref()),
        draft: if builtin { DraftWeights::Loaded } else { DraftWeights::Unused },
        vision: if args.language_only { VisionUse::Skipped } else { VisionUse::Loaded },
        ..WeightOptions::new(Loader::Sglang)
    })
}

fn vllm_options(args: &EngineArgs) -> Result<WeightOptions, ParallelError> {
    let [tp, pp, dp] =
        [args.tensor_parallel_size, args.pipeline_parallel_size, args.data_parallel_size]
            .map(u64::from);
    let split = if args.enable_expert_parallel { ExpertSplit::Whole } else { ExpertSplit::Width };
    Ok(WeightOptions {
        parallel: Parallel::vllm(tp, pp, dp, split)?,
        dtype: dtype(args.dtype.as_deref()),
        draft: match args.drafts_with_own_layers() {
            true => DraftWeights::Loaded,
            false => DraftWeights::Unused,
        },
        vision: if args.language_model_only { VisionUse::Skipped } else { VisionUse::Loaded },
        mxfp4: if args.version < Version::new(0, 12, 0) {
            Mxfp4Layout::Padded
        } else {
            Mxfp4Layout::Unknown
        },
        ..WeightOptions::new(Loader::Vllm)
    })
}

/// `--dtype`; `auto` and what is not a dtype leave the engine's choice.
fn dtype(name: Option<&str>) -> Option<Dtype> {
    match name? {
        "bfloat16" => Some(Dtype::Bf16),
        "half" | "float16" => Some(Dtype::F16),
        "float" | "float32" => Some(Dtype::F32),
        _ => None,
    }
}
