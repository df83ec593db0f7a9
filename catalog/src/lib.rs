//! Models and devices as data: the embedded catalogs, and models on this machine's disk.
//!
//! Lookups are by name over a table made at build time; only the entry asked for is parsed.

pub mod device_file;
pub mod devices;
pub mod files;
pub mod models;
pub mod table;
