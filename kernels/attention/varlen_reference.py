"""attention over packed sequences in float64: the reference of attention, for sequences of equal lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import magnitude as magnitudes
from . import reference
from .varlen_torch import batches, heads, rows

BATCH_ELEMENTS = 1 << 22
"""Elements of a batch's largest temporaries: 32 MB each in float64, and there are several."""
FORWARD = ("o", "lse")
GRADIENTS = ("dq", "dk", "dv")


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, sinks: Tensor | None = None,
    **params: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o and lse; zeros and -inf for tokens of no sequence."""
    o, lse = q.new_zeros((*q.shape[:2], v.shape[-1])), q.new_full((q.shape[1], len(q)), -torch.inf)
    for at, there in batches(q, k, cu_seqlens_q, cu_seqlens_k, BATCH_ELEMENTS):
        found = reference.attention(heads(q, at), heads(k, there), heads(v, there), None, sinks, **params)
        o[at], lse[:, at] = found[0].transpose(1, 2), found[1].transpose(0, 1)
    return o, lse


def derived(
    q: Tensor, k: Tensor, v: Tensor, axes: dict[str, int], bits: Any, **params: Any
) -> dict[str, Tensor]:
    """The offsets of a case, and what the forward pass gives the backward pass with them."""
    offsets = cu_seqlens(axes, bits)
    given = {name: value for name, value in params.items() if name in PARAMS}
    return offsets | dict(zip(FORWARD, attention_varlen(q, k, v, **offsets, **given), strict=True))


PARAMS = ("causal", "scale", "window_left", "window_right", "softcap")


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


def attention_varlen_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor, dlse: Tensor | None = None, **params: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk and dv; zeros for tokens of no sequence."""
    given = do, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, dlse
    found = _gradients(reference.attention_backward, *given, params)
    return found["dq"], found["dk"], found["dv"]


def magnitude(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    sinks: Tensor | None = None, *, types: dict[str, str], **params: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """The error scales of o and lse."""
    o, lse = q.new_zeros((*q.shape[:2], v.shape[-1])), q.new_zeros((q.shape[1], len(q)))
    for at, there in batches(q, k, cu_seqlens_q, cu_seqlens_k, BATCH_ELEMENTS):
        given = heads(q, at), heads(k, there), heads(v, there)
        found = magnitudes.magnitude(*given, None, sinks, types=types, **params)
        o[at], lse[:, at] = found["o"].transpose(1, 2), found["lse"].transpose(0, 1)
    return {"o": o, "lse": lse}


def magnitude_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor, dlse: Tensor | None = None, *, types: dict[str, str], **params: Any,
) -> dict[str, Tensor]:  # fmt: skip
    """The error scales of dq, dk and dv."""
    given = do, q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, dlse
    return _gradients(magnitudes.magnitude_backward, *given, {**params, "types": types})


def _gradients(
    function: Callable[..., Any], do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor,
    cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, dlse: Tensor | None, params: dict[str, Any],
) -> dict[str, Tensor]:  # fmt: skip
    """The gradients, or their error scales, of all tokens, by a function of sequences of equal lengths."""
    made = {name: torch.zeros_like(like) for name, like in zip(GRADIENTS, (q, k, v), strict=True)}
    for at, there in batches(q, k, cu_seqlens_q, cu_seqlens_k, BATCH_ELEMENTS):
        given = heads(do, at), heads(q, at), heads(k, there), heads(v, there), heads(o, at)
        found = function(*given, rows(lse, at), None, None if dlse is None else rows(dlse, at), **params)
        found = found if isinstance(found, dict) else dict(zip(GRADIENTS, found, strict=True))
        for name, part in zip(GRADIENTS, (at, there, there), strict=True):
            made[name][part] = found[name].transpose(1, 2)
    return made
