"""What throughput is measured by: what a user of torch alone would call, the inputs that timings need, the
dense call beside, and floating point operations: of products over the visible keys alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from portable import dtypes
from portable.dispatch import dispatcher

from . import fp8, torch_impl

PARAMS = ("causal", "scale", "window_left", "window_right", "softcap")

Given = dict[str, Tensor | None]
Facts = dict[str, Any]


def derived(given: Given, facts: Facts) -> dict[str, Tensor]:
    """The inputs that follow from the others: page tables and lengths, offsets, o and lse."""
    if "W" in facts:
        return _pages(given, facts)
    return _offsets(given, facts) if "C" in facts else _forward_pass(given, facts)


def dense(given: dict[str, Tensor], facts: Facts) -> Callable[[], object]:
    """The dense op on as much work as a call of varlen or over a paged cache has."""
    return _dense_of_paged(given, facts) if "W" in facts else _dense_of_varlen(given, facts)


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


def attention_fp8(
    q: Tensor, k: Tensor, v: Tensor, q_scale: Tensor, k_scale: Tensor, v_scale: Tensor, *,
    output_dtype: Any, **params: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """torch's attention of what the codes become in the result's type: it takes no codes."""
    kind = dtypes.of(output_dtype).storage
    given = (x.to(kind) for x in (q, k, v, q_scale, k_scale, v_scale))
    return attention(*fp8.of_numbers(*given), **params)


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


def _forward_pass(tensors: Given, facts: Facts) -> dict[str, Tensor]:
    """o and lse, on a GPU by torch's flash kernel."""
    q, k, v = (tensors[name] for name in ("q", "k", "v"))
    if q is None or k is None or v is None:
        raise ValueError("attention needs q, k and v")
    if not q.is_cuda or q.dtype == torch.float32 or facts["window_left"] is not None:
        found = torch_impl.attention(q, k, v, tensors["bias"], **{name: facts[name] for name in PARAMS})
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


# --- varlen: where all sequences have one length, torch's attention of a batch ----------------------------


def attention_varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    sinks: Tensor | None = None, *, causal: bool = False, scale: float | None = None,
    window_left: int | None = None, window_right: int | None = None, softcap: float | None = None,
) -> tuple[Tensor, None]:  # fmt: skip
    """Sequences of one length, as `_offsets` makes them; torch gives no lse."""
    count = len(cu_seqlens_q) - 1
    given = (sinks, window_left, window_right, softcap)
    if any(each is not None for each in given) or count < 1 or len(q) % count or len(k) % count:
        raise NotImplementedError("torch has no such call")
    if causal and len(q) != len(k):
        raise NotImplementedError("torch's causal mask starts top left")
    query, key, value = (x.unflatten(0, (count, -1)).transpose(1, 2) for x in (q, k, v))
    attend = torch.nn.functional.scaled_dot_product_attention
    o = attend(query, key, value, is_causal=causal, scale=scale, enable_gqa=True)
    return o.transpose(1, 2).flatten(0, 1), None


def attention_varlen_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor, dlse: Tensor | None = None, **params: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """torch's gradient, with the forward pass that it needs."""
    if dlse is not None:
        raise NotImplementedError("torch has no such call")
    with torch.enable_grad():
        leaves = q, k, v = tuple(x.detach().requires_grad_() for x in (q, k, v))
        made, _ = attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, **params)
    return torch.autograd.grad(made, leaves, do)


def _offsets(given: Given, facts: Facts) -> dict[str, Tensor]:
    """Sequences of one length, or a long tail of lengths in the layout "tail"; for the gradient, o and lse
    of them."""
    q, k, v, do = (given.get(name) for name in ("q", "k", "v", "do"))
    assert q is not None and k is not None and v is not None
    count = facts["C"] - 1
    ends = _tail_ends(count) if facts["layout"].endswith("tail") else torch.arange(count + 1) / max(count, 1)
    offsets = {
        f"cu_seqlens_{name}": (ends.double() * len(x)).round().to(torch.int32).to(x.device)
        for name, x in (("q", q), ("k", k))
    }
    if do is None:
        return offsets
    params = {name: facts[name] for name in PARAMS}
    o, lse = dispatcher.op("attention_varlen")(q, k, v, **offsets, **params)
    return {**offsets, "o": o, "lse": lse}


def _tail_ends(count: int) -> Tensor:
    """Where `count` sequences end, as shares of the tokens, behind a 0: their lengths are the quantiles of a
    Pareto law of index 1.1, in no order."""
    lengths = ((torch.arange(count, dtype=torch.float64) + 0.5) / count) ** (-1 / 1.1)
    lengths = lengths[torch.randperm(count, generator=torch.Generator().manual_seed(0))]
    ends = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return ends / ends[-1]


