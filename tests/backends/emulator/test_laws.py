"""The same definitions as the tables', on inputs that hypothesis draws."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instructions import ARCHS, bits, check, is16
from test_convert import SUITE as CONVERT
from test_packed import SUITE as PACKED
from test_valu_float import SUITE as FLOAT
from test_valu_int import SUITE as INT

CORNERS = {
    16: [0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x7C00, 0x7E00, 0x8000, 0x8001, 0xFBFF, 0xFC00, 0xFFFF],
    32: [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000, 1 << 31, 0xFFFFFFFF],
    64: [0, 1, 1 << 52, 0x3FF << 52, 0x7FEFFFFFFFFFFFFF, 0x7FF << 52, 0x7FF8 << 48, 1 << 63],
}


def lawful(suite, names):
    """(suite, probe) of a lane-wise instruction by name; a definition that stands for all inputs."""
    found = [(suite, p) for p in suite.probes if p.name in names and not p.whole and not p.tag and not p.ulp]
    assert {probe.name for _, probe in found} == set(names)
    return found


INTEGERS = """v_add_u32 v_sub_u32 v_mul_lo_u32 v_mul_hi_u32 v_mul_hi_i32 v_mad_u64_u32 v_lshlrev_b32
    v_ashrrev_i32 v_lshrrev_b64 v_bfe_u32 v_bfe_i32 v_bfi_b32 v_perm_b32 v_alignbit_b32 v_min_u32 v_and_b32
    v_xor_b32 v_lshl_add_u32 v_add3_u32 v_med3_i32"""
FLOATS = """v_add_f32 v_mul_f32 v_fma_f32 v_add_f64 v_mul_f64 v_fma_f64 v_add_f16 v_mul_f16 v_fma_f16
    v_rndne_f32 v_max_f32 v_min_f32"""
CONVERSIONS = """v_cvt_f16_f32 v_cvt_f32_f16 v_cvt_i32_f32 v_cvt_u32_f32 v_cvt_f32_i32 v_cvt_f32_u32
    v_cvt_f32_f64 v_cvt_f64_f32"""
CHOICES = [
    *lawful(INT, INTEGERS.split()),
    *lawful(FLOAT, FLOATS.split()),
    *lawful(CONVERT, CONVERSIONS.split()),
    *lawful(PACKED, ["v_pk_add_u16", "v_pk_mul_lo_u16"]),
]


SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def values(kind):
    width = 16 if is16(kind) else bits(kind)
    return st.integers(0, (1 << width) - 1) | st.sampled_from(CORNERS[width])


@pytest.mark.slow
@given(st.data())
@settings(deadline=None, suppress_health_check=SLOW)
def test_any_inputs(data):
    suite, probe = data.draw(st.sampled_from(CHOICES), "instruction")
    arch = data.draw(st.sampled_from([arch for arch in ARCHS if arch in probe.archs]), "architecture")
    record = st.tuples(*(values(kind) for kind in probe.ins))
    vectors = data.draw(st.lists(record, min_size=1, max_size=64), "inputs")
    check(suite, replace(probe, vectors=tuple(vectors)), arch)
