//! When pages are lent back, and when they are taken again.
//!
//! A step up and a step down stand apart, so that what is moved does not come back at the next look:
//!
//! | room | what is done | room then |
//! |---|---|---|
//! | below the margin | pages are given back | at least 1.5 margins |
//! | one to two margins | nothing | the same |
//! | above two margins | lent pages are taken | at least 1.5 margins |

use crate::units::Bytes;

/// What is left to take, each as far as it is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Room {
    /// `MemAvailable`.
    pub available: Option<Bytes>,
    /// What the control groups leave.
    pub group: Option<Bytes>,
    /// What `--memory-limit` leaves: the limit − what of the process lies in RAM.
    pub limit: Option<Bytes>,
}

impl Room {
    /// The smallest; `None` where nothing is known.
    #[must_use]
    pub fn least(&self) -> Option<Bytes> {
        [self.available, self.group, self.limit].into_iter().flatten().min()
    }
}

/// Pages of the pool at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolPages {
    /// Pages that can be given back: neither lent nor needed for the requests that must go on.
    pub spare: u64,
    /// Pages that are lent.
    pub lent: u64,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    /// Nothing.
    Stay,
    /// So many pages are given back.
    Give(u64),
    /// So many pages are taken again.
    Take(u64),
}

/// The rule of one engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lending {
    /// What should stay free: the plan's margin.
    pub margin: Bytes,
    /// Size of a page.
    pub page: Bytes,
}

impl Lending {
    /// What to do at a reading. Pure: a recording of the readings gives the same moves.
    #[must_use]
    pub fn decide(&self, room: Room, pages: PoolPages) -> Move {
        let Some(room) = room.least() else { return Move::Stay };
        let aim = Bytes(self.margin.0.saturating_add(self.margin.0 / 2));
        let page = self.page.0.max(1);
        if room < self.margin {
            let give = aim.saturating_sub(room).0.div_ceil(page).min(pages.spare);
            return if give > 0 { Move::Give(give) } else { Move::Stay };
        }
        if room.0 > self.margin.0.saturating_mul(2) {
            let take = (room.saturating_sub(aim).0 / page).min(pages.lent);
            return if take > 0 { Move::Take(take) } else { Move::Stay };
        }
        Move::Stay
    }
}
