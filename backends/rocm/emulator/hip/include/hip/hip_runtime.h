// HIP for emulated programs: the host's API and the names that kernels use.
#pragma once

#include <hip/hip_runtime_api.h>
#include <hip/hip_vector_types.h>
#include <hip/portable_device.h>

#if defined(__cplusplus) && defined(__HIP__)
// A kernel that is a template takes its types from the arguments.
template <class... A, class F = void (*)(A...)>
void hipLaunchKernelGGL(F kernel, dim3 grid, dim3 block, unsigned shared, hipStream_t stream, A... arguments) {
    kernel<<<grid, block, shared, stream>>>(arguments...);
}
#define HIP_KERNEL_NAME(...) __VA_ARGS__
#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ type name[];
#define HIP_SYMBOL(symbol) symbol
#endif
