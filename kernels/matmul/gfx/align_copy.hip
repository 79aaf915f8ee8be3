// Copies matrices of 16-bit elements, whose lines start anywhere, to a workspace where they start and end at 16 bytes, for
// mfma.hip's loops of aligned operands. What a line or a matrix has there beyond its own is zero.
//
// -DTHREADS: the block's threads. -DVECTORS: 16-byte vectors of a thread. Blocks: x counts vectors of a matrix, y matrices.
#include "_lib/amdgcn/lds.h"

// Element strides of `from`: `line` between lines, `outer` and `inner` between matrices. `rows` lines of `pitch` vectors
// are written, of which `lines` lines of `length` elements exist.
KERNEL(THREADS)
void matmul_align_copy(const T* from, words<16>* to, int length, int lines, int pitch, int rows, int inner_count,
                       int64_t line, int64_t outer, int64_t inner) {
    const int matrix = block_y();
    from += matrix / inner_count * outer + matrix % inner_count * inner;
    to += static_cast<int64_t>(matrix) * rows * pitch;
    const uint32_t first = static_cast<uint32_t>(block_x()) * (THREADS * VECTORS) + thread_x();
    words<16> held[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const uint32_t at = first + i * THREADS;
        const int row = at / pitch, column = (at - row * pitch) * 8;
        held[i] = load_bounded<16>(from + row * line + column, row < lines ? length - column : 0);
    }
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const uint32_t at = first + i * THREADS;
        if (at < static_cast<uint32_t>(rows) * pitch) store_words<16>(to + at, held[i]);
    }
}
