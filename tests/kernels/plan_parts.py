"""What tests read of a plan. Typed loosely: a part that a plan does not have fails the test that reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from portable.backends.cuda.disassembly import mnemonics
from portable.plan import Call, Launch, NativeKernel, Plan, Rejected, Scalar, Struct, TritonKernel
from portable.runtime import build, detect
from portable.spec import registry


def planner(op: str, implementation: str = "cpp") -> Callable[[Call], Plan | Rejected]:
    """The planning function of an op's implementation."""
    found = registry.spec(op).implementation(implementation)
    assert found is not None
    return registry.load_entry(found.entry)


def accepted(plan: Plan | Rejected) -> Any:
    """The plan, which must not be a rejection."""
    assert isinstance(plan, Plan), plan
    return plan


def reason(plan: Plan | Rejected) -> str:
    """Why the call was rejected, which it must be."""
    assert isinstance(plan, Rejected), plan
    return plan.reason


def launch_of(plan: Plan | Rejected) -> Any:
    """The only launch of a plan."""
    (launch,) = accepted(plan).launches
    return launch


def arguments_of(launch: Launch) -> dict[str, Any]:
    """The arguments by name, those in a struct among them."""
    found: dict[str, Any] = {}
    for name, argument in launch.args:
        found |= dict(argument.fields) if isinstance(argument, Struct) else {name: argument}
    return found


def scalar(launch: Launch, name: str) -> Any:
    argument = arguments_of(launch)[name]
    assert isinstance(argument, Scalar)
    return argument.value


def native_kernel(launch: Launch) -> NativeKernel:
    assert isinstance(launch.kernel, NativeKernel)
    return launch.kernel


def compiled(launch: Launch, call: Call) -> list[str]:
    """The instructions of a launch for sm_90a; its registers suffice."""
    backend = detect.backend_class("cuda")(registry.vendors()["cuda"])
    types = {name: each.dtype for name, each in call.tensors.items() if each}
    code = build.code_object(launch, types, backend, call.device)
    found = backend.resources(code)
    assert found.spills == found.stack == 0
    return mnemonics(code.binary)


def triton_kernel(launch: Launch) -> TritonKernel:
    assert isinstance(launch.kernel, TritonKernel)
    return launch.kernel


def defines(launch: Launch) -> dict[str, Any]:
    """What a C++ kernel is compiled with."""
    return dict(native_kernel(launch).defines)


def constants(launch: Launch) -> dict[str, Any]:
    """The constexprs of a Triton kernel."""
    return dict(triton_kernel(launch).constants)
