"""The probes of scaled_mm_nvfp4: scales of 16 numbers in float8_e4m3fn, and those of the whole."""

from __future__ import annotations

import torch

from portable.kernels.scaled_mm.fp4.probes import Kind, probes_of

WHOLE = {"global_a": torch.tensor([0.25]), "global_b": torch.tensor([8.0])}
PROBES = probes_of(Kind(16, torch.float8_e4m3fn, 0x38, 8, 0x7F, WHOLE))
