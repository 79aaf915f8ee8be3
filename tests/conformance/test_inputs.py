"""Inputs depend on the case id alone, stay inside their fences and keep their values through any layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from portable import dtypes
from portable.conformance.cases import inputs


def test_the_same_id_gives_the_same_bytes_for_ever():
    made = inputs.make(
        "softmax/float32/N=4,lead=2/normal/contiguous", "x", (2, 4), "float32", "normal", "contiguous"
    )
    assert made.sha256 == "2c36de7bc58ca4d19add4de53df9e350f0f722639bb9a362af86a5effa23cdca"


def test_id_and_name_both_change_the_bytes():
    def digest(case: str, name: str) -> str:
        return inputs.make(case, name, (8, 8), "bfloat16", "normal", "contiguous").sha256

    assert len({digest("a", "x"), digest("b", "x"), digest("a", "y")}) == 3


@pytest.mark.parametrize("layout", [one for one in inputs.LAYOUTS if one != "expanded"])
@pytest.mark.parametrize("dtype", list(inputs.DTYPES))
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 4), (0, 4), (4, 0), ()])
def test_layouts_keep_the_values(layout: str, dtype: str, shape: tuple[int, ...]):
    plain = inputs.make("id", "x", shape, dtype, "normal", "contiguous")
    made = inputs.make("id", "x", shape, dtype, "normal", layout)
    assert made.sha256 == plain.sha256
    assert inputs.same_bits(made.tensor, plain.tensor)
    if layout == "mixed":
        assert made.strides == plain.strides
    if layout == "offset" and plain.tensor.numel():
        assert made.offset % 2 == 1
    if layout == "padded" and len(shape) > 1 and min(shape):
        assert made.strides[-2] == shape[-1] + 3
    if layout == "transposed" and len(shape) > 1 and min(shape) > 1:
        assert made.strides[-2] == 1


def test_the_inputs_of_a_mixed_case_differ_in_layout():
    made = [inputs.make("id", "x", (3, 5), "float32", "normal", "mixed", place) for place in range(5)]
    assert [each.strides for each in made] == [(5, 1), (1, 3), (8, 1), (5, 1), (5, 1)]
    assert [each.offset % 2 for each in made] == [0, 0, 0, 1, 0]
    vectors = [inputs.make("id", "x", (5,), "float32", "normal", "mixed", place) for place in range(3)]
    assert [each.strides for each in vectors] == [(1,), (2,), (1,)]
    assert len({each.sha256 for each in made}) == 1


def test_expanded_has_stride_zero_and_equal_rows():
    made = inputs.make("id", "x", (3, 4), "float32", "normal", "expanded")
    assert made.strides == (0, 1)
    assert torch.equal(made.tensor[0], made.tensor[2])


@pytest.mark.parametrize("layout", inputs.LAYOUTS)
def test_everything_beside_the_view_is_poison(layout: str):
    made = inputs.make("id", "x", (3, 5), "float32", "normal", layout)
    buffer = made.buffer.clone()
    made.view(buffer).fill_(float("nan"))
    assert buffer.isnan().all()


def test_moving_keeps_strides_and_bits():
    made = inputs.make("id", "x", (3, 5), "bfloat16", "nonfinite", "sliced")
    view, buffer = made.on("cpu")
    assert view.stride() == made.strides
    assert inputs.same_bits(view, made.tensor)
    buffer.zero_()
    assert not inputs.same_bits(view, made.tensor)


def test_normal_is_standard_normal():
    values = inputs.Bits("moments").normal(200_000)
    assert abs(values.mean()) < 0.01
    assert abs(values.std() - 1) < 0.01
    assert abs((values**4).mean() - 3) < 0.2
    assert len(np.unique(values.astype(np.float32))) > 195_000


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_value_classes_are_what_they_say(dtype: str):
    def values(name: str, position: int = 0) -> torch.Tensor:
        return inputs.make("id", "x", (64, 64), dtype, name, "contiguous", position).tensor.double()

    info = torch.finfo(inputs.DTYPES[dtype])
    assert (values("small_integers") == values("small_integers").round()).all()
    assert (values("ties") == values("ties").round()).all()
    tiny = values("subnormals").abs()
    assert (tiny < info.smallest_normal).all() and (tiny > 0).double().mean() > 0.9
    assert values("subnormals", 1).abs().max() > 1
    special = values("nonfinite")
    assert special.isnan().any() and special.isposinf().any() and special.isneginf().any()
    spread = values("large_range").abs()
    assert torch.isfinite(spread).all() and spread.max() / spread.min() > 2**10
    assert abs(values("cancellation").mean()) > 7
    assert abs(values("cancellation", 1).mean()) < 1
    hot = values("one_hot")
    assert (hot.sum(1) == 1).all() and (hot.max(1).values == 1).all()
    assert len(set(hot.argmax(1).tolist())) > 30
    full = values("one_hot", 1)
    last = dtypes.of(dtype).eps
    assert (full.abs() >= 1).all() and (full.abs() < 2).all()
    assert 0.3 < (full / last % 2).mean() < 0.7, "the last bit of the mantissa is used"
    powers = values("powers_of_two")
    assert ((powers != 0).sum(1) == inputs.POWERS).all()
    assert all(len(set(row[row != 0].abs().tolist())) == inputs.POWERS for row in powers)
    assert (torch.frexp(powers.abs())[0][powers != 0] == 0.5).all()
    assert (values("powers_of_two", 1).abs() == 1).all()
    zeros = values("signed_zero")
    assert 0.3 < (zeros == 0).double().mean() < 0.7
    assert 0.3 < zeros[zeros == 0].signbit().double().mean() < 0.7


@pytest.mark.parametrize("bits", [7, 10])
def test_rounding_of_mantissas(bits: int):
    values = inputs.make("id", "x", (4096,), "float32", "normal", "contiguous").tensor.numpy()
    rounded = inputs.round_mantissa(values, bits)
    step = np.ldexp(1.0, np.frexp(values)[1] - 1 - bits)
    assert (rounded / step == np.round(rounded / step)).all()
    assert (np.abs(rounded - values) <= step / 2).all()
    if bits == 7:
        assert (torch.from_numpy(values).bfloat16().float().numpy() == rounded).all(), "ties to even"
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 2.0 - 2.0**-23], np.float32)
    kept = inputs.round_mantissa(special, bits)
    assert kept[:2].tolist() == [np.inf, -np.inf] and np.isnan(kept[2]) and kept[5] == 2.0
    assert np.signbit(kept[3:5]).tolist() == [False, True]


def test_fences():
    tensor, buffer = inputs.fenced((3, 5), torch.bfloat16, "cpu")
    tensor.zero_()
    assert inputs.fence_intact(tensor, buffer)
    buffer[-1] = 0
    assert not inputs.fence_intact(tensor, buffer)


def test_scales_are_positive():
    positive, powers = (
        inputs.make("op/x", "scale", (40, 3), "float32", values, "contiguous").tensor
        for values in ("positive", "powers")
    )
    assert positive.min() >= 0.5 and positive.max() < 2 and len(positive.unique()) == 120
    assert powers.unique().tolist() == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize(
    "dtype, largest", [("float8_e4m3fn", 448.0), ("float8_e4m3fnuz", 240.0), ("float8_e5m2", float("inf"))]
)
def test_infinities_of_a_type_that_has_none_are_its_largest_numbers(dtype, largest):
    """By every release of torch."""
    made = inputs.make("op/x", "x", (64, 64), dtype, "nonfinite", "contiguous").tensor.float()
    assert made.isnan().sum() == 1
    least, most = made[~made.isnan()].aminmax()
    assert (float(least), float(most)) == (-largest, largest)
