// Modules, functions and launches of the fake driver: kernels are those of the shim, by name, whatever
// image is loaded. Arguments are copied when a launch is put on a stream or recorded, as on a device.
#include "driver.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "../kernels/shim/launch.h"

using namespace fake;

namespace {

constexpr int SHARED_DEFAULT = 48 << 10;

struct Module;

struct Function {
    const ShimKernel* kernel;
    int shared = SHARED_DEFAULT;
};

struct Module {
    int device;
    std::vector<std::unique_ptr<Function>> functions;
};

// The functions of loaded modules.
std::set<Function*> live;

// ---- stray accesses of kernels

std::atomic<const char*> running{nullptr};
struct sigaction before;

// Whether a page is one that the driver keeps untouchable.
bool forbidden(Pointer page) {
    auto range = driver.reserved.upper_bound(page);
    if (range != driver.reserved.begin() && (--range, page < range->first + range->second)) return true;
    auto plain = driver.allocations.upper_bound(page);
    return plain != driver.allocations.begin() && (--plain, page == plain->second.guard());
}

// Gives the kernel a page to go on with, and loses the device. What is not a kernel's fault goes
// where it would have gone.
void stray(int, siginfo_t* info, void*) {
    Pointer page = reinterpret_cast<Pointer>(info->si_addr) & ~Pointer(4095);
    const char* kernel = running;
    bool fixed = kernel && forbidden(page);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (fixed ? MAP_FIXED : MAP_FIXED_NOREPLACE);
    if (!kernel || mmap(reinterpret_cast<void*>(page), 4096, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) {
        sigaction(SIGSEGV, &before, nullptr);
        return;
    }
    char text[160];
    int length = snprintf(text, sizeof text, "fake CUDA driver: %s touched %p, which is not mapped\n", kernel, info->si_addr);
    if (!driver.lost) (void)!write(2, text, size_t(length));
    lose(ILLEGAL_ADDRESS);
}

void watch() {
    static bool installed = false;
    if (installed) return;
    installed = true;
    struct sigaction action = {};
    action.sa_sigaction = stray;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, &before);
}

// ---- launches

struct Frozen {
    const ShimKernel* kernel;
    unsigned grid[3], block[3];
    size_t shared;
    std::vector<std::vector<char>> values;

    void operator()() const {
        watch();
        std::vector<std::vector<char>> copies = values;
        std::vector<void*> parameters;
        for (auto& value : copies) parameters.push_back(value.data());
        driver.kernels++;
        running = kernel->name;
        int wrong = shim_launch(kernel, grid, block, shared, parameters.data(), driver.settings.threads, driver.settings.seed);
        running = nullptr;
        if (wrong) lose(LAUNCH_FAILED);
    }
};

bool fits(const Frozen& launch, const Function& function) {
    size_t threads = size_t(launch.block[0]) * launch.block[1] * launch.block[2];
    bool blocks = launch.grid[0] && launch.grid[1] && launch.grid[2] && launch.grid[0] <= 0x7fffffffu &&
                  launch.grid[1] <= 65535 && launch.grid[2] <= 65535;
    return blocks && threads > 0 && threads <= 1024 && launch.shared <= size_t(function.shared);
}

}  // namespace

API cuModuleLoadData(void** made, const void* image) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    if (spoils_capture()) return CAPTURE_UNSUPPORTED;
    if (!image || !*static_cast<const char*>(image)) return INVALID_IMAGE;
    if (refused() || !charge(current, up(driver.settings.module, PAGE))) return OUT_OF_MEMORY;
    *made = new Module{current, {}};
    driver.modules++;
    return SUCCESS;
}
API cuModuleUnload(void* handle) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto* module = static_cast<Module*>(handle);
    for (auto& function : module->functions) live.erase(function.get());
    discharge(module->device, up(driver.settings.module, PAGE));
    delete module;
    driver.modules--;
    return SUCCESS;
}
API cuModuleGetFunction(void** made, void* handle, const char* name) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    const ShimKernel* kernel = shim_find(name);
    if (!kernel) return NOT_FOUND;
    auto& functions = static_cast<Module*>(handle)->functions;
    functions.push_back(std::make_unique<Function>(Function{kernel}));
    *made = functions.back().get();
    live.insert(functions.back().get());
    return SUCCESS;
}
API cuFuncGetAttribute(int* value, int attribute, void* handle) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto* function = static_cast<Function*>(handle);
    if (!live.count(function)) return INVALID_HANDLE;
    switch (attribute) {
        case 0: *value = 1024; break;
        case 4: *value = 32; break;
        case 8: *value = function->shared; break;
        default: *value = 0;
    }
    return SUCCESS;
}
API cuFuncSetAttribute(void* handle, int attribute, int value) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto* function = static_cast<Function*>(handle);
    if (!live.count(function)) return INVALID_HANDLE;
    if (attribute != 8 || value < 0 || value > driver.settings.shared) return INVALID_VALUE;
    function->shared = value > SHARED_DEFAULT ? value : SHARED_DEFAULT;
    return SUCCESS;
}
API cuFuncGetParamInfo(void* handle, size_t index, size_t* offset, size_t* size) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto* function = static_cast<Function*>(handle);
    if (!live.count(function)) return INVALID_HANDLE;
    auto& sizes = function->kernel->parameter_sizes;
    if (index >= sizes.size()) return INVALID_VALUE;
    *offset = 0;
    for (size_t i = 0; i < index; i++) *offset = up(*offset, sizes[i]) + sizes[i];
    *offset = up(*offset, sizes[index]);
    *size = sizes[index];
    return SUCCESS;
}
API cuLaunchKernel(void* handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void* stream, void** parameters, void**) {
    Lock held(driver.lock);
    if (Code code = enter_context()) return code;
    auto* function = static_cast<Function*>(handle);
    if (!live.count(function)) return INVALID_HANDLE;
    Frozen launch{function->kernel, {gx, gy, gz}, {bx, by, bz}, shared, {}};
    if (!fits(launch, *function)) return INVALID_VALUE;
    for (size_t i = 0; i < function->kernel->parameter_sizes.size(); i++) {
        auto* value = static_cast<const char*>(parameters[i]);
        launch.values.emplace_back(value, value + function->kernel->parameter_sizes[i]);
    }
    return put(stream, KERNEL, launch);
}
