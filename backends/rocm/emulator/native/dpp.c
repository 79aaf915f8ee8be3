// DPP: which lane feeds which.
//
// Controls as in the AMD ISA guides ("DPP_CTRL") and LLVM's AMDGPU operand syntax. A row is 16 lanes. "Shift left"
// reads from the lane with the higher number. The wave-wide shifts and broadcasts 15 and 31 are gfx9's; there
// broadcast 15 gives each row the last lane of the row before, and broadcast 31 gives rows 2 and 3 lane 31.
#include "wave.h"

enum {
    ROW_SHL = 0x100, ROW_SHR = 0x110, ROW_ROR = 0x120, WAVE_SHL1 = 0x130, WAVE_ROL1 = 0x134, WAVE_SHR1 = 0x138,
    WAVE_ROR1 = 0x13c, ROW_MIRROR = 0x140, ROW_HALF_MIRROR = 0x141, ROW_BCAST15 = 0x142, ROW_BCAST31 = 0x143,
    ROW_SHARE = 0x150, ROW_XMASK = 0x160, DPP_END = 0x170,
};

static int feeding_lane(int lane, int lanes, uint32_t ctrl) {
    const int row = lane & ~15, at = lane & 15, n = (int)(ctrl & 15);
    if (ctrl < ROW_SHL) return (lane & ~3) | (int)(ctrl >> (lane & 3) * 2 & 3);
    switch (ctrl) {
    case WAVE_SHL1: return lane + 1 < lanes ? lane + 1 : -1;
    case WAVE_ROL1: return (lane + 1) & (lanes - 1);
    case WAVE_SHR1: return lane - 1;
    case WAVE_ROR1: return (lane - 1) & (lanes - 1);
    case ROW_MIRROR: return row + 15 - at;
    case ROW_HALF_MIRROR: return lane ^ 7;
    case ROW_BCAST15: return row - 1;
    case ROW_BCAST31: return lane >= 32 ? 31 : -1;
    }
    switch (ctrl & ~15u) {
    case ROW_SHL: return at + n < 16 ? lane + n : -1;
    case ROW_SHR: return at >= n ? lane - n : -1;
    case ROW_ROR: return row + ((at - n) & 15);
    case ROW_SHARE: return row + n;  // row_newbcast of gfx90a
    case ROW_XMASK: return lane ^ n;
    }
    return -1;
}

static void find_lanes(const Wave *w, uint32_t control, bool dpp8, mask64 exec, DppLanes *to) {
    const int lanes = (int)w->lanes;
    const bool fetch_inactive = (control >> 25 & 1) && !IS_GFX9(w->launch->arch);
    const bool bound = dpp8 || (control >> 24 & 1);
    *to = (DppLanes){.written = exec};
    for (int i = 0; i < LANES; i++) {
        const mask64 bit = 1ull << i;
        const int from = dpp8 ? (i & ~7) | (int)(control >> (i & 7) * 3 & 7) : i < lanes ? feeding_lane(i, lanes, control & 0x1ff) : -1;
        to->source[i] = (uint32_t)from & (LANES - 1);
        to->fed |= from >= 0 ? bit : 0;
        if (i >= lanes) continue;
        if (!dpp8 && !((control >> 16 >> (i / 16 & 3) & 1) && (control >> 20 >> (i / 4 & 3) & 1))) {
            to->written &= ~bit;
            continue;
        }
        const bool inactive = from >= 0 && !(exec >> from & 1) && !fetch_inactive;
        if (from >= 0 && !inactive) continue;
        if (bound) {
            to->zero |= bit;
            if (inactive) to->inactive |= bit;
        } else {
            to->written &= ~bit;
        }
        to->source[i] = (uint32_t)i;
        to->fed |= bit;
    }
}

// A kernel has few controls and few values of EXEC, so each thread keeps what it found last.
enum { KEPT = 64 };
typedef struct Kept { uint32_t known, control, arch, lanes; mask64 exec; DppLanes found; } Kept;

const DppLanes *dpp_lanes(const Wave *w, uint32_t control, bool dpp8) {
    static _Thread_local Kept kept[KEPT];
    const mask64 exec = exec_of(w);
    const uint32_t known = 1 + dpp8, place = (control * 0x9e3779b1u ^ (uint32_t)(exec ^ exec >> 32) * 0x85ebca6bu) >> 26;
    Kept *k = &kept[place % KEPT];
    if (k->known != known || k->control != control || k->arch != w->launch->arch || k->lanes != w->lanes || k->exec != exec) {
        k->known = known, k->control = control, k->arch = w->launch->arch, k->lanes = w->lanes, k->exec = exec;
        find_lanes(w, control, dpp8, exec, &k->found);
    }
    return &k->found;
}
