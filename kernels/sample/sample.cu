// One token per row of logits, from exact integers: no sum depends on its order, so neither does the token (reference.py).
//
// A block has a row. It reads the row for its maximum, then for each filter in a search for the last token kept, then
// for the draw. A token's place is its rank as a number: the logit's bits as an ordered integer, then the index, the
// lowest of them highest. Places are distinct, so that each filter keeps those from one place on. Once a search has left
// few enough candidates they are compacted into shared memory, and all that follows reads them there.
//
// Defines: those of rows.h; HAS_OFFSET, HAS_TEMPERATURE, HAS_TOP_K, HAS_TOP_P, HAS_MIN_P; KEY_SHIFT, the low bits of a
// float32 that a logit of type T does not have.
#include "_lib/philox.h"
#include "_lib/rows/rows.h"

constexpr int INDEX_BITS = 21;
constexpr int DIGIT_BITS = 3;
constexpr int DIGITS = 1 << DIGIT_BITS;
constexpr int FRACTION_BITS = 24;
constexpr int FARTHEST = 40;
constexpr float SCALE = 24204406.0f;    // 2^24 / ln 2
constexpr float SMALLEST = 1.1754943508222875e-38f;
constexpr int32_t INFINITE = 0x7f800000;

DEVICE int64_t shuffle_xor(int64_t value, int mask) {
    const uint32_t low = shuffle_xor(static_cast<int>(value), mask);
    const int64_t high = shuffle_xor(static_cast<int>(value >> 32), mask);
    return (high << 32) | low;
}

// A logit's bits as an integer of the same order; both zeros are one.
DEVICE int32_t key_of(float x) {
    int32_t bits = static_cast<int32_t>(bits_of(x));
    if (bits == static_cast<int32_t>(0x80000000)) bits = 0;
    return (bits ^ ((bits >> 31) & 0x7fffffff)) >> KEY_SHIFT;
}
DEVICE float value_of(int32_t key) {
    const int32_t wide = static_cast<int32_t>(static_cast<uint32_t>(key) << KEY_SHIFT) | (key < 0 ? (1 << KEY_SHIFT) - 1 : 0);
    return float_of(static_cast<uint32_t>(wide ^ ((wide >> 31) & 0x7fffffff)));
}
DEVICE int64_t place_of(int32_t key, int column) {
    return (static_cast<int64_t>(key) << INDEX_BITS) + ((1 << INDEX_BITS) - 1 - column);
}

// floor(whole * f), where f is upper * 2^-31 + lower * 2^-62.
DEVICE int64_t part(int64_t whole, int64_t upper, int64_t lower) {
    const int64_t high = whole >> 31, low = whole & 0x7fffffff;
    return high * upper + ((high * lower + low * upper + ((low * lower) >> 31)) >> 31);
}

// The places of the tokens that a search has left, and how many each thread has put there.
constexpr int CAPACITY = 2048;
struct Candidates {
    int64_t place[CAPACITY];
    int count[THREADS];
};

struct Row {
    const T* logits;
    int length;
    Candidates* candidates;
    int compacted;   // candidates in shared memory, or -1: the tokens are the row's
    float top;       // the greatest logit
    int32_t first;   // its key
    float scale;
    int64_t cut;     // the last place that is kept
    int64_t least;   // the least weight that is

    // 2^40 * exp((x - top) / temperature). Without a branch: many of them at once cost registers for their joins.
    DEVICE int64_t weight(float x, int32_t key) const {
        const float distance = (top - x) * scale;
        const bool near = distance < static_cast<float>(FARTHEST << FRACTION_BITS);
        const uint32_t fixed = static_cast<uint32_t>(static_cast<int32_t>(near ? distance : 0.0f));
        const uint32_t fraction = fixed << (32 - FRACTION_BITS);
        uint32_t power = 19743523u - high_product(fraction, 2017903u);
        power = 118729907u - high_product(fraction, power);
        power = 515776670u - high_product(fraction, power);
        power = 1488514207u - high_product(fraction, power);
        power = 0x80000000u - high_product(fraction, power);
        const uint64_t found = static_cast<uint64_t>(power) << (FARTHEST - 31) >> (fixed >> FRACTION_BITS);
        return key == first ? 1ll << FARTHEST : near ? static_cast<int64_t>(found) : 0;
    }
    DEVICE int64_t kept_weight(float x, int column) const {
        const int32_t key = key_of(x);
        const int64_t found = weight(x, key);
        return place_of(key, column) >= cut && found >= least ? found : 0;
    }

