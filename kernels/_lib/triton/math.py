"""Elementary functions for Triton kernels, in float32, that stay accurate where the plain ones do not.

WIDE says that the result is kept as float32. Where it is rounded to 16 bits, a relative error of 2^-20
cannot be seen, and a shorter form with the same range takes the place of the exact one: 16-bit tensors
give the arithmetic half the time per element.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def exponent_error(x, product):
    """What rounding lost in product = x * log2(e), as a relative error of exp(x)."""
    lost = tl.fma(x, 1.92596299112661746887e-8, tl.fma(x, 1.44269502162933349609375, -product))
    return lost * 0.69314718055994530942


@triton.jit
def exp_scaled(x, shift):
    """2^shift * exp(x) for x <= 0 (or NaN) within 2 ulp where that is a normal number, else perhaps 0;
    `shift` is a whole number, 0 unless x < -shift.

    exp2(x * log2(e)) alone is off by |x| ulp, as the product is rounded; the error is carried along.
    Below -150 the result is that of -150, so that no infinity reaches the error term.
    """
    x = tl.where(x < -150.0, -150.0, x)
    product = x * 1.44269502162933349609375
    power = tl.exp2(product + shift)
    return tl.fma(power, exponent_error(x, product), power)


@triton.jit
def exp_nonpositive(x, WIDE: tl.constexpr = True):  # pyright: ignore[reportArgumentType]
    """exp(x) for x <= 0 (or NaN), subnormal results included: within 4 ulp, or |x| ulp if not WIDE.

    Triton's exp2 flushes subnormal results on NVIDIA, so half the exponent goes in and the power is
    squared: a product keeps subnormals.
    """
    if WIDE:
        x = tl.where(x < -150.0, -150.0, x)
        product = x * 1.44269502162933349609375
        half = tl.exp2(0.5 * product)
        power = half * tl.fma(half, exponent_error(x, product), half)
    else:
        half = tl.exp2(x * 0.72134752044448170368)
        power = half * half
    return power


@triton.jit
def sigmoid_factors(x, WIDE: tl.constexpr = True):  # pyright: ignore[reportArgumentType]
    """(left, right, last, complement): a * sigmoid(x) * b == (a * left) * (b * right) * last for any a and b,
    rounded well right down to subnormal products; complement is sigmoid(-x).

    exp(x) of a very negative x is subnormal or 0 in float32 although a * b may make the product an
    ordinary number. So each side gets exp(x / 2), kept large by a power of two that `last` takes back; if
    not WIDE, `last` is 1, and the product is 0 from x = -174 on.
    """
    negative = x < 0.0
    if WIDE:
        low = x < -40.0
        half = exp_scaled(-0.5 * tl.abs(x), tl.where(low, 64.0, 0.0))
        power = tl.where(low, 0.0, half * half)  # 1 + exp(x) is 1 there
        inverse = 1.0 / (1.0 + power)
        left = tl.where(negative, half * tl.where(low, 2.3283064365386962890625e-10, 1.0), 1.0) * inverse
        right = tl.where(negative, half * tl.where(low, 5.42101086242752217e-20, 1.0), 1.0)
        last = tl.where(low, 2.3283064365386962890625e-10, 1.0)
    else:
        half = tl.exp2(tl.abs(x) * -0.72134752044448170368)
        power = half * half
        root = tl.rsqrt(1.0 + power)
        inverse = root * root  # cheaper than a division
        right = tl.where(negative, half, 1.0)
        left = right * inverse
        last = 1.0
    return left, right, last, tl.where(negative, 1.0, power) * inverse


@triton.jit
def times_logistic(x, u):
    """x * sigmoid(u), as accurate as `sigmoid_factors` if not WIDE, in fewer operations: exp(u / 2) over the
    root of exp(u) + 1, squared. Beyond 80, where the power might overflow, it is 1. Where u is NaN, x is."""
    half = tl.exp2(tl.minimum(u, 80.0) * 0.72134752044448170368)
    root = half * tl.rsqrt(tl.fma(half, half, 1.0))
    return (x * root) * root


@triton.jit
def rounded(x, dtype: tl.constexpr, PACKED: tl.constexpr):
    """x.to(dtype). PACKED, of NVIDIA's GPUs from sm_80 on: to bfloat16 two at once, as the compiler does
    where both are stored together; one by one it takes an instruction of a fourth of the rate (F2F)."""
    if PACKED and dtype == tl.bfloat16:
        y = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [x], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    else:
        y = x.to(dtype)
    return y


@triton.jit
def times_sigmoid(a, x):
    """a * sigmoid(x)."""
    left, right, last, _ = sigmoid_factors(x)  # pyright: ignore[reportGeneralTypeIssues]
    return (a * left) * right * last


@triton.jit
def normal_distribution(x):
    """(Phi(x), phi(x)), the normal distribution and its density, within a few ulp in both tails.

    Phi is erfc(-x / sqrt(2)) / 2, since 1 + erf cancels for negative x. The fit is that of Press et al.,
    Numerical Recipes, section 6.2, relative error 1.2e-7: erfc(z) = t * exp(-z^2 + p(t)) with
    t = 1 / (1 + z / 2).
    """
    square = x * x
    bell = exp_nonpositive(-0.5 * square)
    bell = tl.fma(bell, -0.5 * tl.where(square < 300.0, tl.fma(x, x, -square), 0.0), bell)
    t = 1.0 / tl.fma(tl.abs(x), 0.35355339059327376220, 1.0)
    p = tl.fma(t, 0.17087277, -0.82215223)
    p = tl.fma(t, p, 1.48851587)
    p = tl.fma(t, p, -1.13520398)
    p = tl.fma(t, p, 0.27886807)
    p = tl.fma(t, p, -0.18628806)
    p = tl.fma(t, p, 0.09678418)
    p = tl.fma(t, p, 0.37409196)
    p = tl.fma(t, p, 1.00002368)
    p = tl.fma(t, p, -1.26551223)
    tail = 0.5 * t * bell * tl.exp2(p * 1.44269504088896340736)
    return tl.where(x < 0.0, tail, 1.0 - tail), bell * 0.39894228040143267794


@triton.jit
def mills_factors(a):
    """(t, p): t * p is Mills' ratio (1 - Phi(a)) / phi(a) over sqrt(2 pi), for a >= 0.

    A polynomial p in t = 1 / (1 + 0.3 a), fitted here; t * p is off by 6e-7 of itself + a / sqrt(2 pi).
    """
    root = tl.rsqrt(tl.fma(a, 0.3, 1.0))
    t = root * root  # cheaper than a division
    r = tl.fma(t, -0.07948413957942683, 0.22228710771478521)
    r = tl.fma(t, r, -0.022730104914963103)
    r = tl.fma(t, r, 0.14635294797016904)
    r = tl.fma(t, r, 0.11351832039622001)
    return t, tl.fma(t, r, 0.12005557237315888)


@triton.jit
def times_normal(x, WIDE: tl.constexpr = True):  # pyright: ignore[reportArgumentType]
    """x * Phi(x), gelu; NaN at -inf, as torch's is.

    If not WIDE, from Mills' ratio, with phi as two square roots, so that the product keeps its range: within
    6e-7 of its value * (1 + x^2) for negative x, which is what a rounded x^2 does to phi.
    """
    if WIDE:
        distribution, _ = normal_distribution(x)  # pyright: ignore[reportGeneralTypeIssues]
        result = x * distribution
    else:
        t, p = mills_factors(tl.abs(x))  # pyright: ignore[reportGeneralTypeIssues]
        half = tl.exp2(x * x * -0.36067376022224085184)
        other = (t * p) * half
        result = tl.where(x < 0.0, (x * half) * other, x * tl.fma(-half, other, 1.0))
    return result


@triton.jit
def times_gelu_slope(dy, z, WIDE: tl.constexpr = True):  # pyright: ignore[reportArgumentType]
    """dy * (Phi(z) + z * phi(z)), gelu's derivative.

    If not WIDE: with a = |z| and Mills' ratio R(a) = (1 - Phi(a)) / phi(a), the derivative is
    s = phi(a) * (R(a) - a) for negative z and 1 - s else; phi goes in as two square roots, so that it keeps
    its range.
    """
    if WIDE:
        distribution, density = normal_distribution(z)  # pyright: ignore[reportGeneralTypeIssues]
        result = dy * tl.fma(z, density, distribution)
    else:
        a = tl.abs(z)
        t, p = mills_factors(a)  # pyright: ignore[reportGeneralTypeIssues]
        r = tl.fma(t, p, a * -0.39894228040143267794)
        half = tl.exp2(z * z * -0.36067376022224085184)
        other = r * half
        result = tl.where(z < 0.0, (dy * half) * other, dy * tl.fma(-half, other, 1.0))  # dy may be infinite
    return result


@triton.jit
def times_gelu_tanh_slope(dy, z, WIDE: tl.constexpr = True):  # pyright: ignore[reportArgumentType]
    """dy times the derivative of gelu_tanh, z * s with s = sigmoid(u): s * (1 + z * (1 - s) * u').

    s is 0 or 1 long before 20, and a cube must not overflow; at infinity the derivative is NaN, as torch's
    is."""
    x = tl.minimum(tl.maximum(z, -20.0), 20.0)
    square = x * x
    inner = x * tl.fma(square, 0.21406444881780073, 1.59576912160573071176)
    if WIDE:
        u = x * tl.fma(square, 0.07135481627260025, 1.59576912160573071176)
        left, right, last, complement = sigmoid_factors(u + (z - z), WIDE)  # pyright: ignore[reportGeneralTypeIssues]
        result = (tl.fma(inner, complement, 1.0) * left) * (dy * right) * last
    else:
        power = tl.exp2(-tl.abs(x * tl.fma(square, 0.1029432395800235, 2.302208198144325)))
        root = tl.rsqrt(1.0 + power)
        near = root * root
        far = power * near
        negative = z < 0.0
        derivative = tl.where(negative, far, near) * tl.fma(inner, tl.where(negative, near, far), 1.0)
        result = derivative * tl.fma(z, 0.0, dy)
    return result


@triton.jit
def softcapped(x, cap):
    """(cap * tanh(x / cap), its derivative): within 2 ulp, by an odd minimax polynomial below 5/8,
    and 1 - 2 / (1 + exp(2 |x|)) beyond."""
    y = x / cap
    a = tl.abs(y)
    s = y * y
    p = tl.fma(s, -0.005515082739293575, 0.020469345152378082)
    p = tl.fma(p, s, -0.05368800088763237)
    p = tl.fma(p, s, 0.1333083063364029)
    p = tl.fma(p, s, -0.3333325982093811)
    outer = 1.0 - 2.0 / (1.0 + tl.exp2(a * 2.8853900817779268147))
    curve = tl.where(a < 0.625, tl.fma(y * s, p, y), tl.where(y < 0.0, -outer, outer))
    return cap * curve, (1.0 - curve) * (1.0 + curve)
