//! A model without numbers: what it makes depends on the tokens before, and it reads them from the slots.

use super::*;
use crate::{
    decision::{Digest, Value},
    engine::serving::{Sampling, Watchers},
    kv::Run,
    policy::sglang::version::Version,
    sched::{EosRule, Finish, NewRequest, sglang::LoopKind},
};
use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use std::collections::BTreeMap;

const END: u32 = 7;

/// The next token after `ids`: a mix of all of them.
fn next(ids: &[u64]) -> u32 {
    let mixed = ids.iter().fold(17_u64, |sum, id| (sum ^ id).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    (mixed >> 40) as u32 % 50
}

/// What a request alone would be answered.
fn answer(prompt: &[u64], limit: usize) -> Vec<u32> {
    let mut ids = prompt.to_vec();
    let mut made = Vec::new();
    while made.len() < limit {
        let token = next(&ids);
        made.push(token);
        ids.push(u64::from(token));
        if token == END {
            break;
        }
    }
    made
}

/// Keys and values are the token and its position; a page that is lent has none.
struct Model {
    page: u64,
    kv: BTreeMap<u64, (u64, u64)>,
    lent: Vec<u64>,
    refuse: bool,
    answers: BTreeMap<RequestId, Vec<u32>>,
}

impl Body for Model {
    fn now(&mut self) -> Nanos {
        Nanos(0)
    }

    fn step(&mut self, rows: &[LiveRow<'_>], made: &mut Vec<Made>) -> Result<(), BodyError> {
        for row in rows {
            let ids: Vec<u64> = row.ids.values().collect();
            let slots: Vec<u64> = row.slots.values().collect();
            let end = (row.prefix + row.extend) as usize;
            assert_eq!(slots.len(), end, "every position has a slot");
            for at in row.prefix as usize..end {
                assert!(!self.lent.contains(&(slots[at] / self.page)), "a lent page is used");
                self.kv.insert(slots[at], (ids[at], at as u64));
            }
            let seen: Vec<u64> = (0..end)
                .map(|at| {
                    let (id, position) = self.kv[&slots[at]];
                    assert_eq!((id, position), (ids[at], at as u64), "another's slot");
                    id
                })
                .collect();
            if row.samples {
                let token = next(&seen);
                let answer = self.answers.entry(row.request).or_default();
                answer.push(token);
                made.push(Made { request: row.request, token, ends: token == END });
            }
        }
        Ok(())
    }

    fn lend(&mut self, pages: &Runs) -> Result<(), BodyError> {
        for page in pages.values() {
            assert!(!self.lent.contains(&page), "page {page} is lent twice");
            self.lent.push(page);
            self.kv.retain(|slot, _| slot / self.page != page);
        }
        Ok(())
    }

    fn take_back(&mut self, pages: &Runs) -> Result<(), BodyError> {
        if self.refuse {
            return Err(BodyError::NoMemory("refused".to_owned()));
        }
        for page in pages.values() {
            assert!(self.lent.contains(&page), "page {page} was not lent");
            self.lent.retain(|other| *other != page);
        }
        Ok(())
    }
}

struct NoPages;

impl Pages for NoPages {
    fn lend(&mut self, _: &Runs) -> Result<(), BodyError> {
        Ok(())
    }

    fn take_back(&mut self, _: &Runs) -> Result<(), BodyError> {
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send { base: u64, prompt: u64, limit: u64 },
    GiveUp(u64),
    Lend(u64),
    Refuse(bool),
    Turns(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..3_u64, 1..90_u64, 1..40_u64)
            .prop_map(|(base, prompt, limit)| Step::Send { base, prompt, limit }),
        1 => (0..30_u64).prop_map(Step::GiveUp),
        2 => (0..40_u64).prop_map(Step::Lend),
        1 => any::<bool>().prop_map(Step::Refuse),
        4 => (1..12_u8).prop_map(Step::Turns),
    ];
    proptest::collection::vec(step, 1..40)
}

fn config(page: u64) -> SglangConfig {
    SglangConfig {
        page_size: page,
        chunked_prefill_size: Some(page * 8),
        max_running_requests: 6,
        request_rows: 8,
        loop_kind: LoopKind::Normal,
        ..SglangConfig::new(Version::new(0, 5, 23), page * 40, 200)
    }
}

struct Lived {
    records: Vec<Record>,
    answers: BTreeMap<RequestId, Vec<u32>>,
    prompts: BTreeMap<RequestId, (Vec<u64>, usize)>,
    given_up: Vec<RequestId>,
}

/// A request that fits the pool and the context by itself, with its prompt and its limit.
fn send(
    live: &Live,
    number: u64,
    (base, prompt, limit): (u64, u64, u64),
) -> (NewRequest, Vec<u64>) {
    let (pool, page) = (live.config().pool_tokens, live.config().page_size);
    let prompt = prompt.min(pool / 2 - 8);
    let limit = limit.min(pool - prompt.next_multiple_of(page) - page - 1);
    let ids: Vec<u64> = (0..prompt).map(|at| (base * 3 + at * (base + 1)) % 40 + 100).collect();
    let request = NewRequest {
        max_new_tokens: Some(limit),
        output_len: u64::MAX,
        eos: EosRule::Ends,
        ..NewRequest::plain(RequestId(number), ids.iter().copied().collect(), 0)
    };
    (request, ids)
}

fn live_through(steps: &[Step], page: u64) -> Lived {
    let mut live = Live::new(config(page)).unwrap();
    let mut model = Model {
        page,
        kv: BTreeMap::new(),
        lent: Vec::new(),
        refuse: false,
        answers: BTreeMap::new(),
    };
    let mut records = Vec::new();
    let (mut prompts, mut given_up, mut number) = (BTreeMap::new(), Vec::new(), 0);
    let mut watcher = Watchers::default();
    for step in steps.iter().cloned().chain([Step::Refuse(false), Step::Lend(0)]) {
        if let Step::Refuse(refuse) = step {
            model.refuse = refuse;
        }
        let mut around = Around { body: &mut model, sink: &mut records, watcher: &mut watcher };
        match step {
            Step::Send { base, prompt, limit } => {
                let (request, ids) = send(&live, number, (base, prompt, limit));
                let limit = request.max_new_tokens.unwrap_or_default();
                prompts.insert(request.id, (ids, limit as usize));
                number += 1;
                let (at, sampling) = (Nanos(0), Sampling::default());
                live.submit(Arrival { at, request, sampling }, Vec::new(), &mut around);
            }
            Step::GiveUp(number) => {
                given_up.push(RequestId(number));
                live.abort(RequestId(number), &mut around);
            }
            Step::Lend(target) => {
                live.lend(target, &mut around).unwrap();
            }
            Step::Refuse(_) => {}
            Step::Turns(turns) => {
                for _ in 0..turns {
                    live.turn(&mut around).unwrap();
                }
            }
        }
    }
    let mut around = Around { body: &mut model, sink: &mut records, watcher: &mut watcher };
    for _ in 0..20_000 {
        if live.turn(&mut around).unwrap() == Did::Nothing {
            break;
        }
    }
    assert!(live.is_done(), "everybody is served once the memory is back");
    assert_eq!(live.lent_pages(), 0);
    live.close(&mut records);
    Lived { records, answers: model.answers, prompts, given_up }
}

fn int(record: &Record, name: &str) -> u64 {
    let field = record.fields.iter().find(|field| field.name == name);
    match field.map(|field| &field.value) {
        Some(Value::Int(value)) => u64::try_from(*value).unwrap(),
        other => panic!("{name} of {} is {other:?}", record.kind),
    }
}

fn ints(record: &Record, name: &str) -> Vec<u64> {
    let field = record.fields.iter().find(|field| field.name == name);
    match field.map(|field| &field.value) {
        Some(Value::Ints(values)) => values.clone(),
        other => panic!("{name} of {} is {other:?}", record.kind),
    }
}

fn inputs(lived: &Lived) -> Inputs {
    let mut inputs = Inputs::default();
    for record in &lived.records {
        match record.kind {
            "request_arrived" => {
                let id = RequestId(int(record, "request"));
                let prompt = ints(record, "prompt");
                let runs = prompt.chunks(2).map(|run| Run { first: run[0], len: run[1] });
                let request = NewRequest {
                    max_new_tokens: Some(int(record, "max_new_tokens")),
                    output_len: u64::MAX,
                    ..NewRequest::plain(id, runs.collect(), 0)
                };
                inputs.push(int(record, "turn"), Input::Arrived(Box::new(request))).unwrap();
            }
            "given_up" => {
                let id = RequestId(int(record, "request"));
                inputs.push(int(record, "turn"), Input::GivenUp(id)).unwrap();
            }
            "lend" => {
                let target = int(record, "target_pages");
                inputs.push(int(record, "turn"), Input::Lend(target)).unwrap();
            }
            "step" | "decode_run" => {
                let steps = if record.kind == "step" { 1 } else { int(record, "steps") };
                let made: Vec<u32> = ints(record, "made").iter().map(|t| *t as u32).collect();
                inputs.passes(steps, &made, &ints(record, "ended"));
            }
            _ => {}
        }
    }
    inputs
}

fn decided(records: &[Record]) -> Vec<Record> {
    let of = |record: &Record| {
        let mut record = record.clone();
        record.fields.retain(|field| field.digest == Digest::Decisions);
        record
    };
    records.iter().map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever is lent, given up or retracted in between: a request gets the tokens that it would get
    /// alone, no pass reads a slot that is another's or lent, and the log decides itself again.
    #[test]
    fn answers_do_not_depend_on_memory_and_decisions_come_out_again(
        steps in steps(), page in prop_oneof![Just(1_u64), Just(4)]
    ) {
        let lived = live_through(&steps, page);
        for (id, (prompt, limit)) in &lived.prompts {
            let whole = answer(prompt, *limit);
            let got = lived.answers.get(id).cloned().unwrap_or_default();
            if lived.given_up.contains(id) {
                prop_assert!(whole.starts_with(&got));
            } else {
                prop_assert_eq!(&got, &whole, "of {:?}", id);
            }
        }
        let mut again = Vec::new();
        let mut live = Live::new(config(page)).unwrap();
        inputs(&lived)
            .again(&mut live, &mut NoPages, &mut again, &mut Watchers::default())
            .unwrap();
        let (first, second) = (decided(&lived.records), decided(&again));
        let parts = first.iter().zip(&second).position(|(a, b)| a != b);
        let at = parts.unwrap_or(first.len().min(second.len()));
        prop_assert_eq!(second.get(at), first.get(at), "record {}", at);
    }
}

#[test]
fn a_request_that_outgrows_the_shrunken_pool_waits_and_keeps_its_tokens() {
    let steps = [
        Step::Send { base: 0, prompt: 40, limit: 30 },
        Step::Turns(3),
        Step::Lend(40),
        Step::Turns(20),
    ];
    let lived = live_through(&steps, 4);
    let kinds: Vec<&str> = lived.records.iter().map(|record| record.kind).collect();
    assert!(kinds.contains(&"retracted") && kinds.contains(&"taken_back"), "{kinds:?}");
    let finished = lived.records.iter().find(|record| record.kind == "finished").unwrap();
    assert_ne!(
        finished.fields.iter().find(|f| f.name == "finish").map(|f| f.value.clone()),
        Some(Value::from(Finish::Abort.name()))
    );
}
