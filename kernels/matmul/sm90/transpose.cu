// Transposes float32 matrices whose rows are 16-byte aligned into workspaces, for simt_tma.cu.
//
// A block transposes SIDE rows of SIDE elements through shared memory: 16-byte reads along a row, 16-byte writes across
// rows. Rows of `to` are `pitch` apart, a multiple of 4; their padding may be written.
//
// Uses only what every vendor's prelude.h has, so that the emulated GPU can run it.
#include "prelude.h"

#include "_lib/ptx/pdl.h"

constexpr int SIDE = 64, THREADS = 256;
constexpr int QUADS = SIDE / 4;  // of a line
constexpr int STEP = THREADS / QUADS;

using Quad = vec<float, 4>;

KERNEL(THREADS) void matmul_transpose(const float* from, float* to, int64_t line, int64_t inner, int64_t outer,
                                 int64_t pitch, int lines, int length, int inner_count) {
    SHARED float tile[SIDE][SIDE + 1];
    launch_dependents();
    grid_dependency_wait();
    const uint32_t across = (static_cast<uint32_t>(length) + SIDE - 1) / SIDE;
    const uint32_t down = (static_cast<uint32_t>(lines) + SIDE - 1) / SIDE;
    const uint32_t block = block_x(), matrix = block / (across * down), within = block - matrix * (across * down);
    const int first_line = within / across * SIDE, first = within % across * SIDE;
    const uint32_t batch = matrix / inner_count;
    from += batch * outer + (matrix - batch * inner_count) * inner;
    to += static_cast<int64_t>(matrix) * length * pitch;
    const int quad = thread_x() % QUADS * 4, start = thread_x() / QUADS;

    Quad held[SIDE / STEP];
#pragma unroll
    for (int i = 0; i < SIDE / STEP; ++i) {
        const int at = first_line + start + i * STEP, left = at < lines ? length - first - quad : 0;
        const float* x = from + at * line + first + quad;
        held[i] = {};
        if (left >= 4) {
            held[i] = *reinterpret_cast<const Quad*>(x);
        } else {
#pragma unroll
            for (int j = 0; j < 3; ++j)
                if (left > j) held[i].v[j] = x[j];
        }
    }
#pragma unroll
    for (int i = 0; i < SIDE / STEP; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) tile[start + i * STEP][quad + j] = held[i].v[j];
    barrier();
#pragma unroll
    for (int i = 0; i < SIDE / STEP; ++i) {
        const int column = start + i * STEP;
        if (first + column < length && first_line + quad < pitch)
            *reinterpret_cast<Quad*>(to + (first + column) * pitch + first_line + quad) = {
                tile[quad][column], tile[quad + 1][column], tile[quad + 2][column], tile[quad + 3][column]};
    }
}
