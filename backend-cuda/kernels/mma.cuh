// Tensor cores, matrices out of shared memory, and copies into it that go on by themselves.
#pragma once
#include "types.cuh"

// d (16 x 8, float32) += a (16 x 16) · b (16 x 8), one warp. With g = lane / 4 and t = lane % 4 a lane
// holds of d: rows g (0, 1) and g + 8 (2, 3), columns 2t and 2t + 1; of a: rows g (0, 2) and g + 8 (1, 3),
// columns 2t and 2t + 1 (0, 1), eight more (2, 3); of b: rows 2t and 2t + 1 (0), eight more (1), column g.
template <class T>
__device__ __forceinline__ void multiply(float* d, const unsigned* a, const unsigned* b);

#ifdef PLIMSOLL_SHIM
template <>
__device__ __forceinline__ void multiply<bf16>(float* d, const unsigned* a, const unsigned* b) {
  shim::multiply<shim::from_bfloat>(d, a, b, __LINE__);
}
template <>
__device__ __forceinline__ void multiply<f16>(float* d, const unsigned* a, const unsigned* b) {
  shim::multiply<shim::from_half>(d, a, b, __LINE__);
}
#else
#define MULTIPLY(T)                                                                                          \
  template <>                                                                                                \
  __device__ __forceinline__ void multiply<T>(float* d, const unsigned* a, const unsigned* b) {              \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #T "." #T                                         \
                 ".f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"                                   \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                        \
  }
MULTIPLY(bf16)
MULTIPLY(f16)
#endif

// Four 8 x 8 matrices of 2-byte elements: lane i gives the address of row i % 8 of matrix i / 8, and gets
// of each the elements of row g, columns 2t and 2t + 1; transposed: rows 2t and 2t + 1, column g.
template <bool TRANSPOSED>
__device__ __forceinline__ void load_matrices(unsigned* to, const void* row) {
#ifdef PLIMSOLL_SHIM
  shim::load_matrices(to, row, TRANSPOSED, __LINE__);
#else
  const unsigned at = (unsigned)__cvta_generic_to_shared(row);
  if (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
#endif
}

// 16 bytes into shared memory, read later; zeros when not `there`.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool there) {
#ifdef PLIMSOLL_SHIM
  shim::copy_later(to, from, 16, there ? 16 : 0);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
#endif
}

// Closes a group of copies.
__device__ __forceinline__ void copies_done() {
#ifdef PLIMSOLL_SHIM
  shim::thread_now->group++;
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `OPEN` groups of this thread are under way; a barrier must follow.
template <int OPEN>
__device__ __forceinline__ void await_copies() {
#ifdef PLIMSOLL_SHIM
  shim::wait_copies(OPEN);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory");
#endif
}
