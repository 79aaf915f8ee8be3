"""portable.scaled_mm: torch's recipes, their scales and errors, against float64 and torch's own function."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import portable
from portable import errors
from portable.kernels._lib import minifloat
from portable.kernels.scaled_mm import reference, triton_impl
from portable.kernels.scaled_mm.gfx import plan as gfx_plan
from portable.kernels.scaled_mm.sm90 import wgmma_plan, widened_plan
from portable.plan import Call, Device, Rejected, TensorInfo
from portable.spec import registry
from tests.kernels.plan_parts import constants, launch_of

M, N, K = 24, 144, 272
SIXTEENTHS = torch.arange(N) / 16


def operands(rows=M, columns=N, length=K, types=("float8_e4m3fn", "float8_e4m3fn")):
    """N(0, 1) numbers; mat_b is column-major."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(rows, length, generator=generator).to(getattr(torch, types[0]))
    return a, torch.randn(columns, length, generator=generator).to(getattr(torch, types[1])).t()


def positive(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 0.5


def close(got, ref, dtype):
    """Within one rounding to the result's type and a few of float32."""
    assert got.dtype == dtype
    limit = torch.finfo(dtype).eps * 0.51 * ref.abs() + 1e-4
    assert bool(((got.double() - ref).abs() <= limit).all())


ROWS = (("TensorWise", ()), ("TensorWise", (1, 1)), ("RowWise", (M, 1)))
COLUMNS = (("TensorWise", (1,)), ("RowWise", (1, N)))


@pytest.mark.parametrize("recipe_a, shape_a", ROWS)
@pytest.mark.parametrize("recipe_b, shape_b", COLUMNS)
def test_a_scale_for_all_or_for_each_row(recipe_a, shape_a, recipe_b, shape_b):
    (a, b), sa, sb = operands(), positive(*shape_a), positive(*shape_b)
    ref = (a.double() @ b.double()) * sa.double() * sb.double()
    close(portable.scaled_mm(a, b, sa, recipe_a, sb, recipe_b), ref, torch.bfloat16)
    bias = SIXTEENTHS.half()
    got = portable.scaled_mm(a, b.contiguous(), sa, recipe_a, sb, recipe_b, None, None, bias, torch.float16)
    close(got, ref + bias.double(), torch.float16)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("major", [False, True])
def test_a_scale_for_each_block(padded, major):
    (a, b), sa, sb = operands(), positive(M, 3), positive(3, 2)
    ref = reference.scaled_mm_block(a.double(), b.double(), sa.double(), sb.double())
    given = torch.cat([sb, torch.full((1, 2), torch.nan)]) if padded else sb
    if major:  # as torch and DeepGEMM have them
        sa, given = sa.t().contiguous().t(), given.t().contiguous().t()
    call = a, b, sa, "BlockWise1x128", given, "BlockWise128x128"
    close(portable.scaled_mm(*call, output_dtype=torch.float32), ref, torch.float32)
    by_hand = sum(
        (a.double()[:, k : k + 128] @ b.double()[k : k + 128, n : n + 128])
        * sa.double()[:, k // 128, None] * sb.double()[k // 128, n // 128]
        for n in (0,) for k in range(0, K, 128)
    )  # fmt: skip
    torch.testing.assert_close(ref[:, :128], by_hand)


def test_a_power_of_two_for_each_32():
    a, weight = (torch.randn(rows, K, generator=torch.Generator().manual_seed(rows)) for rows in (M, N))
    (qa, sa), (qb, sb) = (portable.quantize_mx(each, dtype=torch.float8_e4m3fn) for each in (a, weight))
    call = qa, qb.t(), sa, "BlockWise1x32", sb, "BlockWise1x32"
    c = portable.scaled_mm(*call, output_dtype=torch.float32)
    wide = [each.double() for each in (qa, qb.t())] + [each.float().double() for each in (sa, sb)]
    close(c, reference.scaled_mm_mx(*wide), torch.float32)
    by_hand = sum(
        wide[0][3, k : k + 32] @ wide[1][k : k + 32, 5] * wide[2][3, k // 32] * wide[3][5, k // 32]
        for k in range(0, K, 32)
    )
    torch.testing.assert_close(c[3, 5].double(), by_hand, rtol=1e-5, atol=1e-5)
    error = (c.double() - a.double() @ weight.double().T).norm() / c.double().norm()
    assert 0.005 < error < 0.06  # of two roundings to three bits
    strided = sa.view(torch.uint8).t().contiguous().t().view(sa.dtype)
    call = qa, qb.t(), strided, "BlockWise1x32", sb, "BlockWise1x32"
    assert torch.equal(portable.scaled_mm(*call, output_dtype=torch.float32), c)


def test_in_a_square_the_first_axis_of_scale_b_is_along_k():
    a = torch.zeros(1, 256)
    a[0, 200] = 1.0  # in the second block of k
    b = torch.ones(256, 256).to(torch.float8_e4m3fn)
    scales = torch.tensor([[1.0, 2.0], [4.0, 8.0]])
    call = a.to(b.dtype), b, torch.ones(1, 2), "BlockWise1x128", scales, "BlockWise128x128"
    c = portable.scaled_mm(*call)
    assert c[0, 0] == 4.0 and c[0, 255] == 8.0


@pytest.mark.parametrize("recipe", ["TensorWise", "RowWise"])
def test_it_takes_the_calls_of_torch_s_and_answers_the_same(recipe):
    kind = getattr(F.ScalingType, recipe)
    shapes = {"TensorWise": ((), ()), "RowWise": ((M, 1), (1, N))}[recipe]
    (a, b), sa, sb = operands(), *(positive(*shape) for shape in shapes)
    for said in (kind, [kind]):
        scales = (sa, said, sb, said) if said is kind else ([sa], said, [sb], said)
        swizzle = F.SwizzleType.NO_SWIZZLE
        options = {"swizzle_a": swizzle, "swizzle_b": [swizzle], "output_dtype": torch.float32}
        ours = portable.scaled_mm(a, b, *scales, **options, contraction_dim=(1, 0), use_fast_accum=True)
        theirs = F.scaled_mm(a, b, *scales, **options)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)


def test_torch_s_arguments_have_our_names_and_defaults():
    import inspect

    ours = inspect.signature(portable.scaled_mm).parameters
    assert {name: each.default for name, each in ours.items()} == {
        name: each.default for name, each in inspect.signature(F.scaled_mm).parameters.items()
    }


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_torch_decodes_every_code_as_we_do(name):
    """So the reference gets the numbers that the codes stand for."""
    codes = torch.arange(256, dtype=torch.uint8)
    ours = minifloat.decode(codes, name)
    own = codes.view(getattr(torch, name))
    for theirs in (own.double(), own.float().double()):
        assert torch.equal(theirs.nan_to_num(1e9), ours.nan_to_num(1e9))
        assert torch.equal(theirs.isnan(), ours.isnan())


E4, E5, FNUZ = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz
E8 = torch.float8_e8m0fnu
ROW, OF_A, OF_B, MX = "RowWise", "BlockWise1x128", "BlockWise128x128", "BlockWise1x32"
ONE = torch.ones(1)


def refused(error, says, a=None, b=None, sa=ONE, kind_a="TensorWise", sb=ONE, kind_b="TensorWise", **options):
    left, right = operands()
    left, right = left if a is None else a, right if b is None else b
    with pytest.raises(error, match=says) as caught:
        portable.scaled_mm(left, right, sa, kind_a, sb, kind_b, **options)
    assert str(caught.value).startswith("portable.scaled_mm: ") and str(caught.value).endswith((".", "?"))


@pytest.mark.parametrize(
    "error, says, call",
    [
        (errors.DtypeError, "mat_a' has dtype torch.bfloat16", {"a": torch.ones(M, K).bfloat16()}),
        (errors.DtypeError, "mat_b' has dtype torch.int8", {"b": torch.ones(K, N).to(torch.int8)}),
        (errors.DtypeError, "mat_a' has dtype torch.uint8", {"a": torch.ones(M, K).to(torch.uint8)}),
        (errors.DtypeError, "beside 'mat_a' of float8_e5m2", 
         {"a": torch.ones(M, K).to(E5), "b": torch.ones(K, N).to(E5)}),
        (errors.DtypeError, "beside 'mat_a' of float8_e4m3fnuz", {"a": torch.ones(M, K).to(FNUZ)}),
        (errors.NotATensorError, "mat_a' is a list", {"a": [[1.0]]}),
        (errors.RankError, "mat_a' has 3 dimensions", {"a": torch.ones(1, M, K).to(E4)}),
        (errors.ShapeError, r"mat_b' has shape \(144, 272\); expected \(272, N\)", {"b": operands()[1].t()}),
        (errors.ShapeError, "scale_a' has shape .2,.; expected one number", {"sa": torch.ones(2)}),
        (errors.ShapeError, r"scale_a' has shape \(24,\); expected \(24, 1\)",
         {"sa": torch.ones(M), "kind_a": ROW}),
        (errors.ShapeError, r"scale_b' has shape \(144, 1\)", {"sb": torch.ones(N, 1), "kind_b": ROW}),
        (errors.DtypeError, "scale_b' has dtype torch.float64", {"sb": ONE.double()}),
        (errors.NotATensorError, "scale_a' is a float", {"sa": 1.0}),
        (errors.ShapeError, r"scale_a' has shape \(24, 2\); expected \(24, 3\)",
         {"sa": torch.ones(M, 2), "kind_a": OF_A, "sb": torch.ones(3, 2), "kind_b": OF_B}),
        (errors.ShapeError, r"expected \(3, 2\).* or \(4, 2\), padded as torch's",
         {"sa": torch.ones(M, 3), "kind_a": OF_A, "sb": torch.ones(2, 3), "kind_b": OF_B}),
        (errors.ParameterError, "BlockWise128x128 beside a scale_recipe_a of RowWise",
         {"kind_a": ROW, "kind_b": OF_B}),
        (errors.ParameterError, "BlockWise1x128 beside", {"kind_a": OF_A, "kind_b": OF_A}),
        (errors.ParameterError, "TensorWise beside a scale_recipe_a of BlockWise1x32", {"kind_a": MX}),
        (errors.DtypeError, "scale_a' has dtype torch.float32; expected torch.float8_e8m0fnu",
         {"kind_a": MX, "kind_b": MX}),
        (errors.ShapeError, r"scale_b' has shape \(9, 144\); expected \(144, 9\), \(N, ceil\(K / 32\)\)",
         {"sa": torch.ones(M, 9).to(E8), "sb": torch.ones(9, N).to(E8), "kind_a": MX, "kind_b": MX}),
        (errors.ParameterError, "is of matrices of torch.float4_e2m1fn_x2",
         {"kind_b": ["BlockWise1x16", "TensorWise"]}),
        (errors.ParameterError, "Did you mean 'RowWise'", {"kind_b": "Rowwise"}),
        (errors.ParameterError, "scale_recipe_b' is 1", {"kind_b": 1}),
        (errors.ParameterError, "swizzle_a' is 'SWIZZLE_32_4_4'", {"swizzle_a": "SWIZZLE_32_4_4"}),
        (errors.ParameterError, "contraction_dim' is", {"contraction_dim": (0, 0)}),
        (errors.ParameterError, "use_fast_accum' is 1", {"use_fast_accum": 1}),
        (errors.ParameterError, "output_dtype' is", {"output_dtype": torch.float64}),
        (errors.ShapeError, "bias' has shape", {"bias": torch.ones(M).bfloat16()}),
        (errors.DtypeError, "bias' has dtype torch.float32; expected torch.float16",
         {"bias": torch.ones(N), "output_dtype": torch.float16}),
        (errors.SignatureError, "It is output_dtype here", {"out_dtype": torch.float16}),
    ],
)  # fmt: skip
def test_what_it_refuses_and_says(error, says, call):
    refused(error, says, **call)


@pytest.mark.slow
def test_torch_compile_takes_it_whole():
    (a, b), sa, sb = operands(), positive(M, 3), positive(3, 2)

    def run(a, b, sa, sb):
        whole = portable.scaled_mm(a, b, sa[:, :1], "RowWise", sb[:1, :1], "TensorWise")
        return whole, portable.scaled_mm(a, b, sa, "BlockWise1x128", sb, "BlockWise128x128")

    compiled = torch.compile(run, backend="eager", fullgraph=True)
    for got, expected in zip(compiled(a, b, sa, sb), run(a, b, sa, sb), strict=True):
        assert torch.equal(got, expected)


# Plans ---------------------------------------------------------------------------------------------

DEVICES = {
    "sm_90a": Device("cuda", "sm_90a", "H", 0, 132, 32, 227 * 1024),
    "sm_80": Device("cuda", "sm_80", "A", 0, 108, 32, 163 * 1024),
    "gfx942": Device("rocm", "gfx942", "M", 0, 304, 64, 64 * 1024),
    "gfx1201": Device("rocm", "gfx1201", "R", 0, 64, 32, 64 * 1024),
}
CONFIG = dict(registry.spec("scaled_mm").implementation("triton").default)  # pyright: ignore[reportOptionalMemberAccess]


def planned(*args, **options):
    return launch_of(plan_of(*args, **options))


def plan_of(
    arch, types=("float8_e4m3fn", "float8_e4m3fn"), blocked=False, fast=False, entry=None,
    sizes=(512, 512, 1024), b_steps=None, **config,
):  # fmt: skip
    m, n, k = sizes
    shapes = {"scale_a": (m, 8), "scale_b": (8, 4)} if blocked else {"scale_a": (m, 1), "scale_b": (1, n)}
    tensors = {
        "mat_a": TensorInfo((m, k), (k, 1), types[0]),
        "mat_b": TensorInfo((k, n), b_steps or (1, k), types[1]),
        "c": TensorInfo((m, n), (n, 1), "bfloat16"),
        "bias": None,
        **{name: TensorInfo(shape, (1, shape[0]), "float32") for name, shape in shapes.items()},
    }
    entry = entry or (triton_impl.blocks if blocked else triton_impl.rows)
    params = {"output_dtype": "bfloat16", "use_fast_accum": fast}
    return entry(Call(tensors, params, {"M": m, "N": n, "K": k}, DEVICES[arch], CONFIG | config))


@pytest.mark.parametrize(
    "arch, types, native",
    [
        ("sm_90a", ("float8_e4m3fn", "float8_e5m2"), True),
        ("sm_90a", ("float8_e4m3fnuz", "float8_e4m3fnuz"), False),
        ("sm_80", ("float8_e4m3fn", "float8_e4m3fn"), False),
        ("gfx942", ("float8_e4m3fnuz", "float8_e4m3fnuz"), True),
        ("gfx942", ("float8_e4m3fn", "float8_e4m3fn"), False),
        ("gfx1201", ("float8_e4m3fn", "float8_e4m3fn"), True),
        ("gfx1201", ("float8_e5m2", "float8_e4m3fn"), False),
    ],
)
def test_codes_are_decoded_where_the_gpu_has_no_such_type(arch, types, native):
    launch = planned(arch, types)
    assert (constants(launch)["A_FORMAT"] is None) == native
    pointer = dict(launch.args)["a_ptr"]
    assert pointer.dtype == (None if native else "uint8")


def test_a_sum_is_promoted_at_least_every_128_products_but_for_fast_accumulation():
    for block_k in (32, 64, 128):
        assert constants(planned("sm_90a", BLOCK_K=block_k))["PROMOTE"] == block_k
    assert constants(planned("sm_90a", fast=True))["PROMOTE"] is None
    assert constants(planned("sm_90a", blocked=True))["BLOCKED"]


def mx_launch(sizes=(512, 512, 1024), scale_step=None, b_steps=None, alignment=16):
    m, n, k = sizes
    groups = -(-k // 32)
    tensors = {
        "mat_a": TensorInfo((m, k), (k, 1), "float8_e4m3fn"),
        "mat_b": TensorInfo((k, n), b_steps or (1, k), "float8_e4m3fn"),
        "c": TensorInfo((m, n), (n, 1), "bfloat16"),
        "bias": None,
        "scale_a": TensorInfo((m, groups), (scale_step or groups, 1), "float8_e8m0fnu", alignment),
        "scale_b": TensorInfo((n, groups), (groups, 1), "float8_e8m0fnu"),
    }
    params = {"output_dtype": "bfloat16", "use_fast_accum": True}
    call = Call(tensors, params, {"M": m, "N": n, "K": k}, DEVICES["sm_90a"], {})
    found = wgmma_plan.mx(call)
    return found if isinstance(found, Rejected) else launch_of(found)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, 1),
        ({"sizes": (512, 512, 1056)}, 0),  # 33 groups
        ({"scale_step": 33}, 0),
        ({"scale_step": 36}, 1),
        ({"alignment": 2}, 0),
    ],
)
def test_wgmma_reads_mx_s_scales_by_words_where_four_are_one(change, words):
    launch = mx_launch(**change)
    assert not isinstance(launch, Rejected)
    defines, args = dict(launch.kernel.defines), dict(launch.args)
    assert (defines["MX_SCALES"], defines["MX_WORDS"], defines["FAST_ACCUM"]) == (1, words, 0)
    groups = -(-change.get("sizes", (0, 0, 1024))[2] // 32)
    steps = [args[f"scale_{name}"].value for name in ("a_row", "a_k", "b_col", "b_k")]
    assert steps == [change.get("scale_step", groups), 1, groups, 1]


def widened(
    kind="mx", sizes=(1024, 512, 1024), b_steps=None, scale_steps=None, b_scale_steps=None, bias=False
):  # fmt: skip
    m, n, k = sizes
    stored = k if kind == "mx" else k // 2
    groups = -(-k // (16 if kind == "nvfp4" else 32))
    element, scale = "float8_e4m3fn" if kind == "mx" else "uint8", "float8_e8m0fnu"
    whole = {}
    if kind == "nvfp4":
        scale, whole = "float8_e4m3fn", {f"global_{name}": TensorInfo((1,), (1,), "float32") for name in "ab"}
    tensors = {
        "mat_a": TensorInfo((m, stored), (stored, 1), element),
        "mat_b": TensorInfo((stored, n), b_steps or (1, stored), element),
        "c": TensorInfo((m, n), (n, 1), "bfloat16"),
        "bias": TensorInfo((n,), (1,), "bfloat16") if bias else None,
        "scale_a": TensorInfo((m, groups), scale_steps or (groups, 1), scale),
        "scale_b": TensorInfo((n, groups), b_scale_steps or (groups, 1), scale),
        **whole,
    }
    call = Call(tensors, {"output_dtype": "bfloat16"}, {}, DEVICES["sm_90a"], {})
    return getattr(widened_plan, kind)(call)


@pytest.mark.parametrize("kind", ["mx", "mxfp4", "nvfp4"])
def test_many_rows_of_groups_are_multiplied_in_bfloat16(kind):
    plan = widened(kind)
    assert not isinstance(plan, Rejected)
    first, second, product = plan.launches
    for launch, name in ((first, "a"), (second, "b")):
        args = dict(launch.args)
        found = [getattr(args[key], "tensor", None) for key in ("q", "scale", "y")]
        assert found == [f"mat_{name}", f"scale_{name}", f"wide_mat_{name}"]
    assert [space.shape for space in plan.workspaces] == [(1024, 1024), (512, 1024)]
    assert {space.dtype for space in plan.workspaces} == {"bfloat16"}
    args = dict(product.args)
    assert {getattr(args[f"map_{name}"], "tensor", None) for name in "ab"} == {"wide_mat_a", "wide_mat_b"}
    alphas = [getattr(args.get(f"{place}_alpha"), "tensor", None) for place in ("first", "second")]
    assert alphas == (["global_a", "global_b"] if kind == "nvfp4" else [None, None])
    assert dict(product.kernel.defines).get("ALPHAS", 0) == (2 if kind == "nvfp4" else 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"sizes": (128, 512, 1024)}, "M = 128"),
        ({"b_steps": (512, 1)}, "mat_b does not lie along K"),
        ({"sizes": (1024, 512, 1028)}, "multiple of 8"),
        ({"scale_steps": (36, 1)}, "scale_a is not contiguous"),
        ({"sizes": (1024, 1, 1024), "b_scale_steps": (1, 3), "bias": True}, "scale_b is not contiguous"),
        ({"kind": "nvfp4", "sizes": (64, 512, 1024)}, "M = 64"),
    ],
)
def test_mx_in_bfloat16_leaves_the_rest_to_others(change, says):
    refused = widened(**change)
    assert isinstance(refused, Rejected) and says in refused.reason


