//! What a run looked like: one HTML page without network, and a trace for Perfetto.