    // Calls visit.token(logit, column, whether it is one) of the candidates, or else of the row's tokens and of places
    // behind them.
    template <class Visit> DEVICE void each(Visit& visit) const {
        if (compacted < 0) {
            each_of_row(visit);
            return;
        }
        for (int i = thread_x(); i < compacted; i += THREADS) {
            const int64_t place = candidates->place[i];
            const int column = (1 << INDEX_BITS) - 1 - static_cast<int>(place & ((1 << INDEX_BITS) - 1));
            visit.token(value_of(static_cast<int32_t>(place >> INDEX_BITS)), column, true);
        }
    }
    template <class Visit> DEVICE void each_of_row(Visit& visit) const {
        const T* source = lane_ptr(logits);
        for (int base = 0; base < length; base += static_cast<int>(TILE)) {
            Vector<T, VEC> held[CHUNKS];
            load_vectors<false>(held, source, base, length);
#pragma unroll
            for (int c = 0; c < CHUNKS; ++c) {
                const int column = base + chunk_column(c);
#pragma unroll
                for (int i = 0; i < VEC; ++i) {
                    visit.token(held[c][i], column + i, inside(column, i, length));
                }
            }
        }
    }
};

// The greatest place of a row, and the least, negated.
struct Ends {
    int64_t last, negated;

    DEVICE void token(float x, int column, bool real) {
        const int64_t place = place_of(key_of(x), column);
        last = real && place > last ? place : last;
        negated = real && -place > negated ? -place : negated;
    }
};

// Stores the places from `cut` on.
struct Compact {
    int64_t cut;
    int64_t* next;

    DEVICE void token(float x, int column, bool real) {
        const int64_t place = place_of(key_of(x), column);
        if (real && place >= cut) *next++ = place;
    }
};

// Compacts the row's tokens from `cut` on, of which the thread has `count`, into the candidates. Their order is that of
// threads; nothing depends on it.
DEVICE void compact(Row& row, int64_t cut, int count) {
    row.candidates->count[thread_x()] = count;
    barrier();
    int before = 0, all = 0;
    for (int warp = 0; warp < WARPS; ++warp) {
        int sum = row.candidates->count[warp * WARP + warp_lane()];
#pragma unroll
        for (int mask = WARP / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
        before += warp < warp_index() ? sum : 0;
        all += sum;
    }
    for (int lane = 0; lane < warp_lane(); ++lane) before += row.candidates->count[warp_index() * WARP + lane];
    Compact own{cut, row.candidates->place + before};
    row.each_of_row(own);
    barrier();
    row.compacted = all;
}

// From each of DIGITS places on, `cut` and every 2^shift above it: how many tokens there are below the last of them, of
// weights that are not 0 if WEIGHED, and their weights. BY_COLUMN: a token's place is its column, its weight 0 where it
// is not kept.
template <bool WEIGHED, bool BY_COLUMN> struct Measure {
    const Row& row;
    int64_t cut;
    int shift;
    int64_t sum[DIGITS];
    int count[DIGITS];

    DEVICE Measure(const Row& row, int64_t cut, int shift) : row(row), cut(cut), shift(shift) {
#pragma unroll
        for (int d = 0; d < DIGITS; ++d) sum[d] = count[d] = 0;
    }
    DEVICE void token(float x, int column, bool real) {
        const int32_t key = key_of(x);
        const int64_t place = BY_COLUMN ? column : place_of(key, column);
        const uint64_t digits = static_cast<uint64_t>(place - cut) >> shift;
        if (!real || digits >= DIGITS) return;
        const int64_t weight = BY_COLUMN ? row.kept_weight(x, column) : WEIGHED ? row.weight(x, key) : 1;
        const int digit = weight > 0 ? static_cast<int>(digits) : -1;
#pragma unroll
        for (int d = 0; d < DIGITS; ++d) {
            count[d] += digit >= d;
            if constexpr (WEIGHED) sum[d] += digit >= d ? weight : 0;
        }
    }
    // The same of the whole warp, in all of its lanes.
    DEVICE void add_lanes() {
#pragma unroll
        for (int d = 0; d < DIGITS; ++d) {
#pragma unroll
            for (int mask = WARP / 2; mask > 0; mask /= 2) {
                count[d] += shuffle_xor(count[d], mask);
                if constexpr (WEIGHED) sum[d] += shuffle_xor(sum[d], mask);
            }
        }
    }
};

// What warps tell each other. Uses alternate between two copies, so that each needs one barrier.
struct Exchange {
    int64_t sum[2][WARPS][DIGITS];
    int count[2][WARPS][DIGITS];
};

// The greatest of all threads' values.
DEVICE int64_t greatest(int64_t value, Exchange& exchange, int& turn) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        const int64_t other = shuffle_xor(value, mask);
        value = other > value ? other : value;
    }
    turn ^= 1;
    if (warp_lane() == 0) exchange.sum[turn][warp_index()][0] = value;
    barrier();
    for (int warp = 0; warp < WARPS; ++warp) {
        const int64_t other = exchange.sum[turn][warp][0];
        value = other > value ? other : value;
    }
    return value;
}

