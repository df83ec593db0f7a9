//! Streams, events, copies and captured graphs, each a value that gives itself back.

use crate::card::{Api, Card};
use crate::failure::Failure;
use crate::ffi::Code;
use crate::ffi::memory::DevicePointer;
use crate::ffi::stream::{Executable, Node, RawEvent, RawStream, Template};
use crate::pinned::{Held, Pinned};
use plimsoll_core::units::Nanos;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A stream of one card. Work put on it runs in order; calls do not wait for it.
pub struct Stream(Rc<Clock>);

/// The stream behind a [`Stream`], with a count of what it was given and what was waited for.
pub(crate) struct Clock {
    card: Rc<Card>,
    raw: Option<RawStream>,
    given: Cell<u64>,
    due: Cell<u64>,
    /// Pinned memory of copies that are being captured.
    captured: RefCell<Option<Vec<Lent>>>,
}

/// Pinned memory that a graph copies.
struct Lent {
    memory: Rc<Held>,
    writes: bool,
}

/// A point in a stream's work.
pub(crate) struct Ticket {
    clock: Rc<Clock>,
    number: u64,
}

impl Ticket {
    /// Everything that the stream was given so far.
    pub(crate) fn now(clock: &Rc<Clock>) -> Self {
        Self { clock: Rc::clone(clock), number: clock.given.get() }
    }

    /// Whether it was waited for.
    pub(crate) fn is_due(&self) -> bool {
        self.number <= self.clock.due.get()
    }

    /// Whether it is of this stream.
    pub(crate) fn of(&self, clock: &Rc<Clock>) -> bool {
        Rc::ptr_eq(&self.clock, clock)
    }

    /// Waits for it, when the device still answers.
    pub(crate) fn wait(&self) {
        if !self.is_due() {
            let _ = self.clock.synchronize();
        }
    }

    /// Says that it was waited for.
    fn reached(&self) {
        self.clock.due.set(self.clock.due.get().max(self.number));
    }
}

impl Clock {
    fn raw(&self) -> Result<&RawStream, Failure> {
        self.raw.as_ref().ok_or_else(|| Failure::misuse("stream", "it is closed"))
    }

    fn synchronize(&self) -> Result<(), Failure> {
        let raw = self.raw()?;
        let given = self.given.get();
        self.card.call("cuStreamSynchronize", |api| api.stream.synchronize(raw))?;
        self.due.set(given);
        Ok(())
    }

    fn put(
        &self,
        call: &'static str,
        body: impl FnOnce(&Api, &RawStream) -> Result<(), Code>,
    ) -> Result<(), Failure> {
        let raw = self.raw()?;
        self.given.set(self.given.get() + 1);
        self.card.call(call, |api| body(api, raw))
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            self.card.quiet("cuStreamDestroy", |api| api.stream.destroy(raw));
        }
    }
}

impl Stream {
    /// A stream of its own, without order to other streams.
    ///
    /// # Errors
    ///
    /// [`Failure`], as of every call here; a failure of work that was given before may show in
    /// any later call.
    pub fn new(card: &Rc<Card>) -> Result<Self, Failure> {
        let raw = card.call("cuStreamCreate", |api| api.stream.create())?;
        Ok(Self(Rc::new(Clock {
            card: Rc::clone(card),
            raw: Some(raw),
            given: Cell::new(0),
            due: Cell::new(0),
            captured: RefCell::new(None),
        })))
    }

    /// The card that it works on.
    #[must_use]
    pub fn card(&self) -> &Rc<Card> {
        &self.0.card
    }

    /// Puts work on it, or records it. Libraries beside the driver use this too.
    pub(crate) fn put(
        &self,
        call: &'static str,
        body: impl FnOnce(&Api, &RawStream) -> Result<(), Code>,
    ) -> Result<(), Failure> {
        self.0.put(call, body)
    }

    /// The driver's stream, for libraries that put work on it themselves.
    pub(crate) fn raw(&self) -> Result<&RawStream, Failure> {
        self.0.given.set(self.0.given.get() + 1);
        self.0.raw()
    }

