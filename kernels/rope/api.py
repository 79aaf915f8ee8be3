"""`portable.rope`: the op with queries alone, and with tables that have rows of their own for every token."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from portable.dispatch import dispatcher
from portable.dispatch.arguments import check_tensor, documented
from portable.errors import RankError

_op: Any = dispatcher.op("rope")


@documented
def rope(
    q: Tensor,
    k: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: bool = False,
) -> Any:
    """Rotary position embedding of queries and keys.

    q is (batch, tokens, heads, D) and k (batch, tokens, key heads, D), or None; in any strides with a last
    one of 1, so q of (batch, heads, tokens, D) is passed as q.transpose(1, 2). cos and sin are tables (P, C)
    of cosines and sines, with one column per pair of columns of a head: C <= D / 2. Pair i of a token is
    rotated by the angle in column i of its row: (a, b) becomes (a * cos - b * sin, b * cos + a * sin).

    positions: (batch, tokens), int64 or int32, the row of each token; not checked to be within 0..P - 1.
    None: the first row for the first token of each sequence, and so on. cos and sin may instead be (batch or
    1, tokens, C), with a row for each token, and no positions. interleaved: pairs are the columns 2i and
    2i + 1 (GPT-J); else i and C + i (GPT-NeoX, Llama). Columns from 2 * C on are copied.

    Tables that hold every column twice, as of Hugging Face's models, are passed as cos[..., : D // 2];
    vLLM's cache of both as cos_sin[:, :C] and cos_sin[:, C:]. None of these views is copied.

    Answers (q, k), both new and contiguous, or q alone where k is None. float16, bfloat16, float32 or
    float64; tables of the same type, or of float32 beside 16 bits. Products and sums are in float32, rounded
    once. The gradient of q and k is the rotation by the opposite angles; cos and sin have none.

    Raises ShapeError, DtypeError or RankError (subclasses of PortableError) that name the argument.
    Source: Su et al. 2021, RoFormer; pairs as of GPT-NeoX and GPT-J.
    """
    for name, each in (("q", q), ("cos", cos), ("sin", sin)):
        check_tensor("rope", name, each)
    if q.dim() != 4:
        raise RankError("rope", "q", q.dim(), "4, as its shape is [batch, tokens, heads, D]")
    if cos.dim() == sin.dim() == 3 and positions is None:
        cos, sin, positions = rows_of_tokens(q, cos, sin)
    q_rotated, k_rotated = _op(
        q, q[:, :, :0] if k is None else k, cos, sin, positions, interleaved=interleaved
    )
    return q_rotated if k is None else (q_rotated, k_rotated)


def rows_of_tokens(q: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Tables (batch or 1, tokens, C) as tables of rows and, where they differ by sequence, positions."""
    if len(cos) == len(sin) == 1:
        return cos[0], sin[0], None
    rows = torch.arange(cos.shape[0] * cos.shape[1], device=q.device)
    return cos.flatten(0, 1), sin.flatten(0, 1), rows.view(cos.shape[:2])
