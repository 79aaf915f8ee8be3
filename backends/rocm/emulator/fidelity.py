"""How closely the emulator follows the hardware in the instructions of a code object (README, Accuracy)."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from portable.backend import Programs
from portable.backends.rocm.emulator.launch import linked_program

ROUNDED = "within 0.5 ulp, the hardware may differ in the last bit"
ASSUMED = "order of addition assumed"
_ROUNDED = re.compile(r"[vs]_(exp|log|rcp|rcp_iflag|rsq|sqrt|sin|cos)_(f32|f16|f64)")
_MATRIX = re.compile(r"v_(mfma|smfmac|wmma)_")
_INTEGER = re.compile(r"_(i8|i32|iu4|iu8)(_|$)")
# The order in which a matrix instruction adds is published for these architectures only; of no sparse one.
_PUBLISHED = ("gfx90a", "gfx942")


def instructions(code: Any) -> dict[str, set[str]]:
    """The mnemonics in a `code_object.CodeObject` by how closely they are followed."""
    found: dict[str, set[str]] = defaultdict(set)
    for op in linked_program(code).program.ops:
        if op is not None:
            found[_how(op.name, code.arch)].add(op.name)
    return dict(found)


def _how(name: str, arch: str) -> str:
    if _ROUNDED.match(name):
        return ROUNDED
    published = arch in _PUBLISHED and not name.startswith("v_smfmac_")
    if not published and _MATRIX.match(name) and not _INTEGER.search(name):
        return ASSUMED
    return Programs.EXACT
