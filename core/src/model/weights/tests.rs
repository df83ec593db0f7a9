//! Tests of the weights.
