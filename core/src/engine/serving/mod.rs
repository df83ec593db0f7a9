//! The life of a server from the moment when it is ready: requests, steps, memory, and its end.

mod changes;
mod clients;

pub use changes::{Change, TimedChange, When};
pub use clients::{Arrival, Clients, Sampling, SamplingChoice};
