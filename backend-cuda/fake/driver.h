// State of the fake driver: what is held on each device, and the rules by which it is counted.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) int

namespace fake {

using Code = int;
using Pointer = unsigned long long;

enum : Code {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_TIMEOUT = 702,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_ISOLATION = 905,
};

constexpr size_t PAGE = size_t(2) << 20;
constexpr size_t SMALL_MAX = size_t(1) << 20;
constexpr size_t SMALL_STEP = size_t(8) << 10;
// Device handles are no ordinals, so that mixing them up shows.
constexpr int HANDLE = 7;

inline size_t setting(const char* name, size_t otherwise) {
    const char* text = getenv(name);
    return text && *text ? strtoull(text, nullptr, 10) : otherwise;
}

inline size_t up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

struct Settings {
    int devices = int(setting("FAKE_CUDA_DEVICES", 1));
    size_t total = setting("FAKE_CUDA_TOTAL", size_t(8) << 30);
    size_t reserve = setting("FAKE_CUDA_RESERVE", size_t(616) << 20);
    size_t foreign = setting("FAKE_CUDA_FOREIGN", 0);
    size_t context = setting("FAKE_CUDA_CONTEXT", size_t(512) << 20);
    size_t node = setting("FAKE_CUDA_NODE", size_t(16) << 10);
    size_t module = setting("FAKE_CUDA_MODULE", size_t(4) << 20);
    int shared = int(setting("FAKE_CUDA_SHARED", size_t(227) << 10));
    int integrated = int(setting("FAKE_CUDA_INTEGRATED", 0));
    int virtual_memory = int(setting("FAKE_CUDA_VMM", 1));
    int threads = int(setting("FAKE_CUDA_THREADS", 2));
    unsigned seed = unsigned(setting("FAKE_CUDA_SEED", 0));
    int nvml = int(setting("FAKE_CUDA_NVML", 1));
    int init = int(setting("FAKE_CUDA_INIT", 0));
    int version = int(setting("FAKE_CUDA_VERSION", 13000));
    int memory = int(setting("FAKE_CUDA_MEMORY", 0));
    int capability = int(setting("FAKE_CUDA_CAPABILITY", 90));
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
    size_t code = 0;         // of libraries, loaded at their first use and kept by the context
};

struct Allocation {
    int device;
    size_t size;     // as asked for
    size_t charged;  // 0: it lies in a shared page
    size_t page;
    Pointer pages;  // of the host: the last byte stands before one that cannot be touched
    Pointer guard() const { return pages + up(size, 4096); }
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
// Work that may have to wait for other streams: false until it is done.
using Task = std::function<bool()>;

// Numbers of `CUgraphNodeType`.
enum Kind { KERNEL = 0, COPY = 1, FILL = 2, OTHER = 5, TAKES_MEMORY = 10 };

struct Node {
    Kind kind;
    // Begins the work of one launch.
    std::function<Task()> begin;
};

struct Graph {
    std::vector<Node> nodes;
    bool invalid = false;
};

struct Executable {
    std::vector<Node> nodes;
    int device;
    size_t cost;
};

struct Stream {
    int device;
    Graph* capture = nullptr;
    std::deque<Task> queue;
};

// What is known of an event's last recording; work that is still queued holds it.
struct Recording {
    std::chrono::steady_clock::time_point at;
    bool done = false;
    Graph* captured = nullptr;
};

struct Event {
    bool timed;
    std::shared_ptr<Recording> last;
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
    std::set<Stream*> streams;
    size_t events = 0, graphs = 0, executables = 0, modules = 0, kernels = 0;
    // What libraries beside the driver have made and not destroyed, by name.
    std::map<const char*, long> made;
    int file = -1;
    size_t file_end = 0;
    Pointer next_handle = 1;

    ~Driver() { report(); }
    void report();
};

extern Driver driver;
// Index of the device whose context is current, or -1.
extern thread_local int current;

// What every call begins with: counted, and nothing works any more on a lost device.
Code enter();
// The same for a call that needs a context.
Code enter_context();
// Whether this request for memory is one that is to be refused.
bool refused();

size_t free_of(int index);
bool charge(int index, size_t bytes);
void discharge(int index, size_t bytes);
// Index of a device handle, or -1.
int index_of(int device);
// Host pages that cost nothing until they are touched.
void* host_pages(size_t bytes, int protection);

// Room for an allocation of at most 1 MiB: in a page that has some, or in a new one.
bool share_page(int index, size_t bytes, size_t* page);
// Pages that the driver keeps for graphs: grown when needed, given back when no graph lives.
bool graph_memory(int index, size_t cost);
void graph_end(int index, size_t cost);

// Puts work on a stream, or records it when the stream is capturing.
Code put(void* stream, Kind kind, Work work);
// The same for work that may have to wait: `begin` is called at each launch.
Code put_task(void* stream, Kind kind, std::function<Task()> begin);
// Goes on with the work of all streams as far as it can.
void pump();
// Whether a call that no capture allows is made during one, which spoils it.
bool spoils_capture();
// Whether device code may touch the bytes: inside one allocation, or in mappings without a gap.
bool accessible(Pointer at, size_t bytes);
// A stray access makes the device unusable, as an illegal address does.
Work touching(Pointer at, size_t bytes, Work work);
void lose(Code code);

using Lock = std::lock_guard<std::mutex>;

}  // namespace fake
