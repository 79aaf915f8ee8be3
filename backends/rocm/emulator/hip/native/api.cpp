// The functions of hip_runtime_api.h. Most hand their arguments, as words, to the Python method of their name.
#include "call.h"

#include <hip/hip_runtime_api.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef int (*Callback)(const char *name, const uint64_t *arguments);
static Callback callback;
static thread_local int last_error;
thread_local bool portable_hip_answering;  // in this thread, just now

// NULL at the end of the program: what its destructors call then has no effect.
extern "C" EXPORT void portable_hip_answer(Callback by) { callback = by; }

int portable_hip_call(const char *name, std::initializer_list<uint64_t> arguments) {
    if (!callback) return hipErrorDeinitialized;
    portable_hip_answering = true;
    const int error = callback(name, arguments.begin());
    portable_hip_answering = false;
    return error;
}

static hipError_t noted(int error) {
    if (error != hipSuccess && error != hipErrorNotReady) last_error = error;
    return (hipError_t)error;
}

#define W(value) ((uint64_t)(value))
#define API(name, parameters, ...)                                                                                     \
    extern "C" EXPORT hipError_t name parameters { return noted(portable_hip_call(#name, {__VA_ARGS__})); }
// Right as it is on a GPU that does everything at once.
#define NOTHING(name, parameters)                                                                                      \
    extern "C" EXPORT hipError_t name parameters { return noted(portable_hip_call("nothing", {0})); }

// Device and errors.
NOTHING(hipInit, (unsigned))
NOTHING(hipDeviceSynchronize, (void))
NOTHING(hipDeviceReset, (void))
NOTHING(hipSetDeviceFlags, (unsigned))
NOTHING(hipDeviceSetCacheConfig, (hipFuncCache_t))
API(hipGetDeviceCount, (int *count), W(count))
API(hipGetDevice, (int *device), W(device))
API(hipSetDevice, (int device), W(device))
API(hipDeviceGet, (hipDevice_t *device, int ordinal), W(device), W(ordinal))
API(hipDeviceGetAttribute, (int *value, hipDeviceAttribute_t attribute, int device), W(value), W(attribute), W(device))
API(hipDeviceTotalMem, (size_t *bytes, hipDevice_t device), W(bytes), W(device))
API(hipDeviceCanAccessPeer, (int *can, int device, int peer), W(can), W(device), W(peer))
API(hipDeviceEnablePeerAccess, (int peer, unsigned), W(peer))
API(hipDeviceDisablePeerAccess, (int peer), W(peer))

extern "C" EXPORT hipError_t hipDriverGetVersion(int *version) { return *version = HIP_VERSION, hipSuccess; }
extern "C" EXPORT hipError_t hipRuntimeGetVersion(int *version) { return *version = HIP_VERSION, hipSuccess; }

extern "C" EXPORT hipError_t hipGetDeviceProperties(hipDeviceProp_t *to, int device) {
    enum { THREADS, PROCESSORS, LDS, WAVE, L2, MEMORY, MAJOR, MINOR, PER_PROCESSOR, COOPERATIVE, FIGURES };
    uint64_t figures[FIGURES];
    memset(to, 0, sizeof *to);
    const int error = portable_hip_call("properties", {W(figures), W(to->gcnArchName), W(device)});
    if (error != hipSuccess) return noted(error);
    snprintf(to->name, sizeof to->name, "emulated %.200s", to->gcnArchName);
    to->totalGlobalMem = figures[MEMORY];
    to->sharedMemPerBlock = to->sharedMemPerMultiprocessor = figures[LDS];
    to->regsPerBlock = to->regsPerMultiprocessor = 65536;
    to->warpSize = (int)figures[WAVE];
    to->memPitch = to->totalConstMem = 0x7fffffff;
    to->maxThreadsPerBlock = (int)figures[THREADS];
    for (int &most : to->maxThreadsDim) most = (int)figures[THREADS];
    to->maxGridSize[0] = 0x7fffffff;
    to->maxGridSize[1] = to->maxGridSize[2] = 65535;
    to->major = (int)figures[MAJOR];
    to->minor = (int)figures[MINOR];
    to->textureAlignment = 256;
    to->multiProcessorCount = (int)figures[PROCESSORS];
    to->maxThreadsPerMultiProcessor = (int)figures[PER_PROCESSOR];
    to->l2CacheSize = (int)figures[L2];
    to->canMapHostMemory = to->concurrentKernels = to->unifiedAddressing = to->managedMemory = 1;
    to->cooperativeLaunch = (int)figures[COOPERATIVE];
    to->isLargeBar = 1;
    memset(&to->arch, 0xff, sizeof to->arch);
    to->arch.hasFunnelShift = to->arch.hasSurfaceFuncs = to->arch.hasDynamicParallelism = 0;
    return hipSuccess;
}
extern "C" EXPORT hipError_t hipDeviceGetName(char *name, int size, hipDevice_t device) {
    hipDeviceProp_t properties;
    const hipError_t error = hipGetDeviceProperties(&properties, device);
    if (error == hipSuccess && size > 0) snprintf(name, (size_t)size, "%s", properties.name);
    return error;
}

extern "C" EXPORT hipError_t hipPeekAtLastError(void) { return (hipError_t)last_error; }
extern "C" EXPORT hipError_t hipGetLastError(void) {
    const int error = last_error;
    last_error = hipSuccess;
    return (hipError_t)error;
}
extern "C" EXPORT const char *hipGetErrorName(hipError_t error) {
#define X(name, value, text) if (error == value) return #name;
    PORTABLE_HIP_ERRORS(X)
#undef X
    return "hipErrorUnknown";
}
extern "C" EXPORT const char *hipGetErrorString(hipError_t error) {
#define X(name, value, text) if (error == value) return text;
    PORTABLE_HIP_ERRORS(X)
#undef X
    return "unknown error";
}

// Memory.
API(hipMalloc, (void **pointer, size_t bytes), W(pointer), W(bytes))
API(hipMallocAsync, (void **pointer, size_t bytes, hipStream_t), W(pointer), W(bytes))
API(hipMallocManaged, (void **pointer, size_t bytes, unsigned), W(pointer), W(bytes))
API(hipMallocPitch, (void **pointer, size_t *pitch, size_t width, size_t height), W(pointer), W(pitch), W(width), W(height))
API(hipHostMalloc, (void **pointer, size_t bytes, unsigned), W(pointer), W(bytes))
API(hipFree, (void *pointer), W(pointer))
API(hipFreeAsync, (void *pointer, hipStream_t), W(pointer))
API(hipHostFree, (void *pointer), W(pointer))
API(hipHostRegister, (void *pointer, size_t bytes, unsigned), W(pointer), W(bytes))
API(hipHostUnregister, (void *pointer), W(pointer))
API(hipHostGetDevicePointer, (void **device, void *host, unsigned), W(device), W(host))
API(hipMemGetInfo, (size_t *free, size_t *total), W(free), W(total))
// Python judges the extents; the bytes move here, so that a crash in the program's own memory is the program's.
extern "C" EXPORT hipError_t hipMemcpy(void *to, const void *from, size_t bytes, hipMemcpyKind kind) {
    const int error = portable_hip_call("hipMemcpy", {W(to), W(from), W(bytes), W(kind)});
    if (error == hipSuccess) memmove(to, from, bytes);
    return noted(error);
}
extern "C" EXPORT hipError_t hipMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                         size_t height, hipMemcpyKind kind) {
    if (width > to_pitch || width > from_pitch) return noted(hipErrorInvalidPitchValue);
    for (size_t row = 0; row < height; row++) {
        const hipError_t error = hipMemcpy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind);
        if (error != hipSuccess) return error;
    }
    return hipSuccess;
}
extern "C" EXPORT hipError_t hipMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset,
                                               hipMemcpyKind kind) {
    char *to;
    const hipError_t error = hipGetSymbolAddress((void **)&to, symbol);
    return error == hipSuccess ? hipMemcpy(to + offset, from, bytes, kind) : error;
}
extern "C" EXPORT hipError_t hipMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset,
                                                 hipMemcpyKind kind) {
    char *from;
    const hipError_t error = hipGetSymbolAddress((void **)&from, symbol);
    return error == hipSuccess ? hipMemcpy(to, from + offset, bytes, kind) : error;
}
API(hipMemset, (void *to, int value, size_t bytes), W(to), W(value & 255), 1, W(bytes))
API(hipGetSymbolAddress, (void **pointer, const void *symbol), W(pointer), W(symbol))
API(hipGetSymbolSize, (size_t *bytes, const void *symbol), W(bytes), W(symbol))

