//! One physical device, opened: its context, a stream, two events, and small staging buffers. What
//! is taken from it is a value that gives itself back.

use crate::failure::Failure;
use crate::ffi::memory::Span;
use crate::ffi::memory::{Addresses, DeviceMemory, Granularity, MemoryApi, Physical, PinnedMemory};
use crate::ffi::nvml::{Nvml, ToolReading};
use crate::ffi::stream::{Event, Graph, Stream, StreamApi};
use crate::ffi::{Code, ContextApi, Driver, LoadError, PrimaryContext};
use plimsoll_core::units::{Bytes, Nanos};
use std::cell::RefCell;
use std::rc::Rc;

/// Bytes of the staging buffers on either side; the piece in which KV is copied.
pub(crate) const STAGING: u64 = 4 << 20;

/// Memset nodes of a captured graph at least.
const NODES_MIN: u64 = 4;
/// Memset nodes of a captured graph at most.
const NODES_MAX: u64 = 64;

/// Every function that the ballast calls.
#[derive(Clone, Copy)]
pub(crate) struct Api {
    pub(crate) driver: Driver,
    context: ContextApi,
    memory: MemoryApi,
    stream: StreamApi,
}

impl Api {
    /// Finds every symbol; calls nothing.
    pub(crate) fn load() -> Result<Self, LoadError> {
        let driver = Driver::load()?;
        Ok(Self {
            context: ContextApi::load(&driver)?,
            memory: MemoryApi::load(&driver)?,
            stream: StreamApi::load(&driver)?,
            driver,
        })
    }
}

/// What the card said when it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CardFacts {
    /// Total that programs read.
    pub(crate) total: Bytes,
    /// Total that `nvidia-smi` prints, when NVML is there.
    pub(crate) tool_total: Option<Bytes>,
    /// What the context of this process took, staging buffers included; when NVML is not there
    /// it is not told apart from `foreign`.
    pub(crate) context: Bytes,
    /// Held by other programs at that moment; `None` without NVML.
    pub(crate) foreign: Option<Bytes>,
    /// Smallest piece of physical memory.
    pub(crate) page: Bytes,
    /// The piece of physical memory that the driver recommends.
    pub(crate) page_recommended: Bytes,
}

struct Parts {
    stream: Stream,
    from: Event,
    to: Event,
    staging_device: DeviceMemory,
    staging_host: PinnedMemory,
}

/// An opened device. Calls come from one thread.
pub(crate) struct Card {
    api: Api,
    device: i32,
    context: Option<PrimaryContext>,
    parts: Option<Parts>,
    facts: CardFacts,
    lost: RefCell<Option<String>>,
}

impl Card {
    /// Opens a device and measures what that costs.
    pub(crate) fn open(api: Api, device: i32) -> Result<Rc<Self>, Failure> {
        let nvml = Nvml::load();
        let uuid = api.context.uuid(device);
        let tool = || nvml.as_ref().zip(uuid).and_then(|(nvml, uuid)| nvml.memory(uuid));
        let before = tool();
        let facts = CardFacts {
            total: Bytes::ZERO,
            tool_total: before.map(|reading| Bytes(reading.total)),
            context: Bytes::ZERO,
            foreign: None,
            page: Bytes::ZERO,
            page_recommended: Bytes::ZERO,
        };
        let lost = RefCell::new(None);
        let mut card = Self { api, device, context: None, parts: None, facts, lost };
        let context = api.driver.retain(device);
        card.context = Some(card.sort("cuDevicePrimaryCtxRetain", context)?);
        card.parts = Some(card.make_parts()?);
        let minimum = |api: &Api| api.memory.granularity(device, Granularity::Minimum);
        card.facts.page = Bytes(card.call("cuMemGetAllocationGranularity", minimum)?);
        let recommended = |api: &Api| api.memory.granularity(device, Granularity::Recommended);
        card.facts.page_recommended =
            Bytes(card.call("cuMemGetAllocationGranularity", recommended)?);
        card.measure(before, tool())?;
        Ok(Rc::new(card))
    }

