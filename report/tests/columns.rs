//! Columns of integers, there and back.

use plimsoll_report::{Column, decode};
use proptest::prelude::*;

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0_u64), 0_u64..4, any::<u32>().prop_map(u64::from), any::<u64>()]
}

proptest! {
    #[test]
    fn what_is_written_is_read(values in proptest::collection::vec(value(), 0..200)) {
        for column in [Column::Plain, Column::Steps] {
            let text = column.encode(values.iter().copied());
            prop_assert_eq!(decode(column, &text).unwrap(), values.clone());
        }
    }
}

#[test]
fn long_runs_of_one_value_are_short() {
    let same = vec![102_641_958_912_u64; 100_000];
    assert!(Column::Steps.encode(same).len() < 24);
    assert!(Column::Plain.encode(vec![0; 100_000]).len() < 12);
    assert_eq!(decode(Column::Plain, "no base64!"), None);
}
