// A CUDA driver library without a device, and the piece of NVML that reads memory, for tests.
//
// Memory is counted as a driver counts it: whole pages, shared pages for small allocations, a
// context that costs, graphs that leave pages behind. What is written lands in host memory, of
// which only the touched pages are real. There is no timing and no concurrency: work runs when it
// is put on a stream, unless it waits for another stream's. Kernels are the project's own, compiled
// for the CPU (kernels/shim); one that touches what is not mapped loses the device.
//
// Settings are read from the environment when the library is loaded (bytes or counts):
//   FAKE_CUDA_DEVICES 1      FAKE_CUDA_TOTAL 8 GiB          what programs see of each device
//   FAKE_CUDA_NAMES          names of the devices, separated by ';' (a MIG slice says "MIG 1g.18gb")
//   FAKE_CUDA_INTEGRATED 0   FAKE_CUDA_RESERVE 616 MiB      the tool's total beyond FAKE_CUDA_TOTAL
//   FAKE_CUDA_FOREIGN 0      held by other programs         FAKE_CUDA_CONTEXT 512 MiB
//   FAKE_CUDA_FOREIGN_FILE path   of a file with a number: held by others too, read at every question
//   FAKE_CUDA_NODE 16 KiB    cost of one node of a graph    FAKE_CUDA_NVML 1    0: NVML does not start
//   FAKE_CUDA_INIT 0         code of cuInit                 FAKE_CUDA_VERSION 13000
//   FAKE_CUDA_MEMORY 0       code of cuMemGetInfo           FAKE_CUDA_VMM 1     0: no virtual memory
//   FAKE_CUDA_CAPABILITY 90  10 x major + minor
//   FAKE_CUDA_MODULE 4 MiB   cost of a module               FAKE_CUDA_SHARED 227 KiB   of a block, when allowed
//   FAKE_CUDA_THREADS 2      of the host, for kernels       FAKE_CUDA_SEED 0    order of a kernel's threads
//   FAKE_CUBLASLT_HANDLE 8 MiB, FAKE_CUBLASLT_KERNEL 2 MiB (the first product of a type)
//   FAKE_NCCL_COMM 8 MiB, FAKE_NCCL_FIRST 4 MiB (the first sum), a rank each
//   FAKE_CUDA_FAIL_AT n      the n-th request for memory is refused; FAKE_CUDA_FAIL_FROM n: and all later
//   FAKE_CUDA_LOST_AT n      from the n-th call on everything returns FAKE_CUDA_LOST_CODE (719)
//   FAKE_CUDA_REPORT path    at the end, one line of JSON: what was never given back, and the counts
// Compiled with -DFAKE_OLD it lacks what a driver before CUDA 10.2 lacks.
#include "driver.h"

#include <cstdio>
#include <cstring>
#include <string>

using namespace fake;

// ---- driver and devices