    fn measure(
        &mut self,
        before: Option<ToolReading>,
        after: Option<ToolReading>,
    ) -> Result<(), Failure> {
        let (free, total) = self.memory()?;
        let taken = total.saturating_sub(free);
        self.facts.total = total;
        self.facts.context = taken;
        if let Some((before, after)) = before.zip(after) {
            let context = Bytes(before.free.saturating_sub(after.free)).min(taken);
            self.facts.context = context;
            self.facts.foreign = Some(taken.saturating_sub(context));
        }
        Ok(())
    }

    fn make_parts(&self) -> Result<Parts, Failure> {
        let stream = self.call("cuStreamCreate", |api| api.stream.create())?;
        let made = self.make_rest();
        match made {
            Ok((from, to, staging_device, staging_host)) => {
                Ok(Parts { stream, from, to, staging_device, staging_host })
            }
            Err(failure) => {
                self.quiet("cuStreamDestroy", |api| api.stream.destroy(stream));
                Err(failure)
            }
        }
    }

    fn make_rest(&self) -> Result<(Event, Event, DeviceMemory, PinnedMemory), Failure> {
        let from = self.call("cuEventCreate", |api| api.stream.event())?;
        let to = match self.call("cuEventCreate", |api| api.stream.event()) {
            Ok(event) => event,
            Err(failure) => {
                self.quiet("cuEventDestroy", |api| api.stream.destroy_event(from));
                return Err(failure);
            }
        };
        let buffers =
            self.call("cuMemAlloc", |api| api.memory.alloc(STAGING)).and_then(|device| match self
                .call("cuMemHostAlloc", |api| api.memory.host_alloc(STAGING))
            {
                Ok(host) => Ok((device, host)),
                Err(failure) => {
                    self.quiet("cuMemFree", |api| api.memory.free(device));
                    Err(failure)
                }
            });
        match buffers {
            Ok((device, host)) => Ok((from, to, device, host)),
            Err(failure) => {
                self.quiet("cuEventDestroy", |api| api.stream.destroy_event(from));
                self.quiet("cuEventDestroy", |api| api.stream.destroy_event(to));
                Err(failure)
            }
        }
    }

    /// What was measured when it was opened.
    pub(crate) const fn facts(&self) -> &CardFacts {
        &self.facts
    }

