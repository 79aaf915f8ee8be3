"""Wrong products in MXFP8, MXFP4 and NVFP4 on AMD's matrix units, by scaled instructions and by bfloat16."""

from __future__ import annotations

from .registry import Edit, source

MX, FP4, NV = "scaled_mm_mx", "scaled_mm_mxfp4", "scaled_mm_nvfp4"
KERNEL, CODES, NUMBERS, DECODE = (
    f"scaled_mm/gfx/{name}" for name in ("mx.hip", "mx_codes.h", "mx_numbers.h", "mx_decode.h")
)
source(
    *(MX, "mfma", "gfx950", "the scale of the group before"),
    Edit(CODES, "to[group * (FRAGMENT * IN_WORD)]", "to[(group + 1) % 4 * (FRAGMENT * IN_WORD)]"),
)
source(
    *(MX, "mfma", "gfx950", "scales of a and of b exchanged"),
    Edit(CODES, "j % 4, scale_b[j / 4], i % 4, scale_a)", "i % 4, scale_a, j % 4, scale_b[j / 4])"),
)
source(
    *(MX, "mfma", "gfx950", "a fragment's scale from the byte of the first"),
    Edit(CODES, "scale_b[j / 4], i % 4, scale_a", "scale_b[j / 4], 0, scale_a"),
)
source(
    *(MX, "mfma", "gfx950", "a lane's codes as one run of 32"),
    Edit(
        CODES,
        "const int at = lane() / FRAGMENT * 16;",
        "const int at = lane() / FRAGMENT * 16 << (PER_BYTE == 1);",
    ),
    Edit(CODES, "place(lane_line(), 64 + at)", "place(lane_line(), 16 + at)"),
)
source(
    *(MX, "mfma", "gfx950", "codes of e5m2 multiplied as e4m3fn"),
    Edit("scaled_mm/gfx/mx_plan.py", '"float8_e5m2": 1', '"float8_e5m2": 0'),
)
source(
    *(MX, "mfma", "gfx950", "the last group's scale from the one before"),
    Edit(
        CODES, "min(group + of_group, scales.groups - 1)", "min(group + of_group, max(scales.groups - 2, 0))"
    ),
)
source(
    *(MX, "mfma", "gfx950", "NaN of a scale taken for 2^127"),
    Edit(CODES, "held[i] |= scale << of_group * 8", "held[i] |= min(int(scale), 254) << of_group * 8"),
)
source(
    *(FP4, "mfma", "gfx950", "the second instruction of a tile with the scales of the first"),
    Edit(
        CODES, "scale_word<N_FRAGMENTS>(b.scales, step, j / 4)", "scale_word<N_FRAGMENTS>(b.scales, 0, j / 4)"
    ),
)
source(
    *(FP4, "mfma", "gfx950", "the halves of a's bytes exchanged"),
    Edit(
        CODES,
        "all[i] = low.w[i];",
        "all[i] = lane() % 2 ? low.w[i] : (low.w[i] & 0x0f0f0f0fu) << 4 | (low.w[i] >> 4 & 0x0f0f0f0fu);",
    ),
)
source(
    *(MX, "mfma", "gfx942", "e4m3fn's NaN decoded as 480"),
    Edit(DECODE, "(nan & 0x80808080u) != 0 || code > 246", "code > 246"),
)
source(
    *(MX, "mfma", "gfx942", "a large scale times 2^8"),
    Edit(DECODE, "(nan & 0x80808080u) != 0 || code > 246", "(nan & 0x80808080u) != 0"),
)
source(
    *(FP4, "mfma", "gfx942", "NaN of a scale taken for 2^127"),
    Edit(DECODE, "code == 255 ? 0x7fc00000u : bits", "code == 255 ? 0x7f000000u : bits"),
)
source(
    *(FP4, "wmma", "gfx1201", "the numbers of odd places in the places of even ones"),
    Edit(DECODE, "all.w[odd * 2] =", "all.w[2 - odd * 2] ="),
)
source(
    *(NV, "mfma", "gfx950", "the second group of 16 bytes with the scale of the first"),
    Edit(NUMBERS, "held[i][word * SCALES / 4]", "held[i][0]"),
)
source(
    *(NV, "mfma", "gfx942", "the scale of the whole of b left out"),
    Edit(KERNEL, "value * *global_a * *global_b", "value * *global_a"),
)
