"""Plans of adamw's C++ kernel, on one tensor and on the tensors of a table."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from portable import dtypes
from portable.kernels._lib.plans.row_class import ACCESS_BYTES, MAX_GRID, pointer
from portable.kernels.adamw.chunks import CHUNK
from portable.layout import ceil_div
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Rejected, Scalar, Struct

SOURCE = Path(__file__).with_name("adamw.cu")
TENSORS = ("param", "grad", "exp_avg", "exp_avg_sq")
THREADS = 256
GROUP = 4
"""Elements that share a counter of Philox: a thread takes that many at least."""


def unit_of(call: Call) -> int:
    """Elements that a thread takes at once, at most 16 bytes of the narrowest type, where each tensor's are
    neighbours and aligned; else 1."""
    infos = [call[name] for name in TENSORS]
    if any(info.alignment < ACCESS_BYTES or stride(call, name) != 1
           for name, info in zip(TENSORS, infos, strict=True)):  # fmt: skip
        return 1
    return max(ACCESS_BYTES // dtypes.itemsize(info.dtype) for info in infos)


def stride(call: Call, name: str) -> int:
    """Elements from one to the next; 1 where there is only one."""
    info = call[name]
    return info.strides[0] if info.shape[0] > 1 else 1


def stochastic(call: Call) -> bool:
    """Whether the call rounds by random bits: it may ask so, and have no bfloat16."""
    kinds = (call["param"].dtype, call["exp_avg_sq"].dtype)
    return bool(call.params["stochastic_rounding"]) and "bfloat16" in kinds


def numbers(call: Call) -> list[tuple[str, Argument]]:
    """The parameters, as both kernels take them. What is 1 - beta is a difference in float64."""
    given: dict[str, Any] = dict(call.params)
    floats = {
        "beta2": given["beta2"],
        "rest1": 1 - given["beta1"],
        "rest2": 1 - given["beta2"],
        "eps": given["eps"],
        "weight_decay": given["weight_decay"],
    }
    whole = {
        name + "_bits": struct.unpack("<q", struct.pack("<d", given[name]))[0] for name in ("beta1", "beta2")
    }
    return [
        *((name, Scalar("f32", value)) for name, value in floats.items()),
        *((name, Scalar("i64", value)) for name, value in {**whole, "seed": given["seed"]}.items()),
    ]


def steps(call: Call) -> list[tuple[str, Argument]]:
    return [(f"{name}_step", Scalar("i64", stride(call, name))) for name in TENSORS]


def wrapped(number: int) -> int:
    """A 32-bit number as the signed one of the same bits."""
    return number - (1 << 32) if number >= 1 << 31 else number


def _kernel(call: Call, table: bool) -> NativeKernel:
    unit = unit_of(call)
    defines: tuple[tuple[str, int | str], ...] = (
        ("T", dtypes.of(call["param"].dtype).c),
        ("GRAD", dtypes.of(call["grad"].dtype).c),
        ("STATE", dtypes.of(call["exp_avg"].dtype).c),
        ("TABLE", int(table)),
        ("THREADS", THREADS),
        ("CHUNK", CHUNK),
        ("VEC", max(unit, GROUP)),
        ("ALIGNED", int(unit > 1)),
        ("HAS_GRAD_SCALE", int(call.has("grad_scale"))),
        ("HAS_FOUND_INF", int(call.has("found_inf"))),
        ("MAXIMIZE", int(call.params["maximize"])),
        ("STOCHASTIC", int(stochastic(call))),
    )
    return NativeKernel(SOURCE, "adamw", THREADS, defines, pdl=True)


def _shared_arguments(call: Call) -> list[tuple[str, Argument]]:
    names = (*TENSORS, "step", "lr", "grad_scale", "found_inf")
    return [(name, pointer(call, name)[1]) for name in names]


def _settings(call: Call) -> tuple[str, Argument]:
    return "own", Struct(tuple((name, value) for name, value in numbers(call)))  # pyright: ignore[reportArgumentType]


def forward(call: Call) -> Plan | Rejected:
    """Plan the step of one tensor."""
    size = call.axes["N"]
    if ceil_div(size, CHUNK) > MAX_GRID:
        return Rejected(f"{size} elements: more than {MAX_GRID} blocks of {CHUNK}")
    args = [*_shared_arguments(call), ("size", Scalar("i64", size))]
    args += [("number", Scalar("i32", wrapped(call.params["number"]))), *steps(call), _settings(call)]
    return Plan((Launch(_kernel(call, False), (ceil_div(size, CHUNK), 1, 1), tuple(args)),))


def multi_tensor(call: Call) -> Plan | Rejected:
    """Plan the step of the tensors of a table: a block per chunk."""
    args = [
        *_shared_arguments(call),
        ("tensors", pointer(call, "tensors")[1]),
        ("chunks", pointer(call, "chunks")[1]),
    ]
    args += [*steps(call), _settings(call)]
    return Plan((Launch(_kernel(call, True), (call.axes["C"], 1, 1), tuple(args)),))
