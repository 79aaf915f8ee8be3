// The workgroup's memory (LDS): reads and writes.
//
// Any alignment is legal for b8..b128 reads and writes: HSA runs in unaligned access mode (LLVM AMDGPU usage guide,
// target feature unaligned-access-mode; LLVM, feature unaligned-ds-access of gfx9 and later). An address beyond the
// workgroup's LDS would read 0 and drop writes on hardware; here it is a fault.
#include "lds.h"
#include "counters.h"
#include "exchange.h"
#include "flight.h"
#include "lds_marks.h"
#include "nearly.h"

#define ONES 0x0101010101010101ull

// Bounds -------------------------------------------------------------------------------------------

int lds_bounds(Wave *w, const Inst *in, mask64 m, const uint64_t *at, int bytes, const char *verb) {
    const uint64_t size = w->group->lds_size;
    EACH_ACTIVE(m, i) {
        if (at[i] > size || size - at[i] < (uint64_t)bytes) {
            const uint64_t end = at[i] + (uint64_t)bytes;
            return fault(w, in, F_BOUNDS, i, at[i], "%s of %d bytes ends %llu bytes beyond the workgroup's LDS of %llu bytes",
                         verb, bytes, (unsigned long long)(end - size), (unsigned long long)size);
        }
    }
    return GO;
}

// Races --------------------------------------------------------------------------------------------

// 8, 4, 2 or 1 bytes at once; anything but "nobody or only me" goes byte by byte.
INLINE uint64_t load_uint(const uint8_t *p, int n) {
    return n == 8 ? quad_at(p) : n == 4 ? word_at(p) : n == 2 ? half_at(p) : byte_at(p);
}
INLINE uint64_t repeat_byte(uint64_t byte, int n) { return byte * (n == 8 ? ONES : n == 4 ? 0x01010101u : n == 2 ? 0x0101u : 1u); }

// The lanes whose reads race.
INLINE mask64 races_of_read(Wave *w, const Inst *in, mask64 m, const uint64_t *at, int bytes) {
    Group *g = w->group;
    uint8_t *writer = g->lds_writer, *reader = g->lds_reader;
    const int step = bytes >= 8 && bytes != 12 ? 8 : bytes == 12 ? 4 : bytes;
    mask64 racing = 0;
    const uint64_t mine = repeat_byte(wave_mark(w), step), many = repeat_byte(MANY_READERS, step);
    EACH_ACTIVE(m, i) {
        for (int b = 0; b < bytes; b += step) {
            const uint64_t writers = load_uint(writer + at[i] + b, step), readers = load_uint(reader + at[i] + b, step);
            if (__builtin_expect((writers == 0) | (writers == mine), 1)) {
                if ((readers == mine) | (readers == many)) continue;
                if (readers == 0) {
                    memcpy(reader + at[i] + b, &mine, (size_t)step);
                    continue;
                }
                if (readers == repeat_byte(readers & 0xff, step)) {  // one other wave
                    memcpy(reader + at[i] + b, &many, (size_t)step);
                    continue;
                }
            }
            if (read_bytes(w, in, i, at[i] + (uint64_t)b, step)) racing |= 1ull << i;
        }
    }
    return racing;
}

INLINE int races_of_write(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, const uint32_t *from) {
    Group *g = w->group;
    const int bytes = kind_bytes(k);
    uint8_t *writer = g->lds_writer, *reader = g->lds_reader;
    const int step = bytes >= 8 && bytes != 12 ? 8 : bytes == 12 ? 4 : bytes;
    const uint64_t mine = repeat_byte(wave_mark(w), step);
    EACH_ACTIVE(m, i) {
        for (int b = 0; b < bytes; b += step) {
            const uint64_t writers = load_uint(writer + at[i] + b, step), readers = load_uint(reader + at[i] + b, step);
            const bool unread = (readers == 0) | (readers == mine);
            if (__builtin_expect(((writers == 0) | (writers == mine)) & unread, 1))
                memcpy(writer + at[i] + b, &mine, (size_t)step);
            else {
                uint8_t own[16];
                store_element(k, from + i, own);
                // One other wave has written the same: as write_bytes, which goes byte by byte.
                if (unread && (writers & 0xff) && (writers & 0xff) < ATOMIC && writers == repeat_byte(writers & 0xff, step) &&
                    load_uint(own + b, step) == load_uint(g->lds + at[i] + b, step))
                    continue;
                if (write_bytes(w, in, i, at[i] + b, step, own + b)) return STOP;
            }
        }
    }
    return GO;
}

