// The C struct of params.py's AttentionParams, which CUDA and HIP C++ kernels take by value.
// Written by `python -m portable.kernels.attention.params`: change FIELDS there.
//
// Strides count elements: element (b, h, i, d) of a tensor lies at b * batch + h * head + i * row + d. A
// pointer that a launch does not use is null. Query i sees key j where
// -left <= j - i - (seqlen_k - seqlen_q) <= right; 2^29 bounds nothing. `score_scale` is scale * log2(e), or
// with a softcap 2 / softcap times that, and `softcap_log2` is softcap * log2(e).
//
// Defines: PARAMS_LAYOUT, the layout that the launch packs.
#pragma once

#include "prelude.h"

#ifdef __CUDACC_RTC__  // NVRTC has no offsetof
#define PARAMS_OFFSET(field) __INTADDR__(&static_cast<AttentionParams*>(0)->field)
#else
#define PARAMS_OFFSET(field) __builtin_offsetof(AttentionParams, field)
#endif

struct AttentionParams {
    const void* q;
    const void* k;
    const void* v;
    const void* bias;
    void* o;
    float* lse;
    const float* sinks;
    const void* dout;
    const float* dlse;
    void* dq;
    void* dk;
    void* dv;
    void* dbias;
    const int* block_table;
    const int* seq_lens;
    float* stats;
    const int* bounds;
    const int* tile_list;
    uint32_t* tile_counts;
    float* o_partial;
    float* max_partial;
    float* sum_partial;
    int64_t q_batch;
    int64_t q_head;
    int64_t q_row;
    int64_t k_batch;
    int64_t k_head;
    int64_t k_row;
    int64_t v_batch;
    int64_t v_head;
    int64_t v_row;
    int64_t o_batch;
    int64_t o_head;
    int64_t o_row;
    int64_t lse_batch;
    int64_t lse_head;
    int64_t lse_row;
    int64_t bias_batch;
    int64_t bias_head;
    int64_t bias_row;
    int64_t dout_batch;
    int64_t dout_head;
    int64_t dout_row;
    int64_t dlse_batch;
    int64_t dlse_head;
    int64_t dlse_row;
    int64_t dq_batch;
    int64_t dq_head;
    int64_t dq_row;
    int64_t dk_batch;
    int64_t dk_head;
    int64_t dk_row;
    int64_t dv_batch;
    int64_t dv_head;
    int64_t dv_row;
    int64_t dbias_batch;
    int64_t dbias_head;
    int64_t dbias_row;
    int64_t block_table_row;
    int heads;
    int kv_heads;
    int qheads_per_kvhead;
    int seqlen_q;
    int seqlen_k;
    int head_dim;
    int head_dim_v;
    int left;
    int right;
    int offsets;
    float scale;
    float score_scale;
    float softcap_log2;
};

