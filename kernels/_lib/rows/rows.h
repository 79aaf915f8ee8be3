// Rows in registers. A block has THREADS threads; LANES of them (a power of two) share one row, and each lane holds
// CHUNKS vectors of VEC elements. Vector c of lane l starts at column (c * LANES + l) * VEC, so that a warp's accesses
// are contiguous and a chunk beyond the row is skipped whole.
//
// Defines: THREADS, LANES, CHUNKS, VEC; TAIL = 1 when the length may not be a multiple of VEC; ALIGN, on AMD GPUs, the
// bytes that addresses are multiples of where that is less than a vector's; CLUSTER, the
// blocks that share a row (LANES then counts the threads of all); RESIDENT.
//
// Every kernel that is built for a RowClass is launched with PDL: `enter_pdl();` is its first statement.
#pragma once

#include "_lib/ptx/pdl.h"
#include "prelude.h"

#ifndef TAIL
#define TAIL 0
#endif
#ifndef ALIGN
#define ALIGN 0
#endif
#ifndef CLUSTER
#define CLUSTER 1
#endif
// A kernel over rows, with registers limited for RESIDENT blocks per multiprocessor where that is defined.
#ifdef RESIDENT
#define ROW_KERNEL KERNEL_RESIDENT(THREADS, RESIDENT) CLUSTERED
#else
#define ROW_KERNEL KERNEL(THREADS) CLUSTERED
#endif
#if CLUSTER > 1
#include "hopper_rows.h"

#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

constexpr int ROWS = CLUSTER > 1 ? 1 : THREADS / LANES;
constexpr int WARPS = THREADS / WARP;
constexpr int ROW_WARPS = LANES > WARP ? LANES / WARP : 1;
static_assert(THREADS * CLUSTER % LANES == 0 && THREADS % WARP == 0, "a block is whole rows and whole warps");
static_assert(CLUSTER == 1 || LANES == THREADS * CLUSTER, "a cluster holds one row");

// Elements that a block of a streaming kernel processes per iteration.
#define TILE (static_cast<int64_t>(LANES) * CHUNKS * VEC)

#if CLUSTER > 1
DEVICE int row_lane() { return cluster_rank() * THREADS + thread_x(); }
DEVICE int row_block() { return static_cast<unsigned>(block_x()) / CLUSTER; }
#else
DEVICE int row_lane() { return thread_x() & (LANES - 1); }
DEVICE int row_block() { return block_x(); }
#endif
DEVICE int row_slot() { return ROWS == 1 ? 0 : static_cast<unsigned>(thread_x()) / LANES; }
DEVICE int chunk_column(int chunk) { return (chunk * LANES + row_lane()) * VEC; }
// A lane's vectors are a constant apart: one pointer per row and immediate offsets address them all.
constexpr int CHUNK = LANES * VEC;
template <class Type> DEVICE Type* lane_ptr(Type* row) { return row + row_lane() * VEC; }

// COUNT neighbouring elements as in memory: 16-bit types stay packed in words, which halves the registers.
template <class Type, int COUNT> struct Vector {
    static constexpr int PER_WORD = 4 / sizeof(Type);
    static constexpr int BYTES = COUNT * sizeof(Type);
    static constexpr int PART = BYTES < 16 ? BYTES : 16;    // one access
    words<PART> part[BYTES / PART];

    DEVICE uint32_t& word(int i) { return part[i / (PART / 4)].w[i % (PART / 4)]; }
    DEVICE uint32_t word(int i) const { return part[i / (PART / 4)].w[i % (PART / 4)]; }

    DEVICE float operator[](int i) const {
        if constexpr (PER_WORD == 1) {
            return float_of(word(i));
        } else {
            return to_float(Type{static_cast<uint16_t>(word(i / 2) >> (i % 2 * 16))});
        }
    }
    DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < COUNT / PER_WORD; ++i) word(i) = 0;
    }
    DEVICE void fill(Type value) {
        clear();
#pragma unroll
        for (int i = 0; i < COUNT; ++i) insert(i, value);
    }
    DEVICE void flip(uint32_t mask) {
        if constexpr (PER_WORD == 2) {
#pragma unroll
            for (int i = 0; i < COUNT / PER_WORD; ++i) word(i) ^= mask;
        }
    }
