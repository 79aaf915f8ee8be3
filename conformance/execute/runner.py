"""Runs one case in this process: an implementation pinned, guarded memory, two runs, one verdict."""

from __future__ import annotations

import contextlib
import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

import portable
from portable import errors
from portable.conformance.cases import inputs
from portable.conformance.cases.case import Case, params_of
from portable.conformance.execute.guards import guarded_memory
from portable.conformance.execute.result import Result
from portable.conformance.execute.side_effects import Watch, memory_faults
from portable.conformance.judge import reference
from portable.conformance.judge.bound import Verdict, deterministic, digest
from portable.dispatch import dispatcher
from portable.runtime import detect
from portable.spec import registry


class DeviceLost(RuntimeError):
    """The device answers no more (a kernel faulted); nothing further can run in this process.

    `result` is that of the case in which it happened.
    """

    def __init__(self, result: Result):
        super().__init__(result.message)
        self.result = result


def torch_device() -> torch.device:
    """Where the active backend's tensors live."""
    return torch.device(detect.main_backend().device_type)


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()


def implementations(op: str) -> tuple[str, ...]:
    """Implementations of `op` whose language the active backend builds for this machine's device."""
    return tuple(dispatcher.candidates(op))


def function(op: str) -> Callable[..., Any]:
    """The op as its spec has it, which need not be what people call by its name."""
    return dispatcher.op(op) if op in registry.functions() else getattr(portable, op)


def fingerprint(materialized: reference.MaterializedCase) -> str:
    """The first 16 digits of the SHA-256 of all inputs of a case."""
    text = "".join(f"{name} {sha256}\n" for name, sha256 in materialized.sha256.items())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_case(materialized: reference.MaterializedCase, impl: str, device: torch.device) -> Result:
    """Run one case on one pinned implementation, twice, and judge it. Exceptions become states.

    Raises DeviceLost when the device does not come back from a crash.
    """
    case = materialized.case
    op = function(case.op)
    start = time.perf_counter()
    try:
        own = materialized.spec.implementation(impl)
        if own is not None:
            materialized = materialized.on(own, detect.main_backend(), detect.device())
        with portable.using(**{case.op: impl}):
            result = judge_call(materialized, op, device, impl)
        if not result.conforms:
            with contextlib.suppress(Exception):  # the verdict is there; the config only explains it
                words = materialized.strided() + _config(materialized, impl, device)
                result = replace(result, message=result.message + words)
    except (Exception, SystemExit) as error:
        result = Result(case, impl, *classify(error, impl))
    return _still_there(replace(result, seconds=time.perf_counter() - start), device)


def _config(materialized: reference.MaterializedCase, impl: str, device: torch.device) -> str:
    """The tuned values that the implementation ran with, as a line of a failure's message."""
    case = materialized.case
    present = [name for name in materialized.spec.inputs if name in materialized.inputs]
    tensors = {name: materialized.inputs[name].on(device)[0] for name in present}
    with portable.using(**{case.op: impl}):
        choice = portable.explain(case.op, **tensors, **params_of(materialized.spec, case)).choice
    if choice is None or choice.config is None or not choice.config.values:
        return ""
    values = ", ".join(f"{name}={value}" for name, value in choice.config.values.items())
    return f"\nconfig: {values} [{choice.config.source}]"


def _still_there(result: Result, device: torch.device) -> Result:
    """The result, if the device answers after it."""
    if result.state in ("Crash", "ResourceError"):
        try:
            synchronize(device)
        except Exception as lost:
            raise DeviceLost(result) from lost
    return result


def classify(error: BaseException, impl: str) -> tuple[str, str]:
    """A case's state and message for an exception."""
    if isinstance(error, errors.PinError):
        reason = str(error.__dict__.get("reason", error))
        return "NotSupported", reason.partition(f": {impl}: ")[2] or reason
    if isinstance(error, errors.CompileError):
        return "CompileError", str(error)
    kind = type(error)
    text = f"{kind.__name__}: {error}"
    if kind.__module__.startswith("triton.") and kind.__name__ in _TRITON:
        return _TRITON[kind.__name__], text
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or _NO_MEMORY.search(text):
        return "ResourceError", text.splitlines()[0]
    return "Crash", text


