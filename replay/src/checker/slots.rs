//! Token slots, where the log has them: none taken twice, none freed that is not held, none lost.

use super::{Found, Subject, count, is_pass};
use crate::record::{FieldValue, Record};
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Slots {
    /// Taken slots, as first → length; neighbours are not joined.
    taken: BTreeMap<u64, u64>,
    held: u64,
    present: bool,
}

impl Subject for Slots {
    fn take(&mut self, record: &Record, found: &mut Found) {
        match record.kind.as_str() {
            "slots_taken" => self.each(record, found, Self::take_run),
            "slots_freed" => self.each(record, found, Self::free_run),
            _ if is_pass(record) && self.present => {
                let there =
                    count(record, "used_tokens").saturating_add(count(record, "evictable_tokens"));
                if there != self.held {
                    let held = self.held;
                    found.say(record, format!("{there} slots are in use, {held} were taken"));
                }
            }
            _ => {}
        }
    }

    fn close(&mut self, _last: &Record, _found: &mut Found) {}
}

impl Slots {
    fn each(
        &mut self,
        record: &Record,
        found: &mut Found,
        change: fn(&mut Self, u64, u64) -> Result<(), String>,
    ) {
        self.present = true;
        let Some(FieldValue::List(runs)) = record.fields.get("runs") else {
            return found.say(record, "its `runs` are no list");
        };
        let numbers: Option<Vec<u64>> = runs
            .iter()
            .map(|value| match value {
                FieldValue::Unsigned(n) => Some(*n),
                _ => None,
            })
            .collect();
        let Some(numbers) = numbers.filter(|numbers| numbers.len() % 2 == 0) else {
            return found.say(record, "its `runs` are no pairs of numbers");
        };
        for pair in numbers.chunks_exact(2) {
            if let Err(what) = change(self, pair[0], pair[1]) {
                found.say(record, what);
            }
        }
    }

    fn take_run(&mut self, first: u64, length: u64) -> Result<(), String> {
        let end = first.saturating_add(length);
        let before = self.taken.range(..end).next_back();
        if let Some((other, long)) = before.filter(|(other, long)| *other + *long > first) {
            return Err(format!(
                "slots {first} to {end} are taken, and {other} to {} were not free",
                other + long
            ));
        }
        if length > 0 {
            self.taken.insert(first, length);
            self.held += length;
        }
        Ok(())
    }

    /// Frees slots that may lie in several taken runs, or in the middle of one.
    fn free_run(&mut self, first: u64, length: u64) -> Result<(), String> {
        let end = first.saturating_add(length);
        let mut at = first;
        while at < end {
            let run = self.taken.range(..=at).next_back().map(|(start, long)| (*start, *long));
            let Some((start, long)) = run.filter(|(start, long)| start + long > at) else {
                return Err(format!("slot {at} is freed, and was not taken"));
            };
            let stop = end.min(start + long);
            self.taken.remove(&start);
            if start < at {
                self.taken.insert(start, at - start);
            }
            if stop < start + long {
                self.taken.insert(stop, start + long - stop);
            }
            self.held -= stop - at;
            at = stop;
        }
        Ok(())
    }
}
