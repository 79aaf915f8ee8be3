// Registers: their reallocation among warpgroups (setmaxnreg, sm_90a), and what holds a value in one.
#pragma once

#include "prelude.h"

// Gives up registers, down to COUNT per thread. All warps of a warpgroup.
template <int COUNT> DEVICE void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
// Takes registers that others gave up, up to COUNT per thread; waits for them.
template <int COUNT> DEVICE void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Keeps the operands and accumulators of an asynchronous product (wgmma) in their registers: the compiler reads or
// writes none of them before this point.
template <int COUNT> DEVICE void keep_in_registers(float* values) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int COUNT> DEVICE void keep_in_registers(uint32_t* values) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

// Registers of a new product's own: undefined ones could be another's under way.
template <int COUNT> DEVICE void undefined(float* values) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "=f"(values[i]));
}

// Zeros at this point, not where the compiler finds room, which may be between products.
template <int COUNT> DEVICE void clear(float* values) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(values[i])::"memory");
}
