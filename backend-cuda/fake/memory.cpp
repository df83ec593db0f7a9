// Memory of the fake driver: plain, pinned and virtual.
#include "driver.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <iterator>

using namespace fake;

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
    if (spoils_capture()) return CAPTURE_UNSUPPORTED;
    if (size == 0) return INVALID_VALUE;
    if (refused()) return OUT_OF_MEMORY;
    Allocation made{current, size, 0, 0, 0};
    if (size > SMALL_MAX) {
        made.charged = up(size, PAGE);
        if (!charge(current, made.charged)) return OUT_OF_MEMORY;
    } else {
        size_t piece = size > SMALL_MAX / 2 ? SMALL_MAX : up(size, SMALL_STEP);
        if (!share_page(current, piece, &made.page)) return OUT_OF_MEMORY;
    }
    void* pages = host_pages(up(size, 4096) + 4096, PROT_READ | PROT_WRITE);
    if (!pages) {
        discharge(current, made.charged);
        return OUT_OF_MEMORY;
    }
    made.pages = reinterpret_cast<Pointer>(pages);
    mprotect(reinterpret_cast<void*>(made.guard()), 4096, PROT_NONE);
    *at = made.guard() - up(size, 256);
    driver.allocations[*at] = made;
    return SUCCESS;
}
API cuMemFree_v2(Pointer at) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    if (spoils_capture()) return CAPTURE_UNSUPPORTED;
    auto it = driver.allocations.find(at);
    if (it == driver.allocations.end()) return INVALID_VALUE;
    Allocation gone = it->second;
    driver.allocations.erase(it);
    munmap(reinterpret_cast<void*>(gone.pages), up(gone.size, 4096) + 4096);
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
    if (spoils_capture()) return CAPTURE_UNSUPPORTED;
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
    if (spoils_capture()) return CAPTURE_UNSUPPORTED;
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
    if (!driver.settings.virtual_memory) return NOT_SUPPORTED;
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
    if (!driver.settings.virtual_memory) return NOT_SUPPORTED;
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
