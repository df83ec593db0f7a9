//! Finding a model: a file, the local hub cache, the catalog, or the user's own figures.

use super::{AssembleError, Places};
use crate::{
    scenario::{ModelSource, Scenario},
    start::{CaseModel, KnownCellModel, ModelKind},
};
use plimsoll_core::{
    engine::KnownCell,
    estimate::Figure,
    figure::{Estimate, Tag, Why},
    units::{Bytes, Tokens},
};
use plimsoll_ingest::launch::EngineLaunch;

/// The user's own figures of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFigures {
    /// Bytes that one token takes on one rank.
    pub kv_bytes_per_token: Option<Bytes>,
    /// Weights of one rank.
    pub weights: Option<Bytes>,
    /// Longest sequence, tokens.
    pub context_length: Option<u64>,
    /// Layers.
    pub layers: Option<u64>,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelAsk {
    /// A hub id, a catalog name, or a path; `None` when only figures are given.
    pub name: Option<String>,
    /// Figures that replace or stand alone.
    pub figures: ModelFigures,
    /// Draft model of the launch.
    pub draft: Option<String>,
}

impl ModelAsk {
    /// The launch's own model.
    #[must_use]
    pub fn of_launch(engine: &EngineLaunch) -> Self {
        let (name, draft) = match engine {
            EngineLaunch::Sglang(args) => {
                (args.model_path.clone(), args.speculative_draft_model_path.clone())
            }
            EngineLaunch::Vllm(args) => (args.model.clone(), args.speculative_model.clone()),
        };
        Self { name: Some(name), figures: ModelFigures::default(), draft }
    }

    /// The scenario's model, else its launch's.
    #[must_use]
    pub fn of_scenario(scenario: &Scenario, engine: &EngineLaunch) -> Self {
        let mut ask = Self::of_launch(engine);
        let Some(model) = &scenario.model else { return ask };
        let given = &model.figures;
        ask.figures = ModelFigures {
            kv_bytes_per_token: given.kv_bytes_per_token,
            weights: given.weights,
            context_length: given.context_length,
            layers: given.layers,
        };
        match &model.source {
            Some(ModelSource::Catalog(name)) => ask.name = Some(name.clone()),
            Some(ModelSource::Config(path) | ModelSource::Gguf(path)) => {
                ask.name = Some(path.display().to_string());
            }
            None if given.kv_bytes_per_token.is_some() => ask.name = None,
            None => {}
        }
        ask
    }
}

/// Finds the model and its weights on one rank.
///
/// # Errors
///
/// A model that nothing knows, with near names and what to give instead.
pub fn find_model(
    ask: &ModelAsk,
    engine: &EngineLaunch,
    places: &Places,
) -> Result<CaseModel, AssembleError> {
    let Some(name) = &ask.name else { return cell_model(ask, "model of the scenario") };
    let found = match super::models_found::look_up(name, engine, places) {
        Ok(found) => found,
        Err(_) if ask.figures.kv_bytes_per_token.is_some() => return cell_model(ask, name),
        Err(error) => return Err(error),
    };
    let mut model = found;
    if let Some(draft) = &ask.draft {
        let draft = super::models_found::look_up(draft, engine, places)?;
        if let ModelKind::Known(geometry) = draft.kind {
            model.draft = Some(geometry);
        }
        model.draft_weights = draft.weights;
    }
    apply(&mut model, &ask.figures);
    Ok(model)
}

/// The user's figures win over what the source says.
fn apply(model: &mut CaseModel, figures: &ModelFigures) {
    if let Some(bytes) = figures.weights {
        model.weights = Some(given_weights(bytes));
    }
    if let (Some(context), ModelKind::Known(geometry)) = (figures.context_length, &mut model.kind) {
        geometry.context_len = Tokens(context);
    }
}

fn given_weights(bytes: Bytes) -> Figure {
    let why = Why::new(Tag::Measured, "weights of one rank, as given", "user");
    Figure { value: Estimate::exact(bytes), why }
}

fn cell_model(ask: &ModelAsk, name: &str) -> Result<CaseModel, AssembleError> {
    let Some(bytes_per_token) = ask.figures.kv_bytes_per_token else {
        return Err(AssembleError::new("a model needs a name or `kv_bytes_per_token`"));
    };
    let cell = KnownCell {
        bytes_per_token,
        layers: ask.figures.layers.unwrap_or(1),
        context_len: ask.figures.context_length.unwrap_or(32_768),
    };
    let mut notes =
        vec!["only the bytes of a token are known: activations and graphs are not".to_owned()];
    if ask.figures.context_length.is_none() {
        notes.push("the context is not known: 32,768 tokens are assumed".to_owned());
    }
    Ok(CaseModel {
        name: name.to_owned(),
        origin: "figures as given".to_owned(),
        kind: ModelKind::Cell(KnownCellModel { cell }),
        divided: None,
        draft: None,
        weights: ask.figures.weights.map(given_weights),
        draft_weights: None,
        notes,
    })
}
