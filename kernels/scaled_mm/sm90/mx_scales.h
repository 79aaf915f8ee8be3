// wgmma.cu's main loop with MX's scales: e8m0 bytes, one for each 32 of k of a row of a and of a column of b.
//
// One instruction has 32 of k, so its products are summed by themselves and added to the accumulators by the CUDA cores,
// times both scales: two instructions an element, which is twice the clocks of the tensor cores. Two warps beside the
// producer bring the scales as words of four bytes and make float32 numbers of them; each lane those that it copied.
//
// Defines: MX_WORDS, A's and B's scales are read four at a time: those of a line lie one after another, in whole aligned words.
#pragma once

constexpr int MX_GROUPS = TILE_K / 32;       // of a stage
constexpr int MX_A_BYTES = TILE_M * 16;      // four numbers of each row; then of each group of k one of each column

// The place of a column's number among its group's: a thread's, of columns 0, 1, 8 and 9 from its first, are neighbours.
DEVICE int mx_place(int col) { return col / 16 * 16 + col % 8 / 2 * 4 + col / 8 % 2 * 2 + col % 2; }

DEVICE float mx_power(uint32_t byte) {
    return float_of(byte == 255 ? 0x7fc00000u : byte == 0 ? 0x00400000u : byte << 23);
}

DEVICE uint32_t load_shared_word(uint32_t at) {
    uint32_t value;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
    return value;
}
DEVICE void store_shared_word(uint32_t at, uint32_t value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(value) : "memory");
}
DEVICE float2 load_shared_pair(uint32_t at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
    return v;
}
DEVICE float4 load_shared_quad(uint32_t at) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(at) : "memory");
    return v;
}

// Where the scales of a line's groups of k lie.
struct MxLine {
    const uint8_t* at;
    int64_t step;   // from a group to the next

    // The bytes of a stage's groups as a word; those beyond the last group are of a product of zeros: 1.
    DEVICE uint32_t word(int first, int groups) const {
        uint32_t found = 0;
#pragma unroll
        for (int g = 0; g < MX_GROUPS; ++g)
            found |= (first + g < groups ? static_cast<uint32_t>(at[(first + g) * step]) : 127u) << (8 * g);
        return found;
    }
};

// One warp's: the scales of a tile's LINES rows of a, or columns of b; lines beyond the matrix get those of its last.
template <int LINES, bool OF_A>
DEVICE void mx_scale_loop(TilePipeline pipe, const uint8_t* scales, int64_t line_stride, int64_t k_stride, const Sizes& s,
                          uint32_t tiles) {
    constexpr int EACH = LINES / 32;
    const int lane = thread_x() % 32;
    const int steps = steps_of(s);
    [[maybe_unused]] const int groups = (s.k + 31) / 32;
    TilePipeline there = pipe;   // the first stage whose scales are not numbers yet
    int under_way = 0;
    const auto slot = [&](const TilePipeline& stage, int i) {
        const int line = i * 32 + lane;
        return stage.scales() + (OF_A ? line * 16 : MX_A_BYTES + mx_place(line) * 4);
    };
    const auto arrive = [&] {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const uint32_t at = slot(there, i), word = load_shared_word(at);
#pragma unroll
            for (int g = 0; g < MX_GROUPS; ++g)
                store_shared_word(at + g * (OF_A ? 4 : TILE_N * 4), bits_of(mx_power(word >> (8 * g) & 0xffu)));
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(there.full_barrier());
        there.advance();
    };
    grid_dependency_wait();
    for (uint32_t index = blockIdx.x; index < tiles; index += gridDim.x) {
        const Tile tile = tile_at<TILE_M, TILE_N, GROUP_M>(index, s);
        const int begin = OF_A ? tile.row : tile.col, last = (OF_A ? s.m : s.n) - 1;
        MxLine lines[EACH];
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int line = begin + i * 32 + lane;
            lines[i] = {scales + (line < last ? line : last) * line_stride, k_stride};
        }
        for (int step = 0; step < steps; ++step) {
            pipe.wait_empty();
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
#if MX_WORDS
                copy_word(slot(pipe, i), lines[i].at + step * MX_GROUPS);
#else
                store_shared_word(slot(pipe, i), lines[i].word(step * MX_GROUPS, groups));
#endif
            }
            commit_copies();
            pipe.advance();
            if (under_way < COPIES_AHEAD) {
                ++under_way;
            } else {
                wait_copies<COPIES_AHEAD>();
                arrive();
            }
        }
    }
    wait_copies<0>();
    for (; under_way; --under_way) arrive();
}

