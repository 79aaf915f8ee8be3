"""Plans of backward.hip and backward_rows.hip: attention's gradient on AMD's matrix units."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from portable.kernels.attention.problem import Heads, Problem, problem_of
from portable.plan import Argument, Call, Device, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar, Workspace

HERE = Path(__file__).resolve().parent
ELEMENTS = {"bfloat16": "bf16", "float16": "f16"}
STEP = 32  # lines that pass by at a time: what fits LDS twice, as rows and transposed
WAVES = 4
ROWS = 16  # queries of a block of backward_rows.hip
ROWS_THREADS = 256
LOG2_E = math.log2(math.e)
_MOST_ROWS = 2**28
_UNBOUNDED = 2**30
_MOST_THREADS = 2**32 - 1  # of a grid's dimension


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the lines that a block owns lie on its waves: `groups` * 16 a wave, in registers where `held`, else in
    LDS. `lds` bytes, `resident` blocks a compute unit."""

    waves: int
    groups: int
    held: bool
    lds: int
    resident: int

    @property
    def lines(self) -> int:
        return self.waves * self.groups * 16


def plan_backward(call: Call) -> Plan | Rejected:
    """dq, dk and dv of 16-bit heads: each query's statistics, then dk and dv, then dq."""
    problem = problem_of(call)
    if isinstance(problem, Rejected):
        return problem
    if problem.softcap == 0:
        return Rejected("a softcap of 0 leaves no scores")
    if max(problem.M, problem.N) > _MOST_ROWS:
        return Rejected(f"more than {_MOST_ROWS} queries or keys")
    owners = {}
    for name in ("keys", "queries"):
        owners[name] = tiling(problem, call.device, name == "keys")
        if owners[name] is None:
            D, E = padded(problem)
            return Rejected(f"{call.device.arch} has too few registers and LDS for heads of {D} and {E}")
    launches = (
        plan_rows(problem),
        plan_owner(problem, call.device, "keys", owners["keys"]),
        plan_owner(problem, call.device, "queries", owners["queries"]),
    )
    for launch in launches:
        if launch.grid[0] * launch.kernel.threads > _MOST_THREADS:
            return Rejected(f"{launch.grid[0]} blocks are more than one launch takes")
    lines = (problem.B * problem.H, problem.M)
    return Plan(launches, (Workspace("peak", lines, "float32"), Workspace("delta", lines, "float32")))


