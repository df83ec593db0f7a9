// Element by element: biases and the gated activation.
#include "types.cuh"

template <class T>
__device__ __forceinline__ void bias(T* x, const float* bias, int width) {
  x += offset(blockIdx.x, width);
  const int first = blockIdx.y * BIAS_THREADS + threadIdx.x, step = gridDim.y * BIAS_THREADS;
  int whole = 0;
  if (aligned16(x) && aligned16(bias)) {
    whole = width / 8;
    for (int i = first; i < whole; i += step) {
      float values[8];
      unpack8<T>(load16(x + i * 8), values);
      const float4 low = *(const float4*)(bias + i * 8), high = *(const float4*)(bias + i * 8 + 4);
      const float more[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int j = 0; j < 8; j++) values[j] += more[j];
      store16(x + i * 8, pack8<T>(values));
    }
  }
  for (int i = whole * 8 + first; i < width; i += step) x[i] = from_float<T>(to_float(x[i]) + bias[i]);
}

#define BIAS(T)                                                                        \
  KERNEL(BIAS_THREADS, 1)                                                              \
  bias_##T(T* x, const float* added, int width) { bias<T>(x, added, width); }          \
  REGISTER(bias_##T)

BIAS(bf16)
BIAS(f16)

__device__ __forceinline__ float gated(float gate, float up) {
  return gate / (1.0f + exp2_fast(gate * -1.44269504f)) * up;
}

template <class T>
__device__ __forceinline__ void swiglu(T* out, const T* both, int width) {
  const T* gate = both + offset(blockIdx.x, 2 * (u64)width);
  const T* up = gate + width;
  out += offset(blockIdx.x, width);
  const int first = blockIdx.y * SWIGLU_THREADS + threadIdx.x, step = gridDim.y * SWIGLU_THREADS;
  int whole = 0;
  if (aligned16(out) && aligned16(gate) && aligned16(up)) {
    whole = width / 8;
    for (int i = first; i < whole; i += step) {
      float gates[8], ups[8];
      unpack8<T>(load16(gate + i * 8), gates);
      unpack8<T>(load16(up + i * 8), ups);
#pragma unroll
      for (int j = 0; j < 8; j++) gates[j] = gated(gates[j], ups[j]);
      store16(out + i * 8, pack8<T>(gates));
    }
  }
  for (int i = whole * 8 + first; i < width; i += step)
    out[i] = from_float<T>(gated(to_float(gate[i]), to_float(up[i])));
}

#define SWIGLU(T)                                                                            \
  KERNEL(SWIGLU_THREADS, 1)                                                                  \
  swiglu_##T(T* out, const T* both, int width) { swiglu<T>(out, both, width); }              \
  REGISTER(swiglu_##T)

SWIGLU(bf16)
SWIGLU(f16)
