// Philox4x32-10 (Salmon et al., 2011): 128 random bits of a counter and a key.
#pragma once

#include "prelude.h"

struct Random4 {
    uint32_t w[4];
};

DEVICE uint32_t high_product(uint32_t a, uint32_t b) {
    return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32);
}

DEVICE Random4 philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint32_t h0 = high_product(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
        const uint32_t h1 = high_product(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
        c0 = h1 ^ c1 ^ k0;
        c1 = l1;
        c2 = h0 ^ c3 ^ k1;
        c3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}
