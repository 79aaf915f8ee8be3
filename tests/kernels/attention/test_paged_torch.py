"""attention_paged through torch: in batches of one length, within its memory, and fast for many sequences."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor

from portable.kernels.attention.semantics import paged, torch_impl
from portable.kernels.attention.semantics.paged import batches
from portable.kernels.attention.semantics.torch_impl import attention_paged

PARAMS: dict[str, Any] = {"scale": None, "window_left": None, "softcap": None}


def call(Z: int, W: int = 3, S: int = 4, P: int = 9, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Inputs with every length from below 0 to beyond the table, and pages out of range."""
    generator = torch.Generator().manual_seed(Z)
    shapes = {"q": (Z, 2, 4, 8), "k_cache": (P, S, 2, 8), "v_cache": (P, S, 2, 8), "sinks": (4,)}
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    made = {name: x.to(dtype) if name != "sinks" else x for name, x in made.items()}
    made["block_table"] = torch.randint(-1, P + 1, (Z, W), generator=generator, dtype=torch.int32)
    made["seq_lens"] = torch.randint(-1, W * S + 2, (Z,), generator=generator, dtype=torch.int32)
    return made


def one_by_one(made: dict[str, Tensor], **params) -> tuple[Tensor, Tensor]:
    """The same, a sequence at a time, from the op's definition."""
    pages, page = made["k_cache"].shape[:2]
    outputs = []
    for q, row, length in zip(made["q"], made["block_table"], made["seq_lens"].tolist(), strict=True):
        keys = [(int(row[j // page].clamp(0, pages - 1)), j % page)
                for j in range(min(max(length, 0), len(row) * page))]  # fmt: skip
        k, v = (
            torch.stack([cache[at] for at in keys], 1) if keys else cache[0, :0].movedim(0, 1)
            for cache in (made["k_cache"], made["v_cache"])
        )
        o, lse = torch_impl.attention(q.movedim(1, 0), k, v, None, made["sinks"], causal=True, **params)
        outputs.append((o.movedim(1, 0), lse))
    return torch.stack([o for o, _ in outputs]), torch.stack([lse for _, lse in outputs])


@pytest.mark.parametrize(
    "params", [{}, {"window_left": 3}, {"softcap": 1.5, "scale": 0.3}, {"window_left": 0}], ids=str
)
def test_it_is_attention_of_each_sequence(params):
    made = call(40)
    for got, expected in zip(attention_paged(**made, **params), one_by_one(made, **params), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.slow
def test_65536_sequences_take_seconds():
    """A loop over the sequences took two minutes here, and each H200 call timed out (2026-11-22)."""
    made: dict[str, Any] = call(65536)
    start = time.process_time()
    o, lse = attention_paged(**made)
    assert time.process_time() - start < 10
    wide: dict[str, Any] = {n: x.double() if x.is_floating_point() else x for n, x in made.items()}
    start = time.process_time()
    expected = paged.reference_forward(**wide, **PARAMS)
    paged.error_scale_forward(**wide, types={"T": "bfloat16", "R": "float32", "acc": "float32"}, **PARAMS)
    assert time.process_time() - start < 20
    torch.testing.assert_close(o.double(), expected[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse.double(), expected[1], rtol=1e-4, atol=1e-5)


def test_a_batch_keeps_within_its_elements():
    made = call(500)
    found = list(batches(made["k_cache"], made["block_table"], made["seq_lens"], 10, elements=1000))
    assert sorted(torch.cat([members for members, _, _ in found]).tolist()) == list(range(500))
    for members, pages, length in found:
        assert pages.shape == (len(members), -(-length // 4)) and ((pages >= 0) & (pages < 9)).all()
        assert len(members) == 1 or len(members) * pages.shape[1] * 4 * 10 <= 1000
        clamped = made["seq_lens"][members].clamp(0, 12)
        assert (clamped == length).all()
