"""What attention_varlen gives bit for bit on every implementation, without a bound.

A probe is a function of a call of the op (its arguments by name, answering o and lse), a dtype and a device.
"""

from __future__ import annotations

import torch

from .probes import Call, normal


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
