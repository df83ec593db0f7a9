// A CUDA driver library without a device, and the piece of NVML that reads memory, for tests.
//
// Memory is counted as a driver counts it: whole pages, shared pages for small allocations, a
// context that costs, graphs that leave pages behind. What is written lands in host memory, of
// which only the touched pages are real. There is no timing and no concurrency: work runs when it
// is put on a stream. Kernels are not here; `run` is where they would be hung in.
//
// Settings are read from the environment when the library is loaded (bytes or counts):
//   FAKE_CUDA_DEVICES 1      FAKE_CUDA_TOTAL 8 GiB          what programs see of each device
//   FAKE_CUDA_NAMES          names of the devices, separated by ';' (a MIG slice says "MIG 1g.18gb")
//   FAKE_CUDA_INTEGRATED 0   FAKE_CUDA_RESERVE 616 MiB      the tool's total beyond FAKE_CUDA_TOTAL
//   FAKE_CUDA_FOREIGN 0      held by other programs         FAKE_CUDA_CONTEXT 512 MiB
//   FAKE_CUDA_NODE 16 KiB    cost of one node of a graph    FAKE_CUDA_NVML 1    0: NVML does not start
//   FAKE_CUDA_INIT 0         code of cuInit                 FAKE_CUDA_VERSION 13000
//   FAKE_CUDA_MEMORY 0       code of cuMemGetInfo
//   FAKE_CUDA_FAIL_AT n      the n-th request for memory is refused; FAKE_CUDA_FAIL_FROM n: and all later
//   FAKE_CUDA_LOST_AT n      from the n-th call on everything returns FAKE_CUDA_LOST_CODE (719)
//   FAKE_CUDA_REPORT path    at the end, one line of JSON: what was never given back, and the counts
// Compiled with -DFAKE_OLD it lacks what a driver before CUDA 10.2 lacks.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

using Code = int;
using Pointer = unsigned long long;

enum : Code {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    ILLEGAL_ADDRESS = 700,
    CAPTURE_UNSUPPORTED = 900,
};

constexpr size_t PAGE = size_t(2) << 20;
constexpr size_t SMALL_MAX = size_t(1) << 20;
constexpr size_t SMALL_STEP = size_t(8) << 10;
// Device handles are no ordinals, so that mixing them up shows.
constexpr int HANDLE = 7;

size_t setting(const char* name, size_t otherwise) {
    const char* text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 10) : otherwise;
}

size_t up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

struct Settings {
    int devices = int(setting("FAKE_CUDA_DEVICES", 1));
    size_t total = setting("FAKE_CUDA_TOTAL", size_t(8) << 30);
    size_t reserve = setting("FAKE_CUDA_RESERVE", size_t(616) << 20);
    size_t foreign = setting("FAKE_CUDA_FOREIGN", 0);
    size_t context = setting("FAKE_CUDA_CONTEXT", size_t(512) << 20);
    size_t node = setting("FAKE_CUDA_NODE", size_t(16) << 10);
    int integrated = int(setting("FAKE_CUDA_INTEGRATED", 0));
    int nvml = int(setting("FAKE_CUDA_NVML", 1));
    int init = int(setting("FAKE_CUDA_INIT", 0));
    int version = int(setting("FAKE_CUDA_VERSION", 13000));
    int memory = int(setting("FAKE_CUDA_MEMORY", 0));
    size_t fail_at = setting("FAKE_CUDA_FAIL_AT", 0);
    size_t fail_from = setting("FAKE_CUDA_FAIL_FROM", 0);
    size_t lost_at = setting("FAKE_CUDA_LOST_AT", 0);
    int lost_code = int(setting("FAKE_CUDA_LOST_CODE", 719));
};

// A page that small allocations share.
struct SharedPage {
    size_t used = 0;
    int live = 0;
};

struct Device {
    int retained = 0;
    size_t used = 0;
    size_t peak = 0;
    std::map<size_t, SharedPage> shared;
    size_t graph_bytes = 0;  // live nodes
    size_t graph_pages = 0;  // pages the driver keeps for them
};

struct Allocation {
    int device;
    size_t size;     // as asked for
    size_t charged;  // 0: it lies in a shared page
    size_t page;
};

struct Physical {
    int device;
    size_t size;
    size_t offset;  // in the backing file
    int references;
};

struct Mapping {
    size_t size;
    Pointer handle;
    bool accessible;
};

using Work = std::function<void()>;

