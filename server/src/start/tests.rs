//! The engine's thread without an engine, and the watch over a memory that is said.

use std::{
    cell::Cell,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::channel,
    },
};

use plimsoll_core::{
    policy::plimsoll::{Room, Settings},
    tape::own::StepLimits,
    units::Bytes,
};

use super::{
    PlanError, StartError,
    lend::Watch,
    thread::{LoadFailure, Opened, open},
};
use crate::{engine::Pressure, plan::MemoryPlan};

fn plan() -> MemoryPlan {
    let settings = Settings {
        max_running_requests: 2,
        chunked_prefill_size: 32,
        context_length: 64,
        limits: StepLimits { tokens: 34, outputs: 2 },
    };
    MemoryPlan {
        memories: Vec::new(),
        pages: 20,
        page: Bytes(100),
        margin: Bytes(1000),
        settings,
        precision: String::new(),
    }
}

/// What lives on one thread, and counts when it goes.
struct Held(Arc<AtomicU64>, Rc<Cell<u64>>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_add(1 + self.1.get(), Ordering::SeqCst);
    }
}

fn opened(gone: &Arc<AtomicU64>) -> Opened {
    let held = Held(Arc::clone(gone), Rc::default());
    let load = move || {
        held.1.set(10);
        Err(LoadFailure::Device("no weights".to_owned()))
    };
    Opened { plan: plan(), load: Box::new(load) }
}

#[test]
fn what_was_opened_goes_before_a_plan_alone_is_over() {
    let gone = Arc::new(AtomicU64::new(0));
    let there = Arc::clone(&gone);
    let (found, waiting) = open(move || Ok(opened(&there))).unwrap();
    assert_eq!(found.pages, 20);
    assert_eq!(gone.load(Ordering::SeqCst), 0, "it is held while the plan is read");
    drop(waiting);
    assert_eq!(gone.load(Ordering::SeqCst), 1);
}

#[test]
fn the_thread_goes_on_where_it_is_told_to() {
    let gone = Arc::new(AtomicU64::new(0));
    let there = Arc::clone(&gone);
    let (_, waiting) = open(move || Ok(opened(&there))).unwrap();
    let (tell, told) = channel();
    let thread = waiting.start(Box::new(move |load| drop(tell.send(load().err())))).unwrap();
    thread.join().unwrap();
    assert_eq!(told.recv().unwrap().unwrap().to_string(), "no weights");
    assert_eq!(gone.load(Ordering::SeqCst), 11, "it was loaded, and went");
}

#[test]
fn what_cannot_be_opened_is_no_plan() {
    let error = open(|| Err(PlanError::Device("no driver".to_owned()))).unwrap_err();
    assert_eq!(error.to_string(), "no driver");
    let error = open(|| panic!("of a library")).unwrap_err();
    assert!(matches!(error, StartError::Panic));
}

#[test]
fn pages_follow_the_free_memory_and_a_reading_that_fails_changes_nothing() {
    let free = Arc::new(AtomicU64::new(u64::MAX));
    let read = Arc::clone(&free);
    let look = move || match read.load(Ordering::SeqCst) {
        u64::MAX => None,
        free => Some(Room { available: Some(Bytes(free)), ..Room::default() }),
    };
    let mut watch = Watch::new(Box::new(look), &plan(), 16);
    assert_eq!(watch.target(3), 3);
    free.store(900, Ordering::SeqCst);
    // Up to 1.5 margins: six pages.
    assert_eq!(watch.target(0), 6);
    free.store(0, Ordering::SeqCst);
    // A chunk of two pages and one more stay.
    assert_eq!(watch.target(6), 17);
    free.store(2600, Ordering::SeqCst);
    assert_eq!(watch.target(17), 6);
    free.store(1500, Ordering::SeqCst);
    assert_eq!(watch.target(6), 6);
}
