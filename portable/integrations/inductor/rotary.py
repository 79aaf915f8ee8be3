"""Rotary position embedding of queries and keys, in one launch where both are rotated by the same tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

import portable
from portable.integrations.inductor import reading
from portable.integrations.inductor.reading import View, argument, binary, op, tensor
from portable.integrations.inductor.rewriting import Match, NotTaken, call


@dataclass(frozen=True)
class Rotation:
    """x rotated by tables as they are broadcast over it. whole: tables hold every column twice."""

    x: Node
    cos: Node
    sin: Node
    out: Node
    nodes: tuple[Node, ...]
    whole: bool


def rope(node: Node, view: View) -> Match | None:
    """The half-split rotation, of one tensor or of the next two of the same tables, by portable.rope."""
    first = _rotation(node)
    if first is None:
        return None
    heads_first = _checked(first, view)
    alone = _match((first,), heads_first)
    for other in _others(first, view):
        second = _rotation(other)
        if second is not None and _together(first, second):
            pair = _match((first, second), heads_first)
            return Match(pair.inputs, pair.outputs, pair.nodes, pair.compute, pair.note, alone=(alone,))
    return alone


def _match(rotations: Sequence[Rotation], heads_first: bool) -> Match:
    whole = rotations[0].whole

    def compute(cos: Any, sin: Any, *heads: Any) -> Any:
        cos, sin = (_rows(each, heads_first, whole) for each in (cos, sin))
        if heads_first:
            heads = tuple(each.transpose(1, 2) for each in heads)
        q, k = (*heads, None)[:2]
        made = call(portable.rope, q, k, cos, sin)
        results = (made,) if k is None else (made[0], made[1])
        return tuple(each.transpose(1, 2) if heads_first else each for each in results)

    return Match(
        (rotations[0].cos, rotations[0].sin, *(each.x for each in rotations)),
        tuple(each.out for each in rotations),
        tuple(node for each in rotations for node in each.nodes), compute,
        "portable.rope" + (", queries and keys" if len(rotations) == 2 else ""),
    )  # fmt: skip


def _rows(table: Any, heads_first: bool, whole: bool) -> Any:
    """A table of 4 dimensions as (batch or 1, tokens, pairs)."""
    table = table.squeeze(1 if heads_first else 2)
    return table.chunk(2, -1)[0] if whole else table


def _checked(rotation: Rotation, view: View) -> bool:
    """Whether the heads stand before the tokens; NotTaken for what the op does not have."""
    x, tables = tensor(rotation.x), [tensor(rotation.cos), tensor(rotation.sin)]
    assert x is not None
    if x.dim() != 4 or any(each is None or each.dim() != 4 for each in tables):
        raise NotTaken("its heads or its tables are not of 4 dimensions")
    if any(each.requires_grad for each in tables if each is not None):
        raise NotTaken("its tables want a gradient, of which the op has none")
    if rotation.whole:
        for name, each in (("cos", rotation.cos), ("sin", rotation.sin)):
            _check_halves(name, each, view)
    for tokens, heads in ((2, 1), (1, 2)):
        if all(
            reading.same(each.shape[heads], 1) and reading.same(each.shape[tokens], x.shape[tokens])
            and (reading.same(each.shape[0], 1) or reading.same(each.shape[0], x.shape[0]))
            for each in tables
        ):  # fmt: skip
            return tokens == 2
    raise NotTaken("its tables have not one row for each token")


def _check_halves(name: str, table: Node, view: View) -> None:
    """That both halves of a table are equal: both are one tensor, of which everything is computed alike."""
    node: Any = table
    while isinstance(node, Node):
        if view.is_written(node):
            break
        if op(node) == "cat":
            parts = argument(node, 0, "tensors")
            made = tensor(node)
            if (
                len(parts) == 2
                and parts[0] is parts[1]
                and reading.is_last(argument(node, 1, "dim", 0), made.dim())
            ):  # type: ignore[union-attr]
                return
            break
        if op(node) in ("cos", "sin", "unsqueeze", "contiguous", "detach", "clone") or reading.is_cast(node):
            if op(node) == "unsqueeze" and argument(node, 1, "dim") in (-1, tensor(node).dim() - 1):  # type: ignore[union-attr]
                break
            node = node.args[0]
        elif (product := binary(node, "mul")) and any(map(_is_scalar, product)):
            node = product[0] if _is_scalar(product[1]) else product[1]
        elif op(node) == "getitem" and isinstance(node.args[1], tuple) and node.args[1][-1] == slice(None):
            node = node.args[0]
        else:
            break
    raise NotTaken(
        f"nothing in the graph says that both halves of its {name} are equal; compile what makes cos and sin"
    )


def _is_scalar(each: Any) -> bool:
    return isinstance(each, (int, float)) or ((made := tensor(each)) is not None and made.dim() == 0)


def _together(first: Rotation, second: Rotation) -> bool:
    """Whether one call rotates both."""
    q, k = tensor(first.x), tensor(second.x)
    if first.cos is not second.cos or first.sin is not second.sin or first.whole != second.whole:
        return False
    assert q is not None and k is not None
    heads = [1, 2]
    alike = sum(reading.same(q.shape[each], k.shape[each]) for each in heads)
    return (
        q.dim() == k.dim() and q.dtype == k.dtype and alike >= 1
        and reading.same(q.shape[0], k.shape[0]) and reading.same(q.shape[-1], k.shape[-1])
    )  # fmt: skip


def _others(first: Rotation, view: View) -> list[Node]:
    """What is computed next from the same cosines, and may be a rotation."""
    reached, users = set[Node](), {first.cos}
    for _ in range(3):
        users = {user for each in users for user in each.users}
        reached |= users
    after = view.place(first.out)
    return sorted((each for each in reached if view.place(each) > after), key=view.place)


def _rotation(node: Any) -> Rotation | None:
    """x * cos + rotate_half(x) * sin, or [a * cos - b * sin | b * cos + a * sin] of x = [a | b]."""
    found = _by_rotated_half(node) or _by_halves(node)
    if found is None:
        return None
    source, following = reading.widened(found.x), reading.sole_user(found.out)
    if source is not found.x and following is not None and reading.is_cast(following):
        one, two = tensor(source), tensor(following)
        if one is not None and two is not None and one.dtype == two.dtype:
            nodes = (*found.nodes, found.x, following)
            return Rotation(source, found.cos, found.sin, following, nodes, found.whole)
    return found


def _by_rotated_half(node: Any) -> Rotation | None:
    terms = binary(node, "add")
    for one, two in (terms, terms[::-1]) if terms else ():
        plain, turned = binary(one, "mul"), binary(two, "mul")
        for half, sin in (turned, turned[::-1]) if plain and turned else ():
            x, nodes = _rotated_half(half)
            if x is None or plain is None or x not in plain:
                continue
            cos = plain[1] if plain[0] is x else plain[0]
            if tensor(cos) is None or tensor(sin) is None:
                continue
            return Rotation(x, cos, sin, node, (node, one, two, *nodes), whole=True)
    return None


def _rotated_half(node: Any) -> tuple[Node | None, tuple[Node, ...]]:
    """x of cat((-x2, x1)), x = [x1 | x2]."""
    if op(node) != "cat" or not (parts := _two_parts(node)):
        return None, ()
    turned, first = parts
    if op(turned) != "neg":
        return None, ()
    one, two = reading.half(first), reading.half(turned.args[0])
    if not one or not two or one[0] is not two[0] or (one[1], two[1]) != (0, 1):
        return None, ()
    return one[0], (node, turned, turned.args[0], first, *_calls(first, turned.args[0]))


def _by_halves(node: Any) -> Rotation | None:
    if op(node) != "cat" or not (parts := _two_parts(node)):
        return None
    left, right = binary(parts[0], "sub"), binary(parts[1], "add")
    if left is None or right is None:
        return None
    products = [binary(each, "mul") for each in (*left, *right)]
    if any(each is None for each in products):
        return None
    for a, cos in _orders(products[0]):
        one = reading.half(a)
        for b, sin in _orders(products[1]):
            two = reading.half(b)
            if not one or not two or one[0] is not two[0] or (one[1], two[1]) != (0, 1):
                continue
            if {frozenset(each) for each in products[2:]} == {frozenset((b, cos)), frozenset((a, sin))}:  # type: ignore[arg-type]
                nodes = (node, *parts, *left, *right, a, b, *_calls(a, b))
                return Rotation(one[0], cos, sin, node, nodes, whole=False)
    return None


def _orders(product: Any) -> tuple[Any, Any]:
    return product, product[::-1]


def _two_parts(node: Node) -> Any:
    """The two tensors that are joined along the last dimension."""
    parts, made = argument(node, 0, "tensors"), tensor(node)
    if made is None or len(parts) != 2 or not reading.is_last(argument(node, 1, "dim", 0), made.dim()):
        return None
    return parts


def _calls(*halves: Any) -> tuple[Node, ...]:
    """The calls of chunk or split that made them."""
    return tuple({each.args[0]: None for each in halves if op(each.args[0]) in ("chunk", "split")})
