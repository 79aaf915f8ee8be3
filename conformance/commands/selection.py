"""What a command is to run: the ops, implementations and cases that its options choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import portable
from portable.conformance.cases import generate
from portable.conformance.cases.case import Case
from portable.conformance.execute import behaviour, runner
from portable.conformance.text import UsageError, pluralize
from portable.errors import nearest
from portable.spec import registry

Selected: TypeAlias = Case | behaviour.Behaviour


def chosen_ops(text: str | None) -> list[str]:
    """The ops of `--ops`; all without it. Raises UsageError."""
    known = sorted(registry.op_folders())
    if text is None:
        return known
    wanted = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"--ops {name}: no such op.{nearest(name, known)} The ops are {', '.join(known)}"
            )
    if not wanted:
        raise UsageError("--ops names no op")
    return wanted


def chosen_impls(text: str | None, ops: Sequence[str]) -> list[str] | None:
    """The implementations of `--impl`; None, which is all, without it. Raises UsageError."""
    if text is None:
        return None
    wanted = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    here = sorted({name for op in ops for name in runner.implementations(op)})
    everywhere = sorted({each.name for op in ops for each in registry.spec(op).implementations})
    for name in wanted:
        if name not in everywhere:
            raise UsageError(f"--impl {name}: no such implementation.{nearest(name, everywhere)} "
                          f"There are {', '.join(everywhere)}")  # fmt: skip
        if name not in here:
            raise UsageError(
                f"--impl {name}: it cannot run on {portable.device()}; it runs {', '.join(here)}"
            )
    if not wanted:
        raise UsageError("--impl names no implementation")
    return wanted


def selected(args: Any) -> list[Selected]:
    """The cases and behaviours that the arguments choose, op by op. Raises UsageError where there is none."""
    found: list[Selected] = []
    for op in chosen_ops(args.ops):
        cases = [*generate.cases(registry.spec(op), args.tier), *behaviour.cases([op], args.tier)]
        found += [case for case in cases if args.k is None or args.k in case.id]
    if not found:
        raise UsageError(f"no case's id contains {args.k!r}; `portable-conformance list` prints them")
    shard = generate.shard(found, *args.fraction)
    if not shard:
        i, n = args.fraction
        chosen = pluralize(len(found), "case")
        raise UsageError(f"--fraction {i},{n}: this shard has no case; {chosen} in all")
    return shard
