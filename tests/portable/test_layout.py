"""Rows of tensors, from their metadata."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from portable.layout import collapsible, rows
from portable.plan import TensorInfo


def info(tensor: torch.Tensor) -> TensorInfo:
    return TensorInfo(tuple(tensor.shape), tensor.stride(), "float32")


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_a_collapsible_shape_is_walked_by_one_stride(shape, data):
    base = torch.arange(4**5)
    strides = data.draw(st.lists(st.integers(0, 16), min_size=len(shape), max_size=len(shape)))
    view = base.as_strided(shape, strides)
    stride = collapsible(tuple(shape), tuple(strides))
    if stride is not None:
        assert view.flatten().tolist() == [i * stride for i in range(view.numel())]
    elif len([size for size in shape if size > 1]) < 2:
        pytest.fail("one dimension always collapses")


def test_padded_rows_keep_their_stride():
    assert rows(info(torch.empty(4, 6, 16)[..., :10])) == (24, 10, 16)


def test_an_empty_tensor_has_rows_whatever_its_strides():
    """Found on the GPU 2026-11-21: an empty sliced tensor counts as contiguous, its last stride 2."""
    assert rows(info(torch.empty(0, 80)[:, ::2])) == (0, 40, 40)


def test_what_is_no_rows_is_refused():
    with pytest.raises(ValueError, match="not a row layout"):
        rows(info(torch.empty(4, 6).t()))
