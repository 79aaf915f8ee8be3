"""Compiling a Triton kernel for a given device, whether or not the device is there.

The kernel is compiled ahead of its launch from an explicit signature, never through Triton's own
`kernel[grid]`: what is specialised is what the plan says, no driver is started, and no C compiler is
needed on the user's machine. The machine code is kept in this package's disk cache (portable.runtime.build).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, runtime_checkable

from portable import dtypes
from portable.errors import CompileError
from portable.plan import Launch, Pointer, Scalar, TritonKernel

# Triton, LLVM and MLIR compile otherwise under some of these.
_VARIABLES = ("TRITON_", "LLVM_", "MLIR_", "DISABLE_")
# An option "knob.GROUP.NAME" is no option of Triton's compiler, but its `knobs.GROUP.NAME`.
_KNOB = "knob."
_SWIZZLE_128 = 3  # Triton's and the driver's number of the mode


@runtime_checkable
class TritonDescriptorArgument(Protocol):
    """An argument that says of which Triton type it is: a tensor descriptor."""

    @property
    def triton_type(self) -> str: ...


def signature(launch: Launch, types: dict[str, str]) -> tuple[tuple[str, str, bool], ...]:
    """(parameter, Triton type, divisible by 16) of each argument; with the kernel, a build's identity."""
    rows = []
    for name, arg in launch.args:
        if "." in name:  # what Triton passes along with the descriptor before it
            continue
        if isinstance(arg, Pointer):
            rows.append((name, "*" + dtypes.of(arg.dtype or types[arg.tensor]).triton, arg.aligned))
        elif isinstance(arg, Scalar):
            rows.append((name, dtypes.scalar(arg.kind).triton, arg.divisible))
        elif isinstance(arg, TritonDescriptorArgument):
            rows.append((name, arg.triton_type, False))
        else:
            raise TypeError(f"{launch.kernel.name}: a Triton kernel takes no {type(arg).__name__}")
    return tuple(rows)


def compile_triton(
    kernel: TritonKernel, types: tuple[tuple[str, str, bool], ...], target: tuple[str, int | str, int]
) -> Any:
    """Triton's CompiledKernel. Raises CompileError with Triton's own words."""
    import triton
    from triton.backends.compiler import GPUTarget

    source, options = _source(kernel, types), _options(kernel)
    try:
        with _knobs({name: options.pop(name) for name in list(options) if name.startswith(_KNOB)}):
            built = triton.compile(source, target=GPUTarget(*target), options=options)
    except Exception as error:
        raise CompileError(f"{kernel.name} for {target[1]}", f"{type(error).__name__}: {error}") from error
    for each in getattr(built.metadata, "tensordesc_meta", None) or ():
        if each["swizzle"] != _SWIZZLE_128:
            what = f"a tile of {each['block_size']} is narrower than the 128-byte swizzle of our tensor maps"
            raise CompileError(f"{kernel.name} for {target[1]}", what)
    return built


def identity(
    kernel: TritonKernel, types: tuple[tuple[str, str, bool], ...], target: tuple[str, int | str, int]
) -> tuple[str, ...]:
    """What the machine code depends on, for the key of the disk cache.

    Triton's own key adds a hash of its 400 MB of libraries, which takes 0.35 s in every process
    (2026-11-21); its version, and size and time of the library, identify it as well.
    """
    import triton
    from triton._C import libtriton

    library = os.stat(str(libtriton.__file__))
    return (
        f"triton {triton.__version__} {library.st_size} {library.st_mtime_ns}",
        _source(kernel, types).hash(),
        repr(sorted(_options(kernel).items())),
        repr(target),
        repr(sorted(each for each in os.environ.items() if each[0].startswith(_VARIABLES))),
    )


def _options(kernel: TritonKernel) -> dict[str, Any]:
    options = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages, "enable_fp_fusion": True}
    return {**options, **dict(kernel.options)}


@contextmanager
def _knobs(wanted: dict[str, Any]) -> Iterator[None]:
    """Triton with these settings of the process; `build.code_object` compiles one kernel at a time."""
    from triton import knobs

    with ExitStack() as scopes:
        for name, value in wanted.items():
            _, group, setting = name.split(".")
            scopes.enter_context(getattr(knobs, group).scope())
            setattr(getattr(knobs, group), setting, value)
        yield


def _source(kernel: TritonKernel, types: tuple[tuple[str, str, bool], ...]) -> Any:
    """The kernel with its signature, as Triton's compiler takes it."""
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
    return ASTSource(
        kernel.function,
        signature={name: declared.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name, _, div in types if div},
    )
