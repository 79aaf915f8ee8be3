"""portable.quantize_fp8: shapes, its meaning by fractions, torch's own conversion, kernels, wrong calls."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import portable
from portable import errors
from portable.conformance.cases.case import make_shape, params_of
from portable.conformance.execute import runner
from portable.conformance.perf import baselines, bench
from portable.kernels._lib import minifloat
from portable.kernels.quantize_fp8.codes import DTYPES, codes_of, numbers
from portable.plan import Device, Launch, NativeKernel, Pointer, TritonKernel
from portable.runtime import triton_build
from portable.spec import docs_page, registry

OPS = (
    "quantize_fp8",
    "quantize_fp8_columns",
    "quantize_fp8_1x128",
    "quantize_fp8_128x128",
    "quantize_fp8_static",
    "amax_scale",
)
SCALINGS = ("tensor", "row", "1x128", "128x128")


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def groups_of(scaling: str, m: int, k: int) -> list[tuple[tuple[int, int], list[tuple[int, int]]]]:
    """The place of each scale of an (m, k) matrix, and the elements that it is of."""
    height = {"tensor": m, "128x128": 128}.get(scaling, 1)
    width = 128 if "128" in scaling else k
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for i, j in itertools.product(range(m), range(k)):
        found.setdefault((i // height, j // width), []).append((i, j))
    return list(found.items())


def float32(value: Fraction) -> Fraction:
    """The nearest number of float32, of two the one of an even mantissa, of a positive normal value."""
    exponent = 0
    while value >= 1 << 24:
        value, exponent = value / 2, exponent + 1
    while value < 1 << 23:
        value, exponent = value * 2, exponent - 1
    return Fraction(round(value)) * Fraction(2) ** exponent  # round() is to the even one of two


def nearest(value: Fraction, found: list[float]) -> int:
    """The code of the nearest of the numbers, the even one of two."""
    gaps = [abs(Fraction(each) - value) for each in found]
    least = min(gaps)
    best = [code for code, gap in enumerate(gaps) if gap == least]
    return next(code for code in best if len(best) == 1 or code % 2 == 0)


@pytest.mark.parametrize("power_of_2", [False, True])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_its_meaning_by_fractions(scaling, power_of_2):
    x = drawn(3, 130, seed=1)
    x[0, 5], x[2, 129] = 100.0, 2.0**-30
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2fnuz):
        found = numbers(dtype)
        q, scale = portable.quantize_fp8(x, scaling, dtype=dtype, power_of_2=power_of_2)
        codes, scales = codes_of(q) & 0x7F, scale.reshape(-1)
        for number, (_, members) in enumerate(sorted(groups_of(scaling, 3, 130))):
            amax = max(abs(Fraction(float(x[place]))) for place in members)
            wanted = float32(amax / Fraction(found[-1]))
            if power_of_2:
                up = Fraction(1)
                while up < wanted:
                    up *= 2
                while up / 2 >= wanted:
                    up /= 2
                wanted = up
            assert Fraction(float(scales[number])) == wanted
            inverse = float32(1 / wanted)
            for i, j in members:
                value = abs(Fraction(float(x[i, j])))
                assert int(codes[i, j]) == nearest(float32(value * inverse), found), (scaling, i, j)


@pytest.mark.parametrize("shape", [(300, 200), (2, 3, 130), (1, 1), (4, 0), (0, 7), (2, 0, 5)])
def test_shapes(shape):
    m, k = shape[-2:]
    sizes = {"tensor": (), "row": (*shape[:-1], 1), "1x128": (*shape[:-1], -(-k // 128)),
             "128x128": (*shape[:-2], -(-m // 128), -(-k // 128))}  # fmt: skip
    for scaling, size in sizes.items():
        for dtype in DTYPES:
            q, scale = portable.quantize_fp8(drawn(*shape, dtype=torch.bfloat16), scaling, dtype=dtype)
            assert q.shape == shape and q.dtype == dtype and q.is_contiguous()
            assert scale.shape == size and scale.dtype == torch.float32


def test_a_vector_and_a_number():
    q, scale = portable.quantize_fp8(torch.tensor([1.0, -2.0]))
    assert q.tolist() == [224.0, -448.0] and scale.shape == (1,)
    q, scale = portable.quantize_fp8(torch.tensor(-3.0), "tensor")
    assert q.shape == () and float(q) == -448.0 and float(scale) == float(torch.tensor(3.0) / 448)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_other_strides_give_the_same(scaling):
    x = drawn(260, 140, dtype=torch.float16)
    for view in (x.mT.contiguous().mT, torch.cat([x, x], 1)[:, :140]):
        for one, two in zip(
            portable.quantize_fp8(view, scaling), portable.quantize_fp8(x, scaling), strict=True
        ):
            assert torch.equal(one.float(), two.float())


class Called(TorchDispatchMode):
    """The names of the operators that torch's dispatcher calls."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket._qualified_op_name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("shape", [(50, 70), (3, 50, 70)])
