// q and scales of neighbours of a row (128: 1x128; 32 with MX_ROUNDING: MX; 16 with SCALE_FORMAT: NVFP4), and of tiles of 128x128.
#include "quantize.h"

#if defined(MX_ROUNDING)
#include "quantize_mx/scale.h"
typedef MxScale Scale;
#elif defined(SCALE_FORMAT)
#include "quantize_nvfp4/scale.h"
typedef Nvfp4Scale Scale;
#else
typedef Float32Scale Scale;
#endif
#ifndef GIVEN
#define GIVEN float    // eps
#endif

#define GROUPS 1
#define TILES 2

#if PASS == GROUPS
// Where two lanes have a group, each finds the scale of one of two groups, and they exchange what elements are multiplied by.
#define IN_TURN (GROUP_SIZE == 2 * VEC && CHUNKS % 2 == 0)

// GROUP_LANES neighbouring lanes of a warp have a group; LANES take CHUNKS times so many columns of a row.
KERNEL(THREADS)
void quantize_groups(const T* x, uint8_t* q, Scale::Stored* scale, int64_t rows, int64_t length, int64_t x_stride,
                     int64_t q_stride, int64_t groups, int across, GIVEN given) {
    enter_pdl();
    const Scale scaling(given);
    const RowSlice slice = row_slice(rows, length, across);
    const int64_t begin = slice.base + (row_lane() & ~(GROUP_LANES - 1)) * VEC;
    const T* source = x + X_ROWS * slice.row * x_stride;
    static_assert(CHUNK % GROUP == 0, "a lane's vectors are whole groups apart");
    uint8_t* target = q + slice.row * q_stride;
    Scale::Stored* scales = scale + slice.row * groups + static_cast<uint64_t>(begin) / GROUP;
#if !STRIDED
    target += static_cast<uint64_t>(begin + group_lane() * VEC) / IN_BYTE;    // the lane's first codes
#endif
    Vector<T, VEC> held[CHUNKS];
    load_source_parts(held, source, x_stride, begin, slice.length);
#if IN_TURN
    const auto store = [&](int c, float inverse) {
        const int64_t first = begin + c * CHUNK;
#if STRIDED
        store_part(target, first, slice.length, held[c], inverse);
#else
        const int64_t column = first + group_lane() * VEC;
        store_lane(target + c * (CHUNK / IN_BYTE), column, slice.length, held[c], inverse);
#endif
    };
    const int mine = group_lane();    // of the two
#pragma unroll
    for (int c = 0; c + 1 < CHUNKS; c += 2) {
        const float even = float_of(greatest(0, held[c])), odd = float_of(greatest(0, held[c + 1]));
        const float other = shuffle_xor(mine ? even : odd, 1);
        const Scale::Stored own = scaling.of(amax_of<T>(bits_of(Greatest::apply(mine ? odd : even, other))));
        if (begin + (c + mine) * CHUNK < slice.length) scales[(c + mine) * (CHUNK / GROUP)] = own;
        const float inverse = scaling.inverse(own), of_other = shuffle_xor(inverse, 1);
        store(c, mine ? of_other : inverse);
        store(c + 1, mine ? inverse : of_other);
    }
#else
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        const int64_t first = begin + c * CHUNK;
        const float most = reduce_warp<Greatest, GROUP_LANES>(float_of(greatest(0, held[c])));
        const Scale::Stored own = scaling.of(amax_of<T>(bits_of(most)));
        if (group_lane() == 0 && first < slice.length) scales[c * (CHUNK / GROUP)] = own;
#if STRIDED
        store_part(target, first, slice.length, held[c], scaling.inverse(own));
#else
        const int64_t column = first + group_lane() * VEC;
        store_lane(target + c * (CHUNK / IN_BYTE), column, slice.length, held[c], scaling.inverse(own));
#endif
    }
#endif
}
#endif

#if PASS == TILES
// A block has a tile in its registers: LANES = GROUP_LANES, ROWS * CHUNKS = 128. Of `height` rows a matrix, `down` x
// `across` tiles.
KERNEL(THREADS)
void quantize_tiles(const T* x, uint8_t* q, float* scale, int64_t height, int64_t length, int64_t x_stride,
                    int64_t q_stride, int down, int across, float eps) {
    enter_pdl();
    static_assert(LANES == GROUP_LANES && ROWS * CHUNKS == GROUP, "a block has a tile");
    SHARED float of_warp[WARPS];
    const unsigned block = static_cast<unsigned>(block_x());
    const unsigned line = block / static_cast<unsigned>(across);
    const unsigned matrix = line / static_cast<unsigned>(down);
    const int64_t first = static_cast<int64_t>(block - line * across) * GROUP;
    const int64_t top = static_cast<int64_t>(line - matrix * down) * GROUP + row_slot();
    const int64_t row = matrix * height + top;
    Vector<T, VEC> held[CHUNKS];
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        held[c] = load_part(x + (row + c * ROWS) * x_stride, first, top + c * ROWS < height ? length : 0);
    }
    const float mine = reduce_warp<Greatest, WARP>(float_of(greatest(held)));
    if (warp_lane() == 0) of_warp[warp_index()] = mine;
    barrier();
    const float most = reduce_warp<Greatest, WARPS>(of_warp[warp_lane() & (WARPS - 1)]);
    const float own = scale_of(amax_of<T>(bits_of(most)), eps);
    const float inverse = div_rn(1.0f, own);
    if (thread_x() == 0) scale[block] = own;
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        store_part(q + (row + c * ROWS) * q_stride, first, top + c * ROWS < height ? length : 0, held[c], inverse);
    }
}
#endif
