//! The laptop backend and the float32 minimum against recorded runs.

use super::{Tally, tables};
use plimsoll_core::{
    policy::sglang::{
        mlx::{self, MlxInputs},
        readings::{min_over_ranks, through_float32},
    },
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

#[test]
fn every_row_of_the_laptop_pool_is_equal() {
    let mut unequal = 0;
    for table in tables("sglang-", &["mlx_active_bytes", "pool_slots"]) {
        let mut tally = Tally::default();
        for row in table.rows() {
            tally.row();
            let inputs = MlxInputs {
                mem_fraction_static: row.needed("mem_fraction_static"),
                working_set: Bytes(row.needed("working_set_bytes")),
                mlx_active: Bytes(row.needed("mlx_active_bytes")),
                system_available: Bytes(row.needed("system_available_bytes")),
                attention_layers: row.needed("attention_layers"),
                full_attention_layers: row.needed("full_attention_layers"),
                kv_heads: row.needed("kv_heads"),
                head_dim: row.needed("head_dim"),
                kv_itemsize: row.needed("kv_itemsize_bytes"),
                max_total_tokens: row.number("max_total_tokens_in"),
                max_running_requests: None,
            };
            match mlx::size(&inputs) {
                Ok(pool) => {
                    tally.check(&row, "bytes_per_slot", &pool.bytes_per_slot.0.to_string());
                    tally.check(&row, "pool_slots", &pool.slots.0.to_string());
                }
                Err(refusal) => tally.differs(&row, "error", "none", &refusal.to_string()),
            }
        }
        unequal += tally.close(&table);
    }
    assert_eq!(unequal, 0);
}
