// Packed sequences as their kernels see them: tables that varlen_tiles.cu makes.
#pragma once

#include "prelude.h"

// Where a sequence's tokens begin and how many there are. What is `outside` is none: tokens that see no others.
struct Sequence {
    int first_query, queries, first_key, keys;
    bool outside;
};

DEVICE Sequence sequence_of(const int* bounds, int z, int count) {
    const int* const at = bounds + z * 4;
    return {at[0], at[1] - at[0], at[2], at[3] - at[2], z == 0 || z == count};
}

// Blocks of `size` queries of a sequence stand in lines, in which sequence z begins at `line_of`: each has room
// there, however the tokens are cut. `sequence_at` says whose place it is; the sequence may have fewer blocks.
DEVICE int line_of(const Sequence& own, int z, int size) { return own.first_query / size + z; }
DEVICE int sequence_at(const int* bounds, int count, int place, int size) {
    int found = 0;
    for (int end = count + 1; end - found > 1;) {
        const int middle = found + (end - found) / 2;
        if (bounds[middle * 4] / size + middle <= place) found = middle;
        else end = middle;
    }
    return found;
}
