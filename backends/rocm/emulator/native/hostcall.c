// Calls of a kernel to the host: what `printf`, `tl.device_print` and failing assertions become where AMD's device
// library prints (ROCm/ROCm-Device-Libs, ockl/src/hostcall_impl.cl, of which the layout is).
//
// A wave takes a packet off a stack, fills a slot of eight words for each of its lanes, pushes the packet on the stack of
// ready ones and sleeps until the host has answered. The host's threads answer between the rounds of their workgroups. A
// slot's first word says what piece of which message the other seven are; what was said is kept for Python.
#include "record.h"

#include <stdlib.h>

typedef struct Header { uint64_t next, lanes; uint32_t service, control; } Header;
typedef struct Payload { uint64_t slot[LANES][8]; } Payload;
typedef struct Buffer {
    Header *headers;
    Payload *payloads;
    uint64_t doorbell, free, ready, index_mask;
} Buffer;
enum { PRINT = 2, BEGIN = 1, SAID_WORDS = 9 };

static bool keep(Launch *launch, uint64_t message, const uint64_t *slot) {
    if (launch->said_count == launch->said_capacity) {
        const uint64_t capacity = launch->said_capacity ? 2 * launch->said_capacity : 256;
        uint64_t *more = realloc(launch->said, capacity * SAID_WORDS * sizeof *more);
        if (!more) return false;
        launch->said = more, launch->said_capacity = capacity;
    }
    uint64_t *to = launch->said + SAID_WORDS * launch->said_count++;
    to[0] = message;
    memcpy(to + 1, slot, 8 * sizeof *slot);
    return true;
}

static void refuse(Launch *launch, uint32_t service) {
    if (!__atomic_exchange_n(&launch->fault_taken, 1, __ATOMIC_ACQ_REL)) {
        launch->fault = (Fault){.kind = F_UNSUPPORTED, .lane = -1, .wave = -1, .address = ~0ull, .inst = -1};
        const char *text = service == PRINT ? "what it prints does not fit into memory"
                                            : "it calls the host for something else than to print";
        memcpy(launch->fault.detail, text, strlen(text) + 1);
    }
    __atomic_store_n(&launch->stop, 1, __ATOMIC_RELEASE);
}

void answer_calls(Launch *launch) {
    Buffer *b = launch->hostcall;
    if (!__atomic_load_n(&b->ready, __ATOMIC_RELAXED) || __atomic_test_and_set(&launch->answering, __ATOMIC_ACQUIRE)) return;
    uint64_t next = __atomic_exchange_n(&b->ready, 0, __ATOMIC_ACQUIRE);
    while (next) {
        Header *h = &b->headers[next & b->index_mask];
        Payload *p = &b->payloads[next & b->index_mask];
        next = h->next;
        if (h->service != PRINT) refuse(launch, h->service);
        EACH_ACTIVE(h->lanes, i) {
            uint64_t *slot = p->slot[i];
            if (slot[0] & BEGIN) slot[0] = (slot[0] & 0xff) | launch->messages++ << 8;
            if (!keep(launch, slot[0] >> 8, slot)) refuse(launch, PRINT);
            slot[0] &= ~(uint64_t)BEGIN;
        }
        __atomic_store_n(&h->control, 0, __ATOMIC_RELEASE);
    }
    __atomic_clear(&launch->answering, __ATOMIC_RELEASE);
}

__attribute__((visibility("default"))) void emulator_forget_said(Launch *launch) {
    free(launch->said);
    launch->said = NULL;
    launch->said_count = launch->said_capacity = 0;
}
