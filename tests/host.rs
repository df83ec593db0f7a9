//! Machines: what every backend must do alike, and real memory of this process.

#[cfg(target_os = "linux")]
mod child;
mod conformance;
#[cfg(target_os = "linux")]
mod control_group;
mod faulty;
mod lives;
mod lockstep;
mod observed;
#[cfg(target_os = "linux")]
mod resident;
