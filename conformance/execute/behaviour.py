"""Behaviour cases: not what an op computes but how it behaves as part of a program.

Each is a function `(call, spec, device) -> str | None`: None is a pass, a sentence a failure, and
NotApplicable says why the machine or the op has no such case. They run pinned, on every implementation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import portable
from portable.conformance.cases.case import Case
from portable.conformance.cases.generate import TIERS, lawful, required_params
from portable.conformance.cases.inputs import poison
from portable.conformance.execute import runner
from portable.conformance.execute.bad_calls import MISSING, BadCall, bad_calls
from portable.conformance.execute.far_apart import beyond_2_31
from portable.conformance.execute.in_programs import (
    autocast,
    autograd_runs,
    compiled,
    compiled_forms,
    fresh,
    shared_inputs,
    vmap,
)
from portable.conformance.execute.large_result import large_result
from portable.conformance.execute.rows_alone import rows_alone
from portable.conformance.execute.runner import Result, classify
from portable.conformance.execute.samples import (
    Call,
    NotApplicable,
    Types,
    in_types,
    of_problems,
    results,
    said_dtypes,
    same,
    sample,
    shape_of,
    without_effect,
)
from portable.conformance.judge import order_independent, reference
from portable.dispatch import compiled_call
from portable.runtime.tensors import widened
from portable.spec import registry
from portable.spec.model import Spec


def other_stream(call: Call, spec: Spec, device: torch.device) -> str | None:
    """On a side stream the op waits for that stream's work, and only for that."""
    tensors = sample(spec, device)
    expected = call(tensors)
    torch.cuda.synchronize(device)
    stream = torch.cuda.Stream(device)
    fresh = {n: None if t is None else torch.full_like(t, poison(t.dtype)) for n, t in tensors.items()}
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
    # 68 calls, of 17 problems of attention backward each, take an emulated GPU 45 s (2026-11-22).
    lead, calls = (1, 8) if device.type == "cpu" else (17, 64)
    samples = [sample(spec, device, lead=lead + i, seed=i) for i in range(4)]
    expected = [call(probe) for probe in samples]
    with ThreadPoolExecutor(4) as pool:
        # A thread starts outside `using`: each task runs in a copy of this context.
        tasks = [pool.submit(copy_context().run, call, samples[i % 4]) for i in range(calls)]
        for i, task in enumerate(tasks):
            if not same(task.result(), expected[i % 4]):
                return "a call in one thread got another thread's arguments"
    return None


def other_device(call: Call, spec: Spec, device: torch.device) -> str | None:
    """Tensors on device 1 while device 0 is current."""
    if torch.cuda.device_count() < 2:
        raise NotApplicable("the machine has one GPU")
    far = torch.device("cuda", 1)
    tensors = sample(spec, device)
    expected = call(tensors)
    got = call({n: None if t is None else t.to(far) for n, t in tensors.items()})
    if any(t.device != far for t in got):
        return "the result is not on the tensors' device"
    return None if same(tuple(t.to(device) for t in got), expected) else "on GPU 1 the result differs"


