"""`portable.attention` and `scaled_dot_product_attention` with torch's signature, over the op of spec.yaml.

They map their arguments to those of the op, which checks them. The op itself, with both results, is
`torch.ops.portable.attention`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from portable.dispatch import arguments, batching, dispatcher, fast_path
from portable.dispatch.arguments import check_flag, check_tensor, documented
from portable.errors import DtypeError, OutputError, ParameterError, RankError, ShapeError

_op: Any = dispatcher.op("attention")
_call = fast_path.by_position(_op)
Window = int | tuple[int | None, int | None] | None


_OF_TORCH = " portable.scaled_dot_product_attention takes torch's arguments."
_CAUSAL = " Here it is causal=True, and the last query is at the last key; torch has the first at the first."
_ARGUMENTS: tuple[str, ...] = ("query", "key", "value", "attn_mask", "dropout_p", "enable_gqa")
_HINTS = dict.fromkeys(_ARGUMENTS, _OF_TORCH) | {"is_causal": _OF_TORCH + _CAUSAL}


@partial(documented, hints=_HINTS)
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: Window = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
) -> Any:
    """softmax(scale * q @ k.T) @ v for every head, without the scores in memory.

    q is (..., heads, queries, D), k (..., key heads, keys, D) and v (..., key heads, keys, E), in any strides
    with a last one of 1. The heads are a multiple of the key heads, and query head h reads key head
    h // (heads // key heads). The last query stands at the last key, whatever the two lengths are.

    causal: a query sees the keys up to its own place. window: how many keys beside its own a query sees: to
    the left with `causal`, else on either side; a pair counts left and right apart, None or -1 in it is no
    limit. scale: 1 / sqrt(D) where None. softcap: scores become softcap * tanh(scores / softcap). bias: added
    to the scores, of q's dtype, broadcast to (..., heads, queries, keys); -inf hides a key. sinks: one more
    score per head, (heads,), which takes its share of the softmax and gives nothing.

    Answers (..., heads, queries, E) of q's dtype, in `out` if that is given (a copy); with `return_lse` also
    log(sum(exp(scores))), (..., heads, queries) in float32. A query that sees no key gets zeros, and -inf.
    float16, bfloat16, float32 and float64, all inputs alike.

    Raises ShapeError, DtypeError or ParameterError (subclasses of PortableError) that name the argument.
    Source: Vaswani et al. 2017; in tiles with a running softmax, Dao 2023.
    """
    check_flag("attention", "return_lse", return_lse)
    left, right = normalize_window("attention", window, causal)
    if isinstance(bias, Tensor) and isinstance(q, Tensor) and isinstance(k, Tensor):
        check_tensor("attention", "q", q)
        check_tensor("attention", "k", k)
        if min(q.dim(), k.dim()) > 1:  # else the op's checks name the rank
            bias = _expanded("attention", "bias", bias, (*q.shape[:-1], k.shape[-2]))
    sinks = cast_sinks(sinks, q)
    o, lse = _call(q, k, v, bias, sinks, causal, scale, left, right, softcap)
    if out is not None:
        o = _written(out, o, (q, k, v, bias, sinks))
    return (o, lse) if return_lse else o


@documented
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention by this package's kernels.

    The mask is boolean (True takes part) or added to the scores, converted to the query's dtype. `is_causal`
    lets query i see keys 0 to i, as torch has it: the first query at the first key, where
    `portable.attention` puts the last at the last. There is no dropout: dropout_p above 0 is refused.
    """
    name = "scaled_dot_product_attention"
    for argument, tensor in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, argument, tensor)
        if tensor.dim() < 2:
            raise RankError(name, argument, tensor.dim(), "at least 2: (..., tokens, head size)")
    check_flag(name, "is_causal", is_causal)
    check_flag(name, "enable_gqa", enable_gqa)
    if not isinstance(dropout_p, (int, float)) or dropout_p != 0.0:
        remedy = "Call torch.nn.functional.scaled_dot_product_attention where dropout is on"
        raise ParameterError(name, "dropout_p", dropout_p, "0.0: there is no dropout here", remedy)
    if is_causal and attn_mask is not None:
        raise ParameterError(name, "is_causal", is_causal, "False beside a mask", "Put both into attn_mask")
    if query.dim() == 2:
        return scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask, 0.0, is_causal, scale, enable_gqa
        )[0]
    query, key, value = _heads(name, query, key, value, enable_gqa)
    M, N, right = query.shape[-2], key.shape[-2], None
    if is_causal and N > M:  # no query sees the rest
        key, value = key[..., :M, :], value[..., :M, :]
    elif is_causal and N < M:
        right, is_causal = M - N, False
    if attn_mask is not None:
        check_tensor(name, "attn_mask", attn_mask, "a torch.Tensor or None")
        added = _added(name, attn_mask, query.dtype)
        attn_mask = _expanded(name, "attn_mask", added, (*query.shape[:-1], N))
    return _call(query, key, value, attn_mask, None, is_causal, scale, None, right, None)[0]


