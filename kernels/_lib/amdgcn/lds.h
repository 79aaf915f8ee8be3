// LDS and memory in AMD's matrix kernels: a barrier for LDS alone, unaligned loads.
//
// Loads need no alignment beyond the element's own: these GPUs load 16 bytes from any address, at full speed where it
// is a multiple of 16.
#pragma once

#include "prelude.h"

// Waits for this block's LDS traffic alone. A full fence would also wait for global memory, and in
// gfx11's and gfx12's two-CU mode drop the first-level cache.
DEVICE void lds_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}

// BYTES from the address of any element.
template <int BYTES, class Element> DEVICE words<BYTES> load_unaligned(const Element* address) {
    words<BYTES> value;
    __builtin_memcpy(&value, address, BYTES);
    return value;
}

// BYTES of elements, of which the first `valid` exist; the others are zero and not read.
template <int BYTES, class Element> DEVICE words<BYTES> load_bounded(const Element* address, int valid) {
    constexpr int COUNT = BYTES / sizeof(Element);
    if (valid >= COUNT) {
        return load_unaligned<BYTES>(address);
    }
    vec<Element, COUNT> values = {};
    for (int i = 0; i < COUNT; ++i) {
        if (i < valid) {
            values.v[i] = address[i];
        }
    }
    return __builtin_bit_cast(words<BYTES>, values);
}