#define SAME(name, parameters, ...)                                                                                    \
    extern "C" EXPORT hipError_t name parameters { return __VA_ARGS__; }
SAME(hipMemcpyAsync, (void *to, const void *from, size_t bytes, hipMemcpyKind kind, hipStream_t),
     hipMemcpy(to, from, bytes, kind))
SAME(hipMemcpyWithStream, (void *to, const void *from, size_t bytes, hipMemcpyKind kind, hipStream_t),
     hipMemcpy(to, from, bytes, kind))
SAME(hipMemcpyPeer, (void *to, int, const void *from, int, size_t bytes),
     hipMemcpy(to, from, bytes, hipMemcpyDeviceToDevice))
SAME(hipMemcpy2DAsync,
     (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, hipMemcpyKind kind,
      hipStream_t),
     hipMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind))
SAME(hipMemcpyHtoD, (hipDeviceptr_t to, void *from, size_t n), hipMemcpy(to, from, n, hipMemcpyHostToDevice))
SAME(hipMemcpyDtoH, (void *to, hipDeviceptr_t from, size_t n), hipMemcpy(to, from, n, hipMemcpyDeviceToHost))
SAME(hipMemcpyDtoD, (hipDeviceptr_t to, hipDeviceptr_t from, size_t n), hipMemcpy(to, from, n, hipMemcpyDeviceToDevice))
SAME(hipMemcpyHtoDAsync, (hipDeviceptr_t to, void *from, size_t n, hipStream_t),
     hipMemcpy(to, from, n, hipMemcpyHostToDevice))