def test_rows_of_a_transpose_are_read_as_they_lie(shape):
    x = drawn(*shape)
    with Called() as called:
        q, scale = portable.quantize_fp8(x.mT)
    assert "portable::quantize_fp8_columns" in called.names
    assert not {"aten::clone", "aten::copy_", "aten::contiguous"} & set(called.names)
    wanted, scales = portable.quantize_fp8(x.mT.contiguous())
    assert torch.equal(q.float(), wanted.float()) and torch.equal(scale, scales) and q.is_contiguous()


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_torch_s_conversion_away_from_the_ends(dtype):
    """torch rounds so in every release, below the largest number; where the scale is a power of two, so do
    x / scale and x * (1 / scale)."""
    x = drawn(50, 200, seed=2)
    q, scale = portable.quantize_fp8(x, dtype=dtype, power_of_2=True)
    assert torch.equal(codes_of(q), codes_of((x / scale).to(dtype)))
    static, given = portable.quantize_fp8(x, "tensor", dtype=dtype, scale=torch.tensor([0.25]))
    assert torch.equal(codes_of(static), codes_of((x * 4).to(dtype))) and given.tolist() == 0.25


def test_what_is_not_a_number_and_what_is_too_large():
    x = torch.ones(4, 6)
    x[1, 3], x[2, 0], x[3] = torch.nan, -torch.inf, torch.tensor([0.0, -0.0, 0.0, -0.0, 0.0, -0.0])
    q, scale = portable.quantize_fp8(x)
    assert q[1].float().isnan().all() and scale[1].isnan() and float(scale[2]) == torch.inf
    assert q[2].float().isnan().tolist() == [True] + [False] * 5 and not q[2, 1:].float().any()
    assert scale[3].tolist() == [float(torch.tensor(1e-10).double() / 448)] or float(scale[3]) > 0
    assert q[3].float().signbit().tolist() == [False, True] * 3
    ends = torch.tensor([464.0, -465.0, 1e9, torch.inf, -torch.inf, torch.nan])
    q, _ = portable.quantize_fp8(ends, "tensor", scale=torch.tensor(1.0))
    assert q.float()[:5].tolist() == [448.0, -448.0, 448.0, 448.0, -448.0] and q.float()[5].isnan()
    q, _ = portable.quantize_fp8(-torch.zeros(3), dtype=torch.float8_e4m3fnuz)
    assert q.view(torch.uint8).tolist() == [0, 0, 0]