struct Graph {
    std::vector<Work> nodes;
};

struct Executable {
    std::vector<Work> nodes;
    int device;
    size_t cost;
};

struct Stream {
    int device;
    Graph* capture = nullptr;
};

struct Event {
    std::chrono::steady_clock::time_point at;
    bool recorded = false;
};

struct Driver {
    Settings settings;
    std::mutex lock;
    bool initialised = false;
    Code lost = SUCCESS;
    size_t calls = 0, requests = 0, launches = 0, copied = 0;
    std::map<int, Device> devices;
    std::map<Pointer, Allocation> allocations;
    std::map<Pointer, size_t> pinned, reserved;
    std::map<Pointer, Mapping> mappings;
    std::map<Pointer, Physical> physical;
    size_t streams = 0, events = 0, graphs = 0, executables = 0;
    int file = -1;
    size_t file_end = 0;
    Pointer next_handle = 1;

    ~Driver() { report(); }
    void report();
};

Driver driver;
thread_local int current = -1;  // index of the device whose context is current

void Driver::report() {
    const char* path = getenv("FAKE_CUDA_REPORT");
    FILE* out = path ? fopen(path, "w") : nullptr;
    if (!out) return;
    size_t contexts = 0, used = 0, peak = 0, shared = 0;
    for (auto& [index, device] : devices) {
        contexts += size_t(device.retained);
        used += device.used;
        if (device.peak > peak) peak = device.peak;
        shared += device.shared.size();
    }
    fprintf(out,
            "{\"contexts\":%zu,\"allocations\":%zu,\"pinned\":%zu,\"reserved\":%zu,\"mappings\":%zu,"
            "\"physical\":%zu,\"streams\":%zu,\"events\":%zu,\"graphs\":%zu,\"executables\":%zu,"
            "\"shared_pages\":%zu,\"used_bytes\":%zu,\"peak_bytes\":%zu,\"calls\":%zu,\"requests\":%zu,"
            "\"launches\":%zu,\"copied_bytes\":%zu,\"lost\":%d}\n",
            contexts, allocations.size(), pinned.size(), reserved.size(), mappings.size(),
            physical.size(), streams, events, graphs, executables, shared, used, peak, calls, requests,
            launches, copied, lost);
    fclose(out);
}

// What every call begins with: counted, and nothing works any more on a lost device.
Code enter() {
    driver.calls++;
    if (driver.settings.lost_at && driver.calls >= driver.settings.lost_at && !driver.lost)
        driver.lost = driver.settings.lost_code;
    if (driver.lost) return driver.lost;
    return driver.initialised ? SUCCESS : NOT_INITIALIZED;
}

// The same for a call that needs a context.
Code enter_context() {
    if (Code code = enter()) return code;
    auto it = driver.devices.find(current);
    return it == driver.devices.end() || it->second.retained == 0 ? INVALID_CONTEXT : SUCCESS;
}

// Whether this request for memory is one that is to be refused.
bool refused() {
    driver.requests++;
    auto& s = driver.settings;
    return driver.requests == s.fail_at || (s.fail_from && driver.requests >= s.fail_from);
}

size_t free_of(int index) {
    size_t used = driver.devices[index].used + driver.settings.foreign;
    return used > driver.settings.total ? 0 : driver.settings.total - used;
}

bool charge(int index, size_t bytes) {
    if (bytes > free_of(index)) return false;
    Device& device = driver.devices[index];
    device.used += bytes;
    if (device.used > device.peak) device.peak = device.used;
    return true;
}

void discharge(int index, size_t bytes) { driver.devices[index].used -= bytes; }

int index_of(int device) {
    int index = device - HANDLE;
    return index >= 0 && index < driver.settings.devices ? index : -1;
}

