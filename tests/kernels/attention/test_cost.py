"""The operations that attention counts, against the pairs of a mask."""

import pytest
import torch

from portable.kernels.attention.semantics.baseline import visible_pairs
from portable.spec import registry


@pytest.mark.parametrize("size", [(1, 1), (5, 5), (3, 8), (64, 65)])
def test_causal_pairs_are_those_of_the_mask(size):
    M, N = size
    mask = torch.ones(M, N).tril(N - M)
    assert visible_pairs(M, N, True, None) == mask.sum() and visible_pairs(M, N, False, None) == M * N
    assert visible_pairs(M, N, True, 0) == M and visible_pairs(M, N, True, N) == M * N


@pytest.mark.parametrize(("op", "per_pair"), [("attention", 2 * (64 + 32)), ("attention_backward", 2 * 256)])
def test_the_spec_counts_every_product(op, per_pair):
    facts = {"B": 3, "H": 4, "G": 2, "M": 7, "N": 9, "D": 64, "E": 32, "window_left": None, "T": "float16"}
    flops = registry.spec(op).cost.flops
    assert flops.evaluate(**facts, causal=False) == 3 * 4 * 63 * per_pair
    assert flops.evaluate(**facts, causal=True) == 3 * 4 * (63 - 21) * per_pair