def test_wgmma_leaves_a_row_major_b_of_mx_to_others():
    refused = mx_launch(b_steps=(512, 1))
    assert isinstance(refused, Rejected) and "lie along" in refused.reason


TMA: dict[str, Any] = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 128, "num_warps": 4, "num_stages": 3}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"blocked": True},
        {"sizes": (5, 512, 1024), "BLOCK_M": 16},
        {"arch": "sm_80"},
        {"types": ("float8_e4m3fnuz", "float8_e4m3fnuz")},
        {"b_steps": (512, 1)},
        {"sizes": (512, 512, 1000)},
        {"sizes": (512, 512, 0)},
        {"BLOCK_K": 64},
        {"blocked": True, "BLOCK_N": 256},
    ],
)
def test_triton_loads_by_tma_what_wgmma_reads_along_k(change):
    taken = list(change) in ([], ["blocked"], ["sizes", "BLOCK_M"])
    launch = planned(**{"arch": "sm_90a", **TMA, **change})
    assert (launch.kernel.name == "scaled_descriptors") == taken
    if taken:
        assert constants(launch)["SWAP"] == (change.get("BLOCK_M") == 16)


def test_scales_of_blocks_come_by_the_pipeline_with_few_rows():
    stages = [
        constants(planned(arch="sm_90a", **TMA | {"blocked": blocked, "sizes": (rows, 512, 1024)}))[
            "SCALE_STAGES"
        ]
        for blocked, rows in ((True, 64), (True, 65), (False, 64))
    ]
    assert stages == [3, None, None]


