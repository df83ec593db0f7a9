//! The engine behind its handle.

mod handle;
mod status;

pub use handle::{
    Command, Ended, Engine, EngineEnd, Event, Matched, Piece, Refusal, Submission, Ticket,
    TokenUse, channel,
};
pub use status::{EngineInfo, MemoryRow, Phase, Status, Totals};
