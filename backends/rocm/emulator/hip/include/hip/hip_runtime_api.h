// The host's half of HIP that emulated programs may call, after AMD's HIP API reference. A function that is
// not here is not emulated: the compiler says that its name is unknown.
#pragma once

#include <hip/hip_version.h>
#include <stddef.h>
#include <stdint.h>

#ifndef __HIP_PLATFORM_AMD__
#define __HIP_PLATFORM_AMD__ 1
#endif

// X(name, value, what it means)
#define PORTABLE_HIP_ERRORS(X)                                                                                          \
    X(hipSuccess, 0, "no error")                                                                                        \
    X(hipErrorInvalidValue, 1, "invalid argument")                                                                      \
    X(hipErrorOutOfMemory, 2, "out of memory")                                                                          \
    X(hipErrorNotInitialized, 3, "initialization error")                                                                \
    X(hipErrorDeinitialized, 4, "driver shutting down")                                                                 \
    X(hipErrorInvalidConfiguration, 9, "invalid configuration argument")                                                \
    X(hipErrorInvalidPitchValue, 12, "invalid pitch argument")                                                          \
    X(hipErrorInvalidSymbol, 13, "invalid device symbol")                                                               \
    X(hipErrorInvalidDevicePointer, 17, "invalid device pointer")                                                       \
    X(hipErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                                          \
    X(hipErrorInvalidDeviceFunction, 98, "invalid device function")                                                     \
    X(hipErrorNoDevice, 100, "no ROCm-capable device is detected")                                                      \
    X(hipErrorInvalidDevice, 101, "invalid device ordinal")                                                             \
    X(hipErrorInvalidImage, 200, "device kernel image is invalid")                                                      \
    X(hipErrorInvalidContext, 201, "invalid device context")                                                            \
    X(hipErrorNoBinaryForGpu, 209, "no kernel image is available for execution on the device")                          \
    X(hipErrorInvalidSource, 300, "device kernel image is invalid")                                                     \
    X(hipErrorFileNotFound, 301, "file not found")                                                                      \
    X(hipErrorInvalidHandle, 400, "invalid resource handle")                                                            \
    X(hipErrorNotFound, 500, "named symbol not found")                                                                  \
    X(hipErrorNotReady, 600, "device not ready")                                                                        \
    X(hipErrorIllegalAddress, 700, "an illegal memory access was encountered")                                          \
    X(hipErrorLaunchOutOfResources, 701, "out of resources")                                                            \
    X(hipErrorPeerAccessAlreadyEnabled, 704, "peer access is already enabled")                                          \
    X(hipErrorPeerAccessNotEnabled, 705, "peer access has not been enabled")                                            \
    X(hipErrorAssert, 710, "device-side assert triggered")                                                              \
    X(hipErrorHostMemoryAlreadyRegistered, 712, "part or all of the requested memory range is already mapped")          \
    X(hipErrorHostMemoryNotRegistered, 713, "pointer does not correspond to a registered memory region")                \
    X(hipErrorLaunchFailure, 719, "unspecified launch failure")                                                         \
    X(hipErrorCooperativeLaunchTooLarge, 720, "too many blocks in cooperative launch")                                  \
    X(hipErrorNotSupported, 801, "operation not supported")                                                             \
    X(hipErrorUnknown, 999, "unknown error")

typedef enum hipError_t {
#define X(name, value, text) name = value,
    PORTABLE_HIP_ERRORS(X)
#undef X
        hipErrorMemoryAllocation = hipErrorOutOfMemory,
    hipErrorInitializationError = hipErrorNotInitialized,
    hipErrorInvalidResourceHandle = hipErrorInvalidHandle
} hipError_t;

#if defined(__cplusplus)
#define PORTABLE_HIP_DEFAULT(value) = value
struct dim3 {
    uint32_t x, y, z;
    constexpr dim3(uint32_t x_ = 1, uint32_t y_ = 1, uint32_t z_ = 1) : x(x_), y(y_), z(z_) {}
};
#else
#define PORTABLE_HIP_DEFAULT(value)
typedef struct dim3 { uint32_t x, y, z; } dim3;
#endif

typedef struct ihipStream_t *hipStream_t;
typedef struct ihipEvent_t *hipEvent_t;
typedef struct ihipModule_t *hipModule_t;
typedef struct ihipModuleSymbol_t *hipFunction_t;
typedef struct ihipCtx_t *hipCtx_t;
typedef int hipDevice_t;
typedef void *hipDeviceptr_t;
typedef void (*hipStreamCallback_t)(hipStream_t stream, hipError_t status, void *data);
typedef void (*hipHostFn_t)(void *data);

typedef enum hipMemcpyKind {
    hipMemcpyHostToHost = 0,
    hipMemcpyHostToDevice = 1,
    hipMemcpyDeviceToHost = 2,
    hipMemcpyDeviceToDevice = 3,
    hipMemcpyDefault = 4
} hipMemcpyKind;

typedef enum hipMemoryType {
    hipMemoryTypeUnregistered = 0,
    hipMemoryTypeHost = 1,
    hipMemoryTypeDevice = 2,
    hipMemoryTypeManaged = 3
} hipMemoryType;

typedef struct hipPointerAttribute_t {
    hipMemoryType type;
    int device;
    void *devicePointer;
    void *hostPointer;
    int isManaged;
    unsigned allocationFlags;
} hipPointerAttribute_t;

typedef struct hipUUID { char bytes[16]; } hipUUID;

typedef struct hipFuncAttributes {
    int binaryVersion, cacheModeCA;
    size_t constSizeBytes, localSizeBytes;
    int maxDynamicSharedSizeBytes, maxThreadsPerBlock, numRegs, preferredShmemCarveout, ptxVersion;
    size_t sharedSizeBytes;
} hipFuncAttributes;

typedef struct hipDeviceArch_t {
    unsigned hasGlobalInt32Atomics : 1, hasGlobalFloatAtomicExch : 1, hasSharedInt32Atomics : 1;
    unsigned hasSharedFloatAtomicExch : 1, hasFloatAtomicAdd : 1, hasGlobalInt64Atomics : 1;
    unsigned hasSharedInt64Atomics : 1, hasDoubles : 1, hasWarpVote : 1, hasWarpBallot : 1, hasWarpShuffle : 1;
    unsigned hasFunnelShift : 1, hasThreadFenceSystem : 1, hasSyncThreadsExt : 1, hasSurfaceFuncs : 1;
    unsigned has3dGrid : 1, hasDynamicParallelism : 1;
} hipDeviceArch_t;

// What an emulated GPU has no figure for, clock rates above all, is 0.
typedef struct hipDeviceProp_t {
    char name[256];
    hipUUID uuid;
    size_t totalGlobalMem, sharedMemPerBlock;
    int regsPerBlock, warpSize;
    size_t memPitch;
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
    int clockRate;
    size_t totalConstMem;
    int major, minor;
    size_t textureAlignment;
    int multiProcessorCount, kernelExecTimeoutEnabled, integrated, canMapHostMemory, computeMode;
    int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver, asyncEngineCount;
    int unifiedAddressing, memoryClockRate, memoryBusWidth, l2CacheSize, maxThreadsPerMultiProcessor;
    size_t sharedMemPerMultiprocessor;
    int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID;
    int pageableMemoryAccess, concurrentManagedAccess, cooperativeLaunch, cooperativeMultiDeviceLaunch;
    int maxBlocksPerMultiProcessor, clockInstructionRate;
    hipDeviceArch_t arch;
    char gcnArchName[256];
    int isLargeBar, asicRevision;
} hipDeviceProp_t;

typedef enum hipDeviceAttribute_t {
    hipDeviceAttributeEccEnabled,
    hipDeviceAttributeCanMapHostMemory,
    hipDeviceAttributeClockRate,
    hipDeviceAttributeComputeMode,
    hipDeviceAttributeConcurrentKernels,
    hipDeviceAttributeConcurrentManagedAccess,
    hipDeviceAttributeCooperativeLaunch,
    hipDeviceAttributeCooperativeMultiDeviceLaunch,
    hipDeviceAttributeImageSupport,
    hipDeviceAttributeIntegrated,
    hipDeviceAttributeL2CacheSize,
    hipDeviceAttributeManagedMemory,
    hipDeviceAttributeMaxBlockDimX,
    hipDeviceAttributeMaxBlockDimY,
    hipDeviceAttributeMaxBlockDimZ,
    hipDeviceAttributeMaxGridDimX,
    hipDeviceAttributeMaxGridDimY,
    hipDeviceAttributeMaxGridDimZ,
    hipDeviceAttributeMaxRegistersPerBlock,
    hipDeviceAttributeMaxSharedMemoryPerBlock,
    hipDeviceAttributeMaxThreadsPerBlock,
    hipDeviceAttributeMaxThreadsPerMultiProcessor,
    hipDeviceAttributeMemoryBusWidth,
    hipDeviceAttributeMemoryClockRate,
    hipDeviceAttributeComputeCapabilityMajor,
    hipDeviceAttributeComputeCapabilityMinor,
    hipDeviceAttributeMultiprocessorCount,
    hipDeviceAttributeTotalConstantMemory,
    hipDeviceAttributeTotalGlobalMem,
    hipDeviceAttributeUnifiedAddressing,
    hipDeviceAttributeWarpSize
} hipDeviceAttribute_t;

typedef enum hipFuncAttribute {
    hipFuncAttributeMaxDynamicSharedMemorySize = 8,
    hipFuncAttributePreferredSharedMemoryCarveout = 9
} hipFuncAttribute;
typedef enum hipFuncCache_t {
    hipFuncCachePreferNone,
    hipFuncCachePreferShared,
    hipFuncCachePreferL1,
    hipFuncCachePreferEqual
} hipFuncCache_t;

#define hipComputeModeDefault 0
#define hipComputeModeProhibited 2
#define hipStreamDefault 0
#define hipStreamNonBlocking 1
#define hipEventDefault 0
#define hipEventBlockingSync 1
#define hipEventDisableTiming 2
#define hipEventInterprocess 4
#define hipHostMallocDefault 0
#define hipHostMallocPortable 1
#define hipHostMallocMapped 2
#define hipHostMallocWriteCombined 4
#define hipHostRegisterDefault 0
#define hipHostRegisterPortable 1
#define hipHostRegisterMapped 2
#define hipMemAttachGlobal 1
#define hipMemAttachHost 2
#define hipDeviceScheduleAuto 0
#define hipDeviceScheduleSpin 1
#define hipDeviceScheduleYield 2
#define hipDeviceScheduleBlockingSync 4
#define hipDeviceMapHost 8

#define HIP_LAUNCH_PARAM_BUFFER_POINTER ((void *)0x01)
#define HIP_LAUNCH_PARAM_BUFFER_SIZE ((void *)0x02)
#define HIP_LAUNCH_PARAM_END ((void *)0x03)

#if defined(__cplusplus)
extern "C" {
#endif

// Device and errors.
hipError_t hipInit(unsigned flags);
hipError_t hipDriverGetVersion(int *version);
hipError_t hipRuntimeGetVersion(int *version);
hipError_t hipGetDeviceCount(int *count);
hipError_t hipGetDevice(int *device);
hipError_t hipSetDevice(int device);
hipError_t hipDeviceGet(hipDevice_t *device, int ordinal);
hipError_t hipDeviceGetName(char *name, int size, hipDevice_t device);
hipError_t hipDeviceGetAttribute(int *value, hipDeviceAttribute_t attribute, int device);
hipError_t hipDeviceTotalMem(size_t *bytes, hipDevice_t device);
hipError_t hipDeviceCanAccessPeer(int *can, int device, int peer);
hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags);
hipError_t hipDeviceDisablePeerAccess(int peer);
hipError_t hipDeviceSynchronize(void);
hipError_t hipDeviceReset(void);
hipError_t hipSetDeviceFlags(unsigned flags);
hipError_t hipDeviceSetCacheConfig(hipFuncCache_t config);
hipError_t hipGetDeviceProperties(hipDeviceProp_t *properties, int device);
hipError_t hipGetLastError(void);
hipError_t hipPeekAtLastError(void);
const char *hipGetErrorName(hipError_t error);
const char *hipGetErrorString(hipError_t error);

// Memory.
hipError_t hipMalloc(void **pointer, size_t bytes);
hipError_t hipMallocAsync(void **pointer, size_t bytes, hipStream_t stream);
hipError_t hipMallocManaged(void **pointer, size_t bytes, unsigned flags PORTABLE_HIP_DEFAULT(hipMemAttachGlobal));
hipError_t hipMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height);
hipError_t hipHostMalloc(void **pointer, size_t bytes, unsigned flags PORTABLE_HIP_DEFAULT(0));
hipError_t hipFree(void *pointer);
hipError_t hipFreeAsync(void *pointer, hipStream_t stream);
hipError_t hipHostFree(void *pointer);
hipError_t hipHostRegister(void *pointer, size_t bytes, unsigned flags);
hipError_t hipHostUnregister(void *pointer);
hipError_t hipHostGetDevicePointer(void **device, void *host, unsigned flags);
hipError_t hipPointerGetAttributes(hipPointerAttribute_t *attributes, const void *pointer);
hipError_t hipMemGetInfo(size_t *free, size_t *total);
hipError_t hipMemcpy(void *to, const void *from, size_t bytes, hipMemcpyKind kind);
hipError_t hipMemcpyAsync(void *to, const void *from, size_t bytes, hipMemcpyKind kind,
                          hipStream_t stream PORTABLE_HIP_DEFAULT(0));
