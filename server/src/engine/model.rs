//! What the loop asks of a model, wherever it computes.

use plimsoll_backend_host::model::HostModel;
use plimsoll_core::{
    engine::live::BodyError,
    tape::own::{Draw, Sequence},
};

/// What came of an output row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Chosen<'a> {
    /// The token that the model drew.
    Token(u32),
    /// Logits of the whole vocabulary, for a choice here.
    Logits(&'a [f32]),
}

/// A model with its pool of pages.
pub trait Model {
    /// Whether it draws tokens itself, where a row asks for no more than a draw.
    fn draws(&self) -> bool;

    /// Computes a step. `draws` has an entry for every output row, in their order; of a model that does not draw
    /// all are `None`. What came of each row goes to `take`, in the same order.
    ///
    /// # Errors
    ///
    /// [`BodyError::Failed`].
    fn step(
        &mut self,
        sequences: &[Sequence<'_>],
        draws: &[Option<Draw>],
        take: &mut dyn FnMut(Chosen<'_>),
    ) -> Result<(), BodyError>;

    /// Gives the memory of a page away; its numbers begin with 0.
    ///
    /// # Errors
    ///
    /// [`BodyError::Failed`].
    fn lend(&mut self, page: u32) -> Result<(), BodyError>;

    /// Takes it again.
    ///
    /// # Errors
    ///
    /// [`BodyError::NoMemory`] where it is not there; nothing has changed then.
    fn take_back(&mut self, page: u32) -> Result<(), BodyError>;
}

impl<M: Model + ?Sized> Model for Box<M> {
    fn draws(&self) -> bool {
        (**self).draws()
    }

    fn step(
        &mut self,
        sequences: &[Sequence<'_>],
        draws: &[Option<Draw>],
        take: &mut dyn FnMut(Chosen<'_>),
    ) -> Result<(), BodyError> {
        (**self).step(sequences, draws, take)
    }

    fn lend(&mut self, page: u32) -> Result<(), BodyError> {
        (**self).lend(page)
    }

    fn take_back(&mut self, page: u32) -> Result<(), BodyError> {
        (**self).take_back(page)
    }
}

/// A pass or a page that a model could not do.
pub(crate) fn failed(error: impl std::fmt::Display) -> BodyError {
    BodyError::Failed(error.to_string())
}

impl Model for HostModel {
    /// Logits lie in the memory of who chooses.
    fn draws(&self) -> bool {
        false
    }

    fn step(
        &mut self,
        sequences: &[Sequence<'_>],
        _: &[Option<Draw>],
        take: &mut dyn FnMut(Chosen<'_>),
    ) -> Result<(), BodyError> {
        let logits = Self::step(self, sequences).map_err(failed)?;
        logits.rows().for_each(|row| take(Chosen::Logits(row)));
        Ok(())
    }

    fn lend(&mut self, page: u32) -> Result<(), BodyError> {
        Self::lend(self, page).map_err(failed)
    }

    fn take_back(&mut self, page: u32) -> Result<(), BodyError> {
        Self::take_back(self, page).map_err(|error| BodyError::NoMemory(error.to_string()))
    }
}
