"""Gated activations, act(gate) * up: of two tensors, of halves of one, and of a product with one weight."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from portable.integrations.inductor import reading
from portable.integrations.inductor.reading import View, argument, binary, op, tensor
from portable.integrations.inductor.rewriting import Match, NotTaken

_OP_OF = {"silu": "silu_and_mul", "gelu": "gelu_and_mul", "gelu_tanh": "gelu_tanh_and_mul"}


def gated_activation(node: Node, view: View) -> Match | None:
    """The halves of one tensor by portable.gated_activation, two tensors by portable.swiglu."""
    for name, gate, up, nodes in _gated(node):
        halves = reading.half(gate), reading.half(up)
        if (
            halves[0]
            and halves[1]
            and halves[0][0] is halves[1][0]
            and (halves[0][1], halves[1][1]) == (0, 1)
        ):
            return _of_halves(name, node, halves[0][0], nodes)
    for name, gate, up, nodes in _gated(node):
        if not _rows(gate, up):
            continue
        if name != "silu":
            raise NotTaken(
                f"no op takes {name} of one tensor times another; make both by one linear, [gate | up]"
            )
        return Match((gate, up), (node,), nodes, torch.ops.portable.swiglu.default, "portable.swiglu")
    return None


def gated_linear(node: Node, view: View, always: bool) -> Match | None:
    """act(x @ gate.T) * (x @ up.T), gate and up of one weight, by portable.gated_linear.

    always: where a gradient is wanted too, for which the op computes both products again."""
    for name, gate, up, nodes in _gated(node):
        found = _one_product(gate, up) or _two_products(gate, up)
        if found is None:
            continue
        x, weight, more = found
        if sum(user not in {*nodes, *more} for each in more for user in each.users):
            raise NotTaken("what the linear makes is used elsewhere too")
        result = tensor(node)
        if not always and result is not None and result.requires_grad:
            raise NotTaken("its gradient would compute both products again; only=['gated_linear'] takes it")

        def compute(x: Any, weight: Any, name: str = name) -> Any:
            return torch.ops.portable.gated_linear.default(x, weight.unflatten(0, (2, -1)), name)

        return Match((x, weight), (node,), (*nodes, *more), compute, f"portable.gated_linear, {name}")
    return None


def _gated(node: Node) -> list[tuple[str, Node, Node, tuple[Node, ...]]]:
    """(activation, gate, up, nodes) of act(gate) * up, in both orders."""
    product = binary(node, "mul")
    if product is None:
        return []
    found = []
    for acted, up in (product, product[::-1]):
        activation = _activation(acted)
        if activation and tensor(up) is not None and _dtype(activation[1]) == _dtype(up):
            name, gate, inner = activation
            found.append((name, gate, up, (node, *inner)))
    return found


def _activation(node: Any) -> tuple[str, Node, tuple[Node, ...]] | None:
    """(name, x, nodes) of silu(x), x * sigmoid(x) and both gelus, where nothing else uses what is between."""
    name = op(node)
    if name == "silu" and not argument(node, 1, "inplace", False):
        found = "silu", node.args[0], (node,)
    elif name == "gelu":
        kind = argument(node, 1, "approximate", "none")
        found = {"none": "gelu", "tanh": "gelu_tanh"}.get(kind, ""), node.args[0], (node,)
    elif (product := binary(node, "mul")) is not None:
        for x, other in (product, product[::-1]):
            if op(other) == "sigmoid" and other.args[0] is x and reading.sole_user(other) is node:
                break
        else:
            return None
        found = "silu", x, (node, other)
    else:
        return None
    if tensor(found[1]) is None or not found[0]:
        return None
    return found if reading.sole_user(node) is not None else None


def _of_halves(name: str, node: Node, packed: Node, nodes: tuple[Node, ...]) -> Match:
    def compute(x: Any) -> Any:
        return torch.ops.portable.gated_activation.default(x.unflatten(-1, (2, -1)), name)

    return Match((packed,), (node,), nodes, compute, f"portable.{_OP_OF[name]}")


def _rows(gate: Node, up: Node) -> bool:
    one, two = tensor(gate), tensor(up)
    return one is not None and two is not None and one.dim() > 0 and reading.same(one.shape, two.shape)


def _one_product(gate: Node, up: Node) -> tuple[Node, Node, tuple[Node, ...]] | None:
    """(x, weight, nodes) of the halves of linear(x, weight)."""
    first, second = reading.half(gate), reading.half(up)
    if not first or not second or first[0] is not second[0] or (first[1], second[1]) != (0, 1):
        return None
    found = _linear(first[0])
    return found and (*found, (first[0], *_parts(gate, up)))


def _two_products(gate: Node, up: Node) -> tuple[Node, Node, tuple[Node, ...]] | None:
    """(x, weight, nodes) of linear(x, w) and linear(x, v), w and v the halves of one weight's rows."""
    one, two = _linear(gate), _linear(up)
    if one is None or two is None or one[0] is not two[0]:
        return None
    first, second = (_half_of_rows(each[1]) for each in (one, two))
    if not first or not second or first[0] is not second[0] or (first[1], second[1]) != (0, 1):
        return None
    return one[0], first[0], (gate, up)


def _half_of_rows(node: Any) -> tuple[Node, int] | None:
    parts: Any = node.args[0] if op(node) == "getitem" else None
    made = reading.value(parts)
    if op(parts) not in ("chunk", "split") or not isinstance(made, (tuple, list)) or len(made) != 2:
        return None
    if argument(parts, 2, "dim", 0) not in (0, -2) or not reading.same(made[0].shape, made[1].shape):
        return None
    return parts.args[0], node.args[1]


def _linear(node: Any) -> tuple[Node, Node] | None:
    """(x, weight) of linear(x, weight) without a bias."""
    if op(node) != "linear" or argument(node, 2, "bias") is not None:
        return None
    x, weight = argument(node, 0, "input"), argument(node, 1, "weight")
    made = tensor(weight)
    return (x, weight) if tensor(x) is not None and made is not None and made.dim() == 2 else None


def _parts(gate: Node, up: Node) -> tuple[Node, ...]:
    """The halves, and the call of chunk or split that made them."""
    calls = {each.args[0]: None for each in (gate, up) if op(each.args[0]) in ("chunk", "split")}
    return (gate, up, *(each for each in calls if isinstance(each, Node)))


def _dtype(node: Any) -> torch.dtype | None:
    found = tensor(node)
    return None if found is None else found.dtype
