//! Plimsoll's own memory plan: what the engine on the host holds, decided before it holds any of it, and what
//! it gives back when others take memory.
//!
//! All of it is whole bytes, and all of it is decided by arguments: a recording of the readings gives the same
//! plan and the same moves again.

mod cell;
pub mod device;
mod part;
mod plan;
mod pressure;
mod readings;
mod refusal;
mod settings;
#[cfg(test)]
mod tests;

pub use cell::{CellError, KvCell, KvFormat};
pub use part::{Part, PlanRow};
pub use plan::{Budgets, Engine, Plan, plan};
pub use pressure::{Lending, Move, PoolPages, Room};
pub use readings::{GroupRoom, HostReadings, Limit, LimitFrom};
pub use refusal::{Refusal, WayOut};
pub use settings::{PlanArgs, Settings};
