"""Cases of the reads that transpose a block over lanes; test_memory_ops.py runs them."""

from __future__ import annotations

from memory_cases import case, word


def packed(elements, bits):
    """Words of elements, the first in the lowest bits."""
    each = 32 // bits
    return [
        sum(element << bits * n for n, element in enumerate(elements[start : start + each]))
        for start in range(0, len(elements), each)
    ]


def turned(bits):
    """gfx950: sixteen lanes of 8 bytes hold rows of sixteen elements of so many bits; each gets a column."""

    def rule(data, lane):
        size, group, column = bits // 8, lane & ~15, lane & 15
        rows = [8 * group + row * 16 * size for row in range(64 // bits)]
        return packed([word(data, row + column * size, size) for row in rows], bits)

    return rule


for bits in (16, 8):
    case(f"ds_read_b64_tr_b{bits}", ("gfx950",),
        "v_lshlrev_b32 v12, 3, v0\nglobal_load_dwordx2 v[16:17], v12, s[4:5]\n"
        f"WAITds_write_b64 v12, v[16:17]\nWAITds_read_b64_tr_b{bits} v[40:41], v12\n",
        2, turned(bits), (f"ds_read_b64_tr_b{bits}",), lds=4096)  # fmt: skip


def squares(data, lane):
    """gfx12: eight lanes of 16 bytes hold a square of 16-bit elements, a row each; each gets a column."""
    rows = [16 * (lane & ~7) + 16 * row for row in range(8)]
    return packed([word(data, row + 2 * (lane & 7), 2) for row in rows], 16)


case("global_load_tr_b128", ("gfx1201",),
    "v_lshlrev_b32 v12, 4, v0\nglobal_load_tr_b128 v[40:43], v12, s[4:5]\n", 4, squares,
    ("global_load_tr_b128",))  # fmt: skip
