"""Cross entropy of a linear layer's logits, which are then not stored."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

import portable
from portable.integrations.inductor import reading
from portable.integrations.inductor.reading import View, argument, binary, number, op, tensor
from portable.integrations.inductor.rewriting import Match, NotTaken, call


def linear_cross_entropy(node: Node, view: View) -> Match | None:
    """cross_entropy(x @ weight.T, target), in float32 or not, by portable.linear_cross_entropy."""
    if op(node) != "cross_entropy":
        return None
    logits, target = argument(node, 0, "input"), argument(node, 1, "target")
    found = _product(logits)
    if found is None:
        return None
    x, weight, softcap, nodes = found
    outside = [user for each in nodes for user in each.users if user is not node and user not in nodes]
    if outside:
        raise NotTaken("its logits are used elsewhere too")
    rows, result, classes = tensor(x), tensor(node), tensor(target)
    assert rows is not None and result is not None
    given = tensor(logits)
    if classes is None or given is None or given.dim() != 2 or classes.dim() != 1:
        raise NotTaken("its logits are not (rows, classes) with a class for each row")
    if str(classes.dtype) not in ("torch.int64", "torch.int32"):
        raise NotTaken("its targets are probabilities")
    if (
        node.kwargs.get("size_average") is not None
        or node.kwargs.get("reduce") is not None
        or len(node.args) > 3
    ):
        raise NotTaken("it has arguments that torch deprecated")
    smoothing = node.kwargs.get("label_smoothing", 0.0)
    if number(smoothing) is None:
        raise NotTaken("its label_smoothing is no constant")
    class_weight = argument(node, 2, "weight")
    if class_weight is not None and tensor(class_weight).requires_grad:  # type: ignore[union-attr]
        raise NotTaken("its class weight wants a gradient")
    params: dict[str, Any] = {
        "ignore_index": node.kwargs.get("ignore_index", -100),
        "reduction": node.kwargs.get("reduction", "mean"),
        "label_smoothing": number(smoothing), "softcap": softcap,
    }  # fmt: skip
    dtype = result.dtype

    def compute(x: Any, weight: Any, target: Any, *class_weight: Any) -> Any:
        more = {"class_weight": class_weight[0]} if class_weight else {}
        rows = x.flatten(0, -2)
        return call(portable.linear_cross_entropy, rows, weight, target, **params, **more).to(dtype)

    weights = () if class_weight is None else (class_weight,)
    note = "portable.linear_cross_entropy" + (f", softcap={softcap:g}" if softcap else "")
    return Match((x, weight, target, *weights), (node,), (node, *nodes), compute, note)


def _product(node: Any) -> tuple[Node, Node, float | None, tuple[Node, ...]] | None:
    """(x, weight, softcap, nodes) of x @ weight.T, through casts, caps and views as (rows, classes)."""
    nodes: list[Node] = []
    softcap = None
    while isinstance(node, Node):
        made = tensor(node)
        if op(node) == "linear":
            x, weight = argument(node, 0, "input"), argument(node, 1, "weight")
            if tensor(x) is None or tensor(weight) is None:
                return None
            if argument(node, 2, "bias") is not None:
                raise NotTaken("the linear that makes its logits has a bias")
            return x, weight, softcap, (*nodes, node)
        if (product := binary(node, "matmul")) is not None:
            x, turned = product
            if op(turned) not in ("t", "transpose", "getattr") or tensor(x) is None:
                return None
            weight = turned.args[0]
            back = tensor(weight)
            if (
                back is None
                or back.dim() != 2
                or turned.args[1:] not in ((), (0, 1), (1, 0), (-1, -2), (-2, -1), ("T",), ("mT",))
            ):
                return None
            return x, weight, softcap, (*nodes, node)
        if made is None:
            return None
        if reading.is_cast(node):
            before = tensor(node.args[0])
            if before is None or made.dtype.itemsize < before.dtype.itemsize:
                return None
            nodes.append(node)
            node = node.args[0]
        elif op(node) in ("view", "reshape", "flatten"):
            before = tensor(node.args[0])
            if before is None or not made.dim() or not reading.same(made.shape[-1], before.shape[-1]):
                return None
            nodes.append(node)
            node = node.args[0]
        elif softcap is None and (capped := _capped(node)) is not None:
            softcap, node, more = capped
            nodes += more
        elif op(node) == "getitem" or op(node) == "contiguous":
            source: Any = node
            while op(source) in ("getitem", "contiguous", "view", "reshape") or reading.is_cast(source):
                source = source.args[0]
            if op(source) in ("linear", "matmul"):
                raise NotTaken(
                    "its logits are sliced after the linear; slice what it is given, or pad the targets"
                )
            return None
        else:
            return None
    return None


def _capped(node: Node) -> tuple[float, Node, tuple[Node, ...]] | None:
    """(cap, x, nodes) of cap * tanh(x / cap)."""
    product = binary(node, "mul")
    for capped, cap in (product, product[::-1]) if product else ():
        quotient = binary(capped.args[0], "div") if number(cap) and op(capped) == "tanh" else None
        if quotient and quotient[1] == cap and isinstance(quotient[0], Node):
            return float(cap), quotient[0], (node, capped, capped.args[0])
    return None
