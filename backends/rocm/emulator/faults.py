"""What can go wrong in the emulator, as errors for people."""

from __future__ import annotations

from typing import Any

from portable.errors import LaunchError, PortableError


class EmulatorError(PortableError, RuntimeError):
    """The base of the emulator's errors."""


class CodeObjectError(EmulatorError, ValueError):
    """Bytes that are no code object this emulator can run: damaged, of another card, or holding an
    instruction it does not know (the message names it)."""


class KernelFault(LaunchError, EmulatorError):
    """A launch did what a GPU might have hidden. Facts: kind, kernel, source ("file:line" or None),
    inlined_at (the lines of the calls through which `source` was inlined, the innermost first; empty if
    it was not), instruction, pc, workgroup, wave, lane, address, detail; any other fact that does not
    apply is None."""

    KINDS = (
        "out-of-bounds",
        "misaligned",
        "uninitialised",
        "lds-race",
        "barrier",
        "budget",
        "inactive-lane",
        "unsupported",
        "trap",
    )

    def __init__(self, kind: str, kernel: str, detail: str, **where: Any) -> None:
        assert kind in self.KINDS, kind
        names = ("source", "instruction", "pc", "workgroup", "wave", "lane", "address")
        facts = {name: where.get(name) for name in names}
        facts["inlined_at"] = tuple(where.get("inlined_at") or ())
        place = []
        if facts["source"]:
            place.append(f"at {facts['source']}")
            place += [f"inlined at {line}" for line in facts["inlined_at"]]
        if facts["instruction"]:
            place.append(
                f"in `{facts['instruction']}`" + ("" if facts["pc"] is None else f" ({facts['pc']:#x})")
            )
        for name in ("workgroup", "wave", "lane"):
            if facts[name] is not None:
                place.append(f"{name} {facts[name]}")
        if facts["address"] is not None:
            place.append(f"address {facts['address']:#x}")
        message = f"{kernel}: {kind}: {detail}" + (f"\n  {', '.join(place)}" if place else "")
        PortableError.__init__(self, message, kind=kind, kernel=kernel, detail=detail, **facts)
