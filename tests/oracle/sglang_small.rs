//! The laptop backend and the float32 minimum against recorded runs.

use super::{Tally, tables};
use plimsoll_core::{
    policy::sglang::readings::{min_over_ranks, through_float32},
    units::Bytes,
};

#[test]
fn every_row_of_the_float32_minimum_is_equal() {
    let mut unequal = 0;
    for table in tables("sglang-", &["bytes_after_float32", "free_bytes_min_rank"]) {
        let mut tally = Tally::default();
        for row in table.rows() {
            tally.row();
            let free = Bytes(row.needed("free_bytes_min_rank"));
            tally.check(&row, "bytes_after_float32", &through_float32(free).0.to_string());
            let larger = Bytes(free.0 + (1 << 30));
            let expected: f64 = row.needed("gib_used_in_budget");
            let got = min_over_ranks(&[larger, free]);
            if got != expected {
                tally.differs(&row, "gib_used_in_budget", &expected.to_string(), &got.to_string());
            }
        }
        unequal += tally.close(&table);
    }
    assert_eq!(unequal, 0);
}
