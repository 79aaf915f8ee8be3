"""RMS norms, alone and after the addition of a residual."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from portable.integrations.inductor import reading
from portable.integrations.inductor.reading import View, argument, binary, number, op, tensor
from portable.integrations.inductor.rewriting import Match, NotTaken


@dataclass(frozen=True)
class Norm:
    """An RMS norm as far as it is read: `out` is x normalised, times the weight where there is one."""

    x: Node
    eps: float
    out: Node
    nodes: tuple[Node, ...]
    weight: Node | None = None
    offset: float = 0.0
    cast_before_weight: bool = False

    @property
    def params(self) -> dict[str, Any]:
        return {"eps": self.eps, "weight_offset": self.offset, "cast_before_weight": self.cast_before_weight}

    @property
    def note(self) -> str:
        offset = f", weight_offset={self.offset:g}" if self.offset else ""
        return offset + (", cast_before_weight" if self.cast_before_weight else "")


def rms_norm(node: Node, view: View) -> Match | None:
    """rms_norm(x) by portable.rms_norm; rms_norm(a + b), and the sum, by portable.fused_add_rms_norm."""
    norm = _norm(node)
    if norm is None:
        return None
    terms = binary(norm.x, "add")
    if terms is None or not _alike(*terms):
        return _alone(norm)
    weights, params = () if norm.weight is None else (norm.weight,), norm.params

    def compute(a: Any, b: Any, *weight: Any) -> Any:
        made = torch.ops.portable.fused_add_rms_norm.default(a, b, *(weight or (None,)), **params)
        return made[0], made[1]

    return Match(
        (*terms, *weights), (norm.out, norm.x), (*norm.nodes, norm.x), compute,
        f"portable.fused_add_rms_norm{norm.note}", alone=(_alone(norm),),
    )  # fmt: skip


def _alone(norm: Norm) -> Match:
    weights, params = () if norm.weight is None else (norm.weight,), norm.params

    def compute(x: Any, *weight: Any) -> Any:
        return torch.ops.portable.rms_norm.default(x, *(weight or (None,)), **params)

    return Match((norm.x, *weights), (norm.out,), norm.nodes, compute, f"portable.rms_norm{norm.note}")


def _alike(a: Any, b: Any) -> bool:
    """Whether two terms are tensors of one shape and dtype."""
    one, two = tensor(a), tensor(b)
    return (
        a is not b
        and one is not None
        and two is not None
        and one.dtype == two.dtype
        and reading.same(one.shape, two.shape)
    )


def _norm(node: Node) -> Norm | None:
    """The norm whose normalised value is `node`, with weight and casts that follow it."""
    norm = _of_torch(node) if op(node) == "rms_norm" else _written_out(node)
    if norm is None:
        return None
    x = tensor(norm.x)
    if _dtype(node) is torch.float64 and x.dtype is not torch.float64:
        raise NotTaken("it computes in float64, where the op does in float32")
    if norm.weight is None:
        norm = _with_weight(norm)
    out = tensor(norm.out)
    if out is not None and out.dtype != x.dtype:
        following = reading.sole_user(norm.out)
        if following is None or not reading.is_cast(following) or _dtype(following) != x.dtype:
            raise NotTaken(f"its result stays {out.dtype}, of an input of {x.dtype}".replace("torch.", ""))
        norm = replace(norm, out=following, nodes=(*norm.nodes, following))
    return norm


def _of_torch(node: Node) -> Norm | None:
    """torch's own function."""
    given = argument(node, 0, "input")
    shape, weight = argument(node, 1, "normalized_shape"), argument(node, 2, "weight")
    x = tensor(given)
    if x is None:
        return None
    if not isinstance(shape, (tuple, list)) or len(shape) != 1:
        raise NotTaken(f"it normalises over {shape}, where the op has the last dimension")
    eps = argument(node, 3, "eps")
    if eps is None:
        eps = torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps
    if number(eps) is None:
        raise NotTaken("its eps is no constant")
    source = reading.widened(given)
    own = reading.widened(weight) if isinstance(weight, Node) and source is not given else weight
    return Norm(source, float(eps), node, _between(node, source, own), own)