def test_a_tensor_map_of_one_line_steps_by_whole_16_bytes():
    """TMA takes no other step: mat_b of one column, which lie 1027 elements apart."""
    m, n, k = 8, 1, 1024
    tensors = {
        "mat_a": TensorInfo((m, k), (k, 1), "float8_e4m3fn"),
        "mat_b": TensorInfo((k, n), (1, 1027), "float8_e4m3fn"),
        "scale_a": TensorInfo((m, 1), (1, 1), "float32"),
        "scale_b": TensorInfo((1, n), (1, 1), "float32"),
        "bias": None,
        "c": TensorInfo((m, n), (n, 1), "bfloat16"),
    }
    params = {"output_dtype": "bfloat16", "use_fast_accum": False}
    call = Call(tensors, params, {"M": m, "N": n, "K": k}, DEVICES["sm_90a"], {})
    steps = dict(launch_of(wgmma_plan.rows(call)).args)["map_b"].strides
    assert all(step % 16 == 0 for step in steps)


@pytest.mark.parametrize(
    "arch, types, native",
    [
        ("gfx942", ("float8_e4m3fnuz", "float8_e4m3fnuz"), 1),
        ("gfx942", ("float8_e4m3fn", "float8_e5m2"), 1),
        ("gfx942", ("float8_e4m3fn", "float8_e4m3fn"), 1),
        ("gfx1201", ("float8_e5m2", "float8_e4m3fn"), 1),
        ("gfx1201", ("float8_e4m3fnuz", "float8_e4m3fnuz"), 0),
    ],
)
def test_hip_multiplies_codes_where_the_gpu_has_instructions_for_their_types(arch, types, native):
    defines = dict(planned(arch, types, entry=gfx_plan.rows).kernel.defines)
    assert defines["NATIVE"] == native and defines["ALIGNED"] == (arch == "gfx942")
    assert defines["AS_FNUZ"] == (arch == "gfx942" and "fnuz" not in types[0])
    assert ("5,2" in defines["A_FORMAT"] or "8,2" in defines["A_FORMAT"]) == (types[0] == "float8_e5m2")