// Reads --------------------------------------------------------------------------------------------

INLINE bool all_defined(const Group *g, enum Kind k, mask64 m, const uint64_t *at) {
    const int bytes = kind_bytes(k), step = bytes == 12 ? 4 : bytes > 8 ? 8 : bytes;
    uint64_t whole = ~0ull;
    EACH_ACTIVE(m, i)
        for (int b = 0; b < bytes; b += step) whole &= load_uint(g->lds_def + at[i] + b, step);
    return whole == repeat_byte(DEFINED, step);
}

// Which halves of what lane i loaded are defined, byte by byte.
static void halves_of_load(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, mask64 *lo, mask64 *hi) {
    const uint8_t *def = w->group->lds_def;
    const int bytes = kind_bytes(k);
    EACH_ACTIVE(m, i) {
        const mask64 bit = 1ull << i;
        const uint8_t *d = def + at[i];
        bool whole = true, written = true;
        for (int b = 0; b < bytes; b++) whole &= d[b] == DEFINED, written &= d[b] != NEVER_WRITTEN;
        if (!written) note_origin(w, in, F_UNINITIALISED, i, at[i]);
        else if (!whole) w->origin = w->group->stored_origin;
        if (bytes >= 4) {
            for (int n = 0; n < kind_words(k); n++) {
                lo[n] = (lo[n] & ~bit) | (d[4 * n] == DEFINED && d[4 * n + 1] == DEFINED ? bit : 0);
                hi[n] = (hi[n] & ~bit) | (d[4 * n + 2] == DEFINED && d[4 * n + 3] == DEFINED ? bit : 0);
            }
        } else {
            if (!kind_upper(k)) lo[0] = (lo[0] & ~bit) | (whole ? bit : 0);
            if (!kind_lower(k)) hi[0] = (hi[0] & ~bit) | (whole || k == K_U8 || k == K_U16 ? bit : 0);
        }
    }
}

INLINE int load_kind(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, uint32_t *to, mask64 *lo, mask64 *hi) {
    Group *g = w->group;
    const int bytes = kind_bytes(k);
    uint64_t low, high;
    mask64 racing = 0;
    address_range(at, m, &low, &high);
    const uint64_t end = high + (uint64_t)bytes;
    if (high > g->lds_size || g->lds_size - high < (uint64_t)bytes) return lds_bounds(w, in, m, at, bytes, "read");
    if (w->launch->memory) count_lds(w, in, m, at, (uint32_t)bytes, LDS_READ);
    if (g->lates && lds_check_late(w, in, m, at, k, LDS_READ, NULL)) return STOP;
    if (g->waves > 1) {
        if (!note_read(w, m, at, bytes, low, end)) {
            mark_range(g, low, end);
            racing = races_of_read(w, in, m, at, bytes);
        }
        lds_take_off(w, in, m, at, bytes, LDS_READ);
    }
    gather_from(k, to, (uintptr_t)g->lds, at, m);
    if (known_whole(g, low, end) || find_whole(g, low, end) || all_defined(g, k, m, at)) define(k, lo, hi, m);
    else halves_of_load(w, in, k, m, at, lo, hi);
    if (__builtin_expect(racing != 0, 0)) taint(k, lo, hi, racing);
    return GO;
}

// Writes -------------------------------------------------------------------------------------------

static void halves_of_store(Wave *w, enum Kind k, mask64 m, const uint64_t *at, const mask64 *lo, const mask64 *hi) {
    uint8_t *def = w->group->lds_def;
    const int bytes = kind_bytes(k);
    w->group->stored_origin = w->origin;
    forget_whole(w->group);
    EACH_ACTIVE(m, i) {
        uint8_t *d = def + at[i];
        if (bytes < 4)
            memset(d, defined_as((kind_upper(k) ? hi[0] : lo[0]) >> i), (size_t)bytes);
        else
            for (int n = 0; n < kind_words(k); n++) {
                d[4 * n] = d[4 * n + 1] = defined_as(lo[n] >> i);
                d[4 * n + 2] = d[4 * n + 3] = defined_as(hi[n] >> i);
            }
    }
}

