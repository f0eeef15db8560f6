// Loads and launches compiled kernels through the driver API.
#include "cuda/modules.h"

#include <cstring>
#include <dlfcn.h>

namespace penstock::cuda {
namespace {

// Constants of the driver API with the driver's values, and limits of kernels.
constexpr int kInvalidContext = 201;
constexpr int kMaxDynamicShared = 8; // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kPreferShared = 1;     // CU_FUNC_CACHE_PREFER_SHARED
constexpr int kSharedUnasked = 48 << 10;
constexpr uint64_t kAlignment = 16;

struct Driver {
    int (*load)(void** module, const void* image);
    int (*find)(void** function, void* module, const char* name);
    int (*set_attribute)(void* function, int attribute, int value);
    int (*set_cache)(void* function, int preference);
    int (*launch)(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                  unsigned bz, unsigned shared, void* stream, void** parameters, void** extra);
    int (*get_context)(void** context);
    int (*set_context)(void* context);
    int (*retain_context)(void** context, int device);
    int (*error_name)(int code, const char** name);
};

struct Kernel {
    void* function;
    void* context;
    unsigned threads;
    unsigned shared;
    uint64_t pointers;
};

Driver driver;
bool opened = false;

template <class Function>
bool look_up(void* library, const char* name, Function& function) {
    void* found = dlsym(library, name);
    std::memcpy(&function, &found, sizeof found);
    return found != nullptr;
}

bool look_up_all(void* library, Driver& d) {
    return look_up(library, "cuModuleLoadData", d.load) &&
           look_up(library, "cuModuleGetFunction", d.find) &&
           look_up(library, "cuFuncSetAttribute", d.set_attribute) &&
           look_up(library, "cuFuncSetCacheConfig", d.set_cache) &&
           look_up(library, "cuLaunchKernel", d.launch) &&
           look_up(library, "cuCtxGetCurrent", d.get_context) &&
           look_up(library, "cuCtxSetCurrent", d.set_context) &&
           look_up(library, "cuDevicePrimaryCtxRetain", d.retain_context) &&
           look_up(library, "cuGetErrorName", d.error_name);
}

// Gets the context of this thread; if it has none, the primary context of the device, which torch
// uses.
int current_context(int device, void** context) {
    int status = driver.get_context(context);
    if (status != 0 || *context != nullptr)
        return status;
    status = driver.retain_context(context, device);
    return status != 0 ? status : driver.set_context(*context);
}

int allow_shared(void* function, int shared) {
    if (shared <= kSharedUnasked)
        return 0;
    const int status = driver.set_cache(function, kPreferShared);
    return status != 0 ? status : driver.set_attribute(function, kMaxDynamicShared, shared);
}

bool aligned(const unsigned char* parameters, uint64_t size, uint64_t pointers) {
    for (uint64_t at = 0; pointers != 0 && at < size; at += 8, pointers >>= 1) {
        uint64_t address;
        std::memcpy(&address, parameters + at, sizeof address);
        if ((pointers & 1) != 0 && address % kAlignment != 0)
            return false;
    }
    return true;
}

} // namespace
} // namespace penstock::cuda

using namespace penstock::cuda;

int penstock_cuda_open_driver(const char* file) {
    if (opened)
        return 0;
    void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr || !look_up_all(library, driver))
        return kNoDriver;
    opened = true;
    return 0;
}

const char* penstock_cuda_driver_error(int code) {
    const char* name = nullptr;
    if (code == kNoDriver || !opened)
        return "there is no CUDA driver";
    if (code == kMisaligned)
        return "a tensor is not aligned to 16 bytes";
    return driver.error_name(code, &name) == 0 && name != nullptr ? name : "unknown error";
}

int penstock_cuda_load(const void* image, const char* entry, int device, int threads, int shared,
                       uint64_t pointers, void** kernel) {
    if (!opened)
        return kNoDriver;
    void *module = nullptr, *function = nullptr, *context = nullptr;
    int status = current_context(device, &context);
    if (status == 0)
        status = driver.load(&module, image);
    if (status == 0)
        status = driver.find(&function, module, entry);
    if (status == 0)
        status = allow_shared(function, shared);
    if (status != 0)
        return status;
    *kernel = new Kernel{function, context, static_cast<unsigned>(threads),
                         static_cast<unsigned>(shared), pointers};
    return 0;
}

int penstock_cuda_start(void* handle, const PenstockCudaRequest* request) {
    const Kernel& kernel = *static_cast<const Kernel*>(handle);
    const PenstockCudaRequest& asked = *request;
    const void* parameters = request + 1;
    uint64_t size = asked.size;
    if (!aligned(static_cast<const unsigned char*>(parameters), size, kernel.pointers))
        return kMisaligned;
    // The keys are CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE,
    // CU_LAUNCH_PARAM_END.
    void* extra[] = {reinterpret_cast<void*>(1), const_cast<void*>(parameters),
                     reinterpret_cast<void*>(2), &size, nullptr};
    const auto launch = [&] {
        return driver.launch(kernel.function, asked.x, asked.y, asked.z, kernel.threads, 1, 1,
                             kernel.shared, asked.stream, nullptr, extra);
    };
    const int status = launch();
    if (status != kInvalidContext)
        return status;
    // A thread that has not called the CUDA runtime yet has no context.
    const int bound = driver.set_context(kernel.context);
    return bound != 0 ? bound : launch();
}
