// The counting rules of the fake driver, and its report.
#include "driver.h"

#include <sys/mman.h>

#include <cstdio>
#include <string>

namespace fake {

Driver driver;
thread_local int current = -1;

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
    std::map<std::string, long> beside;
    for (const char* name : {"lt_handles", "lt_layouts", "lt_products", "lt_preferences", "comms"}) beside[name] = 0;
    for (auto& [name, count] : made) beside[name] += count;
    fprintf(out, "{");
    for (auto& [name, count] : beside) fprintf(out, "\"%s\":%ld,", name.c_str(), count);
    fprintf(out,
            "\"contexts\":%zu,\"allocations\":%zu,\"pinned\":%zu,\"reserved\":%zu,\"mappings\":%zu,"
            "\"physical\":%zu,\"streams\":%zu,\"events\":%zu,\"graphs\":%zu,\"executables\":%zu,"
            "\"shared_pages\":%zu,\"used_bytes\":%zu,\"peak_bytes\":%zu,\"calls\":%zu,\"requests\":%zu,"
            "\"modules\":%zu,\"kernels\":%zu,\"launches\":%zu,\"copied_bytes\":%zu,\"lost\":%d}\n",
            contexts, allocations.size(), pinned.size(), reserved.size(), mappings.size(),
            physical.size(), streams.size(), events, graphs, executables, shared, used, peak, calls, requests,
            modules, kernels, launches, copied, lost);
    fclose(out);
}

Code enter() {
    driver.calls++;
    if (driver.settings.lost_at && driver.calls >= driver.settings.lost_at && !driver.lost)
        driver.lost = driver.settings.lost_code;
    if (driver.lost) return driver.lost;
    return driver.initialised ? SUCCESS : NOT_INITIALIZED;
}

Code enter_context() {
    if (Code code = enter()) return code;
    auto it = driver.devices.find(current);
    return it == driver.devices.end() || it->second.retained == 0 ? INVALID_CONTEXT : SUCCESS;
}

bool refused() {
    driver.requests++;
    auto& s = driver.settings;
    return driver.requests == s.fail_at || (s.fail_from && driver.requests >= s.fail_from);
}

// What other programs hold: at the start, and what a test has written meanwhile.
static size_t foreign() {
    size_t held = driver.settings.foreign;
    const char* path = getenv("FAKE_CUDA_FOREIGN_FILE");
    FILE* file = path ? fopen(path, "r") : nullptr;
    if (!file) return held;
    unsigned long long more = 0;
    if (fscanf(file, "%llu", &more) == 1) held += more;
    fclose(file);
    return held;
}

size_t free_of(int index) {
    size_t used = driver.devices[index].used + foreign();
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

void lose(Code code) {
    if (!driver.lost) driver.lost = code;
}

void pump() {
    for (bool moved = true; moved;) {
        moved = false;
        for (Stream* stream : driver.streams) {
            while (!stream->queue.empty() && stream->queue.front()()) {
                stream->queue.pop_front();
                moved = true;
            }
        }
    }
}

Code put_task(void* handle, Kind kind, std::function<Task()> begin) {
    auto* stream = static_cast<Stream*>(handle);
    if (!driver.streams.count(stream)) return INVALID_HANDLE;
    if (stream->capture) {
        stream->capture->nodes.push_back(Node{kind, std::move(begin)});
        return SUCCESS;
    }
    stream->queue.push_back(begin());
    pump();
    return SUCCESS;
}

Code put(void* stream, Kind kind, Work work) {
    return put_task(stream, kind, [work] {
        return [work] {
            if (!driver.lost) work();
            return true;
        };
    });
}

bool spoils_capture() {
    bool any = false;
    for (Stream* stream : driver.streams) {
        if (stream->capture && stream->device == current) stream->capture->invalid = any = true;
    }
    return any;
}

Work touching(Pointer at, size_t bytes, Work work) {
    return [=] {
        if (accessible(at, bytes))
            work();
        else
            lose(ILLEGAL_ADDRESS);
    };
}

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

}  // namespace fake
