//! Logs of whole runs, written by hand: the shapes that a checker, a timeline and a ledger are tried on.

use plimsoll_replay::{
    record::{DigestScope, Fields, Record},
    wire::{Closing, Log, LogWriter},
};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const MS: u64 = 1_000_000;

/// Writes records and keeps the few sums that they must agree on.
pub(crate) struct Life {
    records: Vec<Record>,
    ranks: u32,
    free: u64,
    reserved: u64,
    step: u64,
    now: u64,
    /// used, evictable
    tokens: (u64, u64),
    running: u64,
    waiting: u64,
    finished: u64,
}

const POOL: u64 = 10_000;
const TOTAL: u64 = 40 * GIB;

impl Life {
    /// A server that is ready: 24 GiB of weights, 10 of pool, 2 of graphs; 3 GiB free on each rank.
    pub(crate) fn ready(ranks: u32) -> Self {
        let mut life = Self {
            records: Vec::new(),
            ranks,
            free: TOTAL,
            reserved: 0,
            step: 0,
            now: 0,
            tokens: (0, 0),
            running: 0,
            waiting: 0,
            finished: 0,
        };
        for rank in 0..ranks {
            life.push(
                Record::new("capacity_read")
                    .on_rank(rank)
                    .with("tool_bytes", TOTAL + GIB)
                    .with("total_bytes", TOTAL)
                    .with("others_bytes", 0_u64),
            );
        }
        life.push(Record::new("settings_resolved").with("mem_fraction_static", 0.9));
        life.start_segment("context", GIB);
        life.start_segment("weights", 24 * GIB);
        life.push(
            Record::new("pool_sized")
                .with("max_total_num_tokens", POOL)
                .with("kv_pool_bytes", 10 * GIB),
        );
        life.start_segment("kv_pool", 10 * GIB);
        life.start_segment("graphs", 2 * GIB);
        for rank in 0..ranks {
            let free = life.free;
            life.push(
                Record::new("reading")
                    .on_rank(rank)
                    .with("point", "after_graphs")
                    .with("free_bytes", free),
            );
        }
        life.push(Record::new("ready"));
        life
    }

    pub(crate) fn serving(ranks: u32) -> Self {
        let mut life = Self::ready(ranks);
        life.push(
            Record::new("serving_started")
                .with("pool_tokens", POOL)
                .with("page_size", 1_u64)
                .with("max_running_requests", 4_u64)
                .with("chunked_prefill_size", 512_u64),
        );
        life
    }

    pub(crate) fn push(&mut self, record: Record) {
        self.records.push(record);
    }

    fn start_segment(&mut self, account: &str, size: u64) {
        for rank in 0..self.ranks {
            self.push(
                Record::new("segment_allocated")
                    .on_rank(rank)
                    .with("account", account)
                    .with("place", "device")
                    .with("size_bytes", size),
            );
        }
        self.free -= size;
    }

    /// The caching allocator of every rank takes a segment.
    pub(crate) fn take(&mut self, size: u64) {
        self.segments("segment_allocated", size);
        (self.free, self.reserved) = (self.free - size, self.reserved + size);
    }

    /// It gives one back.
    pub(crate) fn give(&mut self, size: u64) {
        self.segments("segment_freed", size);
        (self.free, self.reserved) = (self.free + size, self.reserved - size);
    }

    fn segments(&mut self, kind: &str, size: u64) {
        for rank in 0..self.ranks {
            let record = Record::new(kind).on_rank(rank).with("account", "activations");
            let record = record.with("place", "device").with("size_bytes", size);
            let step = self.step;
            self.push(record.with("step", step));
        }
    }

    pub(crate) fn arrive(&mut self, request: u64, prompt: u64, outputs: u64) {
        let now = self.now;
        self.push(
            Record::new("request_arrived")
                .with("request", request)
                .with("at_ns", now)
                .with("prompt_tokens", prompt)
                .with("max_new_tokens", outputs),
        );
        self.waiting += 1;
    }

    pub(crate) fn admit(&mut self, request: u64, prefix: u64, extend: u64, chunked: u64) {
        let step = self.step;
        self.push(
            Record::new("admitted")
                .with("step", step)
                .with("request", request)
                .with("prefix_tokens", prefix)
                .with("extend_tokens", extend)
                .with("chunked", chunked),
        );
    }

    fn usage(&self, record: Record) -> Record {
        let (used, evictable) = self.tokens;
        record
            .with("used_tokens", used)
            .with("available_tokens", POOL - used - evictable)
            .with("evictable_tokens", evictable)
            .with("running", self.running)
            .with("waiting", self.waiting)
            .with("free_bytes", self.free)
            .with("peak_bytes", self.reserved)
            .with("reserved_bytes", self.reserved)
    }