void* host_pages(size_t bytes, int protection) {
    void* at = mmap(nullptr, up(bytes, 4096), protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? nullptr : at;
}

// Takes room for an allocation of at most 1 MiB: in a page that has some, or in a new one.
bool share_page(int index, size_t bytes, size_t* page) {
    Device& device = driver.devices[index];
    for (auto& [number, shared] : device.shared) {
        if (shared.used + bytes <= PAGE) {
            shared.used += bytes, shared.live++, *page = number;
            return true;
        }
    }
    if (!charge(index, PAGE)) return false;
    *page = device.shared.empty() ? 1 : device.shared.rbegin()->first + 1;
    device.shared[*page] = SharedPage{bytes, 1};
    return true;
}

// Whether device code may touch the bytes: inside one allocation, or in mappings without a gap.
bool accessible(Pointer at, size_t bytes) {
    auto plain = driver.allocations.upper_bound(at);
    if (plain != driver.allocations.begin()) {
        --plain;
        if (at + bytes <= plain->first + plain->second.size) return true;
    }
    Pointer reached = at, end = at + bytes;
    auto part = driver.mappings.upper_bound(at);
    if (part == driver.mappings.begin()) return false;
    for (--part; part != driver.mappings.end() && reached < end; ++part) {
        Pointer part_end = part->first + part->second.size;
        if (part->first > reached || part_end <= reached || !part->second.accessible) return false;
        reached = part_end;
    }
    return reached >= end;
}

// Runs work, or records it when the stream is capturing.
Code run(void* handle, Work work) {
    auto* stream = static_cast<Stream*>(handle);
    if (!stream) return INVALID_HANDLE;
    if (stream->capture)
        stream->capture->nodes.push_back(std::move(work));
    else
        work();
    return SUCCESS;
}

// A stray access makes the device unusable, as an illegal address does.
Work touching(Pointer at, size_t bytes, Work work) {
    return [=] {
        if (accessible(at, bytes))
            work();
        else if (!driver.lost)
            driver.lost = ILLEGAL_ADDRESS;
    };
}

// Pages that the driver keeps for graphs: grown when needed, given back when no graph lives.
bool graph_memory(int index, size_t cost) {
    Device& device = driver.devices[index];
    size_t pages = up(device.graph_bytes + cost, PAGE);
    if (pages > device.graph_pages) {
        if (!charge(index, pages - device.graph_pages)) return false;
        device.graph_pages = pages;
    }
    device.graph_bytes += cost;
    return true;
}

void graph_end(int index, size_t cost) {
    Device& device = driver.devices[index];
    device.graph_bytes -= cost;
    if (device.graph_bytes == 0) {
        discharge(index, device.graph_pages);
        device.graph_pages = 0;
    }
}

struct Location {
    int kind, id;
};
struct Properties {
    int kind, handles;
    Location location;
    void* meta;
    unsigned char flags[8];
};
struct Access {
    Location location;
    int flags;
};

using Lock = std::lock_guard<std::mutex>;

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) int

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
        case 75: *value = 9; break;
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
    if (--it->second.retained == 0) discharge(it->first, driver.settings.context);
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

// ---- plain and pinned memory

#ifndef FAKE_OLD
API cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    *free_bytes = free_of(current);
    *total = driver.settings.total;
    return driver.settings.memory;
}
#endif
API cuMemAlloc_v2(Pointer* at, size_t size) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    if (size == 0) return INVALID_VALUE;
    if (refused()) return OUT_OF_MEMORY;
    Allocation made{current, size, 0, 0};
    if (size > SMALL_MAX) {
        made.charged = up(size, PAGE);
        if (!charge(current, made.charged)) return OUT_OF_MEMORY;
    } else {
        size_t piece = size > SMALL_MAX / 2 ? SMALL_MAX : up(size, SMALL_STEP);
        if (!share_page(current, piece, &made.page)) return OUT_OF_MEMORY;
    }
    void* pages = host_pages(size, PROT_READ | PROT_WRITE);
    *at = reinterpret_cast<Pointer>(pages);
    if (!pages) {
        discharge(current, made.charged);
        return OUT_OF_MEMORY;
    }
    driver.allocations[*at] = made;
    return SUCCESS;
}
API cuMemFree_v2(Pointer at) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto it = driver.allocations.find(at);
    if (it == driver.allocations.end()) return INVALID_VALUE;
    Allocation gone = it->second;
    driver.allocations.erase(it);
    munmap(reinterpret_cast<void*>(at), up(gone.size, 4096));
    discharge(gone.device, gone.charged);
    if (gone.charged == 0) {
        auto& shared = driver.devices[gone.device].shared;
        if (--shared[gone.page].live == 0) {
            shared.erase(gone.page);
            discharge(gone.device, PAGE);
        }
    }
    return SUCCESS;
}
API cuMemHostAlloc(void** at, size_t size, unsigned) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    if (size == 0) return INVALID_VALUE;
    if (refused()) return OUT_OF_MEMORY;
    *at = host_pages(size, PROT_READ | PROT_WRITE);
    if (!*at) return OUT_OF_MEMORY;
    driver.pinned[reinterpret_cast<Pointer>(*at)] = size;
    return SUCCESS;
}
API cuMemFreeHost(void* at) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto it = driver.pinned.find(reinterpret_cast<Pointer>(at));
    if (it == driver.pinned.end()) return INVALID_VALUE;
    munmap(at, up(it->second, 4096));
    driver.pinned.erase(it);
    return SUCCESS;
}