_NO_MEMORY = re.compile("can't allocate memory|out of memory", re.IGNORECASE)
_TRITON = {
    "CompilationError": "CompileError",
    "UnsupportedLanguageConstruct": "CompileError",
    "CompileTimeAssertionFailure": "CompileError",
    "PTXASError": "CompileError",
    "OutOfResources": "ResourceError",
}
"""What Triton's exceptions say of a case, by their names: Triton need not be there."""


def judge_call(
    materialized: reference.MaterializedCase, function: Callable[..., Any], device: torch.device, impl: str
) -> Result:
    """Call `function` twice with a case's inputs and judge what it returns; its exceptions pass through.

    `function` takes the op's inputs and parameters by name and answers as the op does. Its allocations are
    guarded, those of the first call poisoned as well, and so are the inputs.
    """
    case = materialized.case
    moved = {name: made.on(device) for name, made in materialized.inputs.items()}
    tensors = {name: view for name, (view, _) in moved.items()}
    watch = Watch({name: tensor for name, tensor in tensors.items() if name not in materialized.spec.mutated})
    with guarded_memory() as guards:
        first, fence = _call(materialized, function, tensors, device)
        synchronize(device)
    verdicts: list[tuple[str, Verdict]] = []
    if fault := guards.fault():
        verdicts.append(("", Verdict("Fail.bounds_write", note=fault)))
    with guarded_memory(poisoned=False) as guards:
        second, again = _call(materialized, function, tensors, device)
        synchronize(device)
    if not verdicts and (fault := guards.fault()):
        verdicts.append(("", Verdict("Fail.bounds_write", note=f"at the second call, {fault}")))
    del guards
    faults = watch.faults()
    if not case.mode:  # a gradient may be the one from above, and out= is the caller's
        faults += memory_faults(first, second, tensors)
    verdicts += [(name, Verdict("Fail.behaviour", note=note)) for name, note in faults]
    if away := [
        name
        for name, each in first.items()
        if isinstance(each, torch.Tensor) and each.device.type != device.type
    ]:
        note = f"the result is on {first[away[0]].device}, the inputs are on {device}"
        return _result(case, impl, [(away[0], Verdict("Fail.behaviour", note=note))])
    if set(first) != set(materialized.expected):
        note = f"got outputs {sorted(first)}, expected {sorted(materialized.expected)}"
        return _result(case, impl, [("", Verdict("Fail.shape", note=note))])
    for name, expected in materialized.expected.items():
        verdict = expected.judge(first[name], materialized.biased_values)
        if verdict.passed:
            verdict = deterministic(first[name], second[name]) or verdict
        verdicts.append((name, verdict))
    if any(each is not None and not inputs.fence_intact(*each) for each in (fence, again)):
        verdicts.append(("out", Verdict("Fail.bounds_write", note="memory beside out= was written")))
    for name, (_, buffer) in moved.items():
        if not inputs.same_bits(buffer.cpu(), materialized.inputs[name].buffer):
            note = "an input, or memory beside it, was written"
            verdicts.append((name, Verdict("Fail.bounds_write", note=note)))
    exact = all(expected.exact for expected in materialized.expected.values())
    tensors_only = all(isinstance(each, torch.Tensor) for each in first.values())
    return replace(_result(case, impl, verdicts), digest=digest(first) if tensors_only else "", exact=exact)


