// Rows held in registers. A block has THREADS threads; LANES of them (a power of two) share one row, and each
// lane holds CHUNKS vectors of VEC elements. Vector c of lane l starts at column (c * LANES + l) * VEC, so a
// warp reads contiguous memory and a chunk beyond the row is skipped whole.
//
// Defines: THREADS, LANES, CHUNKS, VEC; TAIL = 1 when the length may not be a multiple of VEC.
#pragma once

#include "prelude.h"

#ifndef TAIL
#define TAIL 0
#endif
#ifndef CLUSTER
#define CLUSTER 1
#endif
#if CLUSTER > 1
#include "_common/hopper_rows.h"
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

constexpr int ROWS = CLUSTER > 1 ? 1 : THREADS / LANES;
constexpr int WARPS = THREADS / WARP;
constexpr int ROW_WARPS = LANES > WARP ? LANES / WARP : 1;
static_assert(THREADS * CLUSTER % LANES == 0 && THREADS % WARP == 0, "a block is whole rows and whole warps");
static_assert(CLUSTER == 1 || LANES == THREADS * CLUSTER, "a cluster holds one row");

// What a block of streaming kernels takes at a time.
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
// A lane's vectors lie a constant apart, so one pointer per row and immediate offsets reach them all.
constexpr int CHUNK = LANES * VEC;
template <class Type> DEVICE Type* at_lane(Type* row) { return row + row_lane() * VEC; }

#ifdef STORE_HINT
template <int N> DEVICE void store_hinted(void* a, words<N> v) { store_words(a, v); }
#define SHINTED(text) template <> DEVICE void store_hinted<16>(void* a, words<16> v) { \
    asm volatile("st.global" text ".v4.u32 [%4], {%0, %1, %2, %3};" :: "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]), "l"(a) : "memory"); }
#if STORE_HINT == 1
SHINTED(".cs")
#elif STORE_HINT == 2
SHINTED(".wt")
#elif STORE_HINT == 3
SHINTED(".L1::no_allocate")
#elif STORE_HINT == 4
SHINTED(".cg")
#endif
#endif

// COUNT neighbouring elements as they lie in memory: 16-bit types stay packed, which halves the registers.
template <class Type, int COUNT> struct cell {
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
    DEVICE void flip(uint32_t mask) {
        if constexpr (PER_WORD == 2) {
#pragma unroll
            for (int i = 0; i < COUNT / PER_WORD; ++i) word(i) ^= mask;
        }
    }
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
    DEVICE void load_once(const Type* address) {
#pragma unroll
        for (int i = 0; i < BYTES / PART; ++i) {
            part[i] = load_words_once<PART>(reinterpret_cast<const char*>(address) + i * PART);
        }
    }
    DEVICE void store(Type* address) const {
#pragma unroll
        for (int i = 0; i < BYTES / PART; ++i) {
#ifdef STORE_HINT
            store_hinted(reinterpret_cast<char*>(address) + i * PART, part[i]);
#else
            store_words(reinterpret_cast<char*>(address) + i * PART, part[i]);
#endif
        }
    }
};
template <class Type> struct cell<Type, 1> {
    Type raw;

    DEVICE float operator[](int) const { return to_float(raw); }
    DEVICE void clear() { raw = Type{}; }
    DEVICE void flip(uint32_t) {}
    DEVICE void insert(int, Type value) { raw = value; }
    DEVICE void round(const float (&value)[1]) { raw = from_float<Type>(value[0]); }
    DEVICE void load(const Type* address) { raw = *address; }
    DEVICE void load_once(const Type* address) { raw = *address; }
    DEVICE void store(Type* address) const { *address = raw; }
};

// The vector at `address`, which is column `column` of its row; what lies beyond the row reads as zero.
template <bool ONCE, class Type, class Index>
DEVICE cell<Type, VEC> load_cell(const Type* address, Index column, Index length) {
    cell<Type, VEC> held;
    held.clear();
    if (TAIL ? column + VEC <= length : column < length) {
        if constexpr (ONCE) {
            held.load_once(address);
        } else {
            held.load(address);
        }
    } else if constexpr (TAIL) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            if (column + i < length) held.insert(i, address[i]);
        }
    }
    return held;
}

// The lane's CHUNKS vectors from column `base` on, all in flight at once; `lane_row` is what `at_lane` gave.
template <bool ONCE, class Type, class Index>
DEVICE void load_cells(cell<Type, VEC> (&held)[CHUNKS], const Type* lane_row, Index base, Index length) {
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        held[c] = load_cell<ONCE>(lane_row + base + c * CHUNK, base + chunk_column(c), length);
    }
}

