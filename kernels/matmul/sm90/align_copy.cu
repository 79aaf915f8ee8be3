// Copies matrices of 16-bit elements whose rows start anywhere into workspaces with 16-byte aligned rows, for wgmma.cu:
// TMA needs that alignment. One launch copies one or two operands.
//
// A row here is contiguous: a row or a column of the matrix. A thread makes VECTORS vectors of 8 elements: it reads the
// two aligned 16-byte words that hold one and shifts them together. Words that reach outside the operand's memory are
// read element by element. The padding of a row is not written: nothing reads it.
//
// Defines: THREADS, VECTORS.
#include "prelude.h"

#include "_lib/ptx/pdl.h"

struct Operand {
    const uint16_t* from;
    uint4* to;
    int64_t line, inner, outer, span;  // strides of `from`, and its elements from first to last
    int length, lines, pitch;          // elements of a row, rows of a matrix, 16-byte words of an aligned row
    int inner_count;
    int64_t vectors;  // of the whole operand
};

// The two aligned 16-byte words that hold the eight elements from an address that is any multiple of 2, and how
// far into the first of them they start.
struct Words {
    uint4 low, high;
    uint32_t offset;

    DEVICE void read(const uint16_t* at) {
        const uint64_t address = reinterpret_cast<uint64_t>(at);
        const uint4* words = reinterpret_cast<const uint4*>(address & ~15ull);
        low = words[0];
        high = words[1];
        offset = address & 15;
    }
    DEVICE uint4 shifted() const {
        const bool two = offset & 8, one = offset & 4;
        const uint32_t bits = (offset & 2) * 8;
        // First a shift by two words, then by one, then by half a word.
        const uint32_t a0 = two ? low.z : low.x, a1 = two ? low.w : low.y, a2 = two ? high.x : low.z,
                       a3 = two ? high.y : low.w, a4 = two ? high.z : high.x, a5 = two ? high.w : high.y;
        const uint32_t b0 = one ? a1 : a0, b1 = one ? a2 : a1, b2 = one ? a3 : a2, b3 = one ? a4 : a3,
                       b4 = one ? a5 : a4;
        return make_uint4(__funnelshift_r(b0, b1, bits), __funnelshift_r(b1, b2, bits),
                          __funnelshift_r(b2, b3, bits), __funnelshift_r(b3, b4, bits));
    }
};

DEVICE uint4 read_single(const uint16_t* at, int count) {
    uint32_t w[4] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        if (i < count) w[i / 2] |= static_cast<uint32_t>(at[i]) << (i % 2 * 16);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

DEVICE void align_copy(const Operand& o, uint32_t block) {
    const uint32_t per_line = (static_cast<uint32_t>(o.length) + 7) / 8;
    const int64_t first = static_cast<int64_t>(block) * (THREADS * VECTORS);
    const uint32_t first_line = static_cast<uint32_t>(first / per_line);  // the same for the whole block
    const uint32_t start = static_cast<uint32_t>(first - static_cast<int64_t>(first_line) * per_line);
    const bool one_matrix = o.vectors == static_cast<int64_t>(per_line) * o.lines;
    Words words[VECTORS];
    int64_t from[VECTORS], to[VECTORS];
    bool whole[VECTORS];  // both words are inside the operand
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const uint32_t beyond = start + i * THREADS + thread_x();
        const uint32_t down = beyond / per_line, col = beyond - down * per_line;
        const uint32_t line = first_line + down;
        int64_t at = static_cast<int64_t>(col) * 8;
        if (one_matrix) {
            at += line * o.line;
        } else {
            const uint32_t matrix = line / o.lines;
            const uint32_t outer = matrix / o.inner_count;
            at += outer * o.outer + (matrix - outer * o.inner_count) * o.inner + (line - matrix * o.lines) * o.line;
        }
        from[i] = at;
        to[i] = first + i * THREADS + thread_x() < o.vectors ? static_cast<int64_t>(line) * o.pitch + col : -1;
        whole[i] = to[i] >= 0 && at >= 8 && at + 16 <= o.span;
        if (whole[i]) words[i].read(o.from + at);
    }
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (whole[i]) {
            o.to[to[i]] = words[i].shifted();
        } else if (to[i] >= 0) {
            const int64_t col = to[i] % o.pitch;
            o.to[to[i]] = read_single(o.from + from[i], min(o.length - static_cast<int>(col * 8), 8));
        }
    }
}

extern "C" __global__ __launch_bounds__(THREADS) void matmul_align_copy(
    const uint16_t* from0, uint4* to0, int64_t line0, int64_t inner0, int64_t outer0, int64_t span0,
    int64_t vectors0, int length0, int lines0, int pitch0, int inner_count0, int blocks0, const uint16_t* from1,
    uint4* to1, int64_t line1, int64_t inner1, int64_t outer1, int64_t span1, int64_t vectors1, int length1,
    int lines1, int pitch1, int inner_count1, int blocks1) {
    launch_dependents();
    grid_dependency_wait();
    const uint32_t block = blockIdx.x;
    const uint32_t of_first = static_cast<uint32_t>(blocks0);
    if (block < of_first) {
        align_copy({from0, to0, line0, inner0, outer0, span0, length0, lines0, pitch0, inner_count0, vectors0}, block);
    } else {
        align_copy({from1, to1, line1, inner1, outer1, span1, length1, lines1, pitch1, inner_count1, vectors1},
             block - of_first);
    }
}
