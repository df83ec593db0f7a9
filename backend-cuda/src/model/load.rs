//! Loading weights: each is read once, goes up in pieces through two page-locked buffers, and is converted on
//! the device. What it passes through there is the arena, which no step uses yet: loading takes no memory of
//! the device.

use super::{
    error::{CudaError, LoadError},
    layout::Place,
    open::{Machine, OpenedCuda},
    rank::Rank,
    step::CudaModel,
};
use crate::{
    device::{DevicePointer, Event, Failure, Pinned},
    kernels::Dequantise,
};
use plimsoll_core::{
    tape::own::{Matrix, WeightId, WeightSource},
    units::Bytes,
};

/// Largest piece that goes up at a time.
const PIECE_MAX: u64 = 32 << 20;
/// Pieces begin at multiples of this.
const ALIGNMENT: u64 = 256;

impl OpenedCuda {
    /// Loads the weights; free memory of the devices is the same before and after.
    ///
    /// # Errors
    /// [`LoadError`]; everything is given back then.
    pub fn load<S: WeightSource>(
        mut self,
        source: &mut S,
    ) -> Result<CudaModel, LoadError<S::Error>> {
        let machine = &mut self.0;
        let before = machine.free()?;
        let staging = machine.ranks.iter().map(Staging::new).collect::<Result<Vec<_>, _>>();
        let mut staging = staging?;
        for id in machine.shape.weights().collect::<Vec<_>>() {
            let matrix = source.weight(id).map_err(LoadError::Source)?;
            let columns = matrix.extent.columns as usize;
            let bytes = matrix.encoding.row_bytes(columns);
            let bytes = bytes.and_then(|bytes| bytes.checked_mul(matrix.extent.rows as usize));
            if machine.shape.extent(id) != Some(matrix.extent) || bytes != Some(matrix.bytes.len())
            {
                return Err(LoadError::Extent(id));
            }
            for (rank, staging) in machine.ranks.iter_mut().zip(&mut staging) {
                let put = rank.put_weight(staging, id, &matrix);
                put.map_err(rank.told("weights", Bytes(matrix.bytes.len() as u64)))?;
            }
        }
        machine.wait().map_err(|failure| machine.failed("weights", failure))?;
        drop(staging);
        machine.same_free(&before)?;
        Ok(CudaModel::new(self.0))
    }
}

impl Machine {
    /// What is free on each rank's device.
    fn free(&self) -> Result<Vec<Bytes>, CudaError> {
        let read = |rank: &Rank| {
            let reading = rank.card.memory().map_err(rank.told("a reading", Bytes::ZERO))?;
            Ok(reading.0)
        };
        self.ranks.iter().map(read).collect()
    }

    /// Loading has taken nothing; where that is not allowed, it is an error.
    fn same_free(&self, before: &[Bytes]) -> Result<(), CudaError> {
        for ((rank, before), after) in self.ranks.iter().zip(before).zip(self.free()?) {
            let unexplained = before.saturating_sub(after);
            if self.options.strict && unexplained > Bytes::ZERO {
                return Err(CudaError::Unexplained { device: rank.card.ordinal(), unexplained });
            }
        }
        Ok(())
    }
}

/// One of two buffers: page-locked, and its place on the device.
struct Slot {
    host: Pinned,
    device: DevicePointer,
    /// Behind the last copy from it.
    sent: Event,
}

/// What weights pass through on their way to a rank.
struct Staging {
    slots: Vec<Slot>,
    next: usize,
}

impl Staging {
    fn new(rank: &Rank) -> Result<Self, CudaError> {
        let arena = rank.held.arena.pointer();
        let row = rank.widest_row();
        // Two pieces in the arena; one, where it is too small for two rows.
        let half = (arena.size() / 2).min(PIECE_MAX) / ALIGNMENT * ALIGNMENT;
        let (count, size) = if half >= row { (2, half) } else { (1, arena.size()) };
        let make = |number: u64| -> Result<Slot, Failure> {
            Ok(Slot {
                host: Pinned::take(&rank.card, Bytes(size))?,
                device: arena.slice(number * size, size)?,
                sent: Event::new(&rank.card)?,
            })
        };
        let slots = (0..count).map(make).collect::<Result<Vec<_>, _>>();
        let slots = slots.map_err(rank.told("staging on the host", Bytes(size)))?;
        Ok(Self { slots, next: 0 })
    }
}

