"""The plans of cross_entropy.cu."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from portable.kernels._lib.plans.log_sum_exp_plan import LONGEST, Arguments, gradient_plan, scan_plan
from portable.kernels._lib.plans.row_class import MAX_GRID, RowClass, pointer, vector_length
from portable.layout import are_rows, ceil_div
from portable.plan import Call, Launch, Plan, Pointer, Rejected, Scalar, Workspace

_SOURCE = Path(__file__).with_name("cross_entropy.cu")
_WIDTH, _THREADS = 32, 512
"""Rows of logits that a block of the forward pass over columns takes, and its threads: 4096 rows are 128
blocks, each with 64 KB of loads in flight. Measured: docs/notes/losses.md."""
_GRADIENT_WIDTH, _GRADIENT_THREADS = 128, 128
SPAN = 2048
"""Of rows with more than twice so many classes a block takes that many; a second launch merges these parts.
Both follow from the classes alone, so that a row's bits do not depend on the other rows."""
_PART_WIDTH, _PART_THREADS, _PART_CHUNKS = 128, 256, 4
_MERGE_WIDTH, _MERGE_THREADS = 32, 1024


def forward(call: Call) -> Plan | Rejected:
    """loss and lse from logits, target and weight: one launch, or two of long rows that lie side by side."""
    names = ("logits", "target", "weight", "loss", "lse")
    if not are_rows(call["logits"]):
        if call["logits"].shape[1] > 2 * SPAN:
            return _parts_plan(call)
        kind = _columns(call, ("logits",), _WIDTH, _THREADS, chunks=8)
        return _columns_plan(call, names, kind, "forward")
    defines = ("PASS", "FORWARD"), *_defines(call)
    return scan_plan(call, names, _SOURCE, "cross_entropy_forward", defines, _numbers(call))


def backward(call: Call) -> Plan | Rejected:
    """dlogits from dloss, dlse, logits, target, the weights and lse: one launch."""
    names = ("dloss", "dlse", "logits", "target", "weight", "weight_mean", "lse", "dlogits")
    if not (are_rows(call["logits"]) and are_rows(call["dlogits"])):
        kind = _columns(call, ("logits", "dlogits"), _GRADIENT_WIDTH, _GRADIENT_THREADS, chunks=4)
        return _columns_plan(call, names, kind, "backward")
    defines = ("PASS", "BACKWARD"), *_defines(call)
    return gradient_plan(call, names, _SOURCE, "cross_entropy_backward", defines, _numbers(call))


def _columns(call: Call, names: Sequence[str], width: int, threads: int, chunks: int) -> RowClass:
    """Blocks of `threads` that take `width` rows of logits, of each `chunks` classes at a time (half as many
    where rows are taken one by one); vectors where the rows lie side by side in all tensors `names`."""
    dtype = call["logits"].dtype
    tensors = [(call[name], call[name].strides[1]) for name in names]
    vector = vector_length(dtype, tensors)
    if vector == 1 or any(info.strides[0] != 1 for info, _ in tensors):
        return RowClass(dtype, 1, False, threads, width, chunks // 2, False)
    tail = call["logits"].shape[0] % vector != 0
    return RowClass(dtype, vector, tail, threads, width // vector, chunks, False)


def _columns_plan(call: Call, names: Sequence[str], kind: RowClass, which: str) -> Plan | Rejected:
    """One launch over blocks of logits in any strides."""
    rows, length = call["logits"].shape
    across = ceil_div(rows, kind.lanes * kind.vector)
    numbers: Arguments = ()
    grid = across
    if which == "backward":
        numbers = (("across", Scalar("i32", across)),)
        grid *= ceil_div(length, kind.rows_per_block * kind.chunks)
    if grid > MAX_GRID or length > LONGEST:
        return Rejected(f"{rows} rows of {length} elements exceed the grid")
    names_of_strides = ["row_stride", "class_stride"]
    strides = [*call["logits"].strides]
    if which == "backward":
        names_of_strides += ["dlogits_row_stride", "dlogits_class_stride"]
        strides += call["dlogits"].strides
    args = (
        *(pointer(call, name) for name in names),
        ("rows", Scalar("i64", rows)),
        ("length", Scalar("i64" if which == "backward" else "i32", length)),
        *((name, Scalar("i64", stride)) for name, stride in zip(names_of_strides, strides, strict=True)),
        *numbers,
        *_numbers(call),
    )
    defines = ("PASS", f"{which.upper()}_COLUMNS"), *_defines(call)
    kernel = kind.kernel(_SOURCE, f"cross_entropy_{which}_columns", defines)
    return Plan((Launch(kernel, (grid, 1, 1), args),))


def _parts_plan(call: Call) -> Plan | Rejected:
    """The sums of SPAN classes each, and what merges them to the losses."""
    rows, length = call["logits"].shape
    kind = _columns(call, ("logits",), _PART_WIDTH, _PART_THREADS, _PART_CHUNKS)
    across, count = ceil_div(rows, kind.lanes * kind.vector), ceil_div(length, SPAN)
    if across * count > MAX_GRID or length > LONGEST:
        return Rejected(f"{rows} rows of {length} elements exceed the grid")
    strides = tuple(Scalar("i64", stride) for stride in call["logits"].strides)
    sizes = (
        ("rows", Scalar("i64", rows)),
        ("length", Scalar("i32", length)),
        *zip(("row_stride", "class_stride"), strides, strict=True),
    )
    parts, numbers = ("parts", Pointer("parts", aligned=True)), dict(_numbers(call))
    scan_args = (
        *(pointer(call, name) for name in ("logits", "weight")),
        parts,
        *sizes,
        ("across", Scalar("i32", across)),
        ("softcap", numbers["softcap"]),
    )
    merge_args = (
        *(pointer(call, name) for name in ("logits", "target", "weight")),
        parts,
        *(pointer(call, name) for name in ("loss", "lse")),
        *sizes,
        ("count", Scalar("i32", count)),
        *numbers.items(),
    )
    scan = kind.kernel(
        _SOURCE, "cross_entropy_forward_parts", (("PASS", "FORWARD_PARTS"), *_defines(call), ("SPAN", SPAN))
    )
    merge_kind = RowClass(kind.dtype, 1, False, _MERGE_THREADS, _MERGE_WIDTH, 1, False)
    merge = merge_kind.kernel(
        _SOURCE, "cross_entropy_merge_parts", (("PASS", "MERGE_PARTS"), *_defines(call))
    )
    sums = 4 if call.params["label_smoothing"] != 0.0 else 2
    return Plan(
        (
            Launch(scan, (across * count, 1, 1), scan_args),
            Launch(merge, (ceil_div(rows, _MERGE_WIDTH), 1, 1), merge_args),
        ),
        (Workspace("parts", (count, sums, rows), "float32"),),
    )


def _defines(call: Call) -> tuple[tuple[str, int], ...]:
    """What the kernel leaves out where it is not asked for."""
    capped = call.params["softcap"] is not None
    smoothed = call.params["label_smoothing"] != 0.0
    weighted = call.has("weight") or call.has("weight_mean")
    return ("SOFTCAP", int(capped)), ("SMOOTHING", int(smoothed)), ("WEIGHT", int(weighted))


def _numbers(call: Call) -> Arguments:
    given = call.params
    return (
        ("ignore_index", Scalar("i64", given["ignore_index"])),
        ("label_smoothing", Scalar("f32", given["label_smoothing"])),
        ("softcap", Scalar("f32", 0.0 if given["softcap"] is None else given["softcap"])),
        ("z_loss", Scalar("f32", given["z_loss"])),
    )
