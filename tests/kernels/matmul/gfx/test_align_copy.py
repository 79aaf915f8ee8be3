"""CDNA's copies of operands that are not aligned: where they are made, what is computed from them."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

import portable
from portable.dispatch import dispatcher
from portable.kernels.matmul.gfx import align_copy, plan
from portable.plan import Call
from tests.kernels.matmul.gfx.test_mfma import DEVICES, matrix
from tests.kernels.matmul.test_plans import info
from tests.kernels.plan_parts import accepted, defines, scalar


def made(M, N, K, arch, layouts="nt", *, pitch=0, b_pitch=0):
    """(names of the workspaces, K of the product, whether its loop is that of aligned operands)."""
    a, b = matrix(M, K, layouts[0], pitch=pitch), matrix(K, N, layouts[1], pitch=b_pitch)
    tensors = {"a": info(a), "b": info(b), "c": info(matrix(M, N, "n"))}
    found = accepted(plan.mfma(Call(tensors, {"precision": "ieee"}, {}, DEVICES[arch], {})))
    product = found.launches[-1]
    assert len(found.launches) == 1 + len(found.workspaces)
    return [each.name for each in found.workspaces], scalar(product, "K"), defines(product)["ALIGNED"]


@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_large_products_of_unaligned_operands_are_copied(arch):
    both = ["a_aligned", "b_aligned"]
    assert made(4100, 4100, 4100, arch) == (both, 4104, 1)
    assert made(4095, 4097, 4099, arch, "nn") == (both, 4104, 1)
    assert made(4096, 4096, 4092, arch) == (both, 4096, 1)  # lines end within a load
    assert made(4096, 4096, 4096, arch, pitch=4100) == (["a_aligned"], 4096, 1)
    assert made(4096, 4096, 4096, arch, "nn", b_pitch=4100) == (["b_aligned"], 4096, 1)
    assert made(4095, 4096, 4092, arch, "tn", pitch=4096) == (["a_aligned"], 4092, 1)  # an odd end
    assert made(4096, 4096, 4096, arch) == ([], 4096, 1)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_small_and_thin_ones_are_not(arch):
    """Modelled: 1026^3 takes 16.7 us on gfx942 and 13.5 on gfx950, with copies 25.9 and 22.4."""
    for sizes in ((1026, 1026, 1026), (514, 514, 514), (16, 8194, 8194), (130, 4098, 8194)):
        assert made(*sizes, arch) == ([], sizes[2], 0)


def test_what_no_copy_helps():
    """Offsets past 2^31, nothing to load."""
    assert made(4096, 4096, 270001, "gfx942", "tt") == ([], 270001, 0)
    assert made(4096, 4096, 0, "gfx942") == ([], 0, 0)


def sliced(shape, layout):
    """Random values, between NaN in memory."""
    lines = torch.full((*shape[:-2], *(shape[-2:] if layout == "n" else shape[:-3:-1])), 0.0)
    wide = torch.full((*lines.shape[:-1], lines.shape[-1] + 3), float("nan")).bfloat16()
    found = wide[..., 1:-2]
    found.copy_(torch.randn(lines.shape))
    return found if layout == "n" else found.mT


def both_ways(call):
    """What `call` computes without copies and with them."""
    found, copies = [], []

    def spied(*args):
        copies.append(align_copy.copied(*args))
        return copies[-1]

    for worth in (0.0, 1e9):
        dispatcher.clear_caches()
        with mock.patch.object(align_copy, "_WORTH", worth), mock.patch.object(plan, "copied", spied):
            found.append(call())
    assert [each is not None for each in copies] == [False, True]
    return found


@pytest.mark.parametrize(
    ("arch", "layouts"),
    [("gfx942", "nn"), ("gfx942", "tt"), ("gfx950", "nn"), ("gfx950", "nt"), ("gfx90a", "tn")],
)
def test_copies_give_the_same_bits(emulate, arch, layouts):
    emulate(arch)
    torch.manual_seed(0)
    for a_shape, b_shape in (
        ((131, 197), (197, 133)),
        ((3, 66, 70), (70, 34)),
        ((2, 1, 33, 65), (3, 65, 35)),
    ):
        a, b = sliced(a_shape, layouts[0]), sliced(b_shape, layouts[1])
        want = a.double() @ b.double()

        def call(a=a, b=b, shape=want.shape):
            with portable.using(matmul="mfma"):
                return portable.matmul(a, b, out=torch.full(shape, float("nan")).bfloat16())

        without, with_copies = both_ways(call)
        assert torch.equal(without, with_copies)
        assert (with_copies.double() - want).abs().max() < 0.01 * a.shape[-1]


def test_a_linear_layer_of_copies(emulate):
    emulate("gfx942")
    torch.manual_seed(0)
    x, weight, bias = sliced((67, 197), "n"), sliced((131, 197), "n"), torch.randn(131).bfloat16()

    def call():
        with portable.using(linear="mfma"):
            return portable.linear(x, weight, bias, activation="gelu")

    assert torch.equal(*both_ways(call))
