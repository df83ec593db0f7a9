//! A model made of noise: any shape, no file.
#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses its part of this")]

use std::convert::Infallible;

use plimsoll_backend_host::model::{HostModel, Keep, KvFormat, ModelOptions};
use plimsoll_core::{
    model::encoding::Encoding,
    tape::own::{DecoderShape, LayerShape, Matrix, StepLimits, WeightId, WeightSource},
};

/// A small decoder with wide keys and values: `layers` times 2 × 4 × 64 values a token.
pub(crate) fn shape(layers: usize) -> DecoderShape {
    DecoderShape {
        vocab: 300,
        hidden: 64,
        layers: vec![LayerShape { intermediate: 96, window: None }; layers],
        q_heads: 8,
        kv_heads: 4,
        head_dim: 64,
        norm_eps: 1e-5,
        rope: (0..32).map(|i| 0.6_f64.powi(i)).collect(),
        tied: true,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: false,
        context: 4096,
    }
}

struct Noise {
    shape: DecoderShape,
    state: u64,
}

impl WeightSource for Noise {
    type Error = Infallible;

    fn weight(&mut self, id: WeightId) -> Result<Matrix, Infallible> {
        let extent = self.shape.extent(id).unwrap();
        let scale = if extent.rows == 1 { 1.0 } else { 2.0 / (extent.columns as f32).sqrt() };
        let bytes = (0..extent.rows * extent.columns).flat_map(|_| {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let unit = (self.state >> 40) as f32 / (1 << 24) as f32;
            ((2.0 * unit - 1.0) * scale).to_le_bytes()
        });
        Ok(Matrix { extent, encoding: Encoding::F32, bytes: bytes.collect() })
    }
}

/// Options of a pool of float32 pages of 16 positions.
pub(crate) fn options(limits: StepLimits, pages: usize, context: u64) -> ModelOptions {
    let (threads, page_tokens, keep, kv) = (2, 16, Keep::F32, KvFormat::F32);
    ModelOptions { threads, limits, pages, page_tokens, context, keep, kv }
}

pub(crate) fn load(shape: &DecoderShape, options: &ModelOptions) -> HostModel {
    let mut source = Noise { shape: shape.clone(), state: 7 };
    HostModel::load(shape, &mut source, options).unwrap()
}