// Two active lanes of one instruction that write different values to one place: who wins is not defined. Each lane
// looks for its own value after all have written.
static int conflicting_lane(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, const uint32_t *from) {
    Scale scale = {0, 0};
    EACH_ACTIVE(m, i) {
        uint8_t own[16];
        store_element(k, from + i, own);
        widen_scale(&scale, own, kind_bytes(k));
    }
    EACH_ACTIVE(m, i) {
        uint8_t own[16];
        store_element(k, from + i, own);
        const uint8_t *there = w->group->lds + at[i];
        bool same = true;
        for (int b = 0; b < kind_bytes(k); b++) same &= equal_or_both_nan(own, there, b, kind_bytes(k));
        if (!same && nearly_equal(own, there, kind_bytes(k), scale))
            warn(w, in, F_ROUNDING, i, at[i],
                 "two lanes of one instruction write values to byte %llu of LDS that differ by rounding: %s, and %s after it"
                 UNEQUAL_SUMS, (unsigned long long)at[i], hex_of(own, kind_bytes(k), (char[40]){0}),
                 hex_of(there, kind_bytes(k), (char[40]){0}));
        else if (!same)
            return fault(w, in, F_RACE, i, at[i],
                         "two lanes of one instruction write different values to byte %llu of LDS: %s, and %s after it",
                         (unsigned long long)at[i], hex_of(own, kind_bytes(k), (char[40]){0}),
                         hex_of(there, kind_bytes(k), (char[40]){0}));
    }
    return GO;
}

INLINE bool element_equals(enum Kind k, const uint32_t *from, const uint8_t *p) {
    switch (kind_bytes(k)) {
    case 1: return byte_at(p) == (from[0] >> (kind_upper(k) ? 16 : 0) & 0xff);
    case 2: return half_at(p) == (from[0] >> (kind_upper(k) ? 16 : 0) & 0xffff);
    default: {
        uint32_t differ = 0;
        for (int n = 0; n < kind_words(k); n++) differ |= word_at(p + 4 * n) ^ from[n * LANES];
        return differ == 0;
    }
    }
}

INLINE int verify_kind(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, const uint32_t *from) {
    const uint8_t *data = w->group->lds;
    bool all = true;
    if (m == ~0ull)
        EACH all &= element_equals(k, from + i, data + at[i]);
    else
        EACH_ACTIVE(m, i) all &= element_equals(k, from + i, data + at[i]);
    return all ? GO : conflicting_lane(w, in, k, m, at, from);
}

// `block`: whether the lanes fill a block, so that none writes where another does.
INLINE int put_kind(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, const uint32_t *from, const mask64 *lo,
                    const mask64 *hi, bool *block) {
    Group *g = w->group;
    const int bytes = kind_bytes(k), step = bytes == 12 ? 4 : bytes > 8 ? 8 : bytes;
    uint64_t low, high;
    address_range(at, m, &low, &high);
    const uint64_t end = high + (uint64_t)bytes;
    if (high > g->lds_size || g->lds_size - high < (uint64_t)bytes) return lds_bounds(w, in, m, at, bytes, "write");
    *block = fill_block(m, at, bytes, low, end);
    if (w->launch->memory) count_lds(w, in, m, at, (uint32_t)bytes, LDS_WRITE);
    if ((g->lates | in->flight.to_lds) && lds_check_late(w, in, m, at, k, LDS_WRITE, from)) return STOP;
    if (g->waves > 1) {
        settle_reads_in(g, low, end);
        mark_written_range(g, low, end);
        const uint32_t me = wave_mark(w);
        if (*block && only_mine(g->lds_writer + low, me, end - low) && only_mine(g->lds_reader + low, me, end - low))
            memset(g->lds_writer + low, (int)me, end - low);
        else if (races_of_write(w, in, k, m, at, from))
            return STOP;
    }
    if ((g->waves > 1) | in->flight.to_lds) lds_take_off(w, in, m, at, bytes, LDS_WRITE);
    scatter_to(k, from, (uintptr_t)g->lds, at, m);
    uint8_t *def = g->lds_def;
    const uint64_t ones = ONES;
    const bool whole = !(m & ~defined_for(k, lo, hi));
    if (*block)
        memset(def + low, DEFINED, end - low);
    else if (m == ~0ull)
        EACH for (int b = 0; b < bytes; b += step) memcpy(def + at[i] + b, &ones, (size_t)step);
    else
        EACH_ACTIVE(m, i)
            for (int b = 0; b < bytes; b += step) memcpy(def + at[i] + b, &ones, (size_t)step);
    if (!whole) halves_of_store(w, k, m, at, lo, hi);
    return GO;
}

