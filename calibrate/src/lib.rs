//! Fits the time model and the memory remainders of a profile to what was measured.