def padded(problem: Problem) -> tuple[int, int]:
    """The head sizes as the kernels hold them."""
    return -(-problem.D // 32) * 32, -(-problem.E // 32) * 32


def tiling(problem: Problem, device: Device, keys: bool) -> Tiling | None:
    """The largest tile whose registers and LDS are there.

    A lane holds 8 sums of 16 lines and `depth` columns, and, where lines are held, 16 bytes (gfx11: 32) of as
    many; the rest of a wave's registers is for scores and what is on its way.
    """
    D, E = padded(problem)
    wide = device.warp_size == 64
    sums, held = (D + E if keys else D), D + E
    passing = 2 * STEP * (D + E + (D + E if keys else D))
    for groups, hold, waves, resident, most in _CHOICES[wide]:
        per_lane = groups * (sums // (4 if wide else 2))
        if hold:
            per_lane += groups * held // (8 if wide else 2 if device.arch.startswith("gfx11") else 4)
        lds = passing + (0 if hold else waves * groups * 16 * 2 * (D + E))
        if per_lane <= most and lds * resident <= _lds_of(device):
            return Tiling(waves, groups, hold, lds, resident)
    return None


def _lds_of(device: Device) -> int:
    """Of a compute unit; what one block may take is a property of the device."""
    return device.shared_memory


# Groups, whether lines are held, waves, blocks of a compute unit, registers for sums and lines.
_CHOICES = {
    True: ((2, True, 4, 2, 128), (1, True, 4, 2, 128), (1, True, 4, 1, 256)),
    False: ((1, True, 4, 1, 160), (1, False, 4, 1, 160), (1, False, 2, 1, 160)),
}


def plan_rows(problem: Problem) -> Launch:
    kernel = NativeKernel(
        HERE / "backward_rows.hip",
        "attention_backward_rows",
        ROWS_THREADS,
        (("T", ELEMENTS[problem.dtype]), ("DLSE", int(problem.has("dlse")))),
    )
    tiles = -(-problem.M // ROWS)
    numbers = {"heads": problem.H, "queries": problem.M, "columns": problem.E, "tiles": tiles}
    args = (
        ("dout", Pointer("do")),
        ("out", Pointer("o")),
        ("lse", Pointer("lse")),
        ("dlse", _optional(problem, "dlse")),
        ("peak", Pointer("peak", True)),
        ("delta", Pointer("delta", True)),
        *_whole(numbers),
        *(each for name in ("do", "o", "lse", "dlse") for each in _strides(problem, name)),
    )
    return Launch(kernel, (tiles * problem.B * problem.H, 1, 1), args)


def plan_owner(problem: Problem, device: Device, name: str, tile: Tiling) -> Launch:
    """dk and dv by blocks of keys, or dq by blocks of queries."""
    keys = name == "keys"
    D, E = padded(problem)
    threads = tile.waves * device.warp_size
    kernel = NativeKernel(
        HERE / "backward.hip",
        f"attention_backward_{name}",
        threads,
        (
            ("T", ELEMENTS[problem.dtype]),
            ("KEYS", int(keys)),
            ("HEAD_D", D),
            ("HEAD_E", E),
            ("WHOLE_D", int(problem.D == D)),
            ("WHOLE_E", int(problem.E == E)),
            ("STEP", STEP),
            ("WAVES", tile.waves),
            ("GROUPS", tile.groups),
            ("HELD", int(tile.held)),
            ("RESIDENT", tile.resident),
            ("SOFTCAP", int(problem.softcap is not None)),
            ("BIAS", int(problem.has("bias"))),
        ),
    )
    heads = problem.G if keys else problem.H
    tiles = -(-(problem.N if keys else problem.M) // tile.lines)
    blocks = tiles * problem.B * heads
    written = ("dk", "dv") if keys else ("dq",)
    numbers = {
        "groups" if keys else "heads": heads,
        "share": problem.share,
        "queries": problem.M,
        "keys": problem.N,
        "columns_d": problem.D,
        "columns_e": problem.E,
        **bounds(problem),
    }
    to_score, cap = problem.scale * LOG2_E, 0.0
    if problem.softcap is not None:  # tanh(x) is 1 - 2 / (1 + exp2(2 * x * log2(e)))
        to_score, cap = 2 * to_score / problem.softcap, problem.softcap * LOG2_E
    args = (
        ("dout", Pointer("do")),
        *((each, Pointer(each)) for each in ("q", "k", "v")),
        ("bias", _optional(problem, "bias")),
        ("peak", Pointer("peak", True)),
        ("delta", Pointer("delta", True)),
        *((each, Pointer(each)) for each in written),
        *_whole(numbers),
        ("to_score", Scalar("f32", to_score)),
        ("cap", Scalar("f32", cap)),
        ("factor", Scalar("f32", problem.scale)),
        *_whole({"tiles": tiles, "blocks": blocks}),
        *(each for name in ("do", "q", "k", "v", "bias", *written) for each in _strides(problem, name)),
    )
    return Launch(kernel, (blocks, 1, 1), args)


def bounds(problem: Problem) -> dict[str, int]:
    """Query i sees key j where low <= j - i <= high."""
    diagonal = problem.N - problem.M
    return {
        "low": -_UNBOUNDED if problem.left is None else max(diagonal - problem.left, -_UNBOUNDED),
        "high": _UNBOUNDED if problem.right is None else min(diagonal + problem.right, _UNBOUNDED),
    }


def _whole(numbers: dict[str, int]) -> tuple[tuple[str, Argument], ...]:
    return tuple((name, Scalar("i32", value)) for name, value in numbers.items())


def _optional(problem: Problem, name: str) -> Argument:
    return Pointer(name) if problem.has(name) else Scalar("i64", 0)


def _strides(problem: Problem, name: str) -> tuple[tuple[str, Argument], ...]:
    """The strides of a tensor, zeros for one that is absent."""
    heads = problem.heads.get(name, Heads(name, 0, 0, 0, 16))
    return tuple((f"{name}_{field}", Scalar("i64", getattr(heads, field))) for field in ("batch", "head", "row"))
