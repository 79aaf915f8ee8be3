"""The graph that Dynamo hands to Inductor, read: what a call computes, however it is spelled.

The graph is of torch's Python functions and methods, before autograd and functionalization: `x.pow(2)`,
`x * x` and `torch.square(x)` are three calls, and a tensor may be written in place between two others.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true, sym_eq
from torch.nn import functional

_FUNCTIONS: dict[Any, str] = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.truediv: "div",
    operator.pow: "pow", operator.neg: "neg", operator.matmul: "matmul", operator.getitem: "getitem",
    getattr: "getattr", torch.true_divide: "div", torch.multiply: "mul", torch.concat: "cat",
    torch.mm: "matmul", functional.linear: "linear", functional.gelu: "gelu",
    functional.scaled_dot_product_attention: "scaled_dot_product_attention",
}  # fmt: skip
_NAMES = (
    "add", "sub", "mul", "div", "pow", "neg", "matmul", "square", "mean", "rsqrt", "sqrt", "reciprocal",
    "sigmoid", "tanh", "cat", "chunk", "split", "unsqueeze", "flatten", "softmax", "rms_norm", "layer_norm",
    "cross_entropy", "silu", "cos", "sin",
)  # fmt: skip
for _name in _NAMES:
    for _home in (torch, functional):
        if hasattr(_home, _name):
            _FUNCTIONS.setdefault(getattr(_home, _name), _name)
_METHODS = {"multiply": "mul", "true_divide": "div", "concat": "cat", "mm": "matmul"}
_CASTS = frozenset(("to", "type", "type_as", "float", "half", "bfloat16", "double"))
_MODES = ("_set_grad_enabled", "_enter_autocast", "_exit_autocast", "_enter_inference_mode",
          "_exit_inference_mode", "set_grad_enabled")  # fmt: skip


def op(node: Any) -> str:
    """The name of what a node calls, one for all spellings; "" for anything that is not told."""
    if not isinstance(node, Node):
        return ""
    if node.op == "call_method":
        return _METHODS.get(str(node.target), str(node.target))
    return _FUNCTIONS.get(node.target, "") if node.op == "call_function" else ""


def argument(node: Node, index: int, name: str, default: Any = None) -> Any:
    """An argument given by place or by name."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def value(node: Any) -> Any:
    """What the node had for a value as Dynamo traced it: a fake tensor, a number."""
    return node.meta.get("example_value") if isinstance(node, Node) else node


def tensor(node: Any) -> Any:
    """The fake tensor of a node, or None."""
    found = value(node)
    return found if isinstance(node, Node) and isinstance(found, Tensor) else None