// The greatest place from which on tokens measure `target` or more; from `cut` on they do. WEIGHED: the measure is the
// sum of weights, and the target `share` * 2^-31 of what it is from `cut` on; BY_COLUMN it is more than what `share`
// * 2^-31 + `lower` * 2^-62 of it leaves; else it is their number, and the target `share`. Each pass over the tokens cuts
// the places in question by DIGITS, until one token is left.
template <bool WEIGHED, bool BY_COLUMN = false>
DEVICE int64_t search(Row& row, int64_t cut, int64_t last, int64_t share, Exchange& exchange, int& turn,
                      int64_t lower = 0) {
    int shift = 0;
    while ((last - cut) >> shift >= DIGITS) shift += DIGIT_BITS;
    int64_t target = share, above = 0;
    int counted = 0, own_counted = 0;    // tokens above those in question, of the row and of the thread
    for (bool begun = !WEIGHED;; begun = true) {
        Measure<WEIGHED, BY_COLUMN> own(row, cut, shift);
        row.each(own);
        int own_count[DIGITS];
#pragma unroll
        for (int d = 0; d < DIGITS; ++d) own_count[d] = own.count[d];
        own.add_lanes();
        turn ^= 1;
        if (warp_lane() == 0) {
#pragma unroll
            for (int d = 0; d < DIGITS; ++d) {
                exchange.count[turn][warp_index()][d] = own.count[d];
                if constexpr (WEIGHED) exchange.sum[turn][warp_index()][d] = own.sum[d];
            }
        }
        barrier();
        // Lane l adds digit l % DIGITS of every WARP / DIGITS-th warp.
        const int mine = warp_lane() % DIGITS;
        int number = 0;
        int64_t measure = 0;
        for (int warp = warp_lane() / DIGITS; warp < WARPS; warp += WARP / DIGITS) {
            number += exchange.count[turn][warp][mine];
            if constexpr (WEIGHED) measure += exchange.sum[turn][warp][mine];
        }
#pragma unroll
        for (int mask = DIGITS; mask < WARP; mask *= 2) {
            number += shuffle_xor(number, mask);
            if constexpr (WEIGHED) measure += shuffle_xor(measure, mask);
        }
        if constexpr (!WEIGHED) measure = number;
        if (!begun) {
            // The first digit's is the greatest: what all have.
            int64_t all = measure;
#pragma unroll
            for (int mask = 1; mask < DIGITS; mask *= 2) {
                const int64_t other = shuffle_xor(all, mask);
                all = other > all ? other : all;
            }
            target = part(all, share, lower);
            if (BY_COLUMN) target = all - target;
            if (target < 1) target = 1;
        }
        // The digits whose measure is enough come first; of the next one, what it has is above those that are left.
        const bool enough = above + measure >= target;
        int digits = enough, fewest = enough ? number : 0x7fffffff, rest = enough ? 0 : number;
        int64_t beyond = enough ? 0 : measure;
#pragma unroll
        for (int mask = 1; mask < DIGITS; mask *= 2) {
            digits += shuffle_xor(digits, mask);
            const int few = shuffle_xor(fewest, mask), many = shuffle_xor(rest, mask);
            fewest = few < fewest ? few : fewest;
            rest = many > rest ? many : rest;
            const int64_t other = shuffle_xor(beyond, mask);
            beyond = other > beyond ? other : beyond;
        }
        cut += static_cast<int64_t>(digits - 1) << shift;
        if (shift == 0 || (!BY_COLUMN && fewest - rest == 1)) return cut;
        if (!BY_COLUMN && row.compacted < 0) {
            int kept = 0, above_digit = 0;
#pragma unroll
            for (int d = 0; d < DIGITS; ++d) {
                kept = d == digits - 1 ? own_count[d] : kept;
                above_digit = d == digits ? own_count[d] : above_digit;
            }
            // Tokens whose weight is 0 are not counted: none of them may be from the cut on.
            const int32_t key = static_cast<int32_t>(cut >> INDEX_BITS);
            const bool exact = !WEIGHED || row.weight(value_of(key), key) > 0;
            if (exact && counted + fewest <= CAPACITY) compact(row, cut, own_counted + kept);
            own_counted += above_digit;
        }
        counted += rest;
        above += beyond;
        shift -= DIGIT_BITS;
    }
}

