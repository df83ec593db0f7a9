//! Copies of the prefix cache in the host tier: whole nodes, never more than the host pool holds.

use super::{Found, Subject, count, number};
use crate::record::Record;

#[derive(Default)]
pub(super) struct Tiers {
    /// Tokens of the host pool; `None` where there is none.
    pool: Option<u64>,
    held: u64,
}

impl Subject for Tiers {
    fn take(&mut self, record: &Record, found: &mut Found) {
        match record.kind.as_str() {
            "host_pool_sized" => self.pool = number(record, "host_pool_tokens"),
            "backed_up" => self.backed_up(record, found),
            "loaded_back" => self.loaded_back(record, found),
            "evicted_host" => {
                let freed = count(record, "freed_tokens");
                match self.held.checked_sub(freed) {
                    Some(left) => self.held = left,
                    None => {
                        let held = self.held;
                        found.say(record, format!("{freed} host slots are freed of {held} held"));
                    }
                }
            }
            _ => {}
        }
    }

    fn close(&mut self, _last: &Record, _found: &mut Found) {}
}

impl Tiers {
    fn backed_up(&mut self, record: &Record, found: &mut Found) {
        let (tokens, stored) = (count(record, "tokens"), count(record, "stored_tokens"));
        if stored != 0 && stored != tokens {
            found.say(record, format!("{stored} of the {tokens} tokens of a node are copied"));
        }
        self.held = self.held.saturating_add(stored);
        let (held, pool) = (self.held, self.pool.unwrap_or(0));
        if held > pool {
            found.say(record, format!("{held} tokens are held in a host pool of {pool}"));
        }
    }

    fn loaded_back(&self, record: &Record, found: &mut Found) {
        let (there, loaded) = (count(record, "host_tokens"), count(record, "loaded_tokens"));
        if loaded != 0 && loaded != there {
            found.say(record, format!("{loaded} of {there} tokens that the host holds are loaded"));
        }
        if there > self.held {
            let held = self.held;
            found.say(record, format!("{there} tokens are found on the host, which holds {held}"));
        }
    }
}
