// Every kernel in one unit.
#include "embed.cu"
#include "norms.cu"
#include "pointwise.cu"
#include "copy.cu"
#include "dequant.cu"
#include "rope.cu"
#include "decode_attention.cu"
#include "prefill_attention.cu"
