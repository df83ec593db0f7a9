// RMS norms, of whole rows (with what is added first) and of the heads within a row.
#include "reduce.cuh"
#include "types.cuh"

// Vectors of eight that a thread keeps in registers between the two passes over its row.
constexpr int NORM_KEPT = 4;

// x += add, rounded to T and written back; the sum of the squares of what is then in x.
template <class T>
__device__ __forceinline__ float add_and_square(uint4& packed, T* x, const T* add, int at) {
  float values[8], sum = 0.0f;
  unpack8<T>(packed, values);
  if (add) {
    float more[8];
    unpack8<T>(load16(add + at), more);
#pragma unroll
    for (int i = 0; i < 8; i++) values[i] += more[i];
    packed = pack8<T>(values);
    store16(x + at, packed);
    unpack8<T>(packed, values);
  }
#pragma unroll
  for (int i = 0; i < 8; i++) sum += values[i] * values[i];
  return sum;
}

template <class T>
__device__ __forceinline__ void normed8(T* out, const uint4& packed, const float* weight, int at, float factor) {
  float values[8];
  unpack8<T>(packed, values);
  const float4 low = *(const float4*)(weight + at), high = *(const float4*)(weight + at + 4);
  const float weights[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
  for (int i = 0; i < 8; i++) values[i] = values[i] * factor * weights[i];
  store16(out + at, pack8<T>(values));
}

template <class T>
__device__ __forceinline__ void rms_norm(T* out, T* x, const T* add, const float* weight, int width, float eps) {
  SHARED(float, scratch, RMS_NORM_THREADS / 32);
  const u64 start = offset(blockIdx.x, width);
  x += start;
  if (out) out += start;
  if (add) add += start;
  const bool vectors = aligned16(x) && aligned16(out) && aligned16(add) && aligned16(weight);
  const int whole = vectors ? width / 8 : 0, me = threadIdx.x;
  uint4 kept[NORM_KEPT];
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < NORM_KEPT; k++) {
    const int i = k * RMS_NORM_THREADS + me;
    if (i < whole) {
      kept[k] = load16(x + i * 8);
      sum += add_and_square<T>(kept[k], x, add, i * 8);
    }
  }
  for (int i = NORM_KEPT * RMS_NORM_THREADS + me; i < whole; i += RMS_NORM_THREADS) {
    uint4 packed = load16(x + i * 8);
    sum += add_and_square<T>(packed, x, add, i * 8);
  }
  for (int i = whole * 8 + me; i < width; i += RMS_NORM_THREADS) {
    if (add) x[i] = from_float<T>(to_float(x[i]) + to_float(add[i]));
    const float value = to_float(x[i]);
    sum += value * value;
  }
  sum = block_sum<RMS_NORM_THREADS>(sum, scratch);
  if (!out) return;
  const float factor = 1.0f / sqrtf(sum / width + eps);
#pragma unroll
  for (int k = 0; k < NORM_KEPT; k++) {
    const int i = k * RMS_NORM_THREADS + me;
    if (i < whole) normed8<T>(out, kept[k], weight, i * 8, factor);
  }
  for (int i = NORM_KEPT * RMS_NORM_THREADS + me; i < whole; i += RMS_NORM_THREADS)
    normed8<T>(out, load16(x + i * 8), weight, i * 8, factor);
  for (int i = whole * 8 + me; i < width; i += RMS_NORM_THREADS)
    out[i] = from_float<T>(to_float(x[i]) * factor * weight[i]);
}

#define RMS_NORM(T)                                                                       \
  KERNEL(RMS_NORM_THREADS, 1)                                                             \
  rms_norm_##T(T* out, T* x, const T* add, const float* weight, int width, float eps) {   \
    rms_norm<T>(out, x, add, weight, width, eps);                                         \
  }                                                                                       \
  REGISTER(rms_norm_##T)

RMS_NORM(bf16)
RMS_NORM(f16)

// A head's width is even and at most 256: four pairs a lane.
template <class T>
__device__ __forceinline__ void head_norm(T* x, const float* weight, int row_width, int start, int head_dim, float eps) {
  x += offset(blockIdx.x, row_width) + start + blockIdx.y * head_dim;
  const int lane = threadIdx.x;
  float values[4][2], sum = 0.0f;
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int i = (k * 32 + lane) * 2;
    const bool there = i < head_dim;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      values[k][h] = there ? to_float(x[i + h]) : 0.0f;
      sum += values[k][h] * values[k][h];
    }
  }
  const float factor = 1.0f / sqrtf(warp_sum(sum) / head_dim + eps);
#pragma unroll
  for (int k = 0; k < 4; k++) {
    const int i = (k * 32 + lane) * 2;
    if (i < head_dim) {
#pragma unroll
      for (int h = 0; h < 2; h++) x[i + h] = from_float<T>(values[k][h] * factor * weight[i + h]);
    }
  }
}

#define HEAD_NORM(T)                                                                                  \
  KERNEL(HEAD_NORM_THREADS, 1)                                                                        \
  head_norm_##T(T* x, const float* weight, int row_width, int start, int heads, int head_dim, float eps) { \
    if ((int)blockIdx.y < heads) head_norm<T>(x, weight, row_width, start, head_dim, eps);            \
  }                                                                                                   \
  REGISTER(head_norm_##T)

HEAD_NORM(bf16)
HEAD_NORM(f16)
