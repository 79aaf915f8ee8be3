// The addresses of buffer (MUBUF) instructions; buffer.c, used by atomics.c.
#pragma once

#include "access.h"

typedef struct BufferAccess {
    mask64 whole;        // lanes with every dword in range
    mask64 part;         // lanes with some
    bool scattered;      // swizzled: dwords do not follow each other; see buffer_dword for each
    bool scratch;        // gfx90a: the private segment; `at` is an offset into the lane's scratch, nothing is out of range
    uint64_t at[LANES];  // address of the first byte
    uint64_t offset[LANES], index[LANES];
    // Of the descriptor and the instruction:
    uint64_t start, limit, stride, num_records;
    uint32_t element, index_stride;
    int rule;
    bool payload;        // the range check counts the size of the dword, byte or half
} BufferAccess;

// `bytes` per lane; the check is dword by dword beyond 4 bytes, or as one piece with `together` (atomics).
int buffer_access(Wave *w, const Inst *in, mask64 m, int bytes, bool together, BufferAccess *b);
// Whether dword `n` of lane `i` is in range, and its address.
bool buffer_dword(const BufferAccess *b, int i, int n, int size, uint64_t *at);
