//! `diagnose` as its users run it.
