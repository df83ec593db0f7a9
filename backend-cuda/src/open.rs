//! Opening: the cards that the ranks name, what each holds from the start, and the filler that
//! leaves free on a card exactly what its ranks declare.

use crate::accounts::Accounts;
use crate::ballast::Ballast;
use crate::card::{Api, Card};
use crate::exercise::Exercise;
use crate::failure::{Failure, OpenError};
use crate::ffi::LoadError;
use crate::probe::{self, ProbeError};
use crate::spec::{CudaSpec, RankSpec, Share};
use plimsoll_core::{backend::Rank, units::Bytes};
use std::rc::Rc;

/// A card with what is held on it for nobody.
pub(crate) struct CardState {
    /// CUDA ordinal.
    pub(crate) device: u32,
    /// What is done with it.
    pub(crate) exercise: Exercise,
    /// The device.
    pub(crate) card: Rc<Card>,
    /// What is left of the card beyond its ranks' shares.
    pub(crate) filler: Ballast,
    /// Ranks on it.
    pub(crate) ranks: u32,
}

/// A rank.
pub(crate) struct RankState {
    /// Index of its card.
    pub(crate) card: usize,
    /// What it is told.
    pub(crate) share: Share,
    /// What it holds.
    pub(crate) accounts: Accounts,
    /// What other programs hold, as it is told.
    pub(crate) others: Bytes,
    /// What is held on the card for them.
    pub(crate) ballast: Ballast,
}

/// Opens the driver and every card that a rank names.
pub(crate) fn open(spec: &CudaSpec) -> Result<(Vec<CardState>, Vec<RankState>), OpenError> {
    let api = Api::load().map_err(probe_error)?;
    let visible = probe::start(&api.driver)?;
    check_shares(spec)?;
    let mut cards: Vec<CardState> = Vec::new();
    let mut ranks = Vec::new();
    for of in &spec.ranks {
        let at = match cards.iter().position(|card| card.device == of.device) {
            Some(at) => at,
            None => {
                cards.push(open_card(api, of.device, visible)?);
                cards.len() - 1
            }
        };
        cards[at].ranks += 1;
        ranks.push(rank_state(at, of, &cards[at].card));
    }
    for (at, card) in cards.iter_mut().enumerate() {
        settle(at, card, &mut ranks)?;
    }
    Ok((cards, ranks))
}

/// Opens one card for measuring.
pub(crate) fn open_alone(device: u32) -> Result<CardState, OpenError> {
    let api = Api::load().map_err(probe_error)?;
    let visible = probe::start(&api.driver)?;
    open_card(api, device, visible)
}

/// Opens cards to work on, in the order of `devices`; nothing is taken but a context each.
///
/// # Errors
///
/// [`OpenError`]: no usable driver, no such device, or one that is too full for a context.
pub fn cards(devices: &[u32]) -> Result<Vec<Rc<Card>>, OpenError> {
    let api = Api::load().map_err(probe_error)?;
    let visible = probe::start(&api.driver)?;
    let open = |device: &u32| Ok(open_with(api, *device, visible, |_| Ok(()))?.0);
    devices.iter().map(open).collect()
}

fn probe_error(error: LoadError) -> OpenError {
    ProbeError::from(error).into()
}

fn check_shares(spec: &CudaSpec) -> Result<(), OpenError> {
    for (rank, of) in (0..).map(Rank).zip(&spec.ranks) {
        match of.share {
            Share::Whole => {
                if spec.ranks.iter().filter(|other| other.device == of.device).count() > 1 {
                    return Err(OpenError::SharedWhole(of.device));
                }
            }
            Share::Declared(share) => {
                let reserved = share.driver_reserve.saturating_add(share.others);
                if reserved > share.capacity {
                    return Err(OpenError::EmptyShare { rank, reserved, capacity: share.capacity });
                }
            }
        }
    }
    Ok(())
}

fn open_card(api: Api, device: u32, visible: u32) -> Result<CardState, OpenError> {
    let (card, exercise) = open_with(api, device, visible, Exercise::new)?;
    Ok(CardState { device, exercise, card, filler: Ballast::default(), ranks: 0 })
}

fn open_with<T>(
    api: Api,
    device: u32,
    visible: u32,
    beside: impl FnOnce(&Rc<Card>) -> Result<T, Failure>,
) -> Result<(Rc<Card>, T), OpenError> {
    let missing = OpenError::NoSuchDevice { device, visible };
    if device >= visible {
        return Err(missing);
    }
    let ordinal = i32::try_from(device).map_err(|_| missing)?;
    let handle = probe::handle(&api.driver, ordinal)?;
    Card::open(api, device, handle, beside).map_err(|failure| match failure {
        Failure::OutOfMemory(_) => OpenError::CardFull(device),
        other => other.plain().into(),
    })
}

fn rank_state(card: usize, of: &RankSpec, on: &Rc<Card>) -> RankState {
    let others = match of.share {
        Share::Whole => on.facts().foreign.unwrap_or_default(),
        Share::Declared(share) => share.others,
    };
    let (accounts, ballast) = (Accounts::default(), Ballast::default());
    RankState { card, share: of.share, accounts, others, ballast }
}

/// Takes what other programs hold in each share, then fills the card up.
fn settle(at: usize, state: &mut CardState, ranks: &mut [RankState]) -> Result<(), OpenError> {
    let page = state.card.facts().page;
    let mine = || ranks.iter().filter(|rank| rank.card == at);
    let declared = mine().filter_map(|rank| match rank.share {
        Share::Declared(share) => Some(share.usable().round_up_to(page)),
        Share::Whole => None,
    });
    let shares: Vec<Bytes> = declared.collect();
    if shares.is_empty() {
        return Ok(());
    }
    let declared: Bytes = shares.into_iter().sum();
    let (free, _) = state.card.memory().map_err(Failure::plain)?;
    let device = state.device;
    let lacks = |failure: Failure| match failure {
        Failure::OutOfMemory(_) => OpenError::TooLittle { device, declared, free },
        other => other.plain().into(),
    };
    let rest =
        free.checked_sub(declared).ok_or_else(|| lacks(Failure::OutOfMemory("cuMemCreate")))?;
    for rank in ranks.iter_mut().filter(|rank| rank.card == at) {
        rank.ballast.set(&state.card, rank.others).map_err(lacks)?;
    }
    let pages = rest.0 / page.0.max(1);
    state.filler.set(&state.card, Bytes(pages * page.0)).map_err(lacks)
}
