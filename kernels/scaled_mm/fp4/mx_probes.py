"""The probes of scaled_mm_mxfp4: scales of 32 numbers in e8m0."""

from __future__ import annotations

import torch

from portable.kernels.scaled_mm.fp4.probes import Kind, probes_of

PROBES = probes_of(Kind(32, torch.float8_e8m0fnu, 127, 1, 255, {}))
