"""A pattern found, checked, and replaced by one call of an op."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer

from portable.errors import PortableError
from portable.integrations.inductor import reading
from portable.integrations.inductor.reading import View


@dataclass(frozen=True)
class Match:
    """What stands for what.

    compute: `outputs` from `inputs`, on fake tensors or on nodes of the graph. nodes: all that computed them
    before. note: the op, for the report. alone: what is taken where this cannot be placed."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    nodes: tuple[Node, ...]
    compute: Callable[..., Any]
    note: str
    alone: tuple[Match, ...] = ()


class NotTaken(Exception):
    """Nearly a pattern, and why it is not one; `note` is of the op that it would have been."""


_TORCH = str(Path(torch.__file__).parent)
Pattern = Callable[[Node, View], "Match | None"]


@dataclass
class Found:
    """What a pass replaced and nearly did: (part, place in the code, note)."""

    replaced: list[tuple[str, str, str]] = field(default_factory=list)
    left: list[tuple[str, str, str]] = field(default_factory=list)


def rewrite(graph: Graph, patterns: Iterable[tuple[str, Pattern]]) -> Found:
    """Replace in the graph what the patterns, by part, find; those of a node are tried in their order."""
    found, view = Found(), View(graph)
    if view.transformed:
        found.left.append(("other", "the graph", "it is under a transform of torch.func"))
        return found
    for part, pattern in patterns:
        for node in [*graph.nodes]:
            if node.op not in ("call_function", "call_method") or node._erased:
                continue
            try:
                match = pattern(node, view)
                if match is not None:
                    _replace(match, view, found, part)
                    view.refresh()
            except NotTaken as reason:
                found.left.append((part, where(node), str(reason)))
    return found


def _replace(match: Match, view: View, found: Found, part: str) -> None:
    place = _place(match, view)
    if place is None:
        if not match.alone:
            raise NotTaken("something is written in place, or a mode of torch changes, within it")
        for each in match.alone:
            _replace(each, view, found, part)
            view.refresh()
        return
    if any(map(view.in_autocast, match.outputs)):
        raise NotTaken("torch.autocast begins and ends in the graph around it")
    _check(match, view)
    found.replaced.append((part, where(match.outputs[0]), match.note))
    tracer = GraphAppendingTracer(view.graph)
    last = place.prev
    with view.graph.inserting_before(place):
        made = match.compute(*(Proxy(node, tracer) for node in match.inputs))
    results = made if isinstance(made, tuple) else (made,)
    new, each = [], last.next
    while each is not place:
        new.append(each)
        each = each.next
    _value(new, match.outputs[0])
    for output, result in zip(match.outputs, results, strict=True):
        output.replace_all_uses_with(result.node)
    for node in sorted(match.nodes, key=view.place, reverse=True):
        if not node.users:
            view.graph.erase_node(node)


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """function(*args, **kwargs), or one node of the graph for it: for what is no operator of torch."""
    tracer = next((each.tracer for each in (*args, *kwargs.values()) if isinstance(each, Proxy)), None)
    if tracer is None:
        return function(*args, **kwargs)
    return tracer.create_proxy("call_function", function, args, kwargs)


def _place(match: Match, view: View) -> Node | None:
    """The node before which the new call stands: after its inputs, before what uses its outputs."""
    users = [view.place(user) for output in match.outputs for user in output.users]
    upper = min([*users, max(view.place(output) for output in match.outputs)])
    if max(view.place(node) for node in match.inputs) >= upper:
        return None
    if len(match.outputs) > 1 and any(
        view.depends(node, out) for out in match.outputs for node in match.inputs
    ):
        return None
    place = view.node_at(upper)
    computing = [*match.nodes, place] if place.op != "output" else [*match.nodes]
    if not view.one_mode(computing) or not view.unwritten(computing, match.inputs):
        return None
    return place