hipError_t hipMemcpyWithStream(void *to, const void *from, size_t bytes, hipMemcpyKind kind, hipStream_t stream);
hipError_t hipMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes);
hipError_t hipMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                       hipMemcpyKind kind);
hipError_t hipMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                            size_t height, hipMemcpyKind kind, hipStream_t stream PORTABLE_HIP_DEFAULT(0));
hipError_t hipMemcpyHtoD(hipDeviceptr_t to, void *from, size_t bytes);
hipError_t hipMemcpyDtoH(void *to, hipDeviceptr_t from, size_t bytes);
hipError_t hipMemcpyDtoD(hipDeviceptr_t to, hipDeviceptr_t from, size_t bytes);
hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t to, void *from, size_t bytes, hipStream_t stream);
hipError_t hipMemcpyDtoHAsync(void *to, hipDeviceptr_t from, size_t bytes, hipStream_t stream);
hipError_t hipMemset(void *to, int value, size_t bytes);
hipError_t hipMemsetAsync(void *to, int value, size_t bytes, hipStream_t stream PORTABLE_HIP_DEFAULT(0));
hipError_t hipMemsetD8(hipDeviceptr_t to, unsigned char value, size_t count);
hipError_t hipMemsetD16(hipDeviceptr_t to, unsigned short value, size_t count);
hipError_t hipMemsetD32(hipDeviceptr_t to, int value, size_t count);
hipError_t hipMemcpyToSymbol(const void *symbol, const void *from, size_t bytes, size_t offset PORTABLE_HIP_DEFAULT(0),
                             hipMemcpyKind kind PORTABLE_HIP_DEFAULT(hipMemcpyHostToDevice));
