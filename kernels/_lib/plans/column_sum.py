"""The launch of column_sum.cu, which adds the blocks' partial sums of columns in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from portable import dtypes
from portable.plan import Argument, Call, Launch, NativeKernel, Pointer, Scalar, Workspace

_SOURCE = Path(__file__).resolve().parents[1] / "rows/column_sum.cu"
_WIDTH, _GROUPS = 32, 32


def column_sum(
    call: Call, workspace: str, outputs: Sequence[str], blocks: int, length: int
) -> tuple[Launch, Workspace]:
    """The sums over `blocks` of a float32 workspace [outputs, blocks, length], rounded to the one or two
    outputs [length], and that workspace."""
    types = (("W", dtypes.of(call[outputs[0]].dtype).c), ("WIDTH", _WIDTH), ("GROUPS", _GROUPS))
    kernel = NativeKernel(_SOURCE, "column_sum", _WIDTH * _GROUPS, types, pdl=True)
    sums: list[Argument] = [Pointer(name, aligned=call[name].alignment >= 16) for name in outputs]
    args = (
        ("partial", Pointer(workspace, aligned=True)),
        ("first", sums[0]),
        ("second", sums[1] if len(sums) > 1 else Scalar("i64", 0)),
        ("blocks", Scalar("i32", blocks)),
        ("length", Scalar("i64", length)),
    )
    grid = (-(-length // _WIDTH), len(sums), 1)
    return Launch(kernel, grid, args), Workspace(workspace, (len(sums), blocks, length), "float32")