#if defined(__AMDGCN__)
    // The compiler no longer knows what the words hold.
    DEVICE void hide() {
#pragma unroll
        for (int i = 0; i < COUNT / PER_WORD; ++i) word(i) = opaque(word(i));
    }
#endif
    DEVICE void insert(int i, Type value) {
        if constexpr (PER_WORD == 1) {
            word(i) = bits_of(value);
        } else {
            word(i / 2) |= static_cast<uint32_t>(value.bits) << (i % 2 * 16);
        }
    }
    DEVICE void round(const float (&value)[COUNT]) {
        if constexpr (PER_WORD == 1) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) word(i) = bits_of(value[i]);
        } else {
#pragma unroll
            for (int i = 0; i < COUNT / 2; ++i) word(i) = pack2<Type>(value[2 * i], value[2 * i + 1]);
        }
    }
    DEVICE void load(const Type* address) {
#pragma unroll
        for (int i = 0; i < BYTES / PART; ++i) {
            part[i] = load_words<PART>(reinterpret_cast<const char*>(address) + i * PART);
        }
    }
    DEVICE void load_streaming(const Type* address) {
#pragma unroll
        for (int i = 0; i < BYTES / PART; ++i) {
            part[i] = load_words_once<PART>(reinterpret_cast<const char*>(address) + i * PART);
        }
    }
    DEVICE void store(Type* address) const {
#pragma unroll
        for (int i = 0; i < BYTES / PART; ++i) {
            store_global(reinterpret_cast<char*>(address) + i * PART, part[i]);
        }
    }
};
template <class Type> struct Vector<Type, 1> {
    Type raw;

    DEVICE float operator[](int) const { return to_float(raw); }
    DEVICE void clear() { raw = Type{}; }
    DEVICE void fill(Type value) { raw = value; }
    DEVICE void flip(uint32_t) {}
#if defined(__AMDGCN__)
    DEVICE void hide() {}
#endif
    DEVICE void insert(int, Type value) { raw = value; }
    DEVICE void round(const float (&value)[1]) { raw = from_float<Type>(value[0]); }
    DEVICE void load(const Type* address) { raw = *address; }
    DEVICE void load_streaming(const Type* address) { raw = *address; }
    DEVICE void store(Type* address) const { *address = raw; }
};

// Whether element by element is asked of a vector that is not whole. Where vectors lie at any address (AMD GPUs), waves
// wholly beyond the row skip it.
template <class Index> DEVICE bool reached(Index column, Index length) { return !ALIGN || column < length; }

// The vector at `address`, column `column` of its row; zeros beyond the row.
template <bool STREAMING, class Type, class Index>
DEVICE Vector<Type, VEC> load_vector(const Type* address, Index column, Index length) {
    Vector<Type, VEC> held;
    held.clear();
    if (TAIL ? column + VEC <= length : column < length) {
        if constexpr (STREAMING) {
            held.load_streaming(address);
        } else {
            held.load(address);
        }
    } else if constexpr (TAIL) {
        if (!reached(column, length)) return held;
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
#if ALIGN
            // A plain address[i] is merged with the load above: a dword and three in the place of every vector.
            if (column + i < length) held.insert(i, address[opaque(i)]);
#else
            if (column + i < length) held.insert(i, address[i]);
#endif
        }
    }
    return held;
}

// The lane's CHUNKS vectors from column `base` on, all in flight at once; `lane_row` is a `lane_ptr`.
template <bool STREAMING, class Type, class Index>
DEVICE void load_vectors(Vector<Type, VEC> (&held)[CHUNKS], const Type* lane_row, Index base, Index length) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        held[c] = load_vector<STREAMING>(lane_row + base + c * CHUNK, base + chunk_column(c), length);
    }
}

// `load_vectors` of a whole row, with `filler` beyond it; but with TAIL a vector wholly beyond it is left as it is.
template <bool STREAMING, class Type>
DEVICE void load_filled(Vector<Type, VEC> (&held)[CHUNKS], const Type* lane_row, int length, Type filler) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        if (chunk_column(c) >= length) {
            if constexpr (!TAIL) held[c].fill(filler);
            continue;
        }
        held[c] = load_vector<STREAMING>(lane_row + c * CHUNK, chunk_column(c), length);
        if constexpr (TAIL) {
            if (chunk_column(c) + VEC <= length) continue;
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (chunk_column(c) + i >= length) held[c].insert(i, filler);
            }
        }
    }
}

