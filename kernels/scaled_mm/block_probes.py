"""Exact answers of scaled_mm_block: those of probes.py, with a scale per block."""

from __future__ import annotations

from portable.kernels.scaled_mm import reference
from portable.kernels.scaled_mm.probes import KINDS, named, of_blocks

PROBES = tuple(named(each, of_blocks, reference.scaled_mm_block) for each in KINDS)