    /// A pass over what was admitted; `joined` requests run after it.
    pub(crate) fn pass(&mut self, mode: &str, requests: u64, tokens: (u64, u64), joined: u64) {
        (self.running, self.waiting) = (self.running + joined, self.waiting - joined);
        self.tokens.0 += tokens.0;
        let record = Record::new("step")
            .with("step", self.step)
            .with("mode", mode)
            .with("requests", requests)
            .with("tokens", tokens.0)
            .with("prefix_tokens", tokens.1)
            .with("at_ns", self.now)
            .with("elapsed_ns", 100 * MS);
        let record = self.usage(record).with_measured("elapsed_real_ns", 5_u64);
        self.push(record);
        self.step += 1;
        self.now += 100 * MS;
    }

    pub(crate) fn decode(&mut self, steps: u64) {
        self.decode_of(self.running, steps);
    }

    pub(crate) fn decode_of(&mut self, requests: u64, steps: u64) {
        self.tokens.0 += steps * requests;
        let record = Record::new("decode_run")
            .with("first_step", self.step)
            .with("steps", steps)
            .with("requests", requests)
            .with("at_ns", self.now)
            .with("elapsed_ns", 20 * MS * steps);
        let record = self.usage(record);
        self.push(record);
        self.step += steps;
        self.now += 20 * MS * steps;
    }

    pub(crate) fn finish(&mut self, request: u64, outputs: u64, held: u64) {
        self.finish_as(request, outputs, held, "length");
    }

    pub(crate) fn finish_as(&mut self, request: u64, outputs: u64, held: u64, finish: &str) {
        let (step, now) = (self.step - 1, self.now);
        self.push(
            Record::new("finished")
                .with("step", step)
                .with("request", request)
                .with("at_ns", now)
                .with("output_tokens", outputs)
                .with("finish", finish),
        );
        self.running -= 1;
        // A request that was given up is over, and not finished.
        self.finished += u64::from(finish != "abort");
        self.tokens = (self.tokens.0 - held, self.tokens.1 + held);
    }

    pub(crate) fn retract(&mut self, request: u64, outputs: u64, held: u64) {
        let step = self.step;
        self.push(
            Record::new("retracted")
                .with("step", step)
                .with("request", request)
                .with("output_tokens", outputs)
                .with("lost_tokens", held),
        );
        self.push(Record::new("ratio").with("step", step).with("new_token_ratio", 0.8));
        (self.running, self.waiting) = (self.running - 1, self.waiting + 1);
        self.tokens.0 -= held;
    }

    /// Other programs hold this much of every rank.
    pub(crate) fn others(&mut self, before: u64, held: u64) {
        for rank in 0..self.ranks {
            let (step, now) = (self.step, self.now);
            self.push(
                Record::new("tenant_changed")
                    .on_rank(rank)
                    .with("step", step)
                    .with("at_ns", now)
                    .with("held_bytes", held),
            );
        }
        self.free = self.free + before - held;
    }

    pub(crate) fn leak(&mut self, size: u64) {
        for rank in 0..self.ranks {
            let (step, now) = (self.step, self.now);
            self.push(
                Record::new("leaked")
                    .on_rank(rank)
                    .with("step", step)
                    .with("at_ns", now)
                    .with("size_bytes", size),
            );
        }
        self.free -= size;
    }

    /// The last rank is refused a segment in a prefill, and everything falls.
    pub(crate) fn out_of_memory(&mut self, others: u64, leaked: u64) {
        let (step, now) = (self.step, self.now + 50 * MS);
        self.push(
            Record::new("out_of_memory")
                .on_rank(self.ranks - 1)
                .with("account", "activations")
                .with("requested_bytes", self.free + 2 * MIB)
                .with("free_bytes", self.free)
                .with("block_bytes", self.free + MIB)
                .with("allocated_bytes", self.reserved)
                .with("reserved_bytes", self.reserved)
                .with("buffer", "layer 1 mlp.experts.intermediate_cache13")
                .with("message", "CUDA out of memory.")
                .with("step", step)
                .with("at_ns", now),
        );
        for rank in 0..self.ranks {
            let held = [
                ("driver_reserve", GIB),
                ("other_programs", others),
                ("context", GIB),
                ("weights", 24 * GIB),
                ("kv_pool", 10 * GIB),
                ("graphs", 2 * GIB),
                ("activations", self.reserved),
                ("unaccounted", leaked),
                ("free", self.free),
            ];
            for (account, held) in held.into_iter().filter(|(_, held)| *held > 0) {
                self.push(
                    Record::new("ledger")
                        .on_rank(rank)
                        .with("account", account)
                        .with("held_bytes", held),
                );
            }
        }
        self.push(
            Record::new("step_failed")
                .with("step", step)
                .with("mode", "prefill")
                .with("tokens", 400_u64)
                .with("requests", 1_u64)
                .with("at_ns", now),
        );
        self.now = now;
        self.fall("out_of_memory");
    }

