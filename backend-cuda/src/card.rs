//! One physical device, opened: its context, what it said when it was opened, and whether it is
//! lost. What is taken from it is a value that holds it and gives itself back.

use crate::failure::Failure;
use crate::ffi::memory::{Granularity, MemoryApi};
use crate::ffi::module::ModuleApi;
use crate::ffi::nvml::{Nvml, ToolReading};
use crate::ffi::stream::StreamApi;
use crate::ffi::{
    CAPABILITY_MAJOR, CAPABILITY_MINOR, Code, ContextApi, Driver, LoadError, MULTIPROCESSORS,
    PrimaryContext, SHARED_OPT_IN, VIRTUAL_MEMORY,
};
use plimsoll_core::units::Bytes;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Every function of the driver that is called. All are found before any is called.
#[derive(Clone, Copy)]
pub(crate) struct Api {
    pub(crate) driver: Driver,
    pub(crate) context: ContextApi,
    pub(crate) memory: MemoryApi,
    pub(crate) stream: StreamApi,
    pub(crate) module: ModuleApi,
}

impl Api {
    /// Finds every symbol; calls nothing.
    pub(crate) fn load() -> Result<Self, LoadError> {
        let driver = Driver::load()?;
        Ok(Self {
            context: ContextApi::load(&driver)?,
            memory: MemoryApi::load(&driver)?,
            stream: StreamApi::load(&driver)?,
            module: ModuleApi::load(&driver)?,
            driver,
        })
    }
}

/// What a card said when it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CardFacts {
    /// Total that programs read.
    pub total: Bytes,
    /// Total that `nvidia-smi` prints, when NVML is there.
    pub tool_total: Option<Bytes>,
    /// What the context of this process took, with what was made beside it; when NVML is not
    /// there it is not told apart from `foreign`.
    pub context: Bytes,
    /// Held by other programs at that moment; `None` without NVML.
    pub foreign: Option<Bytes>,
    /// Smallest piece of physical memory; zero where there is no virtual memory.
    pub page: Bytes,
    /// The piece of physical memory that the driver recommends.
    pub page_recommended: Bytes,
    /// Compute capability, `(9, 0)`.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Shared memory that a block may ask for.
    pub shared_memory: Bytes,
    /// Whether addresses and physical memory can be taken apart, so that parts are given back.
    pub virtual_memory: bool,
}

/// An opened device. Calls come from one thread.
pub struct Card {
    api: Api,
    ordinal: u32,
    device: i32,
    context: Option<PrimaryContext>,
    facts: Cell<CardFacts>,
    lost: RefCell<Option<String>>,
}

impl Card {
    /// Opens a device, makes what stands beside the context, and measures what both cost.
    pub(crate) fn open<T>(
        api: Api,
        ordinal: u32,
        device: i32,
        beside: impl FnOnce(&Rc<Self>) -> Result<T, Failure>,
    ) -> Result<(Rc<Self>, T), Failure> {
        let nvml = Nvml::load();
        let uuid = api.context.uuid(device);
        let tool = || nvml.as_ref().zip(uuid).and_then(|(nvml, uuid)| nvml.memory(uuid));
        let before = tool();
        let lost = RefCell::new(None);
        let facts = Cell::default();
        let mut card = Self { api, ordinal, device, context: None, facts, lost };
        let context = api.driver.retain(device);
        card.context = Some(card.sort("cuDevicePrimaryCtxRetain", context)?);
        card.facts.set(card.read_facts()?);
        let card = Rc::new(card);
        let made = beside(&card)?;
        card.measure(before, tool())?;
        Ok((card, made))
    }