INLINE int store_kind(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, const uint32_t *from, const mask64 *lo,
                      const mask64 *hi) {
    bool block;
    if (put_kind(w, in, k, m, at, from, lo, hi, &block)) return STOP;
    return block ? GO : verify_kind(w, in, k, m, at, from);
}

// For other files: the same with the kind known only at run time.
int lds_load(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, uint32_t *to, mask64 *lo, mask64 *hi) {
    switch (k) {
#define CASE(kind) case kind: return load_kind(w, in, kind, m, at, to, lo, hi);
        ALL_KINDS(CASE)
#undef CASE
    }
    return STOP;
}
int lds_store(Wave *w, const Inst *in, enum Kind k, mask64 m, const uint64_t *at, const uint32_t *from, const mask64 *lo,
              const mask64 *hi) {
    switch (k) {
#define CASE(kind) case kind: return store_kind(w, in, kind, m, at, from, lo, hi);
        ALL_KINDS(CASE)
#undef CASE
    }
    return STOP;
}

// The 16 bits of M0 on gfx90a and gfx942; all of it on gfx950, whose LDS of 160 KiB needs more.
int lds_dma_addresses(Wave *w, const Inst *in, mask64 m, int step, int imm, uint64_t *at) {
    const uint32_t used = w->launch->arch == GFX950 ? ~0u : 0xffffu;
    if (~w->sdef[M0] & used) return undefined(w, in, __builtin_ctzll(m), ~0ull, "the LDS address in M0");
    const uint64_t base = (w->s[M0] & used) + (uint64_t)(int64_t)imm;
    EACH at[i] = base + (uint64_t)(i * step);
    return GO;
}

// Instructions -------------------------------------------------------------------------------------

INLINE int ds_addresses(Wave *w, const Inst *in, mask64 m, uint64_t offset, uint64_t *at) {
    const Operand *o = &in->src[0];
    if (!vectors_fit(o, 1)) return bad_registers(w, in);
    const uint32_t *v = VREG(w, o->index);
    const mask64 missing = m & ~(w->lo[o->index] & w->hi[o->index]);
    if (missing) return undefined(w, in, __builtin_ctzll(missing), ~0ull, "an address");
    // The sum wraps: compilers put a negative base under a positive offset.
    EACH at[i] = (uint32_t)(v[i] + offset);
    return GO;
}

INLINE int ds_read(Wave *w, const Inst *in, enum Kind k) {
    const mask64 m = exec_of(w);
    uint64_t at[LANES];
    if (!m) return GO;
    if (!vectors_fit(&in->dst[0], kind_words(k))) return bad_registers(w, in);
    if (ds_addresses(w, in, m, (uint64_t)(int64_t)in->imm, at)) return STOP;
    const int reg = in->dst[0].index;
    return load_kind(w, in, k, m, at, VREG(w, reg), &w->lo[reg], &w->hi[reg]);
}

INLINE int ds_write(Wave *w, const Inst *in, enum Kind k) {
    const mask64 m = exec_of(w);
    uint64_t at[LANES];
    if (!m) return GO;
    if (!vectors_fit(&in->src[1], kind_words(k))) return bad_registers(w, in);
    if (ds_addresses(w, in, m, (uint64_t)(int64_t)in->imm, at)) return STOP;
    const int reg = in->src[1].index;
    return store_kind(w, in, k, m, at, VREG(w, reg), &w->lo[reg], &w->hi[reg]);
}

// Two elements per lane; the offsets count elements, or 64 of them.
INLINE int ds_read2(Wave *w, const Inst *in, enum Kind k, uint64_t scale) {
    const mask64 m = exec_of(w);
    const int words = kind_words(k);
    uint64_t first[LANES], second[LANES];
    if (!m) return GO;
    if (!vectors_fit(&in->dst[0], 2 * words)) return bad_registers(w, in);
    if (ds_addresses(w, in, m, in->aux[0] * scale, first) || ds_addresses(w, in, m, in->aux[1] * scale, second)) return STOP;
    const int a = in->dst[0].index, b = a + words;
    if (load_kind(w, in, k, m, first, VREG(w, a), &w->lo[a], &w->hi[a])) return STOP;
    return load_kind(w, in, k, m, second, VREG(w, b), &w->lo[b], &w->hi[b]);
}

