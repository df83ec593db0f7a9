// Rows picked out of a matrix: embeddings by token, and the rows whose logits are wanted.
#include "types.cuh"

// Copies one row; blocks of the same x share it when the grid has more than one in y.
template <class T, int THREADS>
__device__ __forceinline__ void copy_row(T* to, const T* from, int width) {
  const int first = blockIdx.y * THREADS + threadIdx.x, step = gridDim.y * THREADS;
  int whole = 0;
  if (aligned16(to) && aligned16(from)) {
    whole = width / 8;
    for (int i = first; i < whole; i += step) store16(to + i * 8, load16(from + i * 8));
  }
  for (int i = whole * 8 + first; i < width; i += step) to[i] = from[i];
}

#define EMBED(T)                                                                            \
  KERNEL(EMBED_THREADS, 1)                                                                  \
  embed_##T(T* out, const T* table, const unsigned* tokens, int width) {                    \
    const unsigned row = blockIdx.x;                                                        \
    copy_row<T, EMBED_THREADS>(out + offset(row, width), table + offset(tokens[row], width), width); \
  }                                                                                         \
  REGISTER(embed_##T)

EMBED(bf16)
EMBED(f16)

#define GATHER(T)                                                                           \
  KERNEL(GATHER_THREADS, 1)                                                                 \
  gather_##T(T* out, const T* in, const int* rows, int width) {                             \
    const unsigned row = blockIdx.x;                                                        \
    copy_row<T, GATHER_THREADS>(out + offset(row, width), in + offset(rows[row], width), width); \
  }                                                                                         \
  REGISTER(gather_##T)

GATHER(bf16)
GATHER(f16)