// ---- virtual memory: one sparse file holds what is written to physical memory

#ifndef FAKE_OLD
API cuMemGetAllocationGranularity(size_t* bytes, const Properties* properties, int) {
    Lock held(driver.lock);
    if (Code code = enter()) return code;
    *bytes = PAGE;
    return properties->kind == 1 && index_of(properties->location.id) >= 0 ? SUCCESS : INVALID_VALUE;
}
API cuMemAddressReserve(Pointer* at, size_t size, size_t, Pointer, unsigned long long) {
    Lock held(driver.lock);
    if (Code code = enter()) return code;
    if (size == 0 || size % PAGE) return INVALID_VALUE;
    if (refused()) return OUT_OF_MEMORY;
    auto* pages = static_cast<char*>(host_pages(size + PAGE, PROT_NONE));
    if (!pages) return OUT_OF_MEMORY;
    Pointer start = reinterpret_cast<Pointer>(pages);
    *at = up(start, PAGE);
    // Only whole pages of the device stay reserved.
    if (*at > start) munmap(pages, *at - start);
    munmap(reinterpret_cast<void*>(*at + size), start + PAGE - *at);
    driver.reserved[*at] = size;
    return SUCCESS;
}
API cuMemAddressFree(Pointer at, size_t size) {
    Lock held(driver.lock);
    if (Code code = enter()) return code;
    auto it = driver.reserved.find(at);
    if (it == driver.reserved.end() || it->second != size) return INVALID_VALUE;
    auto part = driver.mappings.lower_bound(at);
    if (part != driver.mappings.end() && part->first < at + size) return INVALID_VALUE;
    munmap(reinterpret_cast<void*>(at), size);
    driver.reserved.erase(it);
    return SUCCESS;
}
API cuMemCreate(Pointer* handle, size_t size, const Properties* properties, unsigned long long) {
    Lock held(driver.lock);
    if (Code code = enter()) return code;
    int index = index_of(properties->location.id);
    if (size == 0 || size % PAGE || index < 0) return INVALID_VALUE;
    if (refused() || !charge(index, size)) return OUT_OF_MEMORY;
    *handle = driver.next_handle++;
    driver.physical[*handle] = Physical{index, size, driver.file_end, 1};
    driver.file_end += size;
    return SUCCESS;
}
static void unreference(Pointer handle) {
    Physical& held = driver.physical[handle];
    if (--held.references > 0) return;
    discharge(held.device, held.size);
    if (driver.file >= 0)
        fallocate(driver.file, 3 /* punch a hole, keep the size */, off_t(held.offset), off_t(held.size));
    driver.physical.erase(handle);
}
API cuMemRelease(Pointer handle) {
    Lock held(driver.lock);
    if (Code code = enter()) return code;
    if (!driver.physical.count(handle)) return INVALID_VALUE;
    unreference(handle);
    return SUCCESS;
}
API cuMemMap(Pointer at, size_t size, size_t offset, Pointer handle, unsigned long long) {
    Lock held(driver.lock);
    if (Code code = enter()) return code;
    auto it = driver.physical.find(handle);
    if (it == driver.physical.end() || offset != 0 || size != it->second.size || at % PAGE) return INVALID_VALUE;
    auto range = driver.reserved.upper_bound(at);
    if (range == driver.reserved.begin()) return INVALID_VALUE;
    --range;
    if (at + size > range->first + range->second) return INVALID_VALUE;
    auto next = driver.mappings.lower_bound(at);
    if (next != driver.mappings.end() && next->first < at + size) return INVALID_VALUE;
    if (next != driver.mappings.begin()) {
        auto before = std::prev(next);
        if (before->first + before->second.size > at) return INVALID_VALUE;
    }
    if (driver.file < 0) driver.file = memfd_create("fake-cuda", 0);
    if (driver.file < 0 || ftruncate(driver.file, off_t(driver.file_end))) return OUT_OF_MEMORY;
    void* mapped = mmap(reinterpret_cast<void*>(at), size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE,
                        driver.file, off_t(it->second.offset));
    if (mapped == MAP_FAILED) return OUT_OF_MEMORY;
    it->second.references++;
    driver.mappings[at] = Mapping{size, handle, false};
    return SUCCESS;
}
API cuMemSetAccess(Pointer at, size_t size, const Access* access, size_t count) {
    Lock held(driver.lock);
    if (Code code = enter()) return code;
    auto it = driver.mappings.find(at);
    if (it == driver.mappings.end() || it->second.size != size || count != 1 || access->flags != 3)
        return INVALID_VALUE;
    mprotect(reinterpret_cast<void*>(at), size, PROT_READ | PROT_WRITE);
    it->second.accessible = true;
    return SUCCESS;
}
API cuMemUnmap(Pointer at, size_t size) {
    Lock held(driver.lock);
    if (Code code = enter()) return code;
    auto it = driver.mappings.find(at);
    if (it == driver.mappings.end() || it->second.size != size) return INVALID_VALUE;
    mmap(reinterpret_cast<void*>(at), size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    Pointer handle = it->second.handle;
    driver.mappings.erase(it);
    unreference(handle);
    return SUCCESS;
}
#endif

// ---- streams, events, copies

API cuStreamCreate(void** stream, unsigned) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    *stream = new Stream{current};
    driver.streams++;
    return SUCCESS;
}
API cuStreamDestroy_v2(void* stream) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    delete static_cast<Stream*>(stream);
    driver.streams--;
    return SUCCESS;
}
API cuStreamSynchronize(void* stream) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    return static_cast<Stream*>(stream)->capture ? CAPTURE_UNSUPPORTED : SUCCESS;
}
API cuEventCreate(void** event, unsigned) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    *event = new Event;
    driver.events++;
    return SUCCESS;
}
API cuEventRecord(void* event, void*) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    *static_cast<Event*>(event) = Event{std::chrono::steady_clock::now(), true};
    return SUCCESS;
}
API cuEventElapsedTime(float* milliseconds, void* from, void* to) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto *a = static_cast<Event*>(from), *b = static_cast<Event*>(to);
    if (!a->recorded || !b->recorded) return INVALID_HANDLE;
    *milliseconds = std::chrono::duration<float, std::milli>(b->at - a->at).count();
    return SUCCESS;
}
API cuEventDestroy_v2(void* event) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    delete static_cast<Event*>(event);
    driver.events--;
    return SUCCESS;
}
API cuMemsetD8Async(Pointer at, unsigned char value, size_t size, void* stream) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    return run(stream, touching(at, size, [=] { memset(reinterpret_cast<void*>(at), value, size); }));
}
API cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t size, void* stream) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    driver.copied += size;
    return run(stream, touching(to, size, [=] { memcpy(reinterpret_cast<void*>(to), from, size); }));
}
API cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t size, void* stream) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    driver.copied += size;
    return run(stream, touching(from, size, [=] { memcpy(to, reinterpret_cast<void*>(from), size); }));
}