def same(a: Any, b: Any) -> bool:
    """Whether sizes or shapes are equal for every call of the graph; asks without a guard."""
    if isinstance(a, (tuple, list, torch.Size)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(statically_known_true(sym_eq(a, b)))


def number(node: Any) -> float | None:
    """A number that is the same in every call, else None."""
    return float(node) if isinstance(node, (int, float)) and not isinstance(node, bool) else None


def binary(node: Any, name: str) -> tuple[Any, Any] | None:
    """The two operands of `name`, without torch's `alpha` and `rounding_mode`."""
    if op(node) != name or len(node.args) != 2 or node.kwargs:
        return None
    return node.args[0], node.args[1]


def is_cast(node: Any) -> bool:
    """Whether the node is a tensor in another dtype, or its own, and nothing else."""
    if op(node) not in _CASTS or not node.args:
        return False
    before, after = tensor(node.args[0]), tensor(node)
    return before is not None and after is not None and before.device == after.device


def uncast(node: Any) -> Any:
    """What is cast, perhaps several times: the tensor before."""
    while is_cast(node):
        node = node.args[0]
    return node


def widened(node: Any) -> Any:
    """`uncast`, as long as no cast loses anything."""
    while is_cast(node):
        before, after = tensor(node.args[0]), tensor(node)
        assert before is not None and after is not None
        if torch.promote_types(before.dtype, after.dtype) != after.dtype:
            break
        node = node.args[0]
    return node


def squared(node: Any) -> Any:
    """x of x * x, in any spelling."""
    if op(node) == "square":
        return node.args[0]
    if (power := binary(node, "pow")) and number(power[1]) == 2:
        return power[0]
    product = binary(node, "mul")
    return product[0] if product and product[0] is product[1] else None


def is_last(dims: Any, rank: int) -> bool:
    """Whether a dimension, or a list of one, is the last."""
    if isinstance(dims, (tuple, list)):
        dims = dims[0] if len(dims) == 1 else None
    return isinstance(dims, int) and dims in (-1, rank - 1)


def sole_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def half(node: Any) -> tuple[Node, int] | None:
    """(x, 0) or (x, 1) where the node is the first or second half of x's last dimension."""
    if op(node) != "getitem":
        return None
    source: Any = node.args[0]
    index: Any = node.args[1]
    if op(source) in ("chunk", "split"):
        return _half_of_parts(source, index)
    whole = tensor(source)
    if whole is None or not isinstance(index, tuple) or not whole.dim():
        return None
    full = len(index) == 2 and index[0] is Ellipsis
    leading = [each for each in index[:-1] if each != slice(None)]
    if not full and (leading or len(index) != whole.dim()):
        return None
    last, size = index[-1], whole.shape[-1]
    if not isinstance(last, slice) or last.step not in (None, 1):
        return None
    start, stop = (value(each) for each in (last.start, last.stop))
    if start in (None, 0) and stop is not None and same(stop * 2, size):
        return source, 0
    if start is not None and same(start * 2, size) and (stop is None or same(stop, size)):
        return source, 1
    return None


def _half_of_parts(parts: Node, index: Any) -> tuple[Node, int] | None:
    source: Any = parts.args[0]
    whole, made = tensor(source), value(parts)
    if whole is None or not isinstance(made, (tuple, list)) or len(made) != 2 or index not in (0, 1):
        return None
    name = (
        "chunks"
        if op(parts) == "chunk"
        else "split_size"
        if parts.op == "call_method"
        else "split_size_or_sections"
    )
    if argument(parts, 1, name) is None or not is_last(argument(parts, 2, "dim", 0), whole.dim()):
        return None
    return (source, index) if same(made[0].shape, made[1].shape) else None


class View:
    """A graph, with what may not be moved across what."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._written: set[int] = set()
        names = [getattr(node.target, "__name__", "") for node in graph.nodes]
        self.transformed = any("increment_nesting" in name for name in names)
        self.refresh()

    def refresh(self) -> None:
        """After nodes were added."""
        self._place: dict[Node, int] = {}
        self._modes: dict[Node, int] = {}
        self._writes: dict[Node, int] = {}
        modes = writes = self._depth = 0
        self._autocast: dict[Node, int] = {}
        for place, node in enumerate(self.graph.nodes):
            name = getattr(node.target, "__name__", "")
            modes += name in _MODES
            self._depth += (name == "_enter_autocast") - (name == "_exit_autocast")
            if name not in _MODES:
                for each in _written(node):
                    writes += 1
                    self._written |= {key for key in [storage(each)] if key is not None}
            self._place[node], self._modes[node], self._writes[node] = place, modes, writes
            self._autocast[node] = self._depth

    def place(self, node: Node) -> int:
        return self._place[node]

    def node_at(self, place: int) -> Node:
        return next(node for node, at in self._place.items() if at == place)

    def in_autocast(self, node: Node) -> bool:
        """Whether the graph itself turns autocast on or off around the node."""
        return self._autocast[node] > 0

    def one_mode(self, nodes: Iterable[Node]) -> bool:
        """Whether no gradient mode and no autocast begins or ends between these nodes."""
        return len({self._modes[node] for node in nodes}) == 1

    def unwritten(self, nodes: Sequence[Node], inputs: Sequence[Node]) -> bool:
        """Whether nothing is written in place between these nodes, or none of them and of their inputs."""
        if len({self._writes[node] for node in nodes}) == 1:
            return True
        return not any(self.is_written(node) for node in (*nodes, *inputs))

    def is_written(self, node: Node) -> bool:
        """Whether the tensor, or one that shares its memory, is written in place anywhere in the graph."""
        return storage(node) in self._written

    def depends(self, node: Node, on: Node) -> bool:
        """Whether `node` is computed from `on`."""
        least, seen, todo = self._place[on], set(), [node]
        while todo:
            each = todo.pop()
            if each is on:
                return True
            if each not in seen and self._place[each] > least:
                seen.add(each)
                todo += each.all_input_nodes
        return False


def storage(node: Any) -> int | None:
    """What tells the memory of a node's tensor from that of others."""
    found = tensor(node)
    try:
        return None if found is None else found.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # sparse, and subclasses without memory of their own
        return None


def _written(node: Node) -> Iterator[Any]:
    """The tensors that a node writes in place, as far as anybody can say; all of its own where nobody can."""
    target, first = node.target, node.args[:1]
    schema = getattr(target, "_schema", None)
    name = getattr(target, "__name__", str(target))
    if node.op == "call_method":
        writes = (str(target).endswith("_") and not str(target).endswith("__")) or target == "__setitem__"
    elif node.op != "call_function":
        writes = False
    elif isinstance(target, torch._ops.HigherOrderOperator):
        writes, first = True, tuple(node.all_input_nodes)
    elif isinstance(target, torch._ops.OpOverload) and schema is not None:
        writes, first = schema.is_mutable, tuple(node.all_input_nodes)
    elif isinstance(target, torch._ops.OpOverloadPacket):
        schemas = [getattr(target, each)._schema for each in target.overloads()]
        writes, first = any(each.is_mutable for each in schemas), tuple(node.all_input_nodes)
    else:
        in_place = getattr(operator, name, None) is target and name.startswith("i") and name[1:] in _OPERATORS
        writes = in_place or target is operator.setitem or (name.endswith("_") and not name.endswith("__"))
    if _is_inplace(node):
        writes = True
    if isinstance(node.kwargs.get("out"), Node):
        yield node.kwargs["out"]
    if writes:
        yield from first if all(isinstance(each, Node) for each in first) else node.all_input_nodes


def _is_inplace(node: Node) -> bool:
    """Whether torch's `inplace` is asked for, by name or by place."""
    if getattr(functional, getattr(node.target, "__name__", ""), None) is not node.target:
        return bool(node.kwargs.get("inplace"))
    names = [*inspect.signature(node.target).parameters] if inspect.isfunction(node.target) else []
    return bool({**dict(zip(names, node.args, strict=False)), **node.kwargs}.get("inplace"))


_OPERATORS = frozenset(
    (
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "pow",
        "mod",
        "matmul",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
    )
)
