// Which tiles packed sequences have, and in which order they are walked; one block.
//
// Sequence 0 is what lies before the first offset, the last one what lies behind the last. Offsets count as within
// the tokens, and none as below the one before it. Sequences go by how many tokens a tile of theirs meets at most,
// most first, to a power of two, equal ones as they come. `together` equal ones are walked together: the first
// tile of each, the second of each, and so on. Nothing here depends on timing.
//
// Uses only what every vendor's prelude.h has.
#include "prelude.h"

#include "_lib/ptx/pdl.h"
#include "seqlen_info.h"

constexpr int THREADS = 256;
constexpr int CLASSES = 32;
constexpr int GROUP = 16, GROUPS = THREADS / GROUP;  // of threads, for scans
constexpr int PLACES = (CLASSES + 1) * THREADS;

struct Scan {
    int before, all;
};

// What a function makes of the values of the threads before this one, and of all; 0 is neutral.
template <class Join> DEVICE Scan scan(int* line, int value, const Join& join) {
    const int thread = thread_x(), group = thread / GROUP;
    line[thread] = value;
    barrier();
    int before = 0;
#pragma unroll
    for (int i = 0; i < GROUP - 1; ++i) {
        if (i < thread % GROUP) before = join(before, line[group * GROUP + i]);
    }
    if (thread % GROUP == GROUP - 1) line[THREADS + group] = join(before, value);
    barrier();
    Scan found = {0, 0};
#pragma unroll
    for (int i = 0; i < GROUPS; ++i) {
        if (i == group) found.before = join(found.all, before);
        found.all = join(found.all, line[THREADS + i]);
    }
    return found;
}

DEVICE int larger(int a, int b) { return a > b ? a : b; }
DEVICE int smaller(int a, int b) { return a < b ? a : b; }

// 0 for the dearest sequences.
DEVICE int class_of(int tokens) {
    int length = 0;
    for (; tokens > 0; tokens >>= 1) ++length;
    return CLASSES - 1 - length;
}

// `bounds`: begin and end of every sequence's queries, then of its keys; `ranks`: the sequences in order; `firsts`:
// each one's first tile in that order; `tile_list`: sequence and number of the tile; `tile_counts`: of tiles, and 0
// for those claimed. Sequences' tiles are of `tile` queries, or with `of_keys` keys; `reach` bounds how many of the
// other kind a tile meets. With `backwards` a sequence's last tile is walked first.
KERNEL(THREADS) void attention_varlen_tiles(const int* cu_seqlens_q, const int* cu_seqlens_k, int* bounds, int* ranks,
                                            int* firsts, int* tile_list, uint32_t* tile_counts, int count,
                                            int queries, int keys, int tile, int of_keys, int reach, int together,
                                            int backwards) {
    launch_dependents();
    SHARED int line[THREADS + GROUPS];
    SHARED int places[PLACES];
    SHARED int ends[CLASSES];
    const int thread = thread_x(), sequences = count + 1;

    int begin[2] = {0, 0};
    for (int start = 0; start < sequences; start += THREADS) {
        const int z = start + thread;
        const int own[2] = {z < count ? larger(smaller(cu_seqlens_q[z], queries), 0) : queries,
                            z < count ? larger(smaller(cu_seqlens_k[z], keys), 0) : keys};
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const Scan most = scan(line, own[side], larger);
            if (z < sequences) {
                bounds[z * 4 + side * 2] = larger(begin[side], most.before);
                bounds[z * 4 + side * 2 + 1] = larger(larger(begin[side], most.before), own[side]);
            }
            begin[side] = larger(begin[side], most.all);
        }
    }
    barrier();

    // A stable sort by counting: each thread has as many sequences, one behind the other.
    const int each = (sequences + THREADS - 1) / THREADS;
    const int first = smaller(thread * each, sequences), stop = smaller(first + each, sequences);
    const auto class_at = [&](int z) {
        const Sequence own = sequence_of(bounds, z, count);
        return class_of(own.outside ? 0 : smaller(of_keys ? own.queries : own.keys, reach));
    };
    const auto slot = [](int at) { return at + at / CLASSES; };  // a thread's CLASSES neighbours lie across the banks
    for (int i = 0; i < CLASSES; ++i) places[slot(i * THREADS + thread)] = 0;
    for (int z = first; z < stop; ++z) ++places[slot(class_at(z) * THREADS + thread)];
    barrier();
    int own = 0;
    for (int i = 0; i < CLASSES; ++i) own += places[slot(thread * CLASSES + i)];
    int before = scan(line, own, [](int a, int b) { return a + b; }).before;
    for (int i = 0; i < CLASSES; ++i) {
        const int here = places[slot(thread * CLASSES + i)];
        places[slot(thread * CLASSES + i)] = before;
        before += here;
    }
    barrier();
    for (int z = first; z < stop; ++z) ranks[places[slot(class_at(z) * THREADS + thread)]++] = z;
    barrier();
    if (thread < CLASSES) ends[thread] = places[slot(thread * THREADS + THREADS - 1)];
    const auto end_of = [&](int cost) { return cost < 0 ? 0 : ends[cost]; };

    const auto tiles_of = [&](int z) {
        const int* const own = bounds + z * 4 + of_keys * 2;
        return (own[1] - own[0] + tile - 1) / tile;
    };
    int* const begins = sequences < PLACES ? places : firsts;  // tiles before each rank
    int all = 0;
    for (int start = 0; start < sequences; start += THREADS) {
        const int rank = start + thread;
        const Scan sum = scan(line, rank < sequences ? tiles_of(ranks[rank]) : 0, [](int a, int b) { return a + b; });
        if (rank < sequences) begins[rank] = all + sum.before;
        all += sum.all;
    }
    if (thread == 0) {
        begins[sequences] = all;
        tile_counts[0] = all;
        tile_counts[1] = 0;
    }
    barrier();

    for (int i = thread; i < all; i += THREADS) {
        int rank = 0;  // the last that begins at i or before
        for (int end = sequences; end - rank > 1;) {
            const int middle = rank + (end - rank) / 2;
            if (begins[middle] <= i) rank = middle;
            else end = middle;
        }
        const int z = ranks[rank], number = i - begins[rank];
        int place = i;
        if (together > 1) {
            const int cost = class_at(z), equals = end_of(cost - 1);
            const int section = equals + (rank - equals) / together * together;
            place = begins[section];
            for (int other = section; other < smaller(section + together, end_of(cost)); ++other) {
                const int tiles_there = begins[other + 1] - begins[other];
                place += smaller(tiles_there, number) + (other < rank && tiles_there > number);
            }
        }
        tile_list[place * 2] = z;
        tile_list[place * 2 + 1] = backwards ? begins[rank + 1] - begins[rank] - 1 - number : number;
    }
}
