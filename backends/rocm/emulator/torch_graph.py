"""Captured graphs of an emulated GPU: `torch.cuda.CUDAGraph`, `torch.cuda.graph`, `make_graphed_callables`.

As on a GPU nothing runs while a graph is captured: kernels' launches and torch's operators on the GPU's
tensors are recorded, and what they return is allocated, its content undefined. A replay runs them again, in
order, on the same memory; the graph keeps it. What needs a result at once, as `.item()`, is refused by a
sentence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from portable.backends.rocm.emulator.faults import EmulatorError
from portable.backends.rocm.emulator.runtime import EmulatedRuntime

READS = frozenset(
    getattr(torch.Tensor, name)
    for name in ("item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__")
)
"""Methods that wait for a tensor's values."""

_REDISPATCHED: set[str] = set()  # operators whose kernel a program has registered: of these the parts count


def registered(name: str) -> None:
    """Enter an operator whose kernel a program has registered for the GPU."""
    _REDISPATCHED.add(name.partition(".")[0])


def refused(what: str) -> EmulatorError:
    """The error of what cannot be captured."""
    return EmulatorError(f"{what} while a graph is captured: it waits for the GPU, which runs nothing then")


class _Capture(TorchDispatchMode):
    """Records the operators on the GPU's tensors as `steps`, and the tensors as `kept`."""

    def __init__(self, graph: CUDAGraph, steps: list[Callable[[], Any]], kept: list[Any]):
        super().__init__()
        self._steps, self._kept = steps, kept
        self._on_gpu, self._call = graph.on_gpu, graph.call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._on_gpu([*args, *kwargs.values()]):
            return func(*args, **kwargs)
        schema = func._schema
        if schema.name in _REDISPATCHED or schema.name.partition("::")[0] not in ("aten", "prims"):
            with self:
                return func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **kwargs)
        if _only_looks(func):
            return func(*args, **kwargs)
        name = schema.name.removeprefix("aten::")
        if func is torch.ops.aten._local_scalar_dense.default:
            raise refused("A tensor's value is read")
        written = _written(func, args, kwargs)
        if any(not self._on_gpu([each]) for each in written if isinstance(each, torch.Tensor)):
            raise refused("The GPU's memory is copied to the host's")
        result = self._allocated(func, name, args, kwargs, written)
        self._kept.append((args, kwargs, result))
        if "empty" not in name:
            self._steps.append(functools.partial(_again, self._call, func, args, kwargs, result))
        return result

    def _allocated(self, func: Any, name: str, args: Any, kwargs: Any, written: list[Any]) -> Any:
        """What the operator will return: what it writes to, and new memory for the rest."""
        returns = func._schema.returns
        if returns and all(each.alias_info is not None for each in returns) and len(returns) == len(written):
            return written[0] if len(returns) == 1 else tuple(written)
        if not returns:
            return None
        form = _pytree.tree_map_only(torch.Tensor, _as_meta, (args, kwargs))
        form[1].update({"device": torch.device("meta")} if "device" in kwargs else {})
        try:
            shapes = func(*form[0], **form[1])
        except (NotImplementedError, RuntimeError) as error:
            problem = f"{name}, whose result's shape depends on values or is not known,"
            raise refused(problem) from error
        return _pytree.tree_map_only(torch.Tensor, _empty_as, shapes)


def _only_looks(func: Any) -> bool:
    """Whether an operator computes nothing: it returns a view, or changes a tensor's shape alone."""
    if torch.Tag.inplace_view in func.tags or func._schema.name in ("aten::set_", "aten::resize_"):
        return True
    returns = func._schema.returns
    views = [each.alias_info is not None and not each.alias_info.is_write for each in returns]
    return bool(views) and all(views)


def _written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an operator writes to."""
    found = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            found += value if isinstance(value, (list, tuple)) else [value]
    return found


def _as_meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def _empty_as(shape: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        return torch.empty_strided(shape.size(), shape.stride(), dtype=shape.dtype)


def _again(call: Callable[..., Any], func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Run an operator and put what it returns where the captured one's is."""
    found = call(func, args, kwargs)
    pairs = zip(_pytree.tree_leaves(result), _pytree.tree_leaves(found), strict=True)
    for to, each in pairs:
        if isinstance(to, torch.Tensor) and to.data_ptr() != each.data_ptr():
            to.copy_(each)


_capturing: list[CUDAGraph] = []


def capturing() -> bool:
    """Whether a graph is being captured: `torch.cuda.is_current_stream_capturing`."""
    return bool(_capturing)


class CUDAGraph:
    """`torch.cuda.CUDAGraph`."""

    runtime: EmulatedRuntime | None = None  # of the emulated GPU
    on_gpu: Callable[[Any], bool]  # whether arguments are the GPU's
    call: Callable[..., Any]  # an operator with its arguments

    def __init__(self, keep_graph: bool = False):
        self._steps: list[Callable[[], Any]] | None = None
        self._kept: list[Any] = []
        self._mode: _Capture | None = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if _capturing:
            raise EmulatorError("A graph is captured already")
        if self._steps is not None:
            raise EmulatorError("This graph is captured already; reset() empties it")
        assert self.runtime is not None
        self._steps = []
        self.runtime.recorder = self._steps.append
        self._mode = _Capture(self, self._steps, self._kept)
        _capturing.append(self)
        self._mode.__enter__()

    def capture_end(self) -> None:
        if self._mode is None or self.runtime is None:
            raise EmulatorError("capture_end() of a graph that is not being captured")
        self._mode.__exit__(None, None, None)
        self._mode = self.runtime.recorder = None
        _capturing.remove(self)

    def instantiate(self) -> None: ...

    def replay(self) -> None:
        """Run what was captured once more. Raises KernelFault as the launches do."""
        __tracebackhide__ = True
        if self._steps is None or self._mode is not None:
            raise EmulatorError("replay() of a graph that was not captured")
        if _capturing:
            raise EmulatorError("A graph is replayed while another is captured")
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for step in self._steps:
                step()

    def reset(self) -> None:
        self._steps = None
        self._kept.clear()

    def pool(self) -> tuple[int, int]:
        return pool_handle()

    def enable_debug_mode(self) -> None: ...

    def debug_dump(self, debug_path: str) -> None:
        raise EmulatorError("A captured graph of an emulated GPU has no nodes to write to a file")

    def raw_cuda_graph(self) -> int:
        raise EmulatorError("A captured graph of an emulated GPU has no handle of the runtime")


def pool_handle() -> tuple[int, int]:
    """`torch.cuda.graph_pool_handle`: every graph keeps its own memory."""
    return 0, 0


class graph:
    """`torch.cuda.graph`: a block that is captured."""

    def __init__(
        self, cuda_graph: CUDAGraph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"
    ):
        self._graph = cuda_graph

    def __enter__(self) -> None:
        self._graph.capture_begin()

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._graph.capture_end()
        if kind is not None:
            self._graph.reset()
