//! Bytes of a request's linear-attention state on one rank.

use crate::model::geometry::{Attention, LinearKind, LinearState};

/// Bytes of one element of a convolution state (bfloat16).
const CONV_BYTES: u64 = 2;

/// State bytes of one layer for one request on one of `tp` ranks; 0 for other layers.
///
/// Convolution: channels of the rank times taps less one, bfloat16. Recurrence: heads of the rank
/// times its matrix, `ssm_bytes` an element (float32 unless `--mamba-ssm-dtype` says otherwise).
/// Source: SGLang `Mamba2StateShape`, `KimiLinearStateShape` and their dtypes; 0.5.8 and 0.5.23
/// agree with the 77,266,944 bytes of Qwen3-Next.
pub(crate) fn state_bytes(attention: &Attention, tp: u64, ssm_bytes: u64) -> u64 {
    let Attention::Linear(state) = attention else { return 0 };
    let tp = tp.max(1);
    let heads = state.heads.div_ceil(tp);
    let matrix = heads.saturating_mul(state.head_dim).saturating_mul(state.state_dim);
    let taps = state.conv_kernel.saturating_sub(1);
    let channels = (channels(state, tp)).div_ceil(tp);
    let conv = channels.saturating_mul(taps).saturating_mul(CONV_BYTES);
    conv.saturating_add(matrix.saturating_mul(ssm_bytes))
}

/// Channels of the whole model; Mamba-2 adds groups so that every rank has one.
fn channels(state: &LinearState, tp: u64) -> u64 {
    let uneven =
        state.kind == LinearKind::Mamba2 && state.groups > 0 && !state.groups.is_multiple_of(tp);
    if !uneven {
        return state.conv_channels;
    }
    let extra = tp.saturating_sub(state.groups);
    state.conv_channels.saturating_add(extra.saturating_mul(2).saturating_mul(state.state_dim))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qwen3_next() -> Attention {
        Attention::Linear(LinearState {
            kind: LinearKind::Gdn,
            heads: 32,
            head_dim: 128,
            state_dim: 128,
            conv_channels: 8192,
            conv_kernel: 4,
            groups: 16,
        })
    }

    #[test]
    fn qwen3_next_keeps_77_266_944_bytes_in_36_layers() {
        assert_eq!(36 * state_bytes(&qwen3_next(), 1, 4), 77_266_944);
        assert_eq!(36 * state_bytes(&qwen3_next(), 4, 4), 77_266_944 / 4);
        assert!(state_bytes(&qwen3_next(), 1, 2) < 77_266_944 / 36);
        assert_eq!(state_bytes(&Attention::None, 1, 4), 0);
    }

    #[test]
    fn mamba2_replicates_groups_that_ranks_lack() {
        let state = LinearState {
            kind: LinearKind::Mamba2,
            heads: 128,
            head_dim: 64,
            state_dim: 128,
            conv_channels: 8192 + 2 * 128,
            conv_kernel: 4,
            groups: 1,
        };
        let conv = |tp| state_bytes(&Attention::Linear(state), tp, 4) - 128 / tp * 64 * 128 * 4;
        assert_eq!(conv(1), (8192 + 256) * 3 * 2);
        assert_eq!(conv(8), (1024 + 256) * 3 * 2);
    }
}
