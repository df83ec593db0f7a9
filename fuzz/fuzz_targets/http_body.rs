//! See `plimsoll_fuzz_entries::http_body`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| plimsoll_fuzz_entries::http_body(data));