static_assert(PARAMS_LAYOUT == 816528794, "run python -m portable.kernels.attention.params");
static_assert(PARAMS_OFFSET(q) == 0, "q");
static_assert(PARAMS_OFFSET(k) == 8, "k");
static_assert(PARAMS_OFFSET(v) == 16, "v");
static_assert(PARAMS_OFFSET(bias) == 24, "bias");
static_assert(PARAMS_OFFSET(o) == 32, "o");
static_assert(PARAMS_OFFSET(lse) == 40, "lse");
static_assert(PARAMS_OFFSET(sinks) == 48, "sinks");
static_assert(PARAMS_OFFSET(dout) == 56, "dout");
static_assert(PARAMS_OFFSET(dlse) == 64, "dlse");
static_assert(PARAMS_OFFSET(dq) == 72, "dq");
static_assert(PARAMS_OFFSET(dk) == 80, "dk");
static_assert(PARAMS_OFFSET(dv) == 88, "dv");
static_assert(PARAMS_OFFSET(dbias) == 96, "dbias");
static_assert(PARAMS_OFFSET(block_table) == 104, "block_table");
static_assert(PARAMS_OFFSET(seq_lens) == 112, "seq_lens");
static_assert(PARAMS_OFFSET(stats) == 120, "stats");
static_assert(PARAMS_OFFSET(bounds) == 128, "bounds");
static_assert(PARAMS_OFFSET(tile_list) == 136, "tile_list");
static_assert(PARAMS_OFFSET(tile_counts) == 144, "tile_counts");
static_assert(PARAMS_OFFSET(o_partial) == 152, "o_partial");
static_assert(PARAMS_OFFSET(max_partial) == 160, "max_partial");
static_assert(PARAMS_OFFSET(sum_partial) == 168, "sum_partial");
static_assert(PARAMS_OFFSET(q_batch) == 176, "q_batch");
static_assert(PARAMS_OFFSET(q_head) == 184, "q_head");
static_assert(PARAMS_OFFSET(q_row) == 192, "q_row");
static_assert(PARAMS_OFFSET(k_batch) == 200, "k_batch");
static_assert(PARAMS_OFFSET(k_head) == 208, "k_head");
static_assert(PARAMS_OFFSET(k_row) == 216, "k_row");
static_assert(PARAMS_OFFSET(v_batch) == 224, "v_batch");
static_assert(PARAMS_OFFSET(v_head) == 232, "v_head");
static_assert(PARAMS_OFFSET(v_row) == 240, "v_row");
static_assert(PARAMS_OFFSET(o_batch) == 248, "o_batch");
static_assert(PARAMS_OFFSET(o_head) == 256, "o_head");
static_assert(PARAMS_OFFSET(o_row) == 264, "o_row");
static_assert(PARAMS_OFFSET(lse_batch) == 272, "lse_batch");
static_assert(PARAMS_OFFSET(lse_head) == 280, "lse_head");
static_assert(PARAMS_OFFSET(lse_row) == 288, "lse_row");
static_assert(PARAMS_OFFSET(bias_batch) == 296, "bias_batch");
static_assert(PARAMS_OFFSET(bias_head) == 304, "bias_head");
static_assert(PARAMS_OFFSET(bias_row) == 312, "bias_row");
static_assert(PARAMS_OFFSET(dout_batch) == 320, "dout_batch");
static_assert(PARAMS_OFFSET(dout_head) == 328, "dout_head");
static_assert(PARAMS_OFFSET(dout_row) == 336, "dout_row");
static_assert(PARAMS_OFFSET(dlse_batch) == 344, "dlse_batch");
static_assert(PARAMS_OFFSET(dlse_head) == 352, "dlse_head");
static_assert(PARAMS_OFFSET(dlse_row) == 360, "dlse_row");
static_assert(PARAMS_OFFSET(dq_batch) == 368, "dq_batch");
static_assert(PARAMS_OFFSET(dq_head) == 376, "dq_head");
static_assert(PARAMS_OFFSET(dq_row) == 384, "dq_row");
static_assert(PARAMS_OFFSET(dk_batch) == 392, "dk_batch");
static_assert(PARAMS_OFFSET(dk_head) == 400, "dk_head");
static_assert(PARAMS_OFFSET(dk_row) == 408, "dk_row");
static_assert(PARAMS_OFFSET(dv_batch) == 416, "dv_batch");
static_assert(PARAMS_OFFSET(dv_head) == 424, "dv_head");
static_assert(PARAMS_OFFSET(dv_row) == 432, "dv_row");
static_assert(PARAMS_OFFSET(dbias_batch) == 440, "dbias_batch");
static_assert(PARAMS_OFFSET(dbias_head) == 448, "dbias_head");
static_assert(PARAMS_OFFSET(dbias_row) == 456, "dbias_row");
static_assert(PARAMS_OFFSET(block_table_row) == 464, "block_table_row");
static_assert(PARAMS_OFFSET(heads) == 472, "heads");
static_assert(PARAMS_OFFSET(kv_heads) == 476, "kv_heads");
static_assert(PARAMS_OFFSET(qheads_per_kvhead) == 480, "qheads_per_kvhead");
static_assert(PARAMS_OFFSET(seqlen_q) == 484, "seqlen_q");
static_assert(PARAMS_OFFSET(seqlen_k) == 488, "seqlen_k");
static_assert(PARAMS_OFFSET(head_dim) == 492, "head_dim");
static_assert(PARAMS_OFFSET(head_dim_v) == 496, "head_dim_v");
static_assert(PARAMS_OFFSET(left) == 500, "left");
static_assert(PARAMS_OFFSET(right) == 504, "right");
static_assert(PARAMS_OFFSET(offsets) == 508, "offsets");
static_assert(PARAMS_OFFSET(scale) == 512, "scale");
static_assert(PARAMS_OFFSET(score_scale) == 516, "score_scale");
static_assert(PARAMS_OFFSET(softcap_log2) == 520, "softcap_log2");