def _floats(
    case: Case, spec: Spec, indices: Mapping[str, Any], given: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The float64 reference's outputs that are not integers, of the inputs `given` and of `indices`."""
    found = reference.reference(case, spec, {**dict.fromkeys(spec.inputs), **indices, **given})
    return {name: each for name, each in found.items() if each is not None and each.is_floating_point()}


def scaling(call: Call, spec: Spec, device: torch.device) -> str | None:
    """An input times a power of two multiplies, bit for bit, every output that the float64 reference
    multiplies, and leaves alone what the reference leaves alone."""
    optional = [each.name for each in spec.inputs.values() if each.optional]
    # Of rows it takes a thousand elements to see a last bit; a problem of attention has them.
    lead = 1 if device.type == "cpu" and of_problems(spec) else 17
    checked = 0

    def check(row: Types) -> str | None:
        nonlocal checked
        for absent in [(), *((name,) for name in optional), optional]:
            shape = shape_of(spec, lead, 64, absent)
            if not lawful(spec, dict(shape.axes), dict(shape.params), absent):
                continue
            tensors = sample(spec, device, lead=lead, size=64, types=row, absent=absent)
            present = {n: t for n, t in tensors.items() if t is not None}
            wide = {n: t.cpu().to(torch.float64) for n, t in present.items() if t.is_floating_point()}
            indices = {n: widened(t.cpu()) for n, t in present.items() if n not in wide}
            case = Case(spec.op, tuple(row.items()), shape)

            evaluate = partial(_floats, case, spec, indices)
            expected = evaluate(wide)
            rules = order_independent.degrees(evaluate, wide, expected)
            if not any(1 in rule.values() for rule in rules.values()):
                continue
            checked += 1
            names = [each.name for each in results(spec, tensors)]
            before = dict(zip(names, call(tensors), strict=True))
            for name in wide:
                for factor in order_independent.FACTORS:
                    larger = (tensors[name].to(torch.float64) * factor).to(tensors[name].dtype)
                    if not torch.equal(larger.cpu().to(torch.float64), wide[name] * factor):
                        continue  # fp8 holds few powers of two
                    scaled = dict(zip(names, call({**tensors, name: larger}), strict=True))
                    for output, rule in rules.items():
                        degree = rule[name]
                        if degree is None:
                            continue
                        wanted = before[output].to(torch.float64) * factor**degree
                        if not torch.equal(scaled[output].to(torch.float64), wanted):
                            follows = f"{output} times {factor:g}" if degree else f"the same {output}"
                            return f"{name} times {factor:g} does not give {follows}"
        return None

    wrong = in_types(spec, check)
    if not checked:
        raise NotApplicable("no input of the op scales its outputs")
    return wrong


def bad_arguments(call: Call, spec: Spec, device: torch.device) -> str | None:
    """What the spec does not allow is refused with the documented error, before any kernel runs."""

    def check(row: Types) -> str | None:
        good = sample(spec, device, lead=5, size=16, types=row)
        good |= required_params(spec)[0] | said_dtypes(spec, good)
        call(good)
        return next(filter(None, (_refused(call, spec, bad) for bad in bad_calls(spec, good))), None)

    return in_types(spec, check, both=False)


def _refused(call: Call, spec: Spec, bad: BadCall) -> str | None:
    """None where the call raises what it must, else what it did."""
    with _launches() as ran:
        try:
            call(bad.arguments)
        except bad.error as error:
            if f"portable.{spec.op}" not in str(error):
                return f"{bad.what}: the error does not name the op: {error}"
        except Exception as error:
            return f"{bad.what}: expected {bad.error.__name__}, got {type(error).__name__}: {error}"
        else:
            return f"{bad.what}: the call was taken, expected {bad.error.__name__}"
    return f"{bad.what}: a kernel ran before {bad.error.__name__} was raised" if ran else None


@contextlib.contextmanager
def _launches() -> Iterator[list[str]]:
    """The ops that came as far as their launches meanwhile."""
    ran: list[str] = []
    right = compiled_call.CompiledCall.compute

    def noted(self: compiled_call.CompiledCall, inputs: Sequence[Any], addresses: list[int], out: Any) -> Any:
        ran.append("launch")
        return right(self, inputs, addresses, out)

    compiled_call.CompiledCall.compute = noted
    try:
        yield ran
    finally:
        compiled_call.CompiledCall.compute = right


def probes(call: Call, spec: Spec, device: torch.device) -> str | None:
    """The probes of the op's own file: functions of a call, a dtype and a device, whose docstrings state the
    property."""
    if spec.probes is None:
        raise NotApplicable("the op has none")
    module = registry.load_module(spec.probes)

    def check(types: Types) -> str | None:
        dtype = getattr(torch, types[spec.type_variables[0]])
        for probe in module.PROBES:
            if not probe(call, dtype, device):
                return f"{probe.__name__}: {probe.__doc__}"
        return None

    return in_types(spec, check)


CASES: dict[str, Callable[[Call, Spec, torch.device], str | None]] = {
    "other_stream": other_stream,
    "graph_capture": graph_capture,
    "two_threads": two_threads,
    "other_device": other_device,
    "rows_alone": rows_alone,
    "beyond_2_31": beyond_2_31,
    "large_result": large_result,
    "compiled": compiled,
    "compiled_forms": compiled_forms,
    "autograd": autograd_runs,
    "fresh": fresh,
    "shared_inputs": shared_inputs,
    "vmap": vmap,
    "autocast": autocast,
    "scaling": scaling,
    "bad_arguments": bad_arguments,
    "probes": probes,
}
_NEEDS_GPU = {"other_stream", "graph_capture", "other_device", "large_result"}
_FROM = {
    **dict.fromkeys(["fresh", "shared_inputs", "vmap", "autocast"], "core"),
    **dict.fromkeys(["compiled_forms", "large_result"], "full"),
}
"""The tier from which on a behaviour is asked, where that is not "smoke"."""


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
    return Behaviour(op, name) if name in CASES and op in registry.op_folders() else None


def cases(ops: Iterable[str], tier: str = "full") -> list[Behaviour]:
    """Every behaviour of `ops` that `tier` has; probes are those of an op that has some."""
    specs = {op: registry.spec(op) for op in ops}
    asked = [name for name in CASES if TIERS.index(_FROM.get(name, "smoke")) <= TIERS.index(tier)]
    return [Behaviour(op, name) for op in specs for name in asked if name != "probes" or specs[op].probes]


def caller(spec: Spec, function: Callable[..., Any]) -> Call:
    """`function`, which takes arguments by name, as behaviours call it: with tensors, for a tuple."""
    params = dict(required_params(spec)[0])
    says = bool(spec.dtype_variables)  # outside of what torch.compile traces, which takes no lock

    def call(tensors: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        arguments = {**params, **(said_dtypes(spec, tensors) if says else {}), **tensors}
        given = {name: value for name, value in arguments.items() if value is not MISSING}
        result = without_effect(spec, function, given)
        return result if isinstance(result, tuple) else (result,)

    return call


def run(case: Behaviour, impl: str, device: torch.device) -> Result:
    """Run one behaviour case on one pinned implementation. Exceptions become states."""
    spec = registry.spec(case.op)
    call = caller(spec, runner.function(case.op))
    implementation = spec.implementation(impl)
    runs = implementation is not None and implementation.kind == "run"
    if case.name == "graph_capture" and runs and any(each.dtype == "int32" for each in spec.inputs.values()):
        return Result(case, impl, "NotSupported", "it reads lengths on the host: no graph can wait for them")
    if case.name == "rows_alone" and implementation is not None and not implementation.batch_invariant:
        return Result(case, impl, "NotSupported", "its spec says that it is not batch invariant")
    with portable.using(**{case.op: impl}):
        return judge(case, call, impl, device)


def judge(case: Behaviour, call: Call, impl: str, device: torch.device) -> Result:
    """Whether `call` behaves. Exceptions become states."""
    if case.name in _NEEDS_GPU and device.type == "cpu":
        return Result(case, impl, "NotSupported", "needs a GPU")
    try:
        wrong = CASES[case.name](call, registry.spec(case.op), device)
    except NotApplicable as reason:
        return Result(case, impl, "NotSupported", str(reason))
    except Exception as error:
        return Result(case, impl, *classify(error, impl))
    return Result(case, impl, "Fail.behaviour", wrong) if wrong else Result(case, impl, "Pass")
