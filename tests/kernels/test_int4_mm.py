"""portable.int4_mm: products with weights in 4 bits, against float64; plans; wrong calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from portable import errors, int4_mm
from portable.kernels.int4_mm import baseline, triton_impl, triton_widened
from portable.kernels.int4_mm.sm80 import plan as mma
from portable.plan import Call, Device, Plan, Rejected, TensorInfo
from tests.kernels.plan_parts import accepted, constants, defines, launch_of, planner, reason, scalar

H200 = Device("cuda", "sm_90a", "NVIDIA H200", 0, 132, 32, 227 * 1024)
TILES: dict[str, Any] = {"BLOCK_M": 16, "BLOCK_N": 16, "GROUP_M": 8, "num_stages": 2}


def drawn(rows=(3,), n=20, k=128, groups=4, dtype=torch.float32, scales=None):
    """x, weight, scale, zero point, offset and bias."""
    g = torch.Generator().manual_seed(k + n)
    codes = torch.randint(0, 256, (n, k // 2), generator=g, dtype=torch.uint8)
    zero = torch.randint(0, 17, (n, groups), generator=g, dtype=torch.uint8)
    x, bias = torch.randn(*rows, k, generator=g), torch.randn(n, generator=g)
    scale, offset = (
        (torch.rand(n, groups, generator=g) + 0.5).to(scales or dtype),
        torch.randn(n, groups, generator=g),
    )
    return x.to(dtype), codes, scale, zero, offset.to(scales or dtype), bias.to(dtype)


def weight_of(codes, scale, zero=None, offset=None):
    """w in float64, element by element as the docstring has it."""
    n, half = codes.shape
    group = 2 * half // scale.shape[1]
    w = torch.zeros(n, 2 * half, dtype=torch.float64)
    for row in range(n):
        for k in range(2 * half):
            byte = int(codes[row, k // 2])
            code = byte % 16 if k % 2 == 0 else byte // 16
            point = 8 if zero is None else int(zero[row, k // group])
            w[row, k] = (code - point) * scale[row, k // group].double()
            if offset is not None:
                w[row, k] += offset[row, k // group].double()
    return w


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("given", [(), ("zero",), ("offset",), ("zero", "offset", "bias")])
def test_the_product_of_what_the_codes_stand_for(groups, given):
    x, codes, scale, zero, offset, bias = drawn((2, 3), groups=groups)
    more = {"zero_point": zero, "offset": offset, "bias": bias}
    more = {name: each for name, each in more.items() if name.removesuffix("_point") in given}
    y = int4_mm(x, codes, scale, **more)
    w = weight_of(codes, scale, more.get("zero_point"), more.get("offset"))
    ref = x.double() @ w.T + (bias.double() if "bias" in given else 0)
    assert (y.shape, y.dtype) == ((2, 3, 20), torch.float32)
    torch.testing.assert_close(y.double(), ref, rtol=1e-5, atol=1e-4)
    assert torch.equal(int4_mm(x, codes, scale.t().contiguous().t(), **more), y)  # torchao's order


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_weight_is_not_rounded_to_16_bits(dtype):
    """Of float32 scales, where the weight in 16 bits would be off by many last places of the sum."""
    x, codes, scale, *_ = drawn(k=1024, groups=8, dtype=dtype, scales=torch.float32)
    x = x.abs()
    codes = codes & 7 | 0x80  # of one sign: 0 to 7 and 8
    ref = x.double() @ weight_of(codes, scale).T
    y = int4_mm(x, codes, scale)
    assert y.dtype == dtype
    assert ((y.double() - ref).abs() <= 0.51 * torch.finfo(dtype).eps * ref.abs() + 1e-3).all()


def test_timings_are_held_to_the_product_of_the_same_weight():
    names = ("x", "weight", "scale", "zero_point", "offset", "bias")
    x, codes, scale, *rest = drawn()
    dense = baseline.dense(dict(zip(names, (x, codes.unflatten(1, (4, 16)), scale, *rest), strict=True)), {})
    torch.testing.assert_close(dense(), int4_mm(x, codes, scale, *rest))


def test_there_is_no_gradient():
    x, codes, scale, *_ = drawn()
    with pytest.raises(errors.UnsupportedGradientError, match="int4_mm: no gradient"):
        int4_mm(x.requires_grad_(), codes, scale).sum().backward()


@pytest.mark.slow
def test_torch_compile_takes_it_whole():
    call = drawn()
    compiled = torch.compile(int4_mm, backend="eager", fullgraph=True)
    assert torch.equal(compiled(*call), int4_mm(*call))


@pytest.mark.parametrize(
    "error, says, at, value",
    [
        (errors.DtypeError, "weight' has dtype torch.int32; expected torch.uint8, two codes", 1,
         torch.ones(20, 8, dtype=torch.int32)),
        (errors.RankError, "weight' has 3 dimensions; expected 2", 1, torch.ones(20, 4, 16).byte()),
        (errors.ShapeError, r"x' has shape \(3, 130\); expected \(\.\.\., 128\)", 0, torch.ones(3, 130)),
        (errors.ShapeError, r"scale' has shape \(20, 3\).*K = 128", 2, torch.ones(20, 3)),
        (errors.ShapeError, r"scale' has shape \(4, 20\)", 2, torch.ones(4, 20)),
        (errors.DtypeError, "scale' has dtype float16", 2, torch.ones(20, 4).half()),
        (errors.DtypeError, "zero_point' has dtype float32; expected uint8", 3, torch.ones(20, 4)),
        (errors.ShapeError, "zero_point' has shape", 3, torch.ones(20, 2).byte()),
        (errors.NotATensorError, "scale' is a float", 2, 1.0),
    ],
)  # fmt: skip
def test_what_it_refuses_and_says(error, says, at, value):
    call = list(drawn())
    call[at] = value
    with pytest.raises(error, match=says) as caught:
        int4_mm(*call)
    assert str(caught.value).startswith("portable.int4_mm: ")
    with pytest.raises(errors.SignatureError, match="K divided by the columns of scale"):
        int4_mm(*drawn(), group_size=128)  # pyright: ignore[reportCallIssue]


def _call(rows, n, groups, half, given=(), device=H200, **config):
    """A call with the optional inputs `given`."""
    shapes = {
        "x": (rows, 2 * groups * half),
        "weight": (n, groups, half),
        "scale": (n, groups),
        "y": (rows, n),
        **{name: (n,) if name == "bias" else (n, groups) for name in given},
    }
    types = dict.fromkeys(shapes, "bfloat16") | {"weight": "uint8", "zero_point": "uint8"}
    infos = {}
    for name, shape in shapes.items():
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        infos[name] = TensorInfo(shape, tuple(strides), types[name])
    default = {"BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3}
    return Call(infos, {}, {"N": n, "G": groups, "P": half}, device, {**default, **config})


def test_few_rows_share_k_where_columns_do_not_fill_the_gpu():
    plan = triton_impl.few_rows(_call(1, 4096, 32, 64, SPLITS=0))
    assert isinstance(plan, Plan)
    halves, part, reduce = plan.launches
    assert halves.grid == (1, 32, 1) and part.grid == (64, 8, 1) and reduce.grid == (16, 1, 1)
    assert {each.name: each.shape for each in plan.workspaces} == {
        "halves": (1, 2, 2048),
        "partial": (8, 1, 4096),
    }
    whole = triton_impl.few_rows(_call(1, 65536, 32, 64, SPLITS=0))
    assert isinstance(whole, Plan)
    _, alone = whole.launches
    assert alone.grid == (1024, 1, 1)
    more = triton_impl.few_rows(_call(16, 4096, 32, 64, SPLITS=0))
    # the parts do not depend on the rows, nor do a row's bits
    assert isinstance(more, Plan) and more.launches[1].grid == part.grid
    refused = triton_impl.few_rows(_call(17, 4096, 32, 64, SPLITS=0))
    assert isinstance(refused, Rejected) and refused.reason == "17 rows: more than 16"


def test_sums_of_x_are_made_where_there_are_offsets():
    plan = accepted(triton_impl.many_rows(_call(64, 64, 2, 48, ("offset",), **TILES)))
    assert [each.shape for each in plan.workspaces] == [(64, 2, 96), (64, 2)]
    assert "sums_ptr" in dict(plan.launches[0].args) and "sums_ptr" in dict(plan.launches[1].args)
    plan = accepted(triton_impl.many_rows(_call(64, 64, 2, 0, ("offset",), **TILES)))
    assert len(plan.launches) == 1  # of no columns


@pytest.mark.parametrize("half, block", [(16, 16), (32, 32), (64, 64), (48, 64), (1008, 64)])
def test_steps_along_k_stay_within_a_group(half, block):
    _, tile = accepted(triton_impl.many_rows(_call(64, 64, 2, half, **TILES))).launches
    fixed = constants(tile)
    assert fixed["BLOCK_K"] == block
    assert fixed["WHOLE"] == (half == block) and fixed["EVEN"] == (half % block == 0)


A100 = Device("cuda", "sm_80", "A100", 0, 108, 32, 163 * 1024)


def _mma(rows, n, groups, half, given=(), device=H200):
    return mma.few_rows(_call(rows, n, groups, half, given, device))


@pytest.mark.parametrize("given", [(), ("zero_point",), ("zero_point", "offset", "bias")])
@pytest.mark.parametrize("rows", [1, 3, 8, 16, 17, 64])
@pytest.mark.parametrize("device", [H200, A100])
@pytest.mark.parametrize("n, groups, half", [(14336, 32, 64), (4096, 128, 16), (33, 1, 2064), (5, 9, 48)])
def test_a_block_of_few_rows_fits_and_every_element_has_one(rows, given, device, n, groups, half):
    plan = accepted(_mma(rows, n, groups, half, given, device))
    (launch,) = plan.launches
    made = defines(launch)
    columns = made["WARPS_N"] * made["ROW_TILES"] * 16
    assert launch.grid[0] == -(-n // columns) and launch.grid[1] == -(-rows // made["X_ROWS"])
    assert launch.kernel.shared * made["RESIDENT"] <= device.shared_memory and made["STAGES"] >= 2
    assert launch.kernel.threads == 32 * made["WARPS_N"] * made["WARPS_K"]
    assert scalar(launch, "units") == groups * half // 16 and scalar(launch, "group_units") == half // 16
    assert (made["ZERO_POINT"], made["OFFSET"], made["BIAS"]) == tuple(
        int(name in given) for name in ("zero_point", "offset", "bias")
    )


@pytest.mark.parametrize(
    "half, scaled, whole",
    [(16, 1, 1), (32, 2, 1), (64, 4, 1), (48, 1, 0), (96, 2, 0), (128, 4, 0), (2064, 1, 0)],
)
def test_a_scale_meets_as_many_units_as_lie_in_one_group(half, scaled, whole):
    made = defines(launch_of(_mma(2, 64, 2, half)))
    assert (made["SCALED"], made["GROUPS_OF_SCALED"]) == (scaled, whole)


def test_what_the_kernel_of_few_rows_declines():
    assert reason(_mma(65, 64, 2, 64)) == "65 rows: more than 64"
    assert reason(_mma(4, 64, 2, 24)) == "groups of 48 codes: not a multiple of 32"
    odd = _call(4, 64, 2, 64)
    x = odd["x"]
    for changed in (replace(x, alignment=8), replace(x, strides=(260, 1))):
        answer = mma.few_rows(replace(odd, tensors={**odd.tensors, "x": changed}))
        assert reason(answer) == "x or weight has rows that do not start at multiples of 16 bytes"
    assert planner("int4_mm", "mma") is not None


WIDE: dict[str, Any] = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128, "num_warps": 8, "num_stages": 3}


def _widened(rows=4096, n=14336, groups=32, half=64, given=(), **config):
    return triton_widened.plan(_call(rows, n, groups, half, given, **{"GROUP_M": 8, **WIDE, **config}))


def test_triton_makes_the_numbers_of_many_rows_once():
    plan = accepted(_widened(given=("zero_point", "bias")))
    numbers, product = plan.launches
    assert numbers.grid == (896, 32, 1) and product.grid == (132, 1, 1)
    assert {each.name: (each.shape, each.dtype) for each in plan.workspaces} == {
        "numbers": ((14336, 4096), "bfloat16"),
        "scales": ((32, 14336), "float32"),
    }
    assert scalar(product, "group") == 128 and scalar(product, "work") == 32 * 112


@pytest.mark.parametrize(
    "change, says",
    [
        ({"rows": 512}, "512 rows: fewer than"),
        ({"given": ("offset",)}, "an offset"),
        ({"half": 32}, "groups of 64 k: not a multiple of 128"),
        ({"n": 14337}, "TMA cannot reach y"),
        ({"num_stages": 4}, "bytes of shared memory"),
    ],
)
def test_what_numbers_in_memory_leave_to_tiles(change, says):
    assert says in reason(_widened(**change))
