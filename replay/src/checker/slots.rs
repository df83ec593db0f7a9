//! Token slots, where the log has them: none taken twice, none freed that is not held, none lost.
//!
//! That a slot is lost can only be said at the end: then every slot that was taken and not freed must be one
//! that the prefix cache says it owns (`slots_cached`, which the engine reads from the cache itself, not
//! from what was taken).

use super::{Found, Subject, count, either, is_pass, number, text};
use crate::{
    record::{FieldValue, Fields, Record},
    run::DETAIL_SLOTS,
};
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Slots {
    /// Taken slots, as first → length; neighbours are not joined.
    taken: BTreeMap<u64, u64>,
    held: u64,
    present: bool,
    pool: Option<u64>,
    page: u64,
}

impl Subject for Slots {
    fn take(&mut self, record: &Record, found: &mut Found) {
        match record.kind.as_str() {
            "serving_started" => {
                self.pool = number(record, "pool_tokens");
                self.page = either(record, ["page_size", "block_size"]).unwrap_or(1).max(1);
            }
            "slots_taken" => self.each(record, found, Self::take_run),
            "slots_freed" => self.each(record, found, |slots, first, length| {
                slots
                    .give_run(first, length)
                    .map_err(|at| format!("slot {at} is freed, and was not taken"))
            }),
            "slots_cached" => self.each(record, found, |slots, first, length| {
                let why = |at| format!("the prefix cache owns slot {at}, and it was not taken");
                slots.give_run(first, length).map_err(why)
            }),
            "run_ended" if self.present && text(record, "outcome") == "finished" => {
                if let Some((first, _)) = self.taken.first_key_value() {
                    let held = self.held;
                    found.say(record, format!("{held} slots are lost, the first is {first}"));
                }
            }
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
    /// For a log with this header: where it promises slots, their absence is a finding.
    pub(super) fn of(header: &Fields) -> Self {
        let slots = |detail: &FieldValue| *detail == FieldValue::Text(DETAIL_SLOTS.to_owned());
        Self { present: header.get("detail").is_some_and(slots), ..Self::default() }
    }

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
            if let Err(what) =
                self.fits(pair[0], pair[1]).and_then(|()| change(self, pair[0], pair[1]))
            {
                found.say(record, what);
            }
        }
    }

    /// Whole pages of the pool; the first page is a dummy that nobody gets.
    fn fits(&self, first: u64, length: u64) -> Result<(), String> {
        let (page, end) = (self.page.max(1), first.saturating_add(length));
        if !first.is_multiple_of(page) || !length.is_multiple_of(page) {
            return Err(format!("slots {first} to {end} are no whole pages of {page}"));
        }
        let most = self.pool.map(|pool| (pool / page * page).saturating_add(page));
        if first < page || most.is_some_and(|most| end > most) {
            return Err(format!("slots {first} to {end} are not of this pool"));
        }
        Ok(())
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

    /// Gives slots up that may lie in several taken runs, or in the middle of one.
    ///
    /// # Errors
    ///
    /// The first of them that was not taken.
    fn give_run(&mut self, first: u64, length: u64) -> Result<(), u64> {
        let end = first.saturating_add(length);
        let mut at = first;
        while at < end {
            let run = self.taken.range(..=at).next_back().map(|(start, long)| (*start, *long));
            let Some((start, long)) = run.filter(|(start, long)| start + long > at) else {
                return Err(at);
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
