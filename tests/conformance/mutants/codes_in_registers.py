"""Wrong products with weights of 4 bits by AMD's matrix instructions, of rows in 16 bits and in int8."""

from __future__ import annotations

from .registry import Edit, source

HALVES, INT8 = "int4_mm", "int8_int4_mm"
MATRIX, NUMBERS, BYTES = (f"int4_mm/gfx/{name}" for name in ("matrix.hip", "halves.h", "int8.h"))
LEFT = "next.left * static_cast<int>(BYTES)"

for _op, _impl, _arch in (
    *((HALVES, "mfma", "gfx942"), (HALVES, "wmma", "gfx1100")),
    *((INT8, "mfma", "gfx942"), (INT8, "wmma", "gfx1201")),
):
    source(*(_op, _impl, _arch, "a zero point of 9 without one"), Edit(MATRIX, "Less(8.0f)", "Less(9.0f)"))
    source(
        *(_op, _impl, _arch, "scales and zero points of the first group"),
        Edit(MATRIX, "const Type* const at = base + group * col;", "const Type* const at = base;"),
    )
    source(
        *(_op, _impl, _arch, "the last k of a group left out"),
        Edit(MATRIX, LEFT, LEFT.replace("next.left", "(next.left - 1)")),
    )
    source(
        *(_op, _impl, _arch, "one k too many of a group"),
        Edit(MATRIX, LEFT, LEFT.replace("next.left", "(next.left + 1)")),
    )
    source(
        *(_op, _impl, _arch, "a step stored while others read the one before"),
        Edit(MATRIX, "lds_barrier();  // nobody still reads the step before", ""),
    )
    source(*(_op, _impl, _arch, "the bias lost"), Edit(MATRIX, "result = result + added;", ""))

source(
    *(HALVES, "mfma", "gfx942", "numbers of a byte in the other order"),
    Edit(NUMBERS, "perm(bits_of(high), bits_of(low)", "perm(bits_of(low), bits_of(high)"),
    Edit(NUMBERS, "perm(word >> 4, word,", "perm(word, word >> 4,"),
)
source(
    *(HALVES, "mfma", "gfx942", "the first four codes of a word twice"),
    Edit(NUMBERS, "place < 4 ? word : word >> 16", "word"),
    Edit(NUMBERS, "place / 2 * 0x00010001u", "place / 2 % 2 * 0x00010001u"),
)
source(
    *(HALVES, "mfma", "gfx942", "sums of x of the row tile's first rows"),
    Edit(MATRIX, "TILE_M + col + j * 16 + lane_column()", "TILE_M + col + lane_column()"),
)
source(
    *(HALVES, "wmma", "gfx1100", "columns in the order of gfx12's accumulators"),
    Edit(MATRIX, "return a_row_of_lane(0);", "return lane_column();"),
)
source(
    *(INT8, "mfma", "gfx942", "codes without the sign of their numbers"),
    Edit(BYTES, "- less.four) ^ TOP", "- less.four)"),
)
source(
    *(INT8, "wmma", "gfx1201", "lower and upper codes in the other order"),
    Edit(BYTES, "0x05010400u", "0x01050004u"),
    Edit(BYTES, "0x07030602u", "0x03070206u"),
)
source(
    *(INT8, "mfma", "gfx942", "scales of rows lost"),
    Edit(MATRIX, "if (INTEGER) result =", "if (false) result ="),
)
for _op in (HALVES, INT8):
    source(
        *(_op, "mfma_splitk", "gfx942", "the last group in no part"),
        Edit(MATRIX, "min(first + part_groups, groups)", "min(first + part_groups, groups - 1)"),
    )
