"""The one page of errors: each says which op and argument, what came, what was expected, what to do.

Every class takes facts and forms its message from them; the facts stay readable as attributes. All
of them survive pickling, because the conformance workers send them from process to process.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

_LONGEST_VALUE = 200
_LOG_LINES = 40


class PortableError(Exception):
    """Raised for everything that goes wrong in `portable`; catch this to catch them all."""

    if TYPE_CHECKING:  # facts are attributes

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.__dict__.update(facts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.__dict__.copy())

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


def _rebuild(cls: type[PortableError], message: str, facts: dict[str, Any]) -> PortableError:
    error = cls.__new__(cls, message)
    error.args = (message,)
    error.__dict__.update(facts)
    return error


def nearest(name: str, known: Iterable[str]) -> str:
    """The hint " Did you mean 'relu'?" for a misspelt name, or an empty string."""
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""


def listed(items: Iterable[Any]) -> str:
    """Items as they stand in a sentence: `a, b, c`; `nothing` where there are none."""
    return ", ".join(str(item) for item in items) or "nothing"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def _sentences(*parts: str) -> str:
    """Non-empty parts as sentences, each with its full stop."""
    return " ".join(p if p.endswith((".", "?", "!", "\n")) else p + "." for p in parts if p)


# What a caller can get wrong.


class ArgumentError(PortableError, ValueError):
    """An argument of an op does not match its spec; the subclasses say in which way.

    Facts: `op`, `argument`, `value` (shortened text), `expected`, `remedy`.
    """

    problem = "is {value}"

    def __init__(self, op: str, argument: str, value: Any, expected: str, remedy: str = "") -> None:
        text = _short(value)
        what = f"portable.{op}: argument {argument!r} {self.problem.format(value=text)}"
        super().__init__(
            _sentences(f"{what}; expected {expected}", remedy),
            op=op, argument=argument, value=text, expected=expected, remedy=remedy,
        )  # fmt: skip


class SignatureError(ArgumentError, TypeError):
    """An argument is missing, unknown or given twice; call the op as its signature says."""

    def __init__(self, op: str, problem: str, signature: str) -> None:
        PortableError.__init__(
            self,
            _sentences(f"portable.{op}: {problem}", f"Call it as {op}{signature}"),
            op=op, argument="", value=problem, expected=f"{op}{signature}", remedy="",
        )  # fmt: skip


class NotATensorError(ArgumentError, TypeError):
    """An argument is not an array that `portable` takes; pass a torch tensor or a DLPack array.

    `value` is the type's name.
    """

    problem = "is a {value}"


class DtypeError(ArgumentError, TypeError):
    """A tensor's dtype, or a combination of dtypes, is not in the op's spec; convert the tensor."""

    problem = "has dtype {value}"


class RankError(ArgumentError):
    """A tensor has too few or too many dimensions; reshape it."""

    problem = "has {value} dimensions"


class ShapeError(ArgumentError):
    """A tensor's shape does not fit the spec or the other tensors of the call."""

    problem = "has shape {value}"


class LayoutError(ArgumentError):
    """A tensor's memory layout cannot be used as it is (sparse, quantised, overlapping)."""

    problem = "has layout {value}"


class StorageError(ArgumentError):
    """A tensor reaches beyond its memory: its storage was freed or resized (`untyped_storage().resize_`).

    Every storage is measured at the first call of a kind, and at each call on an emulated GPU; after that a
    storage of no bytes is still seen.
    """

    problem = "reaches {value}"


class DeviceError(ArgumentError):
    """A tensor is on another device than the rest of the call; move it."""

    problem = "is on {value}"


class ParameterError(ArgumentError):
    """A parameter has an illegal value; the message lists the legal ones."""

    problem = "is {value}"

    def __init__(self, op: str, argument: str, value: Any, expected: str, remedy: str = "") -> None:
        try:
            text = repr(value)
        except ValueError:  # an int of thousands of digits
            text = f"a {type(value).__name__}"
        super().__init__(op, argument, text, expected, remedy)


