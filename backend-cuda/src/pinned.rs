//! Page-locked host memory that copies run from and to while the program goes on. Its bytes are
//! seen only while no copy uses them: each copy leaves a ticket of its stream, and a look before
//! the ticket is due is refused.

use crate::card::Card;
use crate::failure::Failure;
use crate::ffi::memory::PinnedMemory;
use crate::stream::{Clock, Ticket};
use bytemuck::Pod;
use plimsoll_core::units::Bytes;
use std::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;

/// Page-locked host memory.
pub struct Pinned(pub(crate) Rc<Held>);

/// What copies and graphs hold of it.
pub(crate) struct Held {
    card: Rc<Card>,
    memory: RefCell<Option<PinnedMemory>>,
    uses: RefCell<Vec<Use>>,
}

struct Use {
    ticket: Ticket,
    writes: bool,
}

const CALL: &str = "pinned memory";

impl Pinned {
    /// Takes `size` bytes.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn take(card: &Rc<Card>, size: Bytes) -> Result<Self, Failure> {
        let memory = card.call("cuMemHostAlloc", |api| api.memory.host_alloc(size.0))?;
        let memory = RefCell::new(Some(memory));
        Ok(Self(Rc::new(Held { card: Rc::clone(card), memory, uses: RefCell::default() })))
    }

    /// Length in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.0.size()
    }

    /// Its values, while no copy writes to them. While the answer lives, copies into this memory
    /// are refused.
    ///
    /// # Errors
    ///
    /// [`Failure::Misuse`] when a copy into it was not waited for, or its size is no multiple of
    /// `T`'s.
    pub fn read<T: Pod>(&self) -> Result<Ref<'_, [T]>, Failure> {
        self.0.idle(false)?;
        let memory = self.0.memory.try_borrow().map_err(|_| in_sight())?;
        if seen::<T>(&memory).is_none() {
            return Err(Failure::misuse(CALL, "its size is no multiple of the values'"));
        }
        Ok(Ref::map(memory, |memory| seen(memory).unwrap_or_default()))
    }

    /// Its values, to write, while no copy uses them. While the answer lives, all copies of this
    /// memory are refused.
    ///
    /// # Errors
    ///
    /// [`Failure::Misuse`] when a copy from or into it was not waited for, it is looked at
    /// elsewhere, or its size is no multiple of `T`'s.
    pub fn write<T: Pod>(&mut self) -> Result<RefMut<'_, [T]>, Failure> {
        self.0.idle(true)?;
        let memory = self.0.memory.try_borrow_mut().map_err(|_| in_sight())?;
        if seen::<T>(&memory).is_none() {
            return Err(Failure::misuse(CALL, "its size is no multiple of the values'"));
        }
        Ok(RefMut::map(memory, |memory| {
            let bytes = memory.as_mut().map(PinnedMemory::bytes_mut);
            bytes.and_then(|bytes| bytemuck::try_cast_slice_mut(bytes).ok()).unwrap_or_default()
        }))
    }
}

fn in_sight() -> Failure {
    Failure::misuse(CALL, "its bytes are looked at")
}

fn seen<T: Pod>(memory: &Option<PinnedMemory>) -> Option<&[T]> {
    bytemuck::try_cast_slice(memory.as_ref()?.bytes()).ok()
}

impl Held {
    pub(crate) fn size(&self) -> u64 {
        self.memory.try_borrow().map_or(0, |memory| memory.as_ref().map_or(0, PinnedMemory::size))
    }

    /// Gives the memory to a copy, which must lie inside and not be in sight.
    pub(crate) fn lend<T>(
        &self,
        (offset, size): (u64, u64),
        writes: bool,
        body: impl FnOnce(&PinnedMemory) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.unseen(writes)?;
        let all = self.size();
        if offset.checked_add(size).is_none_or(|end| end > all) {
            let what = format!("bytes {offset} to {offset} + {size} of {all}");
            return Err(Failure::misuse(CALL, what));
        }
        let memory = self.memory.try_borrow().map_err(|_| in_sight())?;
        body(memory.as_ref().ok_or_else(in_sight)?)
    }

    /// Whether nobody looks at what a copy reads or writes.
    pub(crate) fn unseen(&self, writes: bool) -> Result<(), Failure> {
        let unseen = match writes {
            true => self.memory.try_borrow_mut().is_ok(),
            false => self.memory.try_borrow().is_ok(),
        };
        if unseen { Ok(()) } else { Err(in_sight()) }
    }

    /// Notes a copy that a stream was given.
    pub(crate) fn used(&self, clock: &Rc<Clock>, writes: bool) {
        let ticket = Ticket::now(clock);
        let mut uses = self.uses.borrow_mut();
        let replaced = |old: &Use| old.writes == writes && old.ticket.of(clock);
        uses.retain(|old| !(old.ticket.is_due() || replaced(old)));
        uses.push(Use { ticket, writes });
    }

    fn idle(&self, also_reads: bool) -> Result<(), Failure> {
        let mut uses = self.uses.borrow_mut();
        uses.retain(|old| !old.ticket.is_due());
        if uses.iter().any(|old| old.writes || also_reads) {
            return Err(Failure::misuse(CALL, "a copy of it was not waited for"));
        }
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for old in self.uses.borrow_mut().drain(..) {
            old.ticket.wait();
        }
        if let Some(memory) = self.memory.borrow_mut().take() {
            self.card.quiet("cuMemFreeHost", |api| api.memory.host_free(memory));
        }
    }
}
