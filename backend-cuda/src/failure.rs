//! What a failed driver call means for a server: no memory now, a mistake of the caller, or the
//! end of the device.

use crate::ffi::Code;
use crate::ffi::library::MissingLibrary;
use crate::probe::ProbeError;
use plimsoll_core::{
    backend::{BackendError, Rank},
    memory::ledger::Account,
    units::Bytes,
};

/// A call of the device layer that failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failure {
    /// No device memory, or no page-locked memory, now; the context stays usable.
    #[error("{0}: out of memory")]
    OutOfMemory(&'static str),
    /// An argument or state that is refused, by the driver or before it was asked; the context
    /// stays usable.
    #[error("{call} refused: {what}")]
    Misuse {
        /// Which call.
        call: &'static str,
        /// The driver's name of it, or what is wrong.
        what: String,
    },
    /// A library that is not there.
    #[error(transparent)]
    Missing(#[from] MissingLibrary),
    /// A library's own status; the device answers still.
    #[error("{call} returned {name} ({code})")]
    Library {
        /// Which call.
        call: &'static str,
        /// The library's name of the status.
        name: String,
        /// The status.
        code: i32,
    },
    /// The context is unusable from now on.
    #[error("{0}")]
    Lost(String),
}

/// Why a backend could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// No usable driver or device.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The ranks name a device that is not visible.
    #[error("there is no CUDA device {device}: the driver shows {visible}")]
    NoSuchDevice {
        /// As asked for.
        device: u32,
        /// How many there are.
        visible: u32,
    },
    /// A rank that reads the card itself shares it with another rank.
    #[error(
        "device {0} is given to several ranks, and one of them reads the card itself: give each a declared share"
    )]
    SharedWhole(u32),
    /// No rank, or a share that holds less than its own reserve and other programs.
    #[error("rank {} has a share without room: {reserved} of {capacity} is reserved or held by others", rank.0)]
    EmptyShare {
        /// Which rank.
        rank: Rank,
        /// Driver reserve and other programs.
        reserved: Bytes,
        /// The declared capacity.
        capacity: Bytes,
    },
    /// A card that is too full to be opened.
    #[error(
        "device {0} has no room for a context and its staging buffers: see `nvidia-smi` for who holds it"
    )]
    CardFull(u32),
    /// The declared shares do not fit the card.
    #[error(
        "the ranks on device {device} declare {declared}, and {free} is free on it: scale the memory down or use a larger card"
    )]
    TooLittle {
        /// Which device.
        device: u32,
        /// Sum of the shares without their driver reserve.
        declared: Bytes,
        /// Free on the card after the context.
        free: Bytes,
    },
    /// Opening itself failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl Failure {
    /// Sorts a code. What is neither a lack of memory nor a refused argument is the end of the
    /// device: the driver documents most of these as sticky (every later call returns them), and
    /// a code that is not known here is not worth a server's data.
    ///
    /// Source: the CUDA driver API's notes on `CUresult`: 2 out of memory; 1, 101, 400, 500, 600
    /// and 801 refused arguments; 200, 209, 218, 221 and 222 device code that it cannot load; 701 a
    /// launch that asks for more than a block may have; 900 to 909 refused captures; 214, 700, 702, 709, 710, 714 to 719
    /// and 999 leave the process in an inconsistent state.
    pub(crate) fn of(call: &'static str, code: Code, name: Option<String>) -> Self {
        let named = |code| name.unwrap_or_else(|| format!("CUDA error {code}"));
        match code.0 {
            2 => Self::OutOfMemory(call),
            code @ (1
            | 101
            | 200
            | 209
            | 218
            | 221
            | 222
            | 400
            | 500
            | 600
            | 701
            | 801
            | 900..=909) => Self::misuse(call, format!("{} ({code})", named(code))),
            code => Self::Lost(format!("{call} returned {} ({code})", named(code))),
        }
    }

    /// What is refused before the driver is asked.
    pub(crate) fn misuse(call: &'static str, what: impl Into<String>) -> Self {
        Self::Misuse { call, what: what.into() }
    }

    /// The error of a call that asked for memory.
    pub(crate) fn asking(
        self,
        rank: Rank,
        account: Account,
        requested: Bytes,
        free: Bytes,
    ) -> BackendError {
        match self {
            Self::OutOfMemory(_) => BackendError::OutOfMemory { rank, account, requested, free },
            other => other.plain(),
        }
    }

    /// The error of a call that asked for no memory.
    pub(crate) fn plain(self) -> BackendError {
        match self {
            Self::Misuse { .. } => BackendError::Unknown("argument that the CUDA driver takes"),
            Self::OutOfMemory(_) => BackendError::DeviceLost(
                "the driver is out of memory for a call that takes none".to_owned(),
            ),
            other => BackendError::DeviceLost(other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_told_apart() {
        assert_eq!(Failure::of("cuMemAlloc", Code(2), None), Failure::OutOfMemory("cuMemAlloc"));
        let refused = Failure::of("cuMemMap", Code(1), Some("CUDA_ERROR_INVALID_VALUE".to_owned()));
        assert_eq!(refused.to_string(), "cuMemMap refused: CUDA_ERROR_INVALID_VALUE (1)");
        let name = Some("CUDA_ERROR_ILLEGAL_ADDRESS".to_owned());
        let lost = Failure::of("cuStreamSynchronize", Code(700), name).plain();
        let text = "device lost: cuStreamSynchronize returned CUDA_ERROR_ILLEGAL_ADDRESS (700)";
        assert_eq!(lost.to_string(), text);
        let unknown = Failure::of("cuMemFree", Code(4242), None);
        assert_eq!(unknown, Failure::Lost("cuMemFree returned CUDA error 4242 (4242)".to_owned()));
    }
}