def _written_out(node: Node) -> Norm | None:
    """x * rsqrt(mean(x ** 2) + eps), in the spellings of modelling code."""
    for name in ("mul", "div"):
        operands = binary(node, name)
        orders = [operands, operands[::-1]] if operands else []
        for given, scale in orders if name == "mul" else orders[:1]:
            mean = _root_of(scale, "sqrt" if name == "div" else "rsqrt")
            if mean is None:
                continue
            source, eps = _mean_of_squares(mean)
            if source is None or reading.widened(source) is not reading.widened(given):
                continue
            if eps is None:
                raise NotTaken("its eps is no constant")
            x = reading.widened(given)
            nodes = _between(node, x)
            shared = [each for each in nodes if each is not node and not reading.is_cast(each)
                      and not set(each.users) <= set(nodes)]  # fmt: skip
            if shared:
                raise NotTaken(f"its {op(shared[-1])} is used elsewhere too")
            return Norm(x, eps, node, nodes)
    return None


def _root_of(node: Any, name: str) -> Any:
    """v of rsqrt(v), 1 / sqrt(v), v ** -0.5; or of sqrt(v)."""
    if op(node) == name:
        return node.args[0]
    if (power := binary(node, "pow")) and number(power[1]) == (0.5 if name == "sqrt" else -0.5):
        return power[0]
    if name == "rsqrt":
        if (quotient := binary(node, "div")) and number(quotient[0]) == 1:
            return _root_of(quotient[1], "sqrt")
        if op(node) == "reciprocal":
            return _root_of(node.args[0], "sqrt")
    return None


def _mean_of_squares(node: Any) -> tuple[Any, float | None]:
    """(x, eps) of mean(x ** 2, -1, keepdim=True) + eps; x is None where it is anything else."""
    eps: Any = 0.0
    if (terms := binary(node, "add")) is not None:
        node, eps = terms if op(terms[0]) == "mean" else terms[::-1]
    if op(node) != "mean" or argument(node, 2, "keepdim", False) is not True:
        return None, None
    source = reading.squared(node.args[0])
    x = tensor(source)
    if (
        x is None
        or not reading.is_last(argument(node, 1, "dim"), x.dim())
        or node.kwargs.get("dtype") is not None
    ):
        return None, None
    return source, number(eps)


def _with_weight(norm: Norm) -> Norm:
    """The norm with the product that follows it, before or after a cast to its input's dtype."""
    x = tensor(norm.x)
    first, before = norm.out, False
    following = reading.sole_user(first)
    casts: tuple[Node, ...] = ()
    if following is not None and reading.is_cast(following) and _dtype(following) == x.dtype:
        before = _dtype(first) != x.dtype
        first, casts = following, (following,)
        following = reading.sole_user(following)
    product = binary(following, "mul")
    factor = None
    if product is not None and following is not None:
        factor = product[1] if product[0] is first else product[0]
    weight, offset, more = _weight(factor, x.shape[-1])
    if weight is None or following is None:
        return replace(norm, out=first, nodes=(*norm.nodes, *casts))
    if before and _dtype(following) != x.dtype:  # promoted by a wider weight: the norm ends at the cast
        raise NotTaken(
            f"its weight of {_dtype(factor)} makes a result of {_dtype(following)}".replace("torch.", "")
        )
    nodes = (*norm.nodes, *casts, *more, following)
    return replace(norm, out=following, nodes=nodes, weight=weight, offset=offset, cast_before_weight=before)


def _weight(node: Any, size: Any) -> tuple[Node | None, float, tuple[Node, ...]]:
    """(weight, offset, nodes between) of a factor (size,), offset + weight or the weight itself."""
    found = tensor(node)
    if found is None or found.dim() != 1 or not reading.same(found.shape[0], size):
        return None, 0.0, ()
    source = reading.widened(node)
    for weight, offset in _sums(source):
        given = reading.widened(weight)
        if tensor(given) is not None and number(offset) is not None:
            return given, float(offset), _between(node, given)
    return source, 0.0, _between(node, source)


def _sums(node: Any) -> list[tuple[Any, Any]]:
    terms = binary(node, "add")
    return [] if terms is None else [terms, terms[::-1]]


def _between(node: Any, *sources: Any) -> tuple[Node, ...]:
    """The nodes that compute `node` from `sources`, itself included."""
    found: dict[Node, None] = {}
    todo = [node]
    while todo:
        each = todo.pop()
        if isinstance(each, Node) and each not in sources and each not in found:
            if each.op in ("placeholder", "get_attr"):
                continue
            found[each] = None
            todo += each.all_input_nodes
    return tuple(found)


def _dtype(node: Any) -> torch.dtype | None:
    found = tensor(node)
    return None if found is None else found.dtype
