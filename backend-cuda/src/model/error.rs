//! Why a model on CUDA is not opened, not loaded, or takes no step: no memory, a plan that does not fit,
//! a lost device, a missing library, or a mistake of the caller, each with its numbers.

use super::pages::PageError;
use crate::failure::{Failure, OpenError};
use plimsoll_core::{
    policy::plimsoll::CellError,
    tape::own::{PlanError, SequenceError, ShapeError, StepLimits, WeightId},
    units::Bytes,
};

/// An error of a model on CUDA.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// No usable driver or device.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The model's shape.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// Its arena.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A page of its pool.
    #[error(transparent)]
    Cell(#[from] CellError),
    /// An option out of its range.
    #[error("{what} is {value}; allowed: {allowed}")]
    Option {
        /// Which.
        what: &'static str,
        /// As given.
        value: u64,
        /// What would be right.
        allowed: String,
    },
    /// A KV format that the kernels do not have in this arithmetic.
    #[error("keys and values in {given} with this arithmetic; allowed: {allowed}")]
    KvFormat {
        /// As given.
        given: &'static str,
        /// What would be right.
        allowed: String,
    },
}
