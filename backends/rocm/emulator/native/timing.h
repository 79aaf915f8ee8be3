// The structs of timing.c that abi.py mirrors.
#pragma once

#include "flight.h"

// What an instruction does to the pipes.
enum Timed {
    T_FREE,          // takes its wave's issue alone
    T_VECTOR,
    T_MATRIX,
    T_BOTH,          // a vector instruction that waits for the matrix pipe
    T_LDS,
    T_MEMORY,
    T_SCALAR_LOAD,
    T_WAIT,
    T_NOP,
    T_PRIORITY,
    T_DELAY,
    T_BARRIER,
    T_SIGNAL,        // gfx12's split barrier
    T_BARRIER_WAIT,
};

// Why a wave did not issue.
enum Stall {
    STALL_VECTOR, STALL_MATRIX, STALL_LDS_QUEUE, STALL_MEMORY_QUEUE, STALL_MEMORY, STALL_LDS, STALL_SCALAR, STALL_BARRIER,
    STALL_DEPENDENCY, STALLS
};

typedef struct Cost {  // of an instruction
    uint8_t kind, transcendental, stores, pad;
    uint16_t cycles;   // of its pipe: of a SIMD's vector or matrix pipe, or of the compute unit's addresses
    uint16_t issue;    // until its wave's next instruction
} Cost;

typedef struct Stream {  // a recorded workgroup
    const Event *events;
    uint32_t *first;   // of each wave: its first place in `order`
    uint32_t *order;   // indices of events
    uint32_t waves;
} Stream;

typedef struct Timing {
    const Inst *program;
    const Cost *cost;  // by instruction
    Stream *const *groups;  // in the order in which they start
    uint32_t arch, instructions, group_count, resident;
    uint32_t simds, lds_queue, memory_queue, matrix_blocks_vector;
    // The compute unit: cycles, and bytes in a cycle.
    double lds_scale, lds_latency, line_cycles, l1_latency, l2_latency, store_latency, scalar_latency;
    double l2_bytes, store_bytes, in_flight_bytes, barrier, group_start, wave_start, vector_latency, transcendental_latency;
    // What came out.
    double cycles;             // until the last wave ended
    double matrix_cycles, vector_cycles;  // that the pipes were busy, of all SIMDs
    double loaded_bytes;       // asked of L2
    double wave_cycles, issue_cycles, stall[STALLS];  // of all waves
} Timing;