    fn fall(&mut self, outcome: &str) {
        for rank in 0..self.ranks {
            self.push(Record::new("scheduler_ended").on_rank(rank).with("why", outcome));
        }
        for process in ["scheduler", "detokenizer", "server"] {
            self.push(
                Record::new("process_ended")
                    .with("process", process)
                    .with("by", "parent")
                    .with("how", "SIGQUIT"),
            );
        }
        let (running, waiting, finished) = (self.running, self.waiting, self.finished);
        self.push(
            Record::new("server_ended")
                .with("by", outcome)
                .with("running", running)
                .with("waiting", waiting)
                .with("finished", finished),
        );
        self.end(outcome);
    }

    /// The scheduler dies of slots.
    pub(crate) fn fatal(&mut self) {
        let (step, now) = (self.step, self.now);
        self.push(
            Record::new("scheduler_fatal")
                .with("code", "decode_out_of_slots")
                .with("message", "no slot")
                .with("step", step)
                .with("at_ns", now),
        );
        self.fall("fatal");
    }

    pub(crate) fn end(&mut self, outcome: &str) {
        let record = Record::new("run_ended")
            .with("outcome", outcome)
            .with("at_ns", self.now)
            .with("steps", self.step)
            .with("finished", self.finished)
            .with("running", self.running)
            .with("waiting", self.waiting)
            .with("used_tokens", self.tokens.0);
        self.push(record);
    }

    pub(crate) fn text(&self, closing: Closing) -> String {
        let mut header = Fields::default();
        header.push(DigestScope::Decisions, "scenario", "by-hand");
        header.push(DigestScope::Decisions, "seed", 1_u64);
        let mut writer = LogWriter::new(Vec::new(), &header).unwrap();
        for record in &self.records {
            writer.push(record.clone()).unwrap();
        }
        String::from_utf8(writer.finish(closing).unwrap().0).unwrap()
    }

    pub(crate) fn log(&self) -> Log {
        Log::read(self.text(Closing::Complete).as_bytes()).unwrap()
    }
}

/// Two ranks, see [`survives_on`].
pub(crate) fn survives() -> Life {
    survives_on(2)
}

/// Three requests: one in two chunks, one retracted, one refused; neighbours come and go, memory leaks;
/// everything finishes.
pub(crate) fn survives_on(ranks: u32) -> Life {
    let mut life = Life::serving(ranks);
    life.arrive(0, 700, 12);
    life.arrive(1, 300, 12);
    life.take(512 * MIB);
    life.take(256 * MIB);
    life.admit(0, 0, 512, 1);
    life.pass("prefill", 1, (512, 0), 0);
    life.arrive(9, 99_000, 12);
    life.push(Record::new("request_refused").with("request", 9_u64).with("code", "too_long"));
    life.waiting -= 1;

    life.admit(0, 512, 188, 0);
    life.admit(1, 0, 300, 0);
    life.pass("prefill", 2, (488, 512), 2);
    life.decode(5);
    life.others(0, GIB);
    life.decode(2);
    life.leak(128 * MIB);
    life.retract(1, 8, 307);
    life.give(256 * MIB);
    life.decode(4);
    life.finish(0, 12, 711);
    life.push(
        Record::new("deferred")
            .with("step", 13_u64)
            .with("request", 1_u64)
            .with("reason", "no_token")
            .with("needed_tokens", 400_u64)
            .with("available_tokens", -3_i64),
    );
    life.push(
        Record::new("evicted")
            .with("step", 13_u64)
            .with("asked_tokens", 400_u64)
            .with("freed_tokens", 711_u64),
    );
    life.tokens.1 -= 711;
    life.others(GIB, 0);
    life.admit(1, 0, 308, 0);
    life.pass("prefill", 1, (308, 0), 1);
    life.decode(3);
    life.finish(1, 12, 311);
    life.end("finished");
    life
}

/// A prefill that dies beside a neighbour that grew, on the second of two ranks.
pub(crate) fn dies() -> Life {
    let mut life = Life::serving(2);
    life.arrive(0, 300, 50);
    life.take(512 * MIB);
    life.admit(0, 0, 300, 0);
    life.pass("prefill", 1, (300, 0), 1);
    life.decode(20);
    life.others(0, GIB);
    life.leak(64 * MIB);
    life.decode(10);
    life.arrive(1, 400, 50);
    life.admit(1, 0, 400, 0);
    life.take(256 * MIB);
    life.out_of_memory(GIB, 64 * MIB);
    life
}
