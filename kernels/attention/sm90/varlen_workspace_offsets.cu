// Where the gradients of packed sequences' scores are kept, and which turns they take; one block, before
// bwd_hdim256.cu.
//
// Defines: bwd_hdim256.h's.
#include "bwd_hdim256_varlen.h"

constexpr int THREADS = 256;

// `slots` blocks of scores can be kept at a time.
KERNEL(THREADS) void attention_backward_wide_places(const int* bounds, int* places, int* layout, int count, int groups,
                                                    int share, int reach, int slots, int left, int right) {
    SHARED int line[THREADS];
    const int thread = thread_x(), sequences = count + 1;
    int all = 0;
    for (int start = 0; start < sequences; start += THREADS) {
        const int z = start + thread;
        int own = 0;
        if (z < sequences) {
            const Sequence found = sequence_of(bounds, z, count);
            own = stairs_of(found, reach, left, right).before((found.keys + KEYS - 1) / KEYS);
        }
        line[thread] = own;
        barrier();
        for (int apart = 1; apart < THREADS; apart *= 2) {
            const int before = thread >= apart ? line[thread - apart] : 0;
            barrier();
            line[thread] += before;
            barrier();
        }
        if (z < sequences) places[z] = all + line[thread] - own;
        all += line[THREADS - 1];
        barrier();
    }
    if (thread != 0) return;
    const int room = slots / share;  // of a query head, with one key head at a time
    if (all <= room) {
        const int fit = all > 0 ? Sight::min(groups, room / all) : groups;
        const int turns = (groups + fit - 1) / fit;
        layout[0] = (groups + turns - 1) / turns;
        layout[1] = 1;
        layout[2] = layout[3] = all;
    } else {
        const int part = room - reach;  // a row that begins in a part ends within a row's length of it
        layout[0] = 1;
        layout[1] = (all + part - 1) / part;
        layout[2] = room;
        layout[3] = part;
    }
}
