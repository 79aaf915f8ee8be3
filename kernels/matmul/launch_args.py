"""What the plans of the C++ matmul kernels share: operand order, defines, and tile.h's parameters."""

from __future__ import annotations

from portable.kernels.matmul.problem import Operand, Problem
from portable.plan import Argument, Launch, NativeKernel, Plan, Pointer, Rejected, Scalar

ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}
MAX_EXTENT = 2**31 - 512  # M, N and K: sizes and tile coordinates are 32-bit
MAX_TILES = 2**31 - 1
GROUP_M = 8  # tile rows of a raster group, for reuse in L2


def ceil(value: int, step: int) -> int:
    return -(-value // step)


def size_class(value: int) -> int:
    """The next power of two. Tiles are chosen by it, so that nearby shapes share a compiled kernel."""
    return 1 << max(value - 1, 0).bit_length()


def maybe_swap_ab(problem: Problem) -> Problem:
    """The product, or c.T = b.T @ a.T (swap A and B) where that makes c row-major or makes a small N a small
    M, which small-M tiles serve."""
    if not problem.transposable:
        return problem
    if problem.c.unit_stride == "row" or (problem.N <= 16 < problem.M):
        return problem.transposed()
    return problem


def unfit(problem: Problem) -> Rejected | None:
    for operand in (problem.a, problem.b):
        if operand.unit_stride is None:
            return Rejected(f"neither rows nor columns of {operand.tensor} are contiguous")
    if max(problem.M, problem.N, problem.K) > MAX_EXTENT:
        return Rejected(f"M, N and K must be at most {MAX_EXTENT}")
    return None


def k_major(problem: Problem) -> tuple[bool, bool]:
    return problem.a.unit_stride == "col", problem.b.unit_stride == "row"


def common_defines(problem: Problem, group_m: int = GROUP_M) -> tuple[tuple[str, int | str], ...]:
    a_k_major, b_k_major = k_major(problem)
    return (
        ("A_K_MAJOR", int(a_k_major)),
        ("B_K_MAJOR", int(b_k_major)),
        ("BIAS", int(problem.bias is not None)),
        ("ACTIVATION", ACTIVATIONS[problem.activation]),
        ("GROUP_M", group_m),
        *preactivation_define(problem),
        *gated_define(problem),
    )


def gated_define(problem: Problem) -> tuple[tuple[str, int], ...]:
    return (("GATED", 1),) if problem.gated else ()


def preactivation_define(problem: Problem) -> tuple[tuple[str, int], ...]:
    return (("PREACTIVATION", 1),) if problem.preactivation is not None else ()


def z_pointer(problem: Problem) -> tuple[tuple[str, Argument], ...]:
    """epilogue.h's Z_PARAMETER."""
    if problem.preactivation is None:
        return ()
    return (("z", Pointer(problem.preactivation, problem.c.alignment >= 16)),)


def sizes(problem: Problem) -> tuple[tuple[str, Argument], ...]:
    """tile.h's SIZES_PARAMETERS."""
    a, b, c = problem.a, problem.b, problem.c
    counts = (("m", problem.M), ("n", problem.N), ("k", problem.K))
    batches = (("outer_batches", problem.batch[0]), ("inner_batches", problem.batch[1]))
    strides = (("a_leading", a.leading), ("b_leading", b.leading), ("c_row", c.row), ("c_col", c.col))
    steps = (
        (f"{name}_{place}", operand.batch[index])
        for name, operand in (("a", a), ("b", b), ("c", c))
        for index, place in enumerate(("outer", "inner"))
    )
    return (
        *((name, Scalar("i32", value)) for name, value in (*counts, *batches)),
        *((name, Scalar("i64", value)) for name, value in (*strides, *steps)),
    )


def pointer(operand: Operand) -> Pointer:
    return Pointer(operand.tensor, operand.alignment >= 16)


def bias(problem: Problem) -> Argument:
    return Scalar("i64", 0) if problem.bias is None else Pointer(problem.bias)


def single_launch(
    kernel: NativeKernel, blocks: int, problem: Problem, first: tuple[tuple[str, Argument], ...]
) -> Plan | Rejected:
    """One launch with `first` and tile.h's SIZES_PARAMETERS as its arguments."""
    if blocks > MAX_TILES:
        return Rejected(f"{blocks} tiles exceed a grid of {MAX_TILES} blocks")
    return Plan((Launch(kernel, (blocks, 1, 1), (*first, *sizes(problem))),))


def pointers(problem: Problem) -> tuple[tuple[str, Argument], ...]:
    a, b, c = problem.a, problem.b, problem.c
    first = ("a", pointer(a)), ("b", pointer(b)), ("bias", bias(problem)), ("c", pointer(c))
    return *first, *z_pointer(problem)


def row_vectors(c: Operand) -> bool:
    return c.col == 1 and c.aligned_to(16)
