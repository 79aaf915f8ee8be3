// LDS and memory in AMD's matrix kernels: a barrier for LDS alone, loads from any address.
//
// Nothing here asks for alignment beyond the element's own: these GPUs load 16 bytes from any address,
// at full speed where the address happens to be a multiple of 16.
#pragma once

#include "prelude.h"

// Waits for this block's LDS traffic alone. A full fence would also wait for global memory, and in
// gfx11's and gfx12's two-CU mode drop the first-level cache.
DEVICE void lds_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}

// BYTES from any element's address.
template <int BYTES, class Element> DEVICE words<BYTES> load_anywhere(const Element* address) {
    words<BYTES> value;
    __builtin_memcpy(&value, address, BYTES);
    return value;
}

// BYTES of elements, of which those from `there` on do not exist: they are zero, and not read.
template <int BYTES, class Element> DEVICE words<BYTES> load_part(const Element* address, int there) {
    constexpr int COUNT = BYTES / sizeof(Element);
    if (there >= COUNT) {
        return load_anywhere<BYTES>(address);
    }
    vec<Element, COUNT> values = {};
    for (int i = 0; i < COUNT; ++i) {
        if (i < there) {
            values.v[i] = address[i];
        }
    }
    return __builtin_bit_cast(words<BYTES>, values);
}
