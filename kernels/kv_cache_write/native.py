"""Plans of kv_cache_write's C++ kernel: how many threads a token has."""

from __future__ import annotations

from pathlib import Path

from portable import dtypes
from portable.kernels._lib.minifloat import format_type
from portable.kernels._lib.plans.row_class import ACCESS_BYTES, MAX_GRID, pointer, power_of_two
from portable.layout import ceil_div
from portable.plan import Argument, Call, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar

SOURCE = Path(__file__).with_name("kv_cache_write.cu")
TENSORS = ("k", "v", "k_cache", "v_cache")
SCALES = ("k_scale", "v_scale")
STEPS = {"k": ("token", "head", "element"), "k_cache": ("page", "place", "head", "element")}
THREADS = 256
MOST_CHUNKS = 4
"""Loads of a thread in flight; one while all threads are fewer than `FILLED` per multiprocessor."""
FILLED = 1024


def unit_of(call: Call, names: tuple[str, ...] = TENSORS) -> int:
    """Elements of one access: 16 bytes of k where heads are neighbouring elements and end there; else 1."""
    unit = ACCESS_BYTES // dtypes.itemsize(call["k"].dtype)
    for name in names:
        info = call[name]
        access = unit * dtypes.itemsize(info.dtype)  # of a cache in 8 bits fewer bytes
        *steps, element = ((length, stride) for length, stride in zip(info.shape, info.strides, strict=True))
        apart = any(length > 1 and stride % unit for length, stride in steps)
        if info.alignment < access or apart or element[0] % unit or element[1] != 1:
            return 1
    return unit


def strides(call: Call) -> list[tuple[str, Argument]]:
    """The steps of all tensors, as both kernels take them."""
    args: list[tuple[str, Argument]] = []
    for name in TENSORS:
        steps = STEPS["k_cache" if name.endswith("cache") else "k"]
        args += [
            (f"{name}_{step}", Scalar("i64", stride))
            for step, stride in zip(steps, call[name].strides, strict=True)
        ]
    args.append(("slots_token", Scalar("i64", call["slots"].strides[0])))
    return args


def numbers(call: Call) -> list[tuple[str, Argument]]:
    """The counts that both kernels take."""
    axes = call.axes
    found = {"tokens": axes["M"], "heads": axes["G"], "page": axes["S"], "places": axes["P"] * axes["S"]}
    return [(name, Scalar("i32", number)) for name, number in found.items()]


def scale_arguments(call: Call) -> list[tuple[str, Argument]]:
    """The scales of a cache in 8 bits and their steps from head to head; none of another."""
    args: list[tuple[str, Argument]] = []
    for name in SCALES if call.has("k_scale") else ():
        args += [(name, Pointer(name)), (f"{name}_head", Scalar("i64", call[name].strides[0]))]
    return args


def too_large(call: Call) -> Rejected | None:
    """A rejection where the numbers of tokens, slots or a token's elements leave 32 bits."""
    axes = call.axes
    places, columns = axes["P"] * axes["S"], axes["G"] * (axes["D"] + axes["E"])
    for count, what in ((axes["M"], "tokens"), (places, "slots"), (columns, "elements of a token")):
        if count > MAX_GRID // 2:
            return Rejected(f"{count} {what}: their numbers are 32-bit")
    return None


def forward(call: Call) -> Plan | Rejected:
    """Plan the writes of k and v."""
    if rejected := too_large(call):
        return rejected
    axes, unit = call.axes, unit_of(call)
    units = axes["G"] * (axes["D"] + axes["E"]) // unit
    filled = axes["M"] * units >= FILLED * call.device.multiprocessors * MOST_CHUNKS
    chunks = MOST_CHUNKS if filled else 1
    lanes = min(power_of_two(ceil_div(units, chunks)), THREADS)
    defines: tuple[tuple[str, int | str], ...] = (
        ("ELEMENT", dtypes.itemsize(call["k"].dtype)),
        ("INDEX", 8 * dtypes.itemsize(call["slots"].dtype)),
        ("VEC", unit),
        ("K_UNITS", axes["D"] // unit),
        ("V_UNITS", axes["E"] // unit),
        ("THREADS", THREADS),
        ("LANES", lanes),
        ("CHUNKS", chunks),
    )
    if scales := scale_arguments(call):
        defines += (("T", dtypes.of(call["k"].dtype).c), ("FORMAT", format_type(call["k_cache"].dtype)))
    args = [(name, pointer(call, name)[1]) for name in (*TENSORS, "slots")]
    kernel = NativeKernel(SOURCE, "kv_cache_write", THREADS, defines, pdl=True)
    grid = ceil_div(axes["M"], THREADS // lanes)
    return Plan((Launch(kernel, (grid, 1, 1), (*args, *strides(call), *numbers(call), *scales)),))
