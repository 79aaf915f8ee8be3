// Varlen: where dS of each sequence lies in its workspace, and which chunks it takes; one block, before bwd_hdim256.cu.
//
// Defines: bwd_seqlen_info.h's.
#include "bwd_hdim256_chunks.h"

constexpr int THREADS = 256;

// The workspace holds `slots` blocks of dS.
KERNEL(THREADS) void attention_varlen_workspace_offsets(const __grid_constant__ AttentionParams params,
                                                        int* workspace_offsets, int* chunk_layout, int reach,
                                                        int slots) {
    const AttentionParams& p = params;
    const int kv_heads = p.kv_heads, qheads_per_kvhead = p.qheads_per_kvhead;
    SHARED int line[THREADS];
    const int thread = thread_x(), sequences = p.offsets + 1;
    int all = 0;
    for (int start = 0; start < sequences; start += THREADS) {
        const int z = start + thread;
        int own = 0;
        if (z < sequences) {
            const Sequence found = sequence_of(p.bounds, z, p.offsets);
            own = ds_rows_of(found, reach, p.left, p.right).before((found.keys + KEYS - 1) / KEYS);
        }
        line[thread] = own;
        barrier();
        for (int apart = 1; apart < THREADS; apart *= 2) {
            const int before = thread >= apart ? line[thread - apart] : 0;
            barrier();
            line[thread] += before;
            barrier();
        }
        if (z < sequences) workspace_offsets[z] = all + line[thread] - own;
        all += line[THREADS - 1];
        barrier();
    }
    if (thread != 0) return;
    const int room = slots / qheads_per_kvhead;  // of a query head, with one key head at a time
    if (all <= room) {
        const int fit = all > 0 ? BwdSeqlenInfo::min(kv_heads, room / all) : kv_heads;
        const int chunks = (kv_heads + fit - 1) / fit;
        chunk_layout[0] = (kv_heads + chunks - 1) / chunks;
        chunk_layout[1] = 1;
        chunk_layout[2] = chunk_layout[3] = all;
    } else {
        const int part = room - reach;  // a row that begins in a part ends within a row's length of it
        chunk_layout[0] = 1;
        chunk_layout[1] = (all + part - 1) / part;
        chunk_layout[2] = room;
        chunk_layout[3] = part;
    }
}