impl Rank {
    /// Bytes of the widest row that may be stored: float32.
    fn widest_row(&self) -> u64 {
        let own = &self.sketch.own;
        let ranks = own.layers.iter().map(|layer| layer.intermediate).max().unwrap_or(0);
        own.hidden.max(own.q_width()).max(ranks) * 4
    }

    fn put_weight(
        &mut self,
        staging: &mut Staging,
        id: WeightId,
        matrix: &Matrix,
    ) -> Result<(), Failure> {
        let Some(place) = self.sketch.weights.place(id).copied() else { return Ok(()) };
        let cut = self.sketch.weights.cut(id, &place);
        let whole = self.held.weights.pointer().slice(place.offset, place.bytes())?;
        if cut.zeros {
            return self.compute.fill(whole, 0);
        }
        if !place.matrix {
            let mut values = vec![0.0_f32; matrix.extent.columns as usize];
            matrix.encoding.decode(&matrix.bytes, &mut values);
            let own = cut.column as usize..(cut.column + place.columns) as usize;
            let own = values.get(own).unwrap_or_default();
            return self.put_vector(staging, whole, own);
        }
        self.put_matrix(staging, (whole, place, cut.row, cut.column), matrix)
    }

    fn put_vector(
        &self,
        staging: &mut Staging,
        place: DevicePointer,
        values: &[f32],
    ) -> Result<(), Failure> {
        let most = staging.slots.first().map_or(1, |slot| slot.host.size() / 4).max(1) as usize;
        for (number, piece) in values.chunks(most).enumerate() {
            let to = place.slice((number * most) as u64 * 4, piece.len() as u64 * 4)?;
            staging.send(self, bytemuck::cast_slice(piece), |rank, slot| {
                rank.compute.copy_in(to, &slot.host, 0)
            })?;
        }
        Ok(())
    }

    /// Rows of a rank's part, as many at a time as a slot holds.
    fn put_matrix(
        &mut self,
        staging: &mut Staging,
        (whole, place, first_row, first_column): (DevicePointer, Place, u64, u64),
        matrix: &Matrix,
    ) -> Result<(), Failure> {
        let columns = matrix.extent.columns;
        let row = matrix.encoding.row_bytes(columns as usize).unwrap_or_default() as u64;
        let most = staging.slots.first().map_or(0, |slot| slot.host.size()) / row.max(1);
        if most == 0 {
            return Err(Failure::misuse("weights", "a row is longer than the arena"));
        }
        let mut done = 0;
        while done < place.rows {
            let rows = most.min(place.rows - done);
            let start = ((first_row + done) * row) as usize;
            let stored = matrix.bytes.get(start..start + (rows * row) as usize);
            let stored = stored.unwrap_or_default();
            let out = whole.slice(done * place.columns * 2, rows * place.columns * 2)?;
            let slot = staging.fill(stored)?;
            let stored = slot.device.slice(0, stored.len() as u64)?;
            self.compute.copy_in(stored, &slot.host, 0)?;
            slot.sent.record(&self.compute)?;
            let of = Dequantise {
                encoding: matrix.encoding,
                out,
                stored,
                rows: rows as u32,
                columns: columns as u32,
                first_column: first_column as u32,
                width: place.columns as u32,
                out_stride: place.columns as u32,
            };
            self.kernels.dequantise(&self.compute, &of)?;
            done += rows;
        }
        Ok(())
    }
}

impl Staging {
    /// The next slot with these bytes, once nothing is being read from it any more.
    fn fill(&mut self, bytes: &[u8]) -> Result<&Slot, Failure> {
        let none = || Failure::misuse("weights", "no staging");
        let count = self.slots.len().max(1);
        let at = self.next % count;
        self.next = (at + 1) % count;
        let slot = self.slots.get_mut(at).ok_or_else(none)?;
        slot.sent.synchronize()?;
        let mut host = slot.host.write::<u8>()?;
        let place = host.get_mut(..bytes.len()).ok_or_else(none)?;
        place.copy_from_slice(bytes);
        drop(host);
        self.slots.get(at).ok_or_else(none)
    }

    fn send(
        &mut self,
        rank: &Rank,
        bytes: &[u8],
        copy: impl FnOnce(&Rank, &Slot) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let slot = self.fill(bytes)?;
        copy(rank, slot)?;
        slot.sent.record(&rank.compute)
    }
}
