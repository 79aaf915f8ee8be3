"""Finds ops and vendors by folder, and loads their modules by name. No list names any of them.

An op is a folder with a `spec.yaml`. The section `backward` of it and further YAML files beside it are
internal ops (its backward op, say): callable, not listed. A vendor is a folder with a `backend.py`. Besides
the folders of this package, PORTABLE_KERNEL_PATH and PORTABLE_BACKEND_PATH add more (several, separated as
in PATH).
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portable.errors import ArgumentError, BackendError, SpecError, UnknownOpError
from portable.spec import fallback

if TYPE_CHECKING:
    from portable.spec.model import Entry, Spec

KERNEL_PATH = "PORTABLE_KERNEL_PATH"
BACKEND_PATH = "PORTABLE_BACKEND_PATH"

_OP_LINE = re.compile(rb"^op:[ \t]*([A-Za-z_]\w*)", re.MULTILINE)
_BACKWARD_LINE = re.compile(rb"^backward:", re.MULTILINE)
_FUNCTIONS_LINE = re.compile(rb"^functions:[ \t]*\[([^\]]*)\]", re.MULTILINE)
_SCAN_BYTES = 4096


@cache
def _built_in(package: str) -> Path:
    return Path(importlib.import_module(package).__path__[0]).resolve()


def _extra(variable: str) -> tuple[Path, ...]:
    value = os.environ.get(variable)
    return _folders(value, os.getcwd()) if value else ()


@cache
def _folders(value: str, _relative_to: str) -> tuple[Path, ...]:
    return tuple(Path(text).resolve() for text in value.split(os.pathsep) if text)


def kernel_roots() -> tuple[Path, ...]:
    """The folders whose subfolders are ops; this package's own first."""
    return (_built_in("portable.kernels"), *_extra(KERNEL_PATH))


def backend_roots() -> tuple[Path, ...]:
    """The folders whose subfolders are vendors; this package's own first."""
    return (_built_in("portable.backends"), *_extra(BACKEND_PATH))


def op_folders() -> dict[str, Path]:
    """Every op by name, internal ops included, with its spec file. Nothing is parsed."""
    return dict(_scan_ops(kernel_roots())[0])


def public_ops() -> tuple[str, ...]:
    """The ops that `portable.ops()` lists, in alphabetical order."""
    return _scan_ops(kernel_roots())[1]


def functions() -> dict[str, Path]:
    """What people call in the place of an op, by name, with its Python file: the `functions:` of specs."""
    return dict(_scan_ops(kernel_roots())[2])


@cache
def _scan_ops(roots: tuple[Path, ...]) -> tuple[dict[str, Path], tuple[str, ...], dict[str, Path]]:
    found: dict[str, Path] = {}
    public: list[str] = []
    functions: dict[str, Path] = {}

    def add(name: str, file: Path) -> None:
        if name in found:
            raise SpecError(file, None, f"the op {name!r} is already defined in {found[name]}")
        found[name] = file

    for root in roots:
        if not root.is_dir():
            raise SpecError(root, None, f"{KERNEL_PATH} names a folder that does not exist")
        for folder in _subfolders(root):
            files = sorted(each.name for each in os.scandir(folder) if each.name.endswith(".yaml"))
            if "spec.yaml" not in files:
                continue
            add(folder.name, folder / "spec.yaml")
            public.append(folder.name)
            if _BACKWARD_LINE.search((folder / "spec.yaml").read_bytes()):
                add(f"{folder.name}_backward", folder / "spec.yaml")
            for name in files:
                op, entries = _head(folder / name)
                if name != "spec.yaml" and op:
                    add(op, folder / name)
                for file, _, function in (entry.partition(":") for entry in entries):
                    if function in functions:
                        problem = f"{function!r} is already in {functions[function]}"
                        raise SpecError(folder / name, None, problem)
                    functions[function] = folder / file
    for name, file in functions.items():
        if name in found and found[name].parent not in file.parents:
            raise SpecError(file, None, f"{name!r} is already an op, defined in {found[name]}")
    return found, tuple(sorted(public)), functions


def _subfolders(root: Path) -> list[Path]:
    names = sorted(each.name for each in os.scandir(root) if each.is_dir())
    return [root / name for name in names if name[0] not in "_."]


def _head(file: Path) -> tuple[str | None, list[str]]:
    """The op that a YAML file defines and its functions, read from the lines `op:` and `functions:`."""
    with file.open("rb") as stream:
        text = stream.read(_SCAN_BYTES)
    op, functions = _OP_LINE.search(text), _FUNCTIONS_LINE.search(text)
    entries = functions[1].decode().replace('"', "").split(",") if functions else []
    return op[1].decode() if op else None, [entry.strip() for entry in entries]


def op_name(value: Any, function: str, argument: str, call: str) -> str:
    """`value`, an argument of `portable.<function>` that names an op. Raises UnknownOpError; ArgumentError
    for what is no name: for an op's function it has the right `call`, where {} stands for the name."""
    if isinstance(value, str):
        if value not in op_folders():
            raise UnknownOpError(value, public_ops(), op_folders())
        return value
    name = getattr(value, "__name__", None)
    remedy = (
        f"Pass its name: {call.format(repr(name))}" if name in op_folders() else "portable.ops() lists them"
    )
    raise ArgumentError(function, argument, value, "the name of an op", remedy)


