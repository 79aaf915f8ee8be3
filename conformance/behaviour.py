"""Behaviour cases: not what an op computes but how it behaves as part of a program.

Each is a function `(op, spec, tensors, params, device) -> str | None`: None is a pass, a sentence a
failure, `NotHere` a reason why the machine cannot ask. They run pinned, on every implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import torch

import portable
from portable import catalog
from portable.conformance.cases import input_shapes, make_shape, required_params
from portable.conformance.runner import Result, classify
from portable.spec import Spec

Call = Callable[[dict[str, Any]], tuple[torch.Tensor, ...]]


class NotHere(Exception):
    """The machine or the op has not what the question needs."""


def sample(
    spec: Spec, device: torch.device, lead: int = 48, size: int = 256, seed: int = 0
) -> dict[str, Any]:
    """N(0, 1) tensors of the spec's first row of types, every axis of one size."""
    leading: Any = (lead,) if spec.leading == "same" else ()
    shape = make_shape(spec, dict.fromkeys(spec.axes, size), leading, required_params(spec)[0], ())
    generator = torch.Generator().manual_seed(seed)
    row = spec.types[0]
    made: dict[str, Any] = dict.fromkeys(spec.inputs)
    for name, own in input_shapes(spec, shape).items():
        dtype = getattr(torch, row.get(spec.inputs[name].dtype, spec.inputs[name].dtype))
        made[name] = torch.randn(own, generator=generator).to(dtype).to(device)
    return made


