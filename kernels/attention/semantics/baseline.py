"""What throughput is measured by: what a user of torch alone would call, and the floating point operations
of attention and of its gradients, products over the visible keys alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import torch_impl


def attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, sinks: Tensor | None = None, *,
    causal: bool, scale: float | None, window_left: int | None, window_right: int | None,
    softcap: float | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """torch's own attention, which gives no lse; with a cap or sinks, which it has not, the formula."""
    M, N = q.shape[-2], k.shape[-2]
    window = {"window_left": window_left, "window_right": window_right}
    if softcap is not None or sinks is not None or M == 0 or N == 0:
        return torch_impl.attention(
            q, k, v, bias, sinks, causal=causal, scale=scale, softcap=softcap, **window
        )
    mask, plain = bias, M == N and bias is None and window_left is None and window_right is None
    if not plain and (causal or window_left is not None or window_right is not None):
        zeros = q.new_zeros(1, 1, M, N) if bias is None else bias
        place = torch.arange(N, device=q.device) - torch.arange(M, device=q.device)[:, None] - (N - M)
        hidden = (place > min(0 if causal else N, N if window_right is None else window_right)) | (
            place < -(N + M if window_left is None else window_left)
        )
        mask = zeros.masked_fill(hidden, -torch.inf)
    query, key, value = (x if x.dim() > 3 else x[None] for x in (q, k, v))
    shared = q.shape[-3] != k.shape[-3]
    o = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, is_causal=causal and plain, scale=scale, enable_gqa=shared
    )
    return o.view(*q.shape[:-1], v.shape[-1]), None


def attention_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, bias: Tensor | None = None,
    dlse: Tensor | None = None, *, causal: bool, scale: float | None, **params: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """torch's flash backward where it has one, shared heads repeated before and summed after as torch does;
    else the formula in torch."""
    rest = any(value is not None for value in (bias, dlse, *params.values()))
    if not q.is_cuda or rest or q.dim() != 4 or (causal and q.shape[-2] != k.shape[-2]):
        return torch_impl.attention_backward(
            do, q, k, v, o, lse, bias, dlse, causal=causal, scale=scale, **params
        )
    share, seed = q.shape[-3] // k.shape[-3], torch.zeros((), dtype=torch.int64, device=q.device)
    many = [x.repeat_interleave(share, 1) if share > 1 else x for x in (k, v)]
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        do, q, *many, o, lse, None, None, q.shape[-2], k.shape[-2], 0.0, causal, seed, seed, scale=scale
    )
    if share > 1:
        dk, dv = (x.unflatten(1, (k.shape[-3], share)).sum(2) for x in (dk, dv))
    return dq, dk, dv


def attention_dbias(*inputs: Tensor, **params: Any) -> Tensor:
    """torch gives it with the other gradients, from the scores in memory: the formula."""
    return torch_impl.attention_dbias(*inputs, **params)


def derived(tensors: dict[str, Tensor | None], facts: dict[str, Any]) -> dict[str, Tensor]:
    """o and lse of the forward pass, for timings on a GPU: by torch's flash kernel."""
    q, k, v = (tensors[name] for name in ("q", "k", "v"))
    if q is None or k is None or v is None:
        raise ValueError("attention needs q, k and v")
    if not q.is_cuda or q.dtype == torch.float32 or facts["window_left"] is not None:
        names = ("causal", "scale", "window_left", "window_right", "softcap")
        found = torch_impl.attention(q, k, v, tensors["bias"], **{name: facts[name] for name in names})
    else:
        given = flash_operands(q, k, v)
        scale = q.shape[-1] ** -0.5 if facts["scale"] is None else facts["scale"]
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        o, lse, *_ = flash(*given, 0.0, facts["causal"], False, scale=scale)
        found = o[..., : v.shape[-1]].reshape(*q.shape[:-1], v.shape[-1]), lse.reshape(q.shape[:-1])
    return {"o": found[0], "lse": found[1]}


def flash_operands(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """As torch's flash kernel takes them: four dimensions, as many key heads as query heads, heads of one
    size (zeros behind the shorter ones, which add nothing to scores and zeros to o)."""
    size = max(q.shape[-1], v.shape[-1])
    repeated = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (q, k, v))
    padded = (torch.nn.functional.pad(x, (0, size - x.shape[-1])) for x in repeated)
    return [x.reshape(-1, *x.shape[-3:]) for x in padded]


def visible_pairs(M: int, N: int, causal: bool, window_left: int | None) -> float:
    """How many pairs of a query and a key are not masked; a window that is not causal counts as none."""
    if causal and window_left is not None:
        return M * min(N, window_left + 1)
    if causal and M <= N:
        return M * N - M * (M - 1) / 2
    return M * N


def forward_flops(
    B: int, H: int, M: int, N: int, D: int, E: int, causal: bool, window_left: int | None
) -> float:
    """Two products per visible pair: q k^T over D and P v over E."""
    return 2 * B * H * (D + E) * visible_pairs(M, N, causal, window_left)


def backward_flops(
    B: int, H: int, M: int, N: int, D: int, E: int, causal: bool, window_left: int | None
) -> float:
    """Five products per visible pair: q k^T, dq and dk over D, dP and dv over E."""
    return 2 * B * H * (3 * D + 2 * E) * visible_pairs(M, N, causal, window_left)
