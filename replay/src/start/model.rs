//! What a start knows of its model.

use plimsoll_core::{
    engine::KnownCell,
    estimate::Figure,
    model::{detail::Model, geometry::ModelGeometry, weights::WeightOptions},
};

/// A model of which only a cell is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownCellModel {
    /// Its cell.
    pub cell: KnownCell,
}

/// What is known.
#[derive(Clone, PartialEq, Debug)]
pub enum ModelKind {
    /// The geometry.
    Known(Box<ModelGeometry>),
    /// Only a cell.
    Cell(KnownCellModel),
}

/// A model with all that its weights and its arithmetic depend on, and how they are divided.
#[derive(Clone, PartialEq, Debug)]
pub struct DividedModel {
    /// As read.
    pub model: Model,
    /// Division over ranks and storage.
    pub weights: WeightOptions,
}

/// The model of a case.
#[derive(Clone, PartialEq, Debug)]
pub struct CaseModel {
    /// As asked for.
    pub name: String,
    /// Where it was found.
    pub origin: String,
    /// Target.
    pub kind: ModelKind,
    /// The same with what only weights and times need; `None` when only a cell is known.
    pub divided: Option<Box<DividedModel>>,
    /// Draft model, where one is named.
    pub draft: Option<Box<ModelGeometry>>,
    /// Weights of the target on one rank, with what loading makes of them; `None` when nothing tells.
    pub weights: Option<Figure>,
    /// Weights of the draft on one rank.
    pub draft_weights: Option<Figure>,
    /// What is weaker than a verified rule.
    pub notes: Vec<String>,
}

impl CaseModel {
    /// The geometry, where it is known.
    #[must_use]
    pub const fn geometry(&self) -> Option<&ModelGeometry> {
        match &self.kind {
            ModelKind::Known(geometry) => Some(geometry),
            ModelKind::Cell(_) => None,
        }
    }
}