// ---- graphs

API cuStreamBeginCapture_v2(void* handle, int) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto* stream = static_cast<Stream*>(handle);
    if (!stream || stream->capture) return CAPTURE_UNSUPPORTED;
    stream->capture = new Graph;
    return SUCCESS;
}
API cuStreamEndCapture(void* handle, void** graph) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto* stream = static_cast<Stream*>(handle);
    if (!stream->capture) return INVALID_VALUE;
    *graph = stream->capture;
    stream->capture = nullptr;
    driver.graphs++;
    return SUCCESS;
}
API cuGraphInstantiateWithFlags(void** made, void* graph, unsigned long long) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto& nodes = static_cast<Graph*>(graph)->nodes;
    size_t cost = nodes.size() * driver.settings.node;
    if (refused() || !graph_memory(current, cost)) return OUT_OF_MEMORY;
    *made = new Executable{nodes, current, cost};
    driver.executables++;
    return SUCCESS;
}
API cuGraphUpload(void*, void*) {
    Lock held(driver.lock);
    return enter_context();
}
API cuGraphLaunch(void* handle, void*) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    driver.launches++;
    for (auto& node : static_cast<Executable*>(handle)->nodes) node();
    return SUCCESS;
}
API cuGraphExecDestroy(void* handle) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto* gone = static_cast<Executable*>(handle);
    graph_end(gone->device, gone->cost);
    delete gone;
    driver.executables--;
    return SUCCESS;
}
API cuGraphDestroy(void* graph) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    delete static_cast<Graph*>(graph);
    driver.graphs--;
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
