"""The plan of the C++ kernels of the quantisers to 4 bits: quantize_int8's, with codes of 4 bits."""

from __future__ import annotations

from portable.kernels.quantize_int8.native import quantized_rows
from portable.plan import Call, Plan, Rejected


def plan(call: Call) -> Plan | Rejected:
    """q, scale and, of the asymmetric op, a zero point from x: one launch."""
    return quantized_rows(call, bits=4)