SAME(hipMemcpyDtoHAsync, (void *to, hipDeviceptr_t from, size_t n, hipStream_t),
     hipMemcpy(to, from, n, hipMemcpyDeviceToHost))
SAME(hipMemsetAsync, (void *to, int value, size_t bytes, hipStream_t), hipMemset(to, value, bytes))
SAME(hipMemcpyToSymbolAsync,
     (const void *symbol, const void *from, size_t bytes, size_t offset, hipMemcpyKind kind, hipStream_t),
     hipMemcpyToSymbol(symbol, from, bytes, offset, kind))
SAME(hipMemcpyFromSymbolAsync,
     (void *to, const void *symbol, size_t bytes, size_t offset, hipMemcpyKind kind, hipStream_t),
     hipMemcpyFromSymbol(to, symbol, bytes, offset, kind))

#define FILL(value, width) noted(portable_hip_call("hipMemset", {W(to), W(value), width, W(count)}))
SAME(hipMemsetD8, (hipDeviceptr_t to, unsigned char value, size_t count), FILL(value, 1))
SAME(hipMemsetD16, (hipDeviceptr_t to, unsigned short value, size_t count), FILL(value, 2))
SAME(hipMemsetD32, (hipDeviceptr_t to, int value, size_t count), FILL((uint32_t)value, 4))

extern "C" EXPORT hipError_t hipPointerGetAttributes(hipPointerAttribute_t *to, const void *pointer) {
    uint64_t found[2] = {0, 0};  // hipMemoryType, and whether it is there for the host
    memset(to, 0, sizeof *to);
    const int error = portable_hip_call("pointer", {W(found), W(pointer)});
    if (error != hipSuccess) return noted(error);
    to->type = (hipMemoryType)found[0];
    to->devicePointer = (void *)pointer;
    to->hostPointer = found[1] ? (void *)pointer : NULL;
    to->isManaged = to->type == hipMemoryTypeManaged;
    return hipSuccess;
}

// Streams and events.
API(hipStreamCreate, (hipStream_t *stream), W(stream))
SAME(hipStreamCreateWithFlags, (hipStream_t *stream, unsigned), hipStreamCreate(stream))
SAME(hipStreamCreateWithPriority, (hipStream_t *stream, unsigned, int), hipStreamCreate(stream))
SAME(hipDeviceGetStreamPriorityRange, (int *least, int *greatest), (*least = *greatest = 0, hipSuccess))
API(hipStreamDestroy, (hipStream_t stream), W(stream))
API(hipStreamSynchronize, (hipStream_t stream), W(stream))
SAME(hipStreamQuery, (hipStream_t stream), hipStreamSynchronize(stream))
API(hipStreamWaitEvent, (hipStream_t stream, hipEvent_t event, unsigned), W(stream), W(event))
API(hipEventCreate, (hipEvent_t *event), W(event))
SAME(hipEventCreateWithFlags, (hipEvent_t *event, unsigned), hipEventCreate(event))
API(hipEventRecord, (hipEvent_t event, hipStream_t stream), W(event), W(stream))
API(hipEventSynchronize, (hipEvent_t event), W(event))
SAME(hipEventQuery, (hipEvent_t event), hipEventSynchronize(event))
API(hipEventDestroy, (hipEvent_t event), W(event))
extern "C" EXPORT hipError_t hipEventElapsedTime(float *milliseconds, hipEvent_t start, hipEvent_t stop) {
    *milliseconds = NAN;
    return noted(portable_hip_call("hipEventElapsedTime", {W(start), W(stop)}));
}
extern "C" EXPORT hipError_t hipStreamAddCallback(hipStream_t stream, hipStreamCallback_t function, void *data, unsigned) {
    const hipError_t error = hipStreamSynchronize(stream);
    function(stream, error, data);
    return error;
}
extern "C" EXPORT hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void *data) {
    const hipError_t error = hipStreamSynchronize(stream);
    if (error == hipSuccess) function(data);
    return error;
}

