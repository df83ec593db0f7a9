//! Device memory held in somebody's name, without addresses: other programs, the rest of a card
//! beyond the declared shares, what a graph costs less than was planned.

use crate::card::Card;
use crate::failure::Failure;
use crate::memory::Chunk;
use plimsoll_core::units::Bytes;
use std::rc::Rc;

/// Largest piece, so that a little can be given back without giving all back.
const PIECE: Bytes = Bytes::gib(1);

/// Memory that can grow and shrink.
#[derive(Default)]
pub(crate) struct Ballast {
    chunks: Vec<Chunk>,
}

impl Ballast {
    /// What is held, a multiple of the card's page.
    pub(crate) fn size(&self) -> Bytes {
        self.chunks.iter().map(Chunk::size).sum()
    }

    /// Makes it hold `target` bytes, rounded up to whole pages of the card. A growth that fails
    /// changes nothing. A shrinking does not fail for lack of memory: when another program takes
    /// what was given back before the rest is taken again, less is held than asked for.
    pub(crate) fn set(&mut self, card: &Rc<Card>, target: Bytes) -> Result<(), Failure> {
        let (target, held) = (target.round_up_to(card.facts().page), self.size());
        match target.checked_sub(held) {
            Some(more) => self.grow(card, more),
            None => self.shrink(card, held.saturating_sub(target)),
        }
    }

    fn grow(&mut self, card: &Rc<Card>, more: Bytes) -> Result<(), Failure> {
        let before = self.chunks.len();
        let mut left = more;
        while left > Bytes::ZERO {
            let piece = left.min(PIECE);
            match Chunk::take(card, piece) {
                Ok(chunk) => self.chunks.push(chunk),
                Err(failure) => {
                    self.chunks.truncate(before);
                    return Err(failure);
                }
            }
            left = left.saturating_sub(piece);
        }
        Ok(())
    }

    /// Gives whole pieces back, from the last, and takes again what was too much.
    fn shrink(&mut self, card: &Rc<Card>, less: Bytes) -> Result<(), Failure> {
        let mut given = Bytes::ZERO;
        while given < less {
            let Some(chunk) = self.chunks.pop() else { break };
            given += chunk.size();
        }
        card.check()?;
        match self.grow(card, given.saturating_sub(less)) {
            Err(Failure::OutOfMemory(_)) => Ok(()),
            done => done,
        }
    }
}
