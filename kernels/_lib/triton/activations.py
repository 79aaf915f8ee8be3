"""Activation functions and their derivatives for Triton kernels, by name, in float32.

WIDE is that of math.py. Every value is within a few units of its own last place, in the tails too.
"""

from __future__ import annotations

import triton
import triton.language as tl

from portable.kernels._lib.triton.math import (
    sigmoid_factors,
    times_gelu_slope,
    times_gelu_tanh_slope,
    times_logistic,
    times_normal,
)


@triton.jit
def activate(x, ACTIVATION: tl.constexpr, WIDE: tl.constexpr):
    """activation(x). relu and relu2 keep NaN; the others are NaN at -inf, as torch's are."""
    if ACTIVATION == "relu":
        return tl.where(x < 0.0, 0.0, x)
    elif ACTIVATION == "relu2":
        return tl.where(x < 0.0, 0.0, x * x)
    elif ACTIVATION == "gelu":
        return times_normal(x, WIDE)
    else:  # x * sigmoid(u)
        u = x
        if ACTIVATION == "quick_gelu":
            u = 1.702 * x
        elif ACTIVATION == "gelu_tanh":  # 0.5 * (1 + tanh(u / 2)) == sigmoid(u)
            u = x * tl.fma(x * x, 0.07135481627260025, 1.59576912160573071176)
        if WIDE:
            left, right, last, _ = sigmoid_factors(u, WIDE)  # pyright: ignore[reportGeneralTypeIssues]
            return (x * left) * right * last
        else:
            return times_logistic(x, u)


@triton.jit
def times_slope(dy, z, ACTIVATION: tl.constexpr, WIDE: tl.constexpr):
    """dy * activation'(z). relu' and relu2' are 0 where z <= 0, whatever dy is, as in torch."""
    if ACTIVATION == "relu":
        return tl.where(z <= 0.0, 0.0, dy)
    elif ACTIVATION == "relu2":
        return tl.where(z <= 0.0, 0.0, 2.0 * (dy * z))
    elif ACTIVATION == "gelu":
        return times_gelu_slope(dy, z, WIDE)
    elif ACTIVATION == "gelu_tanh":
        return times_gelu_tanh_slope(dy, z, WIDE)
    else:  # silu, z * s with s = sigmoid(z): s * (1 + z * (1 - s)); quick_gelu's is the same of 1.702 * z
        if ACTIVATION == "quick_gelu":
            z = 1.702 * z
        left, right, last, complement = sigmoid_factors(z, WIDE)  # pyright: ignore[reportGeneralTypeIssues]
        return (tl.fma(z, complement, 1.0) * left) * (dy * right) * last