def _call(
    materialized: reference.MaterializedCase,
    op: Callable[..., Any],
    tensors: dict[str, torch.Tensor],
    device: torch.device,
) -> tuple[dict[str, Any], tuple[torch.Tensor, torch.Tensor] | None]:
    """The op's outputs by name (gradients in a "grad" case), and `out=` with its fenced buffer."""
    case, spec = materialized.case, materialized.spec
    arguments: dict[str, Any] = {name: tensors.get(name) for name in spec.inputs} | params_of(spec, case)
    if case.mode == "grad":
        leaves = {n: t.detach().requires_grad_() for n, t in spec.differentiable(tensors).items()}
        arguments |= leaves
        with torch.enable_grad():
            outputs = _named(spec, op(**arguments))
            upstream = [tensors[f"d{name}"] for name in outputs]
            grads = torch.autograd.grad(list(outputs.values()), list(leaves.values()), upstream)
        return {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}, None
    fence = None
    if case.mode == "out" and spec.out is not None:
        expected = materialized.expected[spec.out.name]
        fence = inputs.fenced(tuple(expected.ref.shape), expected.dtype, device, case.layout)
        arguments["out"] = fence[0]
    if case.mode == "in_place" and spec.out is not None and spec.out.in_place is not None:
        arguments["out"] = arguments[spec.out.in_place] = tensors[spec.out.in_place].clone()
    written = {name: tensors[name] for name in spec.mutated if name in tensors}
    before = {name: tensor.clone() for name, tensor in written.items()}
    outputs = _named(spec, op(**arguments))
    for name, tensor in written.items():  # each call begins from the case's contents
        outputs[name] = tensor.clone()
        tensor.copy_(before[name])
    if fence is not None and next(iter(outputs.values())) is not fence[0]:
        raise RuntimeError("the op did not return the tensor that it was given as out=")
    return outputs, fence


def _named(spec: Any, result: Any) -> dict[str, Any]:
    several = result if isinstance(result, (tuple, list)) else (result,)
    if not spec.outputs and result is None:
        return {}
    if len(several) != len(spec.outputs):
        return {f"output {number}": value for number, value in enumerate(several)}
    return dict(zip(spec.outputs, several, strict=True))


def _result(case: Case, impl: str, verdicts: list[tuple[str, Verdict]]) -> Result:
    """The worst of several outputs' verdicts."""
    order = {"Pass": 0, "QualityWarning": 1, "Fail.bounds_write": 3}
    name, verdict = max(verdicts, key=lambda each: (order.get(each[1].state, 2), each[1].worst))
    message = "" if verdict.state == "Pass" else f"{name}: {verdict}".removeprefix(": ")
    return Result(
        case,
        impl,
        verdict.state,
        message,
        worst=max(each.worst for _, each in verdicts),
        max_abs=max(each.max_abs for _, each in verdicts),
        ulp=max((each.ulp for _, each in verdicts), key=abs),
    )


ApplyWaivers = Callable[[Result], Result]


def no_waivers(result: Result) -> Result:
    """Leave a result as it is: `--no-waivers`."""
    return result


def answer(
    case: Any,
    impls: Iterable[str],
    device: torch.device,
    begin: Callable[[str], None] = lambda impl: None,
    on_inputs: Callable[[str], None] = lambda sha256: None,
) -> Iterator[Result]:
    """Run one case or behaviour on each of `impls`. `begin` gets the implementation before it runs,
    `on_inputs` the SHA-256 of the case's inputs. DeviceLost carries the last result."""
    from portable.conformance.execute import behaviour

    if isinstance(case, behaviour.Behaviour):
        for name in impls:
            begin(name)
            start = time.perf_counter()
            try:
                result = behaviour.run(case, name, device)
            except SystemExit as error:
                result = Result(case, name, *classify(error, name))
            yield _still_there(replace(result, seconds=time.perf_counter() - start), device)
        return
    try:
        materialized = reference.materialize(case, registry.spec(case.op))
    except Exception as error:  # a broken reference is the suite's fault, not the implementation's
        fault = reference.failed(error, registry.spec(case.op))
        yield from (Result(case, name, "InternalError", fault) for name in impls)
        return
    on_inputs(fingerprint(materialized))
    for name in impls:
        begin(name)
        yield run_case(materialized, name, device)
