// A CUDA driver library without a device: two devices of fixed sizes, one of them a MIG slice.
// FAKE_CUDA_INIT: code of cuInit. FAKE_CUDA_VERSION: release. FAKE_CUDA_DEVICES: count.
// FAKE_CUDA_MEMORY: code of cuMemGetInfo. Counts held contexts, so that a leak is an error code.
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}
static int held = 0, pushed = 0;

int cuInit(unsigned flags) { return flags ? 1 : number("FAKE_CUDA_INIT", 0); }
int cuDriverGetVersion(int *v) { *v = number("FAKE_CUDA_VERSION", 13000); return 0; }
int cuDeviceGetCount(int *n) { *n = number("FAKE_CUDA_DEVICES", 2); return held ? 999 : 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal + 7; return held ? 999 : 0; }
int cuDeviceGetName(char *name, int len, int device) {
    strncpy(name, device == 7 ? "NVIDIA H200" : "NVIDIA H200 MIG 1g.18gb", (size_t)len);
    return 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)(device == 7 ? 140 : 16) << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 16 ? (device == 7 ? 132 : 16) : attribute == 75 ? 9 : 0;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { held++; *context = &held; return device < 7; }
int cuDevicePrimaryCtxRelease_v2(int device) { held--; return pushed ? 999 : device < 7; }
int cuCtxPushCurrent_v2(void *context) { pushed++; return context != &held; }
int cuCtxPopCurrent_v2(void **context) { pushed--; *context = &held; return 0; }
#ifndef OLD
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    *free_bytes = (size_t)12 << 30;
    *total = ((size_t)16 << 30) - (1 << 20);
    return held == 1 && pushed == 1 ? number("FAKE_CUDA_MEMORY", 0) : 201;
}
#endif