// Adds a group's products to the accumulators. `columns` is the address of a thread's first numbers of b's columns.
DEVICE void mx_promote(float (&acc)[SUMS], float (&sums)[SUMS], float upper, float lower, uint32_t columns) {
    keep_in_registers<SUMS>(sums);
#pragma unroll
    for (int pair = 0; pair < TILE_N / 16; ++pair) {
        const float4 of = load_shared_quad(columns + pair * 64);
        const float scale[4] = {of.x, of.y, of.z, of.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int j = pair * 8 + i;
            acc[j] = math_fma(sums[j] * (i & 2 ? lower : upper), scale[i / 4 * 2 + i % 2], acc[j]);
        }
    }
    keep_in_registers<SUMS>(acc);   // the sums are read before the next products begin: else ptxas runs one after the other
}

// The numbers of two groups of k, half a stage: of a thread's two rows, and where those of its columns are.
struct MxScales {
    float2 upper, lower;
    uint32_t columns;

    DEVICE void load(const TilePipeline& pipe, int half) {
        const int row = thread_x() / 32 * 16 + thread_x() % 32 / 4;
        const uint32_t rows = pipe.scales() + row * 16 + half * 8;
        upper = load_shared_pair(rows);
        lower = load_shared_pair(rows + 128);
        columns = pipe.scales() + MX_A_BYTES + half * (TILE_N * 8) + thread_x() % 4 * 16;
    }
};

// Each warp's own: all of it has read the stage's numbers.
DEVICE void mx_release(uint32_t empty_barrier) {
    __syncwarp();
    if (thread_x() % 32 == 0) mbarrier_arrive(empty_barrier);
}

// The main loop of one tile, two groups at a time: a group's products run while those of the group before are promoted. ptxas
// lets them (CUDA 13; else C7514) where a loop has two groups and its end has both an odd and an even number of them.
DEVICE void multiply_tile(TilePipeline& pipe, Sum (&acc)[SUMS], int consumer, int groups) {
    clear<SUMS>(acc);
    float even[SUMS], odd[SUMS];
    MxScales scales = {};
    uint64_t a, b;
    int half = 0;   // of the stage that is read
    const auto issue = [&](float (&sums)[SUMS], int group) {
        wgmma_fence();
        Products<TILE_N>::run(sums, a + group * 2, b + group * 2, 0);
        wgmma_commit();
    };
    const auto begin = [&] {
        a = wgmma_descriptor(pipe.a() + consumer * BLOCK_BYTES, 0, 1024) + half * 4;
        b = wgmma_descriptor(pipe.b(), 0, 1024) + half * 4;
        if (half == 0) pipe.wait_full();
        issue(even, 0);
    };
    const auto promote_even = [&] { mx_promote(acc, even, scales.upper.x, scales.lower.x, scales.columns); };
    const auto promote_odd = [&] {
        mx_promote(acc, odd, scales.upper.y, scales.lower.y, scales.columns + TILE_N * 4);
    };
    begin();
    scales.load(pipe, 0);
    int group = 1;
    for (; group + 1 < groups; group += 2) {
        issue(odd, 1);
        wgmma_wait<1>();
        promote_even();
        const uint32_t used = pipe.empty_barrier();
        half ^= 1;
        if (half == 0) pipe.advance();
        begin();
        wgmma_wait<1>();
        promote_odd();
        if (half == 0) mx_release(used);
        scales.load(pipe, half);
    }
    if (group < groups) {
        issue(odd, 1);
        wgmma_wait<1>();
        promote_even();
        wgmma_wait<0>();
        promote_odd();
    } else {
        wgmma_wait<0>();
        promote_even();
    }
    mx_release(pipe.empty_barrier());
    pipe.advance();
}
