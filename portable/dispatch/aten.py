"""`portable.aten()`: torch's own operators run this package's kernels, for code that is not to be changed.

An op's folder says which operators of torch it computes: `kernels/<op>/aten.py` with `OVERRIDES`, a function
for each that takes the operator's arguments and answers as it does, or with the reason, a string, why it does
not. Those in `WITHOUT_GRADIENT` are asked only where no gradient is recorded, as they have no statistics for
a backward pass.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from portable.dispatch import pins
from portable.errors import ArgumentError, PortableError, listed, nearest
from portable.runtime import detect
from portable.spec import registry

_NAME = "aten"
_FILE = "aten.py"
_state = threading.local()  # `busy`: within a call of ours, whose own operators are torch's
_lock = threading.Lock()


@dataclass
class Overrides:
    """What `portable.aten()` took over: calls of each operator, and why others were left to torch."""

    operators: tuple[str, ...]
    taken: Counter[str] = field(default_factory=Counter)
    declined: dict[str, Counter[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = []
        for name in self.operators:
            left = self.declined.get(name, Counter())
            if self.taken[name] or left:
                lines.append(f"{name}: {self.taken[name]:,} taken, {left.total():,} left to torch")
            lines += [f"  {count:,}: {reason}" for reason, count in left.most_common()]
        unused = [name for name in self.operators if not self.taken[name] and name not in self.declined]
        return "\n".join([*lines, f"not called: {listed(unused)}"] if unused else lines)


@dataclass(frozen=True)
class Override:
    """What computes an operator of torch; `gradient` is False where no backward pass can follow it."""

    function: Callable[..., Any]
    gradient: bool = True


def operators() -> Mapping[str, Override]:
    """The operators of torch that some op computes, by their names in `torch.ops.aten`."""
    found: dict[str, Override] = {}
    for file in registry.op_folders().values():
        table = file.parent / _FILE
        if table.is_file():
            module = registry.load_module(table)
            without = getattr(module, "WITHOUT_GRADIENT", ())
            found |= {name: Override(each, name not in without) for name, each in module.OVERRIDES.items()}
    return dict(sorted(found.items()))


@contextlib.contextmanager
def aten(ops: Iterable[str] | None = None, *, batch_invariant: bool = False) -> Iterator[Overrides]:
    """Within the block, these operators of torch run this package's kernels on the active device's tensors.

        with portable.aten() as overrides:
            model(tokens).sum().backward()
        print(overrides)

    ops: names as in `torch.ops.aten`, such as "mm", "addmm", "_softmax"; None: all that
    `portable.aten.operators()` has. The operators are replaced below autograd, autocast and the other layers,
    so that gradients, and functions of torch.nn that end in them, follow. What our op does not compute (an
    integer product, `addmm` with a beta) goes to torch, and `overrides` counts it with the reason. Results
    are those of the op: within its bound, not bit for bit torch's.

    batch_invariant: our ops run as in `portable.using(batch_invariant=True)`: a row has the same bits
    whatever rows are beside it, in backward passes too. Nothing that may break that goes to torch unseen: a
    call of these operators that our op does not compute raises PortableError, unless no operand has floating
    point numbers. Operators of torch that are not in `ops` are as they were.

    It holds for all threads. Code under torch.compile calls what Inductor chose and is not changed. Each call
    costs the host some 10 us more than torch's. Raises ArgumentError for an operator that no op computes and
    for a `batch_invariant` that is not True or False, and PortableError where a block is active already.
    """
    if not isinstance(batch_invariant, bool):
        raise ArgumentError(_NAME, pins.BATCH_INVARIANT, batch_invariant, "True or False")
    known = operators()
    names = tuple(known) if ops is None else tuple(dict.fromkeys(ops))
    for name in names:
        if name not in known:
            expected = f"operators that an op computes: {listed(known)}"
            raise ArgumentError(
                _NAME, "ops", name, expected, nearest(str(name), known).strip() or "Leave it out"
            )
    if not _lock.acquire(blocking=False):
        raise PortableError("portable.aten() is active already: blocks do not nest")
    key = torch._C._dispatch_key_for_device(detect.main_backend().device_type)
    found = Overrides(names)
    library = torch.library.Library("aten", "IMPL")
    try:
        for name in names:
            of_torch = torch.library.get_kernel(f"aten::{name}", key)
            kernel = _kernel(name, known[name], of_torch, found, batch_invariant)
            with warnings.catch_warnings():  # torch warns of the first override
                warnings.simplefilter("ignore")
                library.impl(name, kernel, key, with_keyset=True, allow_override=True)
        yield found
    finally:
        library._destroy()
        _lock.release()


def _kernel(
    name: str, override: Override, of_torch: Any, found: Overrides, batch_invariant: bool
) -> Callable[..., Any]:
    asked = pins.using(batch_invariant=True) if batch_invariant else contextlib.nullcontext()

    def kernel(keys: torch.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        if getattr(_state, "busy", False):
            return of_torch.call_boxed(keys, *args, **kwargs)
        _state.busy = True
        try:
            with asked:
                answer = _answer(override, args, kwargs)
        finally:
            _state.busy = False
        if not isinstance(answer, str):
            found.taken[name] += 1
            return answer
        if batch_invariant and _floats(args, kwargs):
            raise PortableError(
                f"portable.aten(batch_invariant=True): no op computes this call of torch.ops.aten.{name}: "
                f"{answer}. torch's own promises no row the same bits in every batch: change the call, or "
                f"leave {name!r} out of `ops`"
            )
        found.declined.setdefault(name, Counter())[answer] += 1
        return of_torch.call_boxed(keys, *args, **kwargs)

    return kernel


def _floats(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a tensor among the arguments has floating point numbers, whose sums have an order."""
    return any(
        isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())
        for x in (*args, *kwargs.values())
    )


def _answer(override: Override, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The operator's result, or why it is torch's to compute."""
    if (
        not override.gradient
        and torch.is_grad_enabled()
        and any(getattr(x, "requires_grad", False) for x in args)
    ):
        return "a gradient is recorded, for which torch keeps statistics"
    try:
        with torch.no_grad():  # autograd is above
            return override.function(*args, **kwargs)
    except ArgumentError as error:  # what the op does not take; a fault of a kernel goes on
        return str(error).splitlines()[0]