def test_dequantised_it_is_within_half_a_step():
    x = drawn(64, 512, seed=3, dtype=torch.bfloat16)
    for scaling, step in itertools.product(("row", "1x128"), (False, True)):
        q, scale = portable.quantize_fp8(x, scaling, power_of_2=step)
        wide = scale.repeat_interleave(512 // scale.shape[-1], -1)
        assert ((q.float() * wide - x.float()).abs() <= x.float().abs() / 16 + wide * 2.0**-10).all()


@pytest.mark.parametrize("implementation", ["cpp", "triton"])
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_kernels_give_the_same_bits(emulate, arch, implementation):
    x = drawn(130, 2112, seed=4, dtype=torch.bfloat16)
    expected = {scaling: portable.quantize_fp8(x, scaling) for scaling in SCALINGS}
    emulate(arch)
    pins: dict[str, str] = dict.fromkeys(OPS, implementation)
    with portable.using(**pins):
        for scaling, (q, scale) in expected.items():
            got, own = portable.quantize_fp8(x, scaling)
            assert torch.equal(codes_of(got), codes_of(q)) and torch.equal(own, scale), scaling
        alone, own = portable.quantize_fp8(x[7:8])
    assert torch.equal(codes_of(alone[0]), codes_of(expected["row"][0][7]))
    assert torch.equal(own[0], expected["row"][1][7])


X = torch.ones(2, 130)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        (lambda: portable.quantize_fp8(X, "column"), errors.ParameterError, "'1x128', '128x128'"),
        (lambda: portable.quantize_fp8(X, 128), errors.ParameterError, "scaling"),
        (lambda: portable.quantize_fp8(X, dtype=torch.int8), errors.ParameterError, "float8_e4m3fn"),
        (lambda: portable.quantize_fp8(X, "tensor", dtype=torch.int8), errors.ParameterError, "float8_e5m2"),
        (lambda: portable.quantize_fp8(X, "tensor", dtype="fp8"), errors.ParameterError, "float8_e4m3fn"),
        (lambda: portable.quantize_fp8(X.double()), errors.DtypeError, "float16"),
        (lambda: portable.quantize_fp8(X[0, 0]), errors.RankError, "at least 1"),
        (lambda: portable.quantize_fp8(X[0], "128x128"), errors.RankError, "at least 2"),
        (lambda: portable.quantize_fp8(X, eps=0.0), errors.ParameterError, "at least 1e-30"),
        (lambda: portable.quantize_fp8(X, "tensor", eps=0.0), errors.ParameterError, "at least 1e-30"),
        (lambda: portable.quantize_fp8(X, power_of_2=1), errors.ParameterError, "True or False"),
        (lambda: portable.quantize_fp8(X, scale=torch.ones(1)), errors.ParameterError, '"tensor"'),
        (
            lambda: portable.quantize_fp8(X, "tensor", scale=torch.ones(1), power_of_2=True),
            errors.ParameterError,
            "scale is given",
        ),
        (lambda: portable.quantize_fp8(X, "tensor", scale=torch.ones(2)), errors.ShapeError, "one element"),
        (lambda: portable.quantize_fp8(X, "tensor", scale=1.0), errors.NotATensorError, "scale"),
        (
            lambda: portable.quantize_fp8(X, "tensor", scale=torch.ones(1).double()),
            errors.DtypeError,
            r"scale\.float\(\)",
        ),
        (lambda: portable.quantize_fp8([1.0]), errors.NotATensorError, "x"),
        (lambda: portable.quantize_fp8(X, group_size=128), errors.SignatureError, 'scaling="1x128"'),
    ],
)
def test_wrong_calls(wrong, error, words):
    with pytest.raises(error, match=words):
        wrong()


@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_gradient_is_refused(scaling):
    q, _ = portable.quantize_fp8(X.clone().requires_grad_(), scaling)
    with pytest.raises(errors.UnsupportedGradientError, match="'x'"):
        q.float().sum().backward()


@pytest.mark.parametrize("scaling", SCALINGS)
def test_fake_tensors_have_the_shapes(scaling):
    made = portable.quantize_fp8(torch.empty(260, 140, device="meta"), scaling)
    real = portable.quantize_fp8(drawn(260, 140), scaling)
    for one, two in zip(made, real, strict=True):
        assert one.shape == two.shape and one.dtype == two.dtype and one.device.type == "meta"


@pytest.mark.parametrize("scaling", SCALINGS)
def test_vmap_is_a_call_for_each(scaling):
    x = drawn(3, 4, 200, seed=5)
    q, scale = torch.func.vmap(lambda x: portable.quantize_fp8(x, scaling))(x)
    for i, each in enumerate(x):
        one, own = portable.quantize_fp8(each, scaling)
        assert torch.equal(codes_of(q[i]), codes_of(one)) and torch.equal(scale[i], own)


@pytest.mark.slow
@pytest.mark.parametrize("scaling", SCALINGS)
def test_torch_compile_takes_it_whole(scaling):
    x = drawn(200, 300)
    compiled = torch.compile(lambda x: portable.quantize_fp8(x, scaling), backend="eager", fullgraph=True)
    for one, two in zip(compiled(x), portable.quantize_fp8(x, scaling), strict=True):
        assert torch.equal(one.float(), two.float())


