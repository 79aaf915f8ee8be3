// What is in flight: loads, and accesses to LDS, whose wait has not come (flight.c, lds_flight.c).
//
// A result of a load is in its register from the start here. To find a missing wait, each wave keeps what the waits so
// far guarantee: `issued` and `done` count the memory instructions of each queue. A queue in order gives its oldest
// result first, so that waiting for at most n outstanding ones finishes all but the last n. Queues that answer in any
// order are finished by a wait for 0 alone.
#pragma once

#include "access.h"

// Filled in once, by emulator_link: the registers that `in` names, what it loads, and the queue that it goes through.
void plan_flight(Inst *in, const OpInfo *op, enum Arch arch);

// Called for an instruction that names a register in flight. GO if it may (a load behind the load in the same queue).
int name_in_flight(Wave *w, const Inst *in);
// Called before an instruction of a queue is executed.
void take_off(Wave *w, const Inst *in);
// At most so many instructions of each counter are outstanding; ANY says nothing.
enum { ANY = 0xffff };
typedef struct Wait { uint32_t vector, lds, scalar, store; } Wait;  // store: on gfx11 and gfx12, where no result waits for it
void wait_for(Wave *w, Wait wait);
// Whether `in` is a wait, and which; control.c.
bool wait_of(const Inst *in, enum Arch arch, Wait *wait);

// Word by word: to load all at once just after one was stored would wait for the store.
static inline bool names_flying(const Wave *w, const Inst *in) {
    for (uint32_t both = in->named & w->flying_words; both; both &= both - 1) {
        const int k = __builtin_ctz(both);
        if (in->flight.names[k] & w->flying[k]) return true;
        if (k < FLIGHT_WORDS - 8 && in->flight.names[k + 8] & w->flying[k + 8]) return true;
    }
    return false;
}

// LDS ----------------------------------------------------------------------------------------------

// An access to LDS by an instruction that is in flight from now on.
void lds_take_off(Wave *w, const Inst *in, mask64 m, const uint64_t *at, int bytes, enum LdsAccess access);
// Fault if the lanes of `m` touch bytes that an unfinished access owns. `from`: the values of a write, of kind `k`.
int lds_check_late(Wave *w, const Inst *in, mask64 m, const uint64_t *at, enum Kind k, enum LdsAccess access,
                   const uint32_t *from);
// The wave has waited: what is finished by it leaves the list.
void lds_land(Wave *w);
// The wave comes to a barrier (gfx12: signals it); and every wave of the workgroup has.
void lds_arrive(Wave *w);
void lds_release(Group *g);
