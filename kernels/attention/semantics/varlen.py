"""attention_varlen and its gradient, as attention of batches of sequences of equal lengths: the reference
in float64, its error scales, the offsets of a case, and a probe. `torch_impl` runs the same batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from . import error_scale, reference
from .probes import Call, normal

TORCH_ELEMENTS = 1 << 24
"""Elements of the temporaries of one batch through torch, about: 64 MB in float32."""
REFERENCE_ELEMENTS = 1 << 22
"""Elements of the largest temporaries of a batch of the reference: 32 MB each in float64, and there are
several."""
FORWARD = ("o", "lse")
PARAMS = ("causal", "scale", "window_left", "window_right", "softcap")


# --- batches of equal lengths -----------------------------------------------------------------------------


def bounds(offsets: Tensor, total: int) -> Tensor:
    """(C,) int64 on the CPU: offsets brought within 0..total, none below the one before it."""
    return torch.cummax(offsets.cpu().long().clamp(0, total), 0).values


def batches(
    q: Tensor, k: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, elements: int = TORCH_ELEMENTS
) -> Iterator[tuple[Tensor, Tensor]]:
    """The query tokens (sequences, seqlen_q) and key tokens (sequences, seqlen_k) of batches of sequences of
    equal lengths.

    A batch keeps within `elements` queries, keys and scores unless one sequence alone is larger.
    """
    queries, keys = bounds(cu_seqlens_q, len(q)), bounds(cu_seqlens_k, len(k))
    if len(queries) < 2:
        return
    lengths = torch.stack([queries.diff(), keys.diff()], 1)
    shapes, which, counts = torch.unique(lengths, dim=0, return_inverse=True, return_counts=True)
    members = which.argsort(stable=True).split(counts.tolist())
    for (seqlen_q, seqlen_k), same in zip(shapes.tolist(), members, strict=True):
        one = q.shape[1] * (seqlen_q + seqlen_k) * q.shape[2] + q.shape[1] * seqlen_q * seqlen_k
        for some in same.split(max(1, elements // max(one, 1))):
            tokens = queries[some, None] + torch.arange(seqlen_q), keys[some, None] + torch.arange(seqlen_k)
            yield tokens[0].to(q.device), tokens[1].to(q.device)


def heads(x: Tensor, tokens: Tensor) -> Tensor:
    """(sequences, heads, seqlen, dim): the tokens of a batch."""
    return x[tokens].transpose(1, 2)


def rows(x: Tensor, tokens: Tensor) -> Tensor:
    """(sequences, heads, seqlen): the tokens of a batch in a tensor (heads, tokens)."""
    return x[:, tokens].transpose(0, 1)


def _forward(
    function: Callable[..., Any], elements: int, outside: float, q: Tensor, k: Tensor, v: Tensor,
    cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None, params: dict[str, Any],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse, or their error scales, by a function of sequences of equal lengths; zeros and `outside` for
    tokens of no sequence."""
    wide = torch.promote_types(q.dtype, torch.float32)
    o = q.new_zeros((*q.shape[:2], v.shape[-1]))
    lse = torch.full((q.shape[1], len(q)), outside, dtype=wide, device=q.device)
    for at, there in batches(q, k, cu_seqlens_q, cu_seqlens_k, elements):
        found = function(heads(q, at), heads(k, there), heads(v, there), None, sinks, **params)
        own, own_lse = found.values() if isinstance(found, dict) else found
        o[at], lse[:, at] = own.transpose(1, 2), own_lse.transpose(0, 1)
    return o, lse