    fn read_facts(&self) -> Result<CardFacts, Failure> {
        let attribute = |number| {
            self.call("cuDeviceGetAttribute", |api| api.driver.attribute(self.device, number))
        };
        let unsigned = |number| attribute(number).map(|value| u32::try_from(value).unwrap_or(0));
        let virtual_memory = attribute(VIRTUAL_MEMORY)? != 0;
        let page = |which| match virtual_memory {
            true => self
                .call("cuMemGetAllocationGranularity", |api| {
                    api.memory.granularity(self.device, which)
                })
                .map(Bytes),
            false => Ok(Bytes::ZERO),
        };
        Ok(CardFacts {
            page: page(Granularity::Minimum)?,
            page_recommended: page(Granularity::Recommended)?,
            capability: (unsigned(CAPABILITY_MAJOR)?, unsigned(CAPABILITY_MINOR)?),
            multiprocessors: unsigned(MULTIPROCESSORS)?,
            shared_memory: Bytes(u64::from(unsigned(SHARED_OPT_IN)?)),
            virtual_memory,
            ..CardFacts::default()
        })
    }

    fn measure(
        &self,
        before: Option<ToolReading>,
        after: Option<ToolReading>,
    ) -> Result<(), Failure> {
        let (free, total) = self.memory()?;
        let taken = total.saturating_sub(free);
        let mut facts = self.facts.get();
        facts.tool_total = before.map(|reading| Bytes(reading.total));
        facts.total = total;
        facts.context = taken;
        if let Some((before, after)) = before.zip(after) {
            let context = Bytes(before.free.saturating_sub(after.free)).min(taken);
            facts.context = context;
            facts.foreign = Some(taken.saturating_sub(context));
        }
        self.facts.set(facts);
        Ok(())
    }

    /// What was read and measured when it was opened.
    #[must_use]
    pub fn facts(&self) -> CardFacts {
        self.facts.get()
    }

    /// CUDA ordinal in this process.
    #[must_use]
    pub const fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Functions that can be called from any thread.
    pub(crate) const fn driver(&self) -> Driver {
        self.api.driver
    }

    /// The driver's handle of the device.
    pub(crate) const fn device(&self) -> i32 {
        self.device
    }

    /// Whether it can still be called.
    ///
    /// # Errors
    ///
    /// [`Failure::Lost`] with the call by which it was lost.
    pub fn check(&self) -> Result<(), Failure> {
        match &*self.lost.borrow() {
            Some(text) => Err(Failure::Lost(text.clone())),
            None => Ok(()),
        }
    }

    /// Makes this card's context current, for calls into libraries beside the driver.
    pub(crate) fn enter(&self) -> Result<(), Failure> {
        self.check()?;
        match &self.context {
            Some(context) => self.sort("cuCtxSetCurrent", self.api.context.set_current(context)),
            None => Ok(()),
        }
    }

    /// Calls the driver with this card's context current. Once lost, nothing is called any more.
    pub(crate) fn call<T>(
        &self,
        name: &'static str,
        body: impl FnOnce(&Api) -> Result<T, Code>,
    ) -> Result<T, Failure> {
        self.enter()?;
        self.sort(name, body(&self.api))
    }

    /// A call whose failure only a later one will tell: giving back.
    pub(crate) fn quiet(&self, name: &'static str, body: impl FnOnce(&Api) -> Result<(), Code>) {
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

    /// What a library's status means: the driver is asked whether the device is lost, since the
    /// libraries have one status for many causes.
    pub(crate) fn library(&self, failure: Failure) -> Failure {
        match self.memory() {
            Err(lost @ Failure::Lost(_)) => lost,
            _ => failure,
        }
    }

    /// Free and total now (`cuMemGetInfo`).
    ///
    /// # Errors
    ///
    /// [`Failure::Lost`].
    pub fn memory(&self) -> Result<(Bytes, Bytes), Failure> {
        let (free, total) = self.call("cuMemGetInfo", |api| api.driver.memory_now())?;
        Ok((Bytes(free), Bytes(total)))
    }

    /// What the driver holds for memory nodes of graphs: zero when graphs are captured over
    /// memory that is planned.
    ///
    /// # Errors
    ///
    /// [`Failure::Lost`].
    pub fn graph_memory(&self) -> Result<Bytes, Failure> {
        let read = |api: &Api| api.context.graph_memory(self.device);
        self.call("cuDeviceGetGraphMemAttribute", read).map(Bytes)
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        if let Some(context) = self.context.take() {
            // Also of a lost device: releasing the context is how its memory comes back.
            let _ = self.api.driver.release(context);
        }
    }
}