hipError_t hipMemcpyFromSymbol(void *to, const void *symbol, size_t bytes, size_t offset PORTABLE_HIP_DEFAULT(0),
                               hipMemcpyKind kind PORTABLE_HIP_DEFAULT(hipMemcpyDeviceToHost));
hipError_t hipMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset,
                                  hipMemcpyKind kind, hipStream_t stream PORTABLE_HIP_DEFAULT(0));
hipError_t hipMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset, hipMemcpyKind kind,
                                    hipStream_t stream PORTABLE_HIP_DEFAULT(0));
hipError_t hipGetSymbolAddress(void **pointer, const void *symbol);
hipError_t hipGetSymbolSize(size_t *bytes, const void *symbol);

// Streams and events. What is given to a stream has happened when the call returns.
hipError_t hipStreamCreate(hipStream_t *stream);
hipError_t hipStreamCreateWithFlags(hipStream_t *stream, unsigned flags);
hipError_t hipStreamCreateWithPriority(hipStream_t *stream, unsigned flags, int priority);
hipError_t hipDeviceGetStreamPriorityRange(int *least, int *greatest);
hipError_t hipStreamDestroy(hipStream_t stream);
hipError_t hipStreamSynchronize(hipStream_t stream);
hipError_t hipStreamQuery(hipStream_t stream);
hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned flags PORTABLE_HIP_DEFAULT(0));
hipError_t hipStreamAddCallback(hipStream_t stream, hipStreamCallback_t callback, void *data, unsigned flags);
hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void *data);
hipError_t hipEventCreate(hipEvent_t *event);
hipError_t hipEventCreateWithFlags(hipEvent_t *event, unsigned flags);
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream PORTABLE_HIP_DEFAULT(0));
hipError_t hipEventSynchronize(hipEvent_t event);
hipError_t hipEventQuery(hipEvent_t event);
hipError_t hipEventDestroy(hipEvent_t event);
// NaN: an emulated GPU has no timings.
hipError_t hipEventElapsedTime(float *milliseconds, hipEvent_t start, hipEvent_t stop);