def _check(match: Match, view: View) -> None:
    """That the op takes the call, and answers tensors like those that it stands for."""
    inputs = [reading.tensor(node) for node in match.inputs]
    outputs = [reading.tensor(node) for node in match.outputs]
    if any(each is None for each in (*inputs, *outputs)):
        raise NotTaken("Dynamo gave no example value")
    try:
        with _faked(inputs[0]):
            made = match.compute(*inputs)
    except (PortableError, ValueError, TypeError, RuntimeError) as error:
        raise NotTaken(f"the op does not take it: {str(error).splitlines()[0]}") from None
    results = made if isinstance(made, tuple) else (made,)
    for node, result, output in zip(match.outputs, results, outputs, strict=True):
        if result.dtype != output.dtype:
            raise NotTaken(f"its result is {_name(output.dtype)}, where the op's is {_name(result.dtype)}")
        if not reading.same(result.shape, output.shape):
            raise NotTaken(f"its result is {[*output.shape]}, where the op's is {[*result.shape]}")
        if not _laid_out_alike(result, output) and not _is_free(node, result, view, match.nodes):
            raise NotTaken(f"its result has strides {output.stride()}, where the op's has {result.stride()}")


def _laid_out_alike(a: Tensor, b: Tensor) -> bool:
    return all(
        reading.same(size, 1) or reading.same(one, other)
        for size, one, other in zip(a.shape, a.stride(), b.stride(), strict=True)
    )


def _is_free(node: Node, made: Any, view: View, but: Sequence[Node], depth: int = 8) -> bool:
    """Whether `node` may have the strides of `made`: what follows copies it, or is the same as before."""
    for user in node.users:
        if user in but:
            continue
        if (
            (reading.op(user) not in _OF_ANY_STRIDES and not reading.is_cast(user))
            or view.is_written(user)
            or not depth
        ):
            return False
        before = reading.tensor(user)
        try:
            with _faked(made):
                after = _called(user, lambda each: made if each is node else reading.value(each))
        except (RuntimeError, ValueError):  # there is no such view
            return False
        if before is None or not isinstance(after, Tensor):
            return False
        if not _laid_out_alike(after, before) and not _is_free(user, after, view, but, depth - 1):
            return False
    return True


_OF_ANY_STRIDES = frozenset(
    (
        "transpose", "permute", "contiguous", "reshape", "flatten", "unsqueeze", "squeeze", "view", "linear",
        "matmul", "add", "mul", "getattr", "scaled_dot_product_attention",
    )
)  # fmt: skip


def _called(node: Node, given: Callable[[Node], Any]) -> Any:
    """What a node computes of given values."""
    args: Any = torch.fx.map_arg(node.args, given)  # type: ignore[attr-defined]
    kwargs: Any = torch.fx.map_arg(node.kwargs, given)  # type: ignore[attr-defined]
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    function: Any = node.target
    return function(*args, **kwargs)


@contextlib.contextmanager
def _faked(example: Any) -> Any:
    """The mode of Dynamo's fake tensors, in which no question about a size becomes a guard."""
    mode = getattr(example, "fake_mode", None)
    with contextlib.ExitStack() as stack:
        if mode is not None:
            stack.enter_context(mode)
            if mode.shape_env is not None:
                stack.enter_context(mode.shape_env.suppress_guards())
        yield


def _value(nodes: Sequence[Node], old: Node) -> None:
    """Example values of new nodes, and the old one's place in the code."""
    with _faked(reading.value(old)):
        for node in nodes:
            node.meta |= {key: old.meta[key] for key in ("stack_trace", "nn_module_stack") if key in old.meta}
            node.meta["example_value"] = _called(node, reading.value)


def where(node: Node) -> str:
    """The class of the module that a node is in, and the line of code, the innermost that is not torch's."""
    lines = re.findall(r'File "([^"]+)", line (\d+), in ', node.meta.get("stack_trace") or "")
    own = [each for each in lines if not each[0].startswith(_TORCH)] or lines
    place = f"{Path(own[-1][0]).name}:{own[-1][1]}" if own else node.name
    modules = [*(node.meta.get("nn_module_stack") or {}).values()]
    kind = modules[-1][1] if modules else None
    name = kind.rpartition(".")[2] if isinstance(kind, str) else getattr(kind, "__name__", "")
    return f"{name}, {place}" if name else place


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