INLINE int ds_write2(Wave *w, const Inst *in, enum Kind k, uint64_t scale) {
    const mask64 m = exec_of(w);
    uint64_t first[LANES], second[LANES];
    if (!m) return GO;
    if (!vectors_fit(&in->src[1], kind_words(k)) || !vectors_fit(&in->src[2], kind_words(k))) return bad_registers(w, in);
    if (ds_addresses(w, in, m, in->aux[0] * scale, first) || ds_addresses(w, in, m, in->aux[1] * scale, second)) return STOP;
    const int a = in->src[1].index, b = in->src[2].index;
    bool block;
    if (put_kind(w, in, k, m, first, VREG(w, a), &w->lo[a], &w->hi[a], &block)) return STOP;
    if (put_kind(w, in, k, m, second, VREG(w, b), &w->lo[b], &w->hi[b], &block)) return STOP;
    return verify_kind(w, in, k, m, first, VREG(w, a)) || verify_kind(w, in, k, m, second, VREG(w, b));
}

#define READS(X)                                                                                                      \
    X(ds_read_u8, K_U8) X(ds_read_i8, K_I8) X(ds_read_u16, K_U16) X(ds_read_i16, K_I16) X(ds_read_b32, K_B32)         \
    X(ds_read_b64, K_B64) X(ds_read_b96, K_B96) X(ds_read_b128, K_B128) X(ds_read_u8_d16, K_D16_U8)                   \
    X(ds_read_u8_d16_hi, K_HI_U8) X(ds_read_i8_d16, K_D16_I8) X(ds_read_i8_d16_hi, K_HI_I8) X(ds_read_u16_d16, K_D16) \
    X(ds_read_u16_d16_hi, K_HI)
#define WRITES(X)                                                                                                     \
    X(ds_write_b8, K_U8) X(ds_write_b16, K_U16) X(ds_write_b32, K_B32) X(ds_write_b64, K_B64) X(ds_write_b96, K_B96)  \
    X(ds_write_b128, K_B128) X(ds_write_b8_d16_hi, K_HI_U8) X(ds_write_b16_d16_hi, K_HI)
#define DEFINE_READ(name, kind) static int name(Wave *w, const Inst *in) { return ds_read(w, in, kind); }
#define DEFINE_WRITE(name, kind) static int name(Wave *w, const Inst *in) { return ds_write(w, in, kind); }
READS(DEFINE_READ)
WRITES(DEFINE_WRITE)
#define PAIRS(X) X(2_b32, K_B32, 4) X(2_b64, K_B64, 8) X(2st64_b32, K_B32, 256) X(2st64_b64, K_B64, 512)
#define DEFINE_PAIR(name, kind, scale) \
    static int ds_read##name(Wave *w, const Inst *in) { return ds_read2(w, in, kind, scale); } \
    static int ds_write##name(Wave *w, const Inst *in) { return ds_write2(w, in, kind, scale); }
PAIRS(DEFINE_PAIR)

// M0[15:0] + offset + 4 * lane (pseudocode of the ISA guides).
INLINE int addtid_addresses(Wave *w, const Inst *in, mask64 m, uint64_t *at) {
    if (~w->sdef[M0] & 0xffff) return undefined(w, in, __builtin_ctzll(m), ~0ull, "the LDS address in M0");
    EACH at[i] = (w->s[M0] & 0xffff) + (uint64_t)(int64_t)in->imm + 4 * (uint64_t)i;
    return GO;
}
static int ds_read_addtid_b32(Wave *w, const Inst *in) {
    const mask64 m = exec_of(w);
    uint64_t at[LANES];
    if (!m) return GO;
    if (!vectors_fit(&in->dst[0], 1)) return bad_registers(w, in);
    if (addtid_addresses(w, in, m, at)) return STOP;
    const int reg = in->dst[0].index;
    return load_kind(w, in, K_B32, m, at, VREG(w, reg), &w->lo[reg], &w->hi[reg]);
}
// The assembler names the data first; without an address it is the only source.
static int ds_write_addtid_b32(Wave *w, const Inst *in) {
    const mask64 m = exec_of(w);
    uint64_t at[LANES];
    const Operand *data = in->src[0].kind == VGPR ? &in->src[0] : &in->src[1];
    if (!m) return GO;
    if (!vectors_fit(data, 1)) return bad_registers(w, in);
    if (addtid_addresses(w, in, m, at)) return STOP;
    return lds_store(w, in, K_B32, m, at, VREG(w, data->index), &w->lo[data->index], &w->hi[data->index]);
}

// Transposing reads (CDNA4 ISA guide, "MFMA transpose load from LDS") ------------------------------