@pytest.mark.parametrize(
    "arch, types, triton",
    [
        ("gfx942", ("float8_e4m3fnuz", "float8_e4m3fnuz"), "multiplies"),
        ("gfx942", ("float8_e4m3fn", "float8_e4m3fn"), "decodes"),
        ("gfx1201", ("float8_e4m3fn", "float8_e4m3fn"), "multiplies"),
        ("gfx1201", ("float8_e5m2", "float8_e4m3fn"), "decodes"),
    ],
)
@pytest.mark.parametrize("blocked", [False, True])
def test_hip_goes_before_triton_where_triton_decodes(arch, types, triton, blocked):
    entry = gfx_plan.blocks if blocked else gfx_plan.rows
    other = "decodes" if triton == "multiplies" else "multiplies"
    planned(arch, types, blocked, entry=partial(entry, triton=triton))
    planned(arch, types, blocked, entry=entry)
    refused = plan_of(arch, types, blocked, entry=partial(entry, triton=other))
    assert isinstance(refused, Rejected) and f"Triton {triton} {types[0]} by {types[1]}" in refused.reason


@pytest.mark.parametrize(
    "name, op, before",
    [("mfma", "scaled_mm", True), ("wmma", "scaled_mm", True), ("wmma", "scaled_mm_block", True),
     ("mfma_fallback", "scaled_mm", False), ("wmma_fallback", "scaled_mm_block", False)],
)  # fmt: skip
def test_the_order_of_hip_and_triton(name, op, before):
    names = [each.name for each in registry.spec(op).implementations]
    assert (names.index(name) < names.index("triton")) == before
