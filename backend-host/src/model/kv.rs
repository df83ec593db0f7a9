//! The KV pool: token slots of every layer, handed out by the scheduler.

/// Keys and values by slot: `layers × slots × kv heads × head width`, float32.
#[derive(Clone, PartialEq, Debug)]
pub struct KvPool {
    slots: usize,
    width: usize,
    /// One a layer.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

impl KvPool {
    /// A pool of zeros, touched, so that its pages are there.
    pub(super) fn new(layers: usize, slots: usize, width: usize) -> Self {
        // A value other than zero is written by the allocator's user, not by the kernel on first use.
        let side = || {
            (0..layers).map(|_| {
                let mut values = vec![f32::NAN; slots * width];
                values.fill(0.0);
                values
            })
        };
        Self { slots, width, keys: side().collect(), values: side().collect() }
    }

    /// Token slots.
    #[must_use]
    pub const fn slots(&self) -> usize {
        self.slots
    }

    /// Bytes of all layers.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        (self.keys.len() * 2 * self.slots * self.width * 4) as u64
    }

    /// Keys and values of a layer.
    pub(super) fn layer(&self, layer: usize) -> Option<LayerKv<'_>> {
        let (keys, values) = (self.keys.get(layer)?, self.values.get(layer)?);
        Some(LayerKv { keys, values, width: self.width })
    }

    /// Writes the keys and values of one token; false when layer or slot is not there.
    pub(super) fn store(&mut self, layer: usize, slot: u32, keys: &[f32], values: &[f32]) -> bool {
        let range = slot as usize * self.width..(slot as usize + 1) * self.width;
        let both = self.keys.get_mut(layer).zip(self.values.get_mut(layer));
        let Some((to_keys, to_values)) = both else { return false };
        match (to_keys.get_mut(range.clone()), to_values.get_mut(range)) {
            (Some(to_keys), Some(to_values)) => {
                to_keys.copy_from_slice(keys);
                to_values.copy_from_slice(values);
                true
            }
            _ => false,
        }
    }
}

/// One layer of the pool.
#[derive(Clone, Copy)]
pub(super) struct LayerKv<'a> {
    pub(super) keys: &'a [f32],
    pub(super) values: &'a [f32],
    /// All heads of a slot.
    pub(super) width: usize,
}