// Makes the compiler unpack the vectors again after a reduction instead of keeping float32 copies in registers across
// it: every word is XORed with a zero that the compiler cannot see through, half an instruction per element. `count` is
// any 64-bit argument that is never negative.
template <class Type> DEVICE void rematerialize(Vector<Type, VEC> (&held)[CHUNKS], int64_t count) {
#if defined(__AMDGCN__)
    // An empty statement hides the words for nothing; 16 elements have the registers to stay unpacked.
    if constexpr (sizeof(Type) == 2 && CHUNKS * VEC > 16) {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) held[c].hide();
    }
#else
    const uint32_t zero = static_cast<uint32_t>(count >> 63);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) held[c].flip(zero);
#endif
}

// Rounds VEC floats and stores those that lie inside the row.
template <class Type, class Index>
DEVICE void store_vector(Type* address, Index column, Index length, const float (&value)[VEC]) {
    if (TAIL ? column + VEC <= length : column < length) {
        Vector<Type, VEC> rounded;
        rounded.round(value);
        rounded.store(address);
    } else if constexpr (TAIL) {
        if (!reached(column, length)) return;
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            if (column + i < length) address[i] = from_float<Type>(value[i]);
        }
    }
}

// Whether element i of the vector at `column` lies inside the row.
template <class Index> DEVICE bool inside(Index column, int i, Index length) {
    return TAIL ? column + i < length : column < length;
}

struct Sum {
    static DEVICE float apply(float a, float b) { return a + b; }
};
struct Max {
    static DEVICE float apply(float a, float b) { return math_max_number(a, b); }
};

// The reduction over groups of WIDTH lanes, in all of them.
template <class Op, int WIDTH> DEVICE float reduce_warp(float value) {
#if defined(__GFX9__)
    // Neighbours first, as lanes of 16 read each other within the vector pipe: no address, no wait for LDS.
    if constexpr (WIDTH >= 2) value = Op::apply(value, lanes_moved<SWAP_1>(value));
    if constexpr (WIDTH >= 4) value = Op::apply(value, lanes_moved<SWAP_2>(value));
    if constexpr (WIDTH >= 8) value = Op::apply(value, lanes_moved<MIRROR_8>(value));
    if constexpr (WIDTH >= 16) value = Op::apply(value, lanes_moved<MIRROR_16>(value));
#if defined(__gfx950__)
    if constexpr (WIDTH >= 32) value = Op::apply(rows_swapped<16>(value, 0), rows_swapped<16>(value, 1));
    if constexpr (WIDTH == 64) value = Op::apply(rows_swapped<32>(value, 0), rows_swapped<32>(value, 1));
#else
    if constexpr (WIDTH == 64) {
        // The last row of 16 gets the row before, then the lower half; only the last lane has the whole.
        value = Op::apply(value, lanes_moved<ROW_BEFORE>(value));
        value = Op::apply(value, lanes_moved<LOWER_HALF>(value));
        value = last_lane(value);
    } else if constexpr (WIDTH == 32) {
        value = Op::apply(value, shuffle_xor(value, 16));
    }
#endif
#else
#pragma unroll
    for (int mask = WIDTH / 2; mask > 0; mask /= 2) value = Op::apply(value, shuffle_xor(value, mask));
#endif
    return value;
}

// The lane's index in its warp, and the warp's in the block.
DEVICE int warp_lane() { return thread_x() & (WARP - 1); }
DEVICE int warp_index() { return static_cast<unsigned>(thread_x()) / WARP; }

constexpr int BLOCK_ROW_WARPS = CLUSTER > 1 ? WARPS : ROW_WARPS;    // warps of this block that share a row

// Shared memory through which the warps (and blocks) of a row exchange COUNT (1, 2 or 4) partial values.
template <int COUNT> struct RowPartial {
    alignas(4 * COUNT) float of_warp[WARPS][COUNT];
#if CLUSTER > 1
    alignas(4 * COUNT) float of_block[CLUSTER][COUNT];
    alignas(8) uint64_t arrived;    // counts the bytes all blocks sent

    DEVICE void expect() { mbarrier_arrive_expect_tx(shared_address(&arrived), sizeof(of_block)); }
#endif
};

