"""`portable check`: compile every implementation for devices that need not be there.

The kernels are those that the specs' cases, demo and bench calls plan, for every row of types and
every config in the vendors' tuned files; each is compiled once per device, and what it takes is held
against what the device has.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

from portable.backend import Backend, MainLoop, Resources
from portable.configs import lookup
from portable.dispatch import select
from portable.dtypes import itemsize
from portable.errors import CompileError, LaunchError, NoCompilerError, PortableError, listed
from portable.plan import Device, Launch, NativeKernel, TensorInfo
from portable.runtime import build, detect
from portable.spec import registry
from portable.spec.model import Case, Implementation, Spec


@dataclass(frozen=True)
class Job:
    """One kernel to compile for one device."""

    op: str
    implementation: str
    backend: Backend
    device: Device
    launch: Launch
    dtypes: tuple[tuple[str, str], ...]
    case: str

    @property
    def kernel(self) -> str:
        """The kernel with what sets it apart: its defines or constants."""
        kernel = self.launch.kernel
        pairs = kernel.defines if isinstance(kernel, NativeKernel) else kernel.constants
        return f"{kernel.name}({', '.join(f'{k}={v}' for k, v in pairs)})"


@dataclass(frozen=True)
class Outcome:
    """What became of a job: `state` is Pass, Spills, TooMuchShared, CompileError, NoCompiler or
    PlanError."""

    op: str
    implementation: str
    arch: str
    kernel: str
    state: str
    resources: Resources | None
    shared: int
    detail: str
    main_loop: MainLoop | None = None


def targets(names: Iterable[str] | None) -> list[tuple[Backend, Device]]:
    """The devices to compile for, by architecture or vendor name; all that any vendor lists by default.

    Raises PortableError for a name that no vendor has.
    """
    known = [
        (backend, device)
        for vendor in registry.vendors()
        for backend in [detect.backend_class(vendor)(registry.vendors()[vendor])]
        for device in backend.targets()
    ]
    if names is None:
        return known
    chosen = []
    for name in names:
        found = [pair for pair in known if name in (pair[1].arch, pair[0].name)]
        if not found:
            raise PortableError(
                f"no vendor compiles for {name!r}; known are {', '.join(device.arch for _, device in known)}"
            )
        chosen += found
    return chosen


def call_signature(
    spec: Spec, case: Case, types: Mapping[str, str], aligned: bool, column_major: Collection[str] = ()
) -> select.CallSignature:
    """A case of the spec as metadata alone; inputs are row-major but those that are named."""
    tensors: dict[str, TensorInfo | None] = {}
    shapes = []
    for name, field in spec.inputs.items():
        if name in case.absent:
            tensors[name] = None
            continue
        leading = tuple(case.leading.get(name, ())) if field.leading else ()
        if field.leading:
            shapes.append(leading)
        own = spec.sizes(name, case)
        dtype = types.get(field.dtype, field.dtype)
        tensors[name] = _info((*leading, *own), dtype, aligned, name in column_major)
    leading = _broadcast(shapes)
    axes = {**case.axes, "B": _product(leading)}
    for name, field in spec.outputs.items():
        absent = field.when is not None and tensors.get(field.when) is None
        own = spec.sizes(name, case)
        shape = (0,) if absent else ((*leading, *own) if field.leading else own)
        tensors[name] = _info(
            shape, types.get(field.dtype, field.dtype), True, field.in_place in column_major
        )
    params = {name: case.params.get(name, param.default) for name, param in spec.params.items()}
    params |= spec.dtype_params(types)
    return select.CallSignature(spec, tensors, params, axes, types)


def _info(shape: tuple[int, ...], dtype: str, aligned: bool, column_major: bool) -> TensorInfo:
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2) if column_major else range(len(shape))
    strides, step = [0] * len(shape), 1
    for axis in reversed(tuple(order)):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return TensorInfo(shape, tuple(strides), dtype, 16 if aligned else itemsize(dtype))


def _product(sizes: Iterable[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*padded, strict=True))


def jobs(
    ops: Iterable[str], chosen: list[tuple[Backend, Device]], quick: bool = False
) -> Iterator[Job | Outcome]:
    """Every distinct kernel of `ops` on each device. `quick` keeps to the demo (or first bench) case and
    the first row of types."""
    for op in ops:
        spec = registry.spec(op)
        cases = ([spec.demo] if spec.demo else list(spec.bench[:1])) if quick else [
            *([spec.demo] if spec.demo else []), *spec.bench, *spec.cases
        ]  # fmt: skip
        rows = spec.types[:1] if quick else spec.types
        ways = ((True, ()), (False, ()), (True, matrices(spec)), (True, matrices(spec)[-1:]))
        for backend, device in chosen:
            for implementation in spec.implementations:
                if implementation.kind == "run" or not could_run(implementation, backend, device):
                    continue
                seen: set[Any] = set()
                for case in cases:
                    for types in rows:
                        for aligned, column_major in ways[:1] if quick else ways:
                            signature = call_signature(spec, case, types, aligned, column_major)
                            yield from _planned(spec, implementation, signature, backend, device, seen, case)


def matrices(spec: Spec) -> list[str]:
    """The inputs that may be row-major or column-major: operands of a product, else those of any strides."""
    operands = [name for name, field in spec.inputs.items() if field.layout == "matrix"]
    return operands or [
        name
        for name, field in spec.inputs.items()
        if field.layout == "any" and field.rank == 2 and not field.mutated
    ]


def could_run(implementation: Implementation, backend: Backend, device: Device) -> bool:
    patterns = implementation.requires.arch
    return any(language in backend.languages for language in implementation.languages) and (
        patterns is None or any(backend.arch_matches(pattern, device.arch) for pattern in patterns)
    )


def _planned(
    spec: Spec,
    implementation: Implementation,
    signature: select.CallSignature,
    backend: Backend,
    device: Device,
    seen: set[Any],
    case: Case,
) -> Iterator[Job | Outcome]:
    if signature.empty:
        return
    try:
        candidate = select.evaluate(implementation, signature, backend, device, static=False)
    except PortableError as error:
        yield Outcome(spec.op, implementation.name, device.arch, case.label, "PlanError", None, 0, str(error))
        return
    if candidate.plan is None:
        return
    dtypes = {name: info.dtype for name, info in signature.tensors.items() if info is not None}
    dtypes.update({w.name: w.dtype for w in candidate.plan.workspaces})
    for launch in candidate.plan.launches:
        if isinstance(launch.kernel, NativeKernel):
            identity: Any = launch.kernel
        else:
            identity = (launch.kernel, build.triton_build.signature(launch, dtypes))
        if identity not in seen:
            seen.add(identity)
            yield Job(
                spec.op, implementation.name, backend, device, launch, tuple(dtypes.items()), case.label
            )


def run(job: Job) -> Outcome:
    """Compile one kernel and hold it against its device."""
    device, loop = job.device, None

    def outcome(state: str, resources: Resources | None, shared: int, detail: str = "") -> Outcome:
        return Outcome(
            job.op, job.implementation, device.arch, job.kernel, state, resources, shared, detail, loop
        )

    try:
        code = build.code_object(job.launch, dict(job.dtypes), job.backend, device)
        found = job.backend.resources(code)
        loop = job.backend.main_loop(code)
    except NoCompilerError as error:
        return outcome("NoCompiler", None, 0, str(error))
    except (CompileError, LaunchError) as error:
        return outcome("CompileError", None, 0, f"{job.case}: {error}")
    shared = found.shared + code.shared
    if found.spills or found.stack:
        what = f"{job.case}: {found.spills} registers go to memory, {found.stack} bytes of stack a thread"
        return outcome("Spills", found, shared, what)
    if shared > device.shared_memory:
        return outcome(
            "TooMuchShared", found, shared, f"{job.case}: the device has {device.shared_memory} bytes"
        )
    return outcome("Pass", found, shared)


def run_all(work: Iterable[Job | Outcome], workers: int) -> Iterator[Outcome]:
    """Outcomes as they come."""
    with ThreadPoolExecutor(workers) as pool:
        pending = []
        for item in work:
            if isinstance(item, Outcome):
                yield item
            else:
                pending.append(pool.submit(run, item))
        for future in as_completed(pending):
            yield future.result()


def uncompiled(
    ops: Iterable[str], chosen: list[tuple[Backend, Device]], outcomes: Iterable[Outcome]
) -> list[str]:
    """A sentence on each device for which none of `ops` has a kernel: its vendor builds none of their
    languages, or their implementations leave the architecture out."""
    compiled = {outcome.arch for outcome in outcomes}
    languages = sorted(
        {each for op in ops for one in registry.spec(op).implementations for each in one.languages}
    )
    theirs = f"the languages of {listed(ops)} are {listed(languages)}"
    return [
        f"nothing to compile for {device.arch}: {backend.name} builds {listed(backend.languages)}; {theirs}"
        for backend, device in chosen
        if device.arch not in compiled
    ]


def tuned_problems() -> list[str]:
    """What is wrong with the vendors' tuned files: entries for ops, tunables or values that are not there."""
    problems = []
    for folder in registry.vendors().values():
        file = folder / "tuned.yaml"
        try:
            for entry in lookup.entries(file):
                spec = registry.spec(entry.op)
                implementation = spec.implementation(entry.implementation)
                if implementation is None:
                    problems.append(f"{file}:{entry.line}: {entry.op} has no {entry.implementation!r}")
                else:
                    lookup.check(file, entry, spec, implementation)
        except PortableError as error:
            problems.append(str(error))
    return problems