    /// Why the device is lost, once it is.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match &*self.lost.borrow() {
            Some(text) => Err(Failure::Lost(text.clone())),
            None => Ok(()),
        }
    }

    /// Calls the driver with this card's context current. Once lost, nothing is called any more.
    fn call<T>(
        &self,
        name: &'static str,
        body: impl FnOnce(&Api) -> Result<T, Code>,
    ) -> Result<T, Failure> {
        self.check()?;
        if let Some(context) = &self.context {
            self.sort("cuCtxSetCurrent", self.api.context.set_current(context))?;
        }
        self.sort(name, body(&self.api))
    }

    /// A call whose failure only a later one will tell: giving back.
    fn quiet(&self, name: &'static str, body: impl FnOnce(&Api) -> Result<(), Code>) {
        let _ = self.call(name, body);
    }

    fn sort<T>(&self, name: &'static str, answer: Result<T, Code>) -> Result<T, Failure> {
        answer.map_err(|code| {
            let failure = Failure::of(name, code, self.api.context.error_name(code));
            if let Failure::Lost(text) = &failure {
                self.lost.borrow_mut().get_or_insert_with(|| text.clone());
            }
            failure
        })
    }

    fn parts(&self) -> Result<&Parts, Failure> {
        self.parts.as_ref().ok_or_else(|| Failure::Lost("the device is not open".to_owned()))
    }

    /// Free and total now (`cuMemGetInfo`).
    pub(crate) fn memory(&self) -> Result<(Bytes, Bytes), Failure> {
        let (free, total) = self.call("cuMemGetInfo", |api| api.driver.memory_now())?;
        Ok((Bytes(free), Bytes(total)))
    }

    /// Waits for the card's stream.
    pub(crate) fn synchronize(&self) -> Result<(), Failure> {
        let parts = self.parts()?;
        self.call("cuStreamSynchronize", |api| api.stream.synchronize(&parts.stream))
    }

    /// Fills spans and measures on the device; does not wait.
    pub(crate) fn start_fill(&self, spans: &[Span], value: u8) -> Result<(), Failure> {
        let Parts { stream, from, to, staging_device, .. } = self.parts()?;
        self.call("cuEventRecord", |api| api.stream.record(from, stream))?;
        let idle = [staging_device.span()];
        for span in if spans.is_empty() { &idle[..] } else { spans } {
            self.call("cuMemsetD8Async", |api| api.stream.memset(*span, value, stream))?;
        }
        self.call("cuEventRecord", |api| api.stream.record(to, stream))
    }

    /// Waits for [`Self::start_fill`]; the device's own time, to the nanosecond of a float's
    /// milliseconds.
    pub(crate) fn end_fill(&self) -> Result<Nanos, Failure> {
        self.synchronize()?;
        let Parts { from, to, .. } = self.parts()?;
        let elapsed = self.call("cuEventElapsedTime", |api| api.stream.elapsed(from, to))?;
        Ok(Nanos((f64::from(elapsed) * 1e6).round().max(0.0) as u64))
    }

    /// Copies `size` bytes from the device to the host, piece by piece over the staging buffers.
    pub(crate) fn copy_to_host(&self, size: u64) -> Result<(), Failure> {
        self.copy(size, |api, part, parts| {
            api.stream.copy_out(&parts.staging_host, part, &parts.stream)
        })
    }

    /// Copies `size` bytes from the host to the device; as [`Self::copy_to_host`].
    pub(crate) fn copy_to_device(&self, size: u64) -> Result<(), Failure> {
        self.copy(size, |api, part, parts| {
            api.stream.copy_in(part, &parts.staging_host, &parts.stream)
        })
    }

    fn copy(
        &self,
        size: u64,
        piece: impl Fn(&Api, Span, &Parts) -> Result<(), Code>,
    ) -> Result<(), Failure> {
        let parts = self.parts()?;
        let mut left = size;
        while left > 0 {
            let part = parts.staging_device.span().part(0, left);
            self.call("cuMemcpyAsync", |api| piece(api, part, parts))?;
            left -= part.size();
        }
        self.synchronize()
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        if let Some(Parts { stream, from, to, staging_device, staging_host }) = self.parts.take() {
            self.quiet("cuStreamSynchronize", |api| api.stream.synchronize(&stream));
            self.quiet("cuMemFreeHost", |api| api.memory.host_free(staging_host));
            self.quiet("cuMemFree", |api| api.memory.free(staging_device));
            self.quiet("cuEventDestroy", |api| api.stream.destroy_event(from));
            self.quiet("cuEventDestroy", |api| api.stream.destroy_event(to));
            self.quiet("cuStreamDestroy", |api| api.stream.destroy(stream));
        }
        if let Some(context) = self.context.take() {
            // Also of a lost device: releasing the context is how its memory comes back.
            let _ = self.api.driver.release(context);
        }
    }
}

/// Plain device memory that gives itself back.
pub(crate) struct Buffer {
    card: Rc<Card>,
    memory: Option<DeviceMemory>,
}

impl Buffer {
    /// Takes `size` bytes; the driver rounds up.
    pub(crate) fn take(card: &Rc<Card>, size: Bytes) -> Result<Self, Failure> {
        let memory = card.call("cuMemAlloc", |api| api.memory.alloc(size.0))?;
        Ok(Self { card: Rc::clone(card), memory: Some(memory) })
    }

    /// Where it lies.
    pub(crate) fn span(&self) -> Option<Span> {
        self.memory.as_ref().map(DeviceMemory::span)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.card.quiet("cuMemFree", |api| api.memory.free(memory));
        }
    }
}

/// Page-locked host memory that gives itself back.
pub(crate) struct Pinned {
    card: Rc<Card>,
    memory: Option<PinnedMemory>,
}

impl Pinned {
    /// Takes `size` bytes.
    pub(crate) fn take(card: &Rc<Card>, size: Bytes) -> Result<Self, Failure> {
        let memory = card.call("cuMemHostAlloc", |api| api.memory.host_alloc(size.0))?;
        Ok(Self { card: Rc::clone(card), memory: Some(memory) })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.card.quiet("cuMemFreeHost", |api| api.memory.host_free(memory));
        }
    }
}

/// Physical device memory that gives itself back.
pub(crate) struct Chunk {
    card: Rc<Card>,
    physical: Option<Physical>,
}

