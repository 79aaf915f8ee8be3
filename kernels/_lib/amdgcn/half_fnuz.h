// Codes of float8_e4m3fn for instructions that read float8_e4m3fnuz (gfx942), which takes each for half of its number: the
// exponent's bias is one more. The product of two such is a quarter of theirs, and 4 times it is exact.
//
// Two numbers differ otherwise. -0 (0x80) is fnuz's NaN: it becomes 0. NaN (0x7f, 0xff) is a number there: who converts
// codes keeps a word of what was found, and has to give NaN where `found_nan` of it says so.
#pragma once

#include "prelude.h"

// Four codes of e4m3fn as codes of e4m3fnuz, of half of their numbers; a NaN is marked in `found`.
DEVICE uint32_t half_fnuz(uint32_t codes, uint32_t& found) {
    const uint32_t sizes = codes & 0x7f7f7f7fu;
    const uint32_t nonzero = sizes + 0x7f7f7f7fu;  // the highest bit of a byte; no sum leaves its byte
    found |= sizes + 0x01010101u;                  // the highest bit of a byte of 0x7f
    return (codes & nonzero) | sizes;
}

DEVICE bool found_nan(uint32_t found) { return (found & 0x80808080u) != 0; }
