// Four lanes that hold a row of a matrix instruction's result between them.
#pragma once

#include "prelude.h"

// Word i of the quad's thread t goes to thread i as word t.
DEVICE void transpose_quad(uint32_t* w) {
    const int t = thread_x() % 4;
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {
            const int low = bit == 1 ? pair * 2 : pair, high = low + bit;
            const bool upper = t & bit;
            const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? w[low] : w[high], bit);
            if (upper) w[low] = got;
            else w[high] = got;
        }
    }
}