@pytest.mark.parametrize("op", OPS)
def test_torch_s_way_is_near_enough_to_be_timed_beside_it(op):
    spec = registry.spec(op)
    case = bench.bench_cases(spec)[0]
    sizes = {name: 200 for name, _ in case.shape.axes}
    leading = {name: (3,) if dims else () for name, dims in case.shape.leading}
    case = replace(case, shape=make_shape(spec, sizes, leading, dict(case.shape.params)))
    tensors, params = bench.made(case, spec, torch.device("cpu"), 0), params_of(spec, case)
    result = runner.function(op)(**tensors, **params)
    outputs = list(result) if isinstance(result, tuple) else [result]
    found, reasons = baselines.ready(spec, [tensors], params, outputs, ["torch"])
    assert list(found) == ["torch"] and not reasons


def test_its_page_says_that_it_has_no_gradient():
    assert "It has no gradient." in docs_page.page(registry.spec("quantize_fp8"))


def test_the_largest_numbers():
    assert [minifloat.largest(each) for each in minifloat.OF_8_BITS] == [448.0, 57344.0, 240.0, 57344.0]
    assert minifloat.largest("float4_e2m1fn_x2") == 6.0


def test_triton_gets_bytes_where_it_may_not_know_the_type():
    from portable.kernels.quantize_fp8 import triton_impl

    args = (("q_ptr", Pointer("q", True, dtype="uint8")), ("p_ptr", Pointer("q")))
    launch = Launch(TritonKernel(triton_impl.quantize_rows, ()), (1, 1, 1), args)
    wanted = (("q_ptr", "*u8", True), ("p_ptr", "*fp8e4b8", False))
    assert triton_build.signature(launch, {"q": "float8_e4m3fnuz"}) == wanted


def test_nvidia_s_conversion_is_used_where_there_is_one():
    from portable.kernels._lib.triton.minifloat import converts

    archs = {"sm_80": False, "sm_86": False, "sm_89": True, "sm_90a": True, "sm_100": True, "gfx942": False}
    for arch, there in archs.items():
        device = Device("some", arch, arch)
        assert [converts(device, dtype) for dtype in minifloat.OF_8_BITS] == [there, there, False, False]


@pytest.mark.parametrize(
    ("height", "length", "dtype", "arch", "wanted"),
    [
        (8192, 4096, "bfloat16", "sm_90a", (8, 4, 512)),
        (128, 64, "float16", "sm_90a", (1, 1, 1)),
        (2304, 72, "bfloat16", "sm_90a", (4, 3, 8)),
        (1008, 4096, "bfloat16", "gfx942", None),
        (1008, 4096, "bfloat16", "sm_100", None),
        (1008, 4096, "float32", "sm_90a", None),
        (1000, 4096, "bfloat16", "sm_90a", None),
        (1008, 4098, "bfloat16", "sm_90a", None),
        (8208, 4096, "bfloat16", "sm_90a", None),
    ],
)
def test_columns_that_a_cluster_holds_are_read_once(height, length, dtype, arch, wanted):
    """Blocks of a cluster, tiles of 256 rows of a block, the grid; two launches where it cannot be."""
    from portable.commands import check
    from portable.dispatch import select
    from portable.spec.model import Case

    spec = registry.spec("quantize_fp8_columns")
    case = Case(axes={"M": height, "K": length})
    types = next(row for row in spec.types if row["T"] == dtype)
    ((backend, device),) = check.targets([arch])
    signature = check.call_signature(spec, case, types, True)
    cpp = spec.implementation("cpp")
    assert cpp is not None
    plan = select.evaluate(cpp, signature, backend, device, static=False).plan
    assert plan is not None
    names = [launch.kernel.name for launch in plan.launches]
    if wanted is None:
        assert [name.split("(")[0] for name in names] == ["column_amax", "quantize_columns"]
        return
    (launch,) = plan.launches
    assert isinstance(launch.kernel, NativeKernel)
    defines = dict(launch.kernel.defines)
    assert (int(defines["BLOCKS"]), int(defines["CHUNKS"]), launch.grid[0]) == wanted