    /// Waits until all its work is done.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn synchronize(&self) -> Result<(), Failure> {
        self.0.synchronize()
    }

    /// Lets later work wait for an event, which may be of another stream.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn wait(&self, event: &Event) -> Result<(), Failure> {
        let of = event.raw()?;
        self.put("cuStreamWaitEvent", |api, raw| api.stream.wait(raw, of))
    }

    /// Whether it records.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn is_capturing(&self) -> Result<bool, Failure> {
        let raw = self.0.raw()?;
        self.0.card.call("cuStreamIsCapturing", |api| api.stream.capturing(raw))
    }

    /// Fills memory with a byte.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn fill(&self, to: DevicePointer, byte: u8) -> Result<(), Failure> {
        self.put("cuMemsetD8Async", |api, raw| api.stream.memset(to, byte, raw))
    }

    /// Fills memory with a word of 32 bits.
    ///
    /// # Errors
    ///
    /// [`Failure`]; `Misuse` when the memory is no whole number of aligned words.
    pub fn fill_words(&self, to: DevicePointer, word: u32) -> Result<(), Failure> {
        const CALL: &str = "cuMemsetD32Async";
        if !(to.size() | to.address()).is_multiple_of(4) {
            return Err(Failure::misuse(CALL, "the memory is no whole number of words"));
        }
        self.put(CALL, |api, raw| api.stream.memset_words(to, word, raw))
    }

    /// Copies `to.size()` bytes from pinned memory, from `offset` on. `from` may not be written
    /// to until this stream, or an event behind the copy, was waited for.
    ///
    /// # Errors
    ///
    /// [`Failure`]; `Misuse` when the bytes do not lie inside or are being written.
    pub fn copy_in(&self, to: DevicePointer, from: &Pinned, offset: u64) -> Result<(), Failure> {
        from.0.lend((offset, to.size()), false, |memory| {
            self.put("cuMemcpyHtoDAsync", |api, raw| api.stream.copy_in(to, memory, offset, raw))
        })?;
        self.used(&from.0, false);
        Ok(())
    }

    /// Copies `from.size()` bytes to pinned memory, from `offset` on. `to` may not be looked at
    /// until this stream, or an event behind the copy, was waited for.
    ///
    /// # Errors
    ///
    /// [`Failure`]; `Misuse` when the bytes do not lie inside or are looked at.
    pub fn copy_out(&self, to: &Pinned, offset: u64, from: DevicePointer) -> Result<(), Failure> {
        to.0.lend((offset, from.size()), true, |memory| {
            self.put("cuMemcpyDtoHAsync", |api, raw| api.stream.copy_out(memory, offset, from, raw))
        })?;
        self.used(&to.0, true);
        Ok(())
    }

    /// Copies within the device.
    ///
    /// # Errors
    ///
    /// [`Failure`]; `Misuse` when the sizes differ.
    pub fn copy_within(&self, to: DevicePointer, from: DevicePointer) -> Result<(), Failure> {
        const CALL: &str = "cuMemcpyDtoDAsync";
        if to.size() != from.size() {
            let what = format!("{} bytes to {}", from.size(), to.size());
            return Err(Failure::misuse(CALL, what));
        }
        self.put(CALL, |api, raw| api.stream.copy_within(to, from, raw))
    }

    fn used(&self, memory: &Rc<Held>, writes: bool) {
        match &mut *self.0.captured.borrow_mut() {
            Some(captured) => captured.push(Lent { memory: Rc::clone(memory), writes }),
            None => memory.used(&self.0, writes),
        }
    }

    /// Records what `body` puts on this stream, and makes a graph of it. When anything fails, the
    /// capture is ended and nothing stays. Nothing may take or give back memory meanwhile.
    ///
    /// # Errors
    ///
    /// [`Failure`]; `Misuse` also when a node of the graph would take memory.
    pub fn capture(&self, body: impl FnOnce() -> Result<(), Failure>) -> Result<Graph, Failure> {
        let (raw, card) = (self.0.raw()?, &self.0.card);
        card.call("cuStreamBeginCapture", |api| api.stream.begin_capture(raw))?;
        *self.0.captured.borrow_mut() = Some(Vec::new());
        let recorded = body();
        let lent = self.0.captured.borrow_mut().take().unwrap_or_default();
        let ended = card.call("cuStreamEndCapture", |api| api.stream.end_capture(raw));
        let ended = ended.map(|template| Recorded { card, template: Some(template) });
        recorded?;
        ended?.executable(lent)
    }
}

/// What a capture recorded, until a graph is made of it.
struct Recorded<'a> {
    card: &'a Rc<Card>,
    template: Option<Template>,
}

impl Recorded<'_> {
    fn executable(&self, lent: Vec<Lent>) -> Result<Graph, Failure> {
        let empty = || Failure::misuse("cuStreamEndCapture", "nothing was recorded");
        let template = self.template.as_ref().ok_or_else(empty)?;
        let nodes = self.card.call("cuGraphGetNodes", |api| api.stream.nodes(template))?;
        if nodes.contains(&Node::Memory) {
            return Err(Failure::misuse("cuStreamEndCapture", "a node of the graph takes memory"));
        }
        let kernels = nodes.iter().filter(|node| **node == Node::Kernel).count();
        let executable =
            self.card.call("cuGraphInstantiate", |api| api.stream.instantiate(template))?;
        Ok(Graph {
            card: Rc::clone(self.card),
            executable: Some(executable),
            lent,
            nodes: nodes.len(),
            kernels,
        })
    }
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        if let Some(template) = self.template.take() {
            self.card.quiet("cuGraphDestroy", |api| api.stream.destroy_template(template));
        }
    }
}

