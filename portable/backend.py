"""What a vendor folder must provide: `backends/<vendor>/backend.py` holds one subclass of `Backend`.

A backend knows how its GPUs are detected, compiled for and launched on. It knows no op. The core
finds it by its folder, calls `detect` at import, and everything else at the first call.
"""

from __future__ import annotations

import os
import platform
import shutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

import torch

from portable.errors import BackendError, LaunchError
from portable.plan import ByValueArgument, Device, KernelArgument, NativeKernel


@dataclass(frozen=True)
class Machine:
    """What detection may look at: the torch build, the environment and the file system.

    Nothing here starts a driver: a detection that follows these is safe to fork after. Tests hand in
    a machine of their own.
    """

    torch_build: Mapping[str, str | None]
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    exists: Callable[[str], bool] = os.path.exists
    listdir: Callable[[str], list[str]] = os.listdir
    read: Callable[[str], str] = lambda path: Path(path).read_text()
    which: Callable[[str], str | None] = shutil.which
    system: str = platform.system()


@dataclass(frozen=True)
class Detection:
    """Whether a vendor's GPU is there, whether torch can use it, and one sentence why."""

    present: bool
    usable: bool
    reason: str


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel takes: registers per thread, bytes of static shared memory (LDS) per
    block, bytes of stack per thread and registers spilled to memory."""

    registers: int
    shared: int
    stack: int
    spills: int


@dataclass(frozen=True)
class MainLoop:
    """The main loop of a matrix kernel: what one wave executes in an iteration, instructions by kind.

    `vector` leaves out matrix and transcendental instructions; `flops` and `lds_read_bytes` are the whole
    wave's.
    """

    matrix: int
    vector: int
    transcendental: int
    lds_reads: int
    lds_writes: int
    global_accesses: int
    scalar: int
    barriers: int
    waits: int
    flops: int
    lds_read_bytes: int


@dataclass(frozen=True)
class CodeObject:
    """A kernel as machine code. `threads` per block, `shared` dynamic bytes; `scratch_pointers` null
    pointers follow the kernel's own arguments (Triton's hidden ones); `pdl` is NativeKernel's; `parameters`
    are those of a C++ entry (portable.runtime.kernel_abi), None where they were not read."""

    binary: bytes
    entry: str
    threads: int
    shared: int
    language: str
    scratch_pointers: int = 0
    pdl: bool = False
    parameters: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class Pipe:
    """An execution pipe of a GPU: the cycles that a launch keeps it busy, summed over the compute units, and
    by source line, the busiest first."""

    name: str
    cycles: int
    lines: list[tuple[str, int]]


@dataclass(frozen=True)
class Bound:
    """The highest share of a roof that a launch's instructions could reach: `roof_cycles` of `roof` ("matrix"
    or "memory") over the cycles of its busiest pipe. `pipes` come busiest first. No time is in it."""

    roof: str
    roof_cycles: int
    share: float
    pipes: list[Pipe]


@dataclass(frozen=True)
class Trace:
    """What one launch did, as counted: `rows` are (label, value) for people, `figures` the same for programs
    (JSON), `lines` (source line, instructions); `bound` where the device has a model of its pipes."""

    kernel: str
    grid: tuple[int, int, int]
    rows: list[tuple[str, Any]]
    lines: list[tuple[str, int]]
    figures: Mapping[str, Any] = field(default_factory=dict)
    bound: Bound | None = None


@dataclass(frozen=True)
class Modelled:
    """A launch's time by a model of the GPU: `cycles` at `ghz`, the clock under this load, are its
    `seconds` but for the start of the kernel. `matrix_share` and `vector_share` are those of the cycles
    in which the pipes were busy, `waves` what the waves' time went to by name, as shares ("issue":
    instructions; the others are waits). `workgroups` were launched, `recorded` of them executed,
    `resident` run on a compute unit at once; `bound` is `Bound.share`, `resources` what `Trace.figures`
    says of registers, LDS and occupancy. `accuracy` says how far the model is off."""

    kernel: str
    grid: tuple[int, int, int]
    seconds: float
    cycles: float
    ghz: float
    matrix_share: float
    vector_share: float
    workgroups: int
    recorded: int
    resident: int
    waves: Mapping[str, float]
    bound: float
    resources: Mapping[str, int]
    accuracy: str


@dataclass(frozen=True)
class ModelledRoof:
    """What a model of the GPU allows at most: `rates` per second, `copy_bytes_per_s` and for a dtype
    `matmul_<dtype>_flop_per_s`, as a record names the measured ones. `accuracy` says how far the model's
    times are off."""

    rates: Mapping[str, float]
    accuracy: str


@dataclass(frozen=True)
class Finding:
    """Something undefined that a kernel did, at a line of its source where that is known; of the level
    "warning" something that is defined only up to rounding."""

    kind: str
    kernel: str
    message: str
    file: str | None
    line: int | None
    level: str = "error"


@dataclass
class Programs:
    """What programs did on an emulated GPU so far: launches by kernel; by kernel how often an autotuner took
    its first configuration that fits; findings, and `warnings`, which are no fault. `header` says what the
    GPU is; `instructions` are the kinds that the launched kernels have, by how closely they follow the
    hardware (EXACT, or a few words); `notes` are further lines for the reader."""

    EXACT: ClassVar[str] = "exact"

    header: str
    launches: Counter[str] = field(default_factory=Counter)
    tuned: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    instructions: dict[str, set[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def fidelity(self) -> str:
        """One sentence about `instructions`; empty before the first launch."""
        if not self.instructions:
            return ""
        said = [f"{len(self.instructions.get(self.EXACT, ()))} kinds exact"]
        said += [
            f"{how}: {', '.join(sorted(names))}"
            for how, names in sorted(self.instructions.items())
            if how != self.EXACT
        ]
        return "instructions: " + "; ".join(said)


@dataclass(frozen=True)
class HostProgram:
    """A compiled program, host code included: `run(arguments)`, the first its name, runs it once in this
    process and returns its exit status (128 and the signal's number after a crash); `found` is what its
    kernels did."""

    found: Programs
    run: Callable[[Sequence[str]], int]


class Backend(ABC):
    """One vendor. Instances are made once per process; every method may be called from any thread."""

    name: ClassVar[str]
    languages: ClassVar[tuple[str, ...]]
    device_type: str = "cpu"
    order: ClassVar[int] = 0
    program_suffixes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, folder: Path):
        self.folder = folder

    # Detection -----------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def detect(cls, machine: Machine) -> Detection:
        """Look for a device without starting a driver, a context or a process."""

    @classmethod
    def emulation(cls, machine: Machine) -> Detection | None:
        """Whether an emulated GPU can stand in for the vendor's; None where there is no such device."""
        return None

    def emulated(self, machine: Machine) -> Backend:
        """The backend of the emulated GPU; used where `emulation` says that it is usable."""
        raise NotImplementedError

    @abstractmethod
    def device(self, index: int) -> Device:
        """The device with this index; may start the driver."""

    def language_missing(self, language: str) -> str | None:
        """Why kernels in `language` cannot be built on this machine, or None where they can."""
        return None

    # Devices it can compile for with none there ----------------------------------------------------

    def targets(self) -> tuple[Device, ...]:
        """Every device that `portable check` compiles for."""
        return ()

    def arch_matches(self, pattern: str, arch: str) -> bool:
        """Whether a spec's `requires: {arch: [...]}` entry admits `arch`; glob patterns by default."""
        return fnmatchcase(arch, pattern)

    def known(self) -> tuple[Device, ...]:
        """Every device whose features are known, for finding the one that is most like another."""
        return self.targets()

    def generation(self, arch: str) -> float:
        """The generation of an architecture as a number; a whole step apart is much unlike."""
        return 0.0

    def versions(self) -> Mapping[str, str]:
        """What besides torch and Triton a measurement depends on: the driver, the vendor's libraries."""
        return {}

    # Compiling and launching ---------------------------------------------------------------------

    def triton_target(self, device: Device) -> tuple[str, int | str, int]:
        """Triton's name of the device: (backend, arch, warp size)."""
        raise NotImplementedError

    def compile_native(self, kernel: NativeKernel, device: Device, includes: tuple[Path, ...]) -> bytes:
        """Machine code of one native kernel. Raises CompileError with the compiler's own words."""
        raise NotImplementedError

    def predefined_macros(self, device: Device) -> Mapping[str, str] | None:
        """The macros that the C++ compiler itself defines for `device`, as far as a kernel's parameters may
        depend on them; None where the sources are not C++, and launches are not compared with them."""
        return None

    def compiler_version(self, language: str) -> str:
        """Part of the key of the disk cache."""
        return ""

    def resources(self, code: CodeObject) -> Resources:
        """What the compiled kernel takes, read from the machine code."""
        raise NotImplementedError

    def main_loop(self, code: CodeObject) -> MainLoop | None:
        """The kernel's main loop, read from the machine code; None where it has none or cannot be read."""
        return None

    def load(self, code: CodeObject, device: Device) -> Any:
        """Load machine code on a device; returns a function handle for `launch`."""
        raise NotImplementedError

    def encoder(self, argument: ByValueArgument) -> Callable[[int], bytes]:
        """The argument's bytes as a function of the tensor's address: by default its own `encode`."""
        encode = getattr(argument, "encode", None)
        if encode is None:
            raise LaunchError(type(argument).__name__, f"the {self.name} backend has no such argument")
        return encode

    def launcher(
        self,
        function: Any,
        code: CodeObject,
        device: Device,
        arguments: tuple[KernelArgument, ...],
        grid: tuple[int, int, int],
        kernarg: bytearray,
    ) -> Callable[[int], None]:
        """A callable `(stream)` that launches one loaded function with what `kernarg` holds by then;
        `arguments` give the place of each argument in it. Made once per launch of a plan and thread."""
        raise NotImplementedError

    def trace(self) -> AbstractContextManager[list[Trace]]:
        """A block whose launches are counted; the list fills as they end. Raises BackendError where the
        device counts nothing."""
        raise BackendError(f"The {self.name} backend counts nothing; an emulated GPU does")

    def model(self) -> AbstractContextManager[list[Modelled]]:
        """A block whose launches are not run but timed by a model; the list fills as they are made. What they
        would write is left as it was, in part. Raises BackendError where the device has no such model."""
        raise BackendError(f"The {self.name} backend models no times; an emulated GPU does")

    def modelled_roof(self) -> ModelledRoof | None:
        """The roof of the device by the model of `model`; None where it has no such model."""
        return None

    def modelled(self, op: str, device: Device) -> list[str]:
        """What is known of the times of the op's implementations on this device by a model, a line each."""
        return []

    def triton(self) -> AbstractContextManager[Any]:
        """A block in which anybody's Triton kernel, launched as `kernel[grid](...)`, runs on this device."""
        return nullcontext()

    def programs(self, extents: str, races: bool) -> AbstractContextManager[Programs]:
        """A block in which programs written for the vendor's GPU run on this device, as `portable.emulated`
        says. Raises BackendError where the device is not emulated."""
        raise BackendError(f"The {self.name} backend emulates no GPU: programs run on it as they are")

    def host_program(self, source: Path, options: Sequence[str], races: bool) -> HostProgram:
        """Compile a program in the vendor's language, host code included, for this emulated device; its file
        has one of `program_suffixes`. `options` are the compiler's; with `races` those of workgroups in
        global memory are looked for. Raises CompileError."""
        raise BackendError(f"The {self.name} backend emulates no GPU: compile {source.name} as usual")

    def count(self) -> int:
        """How many devices there are."""
        return 1

    @staticmethod
    def current() -> int:
        """The index of this thread's current device."""
        return 0

    @staticmethod
    def stream(index: int) -> int:
        """The handle of torch's current stream on device `index`."""
        return 0

    @staticmethod
    def empty(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A new tensor on the current device, its elements not set."""
        return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")

    def on(self, index: int) -> AbstractContextManager[Any]:
        """Makes device `index` the current one within a block, where it is not already."""
        return nullcontext()

    def info(self) -> list[tuple[str, str]]:
        """Lines of `portable info` about this machine: (what, value)."""
        return []
