"""A problem's numbers as arguments of a launch, for the plans of every vendor."""

from __future__ import annotations

from portable import dtypes
from portable.kernels.attention.problem import Heads, Problem
from portable.plan import Argument, Launch, NativeKernel, Pointer, Scalar

ELEMENTS = {name: dtypes.of(name).c for name in ("bfloat16", "float16")}
"""What native kernels call the types of the matrix units."""
_UNBOUNDED = 2**30


def whole(numbers: dict[str, int]) -> tuple[tuple[str, Argument], ...]:
    return tuple((name, Scalar("i32", value)) for name, value in numbers.items())


def optional(problem: Problem, name: str) -> Argument:
    return Pointer(name) if problem.has(name) else Scalar("i64", 0)


C_NAMES = {"do": "dout"}
"""What a kernel calls a tensor whose name is a keyword of C++."""


def strides(problem: Problem, tensor: str, name: str = "") -> tuple[tuple[str, Argument], ...]:
    """The strides of a tensor, which the kernel may call `name`; zeros for one that is absent."""
    heads = problem.heads.get(tensor, Heads(tensor, 0, 0, 0, 16))
    name = name or C_NAMES.get(tensor, tensor)
    return tuple((f"{name}_{side}", Scalar("i64", getattr(heads, side))) for side in ("batch", "head", "row"))


def diagonals(problem: Problem, middle: int) -> dict[str, int]:
    """Query i sees key j where low <= j - i <= high; `middle` is that of the last query and the last key."""
    return {
        "low": -_UNBOUNDED if problem.left is None else max(middle - problem.left, -_UNBOUNDED),
        "high": _UNBOUNDED if problem.right is None else min(middle + problem.right, _UNBOUNDED),
    }


def sizes(problem: Problem, middle: int, keys: bool = False) -> dict[str, int]:
    """What a gradient's blocks know of the call, those of keys or those of queries; see `diagonals`."""
    return {
        **({"groups": problem.G} if keys else {"heads": problem.H}),
        "share": problem.share,
        "queries": problem.M,
        "keys": problem.N,
        "columns_d": problem.D,
        "columns_e": problem.E,
        **diagonals(problem, middle),
    }


def scales(problem: Problem) -> tuple[tuple[str, Argument], ...]:
    """What a kernel multiplies products with, and its cap, for exponentials of base 2."""
    to_score, cap = problem.score_factors
    return (("to_score", Scalar("f32", to_score)), ("cap", Scalar("f32", cap)))


def table_arguments(offsets: int | None) -> tuple[tuple[str, Argument], ...]:
    """What a kernel reads of the tables of packed sequences; None: there are none."""
    names = {"bounds": "bounds", "tile_list": "tiles", "counts": "counts"}
    return (
        *((name, Scalar("i64", 0) if offsets is None else Pointer(each)) for name, each in names.items()),
        ("count", Scalar("i32", offsets or 0)),
    )


def statistics_launch(problem: Problem, kernel: NativeKernel, rows: int, written: tuple[str, ...]) -> Launch:
    """What a gradient wants of each query, from do, o and lse, by blocks of `rows` queries of a head."""
    tiles = -(-problem.M // rows)
    args = (
        ("dout", Pointer("do")),
        ("out", Pointer("o")),
        ("lse", Pointer("lse")),
        ("dlse", optional(problem, "dlse")),
        *((name, Pointer(name, True)) for name in written),
        *whole({"heads": problem.H, "queries": problem.M, "columns": problem.E, "tiles": tiles}),
        *strides(problem, "do"),
        *strides(problem, "o", "out"),
        *(each for name in ("lse", "dlse") for each in strides(problem, name)),
    )
    return Launch(kernel, (tiles * problem.B * problem.H, 1, 1), args)