/// A captured graph. It holds the pinned memory that it copies; device memory is the caller's
/// to keep.
pub struct Graph {
    card: Rc<Card>,
    executable: Option<Executable>,
    lent: Vec<Lent>,
    nodes: usize,
    kernels: usize,
}

impl Graph {
    /// Nodes, all kinds.
    #[must_use]
    pub const fn nodes(&self) -> usize {
        self.nodes
    }

    /// Nodes that launch a kernel.
    #[must_use]
    pub const fn kernels(&self) -> usize {
        self.kernels
    }

    fn executable(&self) -> Result<&Executable, Failure> {
        self.executable.as_ref().ok_or_else(|| Failure::misuse("cuGraphLaunch", "it is gone"))
    }

    /// Puts its device side in place, so that its cost shows before the first launch.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn upload(&self, stream: &Stream) -> Result<(), Failure> {
        let executable = self.executable()?;
        stream.put("cuGraphUpload", |api, raw| api.stream.upload(executable, raw))
    }

    /// Launches it.
    ///
    /// # Errors
    ///
    /// [`Failure`]; `Misuse` when pinned memory that it copies is looked at.
    pub fn launch(&self, stream: &Stream) -> Result<(), Failure> {
        let executable = self.executable()?;
        for lent in &self.lent {
            lent.memory.unseen(lent.writes)?;
        }
        stream.put("cuGraphLaunch", |api, raw| api.stream.launch(executable, raw))?;
        for lent in &self.lent {
            lent.memory.used(&stream.0, lent.writes);
        }
        Ok(())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Some(executable) = self.executable.take() {
            self.card.quiet("cuGraphExecDestroy", |api| api.stream.destroy_executable(executable));
        }
    }
}

/// A point in the work of a stream.
pub struct Event {
    card: Rc<Card>,
    raw: Option<RawEvent>,
    at: RefCell<Option<Ticket>>,
}

impl Event {
    /// An event for order; it measures no time.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn new(card: &Rc<Card>) -> Result<Self, Failure> {
        Self::make(card, false)
    }

    /// An event that measures time.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn timed(card: &Rc<Card>) -> Result<Self, Failure> {
        Self::make(card, true)
    }

    fn make(card: &Rc<Card>, timed: bool) -> Result<Self, Failure> {
        let raw = card.call("cuEventCreate", |api| api.stream.event(timed))?;
        Ok(Self { card: Rc::clone(card), raw: Some(raw), at: RefCell::new(None) })
    }

    fn raw(&self) -> Result<&RawEvent, Failure> {
        self.raw.as_ref().ok_or_else(|| Failure::misuse("event", "it is gone"))
    }

    /// Stands behind all that the stream was given so far.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn record(&self, stream: &Stream) -> Result<(), Failure> {
        let of = self.raw()?;
        *self.at.borrow_mut() = None;
        stream.put("cuEventRecord", |api, raw| api.stream.record(of, raw))?;
        // Inside a capture it is a node, and says nothing of the stream's own work.
        if stream.0.captured.borrow().is_none() {
            *self.at.borrow_mut() = Some(Ticket::now(&stream.0));
        }
        Ok(())
    }

    /// Waits until what stands before it is done; at once when it was never recorded.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn synchronize(&self) -> Result<(), Failure> {
        let raw = self.raw()?;
        self.card.call("cuEventSynchronize", |api| api.stream.event_wait(raw))?;
        self.reached();
        Ok(())
    }

    /// Whether what stands before it is done.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn is_done(&self) -> Result<bool, Failure> {
        let raw = self.raw()?;
        let done = self.card.call("cuEventQuery", |api| api.stream.event_done(raw))?;
        if done {
            self.reached();
        }
        Ok(done)
    }

    fn reached(&self) {
        if let Some(ticket) = &*self.at.borrow() {
            ticket.reached();
        }
    }

    /// The device's own time since an earlier event, to the nanosecond of a float's milliseconds.
    /// Both were made by [`Self::timed`], recorded, and waited for.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn since(&self, earlier: &Self) -> Result<Nanos, Failure> {
        let (from, to) = (earlier.raw()?, self.raw()?);
        let elapsed = self.card.call("cuEventElapsedTime", |api| api.stream.elapsed(from, to))?;
        Ok(Nanos((f64::from(elapsed) * 1e6).round().max(0.0) as u64))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            self.card.quiet("cuEventDestroy", |api| api.stream.destroy_event(raw));
        }
    }
}