def _backward(
    function: Callable[..., Any], elements: int, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor,
    lse: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, dlse: Tensor | None, params: dict[str, Any],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk and dv, or their error scales; zeros for tokens of no sequence."""
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for at, there in batches(q, k, cu_seqlens_q, cu_seqlens_k, elements):
        given = heads(do, at), heads(q, at), heads(k, there), heads(v, there), heads(o, at)
        found = function(*given, rows(lse, at), None, None if dlse is None else rows(dlse, at), **params)
        own = found.values() if isinstance(found, dict) else found
        dq[at], dk[there], dv[there] = (each.transpose(1, 2) for each in own)
    return dq, dk, dv


# --- the reference and its error scales -------------------------------------------------------------------


def reference_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None = None,
    **params: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse; zeros and -inf for tokens of no sequence."""
    given = q, k, v, cu_seqlens_q, cu_seqlens_k, sinks
    return _forward(reference.attention, REFERENCE_ELEMENTS, -torch.inf, *given, params)


def reference_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor, dlse: Tensor | None = None, **params: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk and dv; zeros for tokens of no sequence."""
    given = do, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, dlse
    return _backward(reference.attention_backward, REFERENCE_ELEMENTS, *given, params)


def error_scale_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    sinks: Tensor | None = None, *, types: dict[str, str], **params: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """The error scales of o and lse."""
    given = q, k, v, cu_seqlens_q, cu_seqlens_k, sinks, {**params, "types": types}
    found = _forward(error_scale.forward, REFERENCE_ELEMENTS, 0.0, *given)
    return dict(zip(FORWARD, found, strict=True))


def error_scale_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor, dlse: Tensor | None = None, *, types: dict[str, str], **params: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """The error scales of dq, dk and dv."""
    given = do, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, dlse, {**params, "types": types}
    found = _backward(error_scale.backward, REFERENCE_ELEMENTS, *given)
    return dict(zip(("dq", "dk", "dv"), found, strict=True))


# --- cases ------------------------------------------------------------------------------------------------


def derived(
    q: Tensor, k: Tensor, v: Tensor, axes: dict[str, int], bits: Any, **params: Any
) -> dict[str, Tensor]:
    """The offsets of a case, and what the forward pass gives the backward pass with them."""
    offsets = cu_seqlens(axes, bits)
    given = {name: value for name, value in params.items() if name in PARAMS}
    return offsets | dict(zip(FORWARD, reference_forward(q, k, v, **offsets, **given), strict=True))


def cu_seqlens(axes: dict[str, int], bits: Any) -> dict[str, Tensor]:
    """Offsets of sequences of all lengths, a good part of them empty. In every second case there are tokens
    before the first and behind the last, in every fourth offsets beyond the tokens or out of order."""
    made = {}
    kind = int(bits.below(4, 1)[0])
    for name, total in (("cu_seqlens_q", axes["M"]), ("cu_seqlens_k", axes["N"])):
        offsets = torch.from_numpy(bits.below(total + 1, axes["C"])).sort().values
        same = torch.from_numpy(bits.below(3, axes["C"])) == 0
        offsets[1:] = torch.where(same[1:], offsets[:-1], offsets[1:]).cummax(0).values
        if kind < 2:
            offsets[0] = 0
            offsets[-1] = total if len(offsets) > 1 else 0
        if kind == 3:
            wrong = torch.from_numpy(bits.below(6, axes["C"]))
            offsets = torch.where(wrong == 0, offsets - total - 3, offsets)
            offsets = torch.where(wrong == 1, offsets + total, offsets)
        made[name] = offsets
    return made


def neighbours(call: Call, dtype: torch.dtype, device: torch.device) -> bool:
    """a NaN in one sequence, or in tokens of none, makes o and lse of that sequence NaN, and of no other"""
    q, k, v = (normal((n, h, 64), dtype, device, n) for n, h in ((53, 4), (61, 2), (62, 2)))
    v = v[:61]
    offsets_q, offsets_k = ([3, 24, 24, 44, 50], [2, 19, 30, 47, 55])
    given = {
        "cu_seqlens_q": torch.tensor(offsets_q, dtype=torch.int32, device=device),
        "cu_seqlens_k": torch.tensor(offsets_k, dtype=torch.int32, device=device),
    }
    for causal in (False, True):
        o, lse = call({"q": q, "k": k, "v": v, "causal": causal, **given})
        for own in (0, 2):
            at, there = (slice(x[own], x[own + 1]) for x in (offsets_q, offsets_k))
            spoilt = []
            for x, kept in ((q, at), (k, there), (v, there)):
                spoilt.append(torch.full_like(x, torch.nan))
                spoilt[-1][kept] = x[kept]
            got, got_lse = call({**dict(zip("qkv", spoilt, strict=True)), "causal": causal, **given})
            if not (torch.equal(got[at], o[at]) and torch.equal(got_lse[:, at], lse[:, at])):
                return False
            other = slice(offsets_q[3], offsets_q[4])
            if not (got[other].isnan().all() and got_lse[:, other].isnan().all()):
                return False
            outside = [*range(3), *range(50, 53)]
            if got[outside].any() or not torch.isneginf(got_lse[:, outside]).all():
                return False
    return True


PROBES = (neighbours,)
