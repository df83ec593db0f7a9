//! Decoders with weights of noise: what is computed is nothing, what it costs is the same.

use plimsoll_core::{
    model::encoding::{Encoding, f32_to_bf16},
    policy::plimsoll::{PlanArgs, Settings},
    tape::own::{DecoderShape, LayerShape, Matrix, WeightId, WeightSource},
};
use std::convert::Infallible;

/// How large.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Size {
    /// Two small layers.
    Tiny,
    /// Llama-3-8B: 8.03 billion parameters.
    Llama8b,
}

impl Size {
    pub(crate) fn shape(self) -> DecoderShape {
        let (vocab, hidden, layers, wide, heads) = match self {
            Self::Tiny => (320, 128, 2, 192, (4, 2, 64)),
            Self::Llama8b => (128_256, 4096, 32, 14_336, (32, 8, 128)),
        };
        let (q_heads, kv_heads, head_dim) = heads;
        DecoderShape {
            vocab,
            hidden,
            layers: vec![LayerShape { intermediate: wide, window: None }; layers],
            q_heads,
            kv_heads,
            head_dim,
            norm_eps: 1e-5,
            rope: (0..head_dim / 2)
                .map(|i| 500_000_f64.powf(-2.0 * i as f64 / head_dim as f64))
                .collect(),
            tied: false,
            qkv_bias: false,
            o_bias: false,
            mlp_bias: false,
            qk_norm: false,
            context: 8192,
        }
    }

    /// What a server of it may form.
    pub(crate) fn settings(self) -> Result<Settings, String> {
        let (running, chunk, context) = match self {
            Self::Tiny => (4, 48, 128),
            Self::Llama8b => (256, 8192, 8192),
        };
        let args = PlanArgs {
            max_running_requests: Some(running),
            chunked_prefill_size: Some(chunk),
            context_length: Some(context),
            ..PlanArgs::default()
        };
        Settings::new(&args, &self.shape()).map_err(|error| error.to_string())
    }
}

/// Matrices of bfloat16 noise, cut from one stretch of it at places that differ by weight; vectors of ones.
pub(crate) struct Noise {
    shape: DecoderShape,
    bytes: Vec<u8>,
}

/// Values of the stretch: a prime, so that rows do not repeat.
const STRETCH: usize = 1_048_573;

impl Noise {
    pub(crate) fn new(shape: &DecoderShape) -> Self {
        let mut state = 7_u64;
        let values = (0..STRETCH).flat_map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let unit = (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0;
            // Rows of some thousand columns sum up to about one.
            f32_to_bf16(unit * 0.03).to_le_bytes()
        });
        Self { shape: shape.clone(), bytes: values.collect() }
    }
}

impl WeightSource for Noise {
    type Error = Infallible;

    fn weight(&mut self, id: WeightId) -> Result<Matrix, Infallible> {
        let extent = self.shape.extent(id).unwrap_or_else(|| unreachable!("{id}"));
        let values = (extent.rows * extent.columns) as usize;
        if extent.rows == 1 {
            let bytes = 1_f32.to_le_bytes().repeat(values);
            return Ok(Matrix { extent, encoding: Encoding::F32, bytes });
        }
        let layer = id.layer.map_or(0, |layer| layer as usize + 1);
        let mut at = (layer * 7919 + id.role as usize * 104_729) % STRETCH * 2;
        let mut bytes = Vec::with_capacity(values * 2);
        while bytes.len() < values * 2 {
            let some = (self.bytes.len() - at).min(values * 2 - bytes.len());
            bytes.extend_from_slice(&self.bytes[at..at + some]);
            at = 0;
        }
        Ok(Matrix { extent, encoding: Encoding::Bf16, bytes })
    }
}