// Keeps what was unpacked so far from occupying registers across a reduction: every word is flipped by zero,
// which the compiler cannot see through, at half an instruction per element. `count` is any 64-bit argument
// that is never negative.
template <class Type> DEVICE void drop_unpacked(cell<Type, VEC> (&held)[CHUNKS], int64_t count) {
    const uint32_t zero = static_cast<uint32_t>(count >> 63);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) held[c].flip(zero);
}

// Rounds VEC floats and stores those that lie inside the row.
template <class Type, class Index>
DEVICE void store_cell(Type* address, Index column, Index length, const float (&value)[VEC]) {
    if (TAIL ? column + VEC <= length : column < length) {
        cell<Type, VEC> rounded;
        rounded.round(value);
        rounded.store(address);
    } else if constexpr (TAIL) {
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

template <class Op, int WIDTH> DEVICE float reduce_warp(float value) {
#pragma unroll
    for (int mask = WIDTH / 2; mask > 0; mask /= 2) value = Op::apply(value, shuffle_xor(value, mask));
    return value;
}

// Where `reduce_row` combines COUNT values; in shared memory.
template <int COUNT> struct RowPartial {
    float of_warp[COUNT * WARPS];
#if CLUSTER > 1
    float of_block[COUNT * CLUSTER];
    alignas(8) uint64_t arrived;    // the sums of all blocks

    DEVICE void expect() { barrier_expect(shared_address(&arrived), sizeof(of_block)); }
#endif
};

// Rows of a cluster: blocks may send each other sums from `rows_ready` on, when all have passed `rows_start`.
template <int COUNT, class... More> DEVICE void prepare(RowPartial<COUNT>& partial, More&... more) {
#if CLUSTER > 1
    barrier_init(shared_address(&partial.arrived), 1);
    partial.expect();
    if constexpr (sizeof...(more) > 0) prepare(more...);
#endif
}
template <class... Partial> DEVICE void rows_start(Partial&... partial) {
#if CLUSTER > 1
    if (thread_x() == 0) {
        prepare(partial...);
        barrier_init_fence();
    }
    cluster_arrive();
#endif
}
DEVICE void rows_ready() {
#if CLUSTER > 1
    cluster_wait();
#endif
}

// Combines COUNT values over the lanes of each row, in an order that depends on the class alone. All threads
// of the block (of the cluster) take part. `partial` serves once, or, without a cluster, again after another
// barrier.
template <class Op, int COUNT> DEVICE void reduce_row(float (&value)[COUNT], RowPartial<COUNT>& partial) {
#pragma unroll
    for (int k = 0; k < COUNT; ++k) value[k] = reduce_warp<Op, (LANES < WARP ? LANES : WARP)>(value[k]);
    if constexpr (LANES > WARP) {
        const int lane = thread_x() & (WARP - 1);
        const int warp = static_cast<unsigned>(thread_x()) / WARP;
        constexpr int SHARERS = CLUSTER > 1 ? WARPS : ROW_WARPS;    // warps of this block that hold the row
        if (lane == 0) {
#pragma unroll
            for (int k = 0; k < COUNT; ++k) partial.of_warp[k * WARPS + warp] = value[k];
        }
        barrier();
#if CLUSTER > 1
        if (warp == 0)
#endif
        {
            const int first = warp / SHARERS * SHARERS;
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
                const float* own = partial.of_warp + k * WARPS + first;
                if constexpr (SHARERS > 4) {
                    value[k] = reduce_warp<Op, SHARERS>(own[lane % SHARERS]);
                } else {
                    value[k] = own[0];
#pragma unroll
                    for (int i = 1; i < SHARERS; ++i) value[k] = Op::apply(value[k], own[i]);
                }
            }
        }
#if CLUSTER > 1
        if (warp == 0 && lane < CLUSTER) {
#pragma unroll
            for (int k = 0; k < COUNT; ++k) {
                send(&partial.of_block[k * CLUSTER + cluster_rank()], value[k], &partial.arrived, lane);
            }
        }
        barrier_wait(shared_address(&partial.arrived), 0);
#pragma unroll
        for (int k = 0; k < COUNT; ++k) {
            value[k] = partial.of_block[k * CLUSTER];
#pragma unroll
            for (int i = 1; i < CLUSTER; ++i) value[k] = Op::apply(value[k], partial.of_block[k * CLUSTER + i]);
        }
#endif
    }
}
