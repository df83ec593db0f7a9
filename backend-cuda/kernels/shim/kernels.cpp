// All kernels, compiled for the CPU and registered by name.
#include "device.h"
#define PLIMSOLL_SHIM 1

// Their names are nobody else's.
namespace {
#include "../all.cu"
}  // namespace
