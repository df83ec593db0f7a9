//! Tests of the scheduler.
