// Split-KV: how a sequence's keys are cut into splits, by its own length and the GPU alone, so that a sequence gets the
// same bits whatever else is in the batch. For CUDA and HIP.
//
// Defines: CHUNK: the fewest keys of a split; LEFT: whether a query sees only `left` keys before its own.
#pragma once

#include "prelude.h"

constexpr int SPLIT_ALIGN = 128;

DEVICE int round_up(int count, int unit) { return (count + unit - 1) / unit * unit; }

// How many keys sequence z has: within 0..capacity, whatever stands in `lens`. Without `lens`: capacity.
DEVICE int length_of(const int32_t* lens, int64_t z, int capacity) {
    if (lens == nullptr) {
        return capacity;
    }
    const int length = lens[z];
    return length < 0 ? 0 : length < capacity ? length : capacity;
}

// `count` splits of `size` keys from key `first` on: CHUNK keys, or more where that would make more than
// `most`.
struct KvSplits {
    int first, size, count;

    DEVICE KvSplits(int length, int queries, int left, int most) : first(0) {
        if (LEFT) {
            first = length - queries - left;
            first = first < 0 ? 0 : first < length ? first : length;
            first = first / SPLIT_ALIGN * SPLIT_ALIGN;
        }
        const int span = length - first;
        size = round_up((span + most - 1) / most, SPLIT_ALIGN);
        size = size < CHUNK ? CHUNK : size;
        count = (span + size - 1) / size;
    }
};
