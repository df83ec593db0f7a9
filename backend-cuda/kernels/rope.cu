// Rotary positions, and keys and values into their pages.
#include "paged.cuh"

// Eight neighbouring planes: `low` holds the first halves of the pairs, `high` the second ones.
__device__ __forceinline__ void rotate8(float* low, float* high, const float* cos, const float* sin) {
  const float4 c0 = *(const float4*)cos, c1 = *(const float4*)(cos + 4);
  const float4 s0 = *(const float4*)sin, s1 = *(const float4*)(sin + 4);
  const float c[8] = {c0.x, c0.y, c0.z, c0.w, c1.x, c1.y, c1.z, c1.w};
  const float s[8] = {s0.x, s0.y, s0.z, s0.w, s1.x, s1.y, s1.z, s1.w};
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const float a = low[i], b = high[i];
    low[i] = a * c[i] - b * s[i];
    high[i] = b * c[i] + a * s[i];
  }
}

__device__ __forceinline__ void put8(bf16* to, const float* values) { store16(to, pack8<bf16>(values)); }
__device__ __forceinline__ void put8(f16* to, const float* values) { store16(to, pack8<f16>(values)); }
__device__ __forceinline__ void put8(fp8* to, const float* values) { *(uint2*)to = narrow8(values); }

// A row of the step: where its parts are read and where its keys and values go.
template <class T, class S>
struct RopeRow {
  T* qkv;
  S* page;
  const float *cos, *sin;
  u64 plane, head_stride;
  int q_heads, kv_heads, head_dim, slot;

  __device__ __forceinline__ S* stored(int kv_head, int values) const {
    return page + (u64)kv_head * head_stride + values * plane + (u64)slot * head_dim;
  }

  // Eight planes of a head, from `plane_at` on.
  __device__ __forceinline__ void rotate_part(int head, int plane_at) const {
    const int half = head_dim / 2;
    T* at = qkv + (u64)head * head_dim + plane_at;
    float low[8], high[8];
    unpack8<T>(load16(at), low);
    unpack8<T>(load16(at + half), high);
    rotate8(low, high, cos + plane_at, sin + plane_at);
    if (head < q_heads) {
      put8(at, low);
      put8(at + half, high);
    } else {
      S* to = stored(head - q_heads, 0) + plane_at;
      put8(to, low);
      put8(to + half, high);
    }
  }

  __device__ __forceinline__ void rotate_plane(int head, int plane_at) const {
    const int half = head_dim / 2;
    T* at = qkv + (u64)head * head_dim + plane_at;
    const float a = to_float(at[0]), b = to_float(at[half]), c = cos[plane_at], s = sin[plane_at];
    const float low = a * c - b * s, high = b * c + a * s;
    if (head < q_heads) {
      at[0] = from_float<T>(low);
      at[half] = from_float<T>(high);
    } else {
      S* to = stored(head - q_heads, 0) + plane_at;
      to[0] = from_float<S>(low);
      to[half] = from_float<S>(high);
    }
  }

  __device__ __forceinline__ void store_part(int i) const {
    const int head = i * 8 / head_dim, at = i * 8 - head * head_dim;
    float values[8];
    unpack8<T>(load16(qkv + (u64)(q_heads + kv_heads) * head_dim + i * 8), values);
    put8(stored(head, 1) + at, values);
  }

  __device__ __forceinline__ void store_one(int i) const {
    const int head = i / head_dim;
    stored(head, 1)[i - head * head_dim] = from_float<S>(to_float(qkv[(u64)(q_heads + kv_heads) * head_dim + i]));
  }
};

template <class T, class S>
__device__ __forceinline__ void rope_store(T* qkv, const int* positions, const int* seq_of, const int* table_start,
                                           const int* tables, const float* cos, const float* sin, void* pool, u64 page_bytes,
                                           int layer, int q_heads, int kv_heads, int head_dim, int page_tokens) {
  const int row = blockIdx.x, position = positions[row], half = head_dim / 2;
  if (position < 0) return;
  const int page = tables[table_start[seq_of[row]] + position / page_tokens];
  const u64 plane = (u64)page_tokens * head_dim;
  RopeRow<T, S> mine;
  mine.qkv = qkv + offset(row, (u64)(q_heads + 2 * kv_heads) * head_dim);
  mine.page = (S*)((char*)pool + (u64)page * page_bytes) + (u64)layer * kv_heads * 2 * plane;
  mine.cos = cos + offset(position, half), mine.sin = sin + offset(position, half);
  mine.plane = plane, mine.head_stride = 2 * plane;
  mine.q_heads = q_heads, mine.kv_heads = kv_heads, mine.head_dim = head_dim, mine.slot = position % page_tokens;
  const bool vectors = half % 8 == 0 && aligned16(qkv) && aligned16(pool) && page_bytes % 16 == 0 && aligned16(cos) && aligned16(sin);
  const int heads = q_heads + kv_heads;
  if (vectors) {
    const int parts = half / 8, rotated = heads * parts, total = rotated + kv_heads * head_dim / 8;
    for (int i = threadIdx.x; i < total; i += ROPE_STORE_THREADS) {
      if (i < rotated)
        mine.rotate_part(i / parts, i % parts * 8);
      else
        mine.store_part(i - rotated);
    }
  } else {
    const int rotated = heads * half, total = rotated + kv_heads * head_dim;
    for (int i = threadIdx.x; i < total; i += ROPE_STORE_THREADS) {
      if (i < rotated)
        mine.rotate_plane(i / half, i % half);
      else
        mine.store_one(i - rotated);
    }
  }
}

#define ROPE_STORE(SUFFIX, T, S)                                                                                       \
  KERNEL(ROPE_STORE_THREADS, 1)                                                                                        \
  rope_store_##SUFFIX(T* qkv, const int* positions, const int* seq_of, const int* table_start, const int* tables,      \
                      const float* cos, const float* sin, void* pool, u64 page_bytes, int layer, int q_heads,          \
                      int kv_heads, int head_dim, int page_tokens) {                                                   \
    rope_store<T, S>(qkv, positions, seq_of, table_start, tables, cos, sin, pool, page_bytes, layer, q_heads, kv_heads, \
                     head_dim, page_tokens);                                                                           \
  }                                                                                                                    \
  REGISTER(rope_store_##SUFFIX)

ROPE_STORE(bf16, bf16, bf16)
ROPE_STORE(f16, f16, f16)
ROPE_STORE(bf16_kv8, bf16, fp8)
ROPE_STORE(f16_kv8, f16, fp8)
