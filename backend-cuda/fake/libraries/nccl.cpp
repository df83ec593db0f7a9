// A NCCL over the fake driver, for the devices of one process: sums on the fake driver's streams, in
// rank order, accumulated in float32. A rank's stream waits until all ranks have come to the same sum,
// as on devices; what would hang there is an error here.
// Compiled with -DFAKE_OLD_LIBRARIES it lacks a symbol.
#include "../driver.h"

#include <cstring>
#include <string>

using namespace fake;

namespace {

enum Result { OK = 0, CUDA_ERROR = 1, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum Type { F16 = 6, F32 = 7, BF16 = 9 };

struct Group {
    std::vector<int> devices;
    size_t bytes;
    int members;
    bool used = false;
};
struct Comm {
    std::shared_ptr<Group> group;
    int rank;
};
struct Call {
    Comm* comm;
    Pointer send, receive;
    size_t count;
    int type;
    Stream* stream;
};
// One sum of a group, however often it is launched.
struct Meeting {
    std::vector<Call> calls;  // by rank
    std::vector<size_t> came;
    size_t done = 0;
};

thread_local int depth = 0;
thread_local std::vector<Call> calls;
std::string last_error;

int fail(Result result, const char* text) {
    last_error = text;
    return result;
}

float half(uint16_t bits) {
    int exponent = bits >> 10 & 31, rest = bits & 1023;
    float value = exponent == 0 ? float(rest) * 0x1p-24f : float(rest + 1024) * 0x1p-25f;
    for (int i = 1; i <= exponent; i++) value *= exponent ? 2 : 1;
    return bits & 0x8000 ? -value : value;
}
uint16_t to_half(float value) {
    uint16_t best = 0;
    uint16_t sign = value < 0 ? 0x8000 : 0;
    if (value < 0) value = -value;
    // The halves are in order: the last that is not above, then the nearer of it and the next.
    uint16_t low = 0, high = 0x7c00;
    while (low + 1 < high) {
        uint16_t middle = uint16_t((low + high) / 2);
        (half(middle) <= value ? low : high) = middle;
    }
    float below = value - half(low), above = high == 0x7c00 ? 1e30f : half(high) - value;
    best = below < above || (below == above && low % 2 == 0) ? low : high;
    return uint16_t(sign | best);
}
float get(Pointer at, size_t i, int type) {
    if (type == F32) return reinterpret_cast<float*>(at)[i];
    uint16_t bits = reinterpret_cast<uint16_t*>(at)[i];
    if (type == F16) return half(bits);
    uint32_t wide = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}
void set(Pointer at, size_t i, int type, float value) {
    if (type == F32) {
        reinterpret_cast<float*>(at)[i] = value;
    } else if (type == F16) {
        reinterpret_cast<uint16_t*>(at)[i] = to_half(value);
    } else {
        uint32_t bits;
        memcpy(&bits, &value, 4);
        reinterpret_cast<uint16_t*>(at)[i] = uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

void sum(const Meeting& meeting) {
    const Call& first = meeting.calls[0];
    size_t width = first.type == F32 ? 4 : 2;
    for (auto& call : meeting.calls) {
        if (!accessible(call.send, call.count * width) || !accessible(call.receive, call.count * width)) {
            lose(ILLEGAL_ADDRESS);
            return;
        }
    }
    for (size_t i = 0; i < first.count; i++) {
        float value = 0;
        for (auto& call : meeting.calls) value += get(call.send, i, call.type);
        for (auto& call : meeting.calls) set(call.receive, i, call.type, value);
    }
}

// Where a rank waits for the others.
Task arrive(const std::shared_ptr<Meeting>& meeting, int rank) {
    auto mine = std::make_shared<size_t>(0);
    return [=] {
        if (*mine == 0) *mine = ++meeting->came[size_t(rank)];
        size_t all = *mine;
        for (size_t came : meeting->came) all = came < all ? came : all;
        if (all > meeting->done) {
            sum(*meeting);
            meeting->done = all;
        }
        return meeting->done >= *mine;
    };
}

// All ranks' calls of one group, in their order, become sums.
int launch(std::vector<Call>& mine) {
    while (!mine.empty()) {
        auto group = mine.front().comm->group;
        auto meeting = std::make_shared<Meeting>();
        for (size_t rank = 0; rank < group->devices.size(); rank++) {
            size_t at = 0;
            while (at < mine.size() && !(mine[at].comm->group == group && mine[at].comm->rank == int(rank))) at++;
            if (at == mine.size()) return fail(INVALID_USAGE, "a rank has no part in a sum of its group");
            const Call& call = mine[at];
            if (rank && (call.count != meeting->calls[0].count || call.type != meeting->calls[0].type))
                return fail(INVALID_USAGE, "ranks sum different amounts");
            meeting->calls.push_back(call);
            mine.erase(mine.begin() + long(at));
        }
        if (!group->used) {
            size_t bytes = up(setting("FAKE_NCCL_FIRST", size_t(4) << 20), PAGE);
            if (refused()) return fail(CUDA_ERROR, "Cuda failure 2 'out of memory'");
            for (int device : group->devices)
                if (!charge(device, bytes)) return fail(CUDA_ERROR, "Cuda failure 2 'out of memory'");
            group->bytes += bytes;
            group->used = true;
        }
        meeting->came.resize(group->devices.size());
        for (auto& call : meeting->calls) {
            int rank = call.comm->rank;
            if (put_task(call.stream, KERNEL, [meeting, rank] { return arrive(meeting, rank); }))
                return fail(INVALID_ARGUMENT, "a stream that is none");
        }
    }
    return OK;
}

}  // namespace

API ncclGetVersion(int* version) {
    *version = 22703;
    return OK;
}
extern "C" __attribute__((visibility("default"))) const char* ncclGetErrorString(int result) {
    switch (result) {
        case OK: return "no error";
        case CUDA_ERROR: return "unhandled cuda error";
        case INVALID_ARGUMENT: return "invalid argument";
        case INVALID_USAGE: return "invalid usage";
        default: return "unknown result code";
    }
}
extern "C" __attribute__((visibility("default"))) const char* ncclGetLastError(void*) { return last_error.c_str(); }
API ncclCommInitAll(void** comms, int count, const int* ordinals) {
    Lock held(driver.lock);
    if (enter()) return fail(CUDA_ERROR, "Cuda failure");
    auto group = std::make_shared<Group>();
    group->bytes = up(setting("FAKE_NCCL_COMM", size_t(8) << 20), PAGE);
    for (int i = 0; i < count; i++) {
        int device = ordinals[i];
        for (int other : group->devices)
            if (other == device) return fail(INVALID_USAGE, "a device twice");
        auto it = driver.devices.find(device);
        if (it == driver.devices.end() || it->second.retained == 0) return fail(INVALID_ARGUMENT, "no such device");
        group->devices.push_back(device);
    }
    if (count < 1) return fail(INVALID_ARGUMENT, "no devices");
    for (int i = 0; i < count; i++) {
        if (refused() || !charge(ordinals[i], group->bytes)) {
            while (i-- > 0) discharge(ordinals[i], group->bytes);
            return fail(CUDA_ERROR, "Cuda failure 2 'out of memory'");
        }
    }
    group->members = count;
    for (int i = 0; i < count; i++) comms[i] = new Comm{group, i};
    driver.made["comms"] += count;
    return OK;
}
API ncclCommDestroy(void* handle) {
    Lock held(driver.lock);
    auto* comm = static_cast<Comm*>(handle);
    if (!comm) return INVALID_ARGUMENT;
    Group& group = *comm->group;
    discharge(group.devices[size_t(comm->rank)], group.bytes);
    driver.made["comms"]--;
    delete comm;
    return OK;
}
API ncclGroupStart() {
    depth++;
    return OK;
}
#ifndef FAKE_OLD_LIBRARIES
API ncclGroupEnd() {
    Lock held(driver.lock);
    if (depth == 0) return fail(INVALID_USAGE, "a group ends that did not begin");
    if (--depth > 0) return OK;
    std::vector<Call> mine;
    mine.swap(calls);
    if (mine.empty()) return OK;
    if (enter()) return fail(CUDA_ERROR, "Cuda failure");
    return launch(mine);
}
#endif
API ncclAllReduce(Pointer send, Pointer receive, size_t count, int type, int operation, void* comm, void* on) {
    Lock held(driver.lock);
    if (enter()) return fail(CUDA_ERROR, "Cuda failure");
    auto* stream = static_cast<Stream*>(on);
    auto* member = static_cast<Comm*>(comm);
    if (!driver.streams.count(stream) || !member || operation != 0 || (type != F16 && type != F32 && type != BF16))
        return fail(INVALID_ARGUMENT, "an argument");
    if (stream->device != member->group->devices[size_t(member->rank)])
        return fail(INVALID_ARGUMENT, "a stream of another device");
    calls.push_back(Call{member, send, receive, count, type, stream});
    if (depth > 0) return OK;
    std::vector<Call> mine;
    mine.swap(calls);
    return launch(mine);
}
