"""The plans of int4_mm and int8_int4_mm by AMD's matrix instructions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import portable
from portable.dispatch import dispatcher, pins
from portable.kernels.int4_mm import int8_reference, reference
from portable.kernels.int4_mm.gfx import plan as gfx
from portable.plan import Call, Device, Pointer, TensorInfo
from portable.runtime import detect
from tests.kernels.plan_parts import accepted, arguments_of, defines, launch_of, reason, scalar

MI300X = Device("rocm", "gfx942", "MI300X", 0, 304, 64, 64 * 1024)
RX7900 = Device("rocm", "gfx1100", "RX 7900 XTX", 0, 48, 32, 64 * 1024)


def _contiguous(shape, dtype):
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return TensorInfo(tuple(shape), tuple(strides), dtype)


def call_of(m, n, groups, half, given=(), device=MI300X, dtype="bfloat16"):
    """int4_mm's call with the optional inputs `given`."""
    tensors = {
        "x": _contiguous((m, 2 * groups * half), dtype),
        "weight": _contiguous((n, groups, half), "uint8"),
        "scale": _contiguous((n, groups), "float32"),
        "y": _contiguous((m, n), dtype),
        **{name: _contiguous((n, groups), "float32") for name in given if name == "offset"},
        **{name: _contiguous((n, groups), "uint8") for name in given if name == "zero_point"},
        **{name: _contiguous((n,), dtype) for name in given if name == "bias"},
    }
    return Call(tensors, {}, {}, device, {})


def int8_call_of(m, n, groups, half, device=MI300X):
    tensors = {
        "mat_a": _contiguous((m, 2 * groups * half), "int8"),
        "weight": _contiguous((n, groups, half), "uint8"),
        "scale_a": TensorInfo((m, 1), (0, 0), "float32"),
        "scale": TensorInfo((n, groups), (1, n), "bfloat16"),
        "c": _contiguous((m, n), "bfloat16"),
    }
    return Call(tensors, {}, {}, device, {})


@pytest.mark.parametrize(
    "half, spans, single, whole",
    [
        (16, 2, 1, 1),
        (32, 1, 1, 1),
        (64, 1, 0, 1),
        (2048, 1, 0, 1),
        (48, 1, 0, 0),
        (8, 1, 1, 0),
        (33, 1, 0, 0),
    ],
)
def test_groups_in_steps_of_64_k(half, spans, single, whole):
    """Two groups of 32 k a step; one of 64; longer ones in several, of which the last may be in part."""
    made = defines(launch_of(gfx.whole(call_of(700, 512, 4, half))))
    assert (made["SPANS"], made["SINGLE"], made["WHOLE_STEPS"]) == (spans, single, whole)


@pytest.mark.parametrize("half, spans, whole", [(16, 4, 1), (32, 2, 1), (64, 1, 1), (96, 1, 0)])
def test_groups_in_steps_of_128_int8(half, spans, whole):
    made = defines(launch_of(gfx.whole(int8_call_of(700, 512, 4, half))))
    assert (made["SPANS"], made["WHOLE_STEPS"]) == (spans, whole)
    assert (made["INTEGER"], made["ELEMENT"], made["OFFSET"]) == (1, "int8_t", 0)


def test_an_odd_number_of_short_groups_does_not_fill_its_last_step():
    assert defines(launch_of(gfx.whole(call_of(700, 512, 3, 16))))["WHOLE_STEPS"] == 0
    made = defines(accepted(gfx.splitk(call_of(16, 512, 33, 16))).launches[0])
    assert made["SPANS"] == 2 and made["WHOLE_STEPS"] == 0  # of the last part