def spec(name: str) -> Spec:
    """The parsed spec of an op. Raises UnknownOpError with the nearest name, or SpecError.

    The files that the spec names need not exist until they are used: `portable check` and the tests
    look at all of them.
    """
    file = _scan_ops(kernel_roots())[0].get(name)
    if file is None:
        raise UnknownOpError(name, public_ops(), op_folders())
    return _parsed(file, file.name == "spec.yaml" and name != file.parent.name)


@cache
def _parsed(file: Path, backward: bool) -> Spec:
    from portable.spec.reader import load_spec

    return load_spec(file, files=False, backward=backward)


def vendors() -> dict[str, Path]:
    """Every vendor by name with its folder."""
    return dict(_scan_vendors(backend_roots()))


@cache
def _scan_vendors(roots: tuple[Path, ...]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for root in roots:
        if not root.is_dir():
            raise BackendError(f"{BACKEND_PATH} names {root}, which is no folder", f"Correct {BACKEND_PATH}")
        for folder in _subfolders(root):
            if not (folder / "backend.py").is_file():
                continue
            if folder.name in found:
                problem = f"the vendor {folder.name!r} is in {found[folder.name]} and in {folder}"
                raise BackendError(problem, f"Correct {BACKEND_PATH}")
            found[folder.name] = folder
    return found


def load_module(file: Path) -> types.ModuleType:
    """The module of a Python file in an op's or a vendor's folder, imported once.

    Files of this package are imported under their own name (`portable.kernels.<op>.<stem>`); others
    under a package made for the op's or vendor's folder, so that two may hold files of the same name
    and relative imports work, between its subfolders too. What the module raises is passed on.
    """
    file = Path(file).resolve()
    for package in ("portable.kernels", "portable.backends"):
        root = _built_in(package)
        if file.is_relative_to(root):
            return _import_below(package, root, file)
    folder = file.parent
    for root in (*kernel_roots(), *backend_roots()):
        if folder.is_relative_to(root) and folder != root:
            folder = root / folder.relative_to(root).parts[0]
    return _import_below(_package_for(folder), folder, file)


def _import_below(package: str, folder: Path, file: Path) -> types.ModuleType:
    return importlib.import_module(".".join([package, *file.relative_to(folder).with_suffix("").parts]))


def _package_for(folder: Path) -> str:
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    name = f"portable_external_{digest}"
    if name not in sys.modules:
        package = types.ModuleType(name, f"The Python files of {folder}.")
        package.__path__ = [str(folder)]
        sys.modules.setdefault(name, package)
    return name


def load_entry(entry: Entry) -> Callable[..., Any]:
    """The function that a spec names as `file.py:function`."""
    if entry.module is not None:
        return _of_torch(entry, entry.module)
    module = load_module(entry.file)
    function = getattr(module, entry.function, None)
    if not callable(function):
        raise SpecError(entry.file, None, f"the spec names {entry}, but the file has no such function")
    from portable.spec.model import RoundedReference

    if isinstance(entry, RoundedReference):
        return fallback.rounded(function, entry)
    if not entry.arguments:
        return function
    try:
        inspect.signature(function).bind(None, **entry.arguments)
    except TypeError as error:
        raise SpecError(entry.file, None, f"{entry} as a spec names it: {error}") from None
    return functools.partial(function, **entry.arguments)


def of_tensors(entry: Entry, inputs: Iterable[str], params: Mapping[str, Any]) -> Callable[..., Any]:
    """The function that a spec names, of the op's tensors in their order; the parameters are given."""
    names, function = tuple(inputs), load_entry(entry)
    if entry.module is None:
        return lambda *tensors: function(**dict(zip(names, tensors, strict=True)), **params)
    rest = [params[name] for name in (entry.positional or ())[len(names) :]]
    return lambda *tensors: function(*tensors, *rest)


def call_by_name(function: Callable[..., Any], arguments: Mapping[str, Any], facts: Mapping[str, Any]) -> Any:
    """What a function of an op's file returns, which gets those of the arguments that it takes, and of the
    facts (`types`, the call's row; `axes`, its sizes) those that it names."""
    parameters = inspect.signature(function).parameters
    given = {**arguments, **{name: value for name, value in facts.items() if name in parameters}}
    if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        given = {name: value for name, value in given.items() if name in parameters}
    return function(**given)


@cache
def _of_torch(entry: Entry, module: str) -> Callable[..., Any]:
    """torch's own function, to be called with the op's arguments, by name as well."""
    found: Any = importlib.import_module("torch")
    for name in [*module.split(".")[1:], entry.function]:
        found = getattr(found, name, None)
    if not callable(found):
        raise SpecError(entry.file, None, f"the spec names {entry}, but this torch has no such function")
    rest = entry.positional or ()

    def run(*ordered: Any, **named: Any) -> Any:
        if named:
            ordered += tuple([named[name] for name in rest[len(ordered) :]])
        return found(*ordered)

    return run


def clear_caches() -> None:
    """Drops what was found and parsed, for tests that add or change folders."""
    for function in (_scan_ops, _parsed, _scan_vendors):
        function.cache_clear()
