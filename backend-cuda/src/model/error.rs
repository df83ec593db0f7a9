//! Why a model on CUDA is not opened, not loaded, or takes no step: no memory, a plan that does not fit,
//! a lost device, a missing library, or a mistake of the caller, each with its numbers.

use super::pages::PageError;
use crate::failure::{Failure, OpenError};
use plimsoll_core::{
    backend::BackendError,
    policy::plimsoll::{CellError, device::DeviceRefusal},
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
    /// It does not fit the device.
    #[error("device {device}: {refusal}")]
    Refused {
        /// CUDA ordinal.
        device: u32,
        /// With the numbers.
        refusal: DeviceRefusal,
    },
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
    /// The device refuses memory. What was taken before is given back by who holds it.
    #[error(
        "device {device} has no memory for {what}: {requested} asked for, {free} free ({call})"
    )]
    OutOfMemory {
        /// CUDA ordinal.
        device: u32,
        /// For what.
        what: &'static str,
        /// How much of it was asked for.
        requested: Bytes,
        /// What was free then.
        free: Bytes,
        /// The call that failed.
        call: &'static str,
    },
    /// The device answers nothing any more.
    #[error("device {device} is lost: {call}")]
    Lost {
        /// CUDA ordinal.
        device: u32,
        /// The call and CUDA's name of the error.
        call: String,
    },
    /// A library is not there or answers with an error of its own, or the driver refuses a call.
    #[error("device {device}, {what}: {failure}")]
    Device {
        /// CUDA ordinal.
        device: u32,
        /// What it was for.
        what: &'static str,
        /// What failed.
        failure: Failure,
    },
    /// Memory is held on the device that nobody claims.
    #[error(
        "device {device}: {unexplained} of its memory is taken by nobody that is known, and \
         unexplained memory is not allowed"
    )]
    Unexplained {
        /// CUDA ordinal.
        device: u32,
        /// How much.
        unexplained: Bytes,
    },
    /// More than the arena is planned for.
    #[error("a step of {tokens} tokens and {outputs} outputs; planned: {} and {}", limits.tokens, limits.outputs)]
    TooLarge {
        /// Tokens asked for.
        tokens: u64,
        /// Outputs asked for.
        outputs: u64,
        /// The plan.
        limits: StepLimits,
    },
    /// More requests, draws or pages of tables than the inputs are planned for.
    #[error("a step of {value} {what}; planned: {most}")]
    TooMany {
        /// Which.
        what: &'static str,
        /// As given.
        value: u64,
        /// The plan.
        most: u64,
    },
    /// A number of a sequence that is out of its range.
    #[error("sequence {sequence}: {error}")]
    Sequence {
        /// Index in the step.
        sequence: usize,
        /// Which.
        error: SequenceError,
    },
    /// A number of a draw that is out of its range.
    #[error("draw {draw}: {what} is {value}")]
    Draw {
        /// Index in the step.
        draw: usize,
        /// Which.
        what: &'static str,
        /// As given.
        value: f64,
    },
    /// A page.
    #[error(transparent)]
    Page(#[from] PageError),
    /// Tape and plan do not belong together: a mistake of this crate.
    #[error("the tape names {0}, which is not there")]
    Tape(&'static str),
}

impl CudaError {
    /// Whether memory was refused; the device stays usable.
    #[must_use]
    pub const fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::Open(OpenError::CardFull(_)))
    }

    /// Whether the device is lost: every further call fails.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        matches!(
            self,
            Self::Lost { .. } | Self::Open(OpenError::Backend(BackendError::DeviceLost(_)))
        )
    }

    /// Whether the model was refused before it was taken: by its plan, its options, or for want of a driver,
    /// a library or memory.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        !self.is_lost()
            && matches!(
                self,
                Self::Open(_)
                    | Self::Shape(_)
                    | Self::Plan(_)
                    | Self::Cell(_)
                    | Self::Refused { .. }
                    | Self::Option { .. }
                    | Self::KvFormat { .. }
                    | Self::OutOfMemory { .. }
                    | Self::Unexplained { .. }
                    | Self::Device { failure: Failure::Missing(_), .. }
            )
    }
}

/// Why a model is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError<E> {
    /// The source of its weights.
    #[error(transparent)]
    Source(E),
    /// A weight came with another extent or too few bytes: a mistake of the source.
    #[error("{0} does not have the extent that the shape gives it")]
    Extent(WeightId),
    /// The device.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// A failure of a card's call, told with what it was for.
pub(crate) fn told(
    device: u32,
    free: impl FnOnce() -> Bytes,
    what: &'static str,
    requested: Bytes,
) -> impl FnOnce(Failure) -> CudaError {
    move |failure| match failure {
        Failure::OutOfMemory(call) => {
            CudaError::OutOfMemory { device, what, requested, free: free(), call }
        }
        Failure::Lost(call) => CudaError::Lost { device, call },
        failure => CudaError::Device { device, what, failure },
    }
}
