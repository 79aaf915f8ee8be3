"""How far attention_paged may be off where pages repeat within a table, and that a wrong page is seen."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from portable.conformance.cases.generate import cases
from portable.conformance.judge import reference
from portable.kernels.attention.semantics import error_scale, paged
from portable.kernels.attention.semantics.paged import batches, gather
from portable.kernels.attention.semantics.torch_impl import attention_paged
from portable.spec import registry

TYPES = {"T": "bfloat16", "R": "float32", "acc": "float32"}
PARAMS = {"scale": None, "window_left": None, "softcap": None}


def keys_and_values(k_cache: Tensor, v_cache: Tensor, table: Tensor, lens: Tensor) -> tuple[Tensor, Tensor]:
    """Of the one sequence, (key heads, keys, dim)."""
    ((_, pages, length),) = batches(k_cache, table, lens, 1)
    return gather(k_cache, pages, length)[0], gather(v_cache, pages, length)[0]


def rounded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """o of one sequence, exact but for weights that are rounded to bfloat16: (heads, queries, columns)."""
    scores = q.movedim(0, 1) @ k.mT * q.shape[-1] ** -0.5
    N, M = k.shape[1], q.shape[0]
    hidden = torch.arange(N) > torch.arange(M)[:, None] + (N - M)
    scores = scores.masked_fill(hidden, -torch.inf)
    p = torch.exp(scores - scores.amax(-1, keepdim=True))
    return p.bfloat16().double() @ v / p.sum(-1, keepdim=True)


def shares(P: int, W: int, seed: int) -> tuple[float, float]:
    """What such an o needs of the bound, and of the one in which all keys round independently."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).bfloat16().double()

    q, k, v = normal(1, 2, 2, 4), normal(P, 2, 2, 4), normal(P, 2, 2, 4)
    table = torch.randint(0, P, (1, W), generator=generator, dtype=torch.int32)
    lens = torch.tensor([2 * W], dtype=torch.int32)
    expected, _ = paged.reference_forward(q, k, v, table, lens, **PARAMS)
    keys, values = keys_and_values(k, v, table, lens)
    off = (rounded(q[0], keys, values).movedim(0, 1) - expected[0]).abs()
    scale = paged.error_scale_forward(q, k, v, table, lens, types=TYPES, **PARAMS)["o"][0]
    one = error_scale.forward(
        q[0].movedim(1, 0), keys, values, types=TYPES, causal=True, window_right=None, **PARAMS
    )  # fmt: skip
    off /= torch.finfo(torch.float32).eps  # o itself is not rounded here, and nothing is allowed for that
    return float((off / scale).max()), float((off / one["o"].movedim(0, 1)).max())


@pytest.mark.parametrize("P", [2, 5])
def test_equal_keys_round_alike(P):
    """Right weights, rounded once, stay within the bound; they do not if copies of a key are taken to round
    independently, so the bound has to know of them."""
    found = [shares(P, 1024, seed) for seed in range(8)]
    assert max(each for each, _ in found) < 0.9
    assert max(each for _, each in found) > 1


def test_pages_that_stand_once_widen_nothing():
    q, k, v = (torch.randn(shape).double() for shape in ((1, 2, 2, 4), (8, 2, 2, 4), (8, 2, 2, 4)))
    table, lens = torch.randperm(8)[None].int(), torch.tensor([16], dtype=torch.int32)
    got = paged.error_scale_forward(q, k, v, table, lens, types=TYPES, **PARAMS)["o"][0]
    keys, values = keys_and_values(k, v, table, lens)
    one = error_scale.forward(
        q[0].movedim(1, 0), keys, values, types=TYPES, causal=True, window_right=None, **PARAMS
    )  # fmt: skip
    torch.testing.assert_close(got, one["o"].movedim(0, 1))


def next_entry(table: Tensor, lens: Tensor, S: int, P: int) -> Tensor:
    return table.roll(-1, -1)


def of_another_sequence(table: Tensor, lens: Tensor, S: int, P: int) -> Tensor:
    return table.roll(1, 0)


def last_page_of_the_one_before(table: Tensor, lens: Tensor, S: int, P: int) -> Tensor:
    """Reads the page before the last twice."""
    table = table.clone()
    for z, length in enumerate(lens.clamp(0, table.shape[1] * S).tolist()):
        last = -(-length // S) - 1
        if last > 0:
            table[z, last] = table[z, last - 1]
    return table


def one_page_further(table: Tensor, lens: Tensor, S: int, P: int) -> Tensor:
    return table.clamp(0, P - 1) + 1


@functools.cache
def questions() -> list[tuple[dict[str, int], Any]]:
    """The axes and the questions of the smoke tier's calls whose T is narrow."""
    spec, found = registry.spec("attention_paged"), []
    for case in cases(spec, "smoke"):
        axes = dict(case.shape.axes)
        if not case.mode and min(axes.values()) and dict(case.types)["T"] in ("bfloat16", "float16"):
            found.append((axes, reference.materialize(case, spec)))
    return found


def judged(turn: Any) -> int:
    """How many of the questions are failed with the table turned."""
    spec, failed = registry.spec("attention_paged"), 0
    for axes, question in questions():
        tensors = {name: each.tensor for name, each in question.inputs.items()}
        given: dict[str, Any] = {name: tensors.get(name) for name in spec.inputs}
        given["block_table"] = turn(given["block_table"], given["seq_lens"], axes["S"], axes["P"])
        got = attention_paged(*given.values(), **question.case.params)
        failed += any(
            expected.judge(tensor, question.biased_values).state != "Pass"
            for expected, tensor in zip(question.expected.values(), got, strict=True)
        )
    return failed


def test_the_right_page_passes():
    assert len(questions()) > 10 and judged(lambda table, *_: table) == 0


@pytest.mark.parametrize(
    "turn", [next_entry, of_another_sequence, last_page_of_the_one_before, one_page_further]
)
def test_a_wrong_page_is_rejected(turn):
    assert judged(turn) > len(questions()) // 3
