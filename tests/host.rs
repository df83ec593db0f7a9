//! Machines: what every backend must do alike, and real memory of this process.

mod conformance;