class OutputError(ArgumentError):
    """`out=` cannot take the result: wrong shape, dtype or device, it overlaps an input, or it
    requires a gradient; or an argument that is written in place shares memory. `value` is the phrase after
    "argument 'out'", e.g. "has shape (3, 4)"."""

    problem = "{value}"


class UnsupportedGradientError(PortableError, RuntimeError):
    """The op has no such derivative: its spec has neither a gradient nor a torch implementation, or another
    library's array is among the arguments. Detach the input or use torch's op."""

    def __init__(self, op: str, reason: str, remedy: str = "Detach the input or use torch's own op") -> None:
        super().__init__(
            _sentences(f"portable.{op}: no gradient: {reason}", remedy), op=op, reason=reason, remedy=remedy
        )


class UnsupportedTransformError(PortableError, RuntimeError):
    """A transform of torch.func was applied to what it cannot reach: `out=`, another library's array, lengths
    that are data (`attention_varlen`, `attention_paged`). The message says what to do."""

    def __init__(self, op: str, what: str, remedy: str = "Apply the op to one element at a time.") -> None:
        super().__init__(_sentences(f"portable.{op}: unsupported: {what}", remedy), op=op, what=what)


class UnsupportedDeviceError(PortableError, RuntimeError):
    """The tensors are on a device that the chosen backend does not serve; move them or choose another.

    Facts: `op`, `device`, `expected`, `remedy`.
    """

    def __init__(self, op: str, device: str, expected: str, remedy: str = "") -> None:
        super().__init__(
            _sentences(f"portable.{op}: the tensors are on {device}; expected {expected}", remedy),
            op=op, device=device, expected=expected, remedy=remedy,
        )  # fmt: skip


class UnknownOpError(PortableError, AttributeError):
    """`portable.<name>` is neither an op nor a function; `portable.ops()` lists the ops.

    `known` are the ops that it lists; the nearest name may be that of an `internal` one.
    """

    def __init__(self, name: str, known: Sequence[str], internal: Iterable[str] = ()) -> None:
        hint = nearest(name, [*known, *internal])
        super().__init__(
            _sentences(f"portable has no op {name!r}.{hint}", f"The ops are {listed(known)}"),
            op=name, known=tuple(known),
        )  # fmt: skip


# Choices that cannot be carried out.


class NoImplementationError(PortableError, RuntimeError):
    """No implementation of the op supports this call on this device; the message gives each one's reason.

    `reasons` is a sequence of (implementation, reason); `call` describes the tensors.
    """

    def __init__(
        self, op: str, device: str, reasons: Sequence[tuple[str, str]], call: str = "", remedy: str = ""
    ) -> None:
        head = f"portable.{op}: no implementation runs on {device}" + (f" for {call}" if call else "")
        lines = [f"  {name}: {reason}" for name, reason in reasons] or ["  the op has none for this backend"]
        super().__init__(
            "\n".join([head + ":", *lines, *([remedy] if remedy else [])]),
            op=op, device=device, reasons=tuple(map(tuple, reasons)), call=call, remedy=remedy,
        )  # fmt: skip


class PinError(PortableError, RuntimeError):
    """A pinned choice names nothing, or cannot run this call. Nothing falls back silently: remove the
    pin or repair what it names.

    Facts: `op`, `pinned`, `reason`, `source` (the variable or context manager that pinned it).
    """

    def __init__(self, op: str, pinned: str, reason: str, source: str = "PORTABLE_IMPL") -> None:
        super().__init__(
            _sentences(f"portable.{op}: {source} pins {pinned!r}, but {reason}", "Remove or change the pin"),
            op=op, pinned=pinned, reason=reason, source=source,
        )  # fmt: skip


