"""A call of attention or its gradient as the planners see it: sizes, strides, and which keys a query sees.

Query i of M sees key j of N where first(i) <= j <= last(i), both counted from the diagonal that joins the
last query to the last key: j - i - (N - M) lies within [-left, right].
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from portable.plan import Call, Rejected, TensorInfo

_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True)
class Heads:
    """A tensor of heads in memory: element (b, h, i, d) lies at
    `b * batch + h * head + i * row + d` elements from the base. A stride of 0 repeats."""

    tensor: str
    batch: int
    head: int
    row: int
    alignment: int

    def aligned_to(self, nbytes: int, itemsize: int) -> bool:
        """Whether every row starts at a multiple of `nbytes` (at most 16)."""
        strides = (self.batch, self.head, self.row)
        return self.alignment >= nbytes and all(stride * itemsize % nbytes == 0 for stride in strides)


@dataclass(frozen=True, slots=True)
class Problem:
    """One call. `left` and `right` of None: unbounded, as is what hides no key; `causal` is folded into
    `right`. A bound is below N or M, so sums of places fit 32 bits where the sizes do."""

    dtype: str
    B: int
    H: int
    G: int
    M: int
    N: int
    D: int
    E: int
    scale: float
    softcap: float | None
    left: int | None
    right: int | None
    heads: dict[str, Heads]
    offsets: int = 0
    """Of packed sequences, how many numbers say where they begin and end; 0: none are packed."""

    @property
    def share(self) -> int:
        """Query heads per key head."""
        return self.H // self.G

    @property
    def score_factors(self) -> tuple[float, float]:
        """What a product of a query and a key is multiplied with, and the cap behind it, 0 without one: for
        scores in base 2, and tanh(x) as 1 - 2 / (1 + exp2(2 * x * log2(e)))."""
        to_score = self.scale * _LOG2_E
        if self.softcap is None:
            return to_score, 0.0
        return 2 * to_score / self.softcap, self.softcap * _LOG2_E

    def has(self, name: str) -> bool:
        return name in self.heads


def problem_of(call: Call) -> Problem | Rejected:
    """The problem of a call of `attention` or `attention_backward`; Rejected where leading dimensions
    cannot be seen as one, or a last dimension does not lie together."""
    axes, params, q = call.axes, call.params, call["q"]
    heads: dict[str, Heads] = {}
    batch = 1
    for size in q.shape[:-3]:
        batch *= size
    for name, info in call.tensors.items():
        if info is None or name == "sinks":
            continue
        with_columns = name not in ("lse", "dlse")
        found = _heads(name, info, 3 if with_columns else 2)
        if isinstance(found, Rejected):
            return found
        heads[name] = found
    left, right = params["window_left"], params["window_right"]
    if params["causal"]:
        right = 0 if right is None else min(right, 0)
    if left is not None and left >= axes["N"] - 1:
        left = None
    if right is not None and right >= axes["M"] - 1:
        right = None
    return Problem(
        dtype=q.dtype,
        B=batch,
        **{name: axes[name] for name in ("H", "G", "M", "N", "D", "E")},
        scale=axes["D"] ** -0.5 if params["scale"] is None else params["scale"],
        softcap=params["softcap"],
        left=left,
        right=right,
        heads=heads,
    )


def _heads(name: str, info: TensorInfo, rank: int) -> Heads | Rejected:
    leading = [
        (size, stride)
        for size, stride in zip(info.shape[:-rank], info.strides[:-rank], strict=True)
        if size != 1
    ]
    step = leading[-1][1] if leading else 0
    reach = step
    for size, stride in reversed(leading):
        if stride != reach:
            return Rejected(f"the leading dimensions of {name} cannot be walked with one stride")
        reach = stride * size
    if rank == 2:
        return Heads(name, step, info.strides[-2], info.strides[-1], info.alignment)
    if info.strides[-1] != 1 and info.shape[-1] > 1:
        return Rejected(f"{name}'s last dimension has a stride of {info.strides[-1]}, not 1")
    return Heads(name, step, info.strides[-3], info.strides[-2], info.alignment)
