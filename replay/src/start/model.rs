//! What a start knows of its model.

use plimsoll_core::{engine::KnownCell, estimate::Figure, model::geometry::ModelGeometry};

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

/// The model of a case.
#[derive(Clone, PartialEq, Debug)]
pub struct CaseModel {
    /// As asked for.
    pub name: String,
    /// Where it was found.
    pub origin: String,
    /// Target.
    pub kind: ModelKind,
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
