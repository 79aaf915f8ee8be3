// sums[n] = the sum over k of b[k, n], in int32 modulo 2^32, of a column-major int8 b whose columns begin at multiples of
// 16 bytes. A warp adds up a column.
//
// Defines: COLUMNS, of a block.
#include "_lib/ptx/pdl.h"

// sum + the sum of four codes.
DEVICE int add_codes(uint32_t codes, int sum) { return __dp4a(static_cast<int>(codes), 0x01010101, sum); }

KERNEL(COLUMNS * 32)
void column_sums(const int8_t* b, int* sums, int n, int k, int64_t leading) {
    enter_pdl();
    const int column = block_x() * COLUMNS + thread_x() / 32, lane = thread_x() % 32;
    if (column >= n) return;
    const int8_t* const line = b + column * leading;
    const int whole = k / 16 * 16;
    int sum = 0;
#pragma unroll 4
    for (int at = lane * 16; at < whole; at += 32 * 16) {
        const words<16> codes = load_words<16>(line + at);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum = add_codes(codes.w[i], sum);
    }
    if (whole + lane < k) sum += line[whole + lane];
#pragma unroll
    for (int mask = 16; mask; mask /= 2)
        sum = static_cast<int>(static_cast<uint32_t>(sum) + static_cast<uint32_t>(shuffle_xor(sum, mask)));
    if (lane == 0) sums[column] = sum;
}