impl Chunk {
    /// Takes `size` bytes, a multiple of the card's page.
    pub(crate) fn take(card: &Rc<Card>, size: Bytes) -> Result<Self, Failure> {
        let physical = card.call("cuMemCreate", |api| api.memory.create(card.device, size.0))?;
        Ok(Self { card: Rc::clone(card), physical: Some(physical) })
    }

    /// Its length.
    pub(crate) fn size(&self) -> Bytes {
        Bytes(self.physical.as_ref().map_or(0, Physical::size))
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(physical) = self.physical.take() {
            self.card.quiet("cuMemRelease", |api| api.memory.release(physical));
        }
    }
}

/// Reserved addresses that give themselves back; nothing may be mapped then.
pub(crate) struct AddressRange {
    card: Rc<Card>,
    addresses: Option<Addresses>,
}

impl AddressRange {
    /// Reserves `size` bytes of addresses, a multiple of the card's page.
    pub(crate) fn reserve(card: &Rc<Card>, size: Bytes) -> Result<Self, Failure> {
        let addresses = card.call("cuMemAddressReserve", |api| api.memory.reserve(size.0))?;
        Ok(Self { card: Rc::clone(card), addresses: Some(addresses) })
    }

    /// Takes memory and maps it at `offset`; both are multiples of the card's page.
    pub(crate) fn map(&self, offset: Bytes, size: Bytes) -> Result<Mapped, Failure> {
        let Some(addresses) = &self.addresses else { return Err(Failure::Misuse) };
        let chunk = Chunk::take(&self.card, size)?;
        let Some(physical) = &chunk.physical else { return Err(Failure::Misuse) };
        self.card.call("cuMemMap", |api| {
            api.memory.map(self.card.device, addresses, offset.0, physical)
        })?;
        let span = addresses.span().part(offset.0, size.0);
        Ok(Mapped { card: Rc::clone(&self.card), span, chunk })
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        if let Some(addresses) = self.addresses.take() {
            self.card.quiet("cuMemAddressFree", |api| api.memory.unreserve(addresses));
        }
    }
}

/// Memory mapped into a range; unmaps and gives itself back.
pub(crate) struct Mapped {
    card: Rc<Card>,
    span: Span,
    chunk: Chunk,
}

impl Mapped {
    /// Where it lies.
    pub(crate) const fn span(&self) -> Span {
        self.span
    }

    /// Its length.
    pub(crate) fn size(&self) -> Bytes {
        self.chunk.size()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // The chunk is released after this, by its own drop.
        let span = self.span;
        self.card.quiet("cuMemUnmap", |api| api.memory.unmap(span));
    }
}

/// A captured graph that destroys itself.
pub(crate) struct CapturedGraph {
    card: Rc<Card>,
    graph: Option<Graph>,
}

impl CapturedGraph {
    /// Captures memset nodes over the card's staging buffer, one for each request of the batch
    /// within [`NODES_MIN`] and [`NODES_MAX`], uploads the graph and launches it once.
    pub(crate) fn capture(card: &Rc<Card>, batch: u64) -> Result<Self, Failure> {
        let parts = card.parts()?;
        let nodes = batch.clamp(NODES_MIN, NODES_MAX);
        let piece = STAGING / NODES_MAX;
        let graph = card.call("cuGraphInstantiate", |api| {
            api.stream.capture(&parts.stream, || {
                (0..nodes).try_for_each(|node| {
                    let part = parts.staging_device.span().part(node * piece, piece);
                    api.stream.memset(part, 0x67, &parts.stream)
                })
            })
        })?;
        let captured = Self { card: Rc::clone(card), graph: Some(graph) };
        captured.launch()?;
        Ok(captured)
    }

    fn launch(&self) -> Result<(), Failure> {
        let (Some(graph), parts) = (&self.graph, self.card.parts()?) else { return Ok(()) };
        self.card.call("cuGraphUpload", |api| api.stream.upload(graph, &parts.stream))?;
        self.card.call("cuGraphLaunch", |api| api.stream.launch(graph, &parts.stream))?;
        self.card.synchronize()
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        if let Some(graph) = self.graph.take() {
            self.card.quiet("cuGraphExecDestroy", |api| api.stream.destroy_graph(graph));
        }
    }
}