// Modules and launches.
hipError_t hipModuleLoad(hipModule_t *module, const char *file);
hipError_t hipModuleLoadData(hipModule_t *module, const void *image);
hipError_t hipModuleUnload(hipModule_t module);
hipError_t hipModuleGetFunction(hipFunction_t *function, hipModule_t module, const char *name);
hipError_t hipModuleGetGlobal(hipDeviceptr_t *pointer, size_t *bytes, hipModule_t module, const char *name);
hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                 hipStream_t stream, void **arguments, void **extra);
hipError_t hipLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                           hipStream_t stream);
hipError_t hipLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, unsigned shared,
                                      hipStream_t stream);
hipError_t hipFuncGetAttributes(hipFuncAttributes *attributes, const void *function);
hipError_t hipFuncSetAttribute(const void *function, hipFuncAttribute attribute, int value);
hipError_t hipFuncSetCacheConfig(const void *function, hipFuncCache_t config);
hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared);
hipError_t hipOccupancyMaxPotentialBlockSize(int *grid, int *block, const void *function, size_t shared, int limit);
hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, hipFunction_t function, int threads,
                                                              size_t shared);

// What clang makes of <<<>>> and of a program's kernels and variables.
hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t shared PORTABLE_HIP_DEFAULT(0),
                                      hipStream_t stream PORTABLE_HIP_DEFAULT(0));
