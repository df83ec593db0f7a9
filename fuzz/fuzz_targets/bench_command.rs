//! See `plimsoll_fuzz_entries::bench_command`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| plimsoll_fuzz_entries::bench_command(data));
