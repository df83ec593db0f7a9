//! A card with what the checks need on it: values up, values down, numbers drawn from a seed.

use bytemuck::Pod;
use plimsoll_backend_cuda::{
    device::{Buffer, Card, DevicePointer, Pinned, Stream, cards},
    kernels::{Kernels, KvFloat},
};
use plimsoll_core::{
    model::encoding::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16},
    units::Bytes,
};
use std::rc::Rc;

pub(crate) use plimsoll_backend_cuda::device::Float;

/// Anything that the device layer says, as text.
pub(crate) fn text(error: impl ToString) -> String {
    error.to_string()
}

/// One card and a stream on it.
pub(crate) struct Bench {
    pub(crate) card: Rc<Card>,
    pub(crate) stream: Stream,
    random: u64,
}

impl Bench {
    pub(crate) fn open(device: u32, seed: u64) -> Result<Self, String> {
        let card = cards(&[device]).map_err(text)?.remove(0);
        let stream = Stream::new(&card).map_err(text)?;
        Ok(Self { card, stream, random: seed })
    }

    pub(crate) fn kernels(&self, float: Float, width: u32, kv: KvFloat) -> Result<Kernels, String> {
        Kernels::load(&self.card, float, width, kv).map_err(text)
    }

    /// The next 64 bits of `SplitMix64`.
    pub(crate) fn bits(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to below 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// `count` values from -1 to 1, times `size`.
    pub(crate) fn values(&mut self, count: usize, size: f32) -> Vec<f32> {
        (0..count).map(|_| (self.unit() * 2.0 - 1.0) as f32 * size).collect()
    }

    /// Memory of the card with these values in it.
    pub(crate) fn up<T: Pod>(&self, values: &[T]) -> Result<Buffer, String> {
        let size = Bytes(size_of_val(values).max(1) as u64);
        let buffer = Buffer::take(&self.card, size).map_err(text)?;
        let mut pinned = Pinned::take(&self.card, size).map_err(text)?;
        pinned.write::<T>().map_err(text)?[..values.len()].copy_from_slice(values);
        self.stream.copy_in(buffer.pointer(), &pinned, 0).map_err(text)?;
        self.stream.synchronize().map_err(text)?;
        Ok(buffer)
    }

    /// Memory of the card for `count` values, every byte 0xA5.
    pub(crate) fn room<T: Pod>(&self, count: usize) -> Result<Buffer, String> {
        let size = Bytes((count * size_of::<T>()).max(1) as u64);
        let buffer = Buffer::take(&self.card, size).map_err(text)?;
        self.stream.fill(buffer.pointer(), 0xA5).map_err(text)?;
        Ok(buffer)
    }

    /// What lies there now.
    pub(crate) fn down<T: Pod>(&self, from: DevicePointer) -> Result<Vec<T>, String> {
        let pinned = Pinned::take(&self.card, Bytes(from.size())).map_err(text)?;
        self.stream.copy_out(&pinned, 0, from).map_err(text)?;
        self.stream.synchronize().map_err(text)?;
        Ok(pinned.read::<T>().map_err(text)?.to_vec())
    }
}

/// Rounded to the model's numbers.
pub(crate) fn narrow(float: Float, values: &[f32]) -> Vec<u16> {
    let each = |value: &f32| match float {
        Float::Bf16 => f32_to_bf16(*value),
        Float::F16 => f32_to_f16(*value),
    };
    values.iter().map(each).collect()
}

/// As float32, exactly.
pub(crate) fn wide(float: Float, bits: &[u16]) -> Vec<f32> {
    let each = |bits: &u16| match float {
        Float::Bf16 => bf16_to_f32(*bits),
        Float::F16 => f16_to_f32(*bits),
    };
    bits.iter().map(each).collect()
}

/// The largest step between a number and its neighbour, as a part of it.
pub(crate) const fn step(float: Float) -> f64 {
    match float {
        Float::Bf16 => 1.0 / 128.0,
        Float::F16 => 1.0 / 1024.0,
    }
}

/// The worst difference in units of what is allowed: `rel` of the wanted value, and `abs`.
pub(crate) fn worst(got: &[f32], want: &[f64], rel: f64, abs: f64) -> Result<f64, String> {
    if got.len() != want.len() {
        return Err(format!("{} values for {}", got.len(), want.len()));
    }
    let mut most = 0.0_f64;
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let part = (f64::from(*got) - want).abs() / (rel * want.abs() + abs);
        if part.is_nan() || part > 1.0 {
            return Err(format!("value {index} is {got}, wanted {want}"));
        }
        most = most.max(part);
    }
    Ok(most)
}
