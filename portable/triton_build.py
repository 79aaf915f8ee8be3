"""Compiling a Triton kernel for a given card, whether or not the card is there.

The kernel is compiled ahead of its launch from an explicit signature, never through Triton's own
`kernel[grid]`: what is specialised is what the plan says, no driver is started, and no C compiler is
needed on the user's machine. Triton keeps its own disk cache (safe between processes).
"""

from __future__ import annotations

from typing import Any

from portable.errors import CompileError
from portable.plan import Launch, Pointer, Scalar, TritonKernel

_POINTEES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float64": "fp64",
    "int32": "i32",
    "int64": "i64",
}
_SCALARS = {"i32": "i32", "i64": "i64", "u32": "u32", "f32": "fp32"}


def signature(launch: Launch, dtypes: dict[str, str]) -> tuple[tuple[str, str, bool], ...]:
    """(parameter, Triton type, divisible by 16) of each argument; with the kernel, a build's identity."""
    rows = []
    for name, arg in launch.args:
        if isinstance(arg, Pointer):
            rows.append((name, "*" + _POINTEES[dtypes[arg.tensor]], arg.aligned))
        elif isinstance(arg, Scalar):
            rows.append((name, _SCALARS[arg.kind], arg.divisible))
        else:
            raise TypeError(f"{launch.kernel.name}: a Triton kernel takes no {type(arg).__name__}")
    return tuple(rows)


def compile_triton(
    kernel: TritonKernel, types: tuple[tuple[str, str, bool], ...], target: tuple[str, int | str, int]
) -> Any:
    """Triton's CompiledKernel. Raises CompileError with Triton's own words."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(kernel.function.arg_names)
    constants = dict(kernel.constants)
    declared = {name: kind for name, kind, _ in types}
    missing = [name for name in names if name not in declared and name not in constants]
    unknown = [name for name in (*declared, *constants) if name not in names]
    if missing or unknown:
        raise CompileError(kernel.name, f"the plan leaves out {missing} and names unknown {unknown}")
    order = [name for name in names if name in declared]
    if order != list(declared):
        raise CompileError(kernel.name, f"the plan's arguments must come in the kernel's order {order}")
    source = ASTSource(
        kernel.function,
        signature={name: declared.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name, _, div in types if div},
    )
    options = {
        "num_warps": kernel.num_warps,
        "num_stages": kernel.num_stages,
        "enable_fp_fusion": True,
        **dict(kernel.options),
    }
    try:
        return triton.compile(source, target=GPUTarget(*target), options=options)
    except Exception as error:
        raise CompileError(f"{kernel.name} for {target[1]}", f"{type(error).__name__}: {error}") from error
