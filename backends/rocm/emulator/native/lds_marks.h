// Marks of LDS made and looked at for many lanes at once (lds_race.h says what they are).
//
// Reads are only noted. They become marks of `lds_reader` when somebody writes near them, and are forgotten at a barrier:
// until a write comes nobody asks who has read.
#pragma once

#include "lds_race.h"

// In `words`: a ReadNote, then the address of each lane, 32 or 64 of them.
typedef struct ReadNote { uint32_t mark, bytes, lanes[2]; } ReadNote;
enum { NOTE_WORDS = sizeof(ReadNote) / 4 };

// Make the noted reads marks.
void settle_reads(Group *g);

static inline void settle_reads_in(Group *g, uint64_t low, uint64_t end) {
    if (g->reads.used && low < g->reads.high && end > g->reads.low) settle_reads(g);
}

// Note a read of [low, end) by the lanes of `m`. False where somebody has written near it: then it is judged at once.
INLINE bool note_read(Wave *w, mask64 m, const uint64_t *at, int bytes, uint64_t low, uint64_t end) {
    Group *g = w->group;
    if (low < g->write_high && end > g->write_low) return false;
    if (g->reads.used + NOTE_WORDS + LANES > LDS_READ_WORDS) settle_reads(g);
    if (g->reads.used == 0) g->reads.low = (uint32_t)low, g->reads.high = 0;
    uint32_t *to = g->reads.words + g->reads.used;
    const ReadNote note = {wave_mark(w), (uint32_t)bytes, {(uint32_t)m, (uint32_t)(m >> 32)}};
    memcpy(to, &note, sizeof note);
    to += NOTE_WORDS;
    if (w->lanes == 32)
        for (int i = 0; i < 32; i++) to[i] = (uint32_t)at[i];
    else
        EACH to[i] = (uint32_t)at[i];
    g->reads.used += NOTE_WORDS + w->lanes;
    if (low < g->reads.low) g->reads.low = (uint32_t)low;
    if (end > g->reads.high) g->reads.high = (uint32_t)end;
    return true;
}

INLINE int lanes_of(mask64 m) { return m == ~0ull ? 64 : m == 0xffffffffull ? 32 : 0; }

// Whether the lanes of a whole wave fill [low, end), each its own place in any order.
INLINE bool fill_block(mask64 m, const uint64_t *at, int bytes, uint64_t low, uint64_t end) {
    const int lanes = lanes_of(m);
    if (!lanes || bytes == 12 || end - low != (uint64_t)(lanes * bytes)) return false;
    uint64_t odd = 0;
    mask64 seen = 0;
    for (int i = 0; i < lanes; i++) {
        const uint64_t from = at[i] - low;
        odd |= from & (uint64_t)(bytes - 1);
        seen |= 1ull << (from / (uint64_t)bytes & 63);
    }
    return !odd && seen == m;
}

// Whether nobody but `mark` has touched a block.
INLINE bool only_mine(const uint8_t *marks, uint32_t mark, uint64_t size) {
    uint8_t others = 0;
    for (uint64_t b = 0; b < size; b++) others |= (marks[b] != 0) & (marks[b] != mark);
    return !others;
}

// Definedness: [whole_low, whole_high) is known to be wholly defined --------------------------------

INLINE bool known_whole(const Group *g, uint64_t low, uint64_t end) { return low >= g->whole_low && end <= g->whole_high; }

// Look whether [low, end) is wholly defined, and remember it.
INLINE bool find_whole(Group *g, uint64_t low, uint64_t end) {
    const uint8_t *def = g->lds_def;
    uint64_t at = low;
    for (; at + 64 <= end; at += 64) {
        uint8_t other = 0;
        for (int b = 0; b < 64; b++) other |= def[at + (uint64_t)b] ^ DEFINED;
        if (other) return false;
    }
    for (; at < end; at++)
        if (def[at] != DEFINED) return false;
    const bool joins = low <= g->whole_high && end >= g->whole_low;
    if (!joins || low < g->whole_low) g->whole_low = (uint32_t)low;
    if (!joins || end > g->whole_high) g->whole_high = (uint32_t)end;
    return true;
}

static inline void forget_whole(Group *g) { g->whole_low = g->whole_high = 0; }
