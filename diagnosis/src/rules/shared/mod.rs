//! What any server can die of: the host's memory, shared memory, a driver, words that mean something else.

mod driver;
mod host_memory;
mod texts;

use super::Rule;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    texts::known,
    host_memory::host_killed,
    host_memory::no_space,
    driver::driver_refused,
    driver::no_pages,
    driver::metal,
    driver::device_error,
    texts::plain_error,
];