hipError_t __hipPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, hipStream_t *stream);
void **__hipRegisterFatBinary(const void *wrapper);
void __hipUnregisterFatBinary(void **module);
void __hipRegisterFunction(void **module, const void *stub, char *device_name, const char *name, unsigned limit,
                           void *, void *, void *, void *, int *);
void __hipRegisterVar(void **module, void *shadow, char *host_name, const char *name, int external, size_t bytes,
                      int constant, int global);

#if defined(__cplusplus)
}

template <class T> hipError_t hipMalloc(T **pointer, size_t bytes) { return hipMalloc((void **)pointer, bytes); }
template <class T> hipError_t hipMallocAsync(T **pointer, size_t bytes, hipStream_t stream) {
    return hipMallocAsync((void **)pointer, bytes, stream);
}
template <class T> hipError_t hipMallocManaged(T **pointer, size_t bytes, unsigned flags = hipMemAttachGlobal) {
    return hipMallocManaged((void **)pointer, bytes, flags);
}
template <class T> hipError_t hipMallocPitch(T **pointer, size_t *pitch, size_t width, size_t height) {
    return hipMallocPitch((void **)pointer, pitch, width, height);
}
template <class T> hipError_t hipHostMalloc(T **pointer, size_t bytes, unsigned flags = 0) {
    return hipHostMalloc((void **)pointer, bytes, flags);
}
template <class T> hipError_t hipHostGetDevicePointer(T **device, void *host, unsigned flags) {
    return hipHostGetDevicePointer((void **)device, host, flags);
}
template <class T>
hipError_t hipMemcpyToSymbol(const T &symbol, const void *from, size_t bytes, size_t offset = 0,
                             hipMemcpyKind kind = hipMemcpyHostToDevice) {
    return hipMemcpyToSymbol((const void *)&symbol, from, bytes, offset, kind);
}
template <class T>
hipError_t hipMemcpyFromSymbol(void *to, const T &symbol, size_t bytes, size_t offset = 0,
                               hipMemcpyKind kind = hipMemcpyDeviceToHost) {
    return hipMemcpyFromSymbol(to, (const void *)&symbol, bytes, offset, kind);
}
template <class T> hipError_t hipGetSymbolAddress(void **pointer, const T &symbol) {
    return hipGetSymbolAddress(pointer, (const void *)&symbol);
}
template <class T> hipError_t hipGetSymbolSize(size_t *bytes, const T &symbol) {
    return hipGetSymbolSize(bytes, (const void *)&symbol);
}
template <class F>
hipError_t hipLaunchKernel(F *function, dim3 grid, dim3 block, void **arguments, size_t shared, hipStream_t stream) {
    return hipLaunchKernel((const void *)function, grid, block, arguments, shared, stream);
}
template <class F>
hipError_t hipLaunchCooperativeKernel(F *function, dim3 grid, dim3 block, void **arguments, unsigned shared,
                                      hipStream_t stream) {
    return hipLaunchCooperativeKernel((const void *)function, grid, block, arguments, shared, stream);
}
template <class F> hipError_t hipFuncGetAttributes(hipFuncAttributes *attributes, F *function) {
    return hipFuncGetAttributes(attributes, (const void *)function);
}
template <class F> hipError_t hipFuncSetAttribute(F *function, hipFuncAttribute attribute, int value) {
    return hipFuncSetAttribute((const void *)function, attribute, value);
}
template <class F>
hipError_t hipOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, F *function, int threads, size_t shared) {
    return hipOccupancyMaxActiveBlocksPerMultiprocessor(blocks, (const void *)function, threads, shared);
}
template <class F>
hipError_t hipOccupancyMaxPotentialBlockSize(int *grid, int *block, F *function, size_t shared = 0, int limit = 0) {
    return hipOccupancyMaxPotentialBlockSize(grid, block, (const void *)function, shared, limit);
}
#endif
