// Kernels that are wrong on purpose: what the shim and the address checker find of it. Prints "found" when
// results differ between orders of threads or from what they should be, "nothing" otherwise.
#include "../../shim/device.h"
#define PLIMSOLL_SHIM 1
#include "../../device.cuh"
#include "../../mma.cuh"

namespace {

constexpr int N = 128;

// Reverses 128 numbers through shared memory.
template <bool BARRIER>
void reverse(float* x) {
  SHARED(float, kept, N);
  const int i = threadIdx.x;
  kept[i] = x[i];
  if (BARRIER) __syncthreads();
  x[i] = kept[N - 1 - i];
}
KERNEL(N, 1) racy(float* x) { reverse<false>(x); }
KERNEL(N, 1) right(float* x) { reverse<true>(x); }
REGISTER(racy)
REGISTER(right)

// Reads one behind the end of global memory, or writes behind the end of shared memory.
KERNEL(N, 1) outside(float* x) {
  const int i = threadIdx.x;
  const float next = x[i + 1];
  __syncthreads();
  x[i] = next;
}
KERNEL(N, 1) outside_shared(float* x) {
  SHARED(float, kept, N - 1);
  kept[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = kept[0];
}
REGISTER(outside)
REGISTER(outside_shared)

KERNEL(N, 1) divergent(float* x) {
  if (threadIdx.x < 100) __syncthreads();
  x[threadIdx.x] = 1;
}
// Every thread comes to a barrier, but not all to the same one.
KERNEL(N, 1) two_barriers(float* x) {
  if (threadIdx.x % 2)
    __syncthreads();
  else
    __syncthreads();
  x[threadIdx.x] = 1;
}
KERNEL(N, 1) half_exchange(float* x) {
  if (threadIdx.x % 2) x[threadIdx.x] = shuffle_xor(x[threadIdx.x], 1);
}
REGISTER(divergent)
REGISTER(two_barriers)
REGISTER(half_exchange)

// Reverses through copies that go on by themselves.
template <bool AWAIT>
void copied(float* x) {
  SHARED(float, kept, N);
  const int i = threadIdx.x;
  if (i < N / 4) copy_async(kept + i * 4, x + i * 4, true);
  copies_done();
  if (AWAIT) await_copies<0>();
  __syncthreads();
  x[i] = kept[N - 1 - i];
}
KERNEL(N, 1) unawaited(float* x) { copied<false>(x); }
KERNEL(N, 1) awaited(float* x) { copied<true>(x); }
// Sums what nobody wrote into shared memory.
KERNEL(N, 1) unwritten(float* x) {
  SHARED(float, kept, N);
  if (threadIdx.x != 5) kept[threadIdx.x] = 0;
  __syncthreads();
  x[threadIdx.x] = (float)(N - 1 - threadIdx.x) + kept[threadIdx.x];
}
REGISTER(unawaited)
REGISTER(awaited)
REGISTER(unwritten)

}  // namespace

int main(int count, char** names) {
  const ShimKernel* kernel = count == 2 ? shim_find(names[1]) : nullptr;
  if (!kernel) return 9;
  bool found = false;
  for (unsigned seed = 0; seed < 8; seed++) {
    float* x = (float*)malloc(N * sizeof(float));
    for (int i = 0; i < N; i++) x[i] = (float)i;
    void* parameters[] = {&x};
    const unsigned grid[] = {1, 1, 1}, block[] = {N, 1, 1};
    if (shim_launch(kernel, grid, block, 0, parameters, 1, seed)) return 2;
    for (int i = 0; i < N; i++) found |= !(x[i] == (float)(N - 1 - i));
    free(x);
  }
  puts(found ? "found" : "nothing");
  return 0;
}
