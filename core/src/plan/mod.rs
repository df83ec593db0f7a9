//! Advice from a sized start: the window of the fraction, and the value to pass.

mod advice;
mod load_line;

pub use advice::{Advice, AdviceInputs, Evidence, Tenancy, advise};
pub use load_line::{LoadLine, Window};
