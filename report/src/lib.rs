//! What a run looked like: one HTML page without network, and a trace for Perfetto.
//!
//! Both are made from the records of a run as they come, so that neither needs the log in memory: a
//! [`Collector`] keeps what fits on a page, a [`TraceWriter`] keeps the requests that are alive.

mod collect;
mod column;
mod data;
mod html;
mod items;
mod page;
mod row;
mod thin;
mod trace;

pub use collect::{Collected, Collector, CrashSeen, Phase};
pub use column::{Column, decode};
pub use page::{Told, page};
pub use row::{Counts, Doing, RankLevels, Row, Span};
pub use thin::{Budget, Thin};
pub use trace::TraceWriter;

/// What stands near the beginning of every page: no other file is overwritten.
pub const REPORT_MARK: &str = "plimsoll.report/1";
/// What stands near the beginning of every trace.
pub const TRACE_MARK: &str = "plimsoll.trace/1";
