//! The engine behind its handle.

mod asked;
mod body;
mod handle;
mod model;
mod run;
mod status;

pub use handle::{
    Command, Ended, Engine, EngineEnd, Event, Events, Matched, NobodyListens, Piece, Refusal,
    Submission, Ticket, TokenUse, channel,
};
pub(crate) use model::failed;
pub use model::{Chosen, Model};
pub use run::{EngineError, Loaded, Pressure, run};
pub use status::{EngineInfo, MemoryRow, Phase, Status, Totals};
