"""The behaviour `beyond_2_31`: operands whose elements lie further apart than 32 bits count."""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Mapping
from typing import Any

import torch

from portable.conformance.execute.samples import (
    Call,
    NotApplicable,
    Types,
    in_types,
    leads,
    most_leading,
    of_problems,
    same,
    sample,
)
from portable.spec.model import Spec

FAR_ROWS = 64
FAR = 1 << 31


def beyond_2_31(call: Call, spec: Spec, device: torch.device) -> str | None:
    """Operands whose last element is more than 2^32 elements after their first (2^31, where memory lacks),
    without the memory between: the CPU maps pages that are touched, a GPU of 11 GB free memory holds all.
    Far apart are rows, columns and batches of products, problems and their rows, and the rows of `out=`."""
    lead = min(FAR_ROWS, most_leading(spec, device))
    ways = [(lead, 0, False)] + [(1, -2, False)] * bool(spec.boundary and leads(spec))
    if not spec.boundary and any(each.layout == "matrix" for each in spec.inputs.values()):
        ways += [(lead, -1, False)] + [(3, 0, True)] * (spec.leading == "broadcast")

    def check(row: Types) -> str | None:
        wrong = (_apart(call, spec, device, row, *way) for way in ways)
        return next(filter(None, wrong), None) or _far_result(call, spec, device, row)

    return in_types(spec, check, both=False)


def _apart(
    call: Call, spec: Spec, device: torch.device, row: Types, lead: int, along: int, batched: bool
) -> str | None:
    """The same call with operands that are far apart along one dimension."""
    tensors = sample(spec, device, lead=lead, size=FAR_ROWS, types=row, batched=batched)
    wide = _far_operands(spec, tensors, along, lead if of_problems(spec) or batched else FAR_ROWS)
    if not wide:
        raise NotApplicable("the op has no operand of rows")
    turned = {name: tensors[name].movedim(along, 0).contiguous() for name in wide}
    room = 512 * max(-(-each[0].numel() // 512) for each in turned.values())
    lengths = [len(each) for each in turned.values()]
    apart, buffer = _buffer(
        min(lengths) - 1, max(lengths) - 1, room * len(wide), tensors[wide[0]].dtype, device
    )
    expected = call({**tensors, **{name: each.movedim(0, along) for name, each in turned.items()}})
    far = dict(tensors)
    for place, (name, each) in enumerate(turned.items()):
        strides = (apart, *each.stride()[1:])
        far[name] = buffer.as_strided(each.shape, strides, room * place).movedim(0, along)
        far[name].copy_(each.movedim(0, along))
    return None if same(call(far), expected) else "elements beyond 2^31 are read wrongly"


def _far_result(call: Call, spec: Spec, device: torch.device, row: Types) -> str | None:
    """The same call into an `out=` whose rows are far apart."""
    if spec.out is None:
        return None
    tensors = sample(spec, device, size=FAR_ROWS, types=row)
    (expected,) = call(tensors)
    apart, buffer = _buffer(len(expected) - 1, len(expected) - 1, 512, expected.dtype, device)
    out = buffer.as_strided(expected.shape, (apart, *expected.stride()[1:]))
    right = same(call({**tensors, "out": out}), (expected,))
    return None if right else "results beyond 2^31 are written wrongly"


def _buffer(
    fewest: int, most: int, room: int, dtype: torch.dtype, device: torch.device
) -> tuple[int, torch.Tensor]:
    """A step of which `fewest` pass 2^32 elements, or 2^31, and memory for `most` of them and `room`."""
    for far in (2 * FAR, FAR):
        apart = -(-far // fewest // 512) * 512
        try:
            return apart, _vast(apart * most + room, dtype, device)
        except NotApplicable:
            if far == FAR:
                raise
    raise AssertionError


def _far_operands(spec: Spec, tensors: Mapping[str, Any], along: int, rows: int) -> list[str]:
    """Inputs of one type whose rows can be far apart: those of `rows` rows; along another dimension, and
    where the op has no leading ones, those with columns and at least half as many rows as the longest."""
    found = {name: t for name, t in tensors.items() if t is not None and t.is_floating_point()}
    if along == -1:
        return [name for name in found if spec.inputs[name].layout == "matrix"]
    if not along and not (spec.boundary and not leads(spec)):
        names = [name for name, t in found.items() if t.dim() > 1 and len(t) == rows]
    else:
        found = {name: t for name, t in found.items() if t.dim() > (3 if along else 2)}
        longest = max((t.shape[along] for t in found.values()), default=0)
        names = [name for name, t in found.items() if 2 * t.shape[along] >= longest > 2]
    return [name for name in names if found[name].dtype == found[names[0]].dtype]


def _vast(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """`count` elements that nothing has touched."""
    size = count * dtype.itemsize
    if device.type != "cpu":
        if torch.cuda.mem_get_info(device)[0] < size * 1.25:
            raise NotApplicable(f"needs {size * 1.25 / 2**30:.0f} GB of free device memory")
        return torch.empty(count, dtype=dtype, device=device)
    if sys.platform == "win32" or sys.maxsize < FAR * 4:
        raise NotApplicable("the system maps no memory before it is touched")
    lazy = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | lazy)
    except (OSError, ValueError) as error:
        raise NotApplicable(f"the system maps no {size / 2**30:.0f} GB of address space: {error}") from error
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            pages.madvise(mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(pages, dtype=dtype)
