#include "lds_marks.h"
#include "lds.h"
#include "nearly.h"

void lds_mark_written(Wave *w, mask64 m, const uint32_t *at, int bytes) {
    Group *g = w->group;
    EACH_ACTIVE(m, i) {
        memset(g->lds_writer + at[i], (int)wave_mark(w), (size_t)bytes);
        mark_written_range(g, at[i], at[i] + (uint64_t)bytes);
    }
}

// `step` is a constant in each copy.
INLINE void mark_read(uint8_t *reader, uint64_t mark, uint32_t bytes, uint32_t step) {
    const uint64_t one = step == 8 ? 0x0101010101010101ull : step == 4 ? 0x01010101u : step == 2 ? 0x0101u : 1, mine = mark * one;
    for (uint32_t b = 0; b < bytes; b += step) {
        uint64_t had = 0;
        memcpy(&had, reader + b, step);
        if (had == mine) continue;
        if (had == 0) {
            memcpy(reader + b, &mine, step);
            continue;
        }
        for (uint32_t k = b; k < b + step; k++) reader[k] = (uint8_t)(reader[k] == 0 || reader[k] == mark ? mark : MANY_READERS);
    }
}

void settle_reads(Group *g) {
    const uint32_t lanes = g->launch->wave_size;
    for (uint32_t n = 0; n < g->reads.used; n += NOTE_WORDS + lanes) {
        ReadNote note;
        memcpy(&note, g->reads.words + n, sizeof note);
        const uint32_t *at = g->reads.words + n + NOTE_WORDS;
        EACH_ACTIVE(note.lanes[0] | (mask64)note.lanes[1] << 32, i) {
            uint8_t *reader = g->lds_reader + at[i];
            if (note.bytes % 8 == 0) mark_read(reader, note.mark, note.bytes, 8);
            else if (note.bytes % 4 == 0) mark_read(reader, note.mark, note.bytes, 4);
            else if (note.bytes == 2) mark_read(reader, note.mark, 2, 2);
            else mark_read(reader, note.mark, note.bytes, 1);
        }
    }
    if (g->reads.used) mark_range(g, g->reads.low, g->reads.high);
    g->reads.used = 0;
}

const char *marked_waves(uint32_t mark, char text[24]) {
    char digits[4];
    int n = 0;
    const char *words = "several waves";
    if (mark != MANY_READERS && mark != SEVERAL) {
        uint32_t number = (mark & (ATOMIC - 1)) - 1;
        do digits[n++] = (char)('0' + number % 10), number /= 10;
        while (number && n < 4);
        words = "wave ";
    }
    char *to = text;
    while (*words) *to++ = *words++;
    while (n) *to++ = digits[--n];
    *to = 0;
    return text;
}

const char *hex_of(const uint8_t *value, int bytes, char text[40]) {
    for (int b = 0; b < bytes; b++) {
        text[2 * b] = "0123456789abcdef"[value[bytes - 1 - b] >> 4];
        text[2 * b + 1] = "0123456789abcdef"[value[bytes - 1 - b] & 15];
    }
    text[2 * bytes] = 0;
    return text;
}

const char *how_written(uint32_t mark) { return mark < ATOMIC ? "wrote" : "changed by an atomic"; }

static int race(Wave *w, const Inst *in, int lane, uint64_t at, const char *mine, uint32_t mark, const char *theirs) {
    char text[24];
    return fault(w, in, F_RACE, lane, at, "wave %u %s byte %llu of LDS, which %s %s with no barrier between", w->number, mine,
                 (unsigned long long)at, marked_waves(mark, text), theirs);
}

bool read_bytes(Wave *w, const Inst *in, int lane, uint64_t at, int bytes) {
    const Group *g = w->group;
    const uint32_t me = wave_mark(w);
    bool races = false;
    for (int b = 0; b < bytes; b++) {
        const uint32_t writer = g->lds_writer[at + b];
        if (writer && writer != me && writer != ATOMIC + me && !races) {
            races = true;
            note_race(w, in, F_RACE, lane, at + (uint64_t)b, writer, -1);
        }
        const uint32_t reader = g->lds_reader[at + b];
        g->lds_reader[at + b] = (uint8_t)(reader == 0 || reader == me ? me : MANY_READERS);
    }
    return races;
}

static bool is_nan(const uint8_t *p) { return (word_at(p) & 0x7fffffff) > 0x7f800000; }
static bool is_half_nan(const uint8_t *p) { return (half_at(p) & 0x7fff) > 0x7c00; }