API cuInit(unsigned flags) {
    Lock held(driver.lock);
    driver.initialised = true;
    return flags ? INVALID_VALUE : driver.settings.init;
}
API cuDriverGetVersion(int* version) {
    *version = driver.settings.version;
    return SUCCESS;
}
API cuGetErrorName(Code code, const char** text) {
    static const std::map<Code, const char*> names = {
        {1, "CUDA_ERROR_INVALID_VALUE"},      {2, "CUDA_ERROR_OUT_OF_MEMORY"},
        {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"}, {100, "CUDA_ERROR_NO_DEVICE"},
        {201, "CUDA_ERROR_INVALID_CONTEXT"},  {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
        {200, "CUDA_ERROR_INVALID_IMAGE"},    {500, "CUDA_ERROR_NOT_FOUND"},
        {702, "CUDA_ERROR_LAUNCH_TIMEOUT"},   {801, "CUDA_ERROR_NOT_SUPPORTED"},
        {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"}, {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
        {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
        {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},  {719, "CUDA_ERROR_LAUNCH_FAILED"},
        {999, "CUDA_ERROR_UNKNOWN"},
    };
    auto it = names.find(code);
    *text = it == names.end() ? nullptr : it->second;
    return *text ? SUCCESS : INVALID_VALUE;
}
API cuDeviceGetCount(int* count) {
    Lock held(driver.lock);
    *count = driver.settings.devices;
    return enter();
}
API cuDeviceGet(int* device, int ordinal) {
    Lock held(driver.lock);
    *device = ordinal + HANDLE;
    if (Code code = enter()) return code;
    return index_of(*device) < 0 ? INVALID_DEVICE : SUCCESS;
}
API cuDeviceGetName(char* name, int length, int device) {
    Lock held(driver.lock);
    if (Code code = enter()) return code;
    int index = index_of(device);
    if (index < 0) return INVALID_DEVICE;
    const char* given = getenv("FAKE_CUDA_NAMES");
    std::string names = given ? given : "Fake CUDA device";
    for (; index > 0; index--) {
        size_t at = names.find(';');
        if (at == std::string::npos) break;
        names.erase(0, at + 1);
    }
    snprintf(name, size_t(length), "%s", names.substr(0, names.find(';')).c_str());
    return SUCCESS;
}
API cuDeviceTotalMem_v2(size_t* bytes, int device) {
    Lock held(driver.lock);
    if (Code code = enter()) return code;
    *bytes = driver.settings.total;
    return index_of(device) < 0 ? INVALID_DEVICE : SUCCESS;
}
API cuDeviceGetAttribute(int* value, int attribute, int device) {
    Lock held(driver.lock);
    if (Code code = enter()) return code;
    switch (attribute) {
        case 16: *value = 132; break;
        case 18: *value = driver.settings.integrated; break;
        case 75: *value = driver.settings.capability / 10; break;
        case 76: *value = driver.settings.capability % 10; break;
        case 97: *value = driver.settings.shared; break;
        case 102: *value = driver.settings.virtual_memory; break;
        default: *value = 0;
    }
    return index_of(device) < 0 ? INVALID_DEVICE : SUCCESS;
}
API cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    Lock held(driver.lock);
    if (Code code = enter()) return code;
    memset(uuid, 0xF0 + index_of(device), 16);
    return index_of(device) < 0 ? INVALID_DEVICE : SUCCESS;
}

API cuDeviceGetGraphMemAttribute(int device, int, unsigned long long* bytes) {
    Lock held(driver.lock);
    if (Code code = enter()) return code;
    *bytes = 0;  // no node of a captured graph takes memory here
    return index_of(device) < 0 ? INVALID_DEVICE : SUCCESS;
}

// ---- contexts: handle of device i is i + 1

API cuDevicePrimaryCtxRetain(void** context, int device) {
    Lock held(driver.lock);
    if (Code code = enter()) return code;
    int index = index_of(device);
    if (index < 0) return INVALID_DEVICE;
    bool first = driver.devices[index].retained == 0;
    if (first && (refused() || !charge(index, driver.settings.context))) return OUT_OF_MEMORY;
    driver.devices[index].retained++;
    *context = reinterpret_cast<void*>(intptr_t(index + 1));
    return SUCCESS;
}
// Works on a lost device too: it is how a process gets rid of one.
API cuDevicePrimaryCtxRelease_v2(int device) {
    Lock held(driver.lock);
    driver.calls++;
    auto it = driver.devices.find(index_of(device));
    if (it == driver.devices.end() || it->second.retained == 0) return INVALID_CONTEXT;
    if (--it->second.retained == 0) {
        discharge(it->first, driver.settings.context + it->second.code);
        it->second.code = 0;
    }
    return SUCCESS;
}
static thread_local std::vector<int> stack;
API cuCtxPushCurrent_v2(void* context) {
    Lock held(driver.lock);
    if (Code code = enter()) return code;
    stack.push_back(current);
    current = int(reinterpret_cast<intptr_t>(context)) - 1;
    return SUCCESS;
}
API cuCtxPopCurrent_v2(void** context) {
    Lock held(driver.lock);
    *context = reinterpret_cast<void*>(intptr_t(current + 1));
    if (stack.empty()) return INVALID_CONTEXT;
    current = stack.back();
    stack.pop_back();
    return SUCCESS;
}
API cuCtxSetCurrent(void* context) {
    Lock held(driver.lock);
    if (Code code = enter()) return code;
    current = int(reinterpret_cast<intptr_t>(context)) - 1;
    return SUCCESS;
}

// ---- NVML: the same library under its name, through a link

struct ToolMemory {
    unsigned long long total, free, used;
};
API nvmlInit_v2() { return driver.settings.nvml ? SUCCESS : 999; }
API nvmlShutdown() { return SUCCESS; }
API nvmlDeviceGetHandleByUUID(const char* text, void** device) {
    unsigned byte = 0;
    if (sscanf(text, "GPU-%2x", &byte) != 1) return INVALID_VALUE;
    *device = reinterpret_cast<void*>(intptr_t(int(byte) - 0xF0 + 1));
    return SUCCESS;
}
API nvmlDeviceGetMemoryInfo(void* device, ToolMemory* memory) {
    Lock held(driver.lock);
    int index = int(reinterpret_cast<intptr_t>(device)) - 1;
    if (index < 0 || index >= driver.settings.devices) return INVALID_VALUE;
    memory->total = driver.settings.total + driver.settings.reserve;
    memory->free = free_of(index);
    memory->used = memory->total - memory->free;
    return SUCCESS;
}