// Each group of 16 lanes reads `rows` x 16 elements, 16 / rows lanes to a row, and lane c of the group gets column c:
// its element r is element c % rows of what lane r * (16 / rows) + c / rows read, where a lane holds `rows` elements
// of `width` bits. All lanes must be active.
INLINE int transposing(Wave *w, const Inst *in, enum Kind k, int width) {
    const mask64 m = exec_of(w);
    const int words = kind_words(k), rows = words * 32 / width;
    uint64_t at[LANES];
    uint32_t read[4 * LANES], out[4 * LANES] = {0};
    mask64 lo[4] = {0}, hi[4] = {0}, to_lo[4], to_hi[4];
    if (!m) return GO;
    if (!vectors_fit(&in->dst[0], words)) return bad_registers(w, in);
    if (m != w->full)
        return fault(w, in, F_INACTIVE, __builtin_ctzll(w->full & ~m), ~0ull, "a transposing read needs every lane active");
    if (ds_addresses(w, in, m, (uint64_t)(int64_t)in->imm, at)) return STOP;
    if (load_kind(w, in, k, m, at, read, lo, hi)) return STOP;
    mask64 known = ~0ull;
    for (int n = 0; n < words; n++) {
        to_lo[n] = to_hi[n] = ~0ull;
        known &= lo[n] & hi[n];
    }
    const bool follow = (known & m) != m;
    for (int lane = 0; lane < (int)w->lanes; lane++) {
        const int column = lane & 15, element = column % rows;
        for (int r = 0; r < rows; r++) {
            const int from = (lane & ~15) + r * (16 / rows) + column / rows;
            const int source = element * width, target = r * width;
            if (width == 6) {  // elements cross words
                for (int b = 0; b < width; b++)
                    out[(target + b) / 32 * LANES + lane] |=
                        (read[(source + b) / 32 * LANES + from] >> (source + b) % 32 & 1) << (target + b) % 32;
            } else {
                const uint32_t bits = read[source / 32 * LANES + from] >> source % 32 & ((1u << width) - 1);
                out[target / 32 * LANES + lane] |= bits << target % 32;
            }
            for (int b = 0; follow && b < width; b++) {
                const mask64 *def = (source + b) % 32 < 16 ? lo : hi;
                mask64 *to = (target + b) % 32 < 16 ? to_lo : to_hi;
                if (!(def[(source + b) / 32] >> from & 1)) to[(target + b) / 32] &= ~(1ull << lane);
            }
        }
    }
    const int reg = in->dst[0].index;
    for (int n = 0; n < words; n++) write_words(w, reg + n, out + n * LANES, m, to_lo[n], to_hi[n]);
    return GO;
}
static int ds_read_b64_tr_b16(Wave *w, const Inst *in) { return transposing(w, in, K_B64, 16); }
static int ds_read_b64_tr_b8(Wave *w, const Inst *in) { return transposing(w, in, K_B64, 8); }
static int ds_read_b64_tr_b4(Wave *w, const Inst *in) { return transposing(w, in, K_B64, 4); }
static int ds_read_b96_tr_b6(Wave *w, const Inst *in) { return transposing(w, in, K_B96, 6); }

#define READ_ROW(name, kind) STEP_OP(name, "r=r", C_LDS),
#define WRITE_ROW(name, kind) STEP_OP(name, "=rr", C_LDS),
#define PAIR_ROW(name, kind, scale) STEP_OP(ds_read##name, "r=r", C_LDS), STEP_OP(ds_write##name, "=rrr", C_LDS),
const OpInfo ops_lds[] = {
    READS(READ_ROW)
    WRITES(WRITE_ROW)
    PAIRS(PAIR_ROW)
    STEP_OP(ds_read_addtid_b32, "r=", C_LDS),
    STEP_OP(ds_write_addtid_b32, "=r", C_LDS),
    STEP_OP(ds_read_b64_tr_b16, "r=r", C_LDS),
    STEP_OP(ds_read_b64_tr_b8, "r=r", C_LDS),
    STEP_OP(ds_read_b64_tr_b4, "r=r", C_LDS),
    STEP_OP(ds_read_b96_tr_b6, "r=r", C_LDS),
    STEP_OP(ds_bpermute_b32, "r=rr", C_LDS),
    STEP_OP(ds_bpermute_fi_b32, "r=rr", C_LDS),
    STEP_OP(ds_permute_b32, "r=rr", C_LDS),
    STEP_OP(ds_swizzle_b32, "r=r", C_LDS),
    {"ds_nop", "", step_nop, NULL, C_LDS, 0},
    OPS_END,
};
