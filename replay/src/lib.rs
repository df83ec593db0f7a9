//! Placeholder until its first part lands.