class BackendError(PortableError, RuntimeError):
    """No backend could be chosen: two are present, the one named is unknown, or the machine's
    GPU and the installed torch do not fit together. The vendor's folder writes the sentence."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(_sentences(problem, remedy), problem=problem, remedy=remedy)

    @classmethod
    def several(cls, present: Sequence[str]) -> BackendError:
        """More than one vendor's GPUs are usable on this machine."""
        return cls(
            f"Several backends are usable here: {listed(present)}",
            f"Choose one with PORTABLE_BACKEND={present[0]} before portable is imported",
        )

    @classmethod
    def unknown(cls, name: str, known: Sequence[str]) -> BackendError:
        """`name` is not the name of a backend."""
        return cls(
            f"PORTABLE_BACKEND={name!r} names no backend.{nearest(name, known)}",
            f"The backends are {listed(known)}",
        )


# Building and running.


class CompileError(PortableError, RuntimeError):
    """A kernel did not compile; `log` is the whole of what the compiler said.

    Facts: `what` (kernel, target, defines), `log`, `command` (what to run to see it again).
    """

    def __init__(self, what: str, log: str, command: str = "") -> None:
        lines = log.strip().splitlines()
        shown = lines[:_LOG_LINES]
        if len(lines) > len(shown):
            shown.append(f"... {len(lines) - len(shown)} more lines in the error's .log")
        tail = [f"Command: {command}"] if command else []
        super().__init__(
            "\n".join([f"{what} did not compile:", *shown, *tail]), what=what, log=log, command=command
        )


class NoCompilerError(CompileError):
    """The compiler of a language is not installed; the message says what to install.

    Facts: `language`, `reason`, `remedy`.
    """

    def __init__(self, language: str, reason: str, remedy: str) -> None:
        PortableError.__init__(
            self, _sentences(f"{language}: {reason}", f"Install one: {remedy}"),
            language=language, reason=reason, remedy=remedy, what=language, log=reason, command="",
        )  # fmt: skip


class KernelArgumentsError(PortableError, TypeError):
    """A plan passes a C++ kernel other arguments than its entry declares: the names, their order and their
    types must be the same. Correct the plan's `Launch.args`, or the kernel.

    Facts: `source`, `entry`, `within` (the struct that differs, with a dot, or ""), `problem`.
    """

    def __init__(self, source: str, entry: str, within: str, problem: str) -> None:
        where = f"{entry} in {source}" + (f", {within.rstrip('.')}" if within else "")
        super().__init__(
            _sentences(f"{where}: {problem}", "Launch.args must be the kernel's parameters, in their order"),
            source=source, entry=entry, within=within, problem=problem,
        )  # fmt: skip


class LaunchError(PortableError, RuntimeError):
    """A kernel could not be loaded or launched, or the device reported a fault.

    Facts: `what` (kernel and grid), `reason` (the driver's code and words), `remedy`.
    """

    def __init__(self, what: str, reason: str, remedy: str = "") -> None:
        super().__init__(
            _sentences(f"{what} could not be launched: {reason}", remedy),
            what=what, reason=reason, remedy=remedy,
        )  # fmt: skip


# Files.


class IntegrationError(PortableError, RuntimeError):
    """A host of `portable.integrations` is not installed, is too old, or would ignore what was asked for.

    Facts: `host` (the library), `problem`, `remedy`.
    """

    def __init__(self, host: str, problem: str, remedy: str) -> None:
        message = _sentences(f"portable.integrations.{host}: {problem}", remedy)
        super().__init__(message, host=host, problem=problem, remedy=remedy)


class _FileError(PortableError, ValueError):
    def __init__(self, file: Any, line: int | None, message: str) -> None:
        where = f"{file}:{line}" if line else str(file)
        super().__init__(f"{where}: {message}", file=str(file), line=line, problem=message)


class SpecError(_FileError):
    """A spec file says something that the schema does not allow; edit the line that is named."""


class TunedFileError(_FileError):
    """A file of tuned configs is damaged or does not fit the op's tunables; edit or delete it."""


class FormulaError(PortableError, ValueError):
    """A formula in a spec cannot be read or evaluated. Facts: `formula` (shortened), `problem`."""

    def __init__(self, formula: str, problem: str) -> None:
        text = _short(formula)
        super().__init__(f"formula {text!r}: {problem}", formula=text, problem=problem)
