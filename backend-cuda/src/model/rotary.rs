//! The rotary table: cosines, then sines, of every position and plane.

use super::{error::CudaError, rank::Rank};
use crate::device::{Failure, Pinned};
use plimsoll_core::units::Bytes;

/// Values that go up at a time.
const PIECE: usize = 1 << 18;

/// Computes the table and sends it to the device.
pub(super) fn upload(rank: &Rank) -> Result<(), CudaError> {
    let (turns, positions) = (&rank.sketch.own.rope, rank.context as usize);
    let values = turns.len() * positions;
    let sent = || -> Result<(), Failure> {
        let bytes = Bytes(PIECE.min(values) as u64 * 4);
        let mut staging = Pinned::take(&rank.card, bytes)?;
        // Angles are made in double precision: at position 100,000 a float32 angle is off by 0.01.
        let angle = |at: usize| {
            let (position, plane) = (at / turns.len(), at % turns.len());
            position as f64 * turns.get(plane).copied().unwrap_or_default()
        };
        for (table, function) in [f64::cos, f64::sin].into_iter().enumerate() {
            for start in (0..values).step_by(PIECE) {
                let count = PIECE.min(values - start);
                for (at, place) in staging.write::<f32>()?.iter_mut().take(count).enumerate() {
                    *place = function(angle(start + at)) as f32;
                }
                let offset = (table * values + start) as u64 * 4;
                let place = rank.held.rotary.pointer().slice(offset, count as u64 * 4)?;
                rank.compute.copy_in(place, &staging, 0)?;
                rank.compute.synchronize()?;
            }
        }
        Ok(())
    };
    sent().map_err(rank.told("the rotary table", rank.held.rotary.mapped()))
}