// Rows of a cluster: `rows_start` initialises the exchange, blocks may send to each other after `rows_ready`.
#if CLUSTER > 1
template <int COUNT> DEVICE int prepare(RowPartial<COUNT>& partial) {
    mbarrier_init(shared_address(&partial.arrived), 1);
    partial.expect();
    return 0;
}
template <class... Partial> DEVICE void rows_start(Partial&... partial) {
    if (thread_x() == 0) {
        const int done[] = {prepare(partial)...};
        (void)done;
        mbarrier_init_fence();
    }
    cluster_arrive_relaxed();
}
DEVICE void rows_ready() { cluster_wait(); }
#else
template <class... Partial> DEVICE void rows_start(Partial&...) {}
DEVICE void rows_ready() {}
#endif

template <int COUNT> DEVICE void take(float (&value)[COUNT], const float (&place)[COUNT]) {
    const words<4 * COUNT> found = *reinterpret_cast<const words<4 * COUNT>*>(place);
#pragma unroll
    for (int k = 0; k < COUNT; ++k) value[k] = float_of(found.w[k]);
}

// Reduces the partial values in `partial.of_warp` over the warps of each row, in an order that depends on the row class
// alone. `part` has COUNT floats `value` and merges them over groups of PARTS lanes, of which lane p holds part p:
// `merge_warps<PARTS>` in the block, `merge_blocks<PARTS>` in the cluster. All threads of the block (of the cluster)
// call it. `phase` is the parity of the uses of this partial so far; another barrier must separate two uses.
template <class Part, int COUNT>
DEVICE void merge_row(Part& part, RowPartial<COUNT>& partial, int phase = 0) {
    const int lane = warp_lane();
    barrier();
    take(part.value, partial.of_warp[warp_index() / BLOCK_ROW_WARPS * BLOCK_ROW_WARPS + lane % BLOCK_ROW_WARPS]);
    part.template merge_warps<BLOCK_ROW_WARPS>();
#if CLUSTER > 1
    if (thread_x() < CLUSTER) {
        send(partial.of_block[cluster_rank()], part.value, &partial.arrived, thread_x());
    }
    mbarrier_wait(shared_address(&partial.arrived), phase);
    take(part.value, partial.of_block[lane % CLUSTER]);
    if (thread_x() == 0) partial.expect();
    part.template merge_blocks<CLUSTER>();
#endif
}

template <class Op, int COUNT> struct Combined {
    float value[COUNT];

    template <int PARTS> DEVICE void merge_warps() {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) value[k] = reduce_warp<Op, PARTS>(value[k]);
    }
    template <int PARTS> DEVICE void merge_blocks() { merge_warps<PARTS>(); }
};

constexpr int WARP_LANES = LANES < WARP ? LANES : WARP;    // lanes of one warp that share a row

// Lane l gets the warp's sum of value[l % COUNT]. The first levels halve the values a lane carries: 6 shuffles instead
// of 20 for COUNT 4.
template <int COUNT> DEVICE float fold_warp(const float (&value)[COUNT]) {
#if defined(__GFX9__)
    if constexpr (COUNT == 1) return reduce_warp<Sum, WARP>(value[0]);
#endif
    const int lane = warp_lane();
    float mine = value[0];
    if constexpr (COUNT > 1) {
        const bool odd = lane & 1;
        mine = (odd ? value[1] : value[0]) + shuffle_xor(odd ? value[0] : value[1], 1);
        if constexpr (COUNT == 4) {
            const bool upper = lane & 2;
            const float other = (odd ? value[3] : value[2]) + shuffle_xor(odd ? value[2] : value[3], 1);
            const float sent = upper ? mine : other;
            mine = (upper ? other : mine) + shuffle_xor(sent, 2);
        }
    }
#pragma unroll
    for (int mask = COUNT; mask < WARP; mask *= 2) mine += shuffle_xor(mine, mask);
    return mine;
}

// Adds COUNT values over the lanes of each row and gives all lanes the sums, with one barrier at most.
template <int COUNT> DEVICE void sum_row(float (&value)[COUNT], RowPartial<COUNT>& partial, int phase = 0) {
    if constexpr (LANES <= WARP) {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) value[k] = reduce_warp<Sum, WARP_LANES>(value[k]);
    } else {
        const float mine = fold_warp(value);
        if (warp_lane() < COUNT) partial.of_warp[warp_index()][warp_lane()] = mine;
        Combined<Sum, COUNT> sums;
        merge_row(sums, partial, phase);
#pragma unroll
        for (int k = 0; k < COUNT; ++k) value[k] = sums.value[k];
    }
}