def _pairs(given: dict[str, Tensor]) -> int:
    """Queries times keys, over the sequences."""
    queries, keys = (given[f"cu_seqlens_{name}"].diff().long() for name in "qk")
    return int((queries * keys).sum())


def share_of_uniform(given: dict[str, Tensor], facts: Facts) -> float:
    """The work over that of as many sequences of one length."""
    return _pairs(given) / (facts["M"] * facts["N"] / max(facts["C"] - 1, 1))


def _dense_of_varlen(given: dict[str, Tensor], facts: Facts) -> Callable[[], object]:
    """A batch of sequences of about 4096."""
    pairs = _pairs(given)
    batch = max(round(pairs / 4096**2), 1)
    length = 8 * max(round((pairs / batch) ** 0.5 / 8), 1)

    def random(heads: int, size: int) -> Tensor:
        q = given["q"]
        return torch.randn(batch, heads, length, size, device=q.device).to(q.dtype)

    H, G, D, E = (facts[name] for name in "HGDE")
    params = {name: facts[name] for name in PARAMS}
    q, k, v = random(H, D), random(G, D), random(G, E)
    attention = dispatcher.op("attention")
    if "do" not in given:
        return lambda: attention(q, k, v, **params)
    o, lse = attention(q, k, v, **params)
    do, backward = random(H, E), dispatcher.op("attention_backward")
    return lambda: backward(do, q, k, v, o, lse, **params)


# --- a paged cache: gather the pages, then torch's attention ----------------------------------------------


def attention_paged(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    sinks: Tensor | None = None, *, scale: float | None = None, window_left: int | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, None]:  # fmt: skip
    """Full sequences of one query; torch gives no lse."""
    if q.shape[1] != 1 or sinks is not None or window_left is not None or softcap is not None:
        raise NotImplementedError("torch has no such call")
    k, v = (cache[block_table].flatten(1, 2).transpose(1, 2) for cache in (k_cache, v_cache))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q.transpose(1, 2), k, v, scale=scale, enable_gqa=True).transpose(1, 2), None


def attention_paged_fp8(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor, k_scale: Tensor,
    v_scale: Tensor, sinks: Tensor | None = None, **params: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """The same of a cache that is made q's type first: torch's attention takes no codes."""
    k, v = (
        cache.to(q.dtype) * scale.to(q.dtype)[:, None]
        for cache, scale in ((k_cache, k_scale), (v_cache, v_scale))
    )
    return attention_paged(q, k, v, block_table, seq_lens, sinks, **params)


def wide(given: dict[str, Tensor], facts: Facts) -> Callable[[], object]:
    """attention_paged over a cache of q's type, with the same tables; or attention in the result's type."""
    if "W" not in facts:
        return _wide_dense(given, facts)
    q, params = given["q"], {name: facts[name] for name in ("scale", "window_left", "softcap")}
    k, v = (torch.randn(given[name].shape, device=q.device).to(q.dtype) for name in ("k_cache", "v_cache"))
    attention, rest = dispatcher.op("attention_paged"), (given["block_table"], given["seq_lens"])
    return lambda: attention(q, k, v, *rest, given["sinks"], **params)


def _wide_dense(given: dict[str, Tensor], facts: Facts) -> Callable[[], object]:
    kind, params = dtypes.of(facts["output_dtype"]).storage, {name: facts[name] for name in PARAMS}
    q, k, v = (torch.randn(given[name].shape, device=given[name].device).to(kind) for name in "qkv")
    attention = dispatcher.op("attention")
    return lambda: attention(q, k, v, **params)


def _pages(given: Given, facts: Facts) -> dict[str, Tensor]:
    """Full sequences whose pages lie anywhere."""
    q = given["q"]
    assert q is not None
    Z, P, S, W = (facts[name] for name in ("Z", "P", "S", "W"))
    generator = torch.Generator(q.device).manual_seed(0)
    turns = range(-(-Z * W // max(P, 1)))
    order = [torch.randperm(max(P, 1), generator=generator, device=q.device) for _ in turns]
    table = torch.cat(order)[: Z * W].reshape(Z, W).to(torch.int32)
    return {"block_table": table, "seq_lens": torch.full((Z,), W * S, dtype=torch.int32, device=q.device)}


def _dense_of_paged(given: dict[str, Tensor], facts: Facts) -> Callable[[], object]:
    """Sequences of the same lengths, whose keys lie head by head."""
    q = given["q"].transpose(1, 2)
    Z, G, D, E, keys = (*(facts[name] for name in "ZGDE"), facts["W"] * facts["S"])
    k, v = (torch.randn(Z, G, keys, size, device=q.device).to(q.dtype) for size in (D, E))
    attention = dispatcher.op("attention")
    params = {name: facts[name] for name in ("scale", "window_left", "softcap")}
    return lambda: attention(q, k, v, **params)