// NaN of float32, float16 or bfloat16: which one comes out of a sum depends on the order of its operands, and a butterfly
// of lanes commutes them.
bool equal_or_both_nan(const uint8_t *mine, const uint8_t *theirs, int b, int bytes) {
    if (mine[b] == theirs[b]) return true;
    const int word = b & ~3, half = b & ~1;
    if (bytes >= word + 4 && is_nan(mine + word) && is_nan(theirs + word)) return true;
    return bytes >= half + 2 && is_half_nan(mine + half) && is_half_nan(theirs + half);
}

// A write over what other waves have read. Where one of the workgroup's reads races and something comes of it, run aside
// it faults. Without a verdict (another fault, a wait for another workgroup) the write is a fault as well.
static int write_after_read(Wave *w, const Inst *in, int lane, uint64_t at, uint32_t reader, const char *verb) {
    Group *g = w->group;
    Launch *launch = w->launch;
    char text[24];
    if (launch->aside || g->judged) return GO;
    uint64_t executed = 0;
    for (uint32_t i = 0; i < g->waves; i++)
        if (executed < g->wave[i].executed) executed = g->wave[i].executed;
    const uint64_t bound = launch->resident > 1 ? 16 * executed + (1 << 20) : launch->budget;
    const Fault found = run_aside(launch, g->number, bound < launch->budget ? bound : launch->budget, 0, -1);
    if (found.kind == F_NONE) {
        g->judged = true;
        warn(w, in, F_BENIGN, lane, at,
             "wave %u %s byte %llu of LDS, which %s read with no barrier between; nothing comes of what was read", w->number,
             verb, (unsigned long long)at, marked_waves(reader, text));
        return GO;
    }
    if (found.kind == F_RACE && found.address != at) return fault_again(w, &found);
    return race(w, in, lane, at, verb, reader, "read");
}

// Two waves that write the same value to the same place (a result that both hold) settle on it in any order: only
// different values race. The first writer keeps its mark.
int write_bytes(Wave *w, const Inst *in, int lane, uint64_t at, int bytes, const uint8_t *value) {
    Group *g = w->group;
    const uint32_t me = wave_mark(w);
    for (int b = 0; b < bytes; b++) {
        const uint32_t writer = g->lds_writer[at + b], reader = g->lds_reader[at + b];
        if (reader && reader != me && write_after_read(w, in, lane, at + (uint64_t)b, reader, "writes")) return STOP;
        if (writer && writer != me && writer != ATOMIC + me) {
            if (writer < ATOMIC && equal_or_both_nan(value, g->lds + at, b, bytes)) continue;
            Scale scale = {0, 0};
            widen_scale(&scale, value, bytes);
            if (writer < ATOMIC && nearly_equal(value, g->lds + at, bytes, scale)) {
                warn(w, in, F_ROUNDING, lane, at,
                     "two waves write values to byte %llu of LDS that differ by rounding: %s, and %s before it" UNEQUAL_SUMS,
                     (unsigned long long)at, hex_of(value, bytes, (char[40]){0}), hex_of(g->lds + at, bytes, (char[40]){0}));
                continue;
            }
            return race(w, in, lane, at + (uint64_t)b, "writes", writer, how_written(writer));
        }
        g->lds_writer[at + b] = (uint8_t)me;
    }
    return GO;
}

// Atomics do not race with atomics; they do with another wave's plain reads and writes.
int lds_atomic_check(Wave *w, const Inst *in, int lane, uint64_t at, int bytes) {
    Group *g = w->group;
    if (at > g->lds_size || g->lds_size - at < (uint64_t)bytes) {
        uint64_t one[LANES];
        one[lane] = at;
        return lds_bounds(w, in, 1ull << lane, one, bytes, "atomic");
    }
    forget_whole(g);
    if (g->waves < 2) return GO;
    settle_reads_in(g, at, at + (uint64_t)bytes);
    const uint32_t me = wave_mark(w);
    for (int b = 0; b < bytes; b++) {
        const uint32_t writer = g->lds_writer[at + b], reader = g->lds_reader[at + b];
        if (writer && writer < ATOMIC && writer != me)
            return race(w, in, lane, at + (uint64_t)b, "changes (by an atomic)", writer, "wrote");
        if (reader && reader != me && write_after_read(w, in, lane, at + (uint64_t)b, reader, "changes (by an atomic)"))
            return STOP;
        if (reader == me) g->lds_reader[at + b] = 0;  // what a compare-and-swap compares was read before
        if (writer == 0) g->lds_writer[at + b] = (uint8_t)(ATOMIC + me);
        else if (writer > ATOMIC && writer != ATOMIC + me) g->lds_writer[at + b] = SEVERAL;
    }
    mark_written_range(g, at, at + (uint64_t)bytes);
    return GO;
}
