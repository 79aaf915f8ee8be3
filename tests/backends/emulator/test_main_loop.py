"""A matrix kernel's main loop, found in its machine code and counted."""

from __future__ import annotations

import pytest
from assembly import Text, assemble, module_text

from portable.backends.rocm.emulator.faults import CodeObjectError
from portable.backends.rocm.emulator.main_loop import main_loop

TILE = "v_mfma_f32_16x16x16_bf16 a[0:3], v[0:1], v[2:3], a[0:3]"
# Two loops: the outer one repeats the inner, whose body has two matrix instructions.
NESTED = f"""
s_mov_b32 s4, 4
v_mov_b32 v20, 0
.L_outer:
v_add_u32 v20, 1, v20
s_mov_b32 s5, 8
.L_inner:
ds_read_b128 v[4:7], v20
ds_read2_b64 v[8:11], v20 offset0:4 offset1:5
buffer_load_dwordx4 v[12:15], v20, s[8:11], 0 offen
{TILE}
{TILE}
v_add_u32 v20, 16, v20
v_exp_f32 v21, v20
s_waitcnt vmcnt(0)
s_barrier
ds_write_b128 v20, v[12:15]
s_sub_u32 s5, s5, 1
s_cmp_lg_u32 s5, 0
s_cbranch_scc1 .L_inner
s_sub_u32 s4, s4, 1
s_cmp_lg_u32 s4, 0
s_cbranch_scc1 .L_outer
"""


def image(arch, *texts):
    return assemble(arch, module_text(arch, texts))


def test_the_innermost_loop_with_matrix_instructions_is_counted():
    found = main_loop(image("gfx942", Text("nested", NESTED, 64)), "nested")
    assert found is not None
    assert (found.matrix, found.vector, found.transcendental) == (2, 1, 1)
    assert (found.lds_reads, found.lds_writes, found.global_accesses) == (2, 1, 1)
    assert (found.scalar, found.barriers, found.waits) == (3, 1, 1)
    assert found.flops == 2 * 2 * 16 * 16 * 16
    assert found.lds_read_bytes == 2 * 16 * 64


@pytest.mark.parametrize("arch", ["gfx1100", "gfx1201"])
def test_reads_of_two_addresses_count_twice_by_any_name(arch):
    elements = 8 if arch == "gfx1100" else 4
    body = f"""
.L_loop:
ds_read2_b64 v[20:23], v40 offset0:4 offset1:5
v_wmma_f32_16x16x16_f16 v[0:7], v[8:{7 + elements}], v[8:{7 + elements}], v[0:7]
s_cbranch_scc1 .L_loop
"""
    found = main_loop(image(arch, Text("twice", body, 32)), "twice")
    assert found is not None and (found.lds_read_bytes, found.flops) == (2 * 8 * 32, 2 * 16**3)


def test_a_transposing_read_counts_what_it_reads():
    text = ".L_loop:\nds_read_b64_tr_b16 v[4:5], v6\n" + TILE + "\ns_cbranch_scc1 .L_loop"
    found = main_loop(image("gfx950", Text("transposed", text, 64)), "transposed")
    assert found is not None and found.lds_read_bytes == 8 * 64


def test_no_loop_and_no_matrix_instruction_have_none():
    straight = Text("straight", TILE, 64)
    plain = Text("plain", ".L_again:\nv_add_u32 v0, v0, v0\ns_cbranch_scc1 .L_again", 64)
    for text in (straight, plain):
        assert main_loop(image("gfx942", straight, plain), text.name) is None


def test_the_next_kernels_loop_is_not_taken():
    assert (
        main_loop(image("gfx942", Text("first", "s_nop 0", 64), Text("nested", NESTED, 64)), "first") is None
    )


def test_an_unknown_kernel_is_an_error():
    with pytest.raises(CodeObjectError, match="no kernel 'other'"):
        main_loop(image("gfx942", Text("nested", NESTED, 64)), "other")
