// All kernels, compiled for the CPU and registered by name.
#include "device.h"
#define PLIMSOLL_SHIM 1
#include "../all.cu"
