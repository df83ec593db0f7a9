// Streams, events, copies and graphs of the fake driver.
#include "driver.h"

#include <cstring>

using namespace fake;

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
