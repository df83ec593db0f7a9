// The CUDA kernels of this project, on the CPU: what a program needs to find and launch them.
//
// One fibre a CUDA thread, one block at a time on each OS thread. What this shows and what it cannot
// is said in docs/kernels.md.
#pragma once
#include <cstddef>
#include <vector>

// A kernel that was compiled through the shim.
struct ShimKernel {
  const char* name;
  // Bytes of each parameter, in order.
  std::vector<size_t> parameter_sizes;
  // Calls it in the running thread: `parameters[i]` points to the value of parameter i.
  void (*call)(void** parameters);
};

// The kernel of that name; null when there is none.
const ShimKernel* shim_find(const char* name);

// All kernels, in the order of their names.
std::vector<const ShimKernel*> shim_all();

// Runs a grid to its end on up to `threads` OS threads. Seed 0 runs the threads of a block in order;
// otherwise their order is drawn from the seed at every point where they can change. Returns 0, or
// nonzero with a message on stderr: 1 for sizes that no device takes, 2 for a block that cannot go on
// (a barrier or a warp's exchange that some threads do not reach).
int shim_launch(const ShimKernel* kernel, const unsigned grid[3], const unsigned block[3],
                size_t shared_bytes, void** parameters, int threads, unsigned seed);
