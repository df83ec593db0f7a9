// Streams, events, copies and graphs of the fake driver.
#include "driver.h"

#include <cstdio>
#include <cstring>

using namespace fake;

static Stream* stream_of(void* handle) {
    auto* stream = static_cast<Stream*>(handle);
    return driver.streams.count(stream) ? stream : nullptr;
}

// What can never go on is an error, not a hang.
static Code finished(bool done) {
    if (!done) {
        fprintf(stderr, "fake CUDA driver: a stream waits for work that was never given\n");
        lose(LAUNCH_TIMEOUT);
    }
    return driver.lost;
}

// ---- streams

API cuStreamCreate(void** stream, unsigned) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto* made = new Stream{current, nullptr, {}};
    driver.streams.insert(made);
    *stream = made;
    return SUCCESS;
}
API cuStreamDestroy_v2(void* handle) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    Stream* stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    driver.streams.erase(stream);
    delete stream;
    return SUCCESS;
}
API cuStreamSynchronize(void* handle) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    Stream* stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    if (stream->capture) {
        stream->capture->invalid = true;
        return CAPTURE_UNSUPPORTED;
    }
    pump();
    return finished(stream->queue.empty());
}
API cuStreamIsCapturing(void* handle, int* status) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    Stream* stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    *status = stream->capture ? 1 : 0;
    return SUCCESS;
}
API cuStreamWaitEvent(void* handle, void* event, unsigned) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    Stream* stream = stream_of(handle);
    if (!stream) return INVALID_HANDLE;
    auto last = static_cast<Event*>(event)->last;
    if (!last) return SUCCESS;
    // Within one capture it is an order that is there anyway; between captures it is none of ours.
    if (stream->capture || last->captured) return stream->capture == last->captured ? SUCCESS : CAPTURE_ISOLATION;
    return put_task(stream, OTHER, [last] { return [last] { return last->done; }; });
}

// ---- events

API cuEventCreate(void** event, unsigned flags) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    *event = new Event{(flags & 2) == 0, nullptr};
    driver.events++;
    return SUCCESS;
}
API cuEventRecord(void* handle, void* on) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    Stream* stream = stream_of(on);
    if (!stream) return INVALID_HANDLE;
    auto made = std::make_shared<Recording>();
    made->captured = stream->capture;
    static_cast<Event*>(handle)->last = made;
    if (stream->capture) return SUCCESS;
    return put(stream, OTHER, [made] {
        made->at = std::chrono::steady_clock::now();
        made->done = true;
    });
}
API cuEventSynchronize(void* handle) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto last = static_cast<Event*>(handle)->last;
    if (!last) return SUCCESS;
    if (last->captured) return CAPTURE_UNSUPPORTED;
    pump();
    return finished(last->done);
}
API cuEventQuery(void* handle) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto last = static_cast<Event*>(handle)->last;
    if (last && last->captured) return CAPTURE_UNSUPPORTED;
    pump();
    return !last || last->done ? driver.lost : NOT_READY;
}
API cuEventElapsedTime(float* milliseconds, void* from, void* to) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto *a = static_cast<Event*>(from), *b = static_cast<Event*>(to);
    if (!a->timed || !b->timed || !a->last || !b->last) return INVALID_HANDLE;
    if (!a->last->done || !b->last->done) return NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(b->last->at - a->last->at).count();
    return SUCCESS;
}
API cuEventDestroy_v2(void* event) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    delete static_cast<Event*>(event);
    driver.events--;
    return SUCCESS;
}

// ---- fills and copies

API cuMemsetD8Async(Pointer at, unsigned char value, size_t size, void* stream) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    return put(stream, FILL, touching(at, size, [=] { memset(reinterpret_cast<void*>(at), value, size); }));
}
API cuMemsetD32Async(Pointer at, unsigned value, size_t count, void* stream) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    if (at % 4) return INVALID_VALUE;
    return put(stream, FILL, touching(at, count * 4, [=] {
        auto* words = reinterpret_cast<unsigned*>(at);
        for (size_t i = 0; i < count; i++) words[i] = value;
    }));
}
API cuMemcpyHtoDAsync_v2(Pointer to, const void* from, size_t size, void* stream) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    driver.copied += size;
    return put(stream, COPY, touching(to, size, [=] { memcpy(reinterpret_cast<void*>(to), from, size); }));
}
API cuMemcpyDtoHAsync_v2(void* to, Pointer from, size_t size, void* stream) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    driver.copied += size;
    return put(stream, COPY, touching(from, size, [=] { memcpy(to, reinterpret_cast<void*>(from), size); }));
}
API cuMemcpyDtoDAsync_v2(Pointer to, Pointer from, size_t size, void* stream) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    return put(stream, COPY, touching(to, size, touching(from, size, [=] {
        memmove(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), size);
    })));
}

// ---- graphs

API cuStreamBeginCapture_v2(void* handle, int) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    Stream* stream = stream_of(handle);
    if (!stream || stream->capture) return CAPTURE_UNSUPPORTED;
    stream->capture = new Graph;
    return SUCCESS;
}
API cuStreamEndCapture(void* handle, void** graph) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    Stream* stream = stream_of(handle);
    if (!stream || !stream->capture) return INVALID_VALUE;
    Graph* made = stream->capture;
    stream->capture = nullptr;
    *graph = nullptr;
    if (made->invalid) {
        delete made;
        return CAPTURE_INVALIDATED;
    }
    *graph = made;
    driver.graphs++;
    return SUCCESS;
}
API cuGraphGetNodes(void* graph, void** nodes, size_t* count) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto& all = static_cast<Graph*>(graph)->nodes;
    size_t room = nodes ? *count : 0;
    for (size_t i = 0; i < all.size() && i < room; i++) nodes[i] = &all[i];
    *count = all.size();
    return SUCCESS;
}
API cuGraphNodeGetType(void* node, int* type) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    *type = static_cast<Node*>(node)->kind;
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
API cuGraphLaunch(void* handle, void* on) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    Stream* stream = stream_of(on);
    if (!stream) return INVALID_HANDLE;
    driver.launches++;
    for (auto& node : static_cast<Executable*>(handle)->nodes) {
        if (Code code = put_task(stream, node.kind, node.begin)) return code;
    }
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
