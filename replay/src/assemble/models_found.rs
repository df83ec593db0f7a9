//! A model by name: its geometry and the weights of one rank.

use super::{AssembleError, Places};
use crate::start::{CaseModel, ModelKind};
use plimsoll_ingest::launch::EngineLaunch;

/// Looks a model up: a path, the local hub cache, the catalog.
pub(super) fn look_up(
    name: &str,
    _engine: &EngineLaunch,
    _places: &Places,
) -> Result<CaseModel, AssembleError> {
    let row = plimsoll_catalog::models::find(name).map_err(AssembleError::new)?;
    let value: serde_json::Value = serde_yaml::from_str(row.2).map_err(AssembleError::new)?;
    let model =
        plimsoll_core::model::config::from_value(name, &value).map_err(AssembleError::new)?;
    Ok(CaseModel {
        name: name.to_owned(),
        origin: "catalog".to_owned(),
        kind: ModelKind::Known(Box::new(model.geometry)),
        draft: None,
        weights: None,
        draft_weights: None,
        notes: model.notes,
    })
}
