"""Products in MXFP8, MXFP4 and NVFP4 in HIP C++: each tile, scales at their ends, NaN, plans."""

from __future__ import annotations

import pytest
import torch

import portable
from portable.dispatch import dispatcher
from portable.kernels.scaled_mm import reference
from portable.kernels.scaled_mm.fp4.reference import FP4, MX_BYTES, NV_BYTES, numbers
from portable.kernels.scaled_mm.gfx import mx_plan
from portable.layout import TensorInfo
from portable.plan import Call, Device
from tests.kernels.plan_parts import defines, launch_of, reason

MX, MXFP4, NVFP4 = "scaled_mm_mx", "scaled_mm_mxfp4", "scaled_mm_nvfp4"
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu


def powers(exponents: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Powers of two, as scales."""
    codes = exponents + 127 if dtype == E8M0 else (exponents + 7) * 8
    return codes.to(torch.uint8).view(dtype)


def operands(op: str, M: int, N: int, K: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Small numbers under scales that differ between lines and groups, and their exact product."""
    generator = torch.Generator().manual_seed(M + N + K)
    group = 16 if op == NVFP4 else 32
    lines = [torch.arange(size)[:, None] for size in (M, N)]
    at = torch.arange(-(-K // group))
    dtype = E4M3 if op == NVFP4 else E8M0
    scales = [powers((5 * line + 2 * at) % 5 - 2, dtype) for line in lines]
    if op == MX:
        a, b = (torch.randint(-2, 3, (size, K), generator=generator).float().to(E4M3) for size in (M, N))
        wanted = reference.scaled_mm_mx(*(each.double() for each in (a, b.t(), *scales)))
        return {"mat_a": a, "mat_b": b.t(), "scale_a": scales[0], "scale_b": scales[1]}, wanted
    a, b = (torch.randint(0, 256, (size, K // 2), generator=generator, dtype=torch.uint8) for size in (M, N))
    size = NV_BYTES if op == NVFP4 else MX_BYTES
    wide = [numbers(each, scale.double(), size) for each, scale in zip((a, b), scales, strict=True)]
    given = {"mat_a": a, "mat_b": b.t(), "scale_a": scales[0], "scale_b": scales[1]}
    whole = {"global_a": torch.tensor([0.5]), "global_b": torch.tensor([4.0])} if op == NVFP4 else {}
    return given | whole, wide[0] @ wide[1].T * (2.0 if whole else 1.0)


@pytest.mark.parametrize(
    ("arch", "op", "tile"),
    [
        ("gfx950", MX, (256, 256)),
        ("gfx950", MXFP4, (256, 256)),
        ("gfx950", MX, (128, 128)),
        ("gfx950", MXFP4, (64, 128)),
        ("gfx950", NVFP4, (128, 128)),
        ("gfx942", MX, (128, 128)),
        ("gfx942", MXFP4, (128, 128)),
        ("gfx90a", NVFP4, (128, 128)),
    ],
)
def test_every_tile_adds_up_exactly(emulate, monkeypatch, arch, op, tile):
    M, N, K = 258 + tile[0] // 64, 272, 352
    given, wanted = operands(op, M, N, K)
    emulate(arch)
    monkeypatch.setattr(mx_plan, "tile_of", lambda *_: tile)
    with portable.using(**{op: "mfma"}):
        c = dispatcher.op(op)(**given, output_dtype=torch.float32)
        assert torch.equal(c.double(), wanted)
        if tile != (256, 256):  # which takes aligned operands along k
            given["mat_b"] = given["mat_b"].contiguous()
            assert torch.equal(dispatcher.op(op)(**given, output_dtype=torch.float32), c)


GPUS = (("gfx950", "mfma"), ("gfx942", "mfma"), ("gfx1100", "wmma"), ("gfx1201", "wmma"))


@pytest.mark.parametrize(("arch", "name"), GPUS)
@pytest.mark.parametrize("op", [MX, MXFP4])
def test_scales_from_2_to_the_minus_127_to_2_to_the_127(emulate, arch, name, op):
    """With numbers that make the least scale's a normal number."""
    scale = torch.arange(255)
    opposite = 254 - scale
    left, right = torch.ones(255), torch.ones(255)
    left[scale == 0] = right[opposite == 0] = 2.0

    def matrix(values):
        if op == MX:
            return values[:, None].to(E4M3)
        return (values * 2).to(torch.uint8)[:, None]  # codes 2 and 4 are 1 and 2

    given = {
        "mat_a": matrix(left),
        "mat_b": matrix(right).t(),
        "scale_a": scale.to(torch.uint8).view(E8M0)[:, None],
        "scale_b": opposite.to(torch.uint8).view(E8M0)[:, None],
    }
    emulate(arch)
    with portable.using(**{op: name}):
        c = dispatcher.op(op)(**given, output_dtype=torch.float32)
    assert torch.equal(c.diagonal().double(), (left * right).double())


@pytest.mark.parametrize(("arch", "name"), GPUS)
@pytest.mark.parametrize("dtype", [E4M3, torch.float8_e5m2])
def test_the_smallest_number_under_the_largest_scale(emulate, arch, name, dtype):
    a = torch.ones(3, 64, dtype=torch.uint8).view(dtype)  # the smallest subnormal number
    b = torch.zeros(5, 64)
    b[:, 33] = 1.0
    a_scale, b_scale = torch.full((3, 2), 254, dtype=torch.uint8), torch.full((5, 2), 127, dtype=torch.uint8)
    given = {
        "mat_a": a,
        "mat_b": b.to(E4M3).t(),
        "scale_a": a_scale.view(E8M0),
        "scale_b": b_scale.view(E8M0),
    }
    emulate(arch)
    with portable.using(**{MX: name}):
        c = dispatcher.op(MX)(**given, output_dtype=torch.float32)
    assert torch.equal(c.double(), a.double()[:, :1].expand(3, 5) * 2.0**127)


@pytest.mark.parametrize(("arch", "name"), GPUS)
@pytest.mark.parametrize("op", [MX, MXFP4, NVFP4])
def test_a_scale_that_is_nan_poisons_its_line_alone(emulate, arch, name, op):
    """Of numbers that are all zero, and in a last group that is not whole."""
    given, _ = operands(op, 20, 24, 240)
    for side, line, group in (("scale_a", 7, 0), ("scale_b", 23, -1)):
        codes = given[side].view(torch.uint8).clone()
        codes[line, group] = 127 if op == NVFP4 else 255
        given[side] = codes.view(given[side].dtype)
    zeros = given["mat_a"].view(torch.uint8).clone()
    zeros[7] = 0
    given["mat_a"] = zeros.view(given["mat_a"].dtype)
    emulate(arch)
    with portable.using(**{op: name}):
        c = dispatcher.op(op)(**given, output_dtype=torch.float32)
    expected = torch.zeros(20, 24, dtype=torch.bool)
    expected[7] = expected[:, 23] = True
    assert torch.equal(c.isnan(), expected)


DEVICES = {
    "gfx942": Device("rocm", "gfx942", "toy", 0, 304, 64, 64 * 1024),
    "gfx950": Device("rocm", "gfx950", "toy", 0, 256, 64, 160 * 1024),
}


def call_of(
    M: int, N: int, K: int, arch: str, config: dict[str, int] | None = None, *, row_major: bool = False
):
    """A call of scaled_mm_mx."""
    tensors = {
        "mat_a": TensorInfo((M, K), (K, 1), "float8_e4m3fn"),
        "mat_b": TensorInfo((K, N), (N, 1) if row_major else (1, K), "float8_e4m3fn"),
        "scale_a": TensorInfo((M, K // 32), (K // 32, 1), "float8_e8m0fnu"),
        "scale_b": TensorInfo((N, K // 32), (K // 32, 1), "float8_e8m0fnu"),
        "c": TensorInfo((M, N), (N, 1), "bfloat16"),
    }
    return Call(tensors, {"output_dtype": "bfloat16"}, {}, DEVICES[arch], config or {})


def test_the_tile_is_the_largest_that_gives_every_compute_unit_one():
    def tile_of(*args, **more):
        made = defines(launch_of(mx_plan.mx(call_of(*args, **more))))
        return made["TILE_M"], made["TILE_N"], made["SCALED_MFMA"]

    assert tile_of(4096, 4096, 4096, "gfx950") == (256, 256, 1)
    assert tile_of(4096, 4096, 4096, "gfx950", row_major=True) == (128, 128, 1)
    assert tile_of(2048, 2048, 4096, "gfx950") == (128, 128, 1)
    assert tile_of(64, 4096, 4096, "gfx950") == (64, 64, 1)
    assert tile_of(8192, 8192, 4096, "gfx942") == (128, 128, 0)
    assert tile_of(64, 4096, 4096, "gfx950", {"TILE_N": 128}) == (64, 128, 1)
    assert "256 x 128" in reason(mx_plan.mx(call_of(512, 512, 512, "gfx942", {"TILE_M": 256, "TILE_N": 128})))


def test_numbers_of_gfx950_s_formats():
    """cbsz and blgp of f8f6f4."""
    assert mx_plan.KINDS == {"float8_e4m3fn": 0, "float8_e5m2": 1, FP4: 4}