def same(one: tuple[torch.Tensor, ...], two: tuple[torch.Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def other_stream(call: Call, spec: Spec, device: torch.device) -> str | None:
    """On a side stream the op waits for that stream's work, and only for that."""
    tensors = sample(spec, device)
    expected = call(tensors)
    torch.cuda.synchronize(device)
    stream = torch.cuda.Stream(device)
    fresh = {n: None if t is None else torch.full_like(t, float("nan")) for n, t in tensors.items()}
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # the copies below come late; a kernel on another stream reads NaN
        for name, tensor in fresh.items():
            if tensor is not None:
                tensor.copy_(tensors[name])
        got = call(fresh)
    stream.synchronize()
    return None if same(got, expected) else "on a side stream the result differs: the kernel ran elsewhere"


def graph_capture(call: Call, spec: Spec, device: torch.device) -> str | None:
    """A captured call replays on new data."""
    first, second = sample(spec, device), sample(spec, device, seed=1)
    expected = call(second)
    call(first)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = call(first)
    for name, tensor in first.items():
        if tensor is not None:
            tensor.copy_(second[name])
    graph.replay()
    torch.cuda.synchronize(device)
    return None if same(got, expected) else "a replayed graph gives another result than the call"


def two_threads(call: Call, spec: Spec, device: torch.device) -> str | None:
    """Threads that call one op at once get their own results."""
    questions = [sample(spec, device, lead=17 + i, seed=i) for i in range(4)]
    expected = [call(question) for question in questions]
    with ThreadPoolExecutor(4) as pool:
        # A thread starts outside `using`: each task runs in a copy of this context.
        tasks = [pool.submit(copy_context().run, call, questions[i % 4]) for i in range(64)]
        for i, task in enumerate(tasks):
            if not same(task.result(), expected[i % 4]):
                return "a call in one thread got another thread's arguments"
    return None


def other_device(call: Call, spec: Spec, device: torch.device) -> str | None:
    """Tensors on device 1 while device 0 is current."""
    if torch.cuda.device_count() < 2:
        raise NotHere("the machine has one card")
    far = torch.device("cuda", 1)
    tensors = sample(spec, device)
    expected = call(tensors)
    got = call({n: None if t is None else t.to(far) for n, t in tensors.items()})
    if any(t.device != far for t in got):
        return "the result is not on the tensors' device"
    return None if same(tuple(t.to(device) for t in got), expected) else "on card 1 the result differs"


def rows_alone(call: Call, spec: Spec, device: torch.device) -> str | None:
    """A row gives the same bits alone and in a batch."""
    if spec.leading != "same" or spec.cost.peak != "vector":
        raise NotHere("the op does not work row by row")
    tensors = sample(spec, device)
    whole = call(tensors)
    for row in (0, 7, 47):
        alone = call({
            n: t if t is None or not spec.inputs[n].leading else t[row : row + 1] for n, t in tensors.items()
        })  # fmt: skip
        for field, one, many in zip(spec.outputs.values(), alone, whole, strict=True):
            if field.leading and not torch.equal(one[0], many[row]):
                return f"row {row} alone differs from row {row} in a batch of 48"
    return None


def beyond_2_31(call: Call, spec: Spec, device: torch.device) -> str | None:
    """Rows that lie more than 2^31 elements apart."""
    if spec.leading != "same":
        raise NotHere("asked of ops over rows")
    if device.type == "cpu" or torch.cuda.mem_get_info(device)[0] < 60 << 30:
        raise NotHere("needs 60 GB of device memory")
    tensors = sample(spec, device, lead=3)
    expected = call(tensors)
    stride = (1 << 30) + 256
    far, buffers = dict(tensors), []
    for name, tensor in tensors.items():
        if tensor is not None and spec.inputs[name].leading:
            buffers.append(torch.empty(2 * stride + tensor.shape[-1], dtype=tensor.dtype, device=device))
            far[name] = buffers[-1].as_strided(tensor.shape, (stride, 1))
            far[name].copy_(tensor)
    return None if same(call(far), expected) else "rows beyond 2^31 elements are read wrongly"


def compiled(call: Call, spec: Spec, device: torch.device) -> str | None:
    """torch.compile(fullgraph=True) gives the same bits."""
    tensors = sample(spec, device)
    expected = call(tensors)
    torch._dynamo.reset()  # each op and implementation compiles afresh
    got = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=False)(tensors)
    return None if same(got, expected) else "under torch.compile the result differs"


def autograd_runs(call: Call, spec: Spec, device: torch.device) -> str | None:
    """Backward of a public op reaches every input, finite and of its dtype."""
    if spec.gradient is None:
        raise NotHere("the op has no gradient")
    tensors = sample(spec, device)
    leaves = {n: t.requires_grad_() for n, t in tensors.items() if t is not None}
    with torch.enable_grad():
        outputs = call(tensors)
        sum(o.float().square().sum() for o in outputs).backward()  # type: ignore[union-attr]
    for name, leaf in leaves.items():
        if leaf.grad is None or leaf.grad.dtype != leaf.dtype or not leaf.grad.isfinite().all():
            return f"the gradient of {name} is missing, of another dtype or not finite"
    return None


CASES: dict[str, Callable[[Call, Spec, torch.device], str | None]] = {
    "other_stream": other_stream,
    "graph_capture": graph_capture,
    "two_threads": two_threads,
    "other_device": other_device,
    "rows_alone": rows_alone,
    "beyond_2_31": beyond_2_31,
    "compiled": compiled,
    "autograd": autograd_runs,
}
_NEEDS_GPU = {"other_stream", "graph_capture", "other_device", "beyond_2_31"}


@dataclass(frozen=True)
class Behaviour:
    """A behaviour of one op, where a runner's result names its case."""

    op: str
    name: str

    @property
    def id(self) -> str:
        return f"{self.op}/behaviour/{self.name}"


def parse(text: str) -> Behaviour | None:
    """The behaviour that an id names, or None where it is the id of another case."""
    op, _, name = text.partition("/behaviour/")
    return Behaviour(op, name) if name in CASES and op in catalog.op_folders() else None


def cases(ops: Iterable[str]) -> list[Behaviour]:
    """Every behaviour of `ops`."""
    return [Behaviour(op, name) for op in ops for name in CASES]


def run(case: Behaviour, impl: str, device: torch.device) -> Result:
    """Ask one behaviour of one pinned implementation. Exceptions become states."""
    spec = catalog.spec(case.op)
    function = getattr(portable, case.op)
    params = dict(required_params(spec)[0])

    def call(tensors: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        result = function(**tensors, **params)
        return result if isinstance(result, tuple) else (result,)

    if case.name in _NEEDS_GPU and device.type == "cpu":
        return Result(case, impl, "NotSupported", "needs a GPU")
    try:
        with portable.using(**{case.op: impl}):
            wrong = CASES[case.name](call, spec, device)
    except NotHere as reason:
        return Result(case, impl, "NotSupported", str(reason))
    except Exception as error:
        return Result(case, impl, *classify(error, impl))
    return Result(case, impl, "Fail.behaviour", wrong) if wrong else Result(case, impl, "Pass")