// The first token whose weight and all before it are more than a random part of all weights. Of a whole row each pass
// gives every warp an equal range of the tokens, and goes on with the range that has it.
DEVICE int draw(Row& row, int64_t seed, int64_t offset, Exchange& exchange, int& turn) {
    const Random4 random = philox(static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32), 0, 0,
                                  static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    const int64_t upper = random.w[0] >> 1, lower = random.w[1] >> 1;
    if (row.compacted >= 0) {
        return static_cast<int>(search<true, true>(row, 0, row.length - 1, upper, exchange, turn, lower));
    }
    int begin = 0, end = row.length;
    int64_t wanted = -1;
    for (;;) {
        const int span = ((end - begin + WARPS - 1) / WARPS + VEC - 1) / VEC * VEC;
        const int from = begin + warp_index() * span;
        const int to = from + span < end ? from + span : end;
        int64_t sum = 0;
        for (int column = from + warp_lane() * VEC; column < to; column += WARP * VEC) {
            const Vector<T, VEC> held = load_vector<false>(row.logits + column, column, row.length);
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (inside(column, i, to)) sum += row.kept_weight(held[i], column + i);
            }
        }
#pragma unroll
        for (int mask = WARP / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
        turn ^= 1;
        if (warp_lane() == 0) exchange.sum[turn][warp_index()][0] = sum;
        barrier();
        if (wanted < 0) {
            int64_t all = 0;
            for (int warp = 0; warp < WARPS; ++warp) all += exchange.sum[turn][warp][0];
            wanted = part(all, upper, lower);
        }
        int warp = 0;
        for (; warp < WARPS - 1; ++warp) {
            const int64_t here = exchange.sum[turn][warp][0];
            if (wanted < here) break;
            wanted -= here;
        }
        begin += warp * span;
        end = begin + span < end ? begin + span : end;
        if (span == VEC) break;
    }
    for (; begin < end - 1; ++begin) {
        wanted -= row.kept_weight(to_float(row.logits[begin]), begin);
        if (wanted < 0) break;
    }
    return begin;
}

KERNEL_RESIDENT(THREADS, 1)
void sample(const T* logits, const int64_t* seed, const int64_t* offset, const float* temperature, const int32_t* top_k,
            const float* top_p, const float* min_p, int64_t* token, int length, int64_t logits_stride) {
    enter_pdl();
    SHARED Exchange exchange;
    SHARED Candidates candidates;
    int turn = 0;
    const int64_t at = block_x();
    Row row{logits + at * logits_stride, length, &candidates, -1};

    Ends ends{-1ll << 62, -1ll << 62};
    row.each(ends);
    const int64_t last = greatest(ends.last, exchange, turn);
    row.cut = -greatest(ends.negated, exchange, turn);

    // NaNs lie beyond the infinities, above or below them.
    row.first = static_cast<int32_t>(last >> INDEX_BITS);
    const int32_t lowest = static_cast<int32_t>(row.cut >> INDEX_BITS);
    const int32_t minus_infinity = (INFINITE ^ static_cast<int32_t>(0xffffffff)) >> KEY_SHIFT;
    int found = (1 << INDEX_BITS) - 1 - static_cast<int>(last & ((1 << INDEX_BITS) - 1));
    const float heat = HAS_TEMPERATURE ? temperature[at] : 1.0f;
    if (row.first > INFINITE >> KEY_SHIFT || lowest < minus_infinity || row.first == minus_infinity) {
        found = -1;
    } else if (heat >= SMALLEST) {
        row.top = value_of(row.first);
        row.scale = div_rn(SCALE, heat);
        row.least = 0;
        if (HAS_TOP_K) {
            const int32_t count = top_k[at];
            if (count > 0 && count < length) row.cut = search<false>(row, row.cut, last, count, exchange, turn);
        }
        if (HAS_TOP_P) {
            const float share = top_p[at];
            if (share < 1.0f) {
                const int64_t fixed = share > 0.0f ? static_cast<int64_t>(share * 2147483648.0f) : 0;
                row.cut = search<true>(row, row.cut, last, fixed, exchange, turn);
            }
        }
        if (HAS_MIN_P) {
            const float share = min_p[at];
            if (share > 0.0f) row.least = static_cast<int64_t>((share < 1.0f ? share : 1.0f) * 1099511627776.0f);
        }
        found = draw(row, seed[at], HAS_OFFSET ? offset[at] : 0, exchange, turn);
    }
    if (thread_x() == 0) token[at] = found;
}
