"""The plan of simt_bulk.cu: float32 on the vector units, operands brought by Hopper's copy engine."""

from __future__ import annotations

from portable.kernels.matmul.launches import (
    HERE,
    MOST_TILES,
    along_k,
    bias,
    ceil,
    common_defines,
    oriented,
    pointer,
    row_vectors,
    sizes,
    unfit,
    z_pointer,
)
from portable.kernels.matmul.operand_map import no_map, tensor_map
from portable.kernels.matmul.problem import Problem
from portable.plan import Call, Launch, NativeKernel, Plan, Rejected

_M, _N, _LINE = 128, 256, 32
_STAGES = 4
_THREADS = 256 + 128
_SHARED = 1024 + _STAGES * ((_M + _N) * 128 + 16)


def plan_simt_bulk(problem: Problem, call: Call) -> Plan | Rejected:
    """float32 with IEEE products on the vector units, for operands in 16-byte aligned lines."""
    if problem.dtype != "float32" or problem.precision == "tf32":
        return Rejected(f"{problem.dtype} with {problem.precision} products is for matrix cores")
    problem = oriented(problem)
    if (reason := unfit(problem)) is not None:
        return reason
    M, N, K, a, b = problem.M, problem.N, problem.K, problem.a, problem.b
    if K == 0:
        return Rejected("an empty sum has nothing to copy")
    for operand, rows, cols in ((a, M, K), (b, K, N)):
        if (reason := no_map(operand, rows, cols)) is not None:
            return reason
    a_along_k, b_along_k = along_k(problem)
    blocks = ceil(M, _M) * ceil(N, _N) * problem.batches
    if blocks > MOST_TILES:
        return Rejected(f"{blocks} tiles exceed {MOST_TILES}")
    kernel = NativeKernel(
        HERE / "simt_bulk.cu",
        "matmul_simt_bulk",
        threads=_THREADS,
        defines=(
            ("ELEMENT", "f32"),
            ("STAGES", _STAGES),
            ("C_VECTOR", int(row_vectors(problem.c))),
            *common_defines(problem),
        ),
        shared=_SHARED,
    )
    maps = (
        ("map_a", tensor_map(a, M, K, problem.batch, _M if a_along_k else _LINE)),
        ("map_b", tensor_map(b, K, N, problem.batch, _N if b_along_k else _LINE)),
    )
    outputs = (("c", pointer(problem.c)), *z_pointer(problem))
    return Plan((Launch(kernel, (blocks, 1, 1), (*maps, ("bias", bias(problem)), *outputs, *sizes(problem))),))