// Modules and launches.
API(hipModuleLoad, (hipModule_t * module, const char *file), W(module), W(file))
API(hipModuleLoadData, (hipModule_t * module, const void *image), W(module), W(image))
API(hipModuleUnload, (hipModule_t module), W(module))
API(hipModuleGetFunction, (hipFunction_t * function, hipModule_t module, const char *name), W(function), W(module), W(name))
API(hipModuleGetGlobal, (hipDeviceptr_t * pointer, size_t *bytes, hipModule_t module, const char *name), W(pointer),
    W(bytes), W(module), W(name))
#define LAUNCH(name, parameters, ...)                                                                                  \
    extern "C" EXPORT hipError_t name parameters { return noted(portable_hip_call("launch", {__VA_ARGS__})); }
LAUNCH(hipModuleLaunchKernel,
       (hipFunction_t function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
        unsigned shared, hipStream_t stream, void **arguments, void **extra),
       W(function), gx, gy, gz, bx, by, bz, W(shared), W(stream), W(arguments), W(extra), 0)
LAUNCH(hipLaunchKernel,
       (const void *function, dim3 grid, dim3 block, void **arguments, size_t shared, hipStream_t stream), W(function),
       grid.x, grid.y, grid.z, block.x, block.y, block.z, W(shared), W(stream), W(arguments), 0, 0)
LAUNCH(hipLaunchCooperativeKernel,
       (const void *function, dim3 grid, dim3 block, void **arguments, unsigned shared, hipStream_t stream), W(function),
       grid.x, grid.y, grid.z, block.x, block.y, block.z, W(shared), W(stream), W(arguments), 0, 1)
API(hipFuncSetAttribute, (const void *function, hipFuncAttribute attribute, int value), W(function), W(attribute), W(value))
NOTHING(hipFuncSetCacheConfig, (const void *, hipFuncCache_t))
API(hipOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, const void *function, int threads, size_t shared),
    W(blocks), W(function), W(threads), W(shared))
SAME(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor,
     (int *blocks, hipFunction_t function, int threads, size_t shared),
     hipOccupancyMaxActiveBlocksPerMultiprocessor(blocks, (const void *)function, threads, shared))
API(hipOccupancyMaxPotentialBlockSize, (int *grid, int *block, const void *function, size_t shared, int limit), W(grid),
    W(block), W(function), W(shared), W(limit))
extern "C" EXPORT hipError_t hipFuncGetAttributes(hipFuncAttributes *to, const void *function) {
    uint64_t figures[4];
    memset(to, 0, sizeof *to);
    const int error = portable_hip_call("attributes", {W(figures), W(function)});
    if (error != hipSuccess) return noted(error);
    to->numRegs = (int)figures[0];
    to->sharedSizeBytes = figures[1];
    to->localSizeBytes = figures[2];
    to->maxThreadsPerBlock = (int)figures[3];
    to->maxDynamicSharedSizeBytes = 65536 - (int)to->sharedSizeBytes;
    return hipSuccess;
}

// What <<<>>> and the program's start and end are made of.
static thread_local struct {
    dim3 grid, block;
    size_t shared;
    hipStream_t stream;
} configuration;

extern "C" EXPORT hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared, hipStream_t stream) {
    configuration = {grid, block, shared, stream};
    return hipSuccess;
}
extern "C" EXPORT hipError_t __hipPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, hipStream_t *stream) {
    *grid = configuration.grid, *block = configuration.block;
    *shared = configuration.shared, *stream = configuration.stream;
    return hipSuccess;
}
extern "C" EXPORT void **__hipRegisterFatBinary(const void *wrapper) {
    struct Wrapper {
        uint32_t magic, version;
        const void *binary, *unused;
    };
    uint64_t module = 0;
    portable_hip_call("register_binary", {W(&module), W(((const Wrapper *)wrapper)->binary)});
    return (void **)module;
}
extern "C" EXPORT void __hipUnregisterFatBinary(void **) {}
extern "C" EXPORT void __hipRegisterFunction(void **module, const void *stub, char *, const char *name, unsigned, void *,
                                             void *, void *, void *, int *) {
    portable_hip_call("register_function", {W(module), W(stub), W(name)});
}
extern "C" EXPORT void __hipRegisterVar(void **module, void *shadow, char *, const char *name, int, size_t bytes, int, int) {
    portable_hip_call("register_variable", {W(module), W(shadow), W(name), W(bytes)});
}
