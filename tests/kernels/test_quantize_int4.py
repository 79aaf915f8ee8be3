"""portable.quantize_int4: shapes, its meaning by fractions, products with its weight, kernels."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

import portable
from portable import errors, quantize_int4
from portable.kernels.quantize_int4.probes import unpacked
from portable.layout import TensorInfo
from portable.plan import Call, Device

from .plan_parts import defines, launch_of, planner, scalar
from .test_quantize_int8 import drawn, float32


@pytest.mark.parametrize("symmetric", [True, False])
def test_its_meaning_by_fractions(symmetric):
    x = drawn(4, 36, seed=1)
    x[0, 5], x[1] = 100.0, x[1].abs()
    x[2] = -x[2].abs() - 1
    w = quantize_int4(x, None, symmetric=symmetric)
    for i, row in enumerate(x.tolist()):
        values = [Fraction(each) for each in row]
        lowest, most = (Fraction(end(*values, 0)) for end in (min, max))
        size = max(most, -lowest) * 2 / 15 if symmetric else float32(most - lowest) / 15
        wanted = float32(size)
        inverse = float32(1 / wanted)
        point = 8 if symmetric else -round(float32(lowest * inverse))
        assert Fraction(float(w.scale[i, 0])) == wanted
        if w.zero_point is None:
            assert symmetric
        else:
            assert int(w.zero_point[i, 0]) == point
        codes = [max(0, min(15, round(float32(each * inverse)) + point)) for each in values]
        assert unpacked(w.weight)[i].tolist() == codes


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(
    ("shape", "size", "groups"),
    [((6, 64), 16, 4), ((6, 64), None, 1), ((2, 3, 256), 128, 2), ((0, 128), 128, 1), ((5, 96), 2, 48)],
)
def test_shapes(shape, size, groups, symmetric):
    w = quantize_int4(drawn(*shape, dtype=torch.bfloat16), size, symmetric=symmetric)
    assert w.weight.shape == (*shape[:-1], shape[-1] // 2) and w.weight.dtype == torch.uint8
    assert w.scale.shape == (*shape[:-1], groups) and w.scale.dtype == torch.float32
    assert (w.zero_point is None) == symmetric and w.offset is None and w.permutation is None
    if w.zero_point is not None:
        assert w.zero_point.shape == w.scale.shape and w.zero_point.dtype == torch.uint8


def test_a_weight_without_columns():
    assert quantize_int4(torch.ones(3, 0)).weight.shape == (3, 0)


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_product_with_it_is_near_the_one_with_the_weight(symmetric):
    """Each number is half a step away at most; the greatest magnitude of a symmetric group as well."""
    weight = drawn(24, 128, seed=2)
    w = quantize_int4(weight, 32, symmetric=symmetric)
    again = portable.int4_mm(torch.eye(128), *w[:4]).T
    step = w.scale.repeat_interleave(32, -1)
    assert bool(((again - weight).abs() <= 0.5001 * step).all())


def test_groups_are_quantised_alone():
    weight = drawn(8, 96, seed=3, dtype=torch.float16)
    whole = quantize_int4(weight, 32)
    for group in range(3):
        part = quantize_int4(weight[:, 32 * group :][:, :32], 32)
        assert torch.equal(whole.scale[:, group], part.scale[:, 0])
        assert torch.equal(whole.weight[:, 16 * group :][:, :16], part.weight)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("impl", ["cpp", "triton"])
@pytest.mark.slow
def test_kernels_give_the_same_bits(emulate, arch, impl, symmetric):
    op = "quantize_int4" if symmetric else "quantize_int4_asymmetric"
    x = drawn(40, 256, seed=4, dtype=torch.bfloat16)
    wanted = quantize_int4(x, 128, symmetric=symmetric)
    emulate(arch)
    with portable.using(**{op: impl}):
        got = quantize_int4(x, 128, symmetric=symmetric)
    assert torch.equal(got.weight, wanted.weight) and torch.equal(got.scale, wanted.scale)
    if wanted.zero_point is not None:
        assert got.zero_point is not None and torch.equal(got.zero_point, wanted.zero_point)


H200 = Device("cuda", "sm_90a", "NVIDIA H200", 0, 132, 32, 227 * 1024)
MI300X = Device("rocm", "gfx942", "MI300X", 0, 304, 64, 64 * 1024)


@pytest.mark.parametrize(
    ("device", "dtype", "shape", "vector", "tail", "variant"),
    [
        (H200, "bfloat16", (64, 128), 8, 0, ""),
        (H200, "float32", (64, 128), 4, 0, ""),
        (H200, "bfloat16", (64, 8), 8, 0, ""),  # rows of codes begin at multiples of 4 bytes
        (H200, "bfloat16", (64, 33), 1, 0, ""),
        (H200, "bfloat16", (3, 200000), 8, 0, "_stream"),
        (MI300X, "bfloat16", (64, 33), 8, 1, ""),
        (MI300X, "float32", (64, 128), 4, 0, ""),
    ],
)
@pytest.mark.parametrize("op", ["quantize_int4", "quantize_int4_asymmetric"])
def test_rows_are_read_in_vectors_where_codes_of_a_vector_are_whole_bytes(
    op, device, dtype, shape, vector, tail, variant
):
    rows, columns = shape
    width = -(-columns // 2)
    tensors: dict[str, TensorInfo | None] = {
        "x": TensorInfo(shape, (columns, 1), dtype),
        "q": TensorInfo((rows, width), (width, 1), "uint8"),
        "scale": TensorInfo((rows, 1), (1, 1), "float32"),
    }
    asymmetric = op.endswith("asymmetric")
    if asymmetric:
        tensors["zero_point"] = TensorInfo((rows, 1), (1, 1), "uint8")
    launch = launch_of(planner(op)(Call(tensors, {"eps": 1e-10}, {}, device, {})))
    made = defines(launch)
    assert (made["VEC"], made["TAIL"], made["CODE_BITS"]) == (vector, tail, 4)
    assert made["ASYMMETRIC"] == asymmetric and launch.kernel.entry == "quantize_integers" + variant
    assert scalar(launch, "q_stride") == width


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"group_size": 3}, errors.ParameterError, "'group_size' is 3; expected an even int"),
        ({"group_size": True}, errors.ParameterError, "'group_size' is True"),
        ({"group_size": 48}, errors.ShapeError, "a multiple of group_size = 48 columns"),
        ({"weight": torch.ones(4, 7), "group_size": None}, errors.ShapeError, "an even number of columns"),
        ({"weight": torch.ones(64)}, errors.RankError, "at least 2"),
        ({"weight": torch.ones(4, 128).double()}, errors.DtypeError, "float64"),
        ({"symmetric": 1}, errors.ParameterError, "True or False"),
        ({"eps": 0.0}, errors.ParameterError, "at least 1e-30"),
        ({"groupsize": 32}, errors.SignatureError, "It is group_size"),
    ],
)
def test_wrong_calls(wrong, error, words):
    with pytest.raises(error, match=words):
        quantize_int4(**{"weight": torch.ones(4, 64), "group_size": 32, **wrong})


def test_a_gradient_is_refused():
    w = quantize_int4(torch.ones(4, 64, requires_grad=True), 32)
    with pytest.raises(errors.UnsupportedGradientError, match="quantize_int4"):
        w.scale.sum().backward()