def _added(op: str, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as what is added to the scores."""
    if mask.is_floating_point():
        return mask.to(dtype)
    if mask.dtype != torch.bool:
        raise DtypeError(op, "attn_mask", arguments.dtype_name(mask.dtype), f"bool or that of query, {dtype}")
    own = dtype if dtype.is_floating_point else torch.float32  # the op names a query of integers
    return torch.zeros((), dtype=own, device=mask.device).masked_fill(mask.logical_not(), -torch.inf)


def _expanded(op: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    check_tensor(op, name, tensor)
    try:
        return tensor.expand(shape)
    except RuntimeError:
        expected = f"a shape that broadcasts to {tuple(shape)}"
        raise ShapeError(op, name, tuple(tensor.shape), expected) from None


def _heads(
    name: str, query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Leading dimensions broadcast as torch does it, and heads too where none are shared."""
    tensors = {"query": query, "key": key, "value": value}
    keep = 3 if enable_gqa else 2
    if len({tensor.shape[:-2] for tensor in tensors.values()}) == 1 or query.dim() < 3:
        return query, key, value
    try:
        lead = torch.broadcast_shapes(*(tensor.shape[:-keep] for tensor in tensors.values()))
    except RuntimeError:
        expected = f"leading dimensions that broadcast with those of the query, {tuple(query.shape)}"
        remedy = "" if enable_gqa else "Pass enable_gqa=True where query heads share key heads"
        raise ShapeError(name, "key", tuple(key.shape), expected, remedy) from None
    query, key, value = (tensor.expand(*lead, *tensor.shape[-keep:]) for tensor in tensors.values())
    return query, key, value


def _written(out: Tensor, o: Tensor, tensors: tuple[Any, ...]) -> Tensor:
    if not torch.compiler.is_compiling():
        if fast_path.has_transform():
            raise batching.no_out("attention")
        if not isinstance(o, Tensor):
            raise OutputError(
                "attention", "out", "was given beside another library's arrays", "none beside them"
            )
        arguments.check_out(_op.spec, out, o.shape, o.dtype, tensors)
    return out.copy_(o)


def normalize_window(op: str, window: Any, causal: bool) -> tuple[int | None, int | None]:
    """How many keys a query sees to the left and to the right of its own; None is no limit."""
    check_flag(op, "causal", causal)
    if window is None:
        return None, None
    if isinstance(window, int) and not isinstance(window, bool) and window >= 0:
        window = window, 0 if causal else window
    pair = window if isinstance(window, (tuple, list)) and len(window) == 2 else None
    if pair is None or not all(each is None or (type(each) is int and each >= -1) for each in pair):
        expected = "a number of keys, a pair of them (left, right) in which None is no limit, or None"
        raise ParameterError(op, "window", window, expected)
    # No sequence has as many keys as 2**62: such a side is no limit, and sums with it stay within 64 bits.
    left, right = (None if each is None or each == -1 or each >= 2**62 else each for each in pair)
    return left, right


def cast_sinks(sinks: Any, q: Any) -> Any:
    """Sinks in the type of the statistics, float32 or for float64 its own."""
    if not isinstance(sinks, Tensor) or not isinstance(q, Tensor) or sinks.layout is not torch.strided:
        return sinks  # the op's checks name what is wrong
    return sinks.to(torch.float64 if q.dtype == torch.float64 else torch.float32)
