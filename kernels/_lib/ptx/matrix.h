// Warp-wide loads and stores of four 8 x 8 matrices of 16-bit elements in shared memory: ldmatrix (sm_75), stmatrix
// (sm_90). Lane l gives the address of row l % 8 of matrix l / 8; word i of lane l is row l / 4 of matrix i at columns
// l % 4 * 2 and the next, or, transposed, column l / 4.
#pragma once

#include "prelude.h"

DEVICE void ldmatrix_x4(uint32_t (&w)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(address) : "memory");
}
DEVICE void ldmatrix_x4_trans(uint32_t (&w)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(address) : "memory");
}

// An 8 x 8 matrix as a word of each lane, transposed: movmatrix (sm_75).
DEVICE uint32_t transposed(uint32_t word) {
    uint32_t turned;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(word));
    return turned;
}

DEVICE void stmatrix_x4(uint32_t address, const uint32_t* w) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(w[0]),
                 "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}
DEVICE void stmatrix_x4_trans(uint32_t address, const uint32_t* w) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(w[0]),
                 "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}
