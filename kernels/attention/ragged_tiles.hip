// Which tile is of which of several packed sequences, for kernels that take one tile a block.
//
// Tokens lie one sequence after the other; sequence z has those from offsets[z - 1] to offsets[z] (its place in the
// tables is one more than in the offsets). Sequence 0 is what lies before the first offset, the last one what lies
// behind the last; they have no others. An offset counts as at least those before it and at most `total`.
//
// `bounds`: four numbers of a sequence: where its tokens begin and end, and where the others do (keys where tokens are
// queries, and the reverse). `table`: the sequence of each tile, or -1. A sequence's tiles begin at entry
// begin / TILE + z, which leaves room for all of those before it.
//
// Defines: TILE.
#include "_common/hip_lds.h"

constexpr int THREADS = 256;

// Where sequence z begins: the largest of the offsets before it.
DEVICE int begin_of(const int* offsets, int z, int count, int total, int* lds) {
    int most = 0;
    for (int i = thread_x(); i < least(z, count); i += THREADS) {
        most = greatest(most, offsets[i]);
    }
    lds[thread_x()] = most;
    barrier();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (thread_x() < half) {
            lds[thread_x()] = greatest(lds[thread_x()], lds[thread_x() + half]);
        }
        barrier();
    }
    most = lds[0];
    barrier();
    return z > count ? total : least(most, total);
}

KERNEL(THREADS)
void attention_ragged_tiles(const int* offsets, const int* others, int* bounds, int* table, int count, int total,
                            int other_total, int entries) {
    SHARED int lds[THREADS];
    const int z = block_x();
    const int begin = begin_of(offsets, z, count, total, lds), end = begin_of(offsets, z + 1, count, total, lds);
    const int there = begin_of(others, z, count, other_total, lds);
    const int until = begin_of(others, z + 1, count, other_total, lds);
    if (thread_x() == 0) {
        bounds[4 * z] = begin;
        bounds[4 * z + 1] = end;
        bounds[4 * z + 2] = there;
        bounds[4 * z + 3] = z == 0 || z == count ? there : until;
    }
    const int first = begin / TILE + z, used = first + (end - begin + TILE - 1) / TILE;
    const int stop = z == count ? entries : end / TILE + z + 1;
    for (int at = first + thread_x(); at < stop; at += THREADS) {
        table[at] = at < used ? z : -1;
    }
}
