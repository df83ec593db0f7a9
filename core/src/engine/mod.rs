//! Joins policy and backend: the only place that drives a machine by an engine's rules.

pub mod startup;