@pytest.mark.parametrize(
    "m, n, device, tile",
    [
        (4096, 14336, MI300X, 128),
        (256, 14336, MI300X, 64),  # 224 tiles of 128 rows for 304 compute units
        (64, 65536, MI300X, 64),
        (33, 1000, MI300X, 32),
        (17, 1000, MI300X, 32),
        (16, 1000, MI300X, 16),
        (1, 14336, RX7900, 16),
        (256, 14336, RX7900, 128),
        (1000, 100, MI300X, 32),
    ],
)
def test_tiles_give_every_compute_unit_one(m, n, device, tile):
    launch = launch_of(gfx.whole(call_of(m, n, 32, 64, device=device)))
    made = defines(launch)
    assert made["TILE_M"] == tile and launch.grid == (-(-m // tile) * -(-n // 128), 1, 1)
    assert launch.kernel.threads == device.warp_size * made["WAVES_N"] * made["WAVES_M"]
    assert made["TILE_N"] % (16 * made["WAVES_N"]) == 0 and tile % (16 * made["WAVES_M"]) == 0


def test_offsets_are_preceded_by_sums_of_x():
    plan = accepted(gfx.whole(call_of(40, 64, 3, 16, ("offset", "bias", "zero_point"))))
    sums, product = plan.launches
    assert plan.workspaces[0].shape == (3, 40) and sums.grid == (10, 3, 1)
    made = defines(product)
    assert (made["OFFSET"], made["ZERO_POINT"], made["BIAS"], made["PARTIAL"]) == (1, 1, 1, 0)
    assert scalar(product, "offset_row") == 3 and scalar(product, "zero_point_col") == 1


@pytest.mark.parametrize(
    "m, n, groups, parts, device",
    [
        (16, 14336, 32, 8, MI300X),
        (1, 8192, 64, 16, MI300X),
        (128, 14336, 32, 5, MI300X),
        (8, 4096, 64, 6, RX7900),
    ],
)
def test_few_rows_are_computed_in_parts_of_whole_groups(m, n, groups, parts, device):
    call = call_of(m, n, groups, 64, ("bias",), device)
    product, reduction = accepted(gfx.splitk(call)).launches
    assert product.grid[1] == parts and scalar(product, "part_groups") * parts >= groups
    assert (parts - 1) * scalar(product, "part_groups") < groups
    assert defines(product)["PARTIAL"] == 1 and defines(product)["BIAS"] == 0
    assert defines(reduction)["BIAS"] == 1 and scalar(reduction, "parts") == parts
    assert scalar(reduction, "apart") == m * scalar(reduction, "row") and scalar(product, "y_row") % 8 == 0


def test_scales_of_rows_are_in_the_parts():
    call = int8_call_of(16, 8192, 64, 64)
    product, _ = accepted(gfx.splitk(call)).launches
    assert product.grid[1] > 1 and arguments_of(product)["scale_a"] == Pointer("scale_a")


@pytest.mark.parametrize(
    "call, says",
    [
        (call_of(129, 14336, 32, 64), "129 rows: more than 128"),
        (call_of(33, 14336, 32, 64, device=RX7900), "33 rows: more than 32"),
        (call_of(16, 14336, 1, 2048), "112 tiles of 1 groups: none is computed in parts"),
        (call_of(16, 200000, 32, 64), "none is computed in parts"),
        (call_of(16, 64, 2, 64), "none is computed in parts"),  # 4 steps of a part at least
        (call_of(0, 64, 32, 64), "none is computed in parts"),
    ],
)
def test_what_is_not_computed_in_parts(call, says):
    assert says in reason(gfx.splitk(call))


def test_what_it_declines():
    assert "must be at most" in reason(gfx.whole(call_of(2**31, 64, 1, 64)))
    assert "exact up to 524288" in reason(gfx.whole(int8_call_of(4, 64, 1, 2**18 + 1)))
    assert "exceed a grid" in reason(gfx.whole(call_of(2**30, 2**20, 1, 64)))


def test_offsets_within_a_tile_have_64_bits_where_rows_are_far_apart():
    call = call_of(700, 512, 4, 64)
    assert defines(launch_of(gfx.whole(call)))["OFFSET_TYPE"] == "uint32_t"
    x = replace(call["x"], strides=(2**26, 1))
    far = replace(call, tensors={**call.tensors, "x": x})
    assert defines(launch_of(gfx.whole(far)))["OFFSET_TYPE"] == "int64_t"


# --- what emulated GPUs compute, in every tile --------------------------------------------------------------


@pytest.fixture
def emulated(monkeypatch):
    """Chooses an emulated GPU, and the tile that the planner takes; all as it was at the end."""

    def choose(arch: str, tile: gfx.Tile) -> None:
        monkeypatch.setenv("PORTABLE_BACKEND", "rocm")
        monkeypatch.setenv("PORTABLE_ROCM_ARCH", arch)
        monkeypatch.setattr(gfx, "tile_of", lambda M, N, device: tile)
        pins.reload()
        detect.reset()

    yield choose
    monkeypatch.undo()
    pins.reload()
    detect.reset()


def tiles(arch):
    lanes = 64 if arch.startswith("gfx9") else 32
    return (*gfx.SMALLER[lanes], gfx.LARGE[lanes])


GROUPS = ((5, 16), (3, 64), (2, 7))  # how many, and bytes of each
N = 140


def weight(groups, half):
    """Codes, zero points and scales, which are powers of two."""
    g = torch.Generator().manual_seed(half)
    codes = torch.randint(0, 256, (N, groups, half), generator=g, dtype=torch.uint8)
    zero = torch.randint(0, 17, (N, groups), generator=g, dtype=torch.uint8)
    return codes, zero, torch.exp2(torch.randint(-3, 3, (N, groups), generator=g))


@pytest.mark.slow
@pytest.mark.parametrize("arch, dtype", [("gfx942", torch.bfloat16), ("gfx1100", torch.float16)])
def test_every_tile_has_exact_sums(emulated, arch, dtype):
    """Of small integers: one rounding is left."""
    name = "mfma" if arch.startswith("gfx9") else "wmma"
    for index, tile in enumerate(tiles(arch)):
        emulated(arch, tile)
        for groups, half in GROUPS:
            codes, zero, scale = weight(groups, half)
            x = (torch.arange((131 + index) * 2 * groups * half) % 7 - 3).view(131 + index, -1).to(dtype)
            bias = torch.arange(N).to(dtype)
            given = (zero, scale.flip(0), bias) if index % 2 else (None, None, None)
            with portable.using(int4_mm=name):
                y = dispatcher.op("int4_mm")(x, codes, scale, *given)
            wide = [None if each is None else each.double() for each in given[1:]]
            ref = reference.int4_mm(x.double(), codes, scale.double(), given[0], *wide)
            assert torch.equal(y, ref.to(dtype)), (tile, groups, half)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "gfx1201"])
def test_every_tile_has_exact_sums_of_int8(emulated, arch):
    name = "mfma" if arch.startswith("gfx9") else "wmma"
    for index, tile in enumerate(tiles(arch)):
        emulated(arch, tile)
        for groups, half in GROUPS:
            codes, zero, scale = weight(groups, half)
            M = 131 + index
            a = (torch.arange(M * 2 * groups * half) * 37 % 256 - 128).view(M, -1).to(torch.int8)
            scale_a, points = torch.exp2(torch.arange(M) % 5 - 2.0)[:, None], zero if index % 2 else None
            with portable.using(int8_int4_mm=name):
                op = dispatcher.op("int8_int4_mm")
                c = op(a, codes, scale_a, scale, points, None, output_dtype=torch.float32)
            ref = int8_reference.int8_int4_mm(a, codes, scale_a.double(), scale.double(), points)
            assert torch.equal(c, ref.float()), (tile, groups, half)
